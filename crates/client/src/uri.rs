//! Where to connect to: `hotrod://host[:port][,host[:port]…][?name=value&…]` (facts section 8).

use consort_hotrod::{Intelligence, ProtocolVersion, ServerAddress};

use crate::client::ClientBuilder;
use crate::error::ConnectError;

/// Where Hot Rod servers listen unless something else is said.
pub const DEFAULT_PORT: u16 = 11222;

/// What a text asks for.
pub(crate) fn parse(uri: &str) -> Result<ClientBuilder, ConnectError> {
    read(uri).map_err(|reason| ConnectError::Uri { reason })
}

fn read(uri: &str) -> Result<ClientBuilder, String> {
    let rest = match uri.split_once("://") {
        Some(("hotrod", rest)) => rest,
        Some(("hotrods", _)) => return Err("TLS is not there yet".to_owned()),
        Some((scheme, _)) => return Err(format!("{scheme} is not hotrod")),
        None => uri,
    };
    let (hosts, properties) = rest.split_once('?').unwrap_or((rest, ""));
    let hosts = hosts.strip_suffix('/').unwrap_or(hosts);
    if hosts.contains('@') {
        return Err("authentication is not there yet".to_owned());
    }
    let mut builder = ClientBuilder::default();
    for host in hosts.split(',') {
        builder = builder.server(address(host)?);
    }
    for property in properties.split('&').filter(|property| !property.is_empty()) {
        let (name, value) = property.split_once('=').unwrap_or((property, ""));
        builder = match name {
            "client_intelligence" => builder.intelligence(match value {
                "BASIC" => Intelligence::Basic,
                "TOPOLOGY_AWARE" => Intelligence::Topology,
                "HASH_DISTRIBUTION_AWARE" => Intelligence::Hash,
                other => return Err(format!("client_intelligence cannot be {other}")),
            }),
            "protocol_version" => match value {
                "AUTO" => builder,
                "3.0" => builder.version(ProtocolVersion::V3_0),
                "3.1" => builder.version(ProtocolVersion::V3_1),
                "4.0" => builder.version(ProtocolVersion::V4_0),
                "4.1" => builder.version(ProtocolVersion::V4_1),
                other => return Err(format!("protocol_version cannot be {other}")),
            },
            other => return Err(format!("unknown property {other}")),
        };
    }
    Ok(builder)
}

fn address(text: &str) -> Result<ServerAddress, String> {
    // An IPv6 address stands in brackets if a port follows.
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']').ok_or("a bracket is not closed")?;
            (host, after.strip_prefix(':'))
        }
        None => match text.split_once(':') {
            Some((_, port)) if port.contains(':') => (text, None),
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() {
        return Err("a host is missing".to_owned());
    }
    let port = match port {
        Some(port) => port.parse().map_err(|_| format!("{port} is not a port"))?,
        None => DEFAULT_PORT,
    };
    Ok(ServerAddress { host: host.into(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(uri: &str) -> Vec<String> {
        let builder = read(uri).unwrap();
        builder.servers.iter().map(|server| format!("{} {}", server.host, server.port)).collect()
    }

    /// S002-24.
    #[test]
    fn s002_24_the_port_is_11222_unless_it_is_said() {
        assert_eq!(
            servers("hotrod://one,two:1,[::1]:2,[::1],::1"),
            ["one 11222", "two 1", "::1 2", "::1 11222", "::1 11222"]
        );
        assert_eq!(servers("localhost"), ["localhost 11222"]);
        assert_eq!(servers("hotrod://h/"), ["h 11222"]);
    }

    #[test]
    fn properties_have_their_official_names() {
        let builder = read("hotrod://h?client_intelligence=BASIC&protocol_version=3.1").unwrap();
        assert_eq!(builder.settings.intelligence, Intelligence::Basic);
        assert_eq!(builder.settings.version, Some(ProtocolVersion::V3_1));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for (uri, reason) in [
            ("http://h", "http is not hotrod"),
            ("hotrods://h", "TLS is not there yet"),
            ("hotrod://me:secret@h", "authentication is not there yet"),
            ("hotrod://", "a host is missing"),
            ("hotrod://h:99999", "99999 is not a port"),
            ("hotrod://[::1", "a bracket is not closed"),
            ("hotrod://h?near=1", "unknown property near"),
            ("hotrod://h?protocol_version=2.5", "protocol_version cannot be 2.5"),
        ] {
            assert_eq!(read(uri).err().as_deref(), Some(reason));
        }
    }
}
