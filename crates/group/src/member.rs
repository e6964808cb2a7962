use std::fmt;
use std::sync::Arc;

use crate::{Address, AddressBook};

/// A member in an error or log line.
///
/// Shown by its logical name or its address, as `A (3f2a…)` if another current member has the name or replaced it. Equal if the
/// address is.
#[derive(Clone)]
pub struct Member {
    /// Its address.
    pub address: Address,
    name: Option<Arc<str>>,
    shares_name: bool,
}

impl Member {
    /// Returns the logical name, if known.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}

impl From<Address> for Member {
    fn from(address: Address) -> Self {
        Self { address, name: None, shares_name: false }
    }
}

impl PartialEq for Member {
    fn eq(&self, other: &Self) -> bool {
        self.address == other.address
    }
}

impl Eq for Member {}

impl PartialEq<Address> for Member {
    fn eq(&self, other: &Address) -> bool {
        self.address == *other
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) if self.shares_name => write!(f, "{name} ({})", self.address),
            Some(name) => f.write_str(name),
            None => fmt::Display::fmt(&self.address, f),
        }
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl AddressBook {
    /// Returns the member for errors and logs.
    pub fn member(&self, address: &Address) -> Member {
        let (name, shares_name) = (self.name(address).cloned(), self.shares_name(address));
        Member { address: address.clone(), name, shares_name }
    }

    /// Returns the members for errors and logs.
    pub fn members<'a>(&self, addresses: impl IntoIterator<Item = &'a Address>) -> Vec<Member> {
        addresses.into_iter().map(|address| self.member(address)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Time, Uuid};

    fn address(least: u64) -> Address {
        Address::Uuid(Uuid { most: 1, least })
    }

    #[test]
    fn a_member_is_shown_by_its_name_and_with_its_address_if_that_is_ambiguous() {
        let at = |n: u64| format!("00000000-0000-0001-0000-{n:012x}");
        let mut book = AddressBook::default();
        for (n, name) in [(1, "A"), (2, "B"), (3, "B")] {
            book.learn(&address(n), Some(name), None);
        }
        book.learn(&address(4), None, None);
        let shown = |book: &AddressBook| {
            let all = book.members(&[1, 2, 3, 4, 5].map(address));
            all.iter().map(Member::to_string).collect::<Vec<_>>()
        };
        let two = ["A".to_owned(), format!("B ({})", at(2)), format!("B ({})", at(3)), at(4), at(5)];
        assert_eq!(shown(&book), two);
        book.retain_members(Time::ZERO, &[1, 3, 4].map(address));
        let one = ["A".to_owned(), format!("B ({})", at(2)), "B".to_owned(), at(4), at(5)];
        assert_eq!(shown(&book), one, "a name alone is the current member's");
    }

    #[test]
    fn members_are_equal_if_their_addresses_are() {
        let mut book = AddressBook::default();
        book.learn(&address(1), Some("A"), None);
        let [known, unknown] = [book.member(&address(1)), address(1).into()];
        assert_eq!(known, unknown);
        assert!(known == address(1) && known != address(2));
        assert_eq!(format!("{:?}", [known]), "[A]", "lists in logs show names");
    }
}
