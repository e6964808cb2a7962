//! Addresses, and the book of members' names and physical addresses.
//!
//! Equality and order are those of JGroups, because elections and tie-breaks depend on them.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::Arc;

use crate::{Rng, Time};

/// A random 128-bit identity. Ordered by the signed most significant half, then the least.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Uuid {
    /// The upper 64 bits.
    pub most: u64,
    /// The lower 64 bits, first on the wire.
    pub least: u64,
}

impl Uuid {
    /// Creates a version 4 UUID.
    pub fn random(rng: &mut Rng) -> Self {
        let most = rng.next_u64() & !0xf000 | 0x4000;
        let least = rng.next_u64() & !(0b11 << 62) | (0b10 << 62);
        Self { most, least }
    }
}

impl Ord for Uuid {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        (self.most as i64, self.least as i64).cmp(&(other.most as i64, other.least as i64))
    }
}

impl PartialOrd for Uuid {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (m, l) = (self.most, self.least);
        write!(
            f,
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            m >> 32,
            (m >> 16) & 0xffff,
            m & 0xffff,
            l >> 48,
            l & 0xffff_ffff_ffff
        )
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An IP address and port in JGroups' order: by the address' signed Java hash, then by port.
#[derive(Clone, Copy)]
pub struct IpAddress {
    /// The host; `None` is the wire's "no address".
    pub ip: Option<IpAddr>,
    /// The IPv6 scope id, ignored by equality and order.
    pub scope_id: u32,
    /// The port.
    pub port: u16,
}

/// A member's physical address, of its receiving socket.
pub type PhysAddr = IpAddress;

impl IpAddress {
    /// Creates an address without scope.
    pub const fn new(ip: IpAddr, port: u16) -> Self {
        Self { ip: Some(ip), scope_id: 0, port }
    }

    /// Returns the socket address; without a host, the unspecified IPv4 address.
    pub fn socket_addr(self) -> SocketAddr {
        match self.ip {
            Some(IpAddr::V6(ip)) => SocketAddr::V6(SocketAddrV6::new(ip, self.port, 0, self.scope_id)),
            Some(ip) => SocketAddr::new(ip, self.port),
            None => SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), self.port),
        }
    }

    /// Returns Java's `InetAddress.hashCode()`.
    pub fn java_hash(self) -> i32 {
        match self.ip {
            Some(IpAddr::V4(ip)) => i32::from_be_bytes(ip.octets()),
            Some(IpAddr::V6(ip)) => ip
                .octets()
                .chunks_exact(4)
                .map(|group| group.iter().fold(0i32, |g, &b| (g << 8).wrapping_add(i32::from(b as i8))))
                .fold(0i32, i32::wrapping_add),
            None => 0,
        }
    }

    fn key(self) -> (i32, u16, [u8; 16]) {
        let octets = match self.ip {
            Some(IpAddr::V4(ip)) => ip.to_ipv6_mapped().octets(),
            Some(IpAddr::V6(ip)) => ip.octets(),
            None => Ipv6Addr::UNSPECIFIED.octets(),
        };
        (self.java_hash(), self.port, octets)
    }
}

impl From<SocketAddr> for IpAddress {
    fn from(addr: SocketAddr) -> Self {
        let scope_id = if let SocketAddr::V6(v6) = addr { v6.scope_id() } else { 0 };
        Self { ip: Some(addr.ip()), scope_id, port: addr.port() }
    }
}

impl PartialEq for IpAddress {
    fn eq(&self, other: &Self) -> bool {
        self.ip == other.ip && self.port == other.port
    }
}

impl Eq for IpAddress {}

impl Hash for IpAddress {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.ip, self.port).hash(state);
    }
}

impl Ord for IpAddress {
    fn cmp(&self, other: &Self) -> Ordering {
        // The octets break ties between different hosts with the same Java hash.
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for IpAddress {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for IpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ip {
            Some(IpAddr::V6(ip)) => write!(f, "[{ip}]:{}", self.port),
            Some(ip) => write!(f, "{ip}:{}", self.port),
            None => write!(f, "<none>:{}", self.port),
        }
    }
}

impl fmt::Debug for IpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Kinds of rarer addresses.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum ExtKind {
    /// A UUID with flags.
    Flags,
    /// A UUID with flags and small key/value pairs.
    Extended,
    /// A member of a site.
    Site {
        /// The site's name.
        site: Option<Arc<str>>,
        /// The member's name.
        name: Option<Arc<str>>,
    },
    /// A site's master; without a site, of all sites.
    SiteMaster {
        /// The site's name.
        site: Option<Arc<str>>,
    },
    /// Milliseconds, in the UUID's lower half.
    Millis,
}

/// An address of a rarer class.
#[derive(Clone, Debug)]
pub struct ExtAddress {
    /// The identity.
    pub uuid: Uuid,
    /// FlagsUUID's flags. Bit 1: can become site master.
    pub flags: i32,
    /// Pairs in the wire's order.
    pub entries: Vec<(Vec<u8>, Vec<u8>)>,
    /// The kind.
    pub kind: ExtKind,
}

impl ExtAddress {
    fn site(&self) -> Option<&Arc<str>> {
        match &self.kind {
            ExtKind::Site { site, .. } | ExtKind::SiteMaster { site } => site.as_ref(),
            _ => None,
        }
    }
}

/// A member's identity; an IP address only as destination of discovery before any member is known.
#[derive(Clone)]
pub enum Address {
    /// A plain member.
    Uuid(Uuid),
    /// A physical address as destination.
    Ip(IpAddress),
    /// An address of a rarer class.
    Ext(Arc<ExtAddress>),
}

impl Address {
    /// Creates a random member address.
    pub fn random(rng: &mut Rng) -> Self {
        Self::Uuid(Uuid::random(rng))
    }

    /// Returns its UUID, if it has one.
    pub fn uuid(&self) -> Option<Uuid> {
        match self {
            Self::Uuid(uuid) => Some(*uuid),
            Self::Ext(ext) => Some(ext.uuid),
            Self::Ip(_) => None,
        }
    }

    /// Returns the site of a member of a site, or of a site's masters.
    pub fn site(&self) -> Option<&str> {
        if let Self::Ext(ext) = self { ext.site().map(|site| &**site) } else { None }
    }
}

impl PartialEq for Address {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Uuid(a), Self::Uuid(b)) => a == b,
            _ => self.cmp_rare(other) == Ordering::Equal,
        }
    }
}

impl Eq for Address {}

impl Hash for Address {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Self::Ip(ip) => ip.hash(state),
            _ => self.uuid().hash(state),
        }
    }
}

impl Ord for Address {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Uuid(a), Self::Uuid(b)) => a.cmp(b),
            _ => self.cmp_rare(other),
        }
    }
}

impl Address {
    #[cold]
    fn cmp_rare(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Ip(a), Self::Ip(b)) => a.cmp(b),
            (Self::Ip(_), _) => Ordering::Greater,
            (_, Self::Ip(_)) => Ordering::Less,
            _ => self.site().cmp(&other.site()).then_with(|| self.uuid().cmp(&other.uuid())),
        }
    }
}

impl PartialOrd for Address {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl From<IpAddress> for Address {
    fn from(ip: IpAddress) -> Self {
        Self::Ip(ip)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uuid(uuid) => fmt::Display::fmt(uuid, f),
            Self::Ip(ip) => fmt::Display::fmt(ip, f),
            Self::Ext(ext) => match &ext.kind {
                ExtKind::Site { site, name } => {
                    write!(f, "{}:{}", name.as_deref().unwrap_or("?"), site.as_deref().unwrap_or("?"))
                }
                ExtKind::SiteMaster { site } => write!(f, "SiteMaster({})", site.as_deref().unwrap_or("*")),
                ExtKind::Millis => write!(f, "{}", ext.uuid.least),
                ExtKind::Flags | ExtKind::Extended => fmt::Display::fmt(&ext.uuid, f),
            },
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[derive(Clone, Debug, Default)]
struct Entry {
    name: Option<Arc<str>>,
    phys: Option<PhysAddr>,
    /// Since the member left; after `EXPIRY` its physical address is removed, or a nameless entry.
    removable_since: Option<Time>,
}

/// Names and physical addresses of members, from discovery and merges.
#[derive(Clone, Debug, Default)]
pub struct AddressBook {
    entries: BTreeMap<Address, Entry>,
    changes: u64,
}

impl AddressBook {
    /// The maximum number of entries (JGroups' logical_addr_cache_max_size). Beyond it, former members are evicted, then none is
    /// added, so that invented members cannot grow the book.
    pub const ENTRIES_MAX: usize = 2000;
    /// How long a former member's physical address is kept (JGroups' logical_addr_cache_expiration). Operators may ask for its
    /// name while there is room.
    pub const EXPIRY: std::time::Duration = std::time::Duration::from_secs(360);

    /// Adds the values that are not `None`. Returns whether anything changed.
    pub fn learn(&mut self, member: &Address, name: Option<&str>, phys: Option<PhysAddr>) -> bool {
        if !self.entries.contains_key(member) && self.entries.len() >= Self::ENTRIES_MAX {
            let Some(victim) = self
                .entries
                .iter()
                .find(|(_, entry)| entry.removable_since.is_some())
                .map(|(a, _)| a.clone())
            else {
                return false;
            };
            self.entries.remove(&victim);
        }
        let entry = self.entries.entry(member.clone()).or_default();
        let mut changed = false;
        if let Some(name) = name
            && entry.name.as_deref() != Some(name)
        {
            entry.name = Some(name.into());
            changed = true;
        }
        if let Some(phys) = phys
            && entry.phys != Some(phys)
        {
            entry.phys = Some(phys);
            changed = true;
        }
        self.changes += u64::from(changed);
        changed
    }

    /// Returns the physical address.
    pub fn phys(&self, member: &Address) -> Option<PhysAddr> {
        self.entries.get(member).and_then(|entry| entry.phys)
    }

    /// Returns the logical name.
    pub fn name(&self, member: &Address) -> Option<&Arc<str>> {
        self.entries.get(member).and_then(|entry| entry.name.as_ref())
    }

    /// Returns the name, or the address without one.
    pub fn display(&self, member: &Address) -> String {
        self.name(member).map_or_else(|| member.to_string(), ToString::to_string)
    }

    /// Returns the member with this name: current ones first, then the smallest address.
    pub fn by_name(&self, name: &str) -> Option<&Address> {
        let of_name = self.entries.iter().filter(|(_, entry)| entry.name.as_deref() == Some(name));
        // `min_by_key` returns the first of equal entries.
        of_name.min_by_key(|(_, entry)| entry.removable_since.is_some()).map(|(address, _)| address)
    }

    pub(crate) fn shares_name(&self, member: &Address) -> bool {
        let Some((own, name)) = self.entries.get(member).and_then(|own| Some((own, own.name.as_ref()?)))
        else {
            return false;
        };
        self.entries.iter().any(|(other, entry)| {
            other != member
                && entry.name.as_ref() == Some(name)
                && (entry.removable_since.is_none() || own.removable_since.is_some())
        })
    }

    /// Returns the member at this physical address.
    pub fn by_phys(&self, phys: PhysAddr) -> Option<&Address> {
        self.entries.iter().find(|(_, entry)| entry.phys == Some(phys)).map(|(address, _)| address)
    }

    /// Returns all members in address order.
    pub fn iter(&self) -> impl Iterator<Item = (&Address, Option<&Arc<str>>, Option<PhysAddr>)> {
        self.entries.iter().map(|(address, entry)| (address, entry.name.as_ref(), entry.phys))
    }

    /// Returns the number of changes, for values derived from the book.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Marks others as removable, and removes physical addresses marked `EXPIRY` ago.
    pub fn retain_members(&mut self, now: Time, members: &[Address]) {
        self.entries.retain(|address, entry| {
            if members.contains(address) {
                entry.removable_since = None;
                return true;
            }
            let is_kept = now.since(*entry.removable_since.get_or_insert(now)) < Self::EXPIRY;
            entry.phys = entry.phys.filter(|_| is_kept);
            is_kept || entry.name.is_some()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_order_by_signed_halves() {
        let negative = Uuid { most: 0x8000_0000_0000_0000, least: 0 };
        let positive = Uuid { most: 1, least: 0 };
        assert!(negative < positive);
        assert!(Uuid { most: 1, least: u64::MAX } < Uuid { most: 1, least: 0 });
    }

    #[test]
    fn ip_addresses_order_by_javas_hash() {
        let ip = |text: &str| IpAddress::from(text.parse::<SocketAddr>().unwrap());
        assert!(ip("192.168.1.5:7800") < ip("10.0.0.1:7800"), "the top bit makes 192.x negative");
        assert!(ip("10.0.0.1:7800") < ip("10.0.0.1:7801"));
        assert_eq!(ip("[fe80::1]:1").java_hash() as u32, 0xfd80_0001);
        assert_eq!(ip("[2001:db8::1]:1").java_hash() as u32, 0x2001_0cb9);
        assert_eq!(ip("[::1]:1").java_hash(), 1);
    }

    #[test]
    fn a_uuid_equals_its_flagged_form() {
        let uuid = Uuid { most: 1, least: 2 };
        let flagged = ExtAddress { uuid, flags: 2, entries: Vec::new(), kind: ExtKind::Flags };
        assert_eq!(Address::Uuid(uuid), Address::Ext(Arc::new(flagged)));
    }

    #[test]
    fn the_name_of_a_former_member_stays() {
        let mut rng = Rng::new(1);
        let [gone, unnamed, back] = [(); 3].map(|()| Address::random(&mut rng));
        let phys = PhysAddr::from("10.0.0.1:7800".parse::<SocketAddr>().unwrap());
        let mut book = AddressBook::default();
        book.learn(&gone, Some("A"), Some(phys));
        book.learn(&unnamed, None, Some(phys));
        book.retain_members(Time::ZERO, &[]);
        book.retain_members(Time::ZERO + AddressBook::EXPIRY / 2, &[]);
        assert!(book.phys(&gone).is_some() && book.phys(&unnamed).is_some());
        book.learn(&back, Some("A"), Some(phys));
        book.retain_members(Time::ZERO + AddressBook::EXPIRY, std::slice::from_ref(&back));
        assert_eq!(book.iter().map(|(_, _, phys)| phys).filter(Option::is_some).count(), 1);
        assert_eq!(book.name(&gone).map(|name| &**name), Some("A"));
        assert_eq!(book.name(&unnamed), None);
        assert_eq!(book.by_name("A"), Some(&back), "regardless of the order of addresses");
    }

    #[test]
    fn the_book_is_bounded() {
        let mut rng = Rng::new(1);
        let mut book = AddressBook::default();
        for _ in 0..AddressBook::ENTRIES_MAX + 10 {
            book.learn(&Address::random(&mut rng), Some("x"), None);
        }
        assert_eq!(book.iter().count(), AddressBook::ENTRIES_MAX);
    }
}
