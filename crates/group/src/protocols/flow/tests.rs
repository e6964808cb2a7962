use super::*;
use crate::Transient;
use crate::config::Bytes;
use crate::harness::{Harness, exchange, member, view};

const MAX: u64 = 1_000;

fn harness(kind: FlowKind, numbers: &[u64]) -> Harness {
    let config = FlowConfig { max_credits: Bytes(MAX), min_threshold: 0.4, ..FlowConfig::default() };
    let mut harness =
        Harness::new(FlowControl::new(kind, config, QueueConfig { max_queue_size: Bytes(5_000) }));
    harness.install(view(1, numbers));
    harness.take_up_events();
    let others = || numbers.iter().copied().filter(|n| *n != 1);
    // The receivers get the first request after a view here, so that all credits are known to be returned.
    let id = if kind.is_multicast() { ProtocolId::MFC } else { ProtocolId::UFC };
    let dests = if kind.is_multicast() { vec![None] } else { others().map(Some).collect() };
    for bytes in [MAX as usize, 1] {
        for &dest in &dests {
            let mut message = to(dest, bytes);
            message.transient |= Transient::DONT_LOOPBACK;
            harness.send(message);
        }
    }
    harness.advance(CREDIT_RESYNC_DELAY);
    for _ in 0..2 {
        for n in others() {
            harness.up(credits(id, n, FcHeader::Replenish, MAX as i64));
        }
    }
    harness.take_down();
    harness
}

fn to(dest: Option<u64>, bytes: usize) -> Message {
    Message::bytes(dest.map(member), vec![0; bytes])
}

fn numbered(n: u32) -> Message {
    Message::bytes(Some(member(2)), [&n.to_be_bytes()[..], &[0; 96]].concat())
}

fn from(n: u64, bytes: usize, is_multicast: bool) -> Message {
    to((!is_multicast).then_some(1), bytes).sent_by(n)
}

fn credits(kind: ProtocolId, n: u64, header: FcHeader, credits: i64) -> Message {
    Message::new(Some(member(1)), Payload::Long(credits)).with_header(kind, HeaderBody::Fc(header)).sent_by(n)
}

fn sent_credits(harness: &mut Harness) -> Vec<(u64, FcHeader, i64)> {
    harness
        .take_down()
        .into_iter()
        .filter_map(|message| {
            let header =
                message.headers.get(ProtocolId::UFC).or_else(|| message.headers.get(ProtocolId::MFC));
            match (header, message.payload) {
                (Some(HeaderBody::Fc(header)), Payload::Long(credits)) => {
                    Some((message.dest?.uuid()?.most, *header, credits))
                }
                _ => None,
            }
        })
        .collect()
}

/// S000-2.
#[test]
fn a_sender_without_credits_waits_for_them() {
    let mut harness = harness(FlowKind::Ufc, &[1, 2]);
    harness.send_batch((0..10).map(numbered).collect());
    assert_eq!(harness.take_down().len(), 10);
    harness.send(numbered(10)).send(numbered(11));
    assert_eq!(harness.take_down(), []);
    assert_eq!(harness.stack.queued_bytes(Some(&member(2))), 200);
    harness.up(credits(ProtocolId::UFC, 2, FcHeader::Replenish, 100));
    assert_eq!(harness.take_down().len(), 1);
    harness.up(credits(ProtocolId::UFC, 2, FcHeader::Replenish, 700));
    assert_eq!(harness.take_down().len(), 1);
    assert_eq!(harness.stack.queued_bytes(Some(&member(2))), 0);
}

#[test]
fn outstanding_credits_are_counted_until_they_return() {
    for kind in [FlowKind::Ufc, FlowKind::Mfc] {
        let (dest, id) = match kind.is_multicast() {
            true => (None, ProtocolId::MFC),
            false => (Some(2), ProtocolId::UFC),
        };
        let mut harness = harness(kind, &[1, 2]);
        let counts = |harness: &Harness| {
            use StackCount::{
                CreditBlockings, CreditOutstandingBytes, CreditRequestsSent, CreditWaitingBytes,
            };
            [CreditBlockings, CreditWaitingBytes, CreditOutstandingBytes, CreditRequestsSent]
                .map(|count| harness.count(count))
        };
        let [blockings, waiting, outstanding, requests] = counts(&harness);
        assert_eq!((waiting, outstanding), (0, 0), "{kind:?}");
        let send = |harness: &mut Harness, bytes| {
            let mut message = to(dest, bytes);
            message.transient |= Transient::DONT_LOOPBACK;
            harness.send(message);
        };
        send(&mut harness, 900);
        assert_eq!(counts(&harness), [blockings, 0, 900, requests], "{kind:?}");
        send(&mut harness, 200);
        assert_eq!(counts(&harness), [blockings + 1, 200, 900, requests], "{kind:?}");
        harness.advance(Duration::from_secs(10));
        let asked = counts(&harness)[3];
        assert!(asked > requests, "{kind:?}: it requests credits");
        harness.up(credits(id, 2, FcHeader::Replenish, 900));
        assert_eq!(counts(&harness), [blockings + 1, 0, 200, asked], "{kind:?}");
        let before = harness.count(StackCount::CreditRequestsReceived);
        harness.up(credits(id, 2, FcHeader::CreditRequest, 900));
        assert_eq!(harness.count(StackCount::CreditRequestsReceived), before + 1, "{kind:?}");
    }
}

#[test]
fn credits_for_multicasts_do_not_wait_for_credits_for_unicasts() {
    let mut harness = harness(FlowKind::Ufc, &[1, 2]);
    harness.send_batch((0..11).map(numbered).collect());
    assert_eq!(harness.take_down().len(), 10);
    let mut replenishment = credits(ProtocolId::MFC, 1, FcHeader::Replenish, 500);
    replenishment.dest = Some(member(2));
    harness.send(replenishment);
    assert_eq!(sent_credits(&mut harness), [(2, FcHeader::Replenish, 500)]);
    assert_eq!(harness.stack.queued_bytes(Some(&member(2))), 100);
}

/// S000-3 and S000-85
#[test]
fn a_receiver_returns_credits_for_consumed_bytes() {
    let mut harness = harness(FlowKind::Ufc, &[1, 2]);
    harness.up_batch(vec![from(2, 400, false), from(2, 300, false)]);
    let delivered = harness.take_up();
    assert_eq!(delivered.iter().map(|message| message.credit).collect::<Vec<_>>(), [400, 300]);
    assert_eq!(sent_credits(&mut harness), [], "nothing has been consumed yet");
    harness.consumed(&member(2), false, 400);
    assert_eq!(sent_credits(&mut harness), [], "600 of 1000 are left, the threshold is 400");
    harness.consumed(&member(2), false, 300);
    assert_eq!(sent_credits(&mut harness), [(2, FcHeader::Replenish, 700)]);
}

/// S000-4.
#[test]
fn a_slow_receiver_does_not_delay_unicasts_to_others() {
    let mut harness = harness(FlowKind::Ufc, &[1, 2, 3]);
    harness.send(to(Some(2), 1_000)).send(to(Some(2), 1)).take_down();
    harness.send(to(Some(3), 500));
    assert_eq!(harness.take_down().len(), 1);
}

/// S000-5.
#[test]
fn multicasts_go_at_the_pace_of_the_slowest_member() {
    let mut harness = harness(FlowKind::Mfc, &[1, 2, 3]);
    harness.send(to(None, 900)).send(to(None, 200));
    assert_eq!(harness.take_down().len(), 1);
    harness.consumed(&member(1), true, 900);
    harness.up(credits(ProtocolId::MFC, 2, FcHeader::Replenish, 900));
    assert_eq!(harness.take_down(), []);
    harness.up(credits(ProtocolId::MFC, 3, FcHeader::Replenish, 900));
    assert_eq!(harness.take_down().len(), 1);
}

#[test]
fn the_local_copy_uses_credits_unless_it_is_not_looped_back() {
    let mut harness = harness(FlowKind::Mfc, &[1]);
    let mut silent = to(None, 1_000);
    silent.transient |= Transient::DONT_LOOPBACK;
    harness.send(silent.clone()).send(silent);
    assert_eq!(harness.take_down().len(), 2);
    harness.send(to(None, 1_000)).send(to(None, 1_000));
    assert_eq!(harness.take_down().len(), 1, "the second waits until the first copy is consumed");
    harness.consumed(&member(1), true, 1_000);
    assert_eq!(harness.take_down().len(), 1);
}

#[test]
fn a_sender_that_waits_long_requests_credits_repeatedly() {
    let mut harness = harness(FlowKind::Ufc, &[1, 2]);
    harness.send(to(Some(2), 800)).send(to(Some(2), 300)).take_down();
    harness.advance(Duration::from_millis(4_999));
    assert_eq!(sent_credits(&mut harness), []);
    harness.advance(Duration::from_millis(1));
    assert_eq!(sent_credits(&mut harness), [(2, FcHeader::CreditRequest, 800)]);
    harness.advance(Duration::from_secs(5));
    assert_eq!(sent_credits(&mut harness).len(), 1);
    harness.up(credits(ProtocolId::UFC, 2, FcHeader::Replenish, 800)).take_down();
    harness.advance(Duration::from_secs(60));
    assert_eq!(sent_credits(&mut harness), []);
}

/// Its application sets the pace.
#[test]
fn the_wait_restarts_when_a_message_is_sent() {
    for (kind, id) in [(FlowKind::Ufc, ProtocolId::UFC), (FlowKind::Mfc, ProtocolId::MFC)] {
        let dest = (kind == FlowKind::Ufc).then_some(2);
        let mut harness = harness(kind, &[2]);
        harness.send(to(dest, 1_000)).send_batch((0..5).map(|_| to(dest, 100)).collect());
        for _ in 0..4 {
            harness.advance(Duration::from_secs(4));
            harness.up(credits(id, 2, FcHeader::Replenish, 100));
        }
        assert_eq!(sent_credits(&mut harness), [], "{kind:?}");
        harness.advance(Duration::from_secs(5));
        assert_eq!(sent_credits(&mut harness), [(2, FcHeader::CreditRequest, 1_000)], "{kind:?}");
    }
}

#[test]
fn each_receiver_has_its_own_request_time() {
    let mut harness = harness(FlowKind::Ufc, &[1, 2, 3]);
    harness.send(to(Some(2), 1_000)).send(to(Some(2), 1)).advance(Duration::from_secs(3));
    harness.send(to(Some(3), 1_000)).send(to(Some(3), 1)).take_down();
    harness.advance(Duration::from_secs(2));
    assert_eq!(sent_credits(&mut harness), [(2, FcHeader::CreditRequest, 1_000)]);
    harness.advance(Duration::from_secs(3));
    assert_eq!(sent_credits(&mut harness), [(3, FcHeader::CreditRequest, 1_000)]);
}

#[test]
fn a_dont_block_multicast_is_dropped_and_credits_are_requested() {
    let mut harness = harness(FlowKind::Mfc, &[2, 3]);
    let mut message = to(None, 600);
    message.transient |= Transient::DONT_BLOCK;
    harness.send(message.clone());
    assert_eq!(harness.take_down().len(), 1);
    harness.up(credits(ProtocolId::MFC, 3, FcHeader::Replenish, 600));
    harness.send(message.clone()).send(message.clone());
    assert_eq!(sent_credits(&mut harness), [(2, FcHeader::CreditRequest, 600)], "once in max_block_time");
    assert_eq!(harness.stack.shared().drops.total(DropReason::NoCredits), 2);
    assert_eq!(harness.stack.queued_bytes(None), 0);
    harness.advance(Duration::from_secs(5)).send(message);
    assert_eq!(sent_credits(&mut harness), [(2, FcHeader::CreditRequest, 600)]);
}

#[test]
fn with_a_queue_a_dont_block_multicast_is_dropped_only_when_the_queue_is_full() {
    let mut harness = harness(FlowKind::MfcNb, &[2]);
    let mut message = to(None, 1_000);
    message.transient |= Transient::DONT_BLOCK;
    harness.send_batch(vec![message; 7]);
    assert_eq!((harness.take_down().len(), harness.stack.queued_bytes(None)), (1, 5_000));
    assert_eq!(harness.stack.shared().drops.total(DropReason::NoCredits), 1);
}

/// The layers below find out whether the member is reachable.
#[test]
fn queued_unicasts_to_a_leaving_member_are_sent() {
    let mut harness = harness(FlowKind::Ufc, &[1, 2]);
    harness.send(to(Some(2), 1_000)).send(to(Some(2), 7)).take_down();
    harness.install(view(2, &[1]));
    assert_eq!(harness.take_down().iter().map(Message::length).collect::<Vec<_>>(), [7]);
    assert_eq!(harness.stack.queued_bytes(Some(&member(2))), 0);
    harness.install(view(3, &[1, 2])).send(to(Some(2), 1_000));
    assert_eq!(harness.take_down().len(), 1, "a member that returns has all credits");
}

/// S000-6
#[test]
fn a_request_is_granted_as_far_as_the_application_has_kept_up() {
    let mut harness = harness(FlowKind::Ufc, &[1, 2]);
    let ask = |from, lacking| credits(ProtocolId::UFC, from, FcHeader::CreditRequest, lacking);
    harness.up(from(2, 900, false));
    harness.up(ask(2, 900));
    assert_eq!(sent_credits(&mut harness), [], "all outstanding bytes are before the application");
    harness.consumed(&member(2), false, 200);
    harness.up(ask(2, 900));
    assert_eq!(sent_credits(&mut harness), [(2, FcHeader::Replenish, 200)]);
    harness.up(ask(9, 700));
    assert_eq!(
        sent_credits(&mut harness),
        [(9, FcHeader::Replenish, 700)],
        "also a sender that is not a member yet"
    );
}

#[test]
fn lost_credits_are_replaced_once() {
    let mut harness = harness(FlowKind::Mfc, &[1, 2]);
    let ask = || credits(ProtocolId::MFC, 2, FcHeader::CreditRequest, 900);
    harness.up(from(2, 100, true)).consumed(&member(2), true, 100);
    harness.up(ask()).up(ask());
    assert_eq!(sent_credits(&mut harness), [(2, FcHeader::Replenish, 900)]);
    harness.up(from(2, 50, true)).consumed(&member(2), true, 50);
    assert_eq!(sent_credits(&mut harness), [(2, FcHeader::Replenish, 0)], "the missing bytes may be others");
    harness.up(ask());
    assert_eq!(
        sent_credits(&mut harness),
        [(2, FcHeader::Replenish, 50)],
        "credits of consumed bytes always return"
    );
    harness.advance(granting::ANSWER_TIME).up(ask());
    assert_eq!(sent_credits(&mut harness), [(2, FcHeader::Replenish, 900)], "they may have been lost again");
}

/// S000-6: missing messages count when they arrive.
#[test]
fn credits_of_messages_in_transit_are_not_replaced() {
    let mut harness = harness(FlowKind::Mfc, &[1, 2]);
    let ask = || credits(ProtocolId::MFC, 2, FcHeader::CreditRequest, 900);
    harness.up(from(2, 100, true)).consumed(&member(2), true, 100);
    harness.answer_gap(true).up(ask());
    assert_eq!(sent_credits(&mut harness), [(2, FcHeader::Replenish, 100)]);
    harness.up(from(2, 200, true)).consumed(&member(2), true, 200);
    assert_eq!(sent_credits(&mut harness), [], "there is still a gap");
    harness.answer_gap(false).up(from(2, 300, true)).consumed(&member(2), true, 300);
    assert_eq!(sent_credits(&mut harness), [(2, FcHeader::Replenish, 0)], "now the sender may request again");
    harness.up(from(2, 10, true)).consumed(&member(2), true, 10);
    assert_eq!(sent_credits(&mut harness), [], "once");
}

/// Zero credits mean that the receiver did not know all.
#[test]
fn a_receiver_that_returns_zero_credits_gets_another_request_soon() {
    for (kind, id) in [(FlowKind::Ufc, ProtocolId::UFC), (FlowKind::Mfc, ProtocolId::MFC)] {
        let dest = (kind == FlowKind::Ufc).then_some(2);
        let mut harness = harness(kind, &[2]);
        harness.send(to(dest, 1_000)).send(to(dest, 1)).take_down();
        harness.advance(Duration::from_secs(5));
        assert_eq!(sent_credits(&mut harness), [(2, FcHeader::CreditRequest, 1_000)], "{kind:?}");
        harness.up(credits(id, 2, FcHeader::Replenish, 0)).advance(CREDIT_RESYNC_DELAY);
        assert_eq!(sent_credits(&mut harness), [(2, FcHeader::CreditRequest, 1_000)], "{kind:?}");
        harness.advance(CREDIT_RESYNC_DELAY);
        assert_eq!(sent_credits(&mut harness), [], "{kind:?}: once");
    }
}

/// These bytes got credits already, as after a merge.
#[test]
fn bytes_beyond_max_credits_return_no_credits() {
    let mut harness = harness(FlowKind::Ufc, &[1, 2]);
    harness.up(from(2, 900, false)).up(from(2, 900, false));
    harness.consumed(&member(2), false, 800);
    assert_eq!(sent_credits(&mut harness), [], "1000 are still there");
    harness.consumed(&member(2), false, 600);
    assert_eq!(sent_credits(&mut harness), [(2, FcHeader::Replenish, 600)]);
}

/// A joiner's first view may reach it first.
#[test]
fn messages_before_the_senders_view_are_counted() {
    let mut harness = harness(FlowKind::Ufc, &[1]);
    harness.up(from(2, 500, false)).consumed(&member(2), false, 500);
    assert_eq!(sent_credits(&mut harness), []);
    harness.up(from(2, 100, false));
    harness.install(view(2, &[1, 2])).consumed(&member(2), false, 100);
    assert_eq!(sent_credits(&mut harness), [(2, FcHeader::Replenish, 600)]);
    harness.up(from(3, 700, false)).consumed(&member(3), false, 700);
    assert_eq!(
        sent_credits(&mut harness),
        [(3, FcHeader::Replenish, 700)],
        "the request does not have to wait for that view"
    );
    harness.up(from(3, 500, false)).consumed(&member(3), false, 500);
    harness.install(view(3, &[1, 2, 3])).install(view(4, &[1, 2])).install(view(5, &[1, 2, 3]));
    harness.up(from(3, 100, false)).consumed(&member(3), false, 100);
    let and_again = "a sender that never left by its own count continues its count";
    assert_eq!(sent_credits(&mut harness), [(3, FcHeader::Replenish, 600)], "{and_again}");
}

#[test]
fn of_many_non_member_senders_the_oldest_is_forgotten() {
    let mut harness = harness(FlowKind::Ufc, &[1]);
    let last = 2 + granting::NON_MEMBER_SENDERS_MAX as u64;
    for n in 2..=last {
        harness.up(from(n, 500, false)).consumed(&member(n), false, 500);
    }
    for n in [2, 3, last] {
        harness.install(view(n, &[1, n]));
        harness.up(from(n, 100, false)).consumed(&member(n), false, 100);
        let expected: &[_] = if n == 3 || n == last { &[(n, FcHeader::Replenish, 600)] } else { &[] };
        assert_eq!(sent_credits(&mut harness), expected, "{n}");
    }
}

/// They may never arrive, because the receiver's digest is of another time.
#[test]
fn a_receiver_that_may_have_lost_count_gets_an_early_request() {
    for (kind, id) in [(FlowKind::Ufc, ProtocolId::UFC), (FlowKind::Mfc, ProtocolId::MFC)] {
        let dest = (kind == FlowKind::Ufc).then_some(2);
        let mut harness = harness(kind, &[1]);
        harness.install(view(2, &[1, 2])).send(to(dest, 1_000)).take_down();
        harness.consumed(&member(1), true, 1_000);
        assert_eq!(sent_credits(&mut harness), [], "{kind:?}");
        harness.send(to(dest, 300));
        harness.advance(CREDIT_RESYNC_DELAY - Duration::from_nanos(1));
        assert_eq!(sent_credits(&mut harness), [], "{kind:?}: the messages may be in transit");
        harness.advance(Duration::from_nanos(1));
        assert_eq!(sent_credits(&mut harness), [(2, FcHeader::CreditRequest, 1_000)], "{kind:?}: joined");
        harness.up(credits(id, 2, FcHeader::Replenish, 500)).send(to(dest, 500));
        harness.advance(Duration::from_millis(4_999));
        assert_eq!(sent_credits(&mut harness), [], "{kind:?}: once");
        let merged = view(3, &[2, 1]);
        let merged = View::merged(merged.id().clone(), merged.members(), [view(2, &[1]), view(1, &[2])]);
        harness.install(merged);
        harness.advance(Duration::from_nanos(1));
        assert_eq!(sent_credits(&mut harness), [(2, FcHeader::CreditRequest, 800)], "{kind:?}: merged");
        harness.advance(Duration::from_millis(4_999));
        assert_eq!(sent_credits(&mut harness), [], "{kind:?}: it has time to respond");
        harness.advance(Duration::from_millis(1));
        assert_eq!(sent_credits(&mut harness), [(2, FcHeader::CreditRequest, 800)], "{kind:?}");
    }
}

/// A member with a merge view uses its digest, and skips older messages.
#[test]
fn a_sender_that_missed_views_requests_credits_early() {
    for kind in [FlowKind::Ufc, FlowKind::Mfc] {
        let dest = (kind == FlowKind::Ufc).then_some(2);
        for (next, asks) in [(2, 0), (3, 1)] {
            let mut harness = harness(kind, &[1, 2]);
            harness.send(to(dest, 1_000)).send(to(dest, 300));
            harness.consumed(&member(1), true, 1_000).take_down();
            harness.install(view(next, &[1, 2])).advance(CREDIT_RESYNC_DELAY);
            assert_eq!(sent_credits(&mut harness).len(), asks, "{kind:?}: view {next} after 1");
        }
    }
}

/// Messages before this member's digest never arrive here.
#[test]
fn a_sender_that_requests_before_it_is_in_the_view_requests_again_once_it_is() {
    let mut harness = harness(FlowKind::Mfc, &[1]);
    harness.up(credits(ProtocolId::MFC, 2, FcHeader::CreditRequest, 900));
    assert_eq!(sent_credits(&mut harness), [(2, FcHeader::Replenish, 900)]);
    harness.up(from(2, 100, true)).consumed(&member(2), true, 100);
    assert_eq!(sent_credits(&mut harness), [], "it is not in the view yet");
    harness.install(view(2, &[1, 2, 3]));
    assert_eq!(sent_credits(&mut harness), [(2, FcHeader::Replenish, 0)]);
    harness.install(view(3, &[1, 2]));
    harness.up(from(2, 100, true)).consumed(&member(2), true, 100);
    assert_eq!(sent_credits(&mut harness), [], "once");
}

#[test]
fn a_member_that_leaves_does_not_block_senders() {
    let mut harness = harness(FlowKind::Mfc, &[1, 2, 3]);
    harness.send(to(None, 1_000)).take_down();
    harness.consumed(&member(1), true, 1_000);
    harness.up(credits(ProtocolId::MFC, 2, FcHeader::Replenish, 1_000));
    harness.send(to(None, 1_000));
    assert_eq!(harness.take_down(), []);
    harness.install(view(2, &[1, 2]));
    assert_eq!(harness.take_down().len(), 1);
}

#[test]
fn empty_messages_and_those_without_flow_control_pass() {
    for kind in [FlowKind::Ufc, FlowKind::Mfc] {
        let dest = (kind == FlowKind::Ufc).then_some(2);
        let mut harness = harness(kind, &[1, 2]);
        harness.send(to(dest, 1_000)).send(to(dest, 1)).take_down();
        harness.send(to(dest, 0)).send(to(dest, 50).with_flags(Flags::NO_FC));
        assert_eq!(harness.take_down().len(), 2);
    }
}

#[test]
fn a_message_larger_than_all_credits_goes_when_nothing_is_outstanding() {
    let mut harness = harness(FlowKind::Ufc, &[1, 2]);
    harness.send(to(Some(2), 5_000)).send(to(Some(2), 1));
    assert_eq!(harness.take_down().len(), 1);
}

/// S000-8, S000-9 and S000-11
#[test]
fn the_non_blocking_kinds_report_their_queue_limit() {
    let mut harness = harness(FlowKind::UfcNb, &[1, 2]);
    assert_eq!(harness.stack.hold_limit(false), Some(5_000));
    assert_eq!(harness.stack.hold_limit(true), None);
    harness.send(to(Some(2), 1_000)).send(to(Some(2), 10));
    assert_eq!(harness.stack.queued_bytes(Some(&member(2))), 10);
}

/// S000-10
#[test]
fn order_survives_a_million_bytes_of_random_stalls() {
    let mut harness = harness(FlowKind::UfcNb, &[1, 2]);
    let mut rng = crate::Rng::new(7);
    let mut next = 0;
    let mut seen = Vec::new();
    while seen.len() < 10_000 {
        for _ in 0..rng.below(30) {
            harness.send(numbered(next));
            next += 1;
        }
        if rng.chance(0.7) {
            harness.up(credits(ProtocolId::UFC, 2, FcHeader::Replenish, rng.below(2_000) as i64));
        }
        for message in harness.take_down() {
            seen.push(u32::from_be_bytes(message.payload_bytes().unwrap()[..4].try_into().unwrap()));
        }
    }
    assert!(seen.iter().copied().eq(0..seen.len() as u32));
}

/// S000-84.
#[test]
fn credits_of_one_layer_pass_the_other() {
    for (kind, other) in [(FlowKind::Mfc, ProtocolId::UFC), (FlowKind::Ufc, ProtocolId::MFC)] {
        let dest = (kind == FlowKind::Ufc).then_some(2);
        let mut harness = harness(kind, &[2]);
        harness.send(to(dest, 1_000)).send(to(dest, 1)).take_down();
        harness.up(credits(other, 2, FcHeader::Replenish, 1_000));
        assert_eq!((harness.take_up().len(), harness.take_down().len()), (1, 0), "{kind:?}");
    }
}

/// S000-8
#[test]
fn either_kind_replaces_the_other() {
    for (kind, other) in [(FlowKind::Ufc, FlowKind::UfcNb), (FlowKind::Mfc, FlowKind::MfcNb)] {
        let (id, dest) =
            if kind == FlowKind::Ufc { (ProtocolId::UFC, Some(2)) } else { (ProtocolId::MFC, None) };
        let run = |kind| {
            let mut harness = harness(kind, &[2, 3]);
            for size in [600, 300, 500, 0, 900, 100] {
                harness.send(to(dest, size));
            }
            for n in [2, 3] {
                harness.up(credits(id, n, FcHeader::Replenish, 800));
                harness.up(from(n, 700, dest.is_none())).consumed(&member(n), dest.is_none(), 700);
                harness.up(credits(id, n, FcHeader::CreditRequest, 400));
            }
            harness.advance(Duration::from_secs(6));
            (harness.take_down(), harness.take_up(), harness.stack.queued_bytes(dest.map(member).as_ref()))
        };
        assert_eq!(run(kind), run(other), "{kind:?}");
    }
}

/// S000-11 and S000-12
#[test]
fn the_limit_is_the_configured_size() {
    for max_queue_size in [1, 10_000_000, u64::MAX] {
        let queue = QueueConfig { max_queue_size: Bytes(max_queue_size) };
        let harness = Harness::new(FlowControl::new(FlowKind::MfcNb, FlowConfig::default(), queue));
        assert_eq!(harness.stack.hold_limit(true), Some(max_queue_size));
    }
    assert_eq!(QueueConfig::default().max_queue_size.0, 10_000_000);
}

#[test]
fn negative_credits_are_refused() {
    let mut harness = harness(FlowKind::Ufc, &[1, 2]);
    harness.up(credits(ProtocolId::UFC, 2, FcHeader::Replenish, -5));
    assert_eq!(harness.stack.shared().drops.total(DropReason::Malformed), 1);
}

/// Bytes are consumed only above fragmentation.
#[test]
fn a_message_larger_than_all_credits_arrives_without_a_credit_request() {
    use crate::protocols::{Frag, FragConfig, FragKind};
    let stack = |n| {
        let config = FlowConfig { max_credits: Bytes(MAX), ..FlowConfig::default() };
        let flow = |kind| FlowControl::new(kind, config.clone(), QueueConfig::default());
        let frag = Frag::new(FragKind::Frag2, FragConfig { frag_size: Bytes(100) });
        let layers: Vec<Box<dyn Protocol>> =
            vec![Box::new(flow(FlowKind::Mfc)), Box::new(flow(FlowKind::Ufc)), Box::new(frag)];
        let mut harness = Harness::with_layers(n, layers);
        harness.install(view(1, &[1, 2]));
        harness
    };
    for dest in [Some(2), None] {
        let (mut sender, mut receiver) = (stack(1), stack(2));
        sender.send(to(dest, 20 * MAX as usize));
        let received = exchange(&mut sender, &mut receiver);
        assert_eq!(received.iter().map(Message::length).collect::<Vec<_>>(), [20 * MAX as usize], "{dest:?}");
        assert!(u64::from(received[0].credit) <= MAX);
    }
}

#[test]
fn in_a_mixed_batch_every_message_is_controlled_by_its_kind() {
    let mut harness = harness(FlowKind::Mfc, &[1, 2]);
    harness.send_batch(vec![to(Some(2), 10), to(None, 1_000), to(None, 1_000)]);
    assert_eq!(harness.take_down().len(), 2, "the second multicast waits");
}

#[test]
fn every_kind_reports_its_queue_limit() {
    for (kind, is_multicast, limit) in [
        (FlowKind::Ufc, false, HOLD_LIMIT),
        (FlowKind::Mfc, true, HOLD_LIMIT),
        (FlowKind::UfcNb, false, 10_000_000),
        (FlowKind::MfcNb, true, 10_000_000),
    ] {
        let layer = FlowControl::new(kind, FlowConfig::default(), QueueConfig::default());
        let harness = Harness::new(layer);
        assert_eq!(harness.stack.hold_limit(is_multicast), Some(limit), "{kind:?}");
        assert_eq!(harness.stack.hold_limit(!is_multicast), None, "{kind:?}");
    }
}

/// These are empty, because their sender must not wait for credits that it would return itself.
#[test]
fn an_acknowledgement_of_rsvp_needs_no_credits() {
    let config = FlowConfig { max_credits: Bytes(100), ..FlowConfig::default() };
    let mut harness = Harness::new(FlowControl::new(FlowKind::Ufc, config, QueueConfig::default()));
    harness.install(view(1, &[1, 2]));
    let full = || Message::bytes(Some(member(2)), vec![0; 100]);
    harness.send_batch(vec![full(), full()]);
    let sent = harness.take_down().into_iter().filter(|message| !message.is_credit());
    assert_eq!(sent.count(), 1, "one has credits");
    let header = crate::RsvpHeader { kind: crate::RsvpKind::Response, id: 1 };
    let answer = Message::empty(Some(member(2))).with_header(ProtocolId::RSVP, HeaderBody::Rsvp(header));
    harness.send(answer);
    let sent = harness.take_down();
    assert!(matches!(&sent[..], [one] if one.headers.get(ProtocolId::RSVP).is_some()), "{sent:?}");
}
