use super::proof::OPEN_ROUNDS_MAX;
use super::tests::{answer, at, from_member, harness, watch};
use super::*;
use crate::harness::{Harness, member, phys, view};
use crate::{Payload, PortState};

const PAUSE: Duration = Duration::from_millis(5);

/// Member 1 leads and watches member 2, whose process dies.
fn with_dead_neighbour() -> Harness {
    let mut harness = harness(&[1, 2]);
    let token = watch(&mut harness, 2, 7);
    die(&mut harness, token, 7);
    harness
}

fn die(harness: &mut Harness, token: Token, conn: u64) {
    harness.done(token, Outcome::Closed { conn: ConnId(conn), is_graceful: false, is_reset: false });
}

fn probes(harness: &mut Harness) -> Vec<(Token, PhysAddr)> {
    let effects = harness.take_effects().into_iter();
    let probe = |(token, effect)| match effect {
        Effect::ProbePort { to, .. } => Some((token, to)),
        _ => None,
    };
    effects.filter_map(probe).collect()
}

fn answer_all(harness: &mut Harness, state: PortState) -> Vec<PhysAddr> {
    let asked = probes(harness);
    for (token, _) in &asked {
        harness.done(*token, Outcome::Port(state));
    }
    asked.into_iter().map(|(_, to)| to).collect()
}

fn proven(harness: &mut Harness) -> Vec<Address> {
    let crashed = |event| match event {
        Event::Crashed(members) => members,
        _ => Vec::new(),
    };
    harness.take_up_events().into_iter().flat_map(crashed).collect()
}

#[test]
fn ended_connection_and_refused_ports_three_times_in_a_row_prove_a_crash() {
    let mut harness = with_dead_neighbour();
    for _ in 0..3 {
        assert_eq!(proven(&mut harness), []);
        assert_eq!(answer_all(&mut harness, PortState::Refused), [at(2, 0)], "{:?}", phys(2));
        harness.advance(PAUSE);
    }
    assert_eq!(proven(&mut harness), [member(2)]);
    assert_eq!(harness.count(StackCount::ProvenCrashes), 1);
    harness.advance(PAUSE * 20);
    assert_eq!(probes(&mut harness), [], "no further probe");
}

#[test]
fn over_tcp_the_transports_port_is_probed_as_well() {
    let mut harness = harness_over_tcp(&[1, 2]);
    let token = watch(&mut harness, 2, 7);
    die(&mut harness, token, 7);
    assert_eq!(answer_all(&mut harness, PortState::Refused), [phys(2), at(2, 0)]);
}

fn harness_over_tcp(numbers: &[u64]) -> Harness {
    let mut harness = harness(numbers);
    harness.has_tcp_port();
    harness
}

#[test]
fn reset_connection_and_close_in_order_prove_nothing() {
    for (is_graceful, is_reset) in [(false, true), (true, false)] {
        let mut harness = harness(&[1, 2]);
        let token = watch(&mut harness, 2, 7);
        harness.done(token, Outcome::Closed { conn: ConnId(7), is_graceful, is_reset });
        assert_eq!(probes(&mut harness), []);
    }
}

#[test]
fn port_that_accepts_or_does_not_answer_leaves_the_suspect_to_the_verification() {
    for (state, most) in [(PortState::Open, OPEN_ROUNDS_MAX), (PortState::Unknown, 1)] {
        let mut harness = with_dead_neighbour();
        answer_all(&mut harness, PortState::Refused);
        harness.advance(PAUSE);
        let mut rounds = 0;
        while !answer_all(&mut harness, state).is_empty() {
            rounds += 1;
            harness.advance(PAUSE * 32);
        }
        assert_eq!(rounds, most);
        assert_eq!(proven(&mut harness), []);
    }
}

#[test]
fn dying_process_may_close_its_ports_after_its_connection() {
    let mut harness = with_dead_neighbour();
    for state in [PortState::Open, PortState::Open] {
        assert_eq!(answer_all(&mut harness, state).len(), 1);
        harness.advance(PAUSE * 4);
    }
    for _ in 0..3 {
        assert_eq!(proven(&mut harness), []);
        answer_all(&mut harness, PortState::Refused);
        harness.advance(PAUSE);
    }
    assert_eq!(proven(&mut harness), [member(2)]);
}

#[test]
fn message_of_the_suspect_begins_the_count_again() {
    let mut harness = with_dead_neighbour();
    for _ in 0..2 {
        answer_all(&mut harness, PortState::Refused);
        harness.advance(PAUSE);
    }
    harness.up(Message::bytes(Some(member(1)), "x").sent_by(2));
    for _ in 0..3 {
        assert_eq!(proven(&mut harness), []);
        answer_all(&mut harness, PortState::Refused);
        harness.advance(PAUSE);
    }
    answer_all(&mut harness, PortState::Refused);
    assert_eq!(proven(&mut harness), [member(2)]);
}

#[test]
fn suspect_that_never_falls_silent_is_not_probed_for_ever() {
    let mut harness = with_dead_neighbour();
    let mut rounds = 0;
    while !answer_all(&mut harness, PortState::Refused).is_empty() {
        rounds += 1;
        harness.advance(PAUSE);
        harness.up(Message::bytes(Some(member(1)), "x").sent_by(2));
    }
    assert_eq!(rounds, 200);
    assert_eq!(proven(&mut harness), []);
}

#[test]
fn suspect_that_answers_the_verification_is_not_probed_again() {
    let mut harness = with_dead_neighbour();
    let asked = probes(&mut harness);
    harness.lower(Event::Unsuspect(vec![member(2)]));
    for (token, _) in asked {
        harness.done(token, Outcome::Port(PortState::Refused));
    }
    harness.advance(PAUSE * 20);
    assert_eq!(probes(&mut harness), []);
    assert_eq!(proven(&mut harness), []);
}

#[test]
fn only_the_member_that_would_lead_probes_and_it_learns_of_the_end_from_the_suspicion() {
    // Member 2 watches member 3, and leads only without member 1.
    let suspicion = |marks: &'static [u8]| {
        let mut message = from_member(FdSock2Header::Suspect(vec![member(3)]), 2);
        message.payload = Payload::Bytes(Some(marks.into()));
        message
    };
    let mut leader = harness(&[1, 2, 3, 4]);
    leader.take_effects();
    leader.up(from_member(FdSock2Header::Suspect(vec![member(3)]), 2));
    leader.up(suspicion(&[0]));
    assert_eq!(probes(&mut leader), [], "the connection did not end in this way");
    leader.up(suspicion(&[1]));
    let all: Vec<PhysAddr> = (0..4).map(|offset| at(3, offset)).collect();
    assert_eq!(answer_all(&mut leader, PortState::Refused), all, "its port is not known");

    let mut other = harness(&[4, 1, 2]);
    let token = watch(&mut other, 2, 7);
    die(&mut other, token, 7);
    assert_eq!(probes(&mut other), []);
    let marks: Vec<_> = other.take_down().into_iter().map(|message| message.payload).collect();
    assert_eq!(marks.last(), Some(&Payload::Bytes(Some(vec![1].into()))));
}

#[test]
fn end_of_the_connection_may_come_after_the_suspicion() {
    let mut harness = harness(&[1, 2, 3]);
    harness.take_effects();
    harness.done(listener(), Outcome::Accepted { conn: ConnId(9), peer: at(3, 0) });
    let connect = Message::empty(None)
        .with_header(ProtocolId::FD_SOCK2, HeaderBody::FdSock2(Box::new(FdSock2Header::Connect(member(1)))));
    let frame = wire::encode_body(&connect.sent_by(3));
    harness.done(listener(), Outcome::Frame { conn: ConnId(9), frame });
    harness.up(from_member(FdSock2Header::Suspect(vec![member(3)]), 2));
    assert_eq!(probes(&mut harness), []);
    die(&mut harness, listener(), 9);
    let all: Vec<PhysAddr> = (0..4).map(|offset| at(3, offset)).collect();
    assert_eq!(answer_all(&mut harness, PortState::Refused), all, "it has named its address itself");
}

#[test]
fn end_of_the_transports_connection_is_evidence_but_no_suspicion() {
    let mut harness = harness(&[1, 2, 3]);
    harness.take_effects();
    harness.raise(Event::StreamEnded(vec![member(3)]));
    assert_eq!(harness.take_up_events(), []);
    assert_eq!(probes(&mut harness), []);
    harness.up(from_member(FdSock2Header::Suspect(vec![member(3)]), 2));
    assert_eq!(probes(&mut harness).len(), 4);
}

/// The layer's first effect.
fn listener() -> Token {
    Token::new(1, 0)
}

#[test]
fn number_of_refused_probes_is_that_of_the_configuration() {
    let config = FdSock2Config { num_refused_probes: 1, ..FdSock2Config::default() };
    let mut layer = FdSock2::new(config);
    layer.ring.ended.note(crate::Time::ZERO, member(2), Some(at(2, 0)));
    let mut harness = Harness::new(layer);
    harness.learn(2);
    harness.install(view(1, &[1, 2, 3])).up(from_member(FdSock2Header::Suspect(vec![member(2)]), 3));
    answer_all(&mut harness, PortState::Refused);
    assert_eq!(proven(&mut harness), [member(2)]);
}

#[test]
fn crash_is_proven_once() {
    let mut harness = with_dead_neighbour();
    for _ in 0..3 {
        answer_all(&mut harness, PortState::Refused);
        harness.advance(PAUSE);
    }
    assert_eq!(proven(&mut harness), [member(2)]);
    harness.raise(Event::StreamEnded(vec![member(2)]));
    assert_eq!(probes(&mut harness), [], "the view without it has not come yet");
    assert_eq!(harness.count(StackCount::ProvenCrashes), 1);
}

#[test]
fn proofs_can_be_switched_off() {
    let mut layer = FdSock2::new(FdSock2Config { num_refused_probes: 0, ..FdSock2Config::default() });
    layer.ring.ended.note(crate::Time::ZERO, member(2), None);
    let mut harness = Harness::new(layer);
    harness.install(view(1, &[1, 2])).up(from_member(FdSock2Header::Suspect(vec![member(2)]), 3));
    assert_eq!(probes(&mut harness), []);
}

#[test]
fn suspect_whose_place_a_new_member_takes_is_left_to_the_verification() {
    let mut harness = with_dead_neighbour();
    answer_all(&mut harness, PortState::Open);
    harness.done(listener(), Outcome::Accepted { conn: ConnId(9), peer: at(2, 0) });
    harness.done(listener(), Outcome::Frame { conn: ConnId(9), frame: answer(5) });
    harness.advance(PAUSE * 32);
    while !answer_all(&mut harness, PortState::Open).is_empty() {
        harness.advance(PAUSE * 32);
    }
    assert_eq!(proven(&mut harness), []);
}
