//! Transport settings by JGroups' attribute names.

use std::net::IpAddr;
use std::time::Duration;

use consort_group::config::{Bytes, Property, ProtocolConfig};
use consort_group::protocols::registry::ValueError;

use crate::bind_addr::{BindAddr, IpVersion};
use crate::config::{ClientAuth, EdgeKind, TransportConfig};

/// The error is for the operator.
type Set = fn(&mut TransportConfig, &str) -> Result<(), String>;

fn parse<V: Property>(text: &str) -> Result<V, String> {
    V::parse(text)
}

fn ip(text: &str) -> Result<IpAddr, String> {
    text.trim().parse().map_err(|_| format!("`{text}` is not an IP address"))
}

fn selectors(text: &str) -> Result<BindAddr, String> {
    text.parse().map_err(|error: crate::BindAddrError| error.to_string())
}

fn size(text: &str) -> Result<usize, String> {
    Ok(parse::<Bytes>(text)?.0 as usize)
}

/// 0 is the kernel's own tuning, as in JGroups.
fn buffer(text: &str) -> Result<Option<usize>, String> {
    Ok(Some(size(text)?).filter(|&size| size > 0))
}

fn names(text: &str) -> Vec<String> {
    text.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
}

macro_rules! attributes {
    ($($name:literal => |$config:ident, $text:ident| $body:expr;)+) => {
        /// Every attribute that the edge reads.
        const ATTRIBUTES: &[(&str, Set)] = &[$(($name, |$config, $text| {
            $body;
            Ok(())
        })),+];
    };
}

attributes! {
    "bind_addr" => |c, t| c.bind_addr = selectors(t)?;
    "ip_version" => |c, t| c.ip_version = match t {
        "4" => IpVersion::V4,
        "6" => IpVersion::V6,
        "dual" => IpVersion::Dual,
        _ => return Err(format!("`{t}` is none of 4, 6, dual")),
    };
    "bind_port" => |c, t| c.bind_port = parse(t)?;
    "port_range" => |c, t| c.port_range = parse(t)?;
    "external_addr" => |c, t| c.external_addr = Some(ip(t)?);
    "external_port" => |c, t| c.external_port = parse(t)?;
    "accept_any_version" => |c, t| c.accept_any_version = parse(t)?;
    "sock_conn_timeout" => |c, t| c.sock_conn_timeout = parse(t)?;
    "tcp_nodelay" => |c, t| c.tcp_nodelay = parse(t)?;
    "linger" => |c, t| c.linger = u64::try_from(parse::<i64>(t)?).ok().map(Duration::from_secs);
    "recv_buf_size" => |c, t| c.recv_buf_size = buffer(t)?;
    "send_buf_size" => |c, t| c.send_buf_size = buffer(t)?;
    "conn_expire_time" => |c, t| c.conn_expire_time = parse(t)?;
    "reaper_interval" => |c, t| c.reaper_interval = parse(t)?;
    "peer_addr_read_timeout" => |c, t| c.peer_addr_read_timeout = parse(t)?;
    "max_length" => |c, t| c.max_length = size(t)?;
    "send_queue_bytes" => |c, t| c.send_queue_bytes = size(t)?;
    "control_queue_bytes" => |c, t| c.control_queue_bytes = size(t)?;
    "mcast_addr" => |c, t| c.mcast_addr = ip(t)?;
    "mcast_port" => |c, t| c.mcast_port = parse(t)?;
    "ip_mcast" => |c, t| c.ip_mcast = parse(t)?;
    "ip_ttl" => |c, t| c.ip_ttl = parse(t)?;
    "tos" => |c, t| c.tos = parse(t)?;
    "ucast_send_buf_size" => |c, t| c.ucast_send_buf_size = size(t)?;
    "ucast_recv_buf_size" => |c, t| c.ucast_recv_buf_size = size(t)?;
    "mcast_send_buf_size" => |c, t| c.mcast_send_buf_size = size(t)?;
    "mcast_recv_buf_size" => |c, t| c.mcast_recv_buf_size = size(t)?;
    "ucast_receiver_threads" => |c, t| c.ucast_receiver_threads = parse(t)?;
    "mcast_receiver_threads" => |c, t| c.mcast_receiver_threads = parse(t)?;
    "diag.enabled" => |c, t| c.diag.enabled = parse(t)?;
    "diag.enable_udp" => |c, t| c.diag.enable_udp = parse(t)?;
    "diag.enable_tcp" => |c, t| c.diag.enable_tcp = parse(t)?;
    "diag.bind_addr" => |c, t| c.diag.bind_addr = Some(selectors(t)?).filter(|_| !t.trim().is_empty());
    "diag.mcast_addr" => |c, t| c.diag.mcast_addr = ip(t)?;
    "diag.port" => |c, t| c.diag.port = parse(t)?;
    "diag.port_range" => |c, t| c.diag.port_range = parse(t)?;
    "diag.ttl" => |c, t| c.diag.ttl = parse(t)?;
    "diag.passcode" => |c, t| c.diag.passcode = parse(t)?;
    "tls.enabled" => |c, t| c.tls.enabled = parse(t)?;
    "tls.keystore_path" => |c, t| c.tls.keystore_path = parse(t)?;
    "tls.key_path" => |c, t| c.tls.key_path = parse(t)?;
    "tls.truststore_path" => |c, t| c.tls.truststore_path = parse(t)?;
    "tls.server_name" => |c, t| c.tls.server_name = parse(t)?;
    "tls.protocols" => |c, t| c.tls.protocols = names(t);
    "tls.cipher_suites" => |c, t| c.tls.cipher_suites = names(t);
    "tls.client_auth" => |c, t| c.tls.client_auth = match t.to_lowercase().as_str() {
        "none" => ClientAuth::None,
        "want" => ClientAuth::Want,
        "need" => ClientAuth::Need,
        _ => return Err(format!("`{t}` is none of none, want, need")),
    };
}

impl TransportConfig {
    /// Returns the attributes that the edge reads.
    pub fn attributes() -> impl Iterator<Item = &'static str> {
        ATTRIBUTES.iter().map(|(name, _)| *name)
    }

    /// Reads the transport's settings, without other attributes; `None`: the protocol is no transport. Fails if a value is
    /// invalid.
    pub fn from_protocol(protocol: &ProtocolConfig) -> Option<Result<Self, ValueError>> {
        let mut config = match protocol.short_name() {
            "TCP" | "TCP_NIO2" => Self::tcp(),
            "UDP" => Self::udp(),
            "TUNNEL" => Self::tunnel(),
            "SHARED_LOOPBACK" => Self { kind: EdgeKind::SharedLoopback, ..Self::default() },
            _ => return None,
        };
        Some(config.set_all(protocol).map(|()| config))
    }

    /// Reads the TLS settings of TCPGOSSIP's connections to routers (its attributes `tls.*`).
    ///
    /// # Errors
    ///
    /// If a value is invalid.
    pub fn set_router_tls(&mut self, tcpgossip: &ProtocolConfig) -> Result<(), ValueError> {
        let attributes = tcpgossip.attributes.iter().filter(|(name, ..)| name.starts_with("tls."));
        let mut read = Self::default();
        read.set_all(&ProtocolConfig { attributes: attributes.cloned().collect(), ..tcpgossip.clone() })?;
        self.router_tls = read.tls;
        Ok(())
    }

    fn set_all(&mut self, protocol: &ProtocolConfig) -> Result<(), ValueError> {
        for (name, value, position) in &protocol.attributes {
            let Some((_, set)) = ATTRIBUTES.iter().find(|(own, _)| own == name) else { continue };
            set(self, value).map_err(|why| ValueError {
                protocol: protocol.short_name().to_owned(),
                what: format!("attribute {name}: {why}"),
                position: *position,
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use consort_group::config::Position;

    fn read(name: &str, attributes: &[(&str, &str)]) -> Result<TransportConfig, ValueError> {
        let position = Position { line: 2, column: 4, ..Position::default() };
        let attributes =
            attributes.iter().map(|&(name, value)| (name.to_owned(), value.to_owned(), position)).collect();
        let protocol = ProtocolConfig { name: name.to_owned(), attributes, position };
        TransportConfig::from_protocol(&protocol).expect("a transport")
    }

    #[test]
    fn attributes_reach_the_edge() {
        let config = read(
            "TCP",
            &[
                ("bind_addr", "match-interface:eth2,10.5.5.5,loopback"),
                ("bind_port", "7900"),
                ("sock_conn_timeout", "300ms"),
                ("recv_buf_size", "0"),
                ("send_buf_size", "150K"),
                ("linger", "-1"),
                ("diag.enabled", "true"),
                ("thread_pool.max_threads", "200"),
            ],
        )
        .unwrap();
        assert_eq!(config.bind_port, 7900);
        assert_eq!(config.bind_addr.to_string(), "match-interface:eth2,10.5.5.5,loopback");
        assert_eq!(config.sock_conn_timeout, Duration::from_millis(300));
        assert_eq!((config.recv_buf_size, config.send_buf_size), (None, Some(150_000)));
        assert_eq!(config.linger, None);
        assert!(config.diag.enabled);
        assert_eq!(read("UDP", &[("mcast_port", "45566")]).unwrap().mcast_port, 45566);
    }

    #[test]
    fn a_wrong_value_names_the_attribute() {
        let error = read("TCP", &[("bind_port", "http")]).unwrap_err();
        assert!(error.to_string().starts_with("TCP: attribute bind_port: `http`"), "{error}");
        let error = read("UDP", &[("mcast_addr", "everybody")]).unwrap_err();
        assert_eq!(error.to_string(), "UDP: attribute mcast_addr: `everybody` is not an IP address");
    }

    /// Routers ask for a member's certificate themselves, so that `tls.client_auth` is the transport's alone.
    #[test]
    fn tls_attributes_of_connections_to_routers_are_those_of_the_transport() {
        use consort_group::config::Properties;
        let of_transport: Vec<&str> = TransportConfig::attributes()
            .filter(|name| name.starts_with("tls.") && *name != "tls.client_auth")
            .collect();
        let of_routers: Vec<&str> =
            consort_group::protocols::RouterTlsConfig::list().iter().map(|info| info.name).collect();
        assert_eq!(of_routers, of_transport);
    }
}
