//! Set-up bytes of the connecting side: cookie, version, own listening address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bytes::{BufMut, Bytes, BytesMut};
use consort_group::{PhysAddr, Version};

const COOKIE: &[u8; 4] = b"bela";

/// The first byte of a TLS handshake's record.
const TLS_HANDSHAKE: u8 = 22;

/// The length has a length byte and the port; IPv6 adds a scope id.
const V4_LEN: u16 = 7;
const V6_LEN: u16 = 23;

/// Invalid set-up bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SetupError {
    /// The cookie is wrong.
    #[error("wrong cookie")]
    Cookie,
    /// The peer speaks TLS.
    #[error("the peer uses TLS, and tls.enabled is not set at this member")]
    Tls,
    /// Another version.
    #[error("version {0} does not match")]
    Version(Version),
    /// The address' length is invalid.
    #[error("address of the wrong length")]
    Address,
}

impl SetupError {
    pub(crate) fn cause(self) -> &'static str {
        match self {
            Self::Cookie => "wrong_cookie",
            Self::Tls => "unexpected_tls",
            Self::Version(_) => "wrong_version",
            Self::Address => "wrong_setup_address",
        }
    }
}

/// Encodes set-up bytes.
pub fn encode(version: Version, own: PhysAddr) -> Bytes {
    let mut out = BytesMut::with_capacity(31);
    out.put_slice(COOKIE);
    out.put_u16(version.0);
    match own.ip.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)) {
        IpAddr::V4(ip) => {
            out.put_u16(V4_LEN);
            out.put_u8(4);
            out.put_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            out.put_u16(V6_LEN);
            out.put_u8(16);
            out.put_slice(&ip.octets());
            out.put_u32(own.scope_id);
        }
    }
    out.put_u16(own.port);
    out.freeze()
}

/// Decodes a peer's address and the bytes used; `None` if incomplete. Fails at the first wrong byte.
pub fn decode(
    bytes: &[u8],
    accepts: impl Fn(Version) -> bool,
) -> Result<Option<(PhysAddr, usize)>, SetupError> {
    let seen = bytes.len().min(COOKIE.len());
    if bytes[..seen] != COOKIE[..seen] {
        return Err(if bytes[0] == TLS_HANDSHAKE { SetupError::Tls } else { SetupError::Cookie });
    }
    let Some(version) = bytes.get(4..6).and_then(|field| field.try_into().ok()).map(u16::from_be_bytes)
    else {
        return Ok(None);
    };
    if !accepts(Version(version)) {
        return Err(SetupError::Version(Version(version)));
    }
    let Some(length) = bytes.get(6..8).and_then(|field| field.try_into().ok()).map(u16::from_be_bytes) else {
        return Ok(None);
    };
    let Some(&ip_length) = bytes.get(8) else { return Ok(None) };
    if !matches!((length, ip_length), (V4_LEN, 4) | (V6_LEN, 16)) {
        return Err(SetupError::Address);
    }
    let end = 8 + usize::from(length);
    let Some(body) = bytes.get(9..end) else { return Ok(None) };
    let port = u16::from_be_bytes([body[body.len() - 2], body[body.len() - 1]]);
    let peer = if let Ok(octets) = <[u8; 4]>::try_from(&body[..body.len() - 2]) {
        PhysAddr::new(IpAddr::V4(Ipv4Addr::from(octets)), port)
    } else {
        let mut octets = [0; 16];
        octets.copy_from_slice(&body[..16]);
        let scope_id = u32::from_be_bytes([body[16], body[17], body[18], body[19]]);
        let ip = Ipv6Addr::from(octets);
        match ip.to_ipv4_mapped() {
            Some(ip) => PhysAddr::new(IpAddr::V4(ip), port),
            None => PhysAddr { ip: Some(IpAddr::V6(ip)), scope_id, port },
        }
    };
    Ok(Some((peer, end)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phys(text: &str) -> PhysAddr {
        text.parse::<std::net::SocketAddr>().unwrap().into()
    }

    #[test]
    fn an_ipv4_member_writes_fifteen_bytes() {
        let bytes = encode(Version::V5_5_7, phys("192.168.1.5:7800"));
        assert_eq!(&bytes[..], b"bela\x29\x47\x00\x07\x04\xc0\xa8\x01\x05\x1e\x78");
    }

    #[test]
    fn an_ipv6_member_writes_its_scope_too() {
        let own = PhysAddr { ip: Some("fe80::1".parse().unwrap()), scope_id: 2, port: 7801 };
        let bytes = encode(Version::V5_5_7, own);
        assert_eq!(bytes.len(), 31);
        assert_eq!(&bytes[25..], b"\0\0\0\x02\x1e\x79");
        let (peer, length) = decode(&bytes, |_| true).unwrap().unwrap();
        assert_eq!((peer, peer.scope_id, length), (own, 2, 31));
    }

    #[test]
    fn every_prefix_needs_more() {
        for own in ["10.0.0.1:7800", "[2001:db8::1]:7800"] {
            let bytes = encode(Version::V5_5_7, phys(own));
            for end in 0..bytes.len() {
                assert_eq!(decode(&bytes[..end], |_| true), Ok(None));
            }
            let mut more = bytes.to_vec();
            more.extend(b"rest");
            assert_eq!(decode(&more, |_| true), Ok(Some((phys(own), bytes.len()))));
        }
    }

    #[test]
    fn invalid_set_up_bytes_are_refused_at_the_first_wrong_byte() {
        assert_eq!(decode(b"G", |_| true), Err(SetupError::Cookie));
        assert_eq!(decode(b"belx", |_| true), Err(SetupError::Cookie));
        assert_eq!(decode(b"\x16\x03\x01", |_| true), Err(SetupError::Tls));
        let old = Version::new(5, 4, 0);
        let bytes = encode(old, phys("10.0.0.1:1"));
        let check = |version| Version::V5_5_7.is_compatible(version);
        assert_eq!(decode(&bytes[..6], check), Err(SetupError::Version(old)));
        assert_eq!(decode(b"bela\x29\x47\x00\x07\x10", check), Err(SetupError::Address));
        assert_eq!(decode(b"bela\x29\x47\xff\xff\x04", check), Err(SetupError::Address));
        assert_eq!(decode(b"bela\x29\x47\x00\x03\x00", check), Err(SetupError::Address));
    }

    /// S003-2
    #[test]
    fn a_mapped_address_is_the_ipv4_address() {
        let own = PhysAddr::new("::ffff:10.0.0.1".parse().unwrap(), 7800);
        let (peer, _) = decode(&encode(Version::V5_5_7, own), |_| true).unwrap().unwrap();
        assert_eq!(peer, phys("10.0.0.1:7800"));
    }
}
