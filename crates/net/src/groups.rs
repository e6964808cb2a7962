use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Default groups per IP version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DefaultGroups {
    /// The configured default.
    pub v4: IpAddr,
    /// The group of members with an IPv6 address.
    pub v6: IpAddr,
}

impl DefaultGroups {
    /// The transport's (`mcast_addr`).
    pub const TRANSPORT: Self = Self {
        v4: IpAddr::V4(Ipv4Addr::new(239, 8, 8, 8)),
        v6: IpAddr::V6(Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 8, 8, 8)),
    };

    /// Probe's (`diag.mcast_addr`).
    pub const PROBE: Self = Self {
        v4: IpAddr::V4(Ipv4Addr::new(224, 0, 75, 75)),
        v6: IpAddr::V6(Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0, 0x75, 0x75)),
    };

    /// Returns a member's group.
    pub fn choose(self, configured: IpAddr, own: Option<IpAddr>) -> IpAddr {
        if configured == self.v4 && own.is_some_and(|own| own.is_ipv6()) { self.v6 } else { configured }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_default_follows_the_member() {
        let group = |configured: &str, own: &str| {
            let own = own.parse().ok();
            DefaultGroups::PROBE.choose(configured.parse().unwrap(), own).to_string()
        };
        assert_eq!(group("224.0.75.75", "10.1.1.1"), "224.0.75.75");
        assert_eq!(group("224.0.75.75", "fd00::1"), "ff0e::75:75");
        assert_eq!(group("224.0.75.75", "unknown"), "224.0.75.75");
        assert_eq!(group("239.1.1.1", "fd00::1"), "239.1.1.1");
        assert_eq!(group("ff0e::1", "10.1.1.1"), "ff0e::1");
    }
}
