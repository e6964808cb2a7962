//! Credit on its way back from the application to the layers that count it.

use smallvec::{SmallVec, smallvec};

use crate::Address;

/// Members and bytes. One entry, unless a layer above delivered messages of one member that another had sent.
pub type OwedCredits = SmallVec<[(Address, u64); 1]>;

pub(crate) struct CreditReturn {
    owed: OwedCredits,
    is_multicast: bool,
}

impl CreditReturn {
    pub(crate) fn new(src: &Address, is_multicast: bool, credit: u64) -> Self {
        Self { owed: smallvec![(src.clone(), credit)], is_multicast }
    }

    /// `report` gets creditor, destination kind and bytes, and returns the creditors that the layers below know.
    pub(crate) fn pass(&mut self, mut report: impl FnMut(&Address, bool, u64) -> Option<OwedCredits>) {
        let mut next: Option<OwedCredits> = None;
        for (at, (src, credit)) in self.owed.iter().enumerate() {
            match report(src, self.is_multicast, *credit) {
                Some(owed) => next.get_or_insert_with(|| self.owed[..at].into()).extend(owed),
                None => {
                    if let Some(next) = &mut next {
                        next.push((src.clone(), *credit));
                    }
                }
            }
        }
        if let Some(next) = next {
            self.owed = next;
        }
    }
}
