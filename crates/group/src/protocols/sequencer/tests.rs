use super::*;
use crate::Payload;
use crate::harness::{Harness, member, view};
use crate::protocols::{FlowConfig, FlowControl, FlowKind, QueueConfig};

fn harness(numbers: &[u64]) -> Harness {
    let config = SequencerConfig { threshold: 2, ..SequencerConfig::default() };
    let mut harness = Harness::new(Sequencer::new(config));
    harness.install(view(1, numbers)).raise(Event::View(view(1, numbers)));
    harness.take_up_events();
    harness
}

fn kinds(harness: &mut Harness) -> Vec<(SequencerKind, u64, Option<Address>)> {
    harness
        .take_down()
        .iter()
        .filter_map(|message| match message.headers.get(ProtocolId::SEQUENCER) {
            Some(HeaderBody::Sequencer(header)) => Some((header.kind, header.seqno, message.dest.clone())),
            _ => None,
        })
        .collect()
}

fn wrapped(from: u64, seqno: u64, broadcaster: u64) -> Message {
    let inner_header = SequencerHeader { kind: SequencerKind::WrappedBcast, seqno, flush_ack: false };
    let mut inner = Message::bytes(None, vec![seqno as u8])
        .with_header(ProtocolId::SEQUENCER, HeaderBody::Sequencer(inner_header));
    inner.src = Some(member(from));
    Message::bytes(None, wire::encode_typed(&inner))
        .with_header(ProtocolId::SEQUENCER, HeaderBody::Sequencer(inner_header))
        .sent_by(broadcaster)
}

#[test]
fn the_coordinator_broadcasts_for_all_members() {
    let mut harness = harness(&[1, 2]);
    harness.send(Message::bytes(None, "own"));
    assert_eq!(kinds(&mut harness), [(SequencerKind::WrappedBcast, 1, None)]);
    let header = SequencerHeader { kind: SequencerKind::Forward, seqno: 5, flush_ack: false };
    let mut forwarded = Message::bytes(Some(member(1)), "theirs")
        .with_header(ProtocolId::SEQUENCER, HeaderBody::Sequencer(header));
    forwarded.src = Some(member(2));
    harness.up(forwarded);
    assert_eq!(kinds(&mut harness), [(SequencerKind::WrappedBcast, 5, None)]);
}

#[test]
fn a_new_participant_sends_one_message_at_a_time_first() {
    let mut harness = harness(&[2, 1]);
    for _ in 0..4 {
        harness.send(Message::bytes(None, "x"));
    }
    let flush = |seqno| (SequencerKind::Flush, seqno, Some(member(2)));
    assert_eq!(kinds(&mut harness), [flush(1)]);
    harness.up(wrapped(1, 1, 2));
    assert_eq!(kinds(&mut harness), [flush(2)]);
    harness.up(wrapped(1, 2, 2));
    let forward = |seqno| (SequencerKind::Forward, seqno, Some(member(2)));
    assert_eq!(kinds(&mut harness), [forward(3), forward(4)]);
    harness.send(Message::bytes(None, "x"));
    assert_eq!(kinds(&mut harness), [forward(5)]);
}

#[test]
fn outstanding_messages_are_resent_to_the_next_coordinator() {
    let mut harness = harness(&[2, 3, 1]);
    harness.send(Message::bytes(None, "x")).take_down();
    harness.install(view(2, &[3, 1])).raise(Event::View(view(2, &[3, 1])));
    assert_eq!(kinds(&mut harness), [(SequencerKind::Flush, 1, Some(member(3)))]);
    harness.advance(Duration::from_millis(500));
    assert_eq!(kinds(&mut harness).len(), 1, "and again until it comes back");
    harness.install(view(3, &[1])).raise(Event::View(view(3, &[1])));
    assert_eq!(kinds(&mut harness), [(SequencerKind::WrappedBcast, 1, None)]);
}

fn merged(id: u64, members: &[u64]) -> View {
    let plain = view(id, members);
    View::merged(plain.id().clone(), plain.members().to_vec(), [])
}

/// The coordinator refused this member's messages before.
#[test]
fn outstanding_messages_are_resent_to_the_same_coordinator_after_a_merge() {
    let mut harness = harness(&[2, 3, 1]);
    harness.send(Message::bytes(None, "x")).take_down();
    harness.install(view(2, &[2, 1])).raise(Event::View(view(2, &[2, 1])));
    assert_eq!(kinds(&mut harness), []);
    harness.install(merged(3, &[2, 3, 1])).raise(Event::View(merged(3, &[2, 3, 1])));
    assert_eq!(kinds(&mut harness), [(SequencerKind::Flush, 1, Some(member(2)))]);
}

/// The third view did not reach this member; the fourth is no merge view.
#[test]
fn outstanding_messages_are_resent_to_the_same_coordinator_after_a_missed_view() {
    let mut harness = harness(&[2, 3, 1]);
    harness.install(view(2, &[2, 3, 1])).raise(Event::View(view(2, &[2, 3, 1])));
    harness.send(Message::bytes(None, "x")).take_down();
    harness.install(view(4, &[2, 3, 1])).raise(Event::View(view(4, &[2, 3, 1])));
    assert_eq!(kinds(&mut harness), [(SequencerKind::Flush, 1, Some(member(2)))]);
}

/// The second copy waited for credits at the coordinator.
#[test]
fn a_message_of_a_departed_member_is_delivered_once() {
    let mut harness = harness(&[2, 3, 1]);
    harness.up(wrapped(3, 1, 2)).install(view(2, &[2, 1])).raise(Event::View(view(2, &[2, 1])));
    harness.up(wrapped(3, 1, 2)).up(wrapped(3, 2, 2));
    assert_eq!(harness.take_up().len(), 2);
    harness.install(merged(3, &[2, 3, 1])).raise(Event::View(merged(3, &[2, 3, 1])));
    harness.up(wrapped(3, 1, 2)).up(wrapped(3, 3, 2));
    assert_eq!(harness.take_up().len(), 1, "and when it has come back");
}

#[test]
fn messages_of_a_joiner_under_a_former_address_are_delivered() {
    let mut harness = harness(&[2, 3, 1]);
    harness.up(wrapped(3, 1, 2)).install(view(2, &[2, 1])).raise(Event::View(view(2, &[2, 1])));
    harness.install(view(3, &[2, 1, 3])).raise(Event::View(view(3, &[2, 1, 3])));
    harness.up(wrapped(3, 1, 2));
    assert_eq!(harness.take_up().len(), 2);
}

/// The third view merged the sender and did not reach this member.
#[test]
fn a_message_of_a_member_returned_by_a_missed_view_is_delivered_once() {
    let mut harness = harness(&[2, 3, 1]);
    harness.up(wrapped(3, 1, 2)).install(view(2, &[2, 1])).raise(Event::View(view(2, &[2, 1])));
    harness.install(view(4, &[2, 1, 3])).raise(Event::View(view(4, &[2, 1, 3])));
    harness.up(wrapped(3, 1, 2)).up(wrapped(3, 2, 2));
    assert_eq!(harness.take_up().len(), 2);
}

/// This member requests the full view of an unknown delta.
#[test]
fn a_message_before_its_senders_first_view_is_delivered_once() {
    let mut harness = harness(&[2, 1]);
    harness.up(wrapped(3, 1, 2)).install(view(2, &[2, 1, 3])).raise(Event::View(view(2, &[2, 1, 3])));
    harness.up(wrapped(3, 1, 2)).up(wrapped(3, 2, 2));
    assert_eq!(harness.take_up().len(), 2);
}

/// GMS installs views at once.
#[test]
fn a_message_before_the_view_with_its_sender_is_delivered_once() {
    let mut harness = harness(&[2, 1]);
    harness.install(view(3, &[2, 1, 3])).up(wrapped(3, 1, 2));
    harness.raise(Event::View(merged(2, &[2, 1]))).raise(Event::View(view(3, &[2, 1, 3])));
    harness.up(wrapped(3, 1, 2)).up(wrapped(3, 2, 2));
    assert_eq!(harness.take_up().len(), 2);
}

#[test]
fn senders_outside_the_view_are_remembered_up_to_the_limit() {
    let mut harness = harness(&[2, 1]);
    for sender in 10..=10 + DEPARTED_SENDERS_MAX as u64 {
        harness.up(wrapped(sender, 1, 2));
    }
    harness.take_up();
    harness.up(wrapped(11, 1, 2)).up(wrapped(10, 1, 2));
    let again: Vec<_> = harness.take_up().into_iter().map(|message| message.src).collect();
    assert_eq!(again, [Some(member(10))]);
}

/// The coordinator's broadcasts continue until it answers the leave.
#[test]
fn a_leaver_delivers_no_message_twice() {
    let mut harness = harness(&[2, 3, 1]);
    harness.up(wrapped(3, 1, 2)).lower(Event::Disconnect);
    harness.up(wrapped(3, 1, 2));
    assert_eq!(harness.take_up().len(), 1);
}

#[test]
fn a_broadcast_message_has_its_own_sender_and_is_delivered_once() {
    let mut harness = harness(&[2, 3, 1]);
    harness.up(wrapped(3, 1, 2)).up(wrapped(3, 1, 2)).up(wrapped(3, 2, 2));
    let delivered = harness.take_up();
    assert_eq!(delivered.len(), 2);
    assert!(delivered.iter().all(|message| message.src == Some(member(3))));
    assert_eq!(harness.stack.shared().drops.total(DropReason::Duplicate), 1);
}

#[test]
fn totally_ordered_messages_are_marked_and_share_no_batch_with_others() {
    let mut harness = harness(&[2, 1]);
    let mut unordered = Message::bytes(None, "unordered");
    unordered.src = Some(member(2));
    unordered.flags |= Flags::NO_TOTAL_ORDER;
    harness.up(wrapped(2, 1, 2)).up(unordered).up(wrapped(1, 1, 2));
    let delivered = harness.take_up();
    let ordered: Vec<_> = delivered.iter().map(Message::is_totally_ordered).collect();
    assert_eq!(ordered, [true, false, true]);
    assert!(!MessageBatch::single(delivered[0].clone()).takes(&delivered[1]));
    assert!(!MessageBatch::single(delivered[1].clone()).takes(&delivered[0]));
}

#[test]
fn unicasts_and_unordered_multicasts_pass() {
    let mut harness = harness(&[2, 1]);
    harness.send(Message::bytes(Some(member(2)), "x"));
    harness.send(Message::bytes(None, "x").with_flags(Flags::OOB));
    harness.send(Message::bytes(None, "x").with_flags(Flags::NO_TOTAL_ORDER));
    assert_eq!(harness.take_down().len(), 3);
}

#[test]
fn the_first_message_of_a_batch_does_not_decide_about_the_others() {
    let unicast = || Message::bytes(Some(member(2)), "x");
    let multicast = || Message::bytes(None, "x");
    for batch in [vec![unicast(), multicast()], vec![multicast(), unicast()]] {
        let mut harness = harness(&[1, 2]);
        harness.send_batch(batch);
        let sent = harness.take_down();
        let ordered: Vec<bool> =
            sent.iter().map(|message| message.headers.get(ProtocolId::SEQUENCER).is_some()).collect();
        assert_eq!(ordered, [false, true], "{sent:?}");
        assert_eq!(sent[0].dest, Some(member(2)));
    }
}

#[test]
fn a_multicast_that_does_not_loop_back_is_ordered_and_not_delivered_here() {
    let mut harness = harness(&[2, 1]);
    let mut message = Message::bytes(None, "x");
    message.transient |= Transient::DONT_LOOPBACK;
    harness.send(message);
    assert_eq!(kinds(&mut harness), [(SequencerKind::Flush, 1, Some(member(2)))]);
    harness.up(wrapped(1, 1, 2));
    assert_eq!(harness.take_up(), []);
    harness.advance(Duration::from_secs(5));
    assert_eq!(harness.take_down(), [], "it has come back");
}

#[test]
fn threshold_zero_never_ends_the_serial_mode() {
    let mut harness =
        Harness::new(Sequencer::new(SequencerConfig { threshold: 0, ..SequencerConfig::default() }));
    harness.install(view(1, &[2, 1])).raise(Event::View(view(1, &[2, 1])));
    for seqno in 1..=20 {
        harness.send(Message::bytes(None, "x"));
        assert_eq!(kinds(&mut harness), [(SequencerKind::Flush, seqno, Some(member(2)))]);
        harness.up(wrapped(1, seqno, 2));
    }
}

#[test]
fn without_flush_forward_table_the_next_coordinator_gets_only_new_messages() {
    let config = SequencerConfig { flush_forward_table: false, ..SequencerConfig::default() };
    let mut harness = Harness::new(Sequencer::new(config));
    harness.install(view(1, &[2, 3, 1])).raise(Event::View(view(1, &[2, 3, 1])));
    harness.send(Message::bytes(None, "x")).take_down();
    harness.install(view(2, &[3, 1])).raise(Event::View(view(2, &[3, 1])));
    assert_eq!(kinds(&mut harness), []);
    harness.send(Message::bytes(None, "y"));
    assert_eq!(kinds(&mut harness), [(SequencerKind::Flush, 2, Some(member(3)))]);
}

#[test]
fn flushed_messages_do_not_count_towards_the_threshold() {
    let mut harness = harness(&[2, 3, 1]);
    for _ in 0..3 {
        harness.send(Message::bytes(None, "x"));
    }
    harness.install(view(2, &[3, 1])).raise(Event::View(view(2, &[3, 1])));
    for seqno in 1..=3 {
        harness.up(wrapped(1, seqno, 3));
    }
    harness.take_down();
    for seqno in 4..=5 {
        harness.send(Message::bytes(None, "x"));
        assert_eq!(kinds(&mut harness), [(SequencerKind::Flush, seqno, Some(member(3)))]);
        harness.up(wrapped(1, seqno, 3));
    }
    harness.send(Message::bytes(None, "x"));
    assert_eq!(kinds(&mut harness), [(SequencerKind::Forward, 6, Some(member(3)))]);
}

fn over_flow_control(numbers: &[u64]) -> Harness {
    let max_credits = crate::config::Bytes(1_000);
    let config = FlowConfig { max_credits, min_threshold: 0.4, ..FlowConfig::default() };
    let flow = |kind| FlowControl::new(kind, config.clone(), QueueConfig::default());
    let sequencer = Sequencer::new(SequencerConfig::default());
    let mut harness = Harness::with_layers(
        1,
        vec![Box::new(flow(FlowKind::Ufc)), Box::new(flow(FlowKind::Mfc)), Box::new(sequencer)],
    );
    harness.install(view(1, numbers)).raise(Event::View(view(1, numbers)));
    harness.take_up_events();
    harness
}

#[test]
fn messages_outside_the_order_stay_one_batch() {
    let mut harness = harness(&[2, 1]);
    let outside = || Message::bytes(None, "x").with_flags(Flags::OOB).sent_by(2);
    harness.up_batch((0..3).map(|_| outside()).collect());
    let batches: Vec<usize> = harness
        .take_indications()
        .into_iter()
        .map(|indication| if let crate::Indication::Batch(batch) = indication { batch.len() } else { 0 })
        .collect();
    assert_eq!(batches, [3]);
}

fn credited(harness: &mut Harness) -> Vec<Option<Address>> {
    let is_credit = |message: &Message| {
        [ProtocolId::UFC, ProtocolId::MFC].iter().any(|&id| message.headers.get(id).is_some())
    };
    harness.take_down().into_iter().filter(is_credit).map(|message| message.dest).collect()
}

#[test]
fn the_broadcaster_gets_credit_back_when_the_message_is_consumed() {
    let mut harness = over_flow_control(&[2, 3, 1]);
    let big = |seqno| {
        let mut message = wrapped(3, seqno, 2);
        let mut inner = wire::decode_typed(message.payload_bytes().unwrap()).unwrap();
        inner.payload = Payload::Bytes(Some(vec![0; 700].into()));
        message.payload = Payload::Bytes(Some(wire::encode_typed(&inner)));
        message
    };
    harness.up(big(1));
    assert_eq!(credited(&mut harness), [], "the application has not consumed it");
    let delivered = harness.take_up();
    assert!(delivered[0].credit > 700);
    harness.consumed(&member(3), true, u64::from(delivered[0].credit));
    assert_eq!(credited(&mut harness), [Some(member(2))]);
    harness.up(big(1));
    assert_eq!(credited(&mut harness), [Some(member(2))], "a duplicate ends here");
}

/// Otherwise members could pile up messages at a coordinator with slow receivers.
#[test]
fn a_forwarder_gets_its_credit_back_when_its_message_has_been_broadcast() {
    let mut harness = over_flow_control(&[1, 2]);
    let forward = |seqno, bytes| {
        let header = SequencerHeader { kind: SequencerKind::Forward, seqno, flush_ack: false };
        let mut inner = Message::bytes(None, vec![0; bytes]);
        inner.src = Some(member(2));
        Message::bytes(Some(member(1)), wire::encode_typed(&inner))
            .with_header(ProtocolId::SEQUENCER, HeaderBody::Sequencer(header))
            .sent_by(2)
    };
    harness.up(forward(1, 650));
    let broadcast = harness.take_down();
    assert_eq!(broadcast.len(), 1);
    assert!(broadcast[0].is_multicast());
    harness.up(forward(2, 300));
    let mut sent = harness.take_down();
    sent.retain(|message| {
        message.headers.get(ProtocolId::MFC) != Some(&HeaderBody::Fc(crate::FcHeader::CreditRequest))
    });
    assert_eq!(sent, [], "there are no credits for this one, and none for its sender");
    harness.up_batch(broadcast);
    assert_eq!(credited(&mut harness), [Some(member(2))]);
}
