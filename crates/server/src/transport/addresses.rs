use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::transport::ip_filter::IpFilter;

/// An IPv4 address, or an IPv6 network of 64 bits, because one host can have all its addresses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Origin(IpAddr);

impl Origin {
    pub(crate) fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(address) if !address.is_loopback() => {
                let [a, b, c, d, ..] = address.segments();
                Self(IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0)))
            }
            address => Self(address),
        }
    }

    /// Local proxies have connections for many clients.
    const fn is_local_host(self) -> bool {
        self.0.is_loopback()
    }
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            IpAddr::V6(address) if !address.is_loopback() => write!(f, "{address}/64"),
            address => address.fmt(f),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Addresses {
    max: usize,
    filter: Arc<IpFilter>,
    counts: Arc<Mutex<BTreeMap<Origin, usize>>>,
}

#[derive(Debug)]
pub(crate) struct ConnectionCount {
    of: Addresses,
    origin: Origin,
}

impl Addresses {
    /// `max` of zero is no limit.
    pub(crate) fn new(max: usize) -> Self {
        Self { max, filter: Arc::default(), counts: Arc::default() }
    }

    pub(crate) fn filtered(mut self, filter: IpFilter) -> Self {
        self.filter = Arc::new(filter);
        self
    }

    pub(crate) fn accept(&self, address: IpAddr) -> bool {
        self.filter.accepts(address)
    }

    pub(crate) const fn max(&self) -> usize {
        self.max
    }

    fn counts(&self) -> MutexGuard<'_, BTreeMap<Origin, usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, origin: Origin) -> Option<ConnectionCount> {
        let mut counts = self.counts();
        let count = counts.entry(origin).or_default();
        if self.max > 0 && *count >= self.max && !origin.is_local_host() {
            return None;
        }
        *count += 1;
        Some(ConnectionCount { of: self.clone(), origin })
    }
}

impl Drop for ConnectionCount {
    fn drop(&mut self) {
        let mut counts = self.of.counts();
        if let Some(count) = counts.get_mut(&self.origin) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.origin);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(address: &str) -> Origin {
        Origin::of(address.parse().unwrap())
    }

    #[test]
    fn address_at_its_limit_gets_a_connection_after_one_ends() {
        let addresses = Addresses::new(2);
        let first = addresses.add(origin("192.0.2.1")).unwrap();
        let _second = addresses.add(origin("::ffff:192.0.2.1")).expect("the same address, and the second");
        assert!(addresses.add(origin("192.0.2.1")).is_none());
        let _other = addresses.add(origin("192.0.2.2")).expect("another address");
        drop(first);
        assert!(addresses.add(origin("192.0.2.1")).is_some());
    }

    #[test]
    fn addresses_of_one_network_of_ipv6_count_together_and_this_host_has_no_limit() {
        let addresses = Addresses::new(1);
        let _first = addresses.add(origin("2001:db8::1")).unwrap();
        assert!(addresses.add(origin("2001:db8::2")).is_none());
        assert_eq!(origin("2001:db8::2").to_string(), "2001:db8::/64");
        let here: Vec<_> = (0..3).map(|_| addresses.add(origin("127.0.0.1"))).collect();
        assert!(here.iter().all(Option::is_some));
        let unlimited = Addresses::new(0);
        let all: Vec<_> = (0..3).map(|_| unlimited.add(origin("192.0.2.1"))).collect();
        assert!(all.iter().all(Option::is_some));
    }

    #[test]
    fn address_without_connections_is_forgotten() {
        let addresses = Addresses::new(1);
        drop(addresses.add(origin("192.0.2.1")));
        assert!(addresses.counts().is_empty());
    }
}
