//! DNS_PING: finds members through DNS names, such as that of a headless service on Kubernetes. Every request
//! resolves the names again.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use super::lookups::LookUps;
use super::*;
use crate::{DnsRecord, Effect};

crate::properties! {
    /// DNS_PING's properties.
    DnsPingConfig {
        /// The DNS names, separated by commas.
        dns_query: String = String::new(),
        /// The record type to look up: A (IPv4), AAAA (IPv6) or SRV (addresses with ports).
        dns_record_type: DnsRecord = DnsRecord::A,
        /// The name server, as host, host:port or address. The system's name servers if not set.
        dns_address: String = String::new(),
        /// Whether the transport's ports are asked, too, where an SRV record has a port.
        probe_transport_ports: bool = false,
    }
}

impl crate::config::Property for DnsRecord {
    fn parse(text: &str) -> Result<Self, String> {
        match text.trim().to_ascii_uppercase().as_str() {
            "A" => Ok(Self::A),
            "AAAA" => Ok(Self::Aaaa),
            "SRV" => Ok(Self::Srv),
            other => Err(format!("`{other}` is none of A, AAAA, SRV")),
        }
    }
    fn show(&self) -> String {
        match self {
            Self::A => "A".to_owned(),
            Self::Aaaa => "AAAA".to_owned(),
            Self::Srv => "SRV".to_owned(),
        }
    }
}

/// The maximum number of addresses per name. Each address may have several ports.
const ADDRESSES_MAX: usize = 2_000;

/// The source of DNS_PING.
pub struct Names {
    config: DnsPingConfig,
    /// The ports to try at each address: those that the transport may bind to.
    ports: RangeInclusive<u16>,
    /// The last request. It is sent to the addresses of the names.
    question: Option<Message>,
    pub(super) lookups: LookUps,
}

impl Names {
    /// Creates a source for members at these ports.
    pub fn new(config: DnsPingConfig, ports: RangeInclusive<u16>) -> Self {
        Self { config, ports, question: None, lookups: LookUps::new("DNS_PING") }
    }

    pub(super) fn ask(&mut self, cx: &mut Cx<'_>, question: Message) {
        let known = source::known(cx, source::KNOWN_MAX);
        source::send_to(cx, &question, known);
        self.question = Some(question);
        // Look-ups in progress serve this request, too.
        let names = self.config.dns_query.split(',').map(str::trim).filter(|name| !name.is_empty());
        let record = self.config.dns_record_type;
        let server = Some(self.config.dns_address.trim()).filter(|server| !server.is_empty());
        for name in names {
            let name = name.to_owned();
            // The system's resolver also reads /etc/hosts, and caches.
            self.lookups.begin(
                cx,
                match (record, server) {
                    (DnsRecord::A | DnsRecord::Aaaa, None) => Effect::LookUp { name },
                    _ => Effect::QueryDns { name, record, server: server.map(str::to_owned) },
                },
            );
        }
    }

    pub(super) fn done(&mut self, cx: &mut Cx<'_>, token: Token, outcome: Outcome) {
        let Some((_, found)) = self.lookups.finish(cx.now(), token, outcome) else { return };
        let Some(question) = self.question.clone() else { return };
        let (record, own) = (self.config.dns_record_type, cx.shared().phys.ip);
        let is_ours = |ip: &IpAddr| own.is_none_or(|own| own.is_ipv4() == ip.is_ipv4());
        let has_ours = found.iter().any(|(ip, _)| is_ours(ip));
        let is_meant = |ip: &IpAddr| match record {
            DnsRecord::Srv => is_ours(ip) || !has_ours,
            _ => ip.is_ipv4() == (record == DnsRecord::A),
        };
        let mut places = Vec::new();
        for (ip, port) in found.into_iter().filter(|(ip, _)| is_meant(ip)).take(ADDRESSES_MAX) {
            if port > 0 {
                places.push(PhysAddr::new(ip, port));
            }
            if port == 0 || self.config.probe_transport_ports {
                places.extend(self.ports.clone().map(|port| PhysAddr::new(ip, port)));
            }
        }
        let known: BTreeSet<PhysAddr> = source::known(cx, source::KNOWN_MAX).collect();
        places.retain(|place| !known.contains(place));
        source::send_to(cx, &question, places);
    }

    pub(super) fn disconnect(&mut self) {
        self.lookups.cancel();
        self.question = None;
    }

    pub(super) fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.config);
        out.put("unresolved_hosts", self.lookups.unresolved());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Harness, member, phys};

    fn harness(query: &str) -> Harness {
        let config = DnsPingConfig { dns_query: query.to_owned(), ..DnsPingConfig::default() };
        let source = Source::Dns(Names::new(config, 1..=2));
        let mut harness = Harness::new(Discovery::new(source, DiscoveryConfig::default()));
        harness.stack.handle_connect(harness.now, "demo");
        harness.stack.run(harness.now);
        harness
    }

    fn looked_up(harness: &mut Harness) -> Vec<(Token, String)> {
        let effects = harness.take_effects().into_iter();
        let names = effects.map(|(token, effect)| match effect {
            Effect::LookUp { name } => (token, name),
            other => panic!("{other:?}"),
        });
        names.collect()
    }

    fn asked(harness: &mut Harness) -> Vec<String> {
        harness
            .take_down()
            .iter()
            .map(|message| message.dest.as_ref().expect("a place").to_string())
            .collect()
    }

    fn find(harness: &mut Harness) {
        harness.lower(Event::FindMembers { is_initial: true, timeout: Duration::from_secs(2) });
    }

    #[test]
    fn every_request_resolves_the_names_again() {
        let mut harness = harness("grid.shop.svc, other");
        find(&mut harness);
        let [(first, grid), (second, other)] = &looked_up(&mut harness)[..] else { panic!("two names") };
        assert_eq!((&**grid, &**other), ("grid.shop.svc", "other"));
        let four = |last| IpAddr::from([10, 0, 0, last]);
        harness.done(*first, Outcome::Addresses(vec![four(7), "::1".parse().unwrap()]));
        assert_eq!(asked(&mut harness), ["10.0.0.7:1", "10.0.0.7:2"], "and no IPv6 address");
        // A request during a look-up of one of the names.
        find(&mut harness);
        let [(first, grid)] = &looked_up(&mut harness)[..] else { panic!("the other name") };
        assert_eq!(&**grid, "grid.shop.svc");
        harness.done(*second, Outcome::Failed("no such host".to_owned()));
        assert_eq!(harness.stack.attribute("DNS_PING", "unresolved_hosts").as_deref(), Some("other"));
        find(&mut harness);
        assert_eq!(looked_up(&mut harness).len(), 1);
        harness.done(*first, Outcome::Addresses(vec![four(8)]));
        assert_eq!(asked(&mut harness), ["10.0.0.8:1", "10.0.0.8:2"]);
    }

    #[test]
    fn known_members_get_one_request_at_once() {
        let mut harness = harness("grid");
        harness.learn(3);
        find(&mut harness);
        assert_eq!(asked(&mut harness), [phys(3).to_string()]);
        let [(token, _)] = looked_up(&mut harness)[..] else { panic!("one name") };
        let own = harness.stack.shared().phys;
        harness.done(token, Outcome::Addresses([own.ip, phys(3).ip].into_iter().flatten().collect()));
        assert!(!asked(&mut harness).contains(&own.to_string()), "not ourselves");
        assert_eq!(harness.stack.shared().local, member(1));
    }

    #[test]
    fn services_are_asked_at_their_ports() {
        for (probe_transport_ports, expected) in [
            (false, &["10.0.0.7:7900", "10.0.0.8:1", "10.0.0.8:2"][..]),
            (true, &["10.0.0.7:7900", "10.0.0.7:1", "10.0.0.7:2", "10.0.0.8:1", "10.0.0.8:2"]),
        ] {
            let config = DnsPingConfig {
                dns_query: "_p._tcp.grid".to_owned(),
                dns_record_type: DnsRecord::Srv,
                dns_address: " 10.96.0.10:53 ".to_owned(),
                probe_transport_ports,
            };
            let source = Source::Dns(Names::new(config, 1..=2));
            let mut harness = Harness::new(Discovery::new(source, DiscoveryConfig::default()));
            harness.stack.handle_connect(harness.now, "demo");
            harness.stack.run(harness.now);
            find(&mut harness);
            let effects = harness.take_effects();
            let [(token, Effect::QueryDns { name, record: DnsRecord::Srv, server })] = &effects[..] else {
                panic!("{effects:?}")
            };
            assert_eq!((&**name, server.as_deref()), ("_p._tcp.grid", Some("10.96.0.10:53")));
            let [seven, eight] = [7, 8].map(|last| IpAddr::from([10, 0, 0, last]));
            let six = "fd00::7".parse().unwrap();
            harness.done(*token, Outcome::Services(vec![(seven, 7900), (eight, 0), (six, 7900)]));
            assert_eq!(asked(&mut harness), expected);
        }
    }

    #[test]
    fn addresses_of_a_given_server_are_asked_at_the_transports_ports() {
        let config = DnsPingConfig {
            dns_query: "grid".to_owned(),
            dns_address: "10.96.0.10".to_owned(),
            ..DnsPingConfig::default()
        };
        let mut harness =
            Harness::new(Discovery::new(Source::Dns(Names::new(config, 1..=2)), DiscoveryConfig::default()));
        harness.stack.handle_connect(harness.now, "demo");
        harness.stack.run(harness.now);
        find(&mut harness);
        let effects = harness.take_effects();
        let [(token, Effect::QueryDns { record: DnsRecord::A, .. })] = &effects[..] else {
            panic!("{effects:?}")
        };
        harness.done(*token, Outcome::Services(vec![([10, 0, 0, 7].into(), 0)]));
        assert_eq!(asked(&mut harness), ["10.0.0.7:1", "10.0.0.7:2"]);
    }

    #[test]
    fn other_record_types_are_refused() {
        use crate::config::Property;
        assert_eq!(DnsRecord::parse("aaaa"), Ok(DnsRecord::Aaaa));
        assert_eq!(DnsRecord::parse("SRV").unwrap().show(), "SRV");
        assert!(DnsRecord::parse("MX").is_err());
    }
}
