//! Addresses of members of other sites, and of site masters (RELAY2, RELAY3).

use std::sync::Arc;

use crate::{Address, ExtAddress, ExtKind, Uuid, View};

/// The flag of an extended address whose member can become site master.
pub const CAN_BECOME_SITE_MASTER: i32 = 1 << 1;

impl Address {
    /// Returns the address of a site's masters. One of them gets a message for it.
    pub fn site_master(site: &str) -> Self {
        let kind = ExtKind::SiteMaster { site: Some(site.into()) };
        Self::Ext(Arc::new(ExtAddress { uuid: Uuid::default(), flags: 0, entries: Vec::new(), kind }))
    }

    /// Returns the address of the masters of all sites. Each site gets a message for it (RELAY3).
    pub fn all_site_masters() -> Self {
        let kind = ExtKind::SiteMaster { site: None };
        Self::Ext(Arc::new(ExtAddress { uuid: Uuid::default(), flags: 0, entries: Vec::new(), kind }))
    }

    /// Returns a new address of RELAY3's member, which has its site.
    pub fn of_site(uuid: Uuid, site: &str, name: &str, can_become_site_master: bool) -> Self {
        Self::tagged(uuid, can_become_site_master).in_site(site, Some(name))
    }

    /// Returns whether a message to it may leave the site of this view's members.
    pub fn is_beyond(&self, view: &View) -> bool {
        let own = view.coordinator().and_then(Self::site);
        self.is_site_master() || (self.site().is_some() && self.site() != own)
    }

    /// Returns a member's address as members of other sites see it. Flags and pairs of an extended address stay.
    pub fn in_site(&self, site: &str, name: Option<&str>) -> Self {
        let (flags, entries) = match self {
            Self::Ext(ext) => (ext.flags, ext.entries.clone()),
            _ => (0, Vec::new()),
        };
        let kind = ExtKind::Site { site: Some(site.into()), name: name.map(Into::into) };
        let uuid = self.uuid().unwrap_or_default();
        Self::Ext(Arc::new(ExtAddress { uuid, flags, entries, kind }))
    }

    /// Returns a new address that tells other members whether the member can become site master.
    pub fn tagged(uuid: Uuid, can_become_site_master: bool) -> Self {
        let flags = if can_become_site_master { CAN_BECOME_SITE_MASTER } else { 0 };
        Self::Ext(Arc::new(ExtAddress { uuid, flags, entries: Vec::new(), kind: ExtKind::Extended }))
    }

    /// Returns the name that a member's address has in other sites.
    pub fn site_member_name(&self) -> Option<&str> {
        match self {
            Self::Ext(ext) => match &ext.kind {
                ExtKind::Site { name, .. } => name.as_deref(),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns whether it is the address of site masters.
    pub fn is_site_master(&self) -> bool {
        matches!(self, Self::Ext(ext) if matches!(ext.kind, ExtKind::SiteMaster { .. }))
    }

    /// Returns whether it is an address of a site, which only RELAY2 or RELAY3 can reach.
    pub fn is_of_site(&self) -> bool {
        self.is_site_master() || self.site().is_some()
    }

    /// Returns whether the member may be site master. Members with plain addresses may.
    pub fn can_become_site_master(&self) -> bool {
        match self {
            Self::Ext(ext) => {
                let is_extended = !matches!(ext.kind, ExtKind::Flags | ExtKind::Millis);
                !is_extended || ext.flags & CAN_BECOME_SITE_MASTER != 0
            }
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ViewId;

    #[test]
    fn address_in_a_site_differs_from_the_members_own_and_ignores_its_name() {
        let own = Address::Uuid(Uuid { most: 1, least: 2 });
        let remote = own.in_site("lon", Some("A"));
        assert_eq!(remote, own.in_site("lon", None));
        assert_ne!(remote, own);
        assert_ne!(remote, own.in_site("nyc", Some("A")));
        assert_eq!((remote.site(), remote.uuid()), (Some("lon"), own.uuid()));
        assert_eq!(remote.to_string(), "A:lon");
        assert!(remote.is_of_site() && !remote.is_site_master() && !own.is_of_site());
        let master = Address::site_master("lon");
        assert!(master.is_site_master() && master.is_of_site());
        assert_eq!(master.to_string(), "SiteMaster(lon)");
        let all = Address::all_site_masters();
        assert!(all.is_site_master() && all.site().is_none());
    }

    #[test]
    fn site_of_the_view_tells_which_addresses_are_beyond_it() {
        let address = |n, site| Address::of_site(Uuid { most: n, least: n }, site, "A", true);
        let view = |member: Address| View::new(ViewId { creator: member.clone(), id: 1 }, vec![member]);
        let plain = view(Address::Uuid(Uuid { most: 1, least: 1 }));
        assert!(address(2, "lon").is_beyond(&plain) && Address::site_master("lon").is_beyond(&plain));
        let lon = view(address(1, "lon"));
        assert!(!address(2, "lon").is_beyond(&lon) && address(2, "nyc").is_beyond(&lon));
        assert!(Address::site_master("lon").is_beyond(&lon));
        assert!(address(1, "lon").can_become_site_master());
    }

    #[test]
    fn tagged_address_equals_the_plain_one_and_tells_whether_its_member_can_be_master() {
        let uuid = Uuid { most: 1, least: 2 };
        assert_eq!(Address::tagged(uuid, false), Address::Uuid(uuid));
        assert!(Address::Uuid(uuid).can_become_site_master());
        assert!(Address::tagged(uuid, true).can_become_site_master());
        assert!(!Address::tagged(uuid, false).can_become_site_master());
        assert!(Address::tagged(uuid, true).in_site("lon", None).can_become_site_master());
    }
}
