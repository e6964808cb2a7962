use super::ring::{REPLACED_MAX, REPLACED_PAUSE};
use super::*;
use crate::harness::{Harness, member, phys, view};

pub(super) fn at(n: u16, offset: u16) -> PhysAddr {
    PhysAddr { port: phys(n).port + 100 + offset, ..phys(n) }
}

pub(super) fn harness(numbers: &[u64]) -> Harness {
    let mut harness = Harness::new(FdSock2::new(FdSock2Config::default()));
    harness.stack.handle_connect(harness.now, "demo");
    harness.stack.run(harness.now);
    let (token, effect) = harness.take_effects().remove(0);
    assert_eq!(effect, Effect::Listen { bind: None, ports: vec![7901, 7902, 7903, 7904], external: None });
    harness.done(token, Outcome::Listening(at(1, 0)));
    for &n in numbers {
        harness.learn(n);
    }
    harness.install(view(1, numbers));
    harness.take_up_events();
    harness
}

fn frame(header: FdSock2Header) -> bytes::Bytes {
    let message =
        Message::empty(None).with_header(ProtocolId::FD_SOCK2, HeaderBody::FdSock2(Box::new(header)));
    wire::encode_body(&message)
}

pub(super) fn answer(n: u64) -> bytes::Bytes {
    frame(FdSock2Header::ConnectResponse { cluster: Some("demo".to_owned()), server: member(n) })
}

pub(super) fn watch(harness: &mut Harness, n: u64, conn: u64) -> Token {
    let (token, effect) = harness.take_effects().remove(0);
    assert!(matches!(effect, Effect::Connect { to, .. } if to == at(n as u16, 0)), "{effect:?}");
    let conn = ConnId(conn);
    harness.done(token, Outcome::Connected(conn));
    let effects = harness.take_effects();
    assert!(matches!(&effects[..], [(_, Effect::Write { .. })]), "{effects:?}");
    harness.done(token, Outcome::Frame { conn, frame: answer(n) });
    token
}

fn suspected(harness: &mut Harness) -> Vec<FdSock2Header> {
    harness
        .take_down()
        .into_iter()
        .filter_map(|mut message| match message.headers.take(ProtocolId::FD_SOCK2) {
            Some(HeaderBody::FdSock2(header)) => Some(*header),
            _ => None,
        })
        .collect()
}

pub(super) fn from_member(header: FdSock2Header, n: u64) -> Message {
    Message::empty(None).with_header(ProtocolId::FD_SOCK2, HeaderBody::FdSock2(Box::new(header))).sent_by(n)
}

#[test]
fn the_next_member_is_watched_and_suspected_when_its_connection_breaks() {
    let mut harness = harness(&[1, 2, 3]);
    let token = watch(&mut harness, 2, 7);
    harness.done(token, Outcome::Closed { conn: ConnId(7), is_graceful: false, is_reset: false });
    assert_eq!(suspected(&mut harness), [FdSock2Header::Suspect(vec![member(2)])]);
    assert_eq!(harness.take_up_events(), [Event::Suspect(vec![member(2)])]);
    let effects = harness.take_effects();
    assert!(matches!(effects[0].1, Effect::Connect { to, .. } if to == at(3, 0)), "the next one is watched");
}

#[test]
fn all_ports_of_a_neighbour_are_tried_before_it_is_suspected() {
    let mut harness = harness(&[1, 2]);
    for offset in 0..4 {
        let (token, effect) = harness.take_effects().remove(0);
        assert!(matches!(effect, Effect::Connect { to, .. } if to == at(2, offset)), "{effect:?}");
        assert_eq!(suspected(&mut harness), []);
        harness.done(token, Outcome::Failed("refused".to_owned()));
    }
    assert_eq!(suspected(&mut harness), [FdSock2Header::Suspect(vec![member(2)])]);
}

#[test]
fn another_member_on_the_port_is_not_the_neighbour() {
    let mut harness = harness(&[1, 2]);
    let (token, _) = harness.take_effects().remove(0);
    harness.done(token, Outcome::Connected(ConnId(7)));
    harness.take_effects();
    harness.done(token, Outcome::Frame { conn: ConnId(7), frame: answer(9) });
    let effects = harness.take_effects();
    assert!(matches!(effects[0].1, Effect::Close { conn: ConnId(7), .. }));
    assert!(matches!(effects[1].1, Effect::Connect { to, .. } if to == at(2, 1)));
}

#[test]
fn a_silent_neighbour_is_tried_on_the_next_port() {
    let mut harness = harness(&[1, 2]);
    let (token, _) = harness.take_effects().remove(0);
    harness.done(token, Outcome::Connected(ConnId(7)));
    harness.take_effects();
    harness.advance(Duration::from_secs(1));
    assert!(matches!(harness.take_effects()[1].1, Effect::Connect { to, .. } if to == at(2, 1)));
}

#[test]
fn a_connect_request_is_answered_with_cluster_and_address() {
    let mut harness = harness(&[1]);
    let token = Token { layer: 1, number: 0 };
    harness.done(token, Outcome::Accepted { conn: ConnId(4), peer: at(2, 0) });
    harness.done(token, Outcome::Frame { conn: ConnId(4), frame: frame(FdSock2Header::Connect(member(9))) });
    let effects = harness.take_effects();
    let Effect::Write { conn: ConnId(4), frame } = &effects[0].1 else { panic!("{effects:?}") };
    let empty = wire::message_type(&crate::Payload::Empty);
    let mut message = wire::decode_body(empty, frame).unwrap();
    let Some(HeaderBody::FdSock2(header)) = message.headers.take(ProtocolId::FD_SOCK2) else { panic!() };
    assert_eq!(
        *header,
        FdSock2Header::ConnectResponse { cluster: Some("demo".to_owned()), server: member(1) }
    );
}

#[test]
fn a_connection_that_the_neighbour_opened_serves_both() {
    let mut harness = harness(&[1]);
    let token = Token { layer: 1, number: 0 };
    harness.done(token, Outcome::Accepted { conn: ConnId(4), peer: at(2, 0) });
    harness.done(token, Outcome::Frame { conn: ConnId(4), frame: frame(FdSock2Header::Connect(member(1))) });
    harness.take_effects();
    harness.learn(2);
    harness.install(view(2, &[1, 2]));
    assert!(matches!(harness.take_effects()[..], [(_, Effect::Write { conn: ConnId(4), .. })]));
}

#[test]
fn suspicions_are_repeated_until_the_suspect_is_gone_or_alive() {
    for is_alive in [true, false] {
        let mut harness = harness(&[1, 2, 3]);
        let token = watch(&mut harness, 2, 7);
        assert_eq!(harness.count(StackCount::Suspicions), 0);
        harness.done(token, Outcome::Closed { conn: ConnId(7), is_graceful: false, is_reset: false });
        assert_eq!(harness.count(StackCount::Suspicions), 1);
        harness.advance(Duration::from_secs(5));
        assert_eq!(suspected(&mut harness).len(), 2);
        if is_alive {
            harness.lower(Event::Unsuspect(vec![member(2)]));
            assert_eq!(suspected(&mut harness), [FdSock2Header::Unsuspect(vec![member(2)])]);
        } else {
            harness.install(view(2, &[1, 3]));
        }
        harness.advance(Duration::from_secs(60));
        assert_eq!(suspected(&mut harness), []);
    }
}

#[test]
fn only_the_member_that_would_lead_passes_a_suspicion_up() {
    let mut harness = harness(&[2, 3, 1]);
    let header = FdSock2Header::Suspect(vec![member(2)]);
    let mut message =
        Message::empty(None).with_header(ProtocolId::FD_SOCK2, HeaderBody::FdSock2(Box::new(header)));
    message.src = Some(member(3));
    harness.up(message.clone());
    assert_eq!(harness.take_up_events(), []);
    message
        .headers
        .put(ProtocolId::FD_SOCK2, HeaderBody::FdSock2(Box::new(FdSock2Header::Suspect(vec![member(3)]))));
    harness.up(message);
    assert_eq!(harness.take_up_events(), [Event::Suspect(vec![member(2), member(3)])]);
}

/// The message that withdraws it can be lost.
#[test]
fn a_suspicion_that_is_not_repeated_is_forgotten() {
    let suspects = |harness: &Harness| harness.stack.attribute("FD_SOCK2", "suspects").unwrap();
    let mut harness = harness(&[3, 2, 1]);
    for _ in 0..3 {
        harness.up(from_member(FdSock2Header::Suspect(vec![member(2)]), 3));
        harness.advance(Duration::from_secs(10));
        assert_ne!(suspects(&harness), "{}", "two of three may be lost");
    }
    harness.advance(Duration::from_secs(5));
    assert_eq!(suspects(&harness), "{}");
    assert_eq!(harness.take_up_events(), [Event::Unsuspect(vec![member(2)])]);
    harness.up(from_member(FdSock2Header::Suspect(vec![member(3)]), 2));
    assert_eq!(harness.take_up_events(), [], "2 would lead, since it is not suspected any more");
}

/// GMS may keep a suspicion until it leads, while the suspect's response to this member was lost.
#[test]
fn a_suspicion_withdrawn_by_another_member_is_withdrawn_above() {
    let mut harness = harness(&[3, 2, 1]);
    harness.up(from_member(FdSock2Header::Suspect(vec![member(2), member(3)]), 2));
    assert_eq!(harness.take_up_events(), [Event::Suspect(vec![member(2), member(3)])]);
    harness.up(from_member(FdSock2Header::Unsuspect(vec![member(3), member(1)]), 2));
    assert_eq!(harness.take_up_events(), [Event::Unsuspect(vec![member(3)])]);
    harness.up(from_member(FdSock2Header::Unsuspect(vec![member(3)]), 2));
    assert_eq!(harness.take_up_events(), [], "they know");
}

#[test]
fn with_the_longest_interval_a_received_suspicion_holds_forever() {
    let config = FdSock2Config { suspect_msg_interval: Duration::MAX, ..FdSock2Config::default() };
    let mut harness = Harness::new(FdSock2::new(config));
    harness.install(view(1, &[3, 2, 1])).up(from_member(FdSock2Header::Suspect(vec![member(2)]), 3));
    harness.advance(Duration::from_secs(3_600));
    assert_ne!(harness.stack.attribute("FD_SOCK2", "suspects").unwrap(), "{}");
}

#[test]
fn a_suspicion_detected_here_does_not_expire() {
    let mut harness = harness(&[1, 2, 3]);
    let token = watch(&mut harness, 2, 7);
    harness.up(from_member(FdSock2Header::Suspect(vec![member(2)]), 3));
    harness.done(token, Outcome::Closed { conn: ConnId(7), is_graceful: false, is_reset: false });
    harness.advance(Duration::from_secs(60)).take_up_events();
    harness.advance(Duration::from_secs(5));
    assert_eq!(harness.take_up_events(), [Event::Suspect(vec![member(2)])]);
}

#[test]
fn an_external_address_is_advertised_with_its_port_if_it_has_one() {
    let ip = IpAddr::from([10, 9, 9, 9]);
    for (addr, port, wanted) in
        [(Some(ip), 0, Some((ip, None))), (Some(ip), 5, Some((ip, Some(5)))), (None, 5, None)]
    {
        let config = FdSock2Config { external_addr: addr, external_port: port, ..FdSock2Config::default() };
        let mut harness = Harness::new(FdSock2::new(config));
        harness.stack.handle_connect(harness.now, "demo");
        harness.stack.run(harness.now);
        let effects = harness.take_effects();
        assert!(
            matches!(effects[0].1, Effect::Listen { external, .. } if external.map(|it| (it.ip, it.port)) == wanted),
            "{effects:?}"
        );
    }
}

#[test]
fn garbage_closes_the_connection_and_nothing_else() {
    let mut harness = harness(&[1]);
    let token = Token { layer: 1, number: 0 };
    harness.done(token, Outcome::Accepted { conn: ConnId(4), peer: at(2, 0) });
    harness.done(token, Outcome::Frame { conn: ConnId(4), frame: vec![0xff; 20].into() });
    assert!(matches!(harness.take_effects()[..], [(_, Effect::Close { conn: ConnId(4), .. })]));
}

#[test]
fn leaving_closes_the_listener_and_every_connection() {
    let mut harness = harness(&[1, 2]);
    watch(&mut harness, 2, 7);
    harness.lower(Event::Disconnect);
    let effects: Vec<Effect> = harness.take_effects().into_iter().map(|(_, effect)| effect).collect();
    assert_eq!(effects, [Effect::CloseListener, Effect::Close { conn: ConnId(7), is_graceful: true }]);
}

fn connects(harness: &mut Harness) -> Vec<(Token, PhysAddr)> {
    let effects = harness.take_effects().into_iter();
    effects
        .filter_map(|(token, effect)| match effect {
            Effect::Connect { to, .. } => Some((token, to)),
            _ => None,
        })
        .collect()
}

#[test]
fn a_graceful_close_alone_is_no_suspicion() {
    let mut harness = harness(&[1, 2]);
    let token = watch(&mut harness, 2, 7);
    harness.done(token, Outcome::Closed { conn: ConnId(7), is_graceful: true, is_reset: false });
    assert_eq!(suspected(&mut harness), []);
    harness.install(view(2, &[1])).advance(Duration::from_secs(10));
    assert_eq!(suspected(&mut harness), [], "it has left");
}

#[test]
fn a_member_that_closes_gracefully_and_stays_is_watched_again() {
    let mut harness = harness(&[1, 2]);
    let token = watch(&mut harness, 2, 7);
    harness.done(token, Outcome::Closed { conn: ConnId(7), is_graceful: true, is_reset: false });
    harness.advance(Duration::from_secs(1));
    for offset in 0..4 {
        let (token, to) = connects(&mut harness)[0];
        assert_eq!(to, at(2, offset));
        harness.done(token, Outcome::Failed("refused".to_owned()));
    }
    assert_eq!(suspected(&mut harness), [FdSock2Header::Suspect(vec![member(2)])]);
}

/// Member 2 answers on the connection, whose end is then its only suspicion.
fn watches_through(harness: &mut Harness, token: Token, conn: ConnId) {
    harness.done(token, Outcome::Frame { conn, frame: answer(2) });
    harness.advance(Duration::from_secs(10));
    assert_eq!(suspected(harness), []);
    harness.done(token, Outcome::Closed { conn, is_graceful: false, is_reset: false });
    assert_eq!(suspected(harness).len(), 1, "it is watched through the connection that is left");
}

#[test]
fn a_connection_replaced_by_the_neighbours_own_is_no_crash() {
    for is_asked in [false, true] {
        let mut harness = harness(&[1, 2]);
        let (token, _) = connects(&mut harness)[0];
        let accepted = Outcome::Accepted { conn: ConnId(8), peer: at(2, 0) };
        if is_asked {
            harness.done(token, Outcome::Connected(ConnId(7)));
            harness.done(token, accepted);
            harness.done(token, Outcome::Closed { conn: ConnId(7), is_graceful: true, is_reset: false });
        } else {
            harness.done(token, accepted);
            harness.done(token, Outcome::Failed("the peer connected first".to_owned()));
        }
        let effects = harness.take_effects();
        assert!(matches!(effects.last(), Some((_, Effect::Write { conn: ConnId(8), .. }))), "{effects:?}");
        watches_through(&mut harness, token, ConnId(8));
    }
}

#[test]
fn connection_that_the_neighbour_ends_in_order_for_its_own_is_no_crash() {
    let mut harness = harness(&[1, 2]);
    let (token, _) = connects(&mut harness)[0];
    harness.done(token, Outcome::Connected(ConnId(7)));
    harness.done(token, Outcome::Closed { conn: ConnId(7), is_graceful: true, is_reset: false });
    assert_eq!(connects(&mut harness), [], "another port of its host would refuse");
    harness.done(token, Outcome::Accepted { conn: ConnId(8), peer: at(2, 0) });
    harness.advance(REPLACED_PAUSE);
    watches_through(&mut harness, token, ConnId(8));
}

#[test]
fn neighbour_that_ends_each_connection_in_order_is_suspected_at_last() {
    let mut harness = harness(&[1, 2]);
    for conn in 0..=u64::from(REPLACED_MAX) {
        assert_eq!(suspected(&mut harness), []);
        let (token, to) = connects(&mut harness)[0];
        assert_eq!(to, at(2, 0));
        harness.done(token, Outcome::Connected(ConnId(conn)));
        harness.done(token, Outcome::Closed { conn: ConnId(conn), is_graceful: true, is_reset: false });
        harness.advance(REPLACED_PAUSE);
    }
    for offset in 1..4 {
        let (token, to) = connects(&mut harness)[0];
        assert_eq!(to, at(2, offset));
        harness.done(token, Outcome::Failed("refused".to_owned()));
    }
    assert_eq!(suspected(&mut harness), [FdSock2Header::Suspect(vec![member(2)])]);
}

#[test]
fn garbage_from_the_neighbour_ends_the_watch() {
    let mut harness = harness(&[1, 2]);
    let token = watch(&mut harness, 2, 7);
    harness.done(token, Outcome::Frame { conn: ConnId(7), frame: vec![0xff; 20].into() });
    assert_eq!(suspected(&mut harness), [FdSock2Header::Suspect(vec![member(2)])]);
}

#[test]
fn only_suspicions_detected_here_are_repeated() {
    let mut harness = harness(&[1, 2, 3]);
    let token = watch(&mut harness, 2, 7);
    harness.up(from_member(FdSock2Header::Suspect(vec![member(3)]), 2));
    harness.take_up_events();
    harness.done(token, Outcome::Closed { conn: ConnId(7), is_graceful: false, is_reset: false });
    assert_eq!(suspected(&mut harness), [FdSock2Header::Suspect(vec![member(2)])]);
    assert_eq!(harness.take_up_events(), [Event::Suspect(vec![member(2), member(3)])]);
}

#[test]
fn a_member_that_becomes_first_acts_on_older_suspicions() {
    let mut harness = harness(&[3, 1, 2]);
    let token = watch(&mut harness, 2, 7);
    harness.done(token, Outcome::Closed { conn: ConnId(7), is_graceful: false, is_reset: false });
    assert_eq!(harness.take_up_events(), [], "3 leads");
    harness.install(view(2, &[1, 2]));
    harness.take_up_events();
    harness.advance(Duration::from_secs(5));
    assert_eq!(harness.take_up_events(), [Event::Suspect(vec![member(2)])]);
}

#[test]
fn a_living_member_that_cannot_be_reached_is_tried_once_per_connect_timeout() {
    for numbers in [&[1, 2][..], &[1, 2, 3]] {
        let mut harness = harness(numbers);
        let mut attempts = 0;
        for _ in 0..10 {
            while let Some((token, _)) = connects(&mut harness).pop()
                && attempts <= 200
            {
                attempts += 1;
                harness.done(token, Outcome::Failed("refused".to_owned()));
                harness.lower(Event::Unsuspect(numbers.iter().map(|&n| member(n)).collect()));
            }
            harness.advance(Duration::from_secs(1));
        }
        let most = 4 * 10 * (numbers.len() - 1);
        assert!((36..=most).contains(&attempts), "{attempts} attempts on {numbers:?}");
    }
}

#[test]
fn a_port_of_another_member_is_tried_over_its_existing_connection() {
    let mut harness = harness(&[1]);
    let token = Token { layer: 1, number: 0 };
    harness.done(token, Outcome::Accepted { conn: ConnId(4), peer: at(2, 1) });
    harness.learn(2).install(view(2, &[1, 2]));
    let (token, to) = connects(&mut harness)[0];
    assert_eq!(to, at(2, 0));
    harness.done(token, Outcome::Failed("refused".to_owned()));
    assert!(matches!(harness.take_effects()[..], [(_, Effect::Write { conn: ConnId(4), .. })]));
    harness.done(token, Outcome::Frame { conn: ConnId(4), frame: answer(3) });
    let effects = harness.take_effects();
    assert!(matches!(effects[..], [(_, Effect::Connect { to, .. })] if to == at(2, 2)), "{effects:?}");
}

#[test]
fn ports_wrap_at_max_port_and_stay_above_min_port() {
    let ports = |port, min_port, max_port| {
        FdSock2Config { min_port, max_port, ..FdSock2Config::default() }.ports_beside(port)
    };
    assert_eq!(ports(7800, 1024, 65536), [7900, 7901, 7902, 7903]);
    assert_eq!(ports(65434, 1024, 65536), [65534, 65535, 1024, 1025]);
    assert_eq!(ports(65434, 2000, 65536), [65534, 65535, 2000, 2001]);
    assert_eq!(ports(59898, 1024, 60000), [59998, 59999, 1024, 1025]);
}

#[test]
fn a_listener_reported_after_leaving_is_ignored() {
    let mut harness = Harness::new(FdSock2::new(FdSock2Config::default()));
    harness.stack.handle_connect(harness.now, "demo");
    harness.stack.run(harness.now);
    let (token, _) = harness.take_effects().remove(0);
    harness.lower(Event::Disconnect).take_effects();
    harness.done(token, Outcome::Listening(at(1, 0)));
    harness.stack.handle_connect(harness.now, "demo");
    harness.stack.run(harness.now);
    harness.learn(2).install(view(1, &[1, 2]));
    assert_eq!(connects(&mut harness), [], "the new listener's address is not known yet");
}
