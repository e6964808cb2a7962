//! Credit on its way back from the application to the layers that count it.

use std::collections::{BTreeMap, VecDeque};

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

/// The members whose credit the application holds, by the sender on whose behalf a layer delivered. The credit granted
/// bounds it.
#[derive(Default)]
pub(crate) struct Creditors(BTreeMap<Address, VecDeque<(Address, u64)>>);

impl Creditors {
    pub(crate) const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// The next delivered bytes of `src` are the creditor's.
    pub(crate) fn note(&mut self, src: &Address, creditor: Option<&Address>, credit: u32) {
        let (Some(creditor), 1..) = (creditor, credit) else { return };
        let owed = self.0.entry(src.clone()).or_default();
        match owed.back_mut() {
            Some((last, bytes)) if last == creditor => *bytes += u64::from(credit),
            _ => owed.push_back((creditor.clone(), u64::from(credit))),
        }
    }

    /// Takes the creditors of the next consumed bytes. Bytes beyond the noted ones are the sender's own.
    pub(crate) fn take(&mut self, src: &Address, credit: u64) -> Option<OwedCredits> {
        let owed = self.0.get_mut(src)?;
        let mut result = OwedCredits::new();
        let mut left = credit;
        while left > 0
            && let Some((creditor, bytes)) = owed.front_mut()
        {
            let part = left.min(*bytes);
            result.push((creditor.clone(), part));
            left -= part;
            *bytes -= part;
            if *bytes == 0 {
                owed.pop_front();
            }
        }
        if owed.is_empty() {
            self.0.remove(src);
        }
        if left > 0 {
            result.push((src.clone(), left));
        }
        Some(result)
    }
}
