//! TCPGOSSIP: finds members through routers. A member registers with every router and requests the other
//! members from them. A router's list is no discovery response: the listed members get a request themselves.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::lookups::{LookUps, reachable};
use super::*;
use crate::config::HostPort;
use crate::wire::{GossipData, GossipKind};
use crate::{ConnId, Effect};

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

/// A member's connections to routers.
pub struct Routers {
    config: TcpGossipConfig,
    all: Vec<Router>,
    pub(super) lookups: LookUps,
    /// The last request. It is sent to the members that routers list.
    question: Option<Message>,
    is_registered: bool,
}

struct Router {
    host: HostPort,
    link: Link,
    /// Whether a warning about its loss was logged.
    is_loss_logged: bool,
}

#[derive(PartialEq, Eq)]
enum Link {
    /// Not connected. The timer starts the next attempt.
    None,
    /// The router's name is being resolved.
    Resolving,
    Connecting(Token),
    Open(Token, ConnId),
}

impl Routers {
    /// Creates the source for these routers, without connections.
    pub fn new(hosts: Vec<HostPort>, config: TcpGossipConfig) -> Self {
        let mut all: Vec<Router> = Vec::new();
        for host in hosts {
            if all.iter().all(|router| router.host != host) {
                all.push(Router { host, link: Link::None, is_loss_logged: false });
            }
        }
        Self { config, all, lookups: LookUps::new("TCPGOSSIP"), question: None, is_registered: false }
    }

    pub(super) fn connect(&mut self, cx: &mut Cx<'_>) {
        self.is_registered = true;
        self.reach(cx);
    }

    pub(super) fn disconnect(&mut self, cx: &mut Cx<'_>) {
        self.is_registered = false;
        self.question = None;
        self.lookups.cancel();
        cx.disarm(RECONNECT);
        let unregister = frame_for(cx, GossipKind::Unregister).with_member(cx.local().clone());
        for router in &mut self.all {
            if let Link::Open(_, conn) = std::mem::replace(&mut router.link, Link::None) {
                cx.request(Effect::Write { conn, frame: wire::encode_gossip(&unregister) });
                cx.request(Effect::Close { conn, is_graceful: true });
            }
        }
    }

    pub(super) fn reach(&mut self, cx: &mut Cx<'_>) {
        let timeout = self.config.sock_conn_timeout;
        for router in self.all.iter_mut().filter(|router| router.link == Link::None) {
            router.link = match router.host.host.parse() {
                Ok(ip) => router.connect(cx, ip, timeout),
                Err(_) => {
                    self.lookups.begin_host(cx, &router.host.host);
                    Link::Resolving
                }
            };
        }
    }

    /// Connects to the routers of a name that has been resolved, each at the first address.
    fn resolved(&mut self, cx: &mut Cx<'_>, name: &str, found: &[(IpAddr, u16)]) {
        let timeout = self.config.sock_conn_timeout;
        let first = reachable(name, found, cx.shared().phys.ip).into_iter().next();
        for router in self.all.iter_mut().filter(|router| router.host.host == name) {
            router.link = match (&router.link, first) {
                (Link::Resolving, Some(ip)) => router.connect(cx, ip, timeout),
                (Link::Resolving, None) => Link::None,
                _ => continue,
            };
        }
        if first.is_none() {
            cx.arm(RECONNECT, self.config.reconnect_interval);
        }
    }

    pub(super) fn ask(&mut self, cx: &mut Cx<'_>, question: Message) {
        self.question = Some(question);
        let conns: Vec<ConnId> = self.all.iter().filter_map(Router::conn).collect();
        conns.into_iter().for_each(|conn| request_members(cx, conn));
    }

    /// Handles an outcome. `is_searching`: a discovery waits for the last request.
    pub(super) fn done(&mut self, cx: &mut Cx<'_>, token: Token, outcome: Outcome, is_searching: bool) {
        match outcome {
            Outcome::Addresses(_) | Outcome::Failed(_) if self.lookups.is_running(token) => {
                if let Some((name, found)) = self.lookups.finish(cx.now(), token, outcome) {
                    self.resolved(cx, &name, &found);
                }
            }
            Outcome::Connected(conn) => {
                let connecting = self.all.iter_mut().find(|router| router.link == Link::Connecting(token));
                let Some(router) = connecting.filter(|_| self.is_registered) else {
                    cx.request(Effect::Close { conn, is_graceful: true });
                    return;
                };
                if std::mem::take(&mut router.is_loss_logged) {
                    tracing::info!(router = %router.host, "TCPGOSSIP: reconnected to the router");
                }
                router.link = Link::Open(token, conn);
                let shared = cx.shared();
                let register = GossipData {
                    name: Some(shared.name.clone()),
                    phys: Some(shared.phys),
                    ..frame_for(cx, GossipKind::Register).with_member(cx.local().clone())
                };
                cx.request(Effect::Write { conn, frame: wire::encode_gossip(&register) });
                if is_searching {
                    request_members(cx, conn);
                }
            }
            Outcome::Frame { conn, frame } if self.all.iter().any(|router| router.conn() == Some(conn)) => {
                match wire::decode_gossip(&frame) {
                    Ok(data) => self.handle_members(cx, &data),
                    Err(error) => cx.count_drop(DropReason::Malformed, |_| format!("from a router: {error}")),
                }
            }
            Outcome::Failed(why) => self.lost(cx, token, &why),
            Outcome::Closed { .. } => self.lost(cx, token, "the connection was closed"),
            _ => {}
        }
    }

    fn handle_members(&mut self, cx: &mut Cx<'_>, data: &GossipData) {
        let is_list = matches!(data.kind, GossipKind::Members | GossipKind::LastMembers);
        let Some(question) = self.question.as_ref().filter(|_| is_list && data.group == cx.shared().cluster)
        else {
            return;
        };
        let local = cx.local().clone();
        let mut places = BTreeSet::new();
        for member in data.members.iter().filter(|member| member.sender != local) {
            cx.book().learn(&member.sender, member.name.as_deref(), member.phys);
            places.extend(member.phys);
        }
        source::send_to(cx, question, places);
    }

    fn lost(&mut self, cx: &mut Cx<'_>, token: Token, why: &str) {
        let is_this = |router: &&mut Router| match router.link {
            Link::Connecting(own) | Link::Open(own, _) => own == token,
            Link::None | Link::Resolving => false,
        };
        let Some(router) = self.all.iter_mut().find(is_this) else { return };
        router.link = Link::None;
        if !std::mem::replace(&mut router.is_loss_logged, true) {
            let again = self.config.reconnect_interval;
            tracing::warn!(router = %router.host, why, ?again, "TCPGOSSIP: cannot reach the router");
        }
        cx.arm(RECONNECT, self.config.reconnect_interval);
    }

    pub(super) fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.config);
        let reached = self.all.iter().filter(|router| router.conn().is_some());
        out.put("num_routers", self.all.len());
        out.put("num_routers_connected", reached.count());
        out.put("unresolved_hosts", self.lookups.unresolved());
    }
}

impl Router {
    fn connect(&self, cx: &mut Cx<'_>, ip: IpAddr, timeout: Duration) -> Link {
        let to = PhysAddr::new(ip, self.host.port);
        Link::Connecting(cx.request(Effect::Connect { to, own: None, timeout }))
    }

    fn conn(&self) -> Option<ConnId> {
        if let Link::Open(_, conn) = self.link { Some(conn) } else { None }
    }
}

fn frame_for(cx: &Cx<'_>, kind: GossipKind) -> GossipData {
    GossipData::new(kind, cx.shared().cluster.clone())
}

fn request_members(cx: &mut Cx<'_>, conn: ConnId) {
    let frame = wire::encode_gossip(&frame_for(cx, GossipKind::GetMembers));
    cx.request(Effect::Write { conn, frame });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Harness, member, phys};

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
        harness.advance(TIMEOUT);
        assert!(matches!(&harness.take_up_events()[..], [Event::Found(none)] if none.is_empty()));
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
        harness.done(tokens[0], Outcome::Closed { conn: NEAR, is_graceful: true });
        assert_eq!(harness.take_effects(), [], "not at once");
        harness.advance(Duration::from_secs(10));
        let again = reached(&mut harness, &[91, 92]);
        harness.done(again[0], Outcome::Connected(FAR));
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
