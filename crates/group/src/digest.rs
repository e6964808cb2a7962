use crate::Address;

/// One member's row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DigestEntry {
    /// The sender.
    pub member: Address,
    /// The highest seqno delivered.
    pub highest_delivered: u64,
    /// The highest seqno received.
    pub highest_received: u64,
}

/// Seqnos per member. The order is kept, because the wire format may omit the members.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Digest {
    /// The rows.
    pub entries: Vec<DigestEntry>,
}

impl Digest {
    /// Returns a member's row.
    pub fn get(&self, member: &Address) -> Option<&DigestEntry> {
        self.entries.iter().find(|entry| entry.member == *member)
    }

    /// Sets or appends a row.
    pub fn set(&mut self, member: Address, highest_delivered: u64, highest_received: u64) {
        match self.entries.iter_mut().find(|entry| entry.member == member) {
            Some(entry) => {
                entry.highest_delivered = highest_delivered;
                entry.highest_received = highest_received;
            }
            None => self.entries.push(DigestEntry { member, highest_delivered, highest_received }),
        }
    }

    /// Raises a row to at least these seqnos, or appends it.
    pub fn raise(&mut self, member: &Address, highest_delivered: u64, highest_received: u64) {
        let (hd, hr) =
            self.get(member).map_or((0, 0), |entry| (entry.highest_delivered, entry.highest_received));
        self.set(member.clone(), hd.max(highest_delivered), hr.max(highest_received));
    }

    /// Returns whether it has these members in this order.
    pub fn has_members(&self, members: &[Address]) -> bool {
        self.entries.len() == members.len()
            && self.entries.iter().zip(members).all(|(entry, member)| entry.member == *member)
    }
}

/// Seqnos as a bitmap from an offset.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct SeqnoList {
    /// The capacity in bits.
    pub size: u32,
    /// The seqno of bit 0.
    pub offset: u64,
    /// `ceil(size / 64)` words, lowest seqnos first.
    pub words: Vec<u64>,
}

impl SeqnoList {
    /// Creates an empty list.
    pub fn new(offset: u64, size: u32) -> Self {
        Self { size, offset, words: vec![0; size.div_ceil(64) as usize] }
    }

    /// Adds a seqno in range; returns whether it was.
    pub fn add(&mut self, seqno: u64) -> bool {
        let Some(bit) = seqno.checked_sub(self.offset).filter(|&bit| bit < u64::from(self.size)) else {
            return false;
        };
        self.words[(bit / 64) as usize] |= 1 << (bit % 64);
        true
    }

    /// Returns the seqnos in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        (0..u64::from(self.size))
            .filter(|&bit| {
                self.words.get((bit / 64) as usize).is_some_and(|word| word >> (bit % 64) & 1 == 1)
            })
            .map(|bit| self.offset.wrapping_add(bit))
    }

    /// Returns their number.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Returns whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seqno_list_holds_seqnos_in_its_range() {
        let mut list = SeqnoList::new(5, 10);
        assert!(list.add(5) && list.add(7) && list.add(14));
        assert!(!list.add(4) && !list.add(15));
        assert_eq!(list.iter().collect::<Vec<_>>(), [5, 7, 14]);
        assert_eq!(list.words, [0x205]);
        assert_eq!(list.len(), 3);
    }
}
