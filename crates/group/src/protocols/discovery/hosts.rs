//! TCPPING: finds members at configured hosts. Every request resolves the hosts' names again.

use std::net::IpAddr;

use super::lookups::{LookUps, reachable};
use super::*;
use crate::config::{HostPort, Property};

crate::properties! {
    /// TCPPING's properties.
    TcpPingConfig {
        /// The hosts to ask, as `host[port]`, `host:port` or `host`, separated by commas or white space. The
        /// port is the transport's bind_port if there is none. Each discovery resolves names again; a name that
        /// cannot be resolved is a warning.
        initial_hosts: String = "localhost[7800]".to_owned(),
        /// A file with the hosts, in the form of initial_hosts; `#` begins a comment, which ends with the
        /// line. It is read when the member starts, and replaces initial_hosts.
        initial_hosts_file: String = String::new(),
        /// How many further ports of each host are asked.
        port_range: u16 = 1,
        /// How many addresses of members that are not among the hosts are asked, too.
        max_dynamic_hosts: usize = 2_000,
    }
}

/// The hosts that TCPPING asks.
pub struct Hosts {
    config: TcpPingConfig,
    hosts: Vec<HostPort>,
    pub(super) lookups: LookUps,
    /// The addresses of each name at its last successful look-up.
    resolved: BTreeMap<String, Vec<IpAddr>>,
    /// The last request.
    request: Option<Message>,
    /// The addresses that have it.
    sent: BTreeSet<PhysAddr>,
}

impl Hosts {
    /// Creates a source for members at these hosts, each with `port_range` further ports.
    pub const fn new(config: TcpPingConfig, hosts: Vec<HostPort>) -> Self {
        Self {
            config,
            hosts,
            lookups: LookUps::new("TCPPING"),
            resolved: BTreeMap::new(),
            request: None,
            sent: BTreeSet::new(),
        }
    }

    /// Parses the hosts of `initial_hosts` or of a file. A host without a port has `default_port`.
    ///
    /// # Errors
    ///
    /// If a host has an invalid port, or none and there is no default. The error is a text for the operator.
    pub fn parse(text: &str, default_port: u16) -> Result<Vec<HostPort>, String> {
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
        let items = lines.flat_map(|line| line.split(|c: char| c == ',' || c.is_whitespace()));
        let mut hosts = Vec::new();
        for item in items.filter(|item| !item.is_empty()) {
            let has_port = item.parse::<IpAddr>().is_err() && item.contains(['[', ':']);
            if has_port {
                hosts.extend(<Vec<HostPort> as Property>::parse(item)?);
            } else if default_port == 0 {
                return Err(format!("`{item}` has no port, and bind_port is 0: write {item}[PORT]"));
            } else {
                hosts.push(HostPort { host: item.to_owned(), port: default_port });
            }
        }
        match hosts.iter().find(|host| host.host.is_empty()) {
            Some(host) => Err(format!("`{host}` has no host")),
            None => Ok(hosts),
        }
    }

    pub(super) fn ask(&mut self, cx: &mut Cx<'_>, request: Message) {
        self.request = Some(request);
        self.sent.clear();
        let mut addresses = Vec::new();
        for host in &self.hosts {
            match host.host.parse::<IpAddr>() {
                Ok(ip) => addresses.extend(self.ports(host, &[ip])),
                Err(_) => {
                    let known = self.resolved.get(&host.host).map(Vec::as_slice).unwrap_or_default();
                    addresses.extend(self.ports(host, known));
                    self.lookups.begin_host(cx, &host.host);
                }
            }
        }
        addresses.extend(source::known(cx, self.config.max_dynamic_hosts));
        self.send(cx, addresses);
    }

    pub(super) fn done(&mut self, cx: &mut Cx<'_>, token: Token, outcome: Outcome) {
        let Some((name, found)) = self.lookups.finish(cx.now(), token, outcome) else { return };
        if found.is_empty() {
            return;
        }
        let found = reachable(&name, &found, cx.shared().phys.ip);
        let named = self.hosts.iter().filter(|host| host.host == name);
        let addresses = named.flat_map(|host| self.ports(host, &found)).collect();
        self.resolved.insert(name, found);
        self.send(cx, addresses);
    }

    /// Sends the request to those of the addresses that do not have it.
    fn send(&mut self, cx: &mut Cx<'_>, mut addresses: Vec<PhysAddr>) {
        let Some(request) = &self.request else { return };
        addresses.retain(|address| self.sent.insert(*address));
        source::send_to(cx, request, addresses);
    }

    fn ports(&self, host: &HostPort, ips: &[IpAddr]) -> Vec<PhysAddr> {
        let ports = host.port..=host.port.saturating_add(self.config.port_range);
        ips.iter().flat_map(|ip| ports.clone().map(|port| PhysAddr::new(*ip, port))).collect()
    }

    pub(super) fn disconnect(&mut self) {
        self.lookups.cancel();
        self.request = None;
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

    const TIMEOUT: Duration = Duration::from_secs(2);

    fn harness(hosts: &str) -> Harness {
        let config = TcpPingConfig { port_range: 0, ..TcpPingConfig::default() };
        let source = Source::TcpPing(Hosts::new(config, Hosts::parse(hosts, 7800).unwrap()));
        let mut harness = Harness::new(Discovery::new(source, DiscoveryConfig::default()));
        harness.stack.handle_connect(harness.now, "demo");
        harness.stack.run(harness.now);
        harness
    }

    fn find(harness: &mut Harness) -> Vec<(Token, String)> {
        harness.lower(Event::FindMembers { is_initial: true, timeout: TIMEOUT });
        let effects = harness.take_effects().into_iter();
        let names = effects.map(|(token, effect)| match effect {
            Effect::LookUp { name } => (token, name),
            other => panic!("{other:?}"),
        });
        names.collect()
    }

    fn asked(harness: &mut Harness) -> Vec<String> {
        let sent = harness.take_down();
        sent.iter().map(|message| message.dest.as_ref().expect("an address").to_string()).collect()
    }

    fn unresolved(harness: &Harness) -> String {
        harness.stack.attribute("TCPPING", "unresolved_hosts").unwrap()
    }

    fn four(last: u8) -> Outcome {
        Outcome::Addresses(vec![[10, 0, 0, last].into()])
    }

    #[test]
    fn names_are_resolved_at_every_discovery_and_addresses_are_asked_at_once() {
        let mut harness = harness("127.0.0.1[7802],grid[7800],other,grid[7900]");
        let [(grid, a), (other, b)] = &find(&mut harness)[..] else { panic!("each name once") };
        assert_eq!((&**a, &**b), ("grid", "other"));
        assert_eq!(asked(&mut harness), ["127.0.0.1:7802"]);
        harness.done(*grid, four(7));
        assert_eq!(asked(&mut harness), ["10.0.0.7:7800", "10.0.0.7:7900"]);
        // The names whose look-ups run are not looked up a second time, and their outcomes serve this discovery, too.
        assert_eq!(find(&mut harness).iter().map(|(_, name)| &**name).collect::<Vec<_>>(), ["grid"]);
        assert_eq!(asked(&mut harness), ["127.0.0.1:7802", "10.0.0.7:7800", "10.0.0.7:7900"]);
        harness.done(*other, four(8));
        assert_eq!(asked(&mut harness), ["10.0.0.8:7800"]);
    }

    #[test]
    fn name_that_moves_to_another_address_is_asked_there() {
        let mut harness = harness("grid");
        let first = find(&mut harness);
        harness.done(first[0].0, four(7));
        asked(&mut harness);
        let second = find(&mut harness);
        assert_eq!(asked(&mut harness), ["10.0.0.7:7800"], "it is not known yet");
        harness.done(second[0].0, four(8));
        assert_eq!(asked(&mut harness), ["10.0.0.8:7800"]);
        find(&mut harness);
        assert_eq!(asked(&mut harness), ["10.0.0.8:7800"]);
    }

    #[test]
    fn unresolvable_name_does_not_end_the_discovery_and_counts_once_it_is_resolved() {
        let mut harness = harness("nowhere,grid");
        let found = find(&mut harness);
        harness.done(found[0].0, Outcome::Failed("no such host".to_owned()));
        harness.done(found[1].0, four(7));
        assert_eq!(asked(&mut harness), ["10.0.0.7:7800"]);
        assert_eq!(unresolved(&harness), "nowhere");
        let found = find(&mut harness);
        harness.done(found[0].0, Outcome::Addresses(Vec::new()));
        assert_eq!(unresolved(&harness), "nowhere");
        let found = find(&mut harness);
        asked(&mut harness);
        harness.done(found[0].0, four(8));
        assert_eq!(
            (asked(&mut harness), unresolved(&harness)),
            (vec!["10.0.0.8:7800".to_owned()], String::new())
        );
    }

    #[test]
    fn join_waits_for_a_slow_look_up_and_then_for_responses() {
        let mut harness = harness("grid");
        let found = find(&mut harness);
        harness.advance(TIMEOUT + Duration::from_secs(1));
        assert_eq!(harness.take_up_events(), [], "the join goes on");
        harness.done(found[0].0, four(7));
        assert_eq!(asked(&mut harness), ["10.0.0.7:7800"]);
        harness.advance(TIMEOUT / 2);
        assert_eq!(harness.take_up_events(), []);
        harness.advance(TIMEOUT);
        assert_eq!(harness.take_up_events(), [Event::Found(Vec::new())]);
    }

    #[test]
    fn request_for_a_member_during_a_join_does_not_replace_that_of_the_join() {
        let mut harness = harness("grid");
        let found = find(&mut harness);
        harness.raise(Event::WhoHas(vec![member(9)]));
        asked(&mut harness);
        harness.done(found[0].0, four(7));
        let sent = harness.take_down();
        let [message] = &sent[..] else { panic!("{sent:?}") };
        let data = wire::decode_ping_data(message.payload_bytes().unwrap()).unwrap();
        assert_eq!(data[0].wanted, None);
    }

    #[test]
    fn join_ends_although_a_look_up_does_not() {
        let mut harness = harness("grid");
        find(&mut harness);
        harness.advance(TIMEOUT + EXTENSION * (EXTENSIONS_MAX + 1));
        assert_eq!(harness.take_up_events(), [Event::Found(Vec::new())]);
    }

    #[test]
    fn look_up_that_ends_after_the_member_has_left_is_ignored() {
        let mut harness = harness("grid");
        let found = find(&mut harness);
        harness.stack.handle_disconnect(harness.now);
        harness.stack.run(harness.now);
        harness.done(found[0].0, four(7));
        assert_eq!(asked(&mut harness), [""; 0]);
    }

    #[test]
    fn at_most_max_dynamic_hosts_other_members_are_asked() {
        let config = TcpPingConfig { max_dynamic_hosts: 1, ..TcpPingConfig::default() };
        let source = Source::TcpPing(Hosts::new(config, Vec::new()));
        let mut harness = Harness::new(Discovery::new(source, DiscoveryConfig::default()));
        harness.stack.handle_connect(harness.now, "demo");
        harness.stack.run(harness.now);
        harness.learn(2).learn(3);
        find(&mut harness);
        assert_eq!(asked(&mut harness), [phys(2).to_string()]);
    }

    #[test]
    fn hosts_are_separated_by_commas_and_white_space_and_a_file_has_comments() {
        let text =
            "# all members\na[7801], b:7802\tc\n\n10.0.0.1[7803] # the first\n::1,[::1]:7804,::1[7805]#end";
        let hosts = Hosts::parse(text, 7800).unwrap();
        let expected =
            ["a:7801", "b:7802", "c:7800", "10.0.0.1:7803", "[::1]:7800", "[::1]:7804", "[::1]:7805"];
        assert_eq!(hosts.iter().map(ToString::to_string).collect::<Vec<_>>(), expected);
        assert_eq!(Hosts::parse("", 7800), Ok(Vec::new()));
        assert!(Hosts::parse("a[http]", 7800).unwrap_err().contains("`http`"));
        assert!(Hosts::parse("[7800]", 7800).unwrap_err().contains("has no host"));
        assert!(Hosts::parse("a", 0).unwrap_err().contains("`a` has no port"));
    }
}
