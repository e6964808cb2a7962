//! TCPGOSSIP: finds members through routers. A member registers with every router and requests the other
//! members from them. A router's list is no discovery response: the listed members get a request themselves.

use std::collections::BTreeSet;

use super::router_stubs::{RouterStubs, StubEvent, StubSettings, check_routers};
use super::*;
use crate::config::{HostPort, Properties, PropertyInfo};
use crate::wire::{GossipData, GossipKind};

crate::properties! {
    /// TCPGOSSIP's properties.
    TcpGossipConfig {
        /// The routers, as host:port or host with the port in brackets, separated by commas. 12001 is their
        /// usual port. A name is resolved again at each attempt to connect.
        initial_hosts: String = "localhost[12001]".to_owned(),
        /// The limit for connecting to a router.
        sock_conn_timeout: Duration = Duration::from_millis(1000),
        /// The time after which an unreachable or lost router is tried again.
        reconnect_interval: Duration = Duration::from_secs(10),
    }
}

impl TcpGossipConfig {
    /// Checks the combination.
    ///
    /// # Errors
    ///
    /// The attribute, and why its value is refused.
    pub fn check(&self, routers: usize) -> Result<(), (&'static str, String)> {
        if self.sock_conn_timeout.is_zero() {
            let text = "sock_conn_timeout has to be longer than 0: no connection is that fast";
            return Err(("sock_conn_timeout", text.to_owned()));
        }
        check_routers("initial_hosts", routers, self.reconnect_interval)
    }
}

crate::properties! {
    /// TLS of connections to routers; the edge reads it.
    RouterTls {
        /// Whether connections to routers are encrypted. JGroups' TCPGOSSIP has no TLS.
        enabled: bool = false,
        /// The PEM file with this member's certificates and private key, for routers that require them.
        keystore_path: String = String::new(),
        /// The PEM file with the private key, if `tls.keystore_path` has only certificates.
        key_path: String = String::new(),
        /// The PEM file with the authorities of routers' certificates. `tls.keystore_path` if not set.
        truststore_path: String = String::new(),
        /// The name that routers' certificates must have. The router's name or address in `initial_hosts` if not set.
        server_name: String = String::new(),
        /// TLS versions, separated by commas. All supported ones if not set.
        protocols: String = String::new(),
        /// Cipher suites by Java's names, separated by commas. All supported ones if not set.
        cipher_suites: String = String::new(),
    }
}

const TLS_NAMES: &[(&str, &str)] = &[
    ("tls.enabled", "enabled"),
    ("tls.keystore_path", "keystore_path"),
    ("tls.key_path", "key_path"),
    ("tls.truststore_path", "truststore_path"),
    ("tls.server_name", "server_name"),
    ("tls.protocols", "protocols"),
    ("tls.cipher_suites", "cipher_suites"),
];

/// TCPGOSSIP's attributes for TLS, whose names begin with `tls.`.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct RouterTlsConfig(pub RouterTls);

impl Properties for RouterTlsConfig {
    fn set(&mut self, name: &str, value: &str) -> Option<Result<(), String>> {
        let (_, field) = TLS_NAMES.iter().find(|(own, _)| *own == name)?;
        self.0.set(field, value)
    }

    fn show(&self) -> Vec<(&'static str, String)> {
        let values = self.0.show().into_iter();
        TLS_NAMES.iter().zip(values).map(|((name, _), (_, value))| (*name, value)).collect()
    }

    fn list() -> Vec<PropertyInfo> {
        let fields = RouterTls::list().into_iter();
        TLS_NAMES.iter().zip(fields).map(|((name, _), info)| PropertyInfo { name, ..info }).collect()
    }
}

/// A member's connections to routers, and its last request to their members.
pub struct Routers {
    config: TcpGossipConfig,
    pub(super) stubs: RouterStubs,
    /// The last request, and its time. It is sent to the members that routers list soon after it.
    question: Option<(Message, Time)>,
    /// The members that the last request was sent to.
    asked: BTreeSet<PhysAddr>,
}

/// Members that one discovery asks: any client can register more at a router.
const ASKED_MAX: usize = 2_000;

/// A router may be slow, and must not have a member ask others at any time.
const LIST_TIME_MAX: Duration = Duration::from_secs(10);

impl Routers {
    /// Creates the source for these routers, without connections.
    pub fn new(hosts: Vec<HostPort>, config: TcpGossipConfig) -> Self {
        let settings = StubSettings {
            protocol: "TCPGOSSIP",
            connect_timeout: config.sock_conn_timeout,
            // Messages do not depend on routers.
            first_pause: config.reconnect_interval,
            reconnect_interval: config.reconnect_interval,
            timer: RECONNECT,
            is_transport: false,
        };
        Self { config, stubs: RouterStubs::new(hosts, settings), question: None, asked: BTreeSet::new() }
    }

    pub(super) fn connect(&mut self, cx: &mut Cx<'_>) {
        self.stubs.connect(cx);
    }

    pub(super) fn disconnect(&mut self, cx: &mut Cx<'_>) {
        self.question = None;
        self.stubs.disconnect(cx);
    }

    pub(super) fn reach(&mut self, cx: &mut Cx<'_>) {
        self.stubs.reach(cx);
    }

    pub(super) fn ask(&mut self, cx: &mut Cx<'_>, question: Message) {
        self.question = Some((question, cx.now()));
        self.asked.clear();
        for index in self.stubs.open() {
            self.stubs.request_members(cx, index);
        }
    }

    /// Handles an outcome. `is_searching`: a discovery waits for the last request.
    pub(super) fn done(&mut self, cx: &mut Cx<'_>, token: Token, outcome: Outcome, is_searching: bool) {
        match self.stubs.done(cx, token, outcome) {
            Some(StubEvent::Connected(index)) if is_searching => self.stubs.request_members(cx, index),
            Some(StubEvent::Frame(_, _, data)) => self.handle_members(cx, &data),
            _ => {}
        }
    }

    fn handle_members(&mut self, cx: &mut Cx<'_>, data: &GossipData) {
        let is_list = matches!(data.kind, GossipKind::Members | GossipKind::LastMembers);
        let is_awaited =
            |at: Time| is_list && data.group == cx.shared().cluster && cx.now().since(at) < LIST_TIME_MAX;
        let Some((question, _)) = self.question.as_ref().filter(|(_, at)| is_awaited(*at)) else { return };
        let local = cx.local().clone();
        let mut places = BTreeSet::new();
        for member in data.members.iter().filter(|member| member.sender != local) {
            cx.book().learn(&member.sender, member.name.as_deref(), member.phys);
            let place = member.phys.filter(|_| self.asked.len() < ASKED_MAX);
            places.extend(place.filter(|&place| self.asked.insert(place)));
        }
        source::send_to(cx, question, places);
    }

    pub(super) fn counts(&self) -> Vec<(StackCount, u64)> {
        self.stubs.counts()
    }

    pub(super) fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.config);
        out.put("num_routers", self.stubs.len());
        out.put("num_routers_connected", self.stubs.open().count());
        out.put("unresolved_hosts", self.stubs.lookups.unresolved());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Harness, member, phys};
    use crate::{ConnId, Effect};

    const TIMEOUT: Duration = Duration::from_secs(2);
    const NEAR: ConnId = ConnId(7);
    const FAR: ConnId = ConnId(8);

    fn started(hosts: &[(&str, u16)]) -> Harness {
        let hosts = hosts.iter().map(|&(host, n)| HostPort { host: host.to_owned(), port: phys(n).port });
        let routers = Routers::new(hosts.collect(), TcpGossipConfig::default());
        let mut harness =
            Harness::new(Discovery::new(Source::TcpGossip(routers), DiscoveryConfig::default()));
        harness.stack.handle_connect(harness.now, "demo");
        harness.stack.run(harness.now);
        harness
    }

    fn connected() -> (Harness, Vec<Token>) {
        let mut harness = started(&[("127.0.0.1", 91), ("127.0.0.1", 92)]);
        let tokens = reached(&mut harness, &[91, 92]);
        (harness, tokens)
    }

    fn reached(harness: &mut Harness, routers: &[u16]) -> Vec<Token> {
        let effects = harness.take_effects();
        let places: Vec<PhysAddr> = routers.iter().map(|&n| phys(n)).collect();
        let attempts: Vec<(Token, PhysAddr)> = effects
            .into_iter()
            .map(|(token, effect)| match effect {
                Effect::Connect { to, own: None, .. } => (token, to),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(attempts.iter().map(|(_, to)| *to).collect::<Vec<_>>(), places);
        attempts.into_iter().map(|(token, _)| token).collect()
    }

    fn written(harness: &mut Harness) -> Vec<(ConnId, GossipKind)> {
        let effects = harness.take_effects().into_iter();
        let frames = effects.map(|(_, effect)| match effect {
            Effect::Write { conn, frame } => {
                let data = wire::decode_gossip(&frame).unwrap();
                assert_eq!(data.group.as_deref(), Some("demo"));
                if data.kind != GossipKind::GetMembers {
                    assert_eq!(data.addr, Some(member(1)));
                }
                (conn, data.kind)
            }
            other => panic!("{other:?}"),
        });
        frames.collect()
    }

    fn members(group: &str, all: &[u64]) -> Outcome {
        let mut data = GossipData::new(GossipKind::LastMembers, Some(group.into()));
        data.members = all
            .iter()
            .map(|&n| PingData {
                sender: member(n),
                is_server: true,
                is_coordinator: false,
                name: None,
                phys: Some(phys(n as u16)),
                wanted: None,
            })
            .collect();
        Outcome::Frame { conn: NEAR, frame: wire::encode_gossip(&data) }
    }

    fn asked(harness: &mut Harness) -> Vec<Option<Address>> {
        harness.take_down().into_iter().map(|message| message.dest).collect()
    }

    #[test]
    fn members_that_a_router_lists_get_a_request_and_count_once_they_respond() {
        let (mut harness, tokens) = connected();
        harness.done(tokens[0], Outcome::Connected(NEAR));
        assert_eq!(written(&mut harness), [(NEAR, GossipKind::Register)]);
        harness.lower(Event::FindMembers { is_initial: true, timeout: TIMEOUT });
        assert_eq!(written(&mut harness), [(NEAR, GossipKind::GetMembers)]);
        assert_eq!(asked(&mut harness), []);
        harness.done(tokens[0], members("other", &[4]));
        harness.done(tokens[0], members("demo", &[1, 2, 3]));
        assert_eq!(asked(&mut harness), [2, 3].map(|n| Some(Address::Ip(phys(n)))));
        let is_found = |event: &Event| matches!(event, Event::Found(_));
        assert!(!harness.take_up_events().iter().any(is_found), "a router's list is no response");
        harness.done(tokens[0], members("demo", &[1, 2, 3, 4]));
        assert_eq!(asked(&mut harness), [Some(Address::Ip(phys(4)))], "each member once");
        harness.advance(TIMEOUT);
        assert!(matches!(&harness.take_up_events()[..], [Event::Found(none)] if none.is_empty()));
        harness.advance(LIST_TIME_MAX - TIMEOUT);
        harness.done(tokens[0], members("demo", &[5]));
        assert_eq!(asked(&mut harness), [], "no discovery waits any more");
    }

    #[test]
    fn a_router_cannot_make_a_member_ask_any_number_of_places() {
        let (mut harness, tokens) = connected();
        harness.done(tokens[0], Outcome::Connected(NEAR));
        harness.lower(Event::FindMembers { is_initial: true, timeout: TIMEOUT });
        let all: Vec<u64> = (100..100 + 2 * ASKED_MAX as u64).collect();
        harness.done(tokens[0], members("demo", &all));
        assert_eq!(asked(&mut harness).len(), ASKED_MAX);
    }

    #[test]
    fn attributes_that_reach_no_router_are_refused() {
        let config = TcpGossipConfig::default();
        assert_eq!(config.check(1), Ok(()));
        assert_eq!(config.check(0).unwrap_err().0, "initial_hosts");
        assert_eq!(config.check(17).unwrap_err().0, "initial_hosts");
        let hasty = TcpGossipConfig { reconnect_interval: Duration::ZERO, ..config.clone() };
        assert_eq!(hasty.check(1).unwrap_err().0, "reconnect_interval");
        let impatient = TcpGossipConfig { sock_conn_timeout: Duration::ZERO, ..config };
        assert_eq!(impatient.check(1).unwrap_err().0, "sock_conn_timeout");
    }

    #[test]
    fn a_router_connected_late_gets_a_request_while_a_discovery_runs() {
        let (mut harness, tokens) = connected();
        harness.lower(Event::FindMembers { is_initial: true, timeout: TIMEOUT });
        assert_eq!(harness.take_effects(), []);
        harness.done(tokens[0], Outcome::Connected(NEAR));
        assert_eq!(written(&mut harness), [(NEAR, GossipKind::Register), (NEAR, GossipKind::GetMembers)]);
        harness.advance(TIMEOUT);
        harness.done(tokens[1], Outcome::Connected(FAR));
        assert_eq!(written(&mut harness), [(FAR, GossipKind::Register)], "no discovery runs any more");
    }

    /// S003-4: a restarted router has lost all registrations.
    #[test]
    fn a_lost_router_is_reconnected_and_gets_the_registration_again() {
        let (mut harness, tokens) = connected();
        harness.done(tokens[0], Outcome::Connected(NEAR));
        harness.done(tokens[1], Outcome::Failed("connection refused".to_owned()));
        harness.take_effects();
        harness.advance(Duration::from_secs(4));
        harness.done(tokens[0], Outcome::Closed { conn: NEAR, is_graceful: true, is_reset: false });
        assert_eq!(harness.take_effects(), [], "not at once");
        harness.advance(Duration::from_secs(10));
        let again = reached(&mut harness, &[92, 91]);
        harness.done(again[1], Outcome::Connected(FAR));
        assert_eq!(written(&mut harness), [(FAR, GossipKind::Register)]);
        // Outcomes of the old attempts are ignored.
        harness.done(tokens[1], Outcome::Connected(ConnId(9)));
        let closed = Effect::Close { conn: ConnId(9), is_graceful: true };
        assert!(matches!(&harness.take_effects()[..], [(_, effect)] if *effect == closed));
    }

    /// One unresolvable name does not end the member, and a name that gets an address later counts.
    #[test]
    fn name_of_a_router_is_resolved_at_each_attempt() {
        let mut harness = started(&[("nowhere", 91), ("127.0.0.1", 92)]);
        let effects = harness.take_effects();
        let [(name, Effect::LookUp { .. }), (other, Effect::Connect { .. })] = &effects[..] else {
            panic!("{effects:?}")
        };
        harness.done(*other, Outcome::Connected(FAR));
        harness.take_effects();
        harness.done(*name, Outcome::Failed("no such host".to_owned()));
        assert_eq!(harness.stack.attribute("TCPGOSSIP", "unresolved_hosts").as_deref(), Some("nowhere"));
        harness.advance(Duration::from_secs(10));
        let effects = harness.take_effects();
        let [(name, Effect::LookUp { .. })] = &effects[..] else { panic!("{effects:?}") };
        harness.done(*name, Outcome::Addresses(vec!["::1".parse().unwrap(), [127, 0, 0, 1].into()]));
        reached(&mut harness, &[91]);
    }

    /// An unreachable address does not hide the others, and two names of one router are one registration.
    #[test]
    fn each_attempt_takes_the_next_address_that_no_other_router_has() {
        let mut harness = started(&[("routers", 91), ("127.0.0.1", 91)]);
        let look_up = |harness: &mut Harness| {
            let effects = harness.take_effects();
            let name = effects.iter().find(|(_, effect)| matches!(effect, Effect::LookUp { .. }));
            name.unwrap_or_else(|| panic!("{effects:?}")).0
        };
        let name = look_up(&mut harness);
        let all = || Outcome::Addresses([1, 2, 3].map(|n| [127, 0, 0, n].into()).into());
        harness.done(name, all());
        let attempted = |harness: &mut Harness| match &harness.take_effects()[..] {
            [(token, Effect::Connect { to, .. })] => (*token, to.ip),
            other => panic!("{other:?}"),
        };
        let (token, first) = attempted(&mut harness);
        assert_eq!(first, Some([127, 0, 0, 2].into()));
        harness.done(token, Outcome::Failed("refused".to_owned()));
        harness.advance(Duration::from_secs(10));
        let name = look_up(&mut harness);
        harness.done(name, all());
        assert_eq!(attempted(&mut harness).1, Some([127, 0, 0, 3].into()));
    }

    #[test]
    fn a_disconnected_member_ends_its_registration_and_connects_to_no_router() {
        let (mut harness, tokens) = connected();
        harness.done(tokens[0], Outcome::Connected(NEAR));
        harness.take_effects();
        harness.stack.handle_disconnect(harness.now);
        harness.stack.run(harness.now);
        let effects: Vec<Effect> = harness.take_effects().into_iter().map(|(_, effect)| effect).collect();
        let [Effect::Write { conn: NEAR, frame }, Effect::Close { conn: NEAR, is_graceful: true }] =
            &effects[..]
        else {
            panic!("{effects:?}");
        };
        assert_eq!(wire::decode_gossip(frame).unwrap().kind, GossipKind::Unregister);
        harness.done(tokens[1], Outcome::Connected(FAR));
        let closed = Effect::Close { conn: FAR, is_graceful: true };
        assert!(matches!(&harness.take_effects()[..], [(_, effect)] if *effect == closed));
        harness.advance(Duration::from_secs(60));
        assert_eq!(harness.take_effects(), []);
    }

    #[test]
    fn unexpected_router_frames_are_counted_and_ignored() {
        let (mut harness, tokens) = connected();
        harness.done(tokens[0], Outcome::Connected(NEAR));
        harness.take_effects();
        harness.done(tokens[0], Outcome::Frame { conn: NEAR, frame: vec![200; 9].into() });
        // A list without a request, and a frame that only TUNNEL handles.
        harness.done(tokens[0], members("demo", &[2]));
        let suspect = GossipData::new(GossipKind::Suspect, Some("demo".into())).with_member(member(2));
        harness.done(tokens[0], Outcome::Frame { conn: NEAR, frame: wire::encode_gossip(&suspect) });
        assert_eq!((asked(&mut harness), harness.take_effects()), (vec![], vec![]));
    }
}
