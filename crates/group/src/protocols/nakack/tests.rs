use std::time::Duration;

use super::*;
use crate::harness::{Harness, digest, member, view};
use crate::window::FIRST_REQUEST_DELAY;
use crate::{Object, Payload, SeqnoList, Transient};

const TICK: Duration = Duration::from_secs(1);

fn joined() -> Harness {
    let config = NakAckConfig { use_mcast_xmit: false, ..NakAckConfig::default() };
    let mut harness = Harness::new(NakAck::new(NakAckKind::NakAck2, config));
    harness.install(view(1, &[1, 2])).become_server();
    harness
}

fn from(src: u64, header: NakAckHeader, value: i64) -> Message {
    Message::new(None, Payload::Long(value))
        .with_header(ProtocolId::NAKACK2, HeaderBody::NakAck2(header))
        .sent_by(src)
}

fn data(src: u64, seqno: u64) -> Message {
    from(src, NakAckHeader::Msg { seqno }, seqno as i64)
}

fn values(messages: &[Message]) -> Vec<i64> {
    messages
        .iter()
        .map(|message| if let Payload::Long(value) = message.payload { value } else { -1 })
        .collect()
}

#[test]
fn multicasts_are_numbered_from_one() {
    let mut harness = joined();
    harness.send_batch(vec![Message::bytes(None, "a"), Message::bytes(None, "b")]);
    let headers: Vec<_> =
        harness.take_down().iter().map(|message| message.headers.get(ProtocolId::NAKACK2).cloned()).collect();
    let numbered = |seqno| Some(HeaderBody::NakAck2(NakAckHeader::Msg { seqno }));
    assert_eq!(headers, [numbered(1), numbered(2)]);
}

#[test]
fn unreliable_and_unicast_messages_pass_unnumbered() {
    let mut harness = joined();
    harness.send(Message::bytes(None, "a").with_flags(Flags::NO_RELIABILITY));
    harness.send(Message::bytes(Some(member(2)), "b"));
    assert!(harness.take_down().iter().all(|message| message.headers.0.is_empty()));
}

#[test]
fn messages_are_delivered_in_order_and_once() {
    let mut harness = joined();
    harness.up_batch(vec![data(2, 2), data(2, 1), data(2, 1), data(2, 3)]);
    assert_eq!(values(&harness.take_up()), [1, 2, 3]);
    assert_eq!(harness.stack.shared().drops.total(DropReason::Duplicate), 1);
}

#[test]
fn messages_of_non_members_are_dropped() {
    let mut harness = joined();
    harness.up(data(3, 1));
    assert_eq!(harness.take_up(), []);
    assert_eq!(harness.stack.shared().drops.total(DropReason::NotMember), 1);
}

#[test]
fn a_missing_message_is_requested_early_and_again_in_the_second_round() {
    let mut harness = joined();
    harness.up(data(2, 3));
    assert_eq!(harness.take_down(), []);
    assert_eq!(harness.count(StackCount::RetransmissionRequestsSent), 0);
    harness.advance(FIRST_REQUEST_DELAY);
    let soon = harness.take_down();
    assert_eq!(harness.count(StackCount::RetransmissionRequestsSent), 1);
    harness.advance(TICK - FIRST_REQUEST_DELAY);
    assert_eq!(harness.take_down(), []);
    harness.advance(TICK);
    let requests = harness.take_down();
    assert_eq!((requests.len(), &requests), (1, &soon));
    assert_eq!((requests[0].dest.clone(), requests[0].flags), (Some(member(2)), Flags::OOB | Flags::NO_FC));
    let mut wanted = SeqnoList::new(1, 2);
    wanted.add(1);
    wanted.add(2);
    assert_eq!(requests[0].payload, Payload::Object(Box::new(Object::SeqnoList(wanted))));
}

#[test]
fn a_late_message_is_not_requested() {
    let mut harness = joined();
    harness.up(data(2, 3));
    harness.advance(FIRST_REQUEST_DELAY / 2);
    harness.up_batch(vec![data(2, 1), data(2, 2)]);
    harness.advance(TICK * 3);
    assert_eq!((values(&harness.take_up()), harness.take_down()), (vec![1, 2, 3], vec![]));
}

#[test]
fn a_request_is_answered_by_xmit_rsp_to_the_requester() {
    let mut harness = joined();
    harness.send(Message::bytes(None, "a"));
    harness.take_down();
    let mut list = SeqnoList::new(1, 2);
    list.add(1);
    list.add(2);
    let mut request = Message::object(Some(member(1)), Object::SeqnoList(list)).with_header(
        ProtocolId::NAKACK2,
        HeaderBody::NakAck2(NakAckHeader::XmitReq { sender: Box::new(member(1)) }),
    );
    request.src = Some(member(2));
    assert_eq!(harness.count(StackCount::RetransmissionRequestsReceived), 0);
    harness.up(request);
    let answers = harness.take_down();
    assert_eq!(answers.len(), 1, "only sent messages");
    assert_eq!(harness.count(StackCount::RetransmissionRequestsReceived), 1);
    assert_eq!(harness.count(StackCount::RetransmittedMessages), 1);
    assert_eq!((answers[0].dest.clone(), answers[0].src.clone()), (Some(member(2)), Some(member(1))));
    let rsp = HeaderBody::NakAck2(NakAckHeader::XmitRsp { seqno: 1 });
    assert_eq!(answers[0].headers.get(ProtocolId::NAKACK2), Some(&rsp));
}

#[test]
fn an_xmit_rsp_becomes_a_multicast_again() {
    let mut harness = joined();
    harness.up(data(2, 2));
    let mut rsp = from(2, NakAckHeader::XmitRsp { seqno: 1 }, 1);
    rsp.dest = Some(member(1));
    harness.up(rsp);
    let delivered = harness.take_up();
    assert_eq!(values(&delivered), [1, 2]);
    assert!(delivered.iter().all(Message::is_multicast));
}

#[test]
fn the_last_seqno_is_announced_once_when_nothing_follows() {
    let mut harness = joined();
    harness.send(Message::bytes(None, "a"));
    harness.take_down();
    harness.advance(TICK);
    assert_eq!(harness.take_down(), [], "a message was sent since the last tick");
    harness.advance(TICK * 5);
    let sent = harness.take_down();
    assert_eq!(sent.len(), 1);
    let last = HeaderBody::NakAck2(NakAckHeader::HighestSeqno { seqno: 1 });
    assert_eq!(sent[0].headers.get(ProtocolId::NAKACK2), Some(&last));
    assert!(sent[0].transient.has(Transient::DONT_LOOPBACK));
}

#[test]
fn an_announced_seqno_that_is_missing_is_requested_at_once() {
    let mut harness = joined();
    harness.up(from(2, NakAckHeader::HighestSeqno { seqno: 7 }, 0));
    assert_eq!(harness.take_down().len(), 1);
    assert_eq!(harness.take_up(), []);
}

#[test]
fn messages_that_arrive_while_joining_are_handled_after_the_join() {
    let config = NakAckConfig::default();
    let mut harness = Harness::new(NakAck::new(NakAckKind::NakAck2, config));
    harness.up_batch(vec![data(2, 6), data(2, 5)]);
    assert_eq!(harness.take_up(), []);
    harness.set_digest(digest(&[(2, 5, 5), (1, 0, 0)])).install(view(1, &[2, 1])).become_server();
    assert_eq!(values(&harness.take_up()), [6], "5 is covered by the digest");
}

#[test]
fn digests_follow_the_rules_of_join_merge_and_state() {
    let mut harness = joined();
    harness.up(data(2, 1));
    let row = |harness: &Harness| match harness.stack.ask(&Query::DigestOf(&member(2))) {
        Some(Answer::Digest(digest)) => digest.get(&member(2)).unwrap().highest_delivered,
        other => panic!("{other:?}"),
    };
    harness.set_digest(digest(&[(2, 9, 9)]));
    assert_eq!(row(&harness), 1, "an existing window stays");
    harness.merge_digest(digest(&[(2, 5, 5)]));
    assert_eq!(row(&harness), 5);
    harness.merge_digest(digest(&[(2, 3, 3)]));
    assert_eq!(row(&harness), 5, "a merge never goes back");
    harness.overwrite_digest(digest(&[(2, 2, 2)]));
    assert_eq!(row(&harness), 2);
}

#[test]
fn stable_messages_are_forgotten() {
    let mut harness = joined();
    harness.send_batch(vec![Message::bytes(None, "a"), Message::bytes(None, "b")]);
    harness.stable(digest(&[(1, 1, 2), (2, 0, 0)]));
    assert_eq!(harness.stack.attribute("NAKACK2", "size_of_all_messages_sent").unwrap(), "1");
}

#[test]
fn nakack4_waits_for_the_slowest_member_and_resumes_in_order() {
    let config = NakAckConfig { capacity: 4, ..NakAckConfig::default() };
    let mut harness = Harness::new(NakAck::new(NakAckKind::NakAck4, config));
    harness.install(view(1, &[1, 2])).become_server();
    harness.send_batch((0..6).map(|n| Message::new(None, Payload::Long(n))).collect());
    assert_eq!(values(&harness.take_down()), [0, 1, 2, 3]);
    assert_eq!(harness.stack.queued_bytes(None), 4, "two compressed longs of two bytes");
    let mut ack = Message::empty(Some(member(1)))
        .with_header(ProtocolId::NAKACK4, HeaderBody::NakAck4(NakAckHeader::Ack { seqno: 3 }));
    ack.src = Some(member(2));
    harness.up(ack.clone());
    assert_eq!(harness.take_down(), [], "this member's acknowledgement is missing");
    ack.src = Some(member(1));
    harness.up(ack);
    assert_eq!(values(&harness.take_down()), [4, 5]);
}

/// S000-3: the stack has no flow control.
#[test]
fn nakack4_acknowledges_consumed_messages() {
    let config = NakAckConfig { capacity: 8, ..NakAckConfig::default() };
    let mut harness = Harness::new(NakAck::new(NakAckKind::NakAck4, config));
    harness.install(view(1, &[1, 2])).become_server();
    let data = |seqno: u64| {
        Message::bytes(None, vec![0; 10])
            .with_header(ProtocolId::NAKACK4, HeaderBody::NakAck4(NakAckHeader::Msg { seqno }))
            .sent_by(2)
    };
    harness.up_batch((1..=4).map(data).collect());
    assert_eq!(harness.take_down(), []);
    harness.consumed(&member(2), true, 10);
    assert_eq!(harness.take_down(), [], "one of four is below the threshold of two");
    harness.consumed(&member(2), true, 20);
    let acks = harness.take_down();
    assert_eq!(acks.len(), 1);
    let ack = HeaderBody::NakAck4(NakAckHeader::Ack { seqno: 3 });
    assert_eq!(acks[0].headers.get(ProtocolId::NAKACK4), Some(&ack));
}

#[test]
fn this_members_row_is_part_of_every_digest() {
    let mut harness = joined();
    harness.send(Message::bytes(None, "x")).send(Message::bytes(None, "y"));
    for query in [Query::Digest, Query::DigestOf(&member(1))] {
        let Some(Answer::Digest(digest)) = harness.stack.ask(&query) else {
            panic!("no answer to {query:?}")
        };
        assert_eq!(digest.get(&member(1)).map(|row| row.highest_received), Some(2));
    }
}

/// A joiner's digest may be older than the last purge.
#[test]
fn nakack4_answers_requests_for_messages_acknowledged_by_all() {
    let config = NakAckConfig { use_mcast_xmit: false, ..NakAckConfig::default() };
    let mut harness = Harness::new(NakAck::new(NakAckKind::NakAck4, config));
    harness.install(view(1, &[1])).become_server();
    harness.send_batch((0..3).map(|_| Message::bytes(None, "x")).collect());
    for mut own in harness.take_down() {
        own.transient |= Transient::LOOPED_BACK;
        harness.up(own);
    }
    harness.consumed(&member(1), true, 3).advance(TICK);
    harness.install(view(2, &[1, 2])).take_down();
    let mut list = SeqnoList::new(1, 3);
    [1, 2, 3].into_iter().for_each(|seqno| assert!(list.add(seqno)));
    let mut request = Message::object(Some(member(1)), Object::SeqnoList(list));
    request.src = Some(member(2));
    request
        .headers
        .put(ProtocolId::NAKACK4, HeaderBody::NakAck4(NakAckHeader::XmitReq { sender: Box::new(member(1)) }));
    harness.up(request);
    let sent = harness.take_down();
    let answers = sent.iter().filter(|message| message.dest == Some(member(2)) && message.length() == 0);
    assert_eq!(answers.count(), 3, "{sent:?}");
}

#[test]
fn messages_of_a_removed_and_readded_member_are_not_delivered_twice() {
    let mut harness = joined();
    harness.up_batch((1..=5).map(|seqno| data(2, seqno)).collect());
    assert_eq!(harness.take_up().len(), 5);
    harness.install(view(2, &[1])).install(view(3, &[1, 2]));
    harness.up_batch((1..=6).map(|seqno| data(2, seqno)).collect());
    assert_eq!(values(&harness.take_up()), [6]);
}

/// Otherwise its first messages would count as the previous process' ones.
#[test]
fn a_restarted_member_continues_numbering_after_the_row_of_its_previous_process() {
    for kind in [NakAckKind::NakAck2, NakAckKind::NakAck3, NakAckKind::NakAck4] {
        let config = NakAckConfig { capacity: 2, ..NakAckConfig::default() };
        let mut harness = Harness::new(NakAck::new(kind, config));
        harness.set_digest(digest(&[(2, 5, 5), (1, 300, 302)])).install(view(2, &[2, 1])).become_server();
        let sent = |harness: &mut Harness| -> Vec<Option<u64>> {
            let sent = harness.take_down();
            sent.iter().map(|message| message.headers.get(kind.id()).and_then(seqno_of)).collect()
        };
        harness
            .send(Message::bytes(None, "a"))
            .send(Message::bytes(None, "b"))
            .send(Message::bytes(None, "c"));
        let first = sent(&mut harness);
        assert_eq!(first[..2], [Some(303), Some(304)], "{kind:?}");
        harness.merge_digest(digest(&[(2, 5, 5), (1, 304, 304)]));
        harness.merge_digest(digest(&[(2, 5, 5), (1, 400, 400)]));
        // No seqnos are left after this one.
        harness.merge_digest(digest(&[(2, 5, 5), (1, u64::MAX, u64::MAX)]));
        harness.send(Message::bytes(None, "d"));
        let later = sent(&mut harness);
        assert_eq!(later.last(), Some(&Some(if first.len() == 3 { 401 } else { 402 })), "{kind:?}");
    }
}

/// The member comes from another group without a merge.
#[test]
fn nakack2_answers_requests_for_stable_messages() {
    let mut harness = joined();
    harness.send_batch((0..3).map(|_| Message::bytes(None, "x")).collect());
    harness.stable(digest(&[(1, 2, 3), (2, 0, 0)])).take_down();
    let mut list = SeqnoList::new(1, 3);
    [1, 2, 3].into_iter().for_each(|seqno| assert!(list.add(seqno)));
    let mut request = Message::object(Some(member(1)), Object::SeqnoList(list));
    request.src = Some(member(2));
    let header = NakAckHeader::XmitReq { sender: Box::new(member(1)) };
    request.headers.put(ProtocolId::NAKACK2, HeaderBody::NakAck2(header));
    harness.up(request);
    let sent = harness.take_down();
    let lengths: Vec<usize> = sent.iter().map(Message::length).collect();
    assert_eq!(lengths, [0, 0, 1], "two placeholders and the kept message");
}

#[test]
fn nakack4_does_not_wait_for_its_own_copy_without_loopback() {
    let config = NakAckConfig { capacity: 2, ..NakAckConfig::default() };
    let mut harness = Harness::new(NakAck::new(NakAckKind::NakAck4, config));
    harness.install(view(1, &[1])).become_server();
    for _ in 0..5 {
        let mut message = Message::bytes(None, "x");
        message.transient |= Transient::DONT_LOOPBACK;
        harness.send(message);
    }
    assert_eq!((harness.take_down().len(), harness.stack.queued_bytes(None)), (5, 0));
}
