//! Networks whose clients are accepted or rejected.

use std::net::IpAddr;

/// Rules of one filter; each connection is compared with all of them.
pub(crate) const RULES_MAX: usize = 1_000;

/// A network in CIDR notation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Network {
    address: IpAddr,
    bits: u32,
}

impl Network {
    fn parse(text: &str) -> Option<Self> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address.parse().ok()?, bits.parse().ok()?),
            None => {
                let address: IpAddr = text.parse().ok()?;
                (address, if address.is_ipv4() { 32 } else { 128 })
            }
        };
        let bits_max = if IpAddr::is_ipv4(&address) { 32 } else { 128 };
        (bits <= bits_max).then_some(Self { address, bits })
    }

    fn contains(self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let mask = u32::MAX.checked_shl(32 - self.bits).unwrap_or(0);
                u32::from(own) & mask == u32::from(other) & mask
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let mask = u128::MAX.checked_shl(128 - self.bits).unwrap_or(0);
                u128::from(own) & mask == u128::from(other) & mask
            }
            _ => false,
        }
    }
}

/// Rules in order. The first one whose network contains the client's address decides; without one the client is accepted.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct IpFilter {
    rules: Vec<(bool, Network)>,
}

impl IpFilter {
    pub(crate) fn add(&mut self, accepts: bool, network: &str) -> Result<(), String> {
        let Some(network) = Network::parse(network) else {
            return Err(format!("`{network}` is no network such as 192.168.0.0/16 or 2001:db8::/32"));
        };
        if self.rules.len() >= RULES_MAX {
            return Err(format!("more than {RULES_MAX} rules"));
        }
        self.rules.push((accepts, network));
        Ok(())
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    pub(crate) fn accepts(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let rule = self.rules.iter().find(|(_, network)| network.contains(address));
        rule.is_none_or(|(accepts, _)| *accepts)
    }
}

impl std::fmt::Display for IpFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, (accepts, network)) in self.rules.iter().enumerate() {
            let separator = if at > 0 { ", " } else { "" };
            let verb = if *accepts { "accept" } else { "reject" };
            write!(f, "{separator}{verb} {}/{}", network.address, network.bits)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(rules: &[(bool, &str)]) -> IpFilter {
        let mut filter = IpFilter::default();
        rules.iter().for_each(|(accepts, network)| filter.add(*accepts, network).unwrap());
        filter
    }

    fn accepts(filter: &IpFilter, address: &str) -> bool {
        filter.accepts(address.parse().unwrap())
    }

    #[test]
    fn first_rule_with_the_address_decides() {
        let filter = filter(&[(true, "192.168.0.0/16"), (false, "0.0.0.0/0"), (true, "10.0.0.1")]);
        for (address, accepted) in [
            ("192.168.7.1", true),
            ("192.169.0.1", false),
            ("10.0.0.1", false),
            ("::1", true),
            ("::ffff:10.0.0.1", false),
        ] {
            assert_eq!(accepts(&filter, address), accepted, "{address}");
        }
        assert_eq!(filter.to_string(), "accept 192.168.0.0/16, reject 0.0.0.0/0, accept 10.0.0.1/32");
    }

    #[test]
    fn filter_without_rules_accepts_all() {
        assert!(accepts(&IpFilter::default(), "127.0.0.1") && IpFilter::default().is_empty());
    }

    #[test]
    fn ipv6_networks_have_up_to_128_bits() {
        let filter = filter(&[(true, "2001:db8::/32"), (false, "::/0")]);
        assert!(
            accepts(&filter, "2001:db8:1::1")
                && !accepts(&filter, "2001:db9::1")
                && accepts(&filter, "1.2.3.4")
        );
    }

    #[test]
    fn text_that_is_no_network_is_refused() {
        for wrong in ["", "/0", "10.0.0.0/33", "10.0.0/8", "::/129", "10.0.0.0/-1", "host"] {
            assert!(IpFilter::default().add(true, wrong).is_err(), "{wrong}");
        }
    }
}
