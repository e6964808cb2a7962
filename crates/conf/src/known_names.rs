//! Known protocols and attributes: Consort's and JGroups'.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use consort_group::config::{Position, StackConfig};
use consort_group::protocols::registry;

use crate::error::{ConfigError, Fault};

/// An attribute that JGroups has and that has no effect in Consort, such as a thread pool's size.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IgnoredAttribute {
    /// The protocol.
    pub protocol: String,
    /// The attribute.
    pub attribute: String,
    /// Its place.
    pub position: Position,
    /// Whether it has no effect in JGroups either.
    pub is_deprecated: bool,
}

/// Attributes whose lack of effect changes a member's behaviour, so that the operator must know.
const SIGNIFICANT: &[&str] = &[
    "after_creation_hook",
    "dns_address",
    "diag.bind_interfaces",
    "receive_interfaces",
    "receive_on_all_interfaces",
    "tls.provider",
    "tls.sni_matchers",
];

/// JGroups' own membership-change policy, which is Consort's default too.
const DEFAULT_POLICY: &str = "GMS$DefaultMembershipPolicy";

impl IgnoredAttribute {
    /// Returns whether the operator must know that the attribute has no effect. Other attributes configure parts that
    /// Consort does not have, such as thread pools.
    pub fn is_significant(&self) -> bool {
        SIGNIFICANT.contains(&self.attribute.as_str()) || self.attribute == "membership_change_policy"
    }

    /// Returns an alternative to the attribute, if there is one.
    pub fn alternative(&self) -> Option<&'static str> {
        (self.attribute == "membership_change_policy")
            .then_some("Java classes are not supported: set a policy with ChannelBuilder::membership_policy")
    }

    /// Returns the significant ones, or the others, as one line: `TCP.linger (tcp.xml:3:5), …`.
    pub fn line(all: &[Self], stack: &StackConfig, is_significant: bool) -> Option<String> {
        let lines = all.iter().filter(|one| one.is_significant() == is_significant).map(|one| {
            let place = format!("{}:{}", stack.file(one.position), one.position);
            let alternative = one.alternative().map(|text| format!("; {text}")).unwrap_or_default();
            format!("{}.{} ({place}{alternative})", one.protocol, one.attribute)
        });
        let lines: Vec<String> = lines.collect();
        (!lines.is_empty()).then(|| lines.join(", "))
    }
}

/// Attributes of a protocol by name; `true`: deprecated.
type Names = BTreeMap<&'static str, bool>;

/// Protocol → attributes; `*` for those of all, `-` for the names of JGroups' other protocols.
static KNOWN: LazyLock<BTreeMap<&'static str, Names>> = LazyLock::new(|| {
    let mut table: BTreeMap<&'static str, Names> = BTreeMap::new();
    let mut protocol = "*";
    for line in include_str!("jgroups-attributes.txt").lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        if !line.starts_with(' ') {
            protocol = words.next().unwrap_or("*");
        }
        let names = table.entry(protocol).or_default();
        names.extend(words.map(|word| word.strip_suffix('!').map_or((word, false), |name| (name, true))));
    }
    table
});

pub(crate) fn is_transport(protocol: &str) -> bool {
    registry::TRANSPORTS.iter().any(|(transport, _)| *transport == protocol)
}

/// Returns whether a known attribute of a protocol has an effect.
fn is_used(protocol: &str, attribute: &str) -> bool {
    if is_transport(protocol) {
        let is_meant = protocol != "SHARED_LOOPBACK" || !UNUSED_WITHOUT_SOCKETS.contains(&attribute);
        return is_meant && TRANSPORT_ATTRIBUTES.contains(&attribute);
    }
    let entry = registry::ENTRIES.iter().find(|entry| entry.name == protocol);
    entry.is_some_and(|entry| (entry.properties)().iter().any(|info| info.name == attribute))
}

/// Returns the name among `names` that is most similar to `wrong`, if any is similar.
pub(crate) fn nearest(wrong: &str, names: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    let wanted = wrong.to_lowercase();
    let (distance, name) =
        names.map(|name| (strsim::damerau_levenshtein(&wanted, &name.to_lowercase()), name)).min()?;
    (distance <= 2.max(wrong.chars().count() / 3)).then_some(name)
}

/// Checks the names of all protocols and attributes. Returns the known ones that have no effect.
///
/// # Errors
///
/// The first unknown name, with its place and the most similar known name.
pub fn check(stack: &StackConfig) -> Result<Vec<IgnoredAttribute>, ConfigError> {
    let names = registry::names();
    let (common, elsewhere) = (&KNOWN["*"], &KNOWN["-"]);
    let mut ignored = Vec::new();
    for protocol in &stack.protocols {
        let name = protocol.short_name();
        if !names.contains(name) {
            let fault = if elsewhere.contains_key(name) {
                Fault::NotInConsort(name.to_owned())
            } else {
                let nearest = nearest(name, names.iter().copied());
                Fault::UnknownProtocol { name: name.to_owned(), nearest }
            };
            return Err(ConfigError::at(stack, protocol.position, fault));
        }
        let own = &KNOWN[name];
        for (attribute, value, position) in &protocol.attributes {
            let attribute = attribute.as_str();
            if attribute == "id" {
                check_id(stack, name, value, *position)?;
                continue;
            }
            let Some(&is_deprecated) = own.get(attribute).or_else(|| common.get(attribute)) else {
                let nearest = nearest(attribute, own.keys().chain(common.keys()).copied());
                let (protocol, attribute) = (name.to_owned(), attribute.to_owned());
                let fault = Fault::UnknownAttribute { protocol, attribute, nearest };
                return Err(ConfigError::at(stack, *position, fault));
            };
            let is_ours = attribute == "membership_change_policy" && value.trim().ends_with(DEFAULT_POLICY);
            if !is_used(name, attribute) && !is_ours {
                ignored.push(IgnoredAttribute {
                    protocol: name.to_owned(),
                    attribute: attribute.to_owned(),
                    position: *position,
                    is_deprecated,
                });
            }
        }
    }
    check_order(stack)?;
    check_required(stack)?;
    Ok(ignored)
}

/// Checks that `id` is the protocol's own number, under which all members read and write its headers.
fn check_id(stack: &StackConfig, protocol: &str, value: &str, position: Position) -> Result<(), ConfigError> {
    let own = registry::id(protocol);
    if own.is_some_and(|own| value.trim().parse() == Ok(own.0)) {
        return Ok(());
    }
    let (protocol, id) = (protocol.to_owned(), value.to_owned());
    let own = own.map_or(0, |own| own.0);
    Err(ConfigError::at(stack, position, Fault::OtherId { protocol, id, own }))
}

/// Checks attributes that have no default.
fn check_required(stack: &StackConfig) -> Result<(), ConfigError> {
    for protocol in stack.protocols.iter().filter(|protocol| protocol.short_name() == "DNS_PING") {
        if protocol.get("dns_query").is_none_or(|names| names.trim().is_empty()) {
            let what = "DNS_PING has no dns_query: set it to the DNS name of all members".to_owned();
            return Err(ConfigError::at(stack, protocol.position, Fault::Structure(what)));
        }
    }
    Ok(())
}

/// Checks that exactly the first protocol is a transport.
fn check_order(stack: &StackConfig) -> Result<(), ConfigError> {
    for (place, protocol) in stack.protocols.iter().enumerate() {
        let name = protocol.short_name();
        let fail = |what| Err(ConfigError::at(stack, protocol.position, Fault::Structure(what)));
        match (place, is_transport(name)) {
            (0, false) => {
                let transports: Vec<&str> = registry::TRANSPORTS.iter().map(|(name, _)| *name).collect();
                let transports = transports.join(", ");
                return fail(format!("the first protocol has to be a transport ({transports}), not {name}"));
            }
            (1.., true) => return fail(format!("transport {name} has to be the first protocol")),
            _ => {}
        }
        if stack.protocols[..place].iter().any(|other| other.short_name() == name) {
            return fail(format!("{name} is in the stack twice"));
        }
    }
    if stack.protocols.is_empty() {
        let fault = Fault::Structure("the stack has no protocols".to_owned());
        return Err(ConfigError::new(&stack.source, None, fault));
    }
    Ok(())
}

/// Attributes of SHARED_LOOPBACK that concern sockets, which it does not have.
const UNUSED_WITHOUT_SOCKETS: &[&str] = &["bind_addr", "external_addr", "external_port", "port_range"];

/// Attributes of transports that the transport's layer, the edge or the channel uses. Each transport has those of
/// them that JGroups knows of it.
pub const TRANSPORT_ATTRIBUTES: &[&str] = &[
    "accept_any_version",
    "bind_addr",
    "bind_port",
    "bundler.max_size",
    "bundler_type",
    "conn_expire_time",
    "control_queue_bytes",
    "diag.bind_addr",
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
    "tls.cipher_suites",
    "tls.client_auth",
    "tls.enabled",
    "tls.keystore_path",
    "tls.protocols",
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
    use super::{IgnoredAttribute, registry};
    use crate::{ConfigError, Variables, parse_stack};

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
    fn dns_ping_without_dns_query_is_refused() {
        let refused = "my.xml:1:15: DNS_PING has no dns_query: set it to the DNS name of all members";
        assert_eq!(error("<config><TCP/><DNS_PING/></config>"), refused);
        assert_eq!(error("<config><TCP/><DNS_PING dns_query=\" \"/></config>"), refused);
        let mut variables = Variables::new();
        variables.set("jgroups.dns.dns_query", "grid.shop.svc");
        let stack = parse_stack("my.xml", "<config><TCP/><DNS_PING/></config>", &variables).unwrap();
        assert_eq!(stack.config.protocols[1].get("dns_query"), Some("grid.shop.svc"));
    }

    #[test]
    fn another_protocol_id_is_refused_with_its_place() {
        assert_eq!(
            error("<config>\n  <TCP/>\n  <UNICAST3 id=\"700\"/>\n</config>"),
            "my.xml:3:13: attribute id of UNICAST3: `700` is not its number, which is 48 and cannot be changed here"
        );
        let text = "<config><TCP id=\"57\"/><FD_SOCK2 id=\"71\"/><UNICAST3 id=\"48\"/></config>";
        assert!(parse_stack("my.xml", text, &Variables::new()).unwrap().ignored.is_empty());
    }

    #[test]
    fn a_refused_value_is_reported_with_its_attributes_place() {
        let error = |text: &str| {
            let stack = parse_stack("my.xml", text, &Variables::new()).unwrap();
            let mut nowhere = |_: &str| Ok(Vec::new());
            let error = registry::layer(&stack.config.protocols[1], &mut nowhere).unwrap().err().unwrap();
            ConfigError::value(&stack.config, error).to_string()
        };
        let text = "<config>\n  <TCP/>\n  <FD_SOCK2 offset=\"100\" client_bind_port=\"7950\"/></config>";
        assert!(
            error(text).starts_with("my.xml:3:26: FD_SOCK2: client_bind_port (7950) is refused"),
            "{}",
            error(text)
        );
        let text = "<config>\n  <TCP/>\n  <FD_ALL3 timeout=\"9s\"\n interval=\"9s\"/></config>";
        assert!(
            error(text).starts_with("my.xml:4:2: FD_ALL3: interval (9s) must be shorter"),
            "{}",
            error(text)
        );
        let text = "<config>\n  <TCP/>\n  <FD_ALL3 timeout=\"1s\"/></config>";
        assert!(error(text).starts_with("my.xml:3:3: FD_ALL3: interval (8s)"), "{}", error(text));
    }

    #[test]
    fn attributes_without_effect_are_reported() {
        let text = "<config><TCP thread_pool.max_threads=\"200\" bind_port=\"7800\"/></config>";
        let stack = parse_stack("my.xml", text, &Variables::new()).unwrap();
        let names: Vec<&str> = stack.ignored.iter().map(|ignored| ignored.attribute.as_str()).collect();
        assert_eq!(names, ["thread_pool.max_threads"]);
    }

    #[test]
    fn significant_attributes_without_effect_are_listed_apart() {
        let text = "<config><TCP thread_pool.max_threads=\"200\" tls.sni_matchers=\"x\" tls.provider=\"y\"/>\n\
                    <pbcast.GMS membership_change_policy=\"org.example.Mine\"/></config>";
        let stack = parse_stack("my.xml", text, &Variables::new()).unwrap();
        let line =
            |is_significant| IgnoredAttribute::line(&stack.ignored, &stack.config, is_significant).unwrap();
        assert_eq!(line(false), "TCP.thread_pool.max_threads (my.xml:1:14)");
        let significant = line(true);
        assert!(
            significant.starts_with("TCP.tls.sni_matchers (my.xml:1:44), TCP.tls.provider ("),
            "{significant}"
        );
        assert!(
            significant.contains("GMS.membership_change_policy (my.xml:2:13; Java classes"),
            "{significant}"
        );
        assert!(significant.contains("ChannelBuilder::membership_policy"), "{significant}");
    }

    #[test]
    fn jgroups_membership_policy_is_the_default() {
        let text = "<config><TCP/><pbcast.GMS \
                    membership_change_policy=\"org.jgroups.protocols.pbcast.GMS$DefaultMembershipPolicy\"/></config>";
        assert_eq!(parse_stack("my.xml", text, &Variables::new()).unwrap().ignored, []);
    }

    #[test]
    fn a_stack_begins_with_its_only_transport() {
        assert!(error("<config><PING/></config>").contains("has to be a transport"));
        assert!(error("<config><TCP/><UDP/></config>").contains("has to be the first"));
        assert!(error("<config><TCP/><PING/><PING/></config>").contains("twice"));
        assert_eq!(error("<config></config>"), "my.xml: the stack has no protocols");
    }

    #[test]
    fn deprecated_attributes_are_marked() {
        let text = "<config><TCP use_acks=\"true\" thread_pool.enabled=\"true\"/></config>";
        let stack = parse_stack("my.xml", text, &Variables::new()).unwrap();
        let marks: Vec<bool> = stack.ignored.iter().map(|ignored| ignored.is_deprecated).collect();
        assert_eq!(marks, [true, false]);
    }

    #[test]
    fn an_attribute_of_another_protocol_is_unknown() {
        for (protocol, attribute) in [
            ("<TCP mcast_addr=\"239.8.8.8\"/>", "mcast_addr` of TCP"),
            ("<UDP tls.enabled=\"true\"/>", "tls.enabled` of UDP"),
            ("<TCP/><pbcast.NAKACK2 capacity=\"5\"/>", "capacity` of NAKACK2"),
            ("<TCP/><UNICAST3 capacity=\"5\"/>", "capacity` of UNICAST3"),
        ] {
            let error = error(&format!("<config>{protocol}</config>"));
            assert!(error.contains(&format!("unknown attribute `{attribute}")), "{error}");
        }
    }

    /// Each property of a layer can be written in a file, except for those of its newer variant.
    #[test]
    fn every_property_of_every_layer_is_known() {
        let mut unknown = Vec::new();
        for entry in registry::ENTRIES {
            let known =
                super::KNOWN.get(entry.name).unwrap_or_else(|| panic!("{} is not listed", entry.name));
            for info in (entry.properties)() {
                if !known.contains_key(info.name) {
                    unknown.push(format!("{} {}", entry.name, info.name));
                }
            }
        }
        assert_eq!(unknown, ["NAKACK2 capacity", "NAKACK2 ack_threshold", "UNICAST3 capacity"]);
    }

    #[test]
    fn jgroups_protocols_are_either_known_or_absent() {
        for name in registry::names() {
            assert!(super::KNOWN.contains_key(name), "{name} is not listed");
            assert!(!super::KNOWN["-"].contains_key(name), "{name} is listed as missing");
        }
    }
}
