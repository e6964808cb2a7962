use std::time::Duration;

use super::*;
use crate::harness::{Harness, member, view};
use crate::retransmission::WINDOW_MAX;
use crate::window::FIRST_REQUEST_DELAY;
use crate::{Object, Payload, SeqnoList, Transient};

const TICK: Duration = Duration::from_millis(500);
const ID: ProtocolId = ProtocolId::UNICAST3;
/// The harness' seed determines the id.
const FIRST: i16 = 26_594;

fn harness() -> Harness {
    let mut harness = Harness::new(Unicast::new(UnicastKind::Unicast3, UnicastConfig::default()));
    harness.install(view(1, &[1, 2, 3]));
    harness
}

fn from(src: u64, header: UnicastHeader, value: i64) -> Message {
    Message::new(Some(member(1)), Payload::Long(value))
        .with_header(ID, HeaderBody::Unicast3(header))
        .sent_by(src)
}

fn data(seqno: u64, conn_id: i16, first: bool) -> Message {
    from(2, UnicastHeader::Data { seqno, conn_id, first }, seqno as i64)
}

fn bytes(seqno: u64, length: usize, kind: UnicastKind) -> Message {
    let header = kind.header(UnicastHeader::Data { seqno, conn_id: 0, first: seqno == 1 });
    Message::bytes(Some(member(1)), vec![0; length]).with_header(kind.id(), header).sent_by(2)
}

fn values(messages: &[Message]) -> Vec<i64> {
    messages
        .iter()
        .map(|message| if let Payload::Long(value) = message.payload { value } else { -1 })
        .collect()
}

fn headers(messages: &[Message]) -> Vec<UnicastHeader> {
    messages.iter().filter_map(|message| message.headers.get(ID).cloned().and_then(unicast_of)).collect()
}

fn to(dest: u64, value: i64) -> Message {
    Message::new(Some(member(dest)), Payload::Long(value))
}

#[test]
fn each_destination_has_a_connection_of_its_own() {
    let mut harness = harness();
    harness.send_batch(vec![to(2, 0), to(3, 0), to(2, 1)]);
    let data = |seqno, conn_id| UnicastHeader::Data { seqno, conn_id, first: seqno == 1 };
    assert_eq!(headers(&harness.take_down()), [data(1, FIRST), data(1, FIRST + 1), data(2, FIRST)]);
}

#[test]
fn messages_are_delivered_in_order_and_acknowledged_at_the_tick() {
    let mut harness = harness();
    harness.up_batch(vec![data(1, 5, true), data(3, 5, false), data(2, 5, false)]);
    assert_eq!(values(&harness.take_up()), [1, 2, 3]);
    assert_eq!(harness.take_down(), []);
    harness.advance(TICK);
    assert_eq!(headers(&harness.take_down()), [UnicastHeader::Ack { seqno: 3, conn_id: 5, timestamp: 1 }]);
}

#[test]
fn a_hundred_messages_are_acknowledged_at_once() {
    let mut harness = harness();
    harness.up_batch((1..=100).map(|seqno| data(seqno, 0, seqno == 1)).collect());
    assert_eq!(headers(&harness.take_down()), [UnicastHeader::Ack { seqno: 100, conn_id: 0, timestamp: 1 }]);
}

#[test]
fn large_messages_are_acknowledged_when_they_are_128_kib() {
    let mut harness = harness();
    let data = |seqno| bytes(seqno, 60_000, UnicastKind::Unicast3);
    let ack = |seqno, timestamp| UnicastHeader::Ack { seqno, conn_id: 0, timestamp };
    // In turn, out of turn, and the message that fills the gap.
    harness.up_batch([1, 2].map(data).into());
    assert_eq!(harness.take_down(), []);
    harness.up_batch(vec![data(3)]);
    assert_eq!(headers(&harness.take_down()), [ack(3, 1)]);
    harness.up_batch([5, 6].map(data).into());
    assert_eq!(headers(&harness.take_down()), []);
    harness.up_batch(vec![data(4)]);
    assert_eq!(headers(&harness.take_down()), [ack(6, 2)]);
}

/// S000-88
#[test]
fn a_lost_first_message_is_requested_and_the_rest_is_kept() {
    let mut harness = harness();
    harness.up_batch(vec![data(2, 0, false), data(3, 0, false)]);
    assert_eq!(harness.take_up(), []);
    assert_eq!(headers(&harness.take_down()), [UnicastHeader::SendFirstSeqno { timestamp: 1 }]);
    harness.up(data(1, 0, true));
    assert_eq!(values(&harness.take_up()), [1, 2, 3]);
}

/// S000-57: the first message may be one that only a merge makes readable.
#[test]
fn a_message_that_does_not_wait_for_its_connection_is_delivered_once_and_acknowledged() {
    for kind in [UnicastKind::Unicast3, UnicastKind::Unicast4] {
        let mut harness = Harness::new(Unicast::new(kind, UnicastConfig::default()));
        harness.install(view(1, &[1, 2]));
        let numbered = |seqno: u64, first| {
            let header = kind.header(UnicastHeader::Data { seqno, conn_id: 0, first });
            Message::new(Some(member(1)), Payload::Long(seqno as i64))
                .with_header(kind.id(), header)
                .sent_by(2)
        };
        let mut ahead = numbered(3, false).with_flags(Flags::OOB);
        ahead.transient |= Transient::BEFORE_CONNECTION;
        harness.up_batch(vec![ahead.clone()]).up_batch(vec![ahead.clone()]);
        assert_eq!(values(&harness.take_up()), [3], "{kind:?}");
        harness.up(numbered(2, false));
        assert_eq!(values(&harness.take_up()), [], "others wait");
        harness.up(numbered(1, true)).up_batch(vec![ahead]);
        let delivered = harness.take_up();
        assert_eq!(values(&delivered), [1, 2]);
        harness.take_down();
        let credit = delivered.iter().map(|message| u64::from(message.credit)).sum();
        harness.consumed(&member(2), false, credit).advance(TICK);
        let acks: Vec<UnicastHeader> = harness
            .take_down()
            .iter()
            .map(|ack| ack.headers.get(kind.id()).cloned().and_then(unicast_of).unwrap())
            .collect();
        assert!(matches!(acks[..], [UnicastHeader::Ack { seqno: 3, .. }]), "{kind:?}: {acks:?}");
    }
}

#[test]
fn a_connection_may_start_at_any_number() {
    let mut harness = harness();
    harness.up_batch(vec![data(7, 3, true), data(8, 3, false)]);
    assert_eq!(values(&harness.take_up()), [7, 8]);
    harness.up(data(1, 4, true));
    assert_eq!(values(&harness.take_up()), [1], "a new connection replaces the old one");
}

#[test]
fn send_first_seqno_resends_the_oldest_message_as_first() {
    let mut harness = harness();
    harness.send_batch(vec![to(2, 1), to(2, 2)]);
    harness.take_down();
    harness.up(from(2, UnicastHeader::Ack { seqno: 1, conn_id: FIRST, timestamp: 1 }, 0));
    harness.up(from(2, UnicastHeader::SendFirstSeqno { timestamp: 2 }, 0));
    harness.up(from(2, UnicastHeader::SendFirstSeqno { timestamp: 2 }, 0));
    let sent = harness.take_down();
    assert_eq!(headers(&sent), [UnicastHeader::Data { seqno: 2, conn_id: FIRST, first: true }], "once");
}

#[test]
fn the_last_unacknowledged_message_is_resent_without_progress() {
    let mut harness = harness();
    harness.send_batch(vec![to(2, 1), to(2, 2)]);
    harness.take_down();
    harness.advance(TICK);
    assert_eq!(harness.take_down(), []);
    harness.advance(TICK);
    assert_eq!(values(&harness.take_down()), [2]);
    harness.up(from(2, UnicastHeader::Ack { seqno: 2, conn_id: FIRST, timestamp: 1 }, 0));
    harness.advance(TICK * 4);
    assert_eq!(harness.take_down(), []);
}

#[test]
fn acknowledgements_of_another_connection_are_ignored() {
    let mut harness = harness();
    harness.send(to(2, 1));
    harness.take_down();
    harness.up(from(2, UnicastHeader::Ack { seqno: 1, conn_id: 9, timestamp: 1 }, 0));
    harness.advance(TICK * 2);
    assert_eq!(values(&harness.take_down()), [1]);
}

#[test]
fn gaps_are_requested_and_requests_are_answered() {
    let mut harness = harness();
    harness.up_batch(vec![data(1, 0, true), data(3, 0, false)]);
    harness.advance(FIRST_REQUEST_DELAY);
    let soon = harness.take_down();
    harness.advance(TICK - FIRST_REQUEST_DELAY);
    harness.take_down();
    harness.advance(TICK);
    let requests = harness.take_down();
    assert_eq!((headers(&requests), &requests), (vec![UnicastHeader::XmitReq], &soon));
    let mut list = SeqnoList::new(2, 1);
    list.add(2);
    assert_eq!(requests[0].payload, Payload::Object(Box::new(Object::SeqnoList(list.clone()))));

    harness.send_batch(vec![to(2, 1), to(2, 2)]);
    harness.take_down();
    let mut request = Message::object(Some(member(1)), Object::SeqnoList(list))
        .with_header(ID, requests[0].headers.get(ID).cloned().unwrap());
    request.src = Some(member(2));
    let counts = |harness: &Harness| {
        use StackCount::{RetransmissionRequestsReceived, RetransmissionRequestsSent, RetransmittedMessages};
        [RetransmissionRequestsSent, RetransmissionRequestsReceived, RetransmittedMessages]
            .map(|count| harness.count(count))
    };
    assert_eq!(counts(&harness), [2, 0, 0]);
    harness.up(request);
    assert_eq!(values(&harness.take_down()), [2]);
    assert_eq!(counts(&harness), [2, 1, 1]);
}

#[test]
fn a_closed_connection_is_forgotten_and_the_peer_gets_a_close() {
    let mut harness = harness();
    harness.send(to(2, 1));
    harness.up(from(2, UnicastHeader::Ack { seqno: 1, conn_id: FIRST, timestamp: 1 }, 0));
    harness.take_down();
    harness.advance(Duration::from_secs(361));
    assert_eq!(headers(&harness.take_down()), [UnicastHeader::Close { conn_id: FIRST }]);
    harness.send(to(2, 1));
    assert_eq!(
        headers(&harness.take_down()),
        [UnicastHeader::Data { seqno: 1, conn_id: FIRST + 1, first: true }]
    );
}

#[test]
fn unicast4_is_at_most_its_capacity_ahead() {
    let config = UnicastConfig { capacity: 4, ..UnicastConfig::default() };
    let mut harness = Harness::new(Unicast::new(UnicastKind::Unicast4, config));
    harness.install(view(1, &[1, 2]));
    harness.send_batch((0..6).map(|n| to(2, n)).collect());
    assert_eq!(values(&harness.take_down()), [0, 1, 2, 3]);
    assert_eq!(
        (harness.stack.queued_bytes(Some(&member(2))), harness.stack.queued_bytes(Some(&member(3)))),
        (4, 0)
    );
    let ack = UnicastHeader::Ack { seqno: 1, conn_id: FIRST, timestamp: 1 };
    let mut ack =
        Message::empty(Some(member(1))).with_header(ProtocolId::UNICAST4, HeaderBody::Unicast4(ack));
    ack.src = Some(member(2));
    harness.up(ack);
    assert_eq!(values(&harness.take_down()), [4]);
}

#[test]
fn unicast4_acknowledges_whenever_a_quarter_of_the_window_is_consumed() {
    let config = UnicastConfig { capacity: 8, ..UnicastConfig::default() };
    let mut harness = Harness::new(Unicast::new(UnicastKind::Unicast4, config));
    harness.install(view(1, &[1, 2]));
    harness.up_batch((1..=8).map(|seqno| bytes(seqno, 10, UnicastKind::Unicast4)).collect());
    assert_eq!(harness.take_down(), [], "nothing is consumed yet");
    let mut acked = Vec::new();
    for _ in 0..8 {
        harness.consumed(&member(2), false, 10);
        for message in harness.take_down() {
            if let Some(HeaderBody::Unicast4(UnicastHeader::Ack { seqno, .. })) =
                message.headers.get(ProtocolId::UNICAST4)
            {
                acked.push(*seqno);
            }
        }
    }
    assert_eq!(acked, [2, 4, 6, 8]);
}

#[test]
fn unicast4_acknowledges_consumed_large_messages() {
    let mut harness = Harness::new(Unicast::new(UnicastKind::Unicast4, UnicastConfig::default()));
    harness.install(view(1, &[1, 2]));
    harness.up_batch((1..=3).map(|seqno| bytes(seqno, 60_000, UnicastKind::Unicast4)).collect());
    assert_eq!(harness.take_down(), [], "nothing is consumed yet");
    harness.consumed(&member(2), false, 120_000);
    assert_eq!(harness.take_down(), []);
    harness.consumed(&member(2), false, 60_000);
    let acks: Vec<_> =
        harness.take_down().iter().map(|ack| ack.headers.get(ProtocolId::UNICAST4).cloned()).collect();
    let ack = UnicastHeader::Ack { seqno: 3, conn_id: 0, timestamp: 1 };
    assert_eq!(acks, [Some(HeaderBody::Unicast4(ack))]);
}

/// The sender does not know it, and some acknowledgements were lost.
#[test]
fn a_continued_forgotten_connection_delivers_no_message_twice() {
    let mut harness = harness();
    harness.up_batch((1..=3).map(|seqno| data(seqno, 0, seqno == 1)).collect());
    assert_eq!(harness.take_up().len(), 3);
    harness.install(view(2, &[1, 3])).advance(Duration::from_secs(241));
    harness.take_down();
    harness.up_batch((2..=4).map(|seqno| data(seqno, 0, seqno == 2)).collect());
    assert_eq!(values(&harness.take_up()), [4]);
}

/// They arrive after the first messages of the next connection.
#[test]
fn late_messages_of_a_forgotten_connection_replace_no_newer_one() {
    let mut harness = harness();
    harness.up_batch(vec![data(1, 5, true), data(2, 5, false)]);
    harness.install(view(2, &[1, 3])).advance(Duration::from_secs(241));
    harness.install(view(3, &[1, 2, 3])).take_up();
    harness.up_batch(vec![data(1, 6, true), data(2, 6, false)]);
    harness.up(data(3, 5, true)).up(data(3, 6, false));
    assert_eq!(values(&harness.take_up()), [1, 2, 3], "of the new connection");
}

#[test]
fn late_messages_of_a_closed_or_replaced_connection_are_delivered_once() {
    let mut harness = harness();
    harness.up(data(1, 4, true)).up(from(2, UnicastHeader::Close { conn_id: 4 }, 0));
    harness.up(data(1, 4, true)).up(data(1, 5, true)).up(data(1, 4, true));
    assert_eq!(values(&harness.take_up()), [1, 1]);
    // An unknown connection may belong to a restarted member; that may be wrong.
    harness.up(data(1, 3, true)).up(data(1, 5, true)).up(data(2, 5, false));
    assert_eq!(values(&harness.take_up()), [1, 2]);
}

#[test]
fn a_forgotten_connection_delivers_no_out_of_band_message_twice() {
    let mut harness = harness();
    let oob = |seqno| data(seqno, 0, false).with_flags(Flags::OOB);
    harness.up(data(1, 0, true)).up_batch(vec![oob(3), oob(4)]);
    assert_eq!(values(&harness.take_up()), [1, 3, 4]);
    harness.install(view(2, &[1, 3])).advance(Duration::from_secs(241));
    harness.take_down();
    harness.up_batch(vec![data(2, 0, true)]).up_batch(vec![oob(3), oob(4), oob(5)]);
    assert_eq!(values(&harness.take_up()), [2, 5]);
}

#[test]
fn a_forgotten_connection_loses_no_message_between_out_of_band_ones() {
    const LAST: u64 = 400;
    let mut harness = harness();
    let any = |seqno| {
        let flags = if seqno % 2 == 0 { Flags::OOB } else { Flags::NONE };
        data(seqno, 0, seqno == 1).with_flags(flags)
    };
    harness.up(any(1));
    (4..=LAST).for_each(|seqno| {
        harness.up(any(seqno));
    });
    let oob: Vec<i64> = (4..=LAST as i64).step_by(2).collect();
    assert_eq!(values(&harness.take_up())[1..], oob);
    harness.install(view(2, &[1, 3])).advance(Duration::from_secs(241));
    harness.take_down();
    harness.up(data(2, 0, true));
    (3..=LAST + 1).for_each(|seqno| {
        harness.up(any(seqno));
    });
    let rest: Vec<i64> = std::iter::once(2).chain((3..=LAST as i64 + 1).step_by(2)).collect();
    assert_eq!(values(&harness.take_up()), rest);
}

#[test]
fn messages_delivered_ahead_are_remembered_for_the_newest_connections() {
    let mut unicast = Unicast::new(UnicastKind::Unicast3, UnicastConfig::default());
    let full = SeqnoList::new(1, WINDOW_MAX as u32);
    let fits = CLOSED_CONNECTION_WORDS_MAX / full.words.len();
    let closed = |n| ClosedConnection { sender: member(n), conn_id: 0, delivered: 7, ahead: full.clone() };
    for n in 0..=fits as u64 {
        unicast.remember(vec![closed(n)]);
    }
    let kept: Vec<_> =
        unicast.closed.iter().map(|closed| (closed.delivered, closed.ahead.size > 0)).collect();
    assert_eq!(kept, [vec![(7, false)], vec![(7, true); fits]].concat());
}

/// Old timestamps and ids do not limit it.
#[test]
fn messages_of_a_restarted_member_are_delivered() {
    let unicast4 = |header: UnicastHeader, value| {
        Message::new(Some(member(1)), Payload::Long(value))
            .with_header(ProtocolId::UNICAST4, HeaderBody::Unicast4(header))
            .sent_by(2)
    };
    let mut harness = Harness::new(Unicast::new(UnicastKind::Unicast4, UnicastConfig::default()));
    harness.install(view(1, &[1, 2])).send(to(2, 1)).take_down();
    let data = |conn_id, value| unicast4(UnicastHeader::Data { seqno: 1, conn_id, first: true }, value);
    harness.up(unicast4(UnicastHeader::SendFirstSeqno { timestamp: 900 }, 0)).up(data(700, 1));
    harness.take_down();
    harness.up(data(600, 2));
    assert_eq!(values(&harness.take_up()), [1], "numbers only rise while it is a member");
    harness.install(view(2, &[1])).install(view(3, &[1, 2]));
    harness.up(unicast4(UnicastHeader::SendFirstSeqno { timestamp: 1 }, 0)).up(data(600, 2));
    assert_eq!((values(&harness.take_up()), values(&harness.take_down())), (vec![2], vec![1]));
}

/// A joiner crashes before it is a member.
#[test]
fn messages_of_a_restarted_non_member_are_delivered() {
    let mut harness = Harness::new(Unicast::new(UnicastKind::Unicast4, UnicastConfig::default()));
    harness.install(view(1, &[1]));
    for (conn_id, value) in [(700, 1), (600, 2)] {
        let header = HeaderBody::Unicast4(UnicastHeader::Data { seqno: 1, conn_id, first: true });
        let mut message =
            Message::new(Some(member(1)), Payload::Long(value)).with_header(ProtocolId::UNICAST4, header);
        message.src = Some(member(2));
        harness.up(message);
    }
    assert_eq!(values(&harness.take_up()), [1, 2]);
}

#[test]
fn a_connection_to_a_non_member_closes() {
    let mut harness = harness();
    harness.send(to(9, 1));
    harness.advance(Duration::from_secs(241)).take_down();
    harness.advance(Duration::from_secs(60));
    assert_eq!(harness.take_down(), [], "no message is resent forever");
}

/// Its sender has closed the connection.
#[test]
fn a_connection_from_a_non_member_closes() {
    let mut harness = harness();
    let from_stranger = |seqno, first| data(seqno, 0, first).sent_by(9);
    harness.up_batch(vec![from_stranger(1, true), from_stranger(3, false)]);
    assert_eq!(harness.stack.attribute("UNICAST3", "window_messages").unwrap(), "2");
    harness.advance(Duration::from_secs(241)).take_down();
    assert_eq!(harness.stack.attribute("UNICAST3", "window_messages").unwrap(), "0");
    harness.advance(Duration::from_secs(60));
    assert_eq!(harness.take_down(), [], "no message is requested forever");
}

/// The sender has forgotten its earlier messages.
#[test]
fn a_connection_with_an_unfilled_gap_is_forgotten() {
    let mut harness = harness();
    harness.up_batch(vec![data(1, 0, true), data(3, 0, false)]);
    harness.advance(Duration::from_secs(200)).take_down();
    assert_eq!(harness.stack.attribute("UNICAST3", "window_messages").unwrap(), "2");
    harness.advance(Duration::from_secs(41)).take_down();
    assert_eq!(harness.stack.attribute("UNICAST3", "window_messages").unwrap(), "0");
}
