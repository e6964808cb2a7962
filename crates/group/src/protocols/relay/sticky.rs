//! The choice of a site master by sender. All messages of a sender take the same one while it is there, so that they keep
//! their order.

use crate::{Address, Uuid};

/// Returns the candidate of a sender among several: the same one wherever and whenever the candidates are the same, and
/// another one for other senders.
pub(super) fn choose<'a, T>(
    sender: &Address,
    candidates: &'a [T],
    address: impl Fn(&T) -> &Address,
) -> Option<&'a T> {
    let sender = sender.uuid().unwrap_or_default();
    candidates.iter().max_by_key(|candidate| {
        let uuid = address(candidate).uuid().unwrap_or_default();
        (weight(sender, uuid), uuid)
    })
}

/// Rendezvous hashing: if a candidate leaves, only its senders get another one.
fn weight(sender: Uuid, candidate: Uuid) -> u64 {
    [sender.least, candidate.most, candidate.least]
        .iter()
        .fold(mix(sender.most), |hash, &word| mix(hash ^ word))
}

/// The finalizer of SplitMix64.
const fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::member;

    #[test]
    fn senders_are_spread_and_keep_their_master_when_another_one_leaves() {
        let masters: Vec<Address> = (1..=3).map(member).collect();
        let of =
            |sender: u64, masters: &[Address]| choose(&member(sender), masters, |one| one).cloned().unwrap();
        let first: Vec<Address> = (100..400).map(|sender| of(sender, &masters)).collect();
        for master in &masters {
            let count = first.iter().filter(|chosen| *chosen == master).count();
            assert!((60..140).contains(&count), "{count} of 300 senders");
        }
        for (sender, before) in (100..400).zip(first) {
            let after = of(sender, &masters[..2]);
            assert!(before == masters[2] || before == after);
        }
        assert_eq!(choose(&member(1), &[], |one: &Address| one), None);
    }
}
