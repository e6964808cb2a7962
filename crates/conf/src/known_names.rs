//! Consort's and JGroups' protocols and attributes.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::LazyLock;

use consort_group::config::{Position, ProtocolConfig, StackConfig, parse_bytes};
use consort_group::protocols::{FragConfig, RateLimiterConfig, registry};

use crate::error::{ConfigError, Fault, PROBLEMS_MAX};
use crate::key_exchange::check_key_exchange;
use crate::unused_attributes::UnusedAttribute;

/// A JGroups attribute without effect in Consort, such as a thread pool's size.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IgnoredAttribute {
    /// The protocol.
    pub protocol: String,
    /// The attribute.
    pub attribute: String,
    /// Its place.
    pub position: Position,
    /// Whether JGroups ignores it, too.
    pub is_deprecated: bool,
    /// Why it has no effect.
    pub reason: &'static str,
}

impl IgnoredAttribute {
    /// Returns all of them as one line: `TCP.log_details (tcp.xml:3:5), …`.
    pub fn line(all: &[Self], stack: &StackConfig) -> Option<String> {
        let lines = all.iter().map(|one| {
            let place = format!("{}:{}", stack.file(one.position), one.position);
            format!("{}.{} ({place})", one.protocol, one.attribute)
        });
        let lines: Vec<String> = lines.collect();
        (!lines.is_empty()).then(|| lines.join(", "))
    }
}

/// Attributes that JGroups does not know: it refuses files that set them.
const CONSORTS_OWN: &[(&str, &[&str])] =
    &[("FD_SOCK2", &["num_refused_probes"]), ("MERGE3", &["lost_interval"])];

/// `true` is a deprecated attribute.
type Names = BTreeMap<&'static str, bool>;

/// `*`: attributes of all; `-`: names of JGroups' other protocols.
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
    for (protocol, own) in CONSORTS_OWN {
        table.entry(protocol).or_default().extend(own.iter().map(|name| (*name, false)));
    }
    table
});

pub(crate) fn is_transport(protocol: &str) -> bool {
    registry::TRANSPORTS.iter().any(|(transport, _)| *transport == protocol)
}

fn is_used(protocol: &str, attribute: &str) -> bool {
    if is_transport(protocol) {
        let unused = match protocol {
            "SHARED_LOOPBACK" => UNUSED_WITHOUT_SOCKETS,
            "TUNNEL" => UNUSED_THROUGH_ROUTERS,
            _ => &[],
        };
        let is_own =
            registry::own_transport_properties(protocol).iter().any(|property| property.name == attribute);
        return is_own || (!unused.contains(&attribute) && TRANSPORT_ATTRIBUTES.contains(&attribute));
    }
    let entry = registry::ENTRIES.iter().find(|entry| entry.name == protocol);
    entry.is_some_and(|entry| (entry.properties)().iter().any(|info| info.name == attribute))
}

/// Among equals the last, which has the highest number.
pub(crate) fn nearest(wrong: &str, names: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    let wanted = wrong.to_lowercase();
    let (distance, Reverse(name)) = names
        .map(|name| (strsim::damerau_levenshtein(&wanted, &name.to_lowercase()), Reverse(name)))
        .min()?;
    (distance <= 2.max(wrong.chars().count() / 3)).then_some(name)
}

/// Checks all names and values. Returns known attributes without effect.
///
/// # Errors
///
/// All problems: unknown names, wrong values, and a wrong order, each with its place. Host names are not looked up,
/// and transport addresses not checked.
pub fn check(stack: &StackConfig) -> Result<Vec<IgnoredAttribute>, ConfigError> {
    let mut ignored = Vec::new();
    let mut problems = Vec::new();
    for protocol in &stack.protocols {
        if problems.len() >= PROBLEMS_MAX {
            break;
        }
        check_protocol(stack, protocol, &mut ignored, &mut problems);
    }
    check_order(stack, &mut problems);
    check_required(stack, &mut problems);
    check_rate(stack, &mut problems);
    check_key_exchange(stack, &mut problems);
    problems.truncate(PROBLEMS_MAX);
    match ConfigError::combine(problems) {
        Some(error) => Err(error),
        None => Ok(ignored),
    }
}

fn check_protocol(
    stack: &StackConfig,
    protocol: &ProtocolConfig,
    ignored: &mut Vec<IgnoredAttribute>,
    problems: &mut Vec<ConfigError>,
) {
    let name = protocol.short_name();
    let names = registry::names();
    if !names.contains(name) {
        let fault = if KNOWN["-"].contains_key(name) {
            Fault::NotInConsort(name.to_owned())
        } else {
            let nearest = nearest(name, names.iter().copied());
            Fault::UnknownProtocol { name: name.to_owned(), nearest }
        };
        return problems.push(ConfigError::at(stack, protocol.position, fault));
    }
    problems
        .extend(registry::value_errors(protocol).into_iter().map(|error| ConfigError::value(stack, error)));
    let (own, common) = (&KNOWN[name], &KNOWN["*"]);
    for (attribute, value, position) in &protocol.attributes {
        let attribute = attribute.as_str();
        if problems.len() >= PROBLEMS_MAX {
            return;
        }
        if attribute == "id" {
            problems.extend(check_id(stack, name, value, *position));
            continue;
        }
        let Some(&is_deprecated) = own.get(attribute).or_else(|| common.get(attribute)) else {
            let nearest = nearest(attribute, own.keys().chain(common.keys()).copied());
            let (protocol, attribute) = (name.to_owned(), attribute.to_owned());
            let fault = Fault::UnknownAttribute { protocol, attribute, nearest };
            problems.push(ConfigError::at(stack, *position, fault));
            continue;
        };
        if is_used(name, attribute) {
            continue;
        }
        let (protocol, attribute) = (name.to_owned(), attribute.to_owned());
        let position = *position;
        match UnusedAttribute::of(name, &attribute) {
            Some(UnusedAttribute::NoEffect(reason)) => {
                ignored.push(IgnoredAttribute { protocol, attribute, position, is_deprecated, reason });
            }
            unused => {
                if let Some(alternative) = unused.and_then(|unused| unused.refusal(value)) {
                    let [protocol, attribute, value] = [protocol, attribute, value.clone()].map(Box::from);
                    let fault = Fault::RefusedAttribute { protocol, attribute, value, alternative };
                    problems.push(ConfigError::at(stack, position, fault));
                }
            }
        }
    }
}

/// All members read and write the headers under the protocol's own number.
fn check_id(stack: &StackConfig, protocol: &str, value: &str, position: Position) -> Option<ConfigError> {
    let own = registry::id(protocol);
    if own.is_some_and(|own| value.trim().parse() == Ok(own.0)) {
        return None;
    }
    let (protocol, id) = (protocol.to_owned(), value.to_owned());
    let own = own.map_or(0, |own| own.0);
    Some(ConfigError::at(stack, position, Fault::OtherId { protocol, id, own }))
}

/// Some attributes have no default.
fn check_required(stack: &StackConfig, problems: &mut Vec<ConfigError>) {
    for protocol in stack.protocols.iter().filter(|protocol| protocol.short_name() == "DNS_PING") {
        if protocol.get("dns_query").is_none_or(|names| names.trim().is_empty()) {
            let text = "DNS_PING has no dns_query: set it to the DNS name of all members".to_owned();
            problems.push(ConfigError::at(stack, protocol.position, Fault::Structure(text)));
        }
    }
}

/// As JGroups: each fragment above RATE_LIMITER fits into a period.
fn check_rate(stack: &StackConfig, problems: &mut Vec<ConfigError>) {
    let limiter = stack.protocols.iter().position(|protocol| protocol.short_name() == "RATE_LIMITER");
    let Some(at) = limiter else { return };
    let limiter = &stack.protocols[at];
    let bytes = |protocol: &ProtocolConfig, name: &str, default: u64| {
        // An invalid value has been reported.
        protocol.get(name).map_or(Some(default), |value| parse_bytes(value).ok())
    };
    let Some(max_bytes) = bytes(limiter, "max_bytes", RateLimiterConfig::default().max_bytes.0) else {
        return;
    };
    for above in stack.protocols[at..].iter().filter(|above| above.short_name().starts_with("FRAG")) {
        let frag_size = bytes(above, "frag_size", FragConfig::default().frag_size.0);
        if let Some(frag_size) = frag_size.filter(|frag_size| max_bytes < *frag_size) {
            let text = format!(
                "max_bytes ({max_bytes}) of RATE_LIMITER must be at least frag_size ({frag_size}) of {}",
                above.short_name()
            );
            let place = limiter.attributes.iter().find(|(name, ..)| name == "max_bytes");
            let position = place.map_or(limiter.position, |(.., position)| *position);
            problems.push(ConfigError::at(stack, position, Fault::Structure(text)));
        }
    }
}

/// Exactly the first protocol is a transport.
fn check_order(stack: &StackConfig, problems: &mut Vec<ConfigError>) {
    let names = registry::names();
    for (place, protocol) in stack.protocols.iter().enumerate() {
        let name = protocol.short_name();
        let mut fail =
            |text: String| problems.push(ConfigError::at(stack, protocol.position, Fault::Structure(text)));
        match (place, is_transport(name)) {
            // An unknown protocol has been reported.
            (0, false) if names.contains(name) => {
                let transports: Vec<&str> = registry::TRANSPORTS.iter().map(|(name, _)| *name).collect();
                let transports = transports.join(", ");
                fail(format!("the first protocol has to be a transport ({transports}), not {name}"));
            }
            (1.., true) => fail(format!("transport {name} has to be the first protocol")),
            _ => {}
        }
        if stack.protocols[..place].iter().any(|other| other.short_name() == name) {
            fail(format!("{name} is in the stack twice"));
        }
    }
    if stack.protocols.is_empty() {
        let fault = Fault::Structure("the stack has no protocols".to_owned());
        problems.push(ConfigError::new(&stack.source, None, fault));
    }
}

/// SHARED_LOOPBACK has no sockets.
const UNUSED_WITHOUT_SOCKETS: &[&str] = &["bind_addr", "external_addr", "external_port", "port_range"];

/// TUNNEL's members are reached by their member addresses.
const UNUSED_THROUGH_ROUTERS: &[&str] = &[
    "bind_port",
    "external_addr",
    "external_port",
    "port_range",
    "tls.client_auth",
    "who_has_cache_timeout",
];

/// Used transport attributes. A transport has those of them that JGroups knows of it.
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
    "enable_suspect_events",
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
    "tls.key_path",
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
    use super::{UnusedAttribute, registry};
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
            error("<config>\n  <TCP/><FD_HOST/>\n</config>"),
            "my.xml:2:9: protocol `FD_HOST` of JGroups is not part of Consort; use FD_ALL3"
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
    fn all_problems_of_a_file_are_reported_at_once() {
        let text = "<config>\n<TCP bind_prt=\"1\" id=\"9\" linger=\"1\"/>\n<S3_PING/>\n<FD_ALL4/>\n<PING/><PING/>\n\
                    <DNS_PING/><UDP/></config>";
        let error = parse_stack("my.xml", text, &Variables::new()).unwrap_err();
        assert_eq!(error.others.len(), 6);
        let text = error.to_string();
        let starts: Vec<&str> = text.lines().map(|line| &line[..line.len().min(40)]).collect();
        assert_eq!(
            starts,
            [
                "my.xml:2:6: unknown attribute `bind_prt`",
                "my.xml:2:19: attribute id of TCP: `9` is",
                "my.xml:3:1: protocol `S3_PING` of JGroup",
                "my.xml:4:1: unknown protocol `FD_ALL4`; ",
                "my.xml:5:8: PING is in the stack twice",
                "my.xml:6:12: transport UDP has to be the",
                "my.xml:6:1: DNS_PING has no dns_query: s",
            ]
        );
        assert!(text.contains("a store of a cloud provider: use DNS_PING"), "{text}");
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

    /// The variables of jgroups-kubernetes, which Kubernetes sets in part.
    #[test]
    fn kube_ping_takes_its_attributes_from_the_variables_of_a_pod() {
        let variables = Variables::new()
            .with("KUBERNETES_SERVICE_HOST", "10.96.0.1")
            .with("KUBERNETES_SERVICE_PORT", "6443")
            .with("OPENSHIFT_KUBE_PING_NAMESPACE", "old")
            .with("KUBERNETES_NAMESPACE", "shop")
            .with("OPENSHIFT_KUBE_PING_LABELS", "app=grid")
            .with("KUBERNETES_CLIENT_KEY_ALGO", "RSA");
        let text = "<config><TCP/><org.jgroups.protocols.kubernetes.KUBE_PING masterPort=\"443\"/></config>";
        let stack = parse_stack("my.xml", text, &variables).unwrap();
        let protocol = &stack.config.protocols[1];
        for (attribute, value) in [
            ("masterHost", Some("10.96.0.1")),
            ("masterPort", Some("443")),
            ("namespace", Some("shop")),
            ("labels", Some("app=grid")),
            ("saTokenFile", None),
        ] {
            assert_eq!(protocol.get(attribute), value, "{attribute}");
        }
        assert_eq!(stack.ignored.len(), 1, "clientKeyAlgo");
        let kube = |attributes: &str| error(&format!("<config><TCP/><KUBE_PING {attributes}/></config>"));
        let refused = kube("clientKeyPassword=\"secret\"");
        assert!(refused.contains("clientKeyPassword") && refused.contains("without password"), "{refused}");
        let refused = kube("service=\"grid\" labels=\"app=grid\"");
        assert!(refused.contains("set either service or labels"), "{refused}");
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
    fn all_wrong_values_are_reported() {
        let text =
            "<config><TCP version=\"x\"/>\n<UFC max_credits=\"many\" min_threshold=\"y\"/>\n<PNG/></config>";
        let error = error(text);
        let lines: Vec<&str> = error.lines().collect();
        assert_eq!(lines.len(), 4, "{error}");
        assert!(lines[0].starts_with("my.xml:1:14: TCP: attribute version: "), "{error}");
        assert!(lines[1].starts_with("my.xml:2:6: UFC: attribute max_credits: `many`"), "{error}");
        assert!(lines[2].starts_with("my.xml:2:25: UFC: attribute min_threshold: `y`"), "{error}");
        assert!(lines[3].starts_with("my.xml:3:1: unknown protocol `PNG`"), "{error}");
    }

    #[test]
    fn a_rate_below_the_size_of_a_fragment_is_refused() {
        let stack =
            |limiter: &str| format!("<config><TCP/>\n<{limiter}/><FRAG2 frag_size=\"60K\"/></config>");
        assert_eq!(
            error(&stack("RATE_LIMITER max_bytes=\"50K\"")),
            "my.xml:2:15: max_bytes (50000) of RATE_LIMITER must be at least frag_size (60000) of FRAG2"
        );
        for fits in ["RATE_LIMITER", "RATE_LIMITER max_bytes=\"60K\"", "PING"] {
            assert!(parse_stack("my.xml", &stack(fits), &Variables::new()).is_ok(), "{fits}");
        }
        assert!(
            error(&stack("RATE_LIMITER time_period=\"0\"")).contains("time_period must be greater than 0")
        );
        let below = "<config><TCP/><FRAG2/><RATE_LIMITER max_bytes=\"1K\"/></config>";
        assert!(parse_stack("my.xml", below, &Variables::new()).is_ok());
    }

    #[test]
    fn attributes_without_effect_are_reported() {
        let text = "<config><TCP thread_pool.max_threads=\"200\" bind_port=\"7800\"/></config>";
        let stack = parse_stack("my.xml", text, &Variables::new()).unwrap();
        let names: Vec<&str> = stack.ignored.iter().map(|ignored| ignored.attribute.as_str()).collect();
        assert_eq!(names, ["thread_pool.max_threads"]);
    }

    #[test]
    fn attribute_whose_effect_is_missing_is_refused_with_an_alternative() {
        let text = "<config><TCP tls.sni_matchers=\"x\" client_bind_port=\"0\" tls.provider=\"y\"/>\n\
                    <pbcast.GMS membership_change_policy=\"org.example.Mine\" after_creation_hook=\"H\"/></config>";
        let error = error(text);
        let lines: Vec<&str> = error.lines().collect();
        assert_eq!(lines.len(), 3, "{error}");
        assert_eq!(
            lines[0],
            "my.xml:1:14: attribute tls.sni_matchers of TCP: `x` is refused, because it would have no effect; \
             require certificates of peers: tls.client_auth=\"need\""
        );
        assert!(lines[1].contains("ChannelBuilder::membership_policy"), "{error}");
        assert!(lines[2].starts_with("my.xml:2:57: attribute after_creation_hook of GMS: `H`"), "{error}");
    }

    /// No attribute is accepted without effect and without a reason.
    #[test]
    fn every_attribute_is_read_or_has_a_reason_why_not() {
        let mut without = Vec::new();
        let mut unknown = Vec::new();
        let common = super::KNOWN["*"].keys();
        for protocol in registry::names() {
            let own = super::KNOWN[protocol].keys();
            for attribute in own.chain(common.clone()).filter(|attribute| **attribute != "id") {
                if super::is_used(protocol, attribute) == UnusedAttribute::of(protocol, attribute).is_some() {
                    without.push(format!("{protocol}.{attribute}"));
                }
            }
        }
        for (protocols, attributes, _) in UnusedAttribute::rows() {
            for protocol in protocols {
                let known = &super::KNOWN[protocol];
                unknown.extend(attributes.iter().filter(|name| !known.contains_key(**name)));
            }
        }
        assert_eq!((without, unknown), (Vec::<String>::new(), Vec::<&&str>::new()));
    }

    #[test]
    fn own_attributes_are_read_and_nearest_names_include_them() {
        let text =
            "<config><TCP/><MERGE3 lost_interval=\"2s\"/><FD_SOCK2 num_refused_probes=\"0\"/></config>";
        assert_eq!(parse_stack("my.xml", text, &Variables::new()).unwrap().ignored, []);
        assert!(error("<config><TCP/><MERGE3 lost_intervall=\"2s\"/></config>").contains("lost_interval"));
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

    /// The properties of newer variants are excepted.
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
        assert_eq!(
            unknown,
            [
                "NAKACK2 capacity",
                "NAKACK2 ack_threshold",
                "NAKACK3 capacity",
                "NAKACK3 ack_threshold",
                "UNICAST3 capacity"
            ]
        );
    }

    #[test]
    fn jgroups_protocols_are_either_known_or_absent() {
        for name in registry::names() {
            assert!(super::KNOWN.contains_key(name), "{name} is not listed");
            assert!(!super::KNOWN["-"].contains_key(name), "{name} is listed as missing");
        }
    }
}
