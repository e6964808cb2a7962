use std::net::IpAddr;

use crate::PhysAddr;

/// The address that replaces a socket's own behind address translation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExternalAddress {
    /// The host.
    pub ip: IpAddr,
    /// The port; `None`: the socket's.
    pub port: Option<u16>,
}

impl ExternalAddress {
    /// Builds it from `external_addr` and `external_port`; port 0 is the socket's.
    pub fn configured(ip: Option<IpAddr>, port: u16) -> Option<Self> {
        ip.map(|ip| Self { ip, port: Some(port).filter(|port| *port > 0) })
    }

    /// Returns the address to advertise.
    pub fn apply(self, own: PhysAddr) -> PhysAddr {
        // A link-local address needs an interface: the socket's.
        let is_scoped = matches!(self.ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        PhysAddr {
            ip: Some(self.ip),
            scope_id: if is_scoped { own.scope_id } else { 0 },
            port: self.port.unwrap_or(own.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advertised(ip: &str, port: u16) -> (String, u32, u16) {
        let own = PhysAddr { ip: "fe80::1".parse().ok(), scope_id: 7, port: 7800 };
        let advertised =
            ExternalAddress::configured(ip.parse().ok(), port).map_or(own, |external| external.apply(own));
        (advertised.ip.unwrap().to_string(), advertised.scope_id, advertised.port)
    }

    #[test]
    fn the_port_is_the_sockets_own_unless_another_is_set() {
        assert_eq!(advertised("192.0.2.7", 0), ("192.0.2.7".into(), 0, 7800));
        assert_eq!(advertised("192.0.2.7", 4711), ("192.0.2.7".into(), 0, 4711));
    }

    #[test]
    fn a_link_local_address_keeps_its_interface() {
        assert_eq!(advertised("fe80::9", 0), ("fe80::9".into(), 7, 7800));
        assert_eq!(advertised("2001:db8::9", 0), ("2001:db8::9".into(), 0, 7800));
    }

    #[test]
    fn a_port_without_an_address_has_no_effect() {
        assert_eq!(advertised("", 4711), ("fe80::1".into(), 7, 7800));
    }
}
