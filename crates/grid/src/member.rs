use std::fmt;
use std::sync::Arc;

use consort_group::{Address, Member};

/// A member's relative share of a cache, 1 by default. It is stored in thousandths, so that all members
/// compute the same owners.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CapacityFactor(u32);

impl CapacityFactor {
    /// The member owns no segments.
    pub const ZERO: Self = Self(0);

    /// Creates a capacity from thousandths of the default.
    pub const fn from_thousandths(thousandths: u32) -> Self {
        Self(thousandths)
    }

    /// Returns thousandths of the default.
    pub const fn thousandths(self) -> u32 {
        self.0
    }
}

impl Default for CapacityFactor {
    fn default() -> Self {
        Self(1_000)
    }
}

impl fmt::Display for CapacityFactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1_000, self.0 % 1_000)
    }
}

/// A member's location. Owners of a segment are at different sites, else racks, else machines. Members
/// without a value are at the same place.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Location {
    /// The data centre.
    pub site: Option<Arc<str>>,
    /// The rack at the site.
    pub rack: Option<Arc<str>>,
    /// The machine.
    pub machine: Option<Arc<str>>,
}

impl Location {
    /// Returns 0 for different sites, 1 for the same site, 2 the same rack, 3 the same machine.
    pub fn closeness(&self, other: &Self) -> usize {
        if self.site != other.site {
            0
        } else if self.rack != other.rack {
            1
        } else if self.machine != other.machine {
            2
        } else {
            3
        }
    }
}

/// A member of a cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CacheMember {
    /// The address.
    pub address: Address,
    /// The capacity.
    pub capacity: CapacityFactor,
    /// The location.
    pub location: Location,
}

impl From<Address> for CacheMember {
    fn from(address: Address) -> Self {
        Self { address, capacity: CapacityFactor::default(), location: Location::default() }
    }
}

/// An error that names members. A node knows only addresses; the caller adds the names.
pub trait NamesMembers {
    /// Calls `name` for each member.
    fn each_member(&mut self, name: &mut dyn FnMut(&mut Member));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rack_of_another_site_is_another_rack() {
        let place = |site: &str, rack: &str, machine: &str| Location {
            site: Some(site.into()),
            rack: Some(rack.into()),
            machine: Some(machine.into()),
        };
        let here = place("s1", "r1", "m1");
        assert_eq!(here.closeness(&place("s2", "r1", "m1")), 0);
        assert_eq!(here.closeness(&place("s1", "r2", "m1")), 1);
        assert_eq!(here.closeness(&place("s1", "r1", "m2")), 2);
        assert_eq!(here.closeness(&here), 3);
        assert_eq!(Location::default().closeness(&Location::default()), 3);
    }

    #[test]
    fn a_capacity_is_shown_as_a_share_of_the_usual() {
        assert_eq!(CapacityFactor::default().to_string(), "1.000");
        assert_eq!(CapacityFactor::from_thousandths(2_050).to_string(), "2.050");
    }
}
