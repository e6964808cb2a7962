//! DNS_PING: finds members through DNS names, such as that of a headless service on Kubernetes. Every request
//! resolves the names again.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use super::lookups::LookUps;
use super::*;

crate::properties! {
    /// DNS_PING's properties.
    DnsPingConfig {
        /// The DNS names, separated by commas.
        dns_query: String = String::new(),
        /// The record type to look up: A (IPv4) or AAAA (IPv6).
        dns_record_type: RecordType = RecordType::A,
    }
}

/// A DNS record type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordType {
    /// IPv4.
    A,
    /// IPv6.
    Aaaa,
}

impl crate::config::Property for RecordType {
    fn parse(text: &str) -> Result<Self, String> {
        match text.trim().to_ascii_uppercase().as_str() {
            "A" => Ok(Self::A),
            "AAAA" => Ok(Self::Aaaa),
            "SRV" => {
                Err("SRV is not supported: use A or AAAA, which a headless service has as well".to_owned())
            }
            other => Err(format!("`{other}` is neither A nor AAAA")),
        }
    }
    fn show(&self) -> String {
        match self {
            Self::A => "A".to_owned(),
            Self::Aaaa => "AAAA".to_owned(),
        }
    }
}

/// The maximum number of addresses learned at run time that get a request, as of TCPPING by default.
const DYNAMIC_HOSTS_MAX: usize = 2_000;

/// The maximum number of addresses per name. Each address may have several ports.
const ADDRESSES_MAX: usize = 2_000;

/// The source of DNS_PING.
pub struct Names {
    config: DnsPingConfig,
    /// The ports to try at each address: those that the transport may bind to.
    ports: RangeInclusive<u16>,
    /// The last request. It is sent to the addresses of the names.
    question: Option<Message>,
    lookups: LookUps,
}

impl Names {
    /// Creates a source for members at these ports.
    pub fn new(config: DnsPingConfig, ports: RangeInclusive<u16>) -> Self {
        Self { config, ports, question: None, lookups: LookUps::new("DNS_PING") }
    }

    pub(super) fn ask(&mut self, cx: &mut Cx<'_>, question: Message) {
        let known = source::known(cx, DYNAMIC_HOSTS_MAX);
        source::send_to(cx, &question, known);
        self.question = Some(question);
        // Look-ups in progress serve this request, too.
        let names = self.config.dns_query.split(',').map(str::trim).filter(|name| !name.is_empty());
        names.for_each(|name| self.lookups.begin(cx, name));
    }

    pub(super) fn done(&mut self, cx: &mut Cx<'_>, token: Token, outcome: Outcome) {
        let Some((_, found)) = self.lookups.finish(cx.now(), token, outcome) else { return };
        let Some(question) = self.question.clone() else { return };
        let is_meant = |ip: &IpAddr| ip.is_ipv4() == (self.config.dns_record_type == RecordType::A);
        let ips = found.into_iter().filter(is_meant).take(ADDRESSES_MAX);
        let places = ips.flat_map(|ip| self.ports.clone().map(move |port| PhysAddr::new(ip, port)));
        let known: BTreeSet<PhysAddr> = source::known(cx, DYNAMIC_HOSTS_MAX).collect();
        let places: Vec<PhysAddr> = places.filter(|place| !known.contains(place)).collect();
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
    use crate::Effect;
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
    fn other_record_types_are_refused() {
        use crate::config::Property;
        assert_eq!(RecordType::parse("aaaa"), Ok(RecordType::Aaaa));
        assert!(RecordType::parse("SRV").unwrap_err().starts_with("SRV is not supported"));
        assert!(RecordType::parse("MX").is_err());
    }
}
