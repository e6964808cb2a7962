//! Parser of client URIs (facts section 8); see [`crate::Client::connect`].

use consort_hotrod::{Intelligence, ProtocolVersion, ServerAddress};
use consort_sasl::Mechanism;
use consort_tls::{Identity, Roots, TlsError};

use crate::connection::credentials::Credentials;
use crate::connection::legacy;
use crate::connection::stream::Tls;
use crate::error::ConnectError;
use crate::failover_clusters::FailoverCluster;

/// The default port of Hot Rod servers.
pub const DEFAULT_PORT: u16 = 11222;

#[derive(Default, Debug)]
pub(crate) struct ParsedUri {
    pub(crate) servers: Vec<ServerAddress>,
    pub(crate) clusters: Vec<FailoverCluster>,
    pub(crate) intelligence: Option<Intelligence>,
    pub(crate) version: Option<ProtocolVersion>,
    pub(crate) credentials: Credentials,
    pub(crate) tls: Option<Tls>,
}

pub(crate) fn parse(uri: &str) -> Result<ParsedUri, ConnectError> {
    read(uri).map_err(|reason| ConnectError::Uri { reason })
}

fn read(uri: &str) -> Result<ParsedUri, String> {
    let (is_within_tls, rest) = match uri.split_once("://") {
        Some(("hotrod", rest)) => (false, rest),
        Some(("hotrods", rest)) => (true, rest),
        Some((scheme, _)) if is_scheme(scheme) => {
            return Err(format!("{scheme} is neither hotrod nor hotrods"));
        }
        // The text before :// may have a password.
        Some(_) => return Err("the scheme is neither hotrod nor hotrods".to_owned()),
        None => (false, uri),
    };
    let (authority, properties) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = authority.strip_suffix('/').unwrap_or(authority);
    let (user, hosts) = match authority.rsplit_once('@') {
        Some((user, hosts)) => (Some(user), hosts),
        None => (None, authority),
    };
    let mut parsed = ParsedUri::default();
    // A question mark in a password ends the authority early. No error may quote what was then parsed as a
    // host or property.
    let is_perhaps_cut = user.is_none() && properties.contains('@');
    let has_host = |property: &str| property.split('=').next().is_some_and(|name| name.contains('@'));
    if properties.split('&').any(has_host) {
        return Err(ENCODED.to_owned());
    }
    for host in hosts.split(',') {
        let server = address(host);
        parsed.servers.push(if is_perhaps_cut { server.map_err(|_| ENCODED.to_owned())? } else { server? });
    }
    let mut found = SecurityProperties { is_within_tls, ..SecurityProperties::default() };
    if let Some(user) = user {
        let (name, password) = user.split_once(':').ok_or("a user without a password")?;
        (found.name, found.password) = (Some(decoded(name)?), Some(decoded(password)?));
    }
    for property in properties.split('&').filter(|property| !property.is_empty()) {
        let (name, value) = property.split_once('=').unwrap_or((property, ""));
        match name {
            "client_intelligence" => {
                parsed.intelligence = Some(match value {
                    "BASIC" => Intelligence::Basic,
                    "TOPOLOGY_AWARE" => Intelligence::Topology,
                    "HASH_DISTRIBUTION_AWARE" => Intelligence::Hash,
                    other => return Err(format!("client_intelligence cannot be {other}")),
                });
            }
            "protocol_version" if value == "AUTO" => {}
            "protocol_version" => {
                let version = version(value, legacy::OLDEST)
                    .ok_or_else(|| format!("protocol_version cannot be {value}"))?;
                parsed.version = Some(version);
            }
            "sasl_mechanism" => {
                let mechanism = Mechanism::from_name(value);
                let mechanism = mechanism.ok_or_else(|| format!("sasl_mechanism cannot be {value}"))?;
                parsed.credentials = parsed.credentials.with_only(mechanism);
            }
            other if other.starts_with("cluster.") => {
                let name = other.trim_start_matches("cluster.");
                if name.is_empty() || name.contains('.') {
                    return Err(format!("unknown property {other}"));
                }
                let servers = value.split(';').map(address).collect::<Result<Vec<_>, _>>()?;
                parsed.clusters.push(FailoverCluster::new(&decoded(name)?, servers));
            }
            "auth_token" => parsed.credentials = parsed.credentials.with_token(&decoded(value)?),
            other => found.note(other, decoded(value)?)?,
        }
    }
    found.apply(parsed)
}

/// The error for a name or password that seems to end the authority.
const ENCODED: &str =
    "in a name or a password the characters / ? # & @ : , are percent-encoded, such as %3F for ?";

fn is_scheme(text: &str) -> bool {
    text.chars().all(|letter| letter.is_ascii_alphanumeric() || "+-.".contains(letter))
}

fn version(text: &str, oldest: ProtocolVersion) -> Option<ProtocolVersion> {
    let mut spoken = ProtocolVersion::ALL.into_iter().filter(|version| *version >= oldest);
    spoken.find(|version| version.to_string() == text)
}

#[derive(Default)]
struct SecurityProperties {
    is_within_tls: bool,
    name: Option<String>,
    password: Option<String>,
    trusted: Option<String>,
    shown: Option<String>,
    server_name: Option<String>,
}

fn password_of(file: &str) -> Result<String, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
    match text.lines().next() {
        Some(password) if !password.is_empty() => Ok(password.to_owned()),
        _ => Err(format!("{file}: its first line is no password")),
    }
}

impl SecurityProperties {
    fn note(&mut self, name: &str, value: String) -> Result<(), String> {
        let field = match name {
            "auth_username" => &mut self.name,
            "auth_password" => &mut self.password,
            "auth_password_file" => {
                let password = password_of(&value)?;
                if self.password.replace(password).is_some() {
                    return Err(format!("{name} is a second password"));
                }
                return Ok(());
            }
            "trust_store_file_name" => &mut self.trusted,
            "key_store_file_name" => &mut self.shown,
            "sni_host_name" => &mut self.server_name,
            other => return Err(format!("unknown property {other}")),
        };
        if field.replace(value).is_some() { Err(format!("duplicate {name}")) } else { Ok(()) }
    }

    fn apply(self, mut parsed: ParsedUri) -> Result<ParsedUri, String> {
        match (&self.name, &self.password) {
            (Some(name), Some(password)) => {
                parsed.credentials = parsed.credentials.with_user(name, password);
            }
            (None, None) => {}
            (Some(_), None) => return Err("a user without a password".to_owned()),
            (None, Some(_)) => return Err("a password without a user".to_owned()),
        }
        if !self.is_within_tls {
            return match self.trusted.or(self.shown).or(self.server_name) {
                Some(_) => Err("certificates need TLS; use hotrods://".to_owned()),
                None => Ok(parsed),
            };
        }
        let text = |error: TlsError| error.to_string();
        let roots = self.trusted.map_or_else(Roots::from_system, Roots::from_file);
        let mut tls = Tls::new(roots.map_err(text)?);
        if let Some(shown) = self.shown {
            tls = tls.identity(Identity::from_files(&shown, &shown).map_err(text)?);
        }
        if let Some(name) = self.server_name {
            tls = tls.server_name(name);
        }
        parsed.tls = Some(tls);
        Ok(parsed)
    }
}

fn decoded(text: &str) -> Result<String, String> {
    let decoded = percent_encoding::percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| "percent-encoded text is not UTF-8".to_owned())
}

fn address(text: &str) -> Result<ServerAddress, String> {
    // An IPv6 address with a port is in brackets.
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']').ok_or("missing closing bracket")?;
            (host, after.strip_prefix(':'))
        }
        None => match text.split_once(':') {
            Some((_, port)) if port.contains(':') => (text, None),
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() {
        return Err("missing host".to_owned());
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
        let parsed = read(uri).unwrap();
        parsed.servers.iter().map(|server| format!("{} {}", server.host, server.port)).collect()
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
    fn errors_show_no_password_that_is_not_percent_encoded() {
        let uris = [
            "hotrods:/user:hunter2@h?x=http://y",
            "hotrod://user:hunter2?@h",
            "hotrod://user:1?hunter2@h",
            "hotrod://user:1?hunter2&3@h",
            "user:hunter2@h://x",
        ];
        for uri in uris {
            let error = read(uri).unwrap_err();
            assert!(!error.contains("hunter2"), "{uri}: {error}");
        }
        assert_eq!(read("http://h").unwrap_err(), "http is neither hotrod nor hotrods");
        let parsed = read("hotrod://h?auth_username=me@there&auth_password=c").unwrap();
        assert_eq!(parsed.credentials.user(), Some(("me@there", "c")));
    }

    #[test]
    fn properties_have_their_official_names() {
        let parsed = read("hotrod://h?client_intelligence=BASIC&protocol_version=3.1").unwrap();
        assert_eq!(parsed.intelligence, Some(Intelligence::Basic));
        assert_eq!(parsed.version, Some(ProtocolVersion::V3_1));
    }

    #[test]
    fn other_clusters_have_names_and_servers() {
        let parsed = read("hotrod://h?cluster.LON=a:1;b&cluster.NYC=[::1]:2").unwrap();
        let clusters = format!("{:?}", parsed.clusters);
        for part in ["\"LON\"", "\"NYC\"", "port: 1 ", "port: 11222 ", "port: 2 "] {
            assert!(clusters.contains(part), "{part} in {clusters}");
        }
    }

    #[test]
    fn old_versions_can_be_asked_for_with_the_feature() {
        assert_eq!(version("2.5", ProtocolVersion::V2_0), Some(ProtocolVersion::V2_5));
        assert_eq!(version("2.5", ProtocolVersion::V3_0), None);
        assert_eq!(version("3.0", ProtocolVersion::V3_0), Some(ProtocolVersion::V3_0));
        let refused = read("hotrod://h?protocol_version=1.9").map(|parsed| parsed.version);
        assert_eq!(refused, Err("protocol_version cannot be 1.9".to_owned()));
    }

    #[test]
    fn names_and_passwords_are_decoded() {
        let parsed = read("hotrod://a%40b:p%3Aq%2Fr@one,two:1?sasl_mechanism=SCRAM-SHA-256").unwrap();
        assert_eq!(parsed.credentials.user(), Some(("a@b", "p:q/r")));
        assert_eq!(parsed.credentials.only(), Mechanism::from_name("SCRAM-SHA-256"));
        assert_eq!(parsed.servers.len(), 2);
        let parsed = read("hotrod://h?auth_username=a%20b&auth_password=c").unwrap();
        assert_eq!(parsed.credentials.user(), Some(("a b", "c")));
        assert_eq!(read("hotrod://h?auth_token=a.b.c").unwrap().credentials.token(), Some("a.b.c"));
        assert!(!format!("{parsed:?}").contains("\"c\""), "the password is hidden");
    }

    #[test]
    fn a_password_is_read_from_the_first_line_of_a_file() {
        let file = std::env::temp_dir().join(format!("consort-uri-password-{}", std::process::id()));
        std::fs::write(&file, "p@ss w:rd\nmore\n").unwrap();
        let file = file.to_str().unwrap();
        let parsed = read(&format!("hotrod://h?auth_username=a&auth_password_file={file}")).unwrap();
        assert_eq!(parsed.credentials.user(), Some(("a", "p@ss w:rd")));
        let twice = read(&format!("hotrod://a:b@h?auth_password_file={file}")).unwrap_err();
        assert!(twice.contains("auth_password_file is a second password"), "{twice}");
        std::fs::write(file, "\n").unwrap();
        let empty = read(&format!("hotrod://h?auth_username=a&auth_password_file={file}")).unwrap_err();
        assert!(empty.contains("its first line is no password"), "{empty}");
        std::fs::remove_file(file).unwrap();
    }

    #[test]
    fn an_invalid_uri_is_refused_with_its_reason() {
        for (uri, reason) in [
            ("http://h", "http is neither hotrod nor hotrods"),
            ("hotrod://me@h", "a user without a password"),
            ("hotrod://h?auth_username=me", "a user without a password"),
            ("hotrod://h?auth_password=secret", "a password without a user"),
            ("hotrod://me:secret@h?auth_username=me", "duplicate auth_username"),
            ("hotrod://%ff:secret@h", "percent-encoded text is not UTF-8"),
            ("hotrod://h?sasl_mechanism=DIGEST-MD5", "sasl_mechanism cannot be DIGEST-MD5"),
            ("hotrod://h?sni_host_name=h", "certificates need TLS; use hotrods://"),
            ("hotrods://h?trust_store_file_name=Cargo.toml", "Cargo.toml: no certificate in it"),
            ("hotrod://", "missing host"),
            ("hotrod://h:99999", "99999 is not a port"),
            ("hotrod://[::1", "missing closing bracket"),
            ("hotrod://h?near=1", "unknown property near"),
            ("hotrod://h?cluster.=h", "unknown property cluster."),
            (
                "hotrod://h?cluster.LON.client_intelligence=BASIC",
                "unknown property cluster.LON.client_intelligence",
            ),
            ("hotrod://h?cluster.LON=", "missing host"),
            ("hotrod://h?protocol_version=1.3", "protocol_version cannot be 1.3"),
        ] {
            assert_eq!(read(uri).err().as_deref(), Some(reason));
        }
    }
}
