//! `<endpoints>`: the ports for clients, their security realm and their filters of addresses.

use std::num::NonZeroU16;

use consort_sasl::Mechanism;

use super::document::Node;
use super::network::{Network, SocketBinding};
use super::problem::{Place, Problems};
use super::section::{Reasons, Section};
use crate::transport::ip_filter::IpFilter;

const SOCKETS: &str = "buffers of sockets are the system's";

const COMMON_WARNINGS: Reasons = &[
    ("io-threads", "the number of threads follows the processors"),
    ("worker-threads", "the number of threads follows the processors"),
    ("receive-buffer-size", SOCKETS),
    ("send-buffer-size", SOCKETS),
    ("tcp-keepalive", "dead clients are found by keep-alive probes in any case"),
    ("tcp-nodelay", "small responses are never delayed"),
    ("max-content-length", "limits of requests are those of docs/security.md"),
];

const ENDPOINT_REFUSALS: Reasons = &[
    (
        "memcached-connector",
        "there is no memcached protocol; leave it out, or keep an Infinispan server for its clients",
    ),
    (
        "resp-connector",
        "there is no RESP protocol; leave it out, or keep an Infinispan server for its clients",
    ),
];

/// `rest-connector` is a warning: Infinispan's server does not start without one, so a file has it also if no client uses REST.
const REST: &str = "there is no REST API for entries, and its requests get 404; /health and /metrics are on the clients' port";

/// A port for clients.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Endpoint {
    pub(super) binding: Option<SocketBinding>,
    pub(super) realm: Option<(String, Place)>,
    pub(super) mechanisms: Option<(Vec<Mechanism>, Place)>,
    pub(super) filter: IpFilter,
    pub(super) external_host: Option<String>,
    pub(super) external_port: Option<u16>,
    pub(super) needs_client_certificate: bool,
    pub(super) has_public_metrics: bool,
    pub(super) place: Place,
}

/// Returns the ports for clients. All have the realm of the first one, which is that of topologies.
pub(super) fn read(node: &Node, network: &Network, problems: &mut Problems) -> Vec<Endpoint> {
    let mut section = Section::new(node);
    let (binding, realm) = (section.attribute("socket-binding"), section.attribute("security-realm"));
    let all: Vec<&Node> = section.children("endpoint").chain(section.children("endpoints")).collect();
    if all.is_empty() {
        // Up to version 12 there was one endpoint, with its connectors in this element; in JSON and YAML it may be there, too.
        return checked(read_endpoint(node, (None, None), network, true, problems), problems);
    }
    section.finish(problems);
    let is_only = all.len() == 1;
    let read = |endpoint| read_endpoint(endpoint, (binding, realm), network, is_only, problems);
    let endpoints: Vec<Endpoint> = all.iter().copied().flat_map(read).collect();
    if endpoints.is_empty() {
        problems.refuse(node.place, "no endpoint has a hotrod-connector; add one");
    }
    checked(endpoints, problems)
}

/// Refuses ports whose settings differ from those of the first one.
fn checked(endpoints: Vec<Endpoint>, problems: &mut Problems) -> Vec<Endpoint> {
    let Some((first, others)) = endpoints.split_first() else { return endpoints };
    fn realm(endpoint: &Endpoint) -> Option<&str> {
        endpoint.realm.as_ref().map(|(name, _)| &name[..])
    }
    fn mechanisms(endpoint: &Endpoint) -> Option<&[Mechanism]> {
        endpoint.mechanisms.as_ref().map(|(all, _)| &all[..])
    }
    for (at, other) in others.iter().enumerate() {
        if realm(other) != realm(first)
            || mechanisms(other) != mechanisms(first)
            || other.needs_client_certificate != first.needs_client_certificate
            || other.has_public_metrics != first.has_public_metrics
        {
            let text = "a further endpoint has the security-realm, the mechanisms, require-ssl-client-auth and metrics-auth of the \
                        first one; write the same, or start another server for it";
            problems.refuse(other.place, text);
        }
        if other.binding.is_some() && endpoints[..=at].iter().any(|earlier| earlier.binding == other.binding)
        {
            problems
                .refuse(other.place, "a second endpoint of a socket-binding; write another socket-binding");
        }
        let text = "a further endpoint: its clients get no topology, so that they stay on the servers that they name; external-host \
                    and external-port have no effect there";
        problems.warn(other.place, text);
    }
    endpoints
}

/// An attribute of `<endpoints>` that applies to an endpoint without one of its own.
type InheritedAttribute<'n> = Option<&'n super::document::Attribute>;

fn read_endpoint(
    node: &Node,
    (binding, realm): (InheritedAttribute<'_>, InheritedAttribute<'_>),
    network: &Network,
    is_only: bool,
    problems: &mut Problems,
) -> Vec<Endpoint> {
    let mut section = Section::new(node);
    let mut endpoint = Endpoint { place: node.place, ..Endpoint::default() };
    let own_binding = section.attribute("socket-binding").or(binding);
    let own_realm = section.attribute("security-realm").or(realm);
    endpoint.realm = own_realm.map(|realm| (realm.value.clone(), realm.place));
    endpoint.has_public_metrics = section.flag("metrics-auth", problems) == Some(false);
    if section.flag("admin", problems) == Some(true) {
        problems
            .warn(node.place, "admin of endpoint: there is no console; use consort cache and consort doctor");
    }
    endpoint.needs_client_certificate = section.flag("require-ssl-client-auth", problems) == Some(true);
    idle_timeout(&mut section, problems);
    section.warn(COMMON_WARNINGS, problems);
    section.refuse(ENDPOINT_REFUSALS, problems);
    section.warn(&[("rest-connector", REST)], problems);
    if let Some(filter) = section.child("ip-filter", problems) {
        endpoint.filter = read_filter(filter, problems);
    }
    let mut connectors: Vec<&Node> = section.children("hotrod-connector").collect();
    for named in section.children("connectors") {
        connectors.extend(read_connectors(named, problems));
    }
    section.finish(problems);
    let chosen = own_binding.map(|binding| (&binding.value[..], binding.place));
    if connectors.is_empty() {
        let has_others =
            node.children.iter().any(|child| matches!(&child.name[..], "rest-connector" | "connectors"));
        if has_others && !is_only {
            return Vec::new();
        }
        let text = "endpoint without connectors: Infinispan also serves REST, RESP and memcached on it; this server serves \
                    Hot Rod, /health and /metrics";
        problems.warn(node.place, text);
        endpoint.bind(chosen, network, problems);
        return vec![endpoint];
    }
    let ports = connectors.into_iter().map(|connector| {
        let (mut port, mut chosen) = (endpoint.clone(), chosen);
        if !is_only {
            port.place = connector.place;
        }
        read_hotrod(connector, &mut port, &mut chosen, problems);
        port.bind(chosen, network, problems);
        port
    });
    ports.collect()
}

impl Endpoint {
    fn bind(&mut self, chosen: Option<(&str, Place)>, network: &Network, problems: &mut Problems) {
        let Some((name, place)) = chosen else {
            problems.refuse(self.place, "an endpoint needs the attribute `socket-binding`");
            return;
        };
        self.binding = network.bindings.get(name).cloned();
        if self.binding.is_none() {
            let known: Vec<&str> = network.bindings.keys().map(String::as_str).collect();
            let text = format!("no socket-binding `{name}`; socket-bindings: {}", known.join(", "));
            problems.refuse(place, text);
        }
    }
}

/// Returns the connectors for Hot Rod of `connectors`, which JSON and YAML have with a name for each.
fn read_connectors<'n>(named: &'n Node, problems: &mut Problems) -> Vec<&'n Node> {
    let mut found = Vec::new();
    for member in &named.children {
        let inner = match &member.children[..] {
            [inner] if member.attributes.is_empty() && inner.name.ends_with("-connector") => inner,
            _ => member,
        };
        let refusal = ENDPOINT_REFUSALS.iter().find(|(name, _)| *name == inner.name);
        match (&inner.name[..], refusal) {
            ("hotrod-connector", _) => found.push(inner),
            ("rest-connector", _) => problems.warn(inner.place, format!("<rest-connector>: {REST}")),
            (name, Some((_, why))) => problems.refuse(inner.place, format!("<{name}>: {why}")),
            (name, None) => problems.refuse(inner.place, format!("unknown connector <{name}>")),
        }
    }
    found
}

fn idle_timeout(section: &mut Section<'_>, problems: &mut Problems) {
    if let Some(timeout) = section.attribute("idle-timeout").filter(|timeout| timeout.value != "-1") {
        let text =
            "idle-timeout: connections of idle clients stay open; leave it out, or close them at the client";
        problems.refuse(timeout.place, text);
    }
}

fn read_hotrod<'n>(
    node: &'n Node,
    endpoint: &mut Endpoint,
    binding: &mut Option<(&'n str, Place)>,
    problems: &mut Problems,
) {
    let mut section = Section::new(node);
    section.text("name");
    if let Some(own) = section.attribute("socket-binding") {
        *binding = Some((&own.value, own.place));
    }
    if let Some(realm) = section.attribute("security-realm") {
        endpoint.realm = Some((realm.value.clone(), realm.place));
    }
    endpoint.external_host = section.text("external-host").map(str::to_owned);
    endpoint.external_port = section.parsed::<NonZeroU16>("external-port", problems).map(NonZeroU16::get);
    if section.flag("require-ssl-client-auth", problems) == Some(true) {
        endpoint.needs_client_certificate = true;
    }
    idle_timeout(&mut section, problems);
    section.warn(COMMON_WARNINGS, problems);
    section.warn(
        &[("topology-state-transfer", "servers exchange the addresses for clients in a cache of their own")],
        problems,
    );
    section.refuse(
        &[("network-prefix-override", "clients get the same address in every network; write external-host")],
        problems,
    );
    if let Some(authentication) = section.child("authentication", problems) {
        read_authentication(authentication, endpoint, problems);
    }
    if let Some(encryption) = section.child("encryption", problems) {
        read_encryption(encryption, endpoint, problems);
    }
    if let Some(filter) = section.child("ip-filter", problems) {
        if !endpoint.filter.is_empty() {
            problems.refuse(filter.place, "a second ip-filter; write one, at the endpoint");
        }
        endpoint.filter = read_filter(filter, problems);
    }
    section.finish(problems);
}

fn read_encryption(node: &Node, endpoint: &mut Endpoint, problems: &mut Problems) {
    let mut section = Section::new(node);
    if section.flag("require-ssl-client-auth", problems) == Some(true) {
        endpoint.needs_client_certificate = true;
    }
    if let Some(realm) = section.attribute("security-realm") {
        match &endpoint.realm {
            Some((name, _)) if *name != realm.value => {
                let text = format!(
                    "a second security realm, `{}`; write the certificate into `{name}`",
                    realm.value
                );
                problems.refuse(realm.place, text);
            }
            _ => endpoint.realm = Some((realm.value.clone(), realm.place)),
        }
    }
    section.refuse(&[("sni", "a server has one certificate; write all its names into that")], problems);
    section.finish(problems);
}

fn read_authentication(node: &Node, endpoint: &mut Endpoint, problems: &mut Problems) {
    let mut section = Section::new(node);
    if let Some(realm) = section.attribute("security-realm") {
        endpoint.realm = Some((realm.value.clone(), realm.place));
    }
    let sasl = section.child("sasl", problems);
    section.finish(problems);
    let Some(node) = sasl else { return };
    let mut section = Section::new(node);
    section.warn(
        &[
            ("server-name", "no mechanism here uses the name of the server"),
            ("strength", "mechanisms here have no strength; TLS encrypts"),
            ("property", "it is for mechanisms of Java"),
            ("properties", "it is for mechanisms of Java"),
        ],
        problems,
    );
    section
        .refuse(&[("server-principal", "clients cannot authenticate by Kerberos; leave it out")], problems);
    if let Some(qop) = section.attribute("qop").filter(|qop| !matches!(&qop.value[..], "auth" | "")) {
        problems
            .refuse(qop.place, format!("qop: `{}` is not possible; use TLS, and qop=\"auth\"", qop.value));
    }
    let harmless = ["NO_ANONYMOUS", "NO_ACTIVE", "no-anonymous", "no-active"];
    let policies = section.words("policy").unwrap_or_default();
    if let Some(policy) = policies.iter().find(|policy| !harmless.contains(policy)) {
        let text =
            format!("policy: `{policy}` is not applied; name the mechanisms with the attribute `mechanisms`");
        problems.refuse(node.place, text);
    }
    for policy in section.children("policy") {
        problems.refuse(policy.place, "<policy>: name the mechanisms with the attribute `mechanisms`");
    }
    if let Some(mechanisms) = section.words("mechanisms") {
        let place = section.node.get("mechanisms").map_or(node.place, |mechanisms| mechanisms.place);
        endpoint.mechanisms = Some((read_mechanisms(&mechanisms, place, problems), place));
    }
    section.finish(problems);
}

fn read_mechanisms(names: &[&str], place: Place, problems: &mut Problems) -> Vec<Mechanism> {
    let (mut known, mut unknown) = (Vec::new(), Vec::new());
    for name in names {
        match Mechanism::from_name(name) {
            Some(mechanism) => known.push(mechanism),
            None => unknown.push(*name),
        }
    }
    if !unknown.is_empty() {
        let text = format!(
            "mechanisms: the server does not have {}; leave it out; it has {}",
            unknown.join(", "),
            Mechanism::ALL.map(Mechanism::name).join(", ")
        );
        problems.refuse(place, text);
    }
    known
}

fn read_filter(node: &Node, problems: &mut Problems) -> IpFilter {
    let mut section = Section::new(node);
    section.mark("accept");
    section.mark("reject");
    section.finish(problems);
    let mut filter = IpFilter::default();
    for rule in node.children.iter().filter(|rule| matches!(&rule.name[..], "accept" | "reject")) {
        let mut section = Section::new(rule);
        if let Some(network) = section.required("from", problems)
            && let Err(why) = filter.add(rule.name == "accept", network)
        {
            problems.refuse(rule.place, format!("from of {}: {why}", rule.name));
        }
        section.finish(problems);
    }
    filter
}
