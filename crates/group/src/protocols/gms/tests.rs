use super::messages::merge_header;
use super::*;
use crate::harness::{Harness, digest, member, phys, view};
use crate::wire::{self, JoinRsp, ViewForm};
use crate::{DeltaView, Digest, Event, GmsHeader, Indication, MergeId, Message, PingData, ViewId};

fn harness(n: u64) -> Harness {
    Harness::with_layers(n, vec![Box::new(Gms::new(GmsConfig::default()))])
}

fn ping(n: u64, is_server: bool, is_coordinator: bool) -> PingData {
    PingData {
        sender: member(n),
        is_server,
        is_coordinator,
        name: Some("X".into()),
        phys: Some(phys(n as u16)),
        wanted: None,
    }
}

fn message(kind: GmsKind, from: u64, payload: Payload) -> Message {
    Message::new(Some(member(1)), payload)
        .with_header(ProtocolId::GMS, HeaderBody::Gms(Box::new(header(kind))))
        .sent_by(from)
}

fn request(kind: GmsKind, from: u64, of: u64) -> Message {
    let mut message = message(kind, from, Payload::Empty);
    let header = GmsHeader { member: Some(member(of)), ..header(kind) };
    message.headers.put(ProtocolId::GMS, HeaderBody::Gms(Box::new(header)));
    message
}

fn full(view: &View, digest: Option<&Digest>) -> Payload {
    let form = ViewForm::Full(view.clone());
    Payload::Bytes(Some(wire::encode_view_and_digest(Some(&form), digest)))
}

fn join_rsp(view: &View, digest: &Digest) -> Payload {
    let rsp = JoinRsp { view: Some(view.clone()), digest: Some(digest.clone()), fail_reason: None };
    Payload::Bytes(Some(wire::encode_join_rsp(&rsp)))
}

fn sent(harness: &mut Harness) -> Vec<(GmsKind, Option<u64>)> {
    harness
        .take_down()
        .into_iter()
        .filter_map(|mut message| match message.headers.take(ProtocolId::GMS) {
            Some(HeaderBody::Gms(header)) => {
                Some((header.kind, message.dest.and_then(|dest| dest.uuid()).map(|uuid| uuid.most)))
            }
            _ => None,
        })
        .collect()
}

fn views(harness: &mut Harness) -> Vec<View> {
    harness
        .take_up_events()
        .into_iter()
        .filter_map(|event| match event {
            Event::View(view) => Some(view),
            _ => None,
        })
        .collect()
}

fn joined(numbers: &[u64]) -> Harness {
    let mut harness = harness(1);
    harness.lower(Event::Connect);
    let rows: Vec<(u64, u64, u64)> = numbers.iter().map(|&n| (n, 0, 0)).collect();
    if numbers[0] == 1 {
        harness.raise(Event::Found(Vec::new()));
        harness.answer_digest(digest(&[(1, 0, 0)]));
        if numbers.len() > 1 {
            for &n in &numbers[1..] {
                harness.up(request(GmsKind::JoinReq, n, n));
            }
            harness.advance(Duration::from_millis(50));
            for &n in &numbers[1..] {
                harness.up(message(GmsKind::ViewAck, n, Payload::Empty));
            }
        }
    } else {
        harness.raise(Event::Found(vec![ping(numbers[0], true, true)]));
        harness.up(message(GmsKind::JoinRsp, numbers[0], join_rsp(&view(5, numbers), &digest(&rows))));
    }
    harness.answer_digest(digest(&rows));
    harness.take_down();
    harness.take_indications();
    harness
}

/// S000-33
#[test]
fn a_member_that_finds_no_other_becomes_a_group_of_its_own() {
    let mut harness = harness(1);
    harness.lower(Event::Connect);
    assert!(matches!(
        harness.take_down_events()[..],
        [Event::Connect, Event::FindMembers { is_initial: true, .. }]
    ));
    harness.raise(Event::Found(Vec::new()));
    let events = harness.take_up_events();
    assert_eq!(events, [Event::View(view(0, &[1])), Event::Connected(Ok(()))]);
    let controls = harness.take_controls();
    assert!(controls.iter().any(|control| control == "BecomeServer"), "{controls:?}");
}

#[test]
fn among_joiners_only_the_smallest_begins() {
    let mut first = harness(1);
    first.lower(Event::Connect).raise(Event::Found(vec![ping(2, false, false)]));
    assert_eq!(views(&mut first), [view(0, &[1])]);
    let mut second = harness(2);
    second.lower(Event::Connect).raise(Event::Found(vec![ping(1, false, false)]));
    second.take_down_events();
    assert_eq!(views(&mut second), []);
    second.advance(Duration::from_millis(100));
    assert!(matches!(second.take_down_events()[..], [Event::FindMembers { .. }]), "it looks again");
}

#[test]
fn a_joiner_asks_the_coordinator_and_confirms_the_view() {
    let mut harness = harness(1);
    harness.lower(Event::Connect).raise(Event::Found(vec![ping(3, true, false), ping(2, true, true)]));
    assert_eq!(sent(&mut harness), [(GmsKind::JoinReq, Some(2))]);
    let rows = digest(&[(2, 7, 8), (3, 1, 1), (1, 0, 0)]);
    harness.up(message(GmsKind::JoinRsp, 2, join_rsp(&view(4, &[2, 3, 1]), &rows)));
    assert_eq!(views(&mut harness), [view(4, &[2, 3, 1])]);
    assert_eq!(sent(&mut harness), [(GmsKind::ViewAck, Some(2))]);
    assert!(harness.take_controls()[0].starts_with("SetDigest"));
}

#[test]
fn a_silent_coordinator_gets_repeated_requests_until_attempts_run_out() {
    let mut harness = harness(1);
    harness.lower(Event::Connect);
    for _ in 0..10 {
        harness.raise(Event::Found(vec![ping(2, true, true)]));
        assert_eq!(sent(&mut harness), [(GmsKind::JoinReq, Some(2))]);
        harness.advance(Duration::from_secs(2));
    }
    assert_eq!(views(&mut harness), [view(0, &[1])]);
}

#[test]
fn a_refusal_fails_the_join() {
    let mut harness = harness(1);
    harness.lower(Event::Connect).raise(Event::Found(vec![ping(2, true, true)]));
    let rsp = JoinRsp { fail_reason: Some("wrong token".to_owned()), ..JoinRsp::default() };
    harness.up(message(GmsKind::JoinRsp, 2, Payload::Bytes(Some(wire::encode_join_rsp(&rsp)))));
    let events = harness.take_up_events();
    assert!(matches!(&events[..], [Event::Connected(Err(why))] if why.contains("wrong token")), "{events:?}");
}

/// S000-83.
#[test]
fn joins_and_a_leave_within_the_bundling_time_make_one_view() {
    let mut harness = joined(&[1, 2]);
    for n in [3, 4, 5] {
        harness.up(request(GmsKind::JoinReq, n, n));
        harness.advance(Duration::from_millis(10));
    }
    harness.up(request(GmsKind::LeaveReq, 2, 2));
    assert_eq!(views(&mut harness), []);
    harness.advance(Duration::from_millis(20));
    let made = views(&mut harness);
    assert_eq!(made.len(), 1);
    assert_eq!(made[0].members(), [member(1), member(3), member(4), member(5)]);
    assert_eq!(
        sent(&mut harness),
        [
            (GmsKind::LeaveRsp, Some(2)),
            (GmsKind::View, None),
            (GmsKind::JoinRsp, Some(3)),
            (GmsKind::JoinRsp, Some(4)),
            (GmsKind::JoinRsp, Some(5)),
        ]
    );
}

#[test]
fn the_next_view_waits_until_the_last_one_is_confirmed_or_late() {
    let mut harness = joined(&[1, 2]);
    harness.up(request(GmsKind::JoinReq, 3, 3)).advance(Duration::from_millis(50));
    harness.up(request(GmsKind::JoinReq, 4, 4)).advance(Duration::from_secs(1));
    assert_eq!(views(&mut harness).len(), 1, "2 and 3 have not confirmed");
    harness.up(message(GmsKind::ViewAck, 2, Payload::Empty));
    harness.up(message(GmsKind::ViewAck, 3, Payload::Empty)).advance(Duration::from_millis(50));
    assert_eq!(views(&mut harness).len(), 1);
    harness.up(request(GmsKind::JoinReq, 5, 5)).advance(Duration::from_millis(2_100));
    assert_eq!(views(&mut harness).len(), 1, "after two seconds the confirmations are given up");
}

#[test]
fn the_first_view_is_full_and_later_ones_are_deltas() {
    let mut harness = joined(&[1]);
    let mut forms = Vec::new();
    for n in [2, 3] {
        harness.up(request(GmsKind::JoinReq, n, n)).advance(Duration::from_millis(50));
        for message in harness.take_down() {
            if message.is_multicast() {
                let bytes = message.payload_bytes().unwrap().clone();
                forms.push(wire::decode_view_and_digest(&bytes).unwrap().0.unwrap());
            }
        }
        harness.answer_digest(digest(&[(1, 0, 0), (2, 0, 0)]));
        harness.up(message(GmsKind::ViewAck, 2, Payload::Empty));
        harness.up(message(GmsKind::ViewAck, 3, Payload::Empty));
    }
    assert!(matches!(&forms[0], ViewForm::Full(_)), "{forms:?}");
    assert!(matches!(&forms[1], ViewForm::Delta(delta) if delta.joined == [member(3)]), "{forms:?}");
}

#[test]
fn a_delta_of_an_unknown_view_triggers_a_request_for_the_full_view() {
    let mut harness = joined(&[2, 1]);
    let delta = DeltaView {
        id: ViewId { creator: member(2), id: 8 },
        reference: ViewId { creator: member(2), id: 7 },
        left: vec![],
        joined: vec![member(3)],
    };
    let payload = wire::encode_view_and_digest(Some(&ViewForm::Delta(delta)), None);
    harness.up(message(GmsKind::View, 2, Payload::Bytes(Some(payload))));
    assert_eq!(sent(&mut harness), [(GmsKind::GetCurrentView, Some(2))]);
    harness.up(message(GmsKind::View, 2, full(&view(8, &[2, 1, 3]), None)));
    assert_eq!(views(&mut harness), [view(8, &[2, 1, 3])]);
}

/// A window past the view's seqno never delivers it.
#[test]
fn after_a_state_transfer_the_coordinator_is_asked_for_a_newer_view() {
    let mut harness = joined(&[2, 1]);
    let own = harness.stack.shared().view.as_ref().unwrap().id().clone();
    harness.overwrite_digest(digest(&[(2, 9, 9)]));
    let mut asked = harness.take_down();
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].dest, Some(member(2)));
    assert_eq!(asked[0].flags, Flags::OOB | Flags::NO_FC);
    let id = wire::decode_view_id_option(asked[0].payload_bytes().unwrap()).unwrap();
    assert_eq!(id, Some(own));
    let header = asked[0].headers.take(ProtocolId::GMS).unwrap();
    assert!(matches!(header, HeaderBody::Gms(header) if header.kind == GmsKind::GetCurrentView));
    harness.up(message(GmsKind::View, 2, full(&view(8, &[2, 1, 3]), None)));
    assert_eq!(views(&mut harness), [view(8, &[2, 1, 3])]);
}

#[test]
fn older_views_and_views_without_this_member_are_not_installed() {
    let mut harness = joined(&[2, 1, 3]);
    harness.up(message(GmsKind::View, 2, full(&view(5, &[2, 1]), None)));
    harness.up(message(GmsKind::View, 2, full(&view(6, &[2, 3]), None)));
    assert_eq!(views(&mut harness), []);
}

#[test]
fn the_next_in_line_takes_over_when_all_before_it_are_suspected() {
    let mut harness = joined(&[2, 3, 1, 4]);
    harness.raise(Event::Suspect(vec![member(2)])).advance(Duration::from_millis(50));
    assert_eq!(views(&mut harness), [], "3 is next");
    harness.raise(Event::Suspect(vec![member(3)])).advance(Duration::from_millis(50));
    assert_eq!(views(&mut harness), [view(6, &[1, 4])]);
    assert_eq!(sent(&mut harness), [(GmsKind::View, None)]);
}

#[test]
fn an_unsuspected_member_stays() {
    let mut harness = joined(&[1, 2, 3]);
    harness.raise(Event::Suspect(vec![member(2)])).raise(Event::Unsuspect(vec![member(2)]));
    harness.advance(Duration::from_secs(1));
    assert_eq!(views(&mut harness), []);
}

#[test]
fn a_merge_leader_is_no_longer_suspected() {
    let mut harness = joined(&[2, 1, 3]);
    let request = Payload::Bytes(Some(wire::encode_address_list(&[member(1)])));
    harness.answer_digest(digest(&[(1, 4, 4)]));
    harness.up(merge_message(GmsKind::MergeReq, 2, 7, 2, request));
    harness.raise(Event::Suspect(vec![member(2)]));
    let merged = View::merged(
        ViewId { creator: member(2), id: 9 },
        vec![member(2), member(1), member(3)],
        vec![view(5, &[2, 3]), view(8, &[1])],
    );
    harness.up(message(GmsKind::View, 2, full(&merged, None)));
    assert_eq!(views(&mut harness), [merged]);
    harness.advance(Duration::from_secs(20));
    assert_eq!(views(&mut harness), []);
    assert_eq!(harness.stack.attribute("GMS", "pending_requests").unwrap(), "0");
}

/// Two coordinators count the member as theirs: the leader asks it, and the other drops it.
#[test]
fn a_member_requested_by_the_leader_is_not_released_by_other_coordinators() {
    for (asked_by_leader, canceller, is_over) in [(true, 3, false), (true, 2, true), (false, 3, true)] {
        let mut harness = joined(&[3, 1]);
        harness.answer_digest(digest(&[(1, 4, 4)]));
        harness.up(merge_message(GmsKind::GetDigestReq, 3, 7, 2, Payload::Empty));
        if asked_by_leader {
            let request = Payload::Bytes(Some(wire::encode_address_list(&[member(1)])));
            harness.up(merge_message(GmsKind::MergeReq, 2, 7, 2, request));
        }
        harness.up(merge_message(GmsKind::CancelMerge, canceller, 7, 2, Payload::Empty));
        let is_merging = harness.stack.attribute("GMS", "merge_in_progress").unwrap() == "true";
        assert_eq!(is_merging, !is_over, "{asked_by_leader} {canceller}");
    }
}

#[test]
fn a_participant_leaves_after_a_response_or_the_timeout() {
    for is_answered in [true, false] {
        let mut harness = joined(&[2, 1, 3]);
        harness.lower(Event::Disconnect);
        assert_eq!(sent(&mut harness), [(GmsKind::LeaveReq, Some(2))]);
        if is_answered {
            harness.up(message(GmsKind::LeaveRsp, 2, Payload::Empty));
        } else {
            assert_eq!(harness.take_up_events(), []);
            harness.advance(Duration::from_secs(1));
        }
        assert_eq!(harness.take_up_events(), [Event::Disconnected]);
        assert!(harness.take_down_events().contains(&Event::Disconnect));
        assert_eq!(harness.stack.shared().view, None);
    }
}

#[test]
fn a_leaving_coordinator_sends_its_request_to_the_next_in_line() {
    let mut harness = joined(&[1, 2, 3]);
    harness.lower(Event::Disconnect);
    assert_eq!(sent(&mut harness), [(GmsKind::LeaveReq, Some(2))]);
}

#[test]
fn a_leaving_coordinator_passes_on_other_leavers() {
    let mut harness = joined(&[1, 2, 3]);
    harness.lower(Event::Disconnect);
    harness.take_down();
    harness.up(request(GmsKind::LeaveReq, 2, 2));
    assert_eq!(sent(&mut harness), [(GmsKind::LeaveReq, Some(3)), (GmsKind::LeaveReq, Some(3))]);
    assert_eq!(views(&mut harness), [], "it makes no more views");
}

#[test]
fn the_next_in_line_makes_the_view_without_the_leaving_coordinator() {
    let mut harness = joined(&[2, 1, 3]);
    harness.up(request(GmsKind::LeaveReq, 2, 2)).advance(Duration::from_millis(50));
    assert_eq!(views(&mut harness), [view(6, &[1, 3])]);
    assert_eq!(sent(&mut harness), [(GmsKind::LeaveRsp, Some(2)), (GmsKind::View, None)]);
}

fn merge_message(kind: GmsKind, from: u64, number: i32, initiator: u64, payload: Payload) -> Message {
    let mut message = message(kind, from, payload);
    let header = merge_header(kind, &MergeId { initiator: member(initiator), id: number });
    message.headers.put(ProtocolId::GMS, HeaderBody::Gms(Box::new(header)));
    message
}

#[test]
fn the_leader_collects_both_groups_and_makes_one_view() {
    let mut harness = joined(&[1, 3]);
    harness.answer_digest(digest(&[(1, 4, 4)]));
    let own = harness.stack.shared().view.clone().unwrap();
    let other = view(9, &[2, 4]);
    harness.raise(Event::MergeViews(vec![(member(1), own.clone()), (member(2), other.clone())]));
    let asked = sent(&mut harness);
    assert_eq!(asked, [(GmsKind::MergeReq, Some(2)), (GmsKind::GetDigestReq, None)]);
    let row = |n, seqno| {
        Payload::Bytes(Some(wire::encode_view_and_digest(None, Some(&digest(&[(n, seqno, seqno)])))))
    };
    harness.up(message(GmsKind::GetDigestRsp, 3, row(3, 6)));
    let answer = full(&other, Some(&digest(&[(2, 10, 11), (4, 1, 1)])));
    harness.up(merge_message(GmsKind::MergeRsp, 2, 1, 1, answer));
    let made = views(&mut harness);
    assert_eq!(made.len(), 1);
    assert_eq!(made[0].id(), &ViewId { creator: member(1), id: 10 });
    assert_eq!(made[0].members(), [member(1), member(3), member(2), member(4)]);
    assert_eq!(made[0].subgroups().map(<[View]>::len), Some(2));
    assert_eq!(sent(&mut harness), [(GmsKind::InstallMergeView, Some(2)), (GmsKind::View, None)]);
}

#[test]
fn a_silent_group_is_not_part_of_the_merge() {
    let mut harness = joined(&[1]);
    harness.answer_digest(digest(&[(1, 4, 4)]));
    let own = harness.stack.shared().view.clone().unwrap();
    let views_seen = vec![(member(1), own), (member(2), view(9, &[2])), (member(3), view(2, &[3]))];
    harness.raise(Event::MergeViews(views_seen));
    harness.up(merge_message(GmsKind::MergeRsp, 3, 1, 1, full(&view(2, &[3]), Some(&digest(&[(3, 1, 1)])))));
    assert_eq!(views(&mut harness), []);
    harness.advance(Duration::from_secs(5));
    let made = views(&mut harness);
    assert_eq!(made[0].members(), [member(1), member(3)]);
    assert!(sent(&mut harness).contains(&(GmsKind::CancelMerge, Some(2))));
}

/// The digest request has made it take part. Without cancellation it would refuse merges for seconds.
#[test]
fn the_merge_is_cancelled_for_an_excluded_member_of_another_group() {
    let mut harness = joined(&[1, 3, 5]);
    harness.answer_digest(digest(&[(1, 4, 4)]));
    let own = harness.stack.shared().view.clone().unwrap();
    let other = view(9, &[2, 5, 4]);
    let seen = vec![(member(1), own), (member(2), other.clone()), (member(5), other.clone())];
    harness.raise(Event::MergeViews(seen));
    let row = wire::encode_view_and_digest(None, Some(&digest(&[(3, 6, 6)])));
    harness.up(message(GmsKind::GetDigestRsp, 3, Payload::Bytes(Some(row))));
    sent(&mut harness);
    // Member 5 was late for its own coordinator.
    let answer = full(&view(9, &[2, 4]), Some(&digest(&[(2, 10, 11), (4, 1, 1)])));
    harness.up(merge_message(GmsKind::MergeRsp, 2, 1, 1, answer));
    assert_eq!(views(&mut harness)[0].members(), [member(1), member(3), member(2), member(4)]);
    assert!(sent(&mut harness).contains(&(GmsKind::CancelMerge, Some(5))));
}

#[test]
fn a_merge_that_was_cancelled_is_not_begun_by_a_late_request() {
    for (canceller, is_begun) in [(2, false), (3, true)] {
        let mut harness = joined(&[3, 1]);
        harness.answer_digest(digest(&[(1, 4, 4)]));
        harness.up(merge_message(GmsKind::CancelMerge, canceller, 7, 2, Payload::Empty));
        harness.up(merge_message(GmsKind::GetDigestReq, 3, 7, 2, Payload::Empty));
        let is_merging = harness.stack.attribute("GMS", "merge_in_progress").unwrap() == "true";
        assert_eq!(is_merging, is_begun, "cancelled by {canceller}");
    }
}

/// The leader was paused: the others may have used the number of its view.
#[test]
fn a_leader_after_the_merge_timeout_makes_no_view() {
    let mut harness = joined(&[1]);
    harness.answer_digest(digest(&[(1, 4, 4)]));
    let own = harness.stack.shared().view.clone().unwrap();
    let seen = vec![(member(1), own), (member(2), view(9, &[2])), (member(3), view(2, &[3]))];
    harness.raise(Event::MergeViews(seen));
    harness.up(merge_message(GmsKind::MergeRsp, 3, 1, 1, full(&view(2, &[3]), Some(&digest(&[(3, 1, 1)])))));
    harness.stop(Duration::from_secs(11));
    assert_eq!(views(&mut harness), []);
    let cancelled = sent(&mut harness).into_iter().filter(|(kind, _)| *kind == GmsKind::CancelMerge);
    assert_eq!(cancelled.count(), 2);
}

#[test]
fn a_view_number_used_by_a_merge_in_this_members_name_is_not_reused() {
    let merged = |number| {
        let id = ViewId { creator: member(1), id: number };
        full(&View::merged(id, vec![member(1), member(2)], vec![view(5, &[2])]), Some(&digest(&[(1, 1, 1)])))
    };
    let mut harness = joined(&[1, 3]);
    let own = harness.stack.shared().view.clone().unwrap();
    // This member took part and has abandoned the merge.
    harness.up(merge_message(GmsKind::InstallMergeView, 2, 7, 2, merged(own.id().id)));
    let made = views(&mut harness);
    assert_eq!((made.len(), made[0].members()), (1, own.members()), "it would look like the merged one");
    assert_eq!(made[0].id().id, own.id().id + 1);
    harness.up(merge_message(GmsKind::InstallMergeView, 2, 8, 2, merged(own.id().id + 7)));
    assert_eq!(views(&mut harness), []);
    harness.advance(Duration::from_secs(3));
    harness.raise(Event::Suspect(vec![member(3)])).advance(Duration::from_secs(1));
    assert_eq!(views(&mut harness), [view(own.id().id + 8, &[1])]);
}

#[test]
fn during_a_merge_requests_wait_and_it_ends_by_itself() {
    let mut harness = joined(&[1]);
    harness.answer_digest(digest(&[(1, 4, 4)]));
    let payload = Payload::Bytes(Some(wire::encode_address_list(&[member(1)])));
    harness.up(merge_message(GmsKind::MergeReq, 2, 7, 2, payload));
    assert_eq!(sent(&mut harness), [(GmsKind::MergeRsp, Some(2))]);
    harness.up(request(GmsKind::JoinReq, 5, 5)).advance(Duration::from_secs(9));
    assert_eq!(views(&mut harness), []);
    harness.advance(Duration::from_secs(2));
    assert_eq!(views(&mut harness).len(), 1, "the join is served after the merge has timed out");
}

#[test]
fn a_merged_view_raises_windows_before_it_is_installed() {
    let mut harness = joined(&[2, 1]);
    harness.take_controls();
    assert_eq!(harness.count(StackCount::Merges), 0);
    let merged = View::merged(
        ViewId { creator: member(2), id: 9 },
        vec![member(2), member(1), member(3)],
        vec![view(5, &[2, 1]), view(8, &[3])],
    );
    let rows = digest(&[(2, 0, 0), (1, 0, 0), (3, 4, 4)]);
    harness.up(message(GmsKind::View, 2, full(&merged, Some(&rows))));
    let controls = harness.take_controls();
    assert!(controls[0].starts_with("MergeDigest") && controls[1].starts_with("View"), "{controls:?}");
    let installed = harness.take_indications();
    assert!(matches!(&installed[..], [Indication::Event(Event::View(view))] if view.is_merge()));
    assert_eq!(harness.count(StackCount::Merges), 1);
}

#[test]
fn invalid_messages_are_counted() {
    let mut harness = joined(&[2, 1]);
    harness.up(message(GmsKind::View, 2, Payload::Bytes(Some(vec![0xff; 9].into()))));
    harness.up(message(GmsKind::View, 9, full(&view(8, &[9, 1]), None)));
    harness.up(merge_message(GmsKind::MergeReq, 2, 7, 2, Payload::Bytes(Some(vec![0x7f; 4].into()))));
    let drops = &harness.stack.shared().drops;
    assert_eq!(drops.total(crate::DropReason::Malformed), 2);
    assert_eq!(views(&mut harness).len(), 1, "a newer view with this member and its sender is installed");
}

#[test]
fn a_late_response_lets_in_a_member_that_sent_nothing_alone() {
    for (sent, is_let_in) in [(0, true), (3, false)] {
        let mut harness = joined(&[1]);
        harness.answer_digest(digest(&[(1, sent, sent)]));
        let rows = digest(&[(2, 7, 7), (1, 0, 0)]);
        harness.up(message(GmsKind::JoinRsp, 2, join_rsp(&view(6, &[2, 1]), &rows)));
        assert_eq!(views(&mut harness).len(), usize::from(is_let_in), "after {sent} messages");
    }
}

#[test]
fn a_participant_of_another_merge_refuses() {
    let mut harness = joined(&[1]);
    harness.answer_digest(digest(&[(1, 4, 4)]));
    let request = |initiator| {
        let members = Payload::Bytes(Some(wire::encode_address_list(&[member(1)])));
        merge_message(GmsKind::MergeReq, initiator, 7, initiator, members)
    };
    harness.up(request(2));
    harness.take_down();
    harness.up(request(3));
    let answer = harness.take_down().remove(0);
    assert_eq!(answer.dest, Some(member(3)));
    let header = answer.headers.get(ProtocolId::GMS);
    assert!(
        matches!(header, Some(HeaderBody::Gms(header)) if header.kind == GmsKind::MergeRsp && header.merge_rejected)
    );
}

/// A coordinator sent its last view to this member only, and crashed.
#[test]
fn a_group_with_two_views_of_one_number_merges_with_itself() {
    let mut harness = joined(&[1, 3]);
    harness.answer_digest(digest(&[(1, 4, 4)]));
    let own = harness.stack.shared().view.clone().unwrap();
    let other = view(own.id().id, &[2, 1, 3]);
    harness.raise(Event::MergeViews(vec![(member(1), own.clone()), (member(3), other)])).take_down();
    let row = Payload::Bytes(Some(wire::encode_view_and_digest(None, Some(&digest(&[(3, 6, 6)])))));
    harness.up(message(GmsKind::GetDigestRsp, 3, row)).take_down();
    harness.advance(Duration::from_secs(5));
    let made = views(&mut harness);
    assert_eq!(made[0].members(), [member(1), member(3)]);
    assert_eq!(made[0].id().id, own.id().id + 1);
    assert!(made[0].is_merge());
}

/// Members that keep waiting would miss the next merge.
#[test]
fn a_merge_that_fails_is_cancelled_for_the_own_group_too() {
    let mut harness = joined(&[1, 3]);
    harness.answer_digest(digest(&[(1, 4, 4)]));
    let own = harness.stack.shared().view.clone().unwrap();
    harness.raise(Event::MergeViews(vec![(member(1), own), (member(2), view(9, &[2]))]));
    let row = Payload::Bytes(Some(wire::encode_view_and_digest(None, Some(&digest(&[(3, 6, 6)])))));
    harness.up(message(GmsKind::GetDigestRsp, 3, row)).take_down();
    harness.advance(Duration::from_secs(5));
    let cancelled = [(GmsKind::CancelMerge, Some(2)), (GmsKind::CancelMerge, Some(3))];
    assert_eq!(sent(&mut harness), cancelled);
}
