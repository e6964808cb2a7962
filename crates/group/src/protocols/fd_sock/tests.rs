use super::*;
use crate::Address;
use crate::harness::{Harness, member, phys, view};

fn socket(n: u16) -> PhysAddr {
    PhysAddr { port: 9_000 + n, ..phys(n) }
}

fn options() -> StreamOptions {
    StreamOptions { keep_alive: true, ..StreamOptions::default() }
}

/// A member that listens and has asked for no address yet.
fn listening(config: FdSockConfig) -> Harness {
    let mut harness = Harness::new(FdSock::new(config));
    harness.stack.handle_connect(harness.now, "demo");
    harness.stack.run(harness.now);
    let (token, effect) = harness.take_effects().remove(0);
    assert!(matches!(effect, Effect::ListenStreams { .. }), "{effect:?}");
    harness.done(token, Outcome::Listening(socket(1)));
    harness
}

/// A member of this view that knows the addresses of all server sockets.
fn harness(numbers: &[u64]) -> Harness {
    let mut harness = listening(FdSockConfig::default());
    for &n in numbers.iter().filter(|&&n| n != 1) {
        harness.up(from_member(i_have(n), n));
    }
    harness.install(view(1, numbers));
    if numbers[0] != 1 {
        harness.up(cache_of(numbers[0], &[]));
    }
    harness.take_up_events();
    harness.take_down();
    harness
}

fn i_have(n: u64) -> FdSockHeader {
    FdSockHeader::IHaveSock { member: member(n), address: socket(n as u16) }
}

fn from_member(content: FdSockHeader, n: u64) -> Message {
    Message::empty(None).with_header(ProtocolId::FD_SOCK, header(content)).sent_by(n)
}

fn cache_of(n: u64, members: &[u64]) -> Message {
    let all: Vec<(Address, PhysAddr)> = members.iter().map(|&n| (member(n), socket(n as u16))).collect();
    let payload = wire::encode_socket_addresses(all.iter().map(|(member, address)| (member, *address)));
    Message::bytes(Some(member(1)), payload)
        .with_header(ProtocolId::FD_SOCK, header(FdSockHeader::GetCacheResponse))
        .sent_by(n)
}

/// The destinations and headers of the messages sent.
fn sent(harness: &mut Harness) -> Vec<(Option<Address>, FdSockHeader)> {
    let all = harness.take_down().into_iter();
    all.map(|mut message| match message.headers.take(ProtocolId::FD_SOCK) {
        Some(HeaderBody::FdSock(header)) => (message.dest, *header),
        other => panic!("{other:?}"),
    })
    .collect()
}

fn connects(harness: &mut Harness) -> Vec<(Token, PhysAddr)> {
    let effects = harness.take_effects().into_iter();
    effects
        .filter_map(|(token, effect)| match effect {
            Effect::ConnectStream { to, .. } => Some((token, to)),
            _ => None,
        })
        .collect()
}

fn watch(harness: &mut Harness, n: u64, conn: u64) -> Token {
    let (token, to) = connects(harness)[0];
    assert_eq!(to, socket(n as u16));
    harness.done(token, Outcome::Connected(ConnId(conn)));
    token
}

fn suspects(n: u64) -> (Option<Address>, FdSockHeader) {
    (None, FdSockHeader::Suspect(vec![member(n)]))
}

fn graceful_end(conn: u64) -> [Effect; 2] {
    let conn = ConnId(conn);
    let frame = bytes::Bytes::from_static(&[GRACEFUL_END]);
    [Effect::Write { conn, frame }, Effect::Close { conn, is_graceful: true }]
}

fn effects(harness: &mut Harness) -> Vec<Effect> {
    harness.take_effects().into_iter().map(|(_, effect)| effect).collect()
}

#[test]
fn ports_address_and_options_of_the_server_socket_are_those_that_are_set() {
    let ip = IpAddr::from([10, 9, 9, 9]);
    let config = FdSockConfig {
        start_port: 7_000,
        port_range: 2,
        keep_alive: false,
        external_addr: Some(ip),
        external_port: 5,
        ..FdSockConfig::default()
    };
    let own = IpAddr::from([127, 0, 0, 9]);
    let cases = [
        (FdSockConfig::default(), None, vec![0], None, options()),
        (
            config,
            Some(own),
            vec![7_000, 7_001, 7_002],
            ExternalAddress::configured(Some(ip), 5),
            StreamOptions::default(),
        ),
    ];
    for (config, bind, ports, external, options) in cases {
        let mut harness = Harness::new(FdSock::new(config).bound_to(bind));
        harness.stack.handle_connect(harness.now, "demo");
        harness.stack.run(harness.now);
        assert_eq!(effects(&mut harness), [Effect::ListenStreams { bind, ports, external, options }]);
    }
}

#[test]
fn the_next_member_is_watched_and_suspected_when_its_connection_ends() {
    for is_graceful in [false, true] {
        let mut harness = harness(&[1, 2, 3]);
        let token = watch(&mut harness, 2, 7);
        harness.done(token, Outcome::Closed { conn: ConnId(7), is_graceful, is_reset: false });
        assert_eq!(sent(&mut harness), [suspects(2)], "the end of the stream is no graceful end");
        assert_eq!(harness.take_up_events(), [Event::Suspect(vec![member(2)])]);
        assert_eq!(connects(&mut harness)[0].1, socket(3), "the next one is watched");
        assert_eq!(harness.count(StackCount::Suspicions), 1);
    }
}

#[test]
fn connection_attempt_has_the_time_limit_and_the_options_that_are_set() {
    let config = FdSockConfig {
        sock_conn_timeout: Duration::from_millis(300),
        keep_alive: false,
        ..FdSockConfig::default()
    };
    let mut harness = listening(config);
    harness.up(from_member(i_have(2), 2)).install(view(1, &[1, 2]));
    let (timeout, options) = (Duration::from_millis(300), StreamOptions::default());
    assert_eq!(effects(&mut harness), [Effect::ConnectStream { to: socket(2), timeout, options }]);
}

#[test]
fn a_neighbour_that_cannot_be_reached_is_suspected() {
    let mut harness = harness(&[1, 2]);
    let (token, _) = connects(&mut harness)[0];
    harness.done(token, Outcome::Failed("refused".to_owned()));
    assert_eq!(sent(&mut harness), [suspects(2)]);
    harness.lower(Event::Unsuspect(vec![member(2)]));
    assert_eq!(sent(&mut harness), [(None, FdSockHeader::Unsuspect(vec![member(2)]))]);
    assert_eq!(connects(&mut harness), [], "the next attempt waits");
    harness.advance(Duration::from_secs(1));
    let asks = (Some(member(2)), FdSockHeader::WhoHasSock(member(2)));
    assert_eq!(sent(&mut harness), [asks], "its socket may have another address");
    harness.up(from_member(i_have(2), 2));
    assert_eq!(connects(&mut harness)[0].1, socket(2));
}

#[test]
fn a_graceful_end_alone_is_no_suspicion() {
    let mut harness = harness(&[1, 2]);
    let token = watch(&mut harness, 2, 7);
    harness.done(token, Outcome::Frame { conn: ConnId(7), frame: vec![GRACEFUL_END].into() });
    assert_eq!(effects(&mut harness), [Effect::Close { conn: ConnId(7), is_graceful: false }]);
    harness.install(view(2, &[1])).advance(Duration::from_secs(10));
    assert_eq!(sent(&mut harness), [], "it has left");
}

#[test]
fn a_member_that_ends_gracefully_and_stays_is_watched_again() {
    let mut harness = harness(&[1, 2]);
    let token = watch(&mut harness, 2, 7);
    harness.done(token, Outcome::Frame { conn: ConnId(7), frame: vec![GRACEFUL_END].into() });
    harness.advance(Duration::from_secs(1));
    let (token, to) = connects(&mut harness)[0];
    assert_eq!(to, socket(2));
    harness.done(token, Outcome::Failed("refused".to_owned()));
    assert_eq!(sent(&mut harness), [suspects(2)]);
}

#[test]
fn own_address_is_announced_once() {
    let mut harness = listening(FdSockConfig::default());
    harness.install(view(1, &[1]));
    assert_eq!(sent(&mut harness), [], "there is no other member");
    harness.install(view(2, &[1, 2]));
    let announced = (None, i_have(1));
    let asks = (Some(member(2)), FdSockHeader::WhoHasSock(member(2)));
    assert_eq!(sent(&mut harness), [announced, asks.clone()]);
    harness.install(view(3, &[1, 3, 2]));
    let asks = (Some(member(3)), FdSockHeader::WhoHasSock(member(3)));
    assert_eq!(sent(&mut harness), [asks]);
}

#[test]
fn a_joiner_asks_the_coordinator_for_addresses_as_often_and_as_long_as_set() {
    let config =
        FdSockConfig { num_tries: 2, get_cache_timeout: Duration::from_secs(3), ..FdSockConfig::default() };
    let mut harness = listening(config);
    harness.install(view(1, &[2, 1, 3]));
    let asks = (Some(member(2)), FdSockHeader::GetCache);
    assert_eq!(sent(&mut harness), [(None, i_have(1)), asks.clone()]);
    harness.advance(Duration::from_millis(2_900));
    assert_eq!(sent(&mut harness), []);
    harness.advance(Duration::from_millis(200));
    assert_eq!(sent(&mut harness), [asks]);
    assert_eq!(connects(&mut harness), []);
    harness.advance(Duration::from_secs(3));
    let asks = (Some(member(3)), FdSockHeader::WhoHasSock(member(3)));
    assert_eq!(sent(&mut harness), [asks], "it asks no longer");
}

#[test]
fn response_of_the_coordinator_has_the_address_of_the_neighbour() {
    let mut harness = listening(FdSockConfig::default());
    harness.install(view(1, &[2, 1, 3]));
    harness.take_down();
    harness.up(cache_of(2, &[1, 2, 3]));
    assert_eq!(connects(&mut harness)[0].1, socket(3));
    assert_eq!(sent(&mut harness), []);
    assert_eq!(harness.stack.attribute("FD_SOCK", "actual_bind_port").unwrap(), "9001");
}

#[test]
fn neighbour_is_asked_for_its_address_and_then_all_members_are() {
    let mut harness = listening(FdSockConfig::default());
    harness.install(view(1, &[1, 2, 3]));
    let who_has = |dest: Option<Address>| (dest, FdSockHeader::WhoHasSock(member(2)));
    assert_eq!(sent(&mut harness), [(None, i_have(1)), who_has(Some(member(2)))]);
    harness.advance(Duration::from_millis(500));
    assert_eq!(sent(&mut harness), [who_has(None)]);
    harness.advance(Duration::from_millis(500));
    assert_eq!(sent(&mut harness), []);
    harness.advance(Duration::from_secs(1));
    assert_eq!(sent(&mut harness), [who_has(Some(member(2)))], "it begins again");
    harness.up(from_member(i_have(2), 3));
    assert_eq!(connects(&mut harness)[0].1, socket(2));
}

#[test]
fn known_addresses_are_told_to_members_that_ask() {
    let mut harness = harness(&[1, 2, 3]);
    harness.up(from_member(FdSockHeader::WhoHasSock(member(1)), 2));
    harness.up(from_member(FdSockHeader::WhoHasSock(member(3)), 2));
    harness.up(from_member(FdSockHeader::WhoHasSock(member(9)), 2));
    assert_eq!(sent(&mut harness), [(Some(member(2)), i_have(1)), (Some(member(2)), i_have(3))]);
    harness.up(from_member(FdSockHeader::GetCache, 3));
    let answer = harness.take_down().remove(0);
    let all = wire::decode_socket_addresses(answer.payload_bytes().unwrap()).unwrap();
    let expected: Vec<_> = (1..=3).map(|n| (member(n), socket(n as u16))).collect();
    assert_eq!((answer.dest, all), (Some(member(3)), expected));
}

#[test]
fn member_is_watched_although_made_up_addresses_fill_the_table() {
    let mut harness = listening(FdSockConfig::default());
    harness.install(view(1, &[1, 2]));
    for n in 0..wire::SOCKET_ADDRESSES_MAX as u64 {
        let made_up = FdSockHeader::IHaveSock { member: member(1_000 + n), address: socket(9) };
        harness.up(from_member(made_up, 2));
    }
    assert!(harness.stack.shared().drops.total(DropReason::QueueFull) > 0, "the table is full");
    harness.up(from_member(i_have(2), 2));
    assert_eq!(connects(&mut harness)[0].1, socket(2));
}

#[test]
fn connections_without_time_are_refused() {
    let refused = FdSockConfig { sock_conn_timeout: Duration::ZERO, ..FdSockConfig::default() }.check();
    let (attribute, why) = refused.unwrap_err();
    assert!(attribute == "sock_conn_timeout" && why.contains("longer than 0"), "{why}");
    assert_eq!(FdSockConfig::default().check(), Ok(()));
}

#[test]
fn addresses_of_former_members_are_forgotten() {
    let mut harness = harness(&[1, 2, 3]);
    harness.install(view(2, &[1, 3]));
    harness.take_down();
    harness.up(from_member(FdSockHeader::WhoHasSock(member(2)), 3));
    assert_eq!(sent(&mut harness), []);
}

#[test]
fn no_member_can_change_the_own_address() {
    let mut harness = harness(&[1, 2]);
    let forged = FdSockHeader::IHaveSock { member: member(1), address: socket(9) };
    harness.up(from_member(forged, 2)).up(from_member(FdSockHeader::WhoHasSock(member(1)), 2));
    assert_eq!(sent(&mut harness), [(Some(member(2)), i_have(1))]);
}

#[test]
fn leaving_ends_the_listener_and_every_connection_gracefully() {
    let mut harness = harness(&[1, 2]);
    watch(&mut harness, 2, 7);
    let token = Token { layer: 1, number: 0 };
    harness.done(token, Outcome::Accepted { conn: ConnId(8), peer: phys(2) });
    harness.lower(Event::Disconnect);
    let expected = [vec![Effect::CloseListener], graceful_end(7).to_vec(), graceful_end(8).to_vec()].concat();
    assert_eq!(effects(&mut harness), expected);
}

#[test]
fn a_new_neighbour_replaces_the_watched_one() {
    let mut harness = harness(&[1, 3]);
    watch(&mut harness, 3, 7);
    harness.up(from_member(i_have(2), 2)).install(view(2, &[1, 2, 3]));
    let all = effects(&mut harness);
    assert_eq!(all[..2], graceful_end(7));
    assert!(matches!(all[2..], [Effect::ConnectStream { to, .. }] if to == socket(2)), "{all:?}");
}

#[test]
fn a_connection_that_comes_too_late_is_ended() {
    let mut harness = harness(&[1, 3]);
    let (token, _) = connects(&mut harness)[0];
    harness.install(view(2, &[1]));
    harness.done(token, Outcome::Connected(ConnId(7)));
    assert_eq!(effects(&mut harness), graceful_end(7));
}

#[test]
fn a_watcher_that_ends_is_no_suspicion_and_other_bytes_have_no_meaning() {
    let mut harness = harness(&[1, 2]);
    watch(&mut harness, 2, 7);
    let token = Token { layer: 1, number: 0 };
    harness.done(token, Outcome::Accepted { conn: ConnId(8), peer: phys(2) });
    harness.done(token, Outcome::Frame { conn: ConnId(8), frame: vec![0xff; 20].into() });
    harness.done(token, Outcome::Frame { conn: ConnId(7), frame: vec![0xff; 20].into() });
    assert_eq!(effects(&mut harness), []);
    harness.done(token, Outcome::Frame { conn: ConnId(8), frame: vec![1, GRACEFUL_END].into() });
    assert_eq!(effects(&mut harness), [Effect::Close { conn: ConnId(8), is_graceful: false }]);
    harness.done(token, Outcome::Accepted { conn: ConnId(9), peer: phys(2) });
    harness.done(token, Outcome::Closed { conn: ConnId(9), is_graceful: false, is_reset: false });
    assert_eq!(sent(&mut harness), []);
}

#[test]
fn at_the_bound_of_connections_one_from_a_member_takes_the_place_of_another() {
    let mut harness = harness(&[1, 2]);
    watch(&mut harness, 2, 7);
    let token = Token { layer: 1, number: 0 };
    harness.learn(2);
    let foreign = PhysAddr::new([10, 0, 0, 9].into(), 1);
    for n in 0..CONNECTIONS_MAX as u64 {
        harness.done(token, Outcome::Accepted { conn: ConnId(100 + n), peer: foreign });
    }
    let close = |n| Effect::Close { conn: ConnId(n), is_graceful: false };
    harness.done(token, Outcome::Accepted { conn: ConnId(10), peer: foreign });
    assert_eq!(effects(&mut harness), [close(10)]);
    harness.done(token, Outcome::Accepted { conn: ConnId(11), peer: phys(2) });
    assert_eq!(effects(&mut harness), [close(100)]);
}

#[test]
fn suspicions_are_repeated_in_the_interval_that_is_set() {
    let config = FdSockConfig { suspect_msg_interval: Duration::from_secs(2), ..FdSockConfig::default() };
    let mut harness = listening(config);
    harness.up(from_member(i_have(2), 2)).install(view(1, &[1, 2]));
    let token = watch(&mut harness, 2, 7);
    harness.take_down();
    harness.done(token, Outcome::Closed { conn: ConnId(7), is_graceful: false, is_reset: false });
    assert_eq!(sent(&mut harness), [suspects(2)]);
    harness.advance(Duration::from_millis(1_900));
    assert_eq!(sent(&mut harness), []);
    harness.advance(Duration::from_millis(200));
    assert_eq!(sent(&mut harness), [suspects(2)]);
    harness.install(view(2, &[1])).advance(Duration::from_secs(10));
    assert_eq!(sent(&mut harness), []);
}

#[test]
fn a_suspicion_of_another_member_is_passed_up_by_the_member_that_would_lead() {
    let mut harness = harness(&[2, 1, 3]);
    harness.up(from_member(FdSockHeader::Suspect(vec![member(3)]), 2));
    assert_eq!(harness.take_up_events(), []);
    harness.up(from_member(FdSockHeader::Suspect(vec![member(2)]), 3));
    assert_eq!(harness.take_up_events(), [Event::Suspect(vec![member(2), member(3)])]);
    harness.up(from_member(FdSockHeader::Unsuspect(vec![member(3)]), 2));
    assert_eq!(harness.take_up_events(), [Event::Unsuspect(vec![member(3)])]);
}

#[test]
fn without_a_server_socket_the_neighbour_is_watched_all_the_same() {
    let mut harness = Harness::new(FdSock::new(FdSockConfig::default()));
    harness.stack.handle_connect(harness.now, "demo");
    harness.stack.run(harness.now);
    let (token, _) = harness.take_effects().remove(0);
    harness.done(token, Outcome::Failed("no port is free".to_owned()));
    harness.up(from_member(i_have(2), 2)).install(view(1, &[1, 2]));
    assert_eq!(sent(&mut harness), [], "there is no address to announce");
    assert_eq!(connects(&mut harness)[0].1, socket(2));
}
