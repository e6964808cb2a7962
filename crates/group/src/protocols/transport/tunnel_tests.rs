//! TUNNEL against routers that the test plays.

use super::*;
use crate::harness::{self, phys, view};
use crate::wire::{GossipData, GossipKind, decode_gossip, encode_gossip};
use crate::{ConnId, Effect, Indication, PingData, Stack, StackSetup, Version};

const FIRST: ConnId = ConnId(7);
const SECOND: ConnId = ConnId(8);

struct Viewer(Option<View>);

impl Protocol for Viewer {
    fn name(&self) -> &'static str {
        "VIEWER"
    }

    fn id(&self) -> ProtocolId {
        ProtocolId(1999)
    }

    fn operation(&mut self, cx: &mut Cx<'_>, _name: &str, _args: &[&str]) -> Option<Result<String, String>> {
        cx.install(self.0.take()?);
        None
    }
}

/// Member 1 in a view with members 2 and 3.
struct Member {
    stack: Stack,
    now: Time,
    attempts: Vec<Token>,
}

fn member_with(routers: u16, config: TunnelConfig) -> Member {
    let setup = StackSetup {
        local: harness::member(1),
        name: "A".into(),
        phys: phys(1),
        has_multicast: true,
        seed: 1,
        version: Version::V5_5_7,
    };
    let hosts = (0..routers).map(|n| HostPort { host: "127.0.0.1".to_owned(), port: 12001 + n }).collect();
    let layer = TransportLayerConfig::new(TransportKind::Tunnel);
    let transport = Transport::tunnel(layer, config, hosts);
    let viewer = Viewer(Some(view(1, &[1, 2, 3])));
    let mut stack = Stack::new(setup, vec![Box::new(transport), Box::new(viewer)]);
    stack.start(Time::ZERO);
    stack.handle_connect(Time::ZERO, "demo");
    let mut member = Member { stack, now: Time::ZERO, attempts: Vec::new() };
    member.stack.run(Time::ZERO);
    member.stack.operation(Time::ZERO, "VIEWER", "install", &[]);
    member.stack.run(Time::ZERO);
    member.attempts = member.attempts();
    assert_eq!(member.attempts.len(), usize::from(routers));
    member
}

fn connected(routers: u16) -> Member {
    let mut member = member_with(routers, TunnelConfig::default());
    for (nth, conn) in [FIRST, SECOND].into_iter().take(usize::from(routers)).enumerate() {
        member.done(member.attempts[nth], Outcome::Connected(conn));
    }
    member.written();
    member
}

/// A frame that the member wrote.
#[derive(PartialEq, Eq, Debug)]
struct Written {
    conn: ConnId,
    kind: GossipKind,
    dest: Option<Address>,
}

impl Member {
    fn effects(&mut self) -> Vec<(Token, Effect)> {
        std::iter::from_fn(|| self.stack.poll_effect()).collect()
    }

    fn attempts(&mut self) -> Vec<Token> {
        let attempts = self.effects().into_iter().map(|(token, effect)| match effect {
            Effect::Connect { own: None, .. } => token,
            other => panic!("{other:?}"),
        });
        attempts.collect()
    }

    fn done(&mut self, token: Token, outcome: Outcome) {
        self.stack.handle_done(self.now, token, outcome);
        self.stack.run(self.now);
    }

    fn frames(&mut self) -> Vec<(ConnId, GossipData)> {
        let frames = self.effects().into_iter().filter_map(|(_, effect)| match effect {
            Effect::Write { conn, frame } => Some((conn, decode_gossip(&frame).unwrap())),
            Effect::Forward { conn, frame, tail, .. } => {
                let whole = [&frame[..], &tail[..]].concat();
                Some((conn, decode_gossip(&whole.into()).unwrap()))
            }
            _ => None,
        });
        frames.collect()
    }

    fn written(&mut self) -> Vec<Written> {
        let frames = self.frames().into_iter();
        frames.map(|(conn, data)| Written { conn, kind: data.kind, dest: data.addr }).collect()
    }

    fn send(&mut self, dest: Option<u64>) {
        let message = Message::bytes(dest.map(harness::member), "hello");
        self.stack.handle_send(self.now, message);
        self.stack.run(self.now);
    }

    /// A router lists these members.
    fn listed(&mut self, nth: usize, conn: ConnId, members: &[u64]) {
        let mut data = GossipData::new(GossipKind::LastMembers, Some("demo".into()));
        data.members = members
            .iter()
            .map(|&n| PingData {
                sender: harness::member(n),
                is_server: true,
                is_coordinator: false,
                name: None,
                phys: Some(phys(n as u16)),
                wanted: None,
            })
            .collect();
        self.frame(nth, conn, &data);
    }

    fn frame(&mut self, nth: usize, conn: ConnId, data: &GossipData) {
        self.done(self.attempts[nth], Outcome::Frame { conn, frame: encode_gossip(data) });
    }

    fn advance(&mut self, by: Duration) {
        self.now = self.now + by;
        self.stack.handle_timeout(self.now);
        self.stack.run(self.now);
    }

    fn suspected(&mut self) -> Vec<Address> {
        let mut suspected = Vec::new();
        while let Some(indication) = self.stack.poll_indication() {
            if let Indication::Event(Event::Suspect(members)) = indication {
                suspected.extend(members);
            }
        }
        suspected
    }

    fn received(&mut self) -> usize {
        let mut count = 0;
        while let Some(indication) = self.stack.poll_indication() {
            count += match indication {
                Indication::Batch(batch) => batch.messages.len(),
                _ => 0,
            };
        }
        count
    }

    fn attribute(&self, name: &str) -> Option<String> {
        self.stack.attribute("TUNNEL", name)
    }
}

fn message(conn: ConnId, dest: Option<u64>) -> Written {
    Written { conn, kind: GossipKind::Message, dest: dest.map(harness::member) }
}

#[test]
fn packets_go_through_the_router_to_member_addresses() {
    let mut member = connected(1);
    member.send(Some(2));
    assert_eq!(member.written(), [message(FIRST, Some(2))]);
    member.send(None);
    assert_eq!(member.written(), [message(FIRST, None)]);
    assert!(member.stack.poll_transmit().is_none(), "the edge gets nothing");
}

#[test]
fn a_member_registers_and_unregisters_with_name_and_address() {
    let mut member = member_with(1, TunnelConfig::default());
    member.done(member.attempts[0], Outcome::Connected(FIRST));
    let frames = member.frames();
    let (conn, register) = &frames[0];
    assert_eq!((*conn, register.kind), (FIRST, GossipKind::Register));
    assert_eq!(register.addr, Some(harness::member(1)));
    assert_eq!((register.name.as_deref(), register.phys), (Some("A"), Some(phys(1))));
    member.stack.handle_disconnect(member.now);
    member.stack.run(member.now);
    let effects = member.effects();
    let [(_, Effect::Write { frame, .. }), (_, Effect::Close { conn: FIRST, is_graceful: true })] =
        &effects[..]
    else {
        panic!("{effects:?}")
    };
    assert_eq!(decode_gossip(frame).unwrap().kind, GossipKind::Unregister);
}

#[test]
fn packets_before_the_first_connection_are_held_until_it() {
    let mut member = member_with(1, TunnelConfig::default());
    member.send(None);
    assert_eq!(member.written(), []);
    member.done(member.attempts[0], Outcome::Connected(FIRST));
    let kinds: Vec<GossipKind> = member.written().into_iter().map(|written| written.kind).collect();
    assert_eq!(kinds, [GossipKind::Register, GossipKind::GetMembers, GossipKind::Message]);
}

#[test]
fn packets_without_any_router_are_dropped_and_counted() {
    let mut member = member_with(1, TunnelConfig::default());
    member.send(None);
    member.done(member.attempts[0], Outcome::Failed("refused".to_owned()));
    member.send(None);
    assert_eq!(member.attribute("num_packets_without_router").as_deref(), Some("2"));
    assert_eq!(member.attribute("num_routers_connected").as_deref(), Some("0"));
    let counts = member.stack.counts();
    let of = |wanted| counts.iter().find(|(_, count, _)| *count == wanted).map(|(_, _, value)| *value);
    assert_eq!((of(StackCount::Routers), of(StackCount::RoutersConnected)), (Some(1), Some(0)));
}

#[test]
fn attempts_follow_with_growing_pauses_up_to_reconnect_interval() {
    let config = TunnelConfig { reconnect_interval: Duration::from_millis(1600), ..TunnelConfig::default() };
    let mut member = member_with(1, config);
    for pause in [100, 200, 400, 800, 1600, 1600] {
        member.done(member.attempts[0], Outcome::Failed("refused".to_owned()));
        member.advance(Duration::from_millis(pause - 1));
        assert_eq!(member.attempts(), []);
        member.advance(Duration::from_millis(1));
        member.attempts = member.attempts();
        assert_eq!(member.attempts.len(), 1, "{pause}");
    }
    // A router that accepts a connection and closes it, for a certificate perhaps.
    member.done(member.attempts[0], Outcome::Connected(FIRST));
    member.written();
    member.done(member.attempts[0], Outcome::Closed { conn: FIRST, is_graceful: false, is_reset: false });
    member.advance(Duration::from_millis(1599));
    assert_eq!(member.attempts(), []);
    member.advance(Duration::from_millis(1));
    member.attempts = member.attempts();
    member.done(member.attempts[0], Outcome::Connected(FIRST));
    member.listed(0, FIRST, &[1]);
    member.written();
    member.done(member.attempts[0], Outcome::Closed { conn: FIRST, is_graceful: false, is_reset: false });
    member.advance(Duration::from_millis(100));
    assert_eq!(member.attempts().len(), 1, "the pauses begin anew after an answer");
}

#[test]
fn own_multicasts_that_come_back_are_dropped_by_their_sender() {
    let mut member = connected(1);
    member.send(None);
    assert_eq!(member.received(), 1, "looped back by the member itself");
    let frames = member.frames();
    let [(_, own)] = &frames[..] else { panic!("{frames:?}") };
    member.frame(0, FIRST, own);
    assert_eq!(member.received(), 0);
    let of_other = GossipData { sender: Some(harness::member(2)), ..own.clone() };
    member.frame(0, FIRST, &of_other);
    assert_eq!(member.received(), 1, "of another member");
    let elsewhere = GossipData { group: Some("other".into()), ..of_other };
    member.frame(0, FIRST, &elsewhere);
    assert_eq!(member.received(), 0, "of another cluster");
}

#[test]
fn a_member_that_a_router_reports_is_suspected() {
    let mut member = connected(1);
    let suspect =
        |n| GossipData::new(GossipKind::Suspect, Some("demo".into())).with_member(harness::member(n));
    member.frame(0, FIRST, &suspect(2));
    assert_eq!(member.suspected(), [harness::member(2)]);
    member.frame(0, FIRST, &suspect(1));
    assert_eq!(member.suspected(), [], "this member");
    assert_eq!(member.attribute("num_suspect_events").as_deref(), Some("1"));
}

#[test]
fn multicasts_go_through_the_router_with_most_members_and_elsewhere_to_the_others() {
    let mut member = connected(2);
    member.listed(0, FIRST, &[1, 2]);
    member.listed(1, SECOND, &[1, 2, 3]);
    member.written();
    member.send(None);
    assert_eq!(member.written(), [message(SECOND, None)], "it reaches all");
    member.listed(1, SECOND, &[1, 3]);
    member.written();
    member.send(None);
    let written = member.written();
    let [one, other] = &written[..] else { panic!("{written:?}") };
    assert_eq!((one.dest.is_none(), one.conn == other.conn), (true, false));
    let missed = if one.conn == FIRST { 3 } else { 2 };
    assert_eq!(other.dest, Some(harness::member(missed)), "once more for the member that one misses");
    member.send(Some(3));
    assert_eq!(member.written(), [message(SECOND, Some(3))]);
    member.send(Some(2));
    assert_eq!(member.written(), [message(FIRST, Some(2))]);
}

#[test]
fn messages_go_on_through_the_other_router_when_one_is_lost_and_back() {
    let mut member = connected(2);
    member.listed(0, FIRST, &[1, 2, 3]);
    member.listed(1, SECOND, &[1, 2, 3]);
    member.written();
    member.done(member.attempts[0], Outcome::Closed { conn: FIRST, is_graceful: false, is_reset: false });
    member.send(None);
    member.send(Some(2));
    assert_eq!(member.written(), [message(SECOND, None), message(SECOND, Some(2))]);
    // The restarted router has no members yet.
    member.advance(Duration::from_secs(1));
    let again = member.attempts();
    member.attempts[0] = again[0];
    member.done(member.attempts[0], Outcome::Connected(FIRST));
    member.listed(0, FIRST, &[1]);
    member.written();
    member.send(None);
    assert_eq!(member.written(), [message(SECOND, None)]);
}

#[test]
fn the_members_of_several_routers_are_requested_again() {
    let mut member = connected(2);
    member.advance(Duration::from_secs(5));
    let asked = member.written();
    let request = |conn| Written { conn, kind: GossipKind::GetMembers, dest: None };
    assert_eq!(asked, [request(FIRST), request(SECOND)]);
}

/// The connection to a router whose process is stopped stays open.
#[test]
fn a_router_that_does_not_answer_is_closed_if_there_is_another_one() {
    let mut member = connected(2);
    for _ in 0..3 {
        member.listed(0, FIRST, &[1, 2, 3]);
        member.advance(Duration::from_secs(5));
    }
    let closed: Vec<Effect> = member.effects().into_iter().map(|(_, effect)| effect).collect();
    assert!(closed.contains(&Effect::Close { conn: SECOND, is_graceful: false }), "{closed:?}");
    assert!(!closed.contains(&Effect::Close { conn: FIRST, is_graceful: false }), "{closed:?}");
    member.send(None);
    assert_eq!(member.written(), [message(FIRST, None)]);
}

#[test]
fn a_silent_router_is_closed_after_heartbeat_timeout() {
    let (interval, timeout) = (Duration::from_secs(1), Duration::from_secs(3));
    let config =
        TunnelConfig { heartbeat_interval: interval, heartbeat_timeout: timeout, ..TunnelConfig::default() };
    let mut member = member_with(1, config);
    member.done(member.attempts[0], Outcome::Connected(FIRST));
    member.written();
    let heartbeat = || Written { conn: FIRST, kind: GossipKind::Heartbeat, dest: None };
    for _ in 0..3 {
        member.advance(interval);
        assert_eq!(member.written(), [heartbeat()]);
    }
    member.frame(0, FIRST, &GossipData::new(GossipKind::Heartbeat, None));
    for _ in 0..3 {
        member.advance(interval);
        assert_eq!(member.written().len(), 1);
    }
    member.advance(interval);
    let effects = member.effects();
    assert!(
        effects.iter().any(|(_, effect)| *effect == Effect::Close { conn: FIRST, is_graceful: false }),
        "{effects:?}"
    );
    assert_eq!(member.attribute("num_routers_connected").as_deref(), Some("0"));
}

#[test]
fn a_packet_longer_than_routers_take_is_dropped_and_large_payloads_are_not_copied() {
    let mut member = connected(1);
    let payload = Bytes::from(vec![7; 100_000]);
    member.stack.handle_send(member.now, Message::bytes(Some(harness::member(2)), payload.clone()));
    member.stack.run(member.now);
    let effects = member.effects();
    let [(_, Effect::Forward { tail, .. })] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(tail.as_ptr(), payload.as_ptr());
    member.stack.handle_send(member.now, Message::bytes(Some(harness::member(2)), vec![7; 2_000_000]));
    member.stack.run(member.now);
    assert_eq!(member.effects(), []);
    assert_eq!(member.stack.shared().drops.total(DropReason::Unexpected), 1);
}

#[test]
fn physical_destinations_are_unknown() {
    let mut member = connected(1);
    member.stack.handle_send(member.now, Message::bytes(Some(Address::Ip(phys(2))), "hello"));
    member.stack.run(member.now);
    assert_eq!(member.written(), []);
    assert_eq!(member.stack.shared().drops.total(DropReason::UnknownAddress), 1);
}

#[test]
fn wrong_combinations_are_refused() {
    let config = TunnelConfig::default();
    assert_eq!(config.check(17).unwrap_err().0, "gossip_router_hosts");
    assert_eq!(config.check(0).unwrap_err().0, "gossip_router_hosts");
    let second = Duration::from_secs(1);
    let of = |reconnect_interval| TunnelConfig { reconnect_interval, ..config.clone() }.check(1);
    assert_eq!(of(Duration::from_millis(99)).unwrap_err().0, "reconnect_interval");
    assert_eq!(of(Duration::from_millis(100)), Ok(()));
    let without_interval = TunnelConfig { heartbeat_timeout: second, ..config.clone() };
    assert_eq!(without_interval.check(1).unwrap_err().0, "heartbeat_timeout");
    let config = TunnelConfig { heartbeat_interval: second, heartbeat_timeout: second, ..config };
    let (attribute, text) = config.check(1).unwrap_err();
    assert_eq!(attribute, "heartbeat_interval");
    assert!(text.contains("shorter than heartbeat_timeout (1s)"), "{text}");
}
