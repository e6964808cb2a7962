//! Which protocols and attributes there are: what our layers have, and what JGroups has.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use consort_group::config::{Position, StackConfig};
use consort_group::protocols::registry;

use crate::error::ConfigError;

/// An attribute that JGroups has and Consort has no use for, such as a thread pool's size.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ignored {
    /// The protocol.
    pub protocol: String,
    /// The attribute.
    pub attribute: String,
    /// Where it stands.
    pub position: Position,
}

type Table = BTreeMap<&'static str, BTreeSet<&'static str>>;

/// Protocol → attributes, `*` for those of all.
static KNOWN: LazyLock<Table> = LazyLock::new(|| {
    let mut table = Table::new();
    let mut protocol = "*";
    for line in include_str!("jgroups-attributes.txt").lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        if !line.starts_with(' ') {
            protocol = words.next().unwrap_or("*");
        }
        table.entry(protocol).or_default().extend(words);
    }
    table
});

/// Our own attributes of a protocol; none for a transport, whose attributes the edge reads.
fn own(protocol: &str) -> BTreeSet<&'static str> {
    registry::ENTRIES
        .iter()
        .filter(|entry| entry.name == protocol)
        .flat_map(|entry| (entry.properties)().into_iter().map(|info| info.name))
        .collect()
}

/// The name among `names` that is closest to `wrong`, unless all are far from it.
fn nearest<'n>(wrong: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let wanted = wrong.to_lowercase();
    let (distance, name) =
        names.map(|name| (strsim::damerau_levenshtein(&wanted, &name.to_lowercase()), name)).min()?;
    (distance <= 2.max(wrong.len() / 3)).then_some(name)
}

fn suggestion(nearest: Option<&str>) -> String {
    nearest.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}

/// Protocols that JGroups has and Consort has not.
const ELSEWHERE: &[&str] = &[
    "ASYM_ENCRYPT",
    "AUTH",
    "BATCH2",
    "BPING",
    "CLEAR_FLAGS",
    "COMPRESS",
    "COUNTER",
    "DAISYCHAIN",
    "DNS_PING",
    "FD_ALL",
    "FD_ALL2",
    "FD_HOST",
    "FD_SOCK",
    "FORK",
    "FRAG",
    "FRAG3",
    "JDBC_PING",
    "JDBC_PING2",
    "KUBE_PING",
    "NAKACK3",
    "NON_BLOCKING_SENDS",
    "RACKSPACE_PING",
    "RATE_LIMITER",
    "RELAY2",
    "RELAY3",
    "SEQUENCER2",
    "STATE",
    "STATE_SOCK",
    "STATS",
    "SYM_ENCRYPT",
    "TCPGOSSIP",
    "THREAD_COUNT",
    "TUNNEL",
    "UNBATCH",
];

/// Checks the names of all protocols and attributes. Returns what is known and has no effect.
///
/// # Errors
///
/// The first name that nobody knows, with its place and the nearest name that somebody does.
pub fn check(stack: &StackConfig) -> Result<Vec<Ignored>, ConfigError> {
    let source = &stack.source;
    let names = registry::names();
    let mut ignored = Vec::new();
    for protocol in &stack.protocols {
        let name = protocol.short_name();
        if !names.contains(name) {
            let what = if ELSEWHERE.contains(&name) {
                format!("protocol `{name}` of JGroups is not part of Consort")
            } else {
                format!("unknown protocol `{name}`{}", suggestion(nearest(name, names.iter().copied())))
            };
            return Err(ConfigError::new(source, protocol.position, what));
        }
        let own = own(name);
        let is_transport = registry::TRANSPORTS.iter().any(|(transport, _)| *transport == name);
        let common = &KNOWN["*"];
        let foreign = KNOWN.get(name);
        for (attribute, _, position) in &protocol.attributes {
            let attribute = attribute.as_str();
            let is_own = own.contains(attribute) || (is_transport && USED_BY_EDGE.contains(&attribute));
            let is_known =
                common.contains(attribute) || foreign.is_some_and(|known| known.contains(attribute));
            if !is_own && !is_known {
                let all = own.iter().chain(foreign.into_iter().flatten()).chain(common).copied();
                let what = format!(
                    "unknown attribute `{attribute}` of {name}{}",
                    suggestion(nearest(attribute, all))
                );
                return Err(ConfigError::new(source, *position, what));
            }
            if !is_own {
                ignored.push(Ignored {
                    protocol: name.to_owned(),
                    attribute: attribute.to_owned(),
                    position: *position,
                });
            }
        }
    }
    check_order(stack)?;
    Ok(ignored)
}

/// A transport is at the bottom, and nowhere else.
fn check_order(stack: &StackConfig) -> Result<(), ConfigError> {
    for (place, protocol) in stack.protocols.iter().enumerate() {
        let name = protocol.short_name();
        let is_transport = registry::TRANSPORTS.iter().any(|(transport, _)| *transport == name);
        if is_transport != (place == 0) {
            let what = if place == 0 {
                let transports: Vec<&str> = registry::TRANSPORTS.iter().map(|(name, _)| *name).collect();
                format!("the first protocol has to be a transport ({}), not {name}", transports.join(", "))
            } else {
                format!("transport {name} has to be the first protocol")
            };
            return Err(ConfigError::new(&stack.source, protocol.position, what));
        }
        if stack.protocols[..place].iter().any(|other| other.short_name() == name) {
            let what = format!("{name} stands in the stack twice");
            return Err(ConfigError::new(&stack.source, protocol.position, what));
        }
    }
    if stack.protocols.is_empty() {
        return Err(ConfigError::new(&stack.source, None, "the stack has no protocols"));
    }
    Ok(())
}

/// Attributes of transports that the transport layer or the edge uses.
const USED_BY_EDGE: &[&str] = &[
    "accept_any_version",
    "bind_addr",
    "bind_port",
    "bundler.max_size",
    "bundler_type",
    "conn_expire_time",
    "control_queue_bytes",
    "diag.enable_tcp",
    "diag.enable_udp",
    "diag.enabled",
    "diag.mcast_addr",
    "diag.passcode",
    "diag.port",
    "diag.port_range",
    "diag.ttl",
    "external_addr",
    "external_port",
    "ip_mcast",
    "ip_ttl",
    "ip_version",
    "linger",
    "max_length",
    "mcast_addr",
    "mcast_port",
    "mcast_receiver_threads",
    "mcast_recv_buf_size",
    "mcast_send_buf_size",
    "message_processing_policy",
    "peer_addr_read_timeout",
    "port_range",
    "reaper_interval",
    "recv_buf_size",
    "rtt.enabled",
    "send_buf_size",
    "send_queue_bytes",
    "sock_conn_timeout",
    "tcp_nodelay",
    "tls.client_auth",
    "tls.enabled",
    "tls.keystore_path",
    "tls.server_name",
    "tls.truststore_path",
    "tos",
    "ucast_receiver_threads",
    "ucast_recv_buf_size",
    "ucast_send_buf_size",
    "version",
    "who_has_cache_timeout",
];

#[cfg(test)]
mod tests {
    use crate::{Variables, parse_stack};

    fn error(text: &str) -> String {
        parse_stack("my.xml", text, &Variables::new()).unwrap_err().to_string()
    }

    #[test]
    fn an_unknown_protocol_is_named_with_place_and_suggestion() {
        assert_eq!(
            error("<config>\n  <TCP/>\n  <FD_ALL4/>\n</config>"),
            "my.xml:3:3: unknown protocol `FD_ALL4`; did you mean `FD_ALL3`?"
        );
        assert_eq!(
            error("<config>\n  <TCP/><TUNNEL/>\n</config>"),
            "my.xml:2:9: protocol `TUNNEL` of JGroups is not part of Consort"
        );
    }

    #[test]
    fn an_unknown_attribute_is_named_with_place_and_suggestion() {
        assert_eq!(
            error("<config>\n  <TCP bind_port=\"1\"\n       bind_adr=\"x\"/>\n</config>"),
            "my.xml:3:8: unknown attribute `bind_adr` of TCP; did you mean `bind_addr`?"
        );
        assert_eq!(
            error("<config><TCP/><pbcast.GMS frobnicate=\"1\"/></config>"),
            "my.xml:1:27: unknown attribute `frobnicate` of GMS"
        );
    }

    #[test]
    fn attributes_without_effect_are_reported() {
        let text = "<config><TCP thread_pool.max_threads=\"200\" bind_port=\"7800\"/></config>";
        let stack = parse_stack("my.xml", text, &Variables::new()).unwrap();
        let names: Vec<&str> = stack.ignored.iter().map(|ignored| ignored.attribute.as_str()).collect();
        assert_eq!(names, ["thread_pool.max_threads"]);
    }

    #[test]
    fn a_stack_begins_with_its_only_transport() {
        assert!(error("<config><PING/></config>").contains("has to be a transport"));
        assert!(error("<config><TCP/><UDP/></config>").contains("has to be the first"));
        assert!(error("<config><TCP/><PING/><PING/></config>").contains("twice"));
        assert_eq!(error("<config></config>"), "my.xml: the stack has no protocols");
    }
}
