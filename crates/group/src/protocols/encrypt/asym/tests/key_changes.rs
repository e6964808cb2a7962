//! Keys that change with views, and members that missed one.

use super::*;

/// Facts section 22.3, vector 31.
#[test]
fn the_key_changes_with_the_view_that_removes_a_leaver() {
    let mut members = group(3);
    let before = version(&members[0]);
    let next = view(4, &[1, 2]);
    let sent = leave(&mut members, 0, &next);
    let used = |message: &Message| hex(header_of(message).version.as_ref().unwrap());
    assert_eq!(used(&sent[0]), before, "the leaver can read its response");
    assert!(used(&sent[1]) != before && used(&sent[1]) == used(&sent[2]));
    let keys = keys_of(&sent[1]);
    assert_eq!(keys.iter().map(|keys| &keys.member).collect::<Vec<_>>(), [&member(1), &member(2)]);
    assert!(keys.iter().all(|keys| keys.shared.len() == 128));
    assert_eq!(members[2].up(sent[0].clone()).take_up().len(), 1);
    members[2].up_batch(sent[1..].to_vec());
    assert_eq!(members[2].take_up(), [], "the former member reads neither view nor messages");
    assert_eq!(members[1].up_batch(sent[1..].to_vec()).take_up().len(), 2);
    let (one, two) = (version(&members[0]), version(&members[1]));
    assert_eq!(one, two);
}

#[test]
fn the_key_stays_after_a_leave_without_the_option() {
    let keeps = AsymEncryptConfig { change_key_on_leave: false, ..config() };
    let mut members = group_of(3, |n| member_with(n, keeps.clone()));
    let before = version(&members[0]);
    leave(&mut members, 0, &view(4, &[1, 2]));
    assert_eq!(version(&members[0]), before);
}

#[test]
fn a_new_coordinator_makes_a_key_unless_the_option_is_off() {
    for changes in [true, false] {
        let config =
            AsymEncryptConfig { change_key_on_leave: false, change_key_on_coord_leave: changes, ..config() };
        let mut members = group_of(3, |n| member_with(n, config.clone()));
        let before = version(&members[1]);
        let next = view(4, &[2, 3]);
        members[1].install(next.clone());
        let sent = sent_by(&mut members[1], 2, vec![view_message(&next), text("after")]);
        assert_eq!(members[2].up_batch(sent).take_up().len(), 2);
        assert_eq!(version(&members[1]) != before, changes);
        let (two, three) = (version(&members[1]), version(&members[2]));
        assert_eq!(two, three);
    }
}

#[test]
fn a_last_member_changes_the_key_after_its_response_to_the_leaver() {
    let mut members = group(2);
    let before = version(&members[0]);
    members[0].install(view(3, &[1]));
    let rsp = gms_message(gms(GmsKind::LeaveRsp), Some(2), Payload::Empty);
    let sent = sent_by(&mut members[0], 1, vec![rsp, text("alone")]);
    assert_eq!(members[1].up(sent[0].clone()).take_up().len(), 1);
    assert_eq!(members[1].up(sent[1].clone()).take_up(), []);
    assert_ne!(version(&members[0]), before);
}

/// Messages in flight when the key changes.
#[test]
fn a_former_key_decrypts_messages_of_members_for_a_while() {
    let mut members = group(3);
    let in_flight = sent_by(&mut members[1], 2, vec![text("in flight")]);
    let former = sent_by(&mut members[2], 3, vec![Message::bytes(Some(member(1)), "of a former member")]);
    leave(&mut members, 0, &view(4, &[1, 2]));
    let one = &mut members[0];
    assert_eq!(payloads(&one.up(in_flight[0].clone()).take_up()), [b"in flight"]);
    assert_eq!(one.up(former[0].clone()).take_up(), [], "a former member's key is not accepted from it");
    one.advance(FORMER_KEY_TIME + Duration::from_secs(1));
    assert_eq!(one.up(in_flight[0].clone()).take_up(), []);
    assert_eq!(one.stack.attribute("ASYM_ENCRYPT", "num_former_keys").as_deref(), Some("0"));
}

#[test]
fn former_keys_are_limited_in_number() {
    for (most, wanted) in [(0, "0"), (2, "2"), (20, "20")] {
        let mut one = member_with(1, AsymEncryptConfig { key_map_max_size: most, ..config() });
        one.install(view(1, &[1]));
        for id in 0..60 {
            one.install(view(2 * id + 2, &[1, 2])).install(view(2 * id + 3, &[1]));
            one.send(text("makes a key"));
        }
        assert_eq!(one.stack.attribute("ASYM_ENCRYPT", "num_former_keys").as_deref(), Some(wanted));
    }
}

/// Views of one coordinator come in order, but a merge's may overtake, and an attacker may hold one back.
#[test]
fn of_two_views_with_keys_in_swapped_order_the_later_ones_key_stays() {
    let mut members = group(4);
    let earlier = leave(&mut members, 0, &view(5, &[1, 2, 3])).remove(1);
    let later = leave(&mut members, 0, &view(6, &[1, 2])).remove(1);
    let now = version(&members[0]);
    assert_eq!(members[1].up(later).take_up().len(), 1);
    assert_eq!(version(&members[1]), now);
    assert_eq!(members[1].up(earlier).take_up().len(), 1, "GMS ignores it");
    assert_eq!(version(&members[1]), now);
}

/// The leader makes the key; both groups have it with the merge view.
#[test]
fn merging_groups_get_a_common_key() {
    let mut all: Vec<Harness> = (1..=4).map(new_member).collect();
    let (left, right) = all.split_at_mut(2);
    for (first, group) in [(1, left), (3, right)] {
        let (one, two) = group.split_at_mut(1);
        one[0].install(view(1, &[first])).take_up_events();
        join((first, &mut one[0]), (first + 1, &mut two[0]), &mut [], &view(2, &[first, first + 1]));
    }
    let before = [version(&all[0]), version(&all[2])];
    let id = MergeId { initiator: member(1), id: 1 };
    let header = |kind| GmsHeader { merge_id: Some(id.clone()), ..gms(kind) };
    let request =
        sent_by(&mut all[0], 1, vec![gms_message(header(GmsKind::MergeReq), Some(3), Payload::Empty)]);
    assert_eq!(all[2].up_batch(request).take_up().len(), 1);
    let answer = gms_message(header(GmsKind::MergeRsp), Some(1), view_payload(&view(2, &[3, 4])));
    let answer = sent_by(&mut all[2], 3, vec![answer]);
    assert_eq!(keys_of(&answer[0]).len(), 2);
    assert_eq!(all[0].up_batch(answer).take_up().len(), 1);
    // As GMS: the leader installs the view before the message to the other coordinator passes.
    let merged = View::merged(
        ViewId { creator: member(1), id: 3 },
        [1, 2, 3, 4].map(member),
        [view(2, &[1, 2]), view(2, &[3, 4])],
    );
    all[0].install(merged.clone());
    let install = gms_message(header(GmsKind::InstallMergeView), Some(3), view_payload(&merged));
    let sent = sent_by(&mut all[0], 1, vec![install.clone(), view_message(&merged)]);
    assert_eq!(all[1].up(sent[1].clone()).install(merged.clone()).take_up().len(), 1);
    assert_eq!(all[2].up(sent[0].clone()).take_up().len(), 1);
    assert_eq!(
        version(&all[2]),
        before[1],
        "GMS may ignore the view, and the other members have the former key"
    );
    all[2].install(merged.clone());
    let view_of_three = sent_by(&mut all[2], 3, vec![view_message(&merged)]);
    assert!(keys_of(&view_of_three[0]).iter().all(|keys| !keys.shared.is_empty()));
    assert_eq!(all[3].up_batch(view_of_three).install(merged).take_up().len(), 1);
    let after: Vec<String> = all.iter().map(version).collect();
    assert!(after.iter().all(|version| *version == after[0]), "{after:?}");
    assert!(!before.contains(&after[0]));
    // A retransmission makes no other key.
    let again = sent_by(&mut all[0], 1, vec![install]);
    assert_eq!(hex(header_of(&again[0]).version.as_ref().unwrap()), after[0]);
    for sender in 0..4 {
        let sent = sent_by(&mut all[sender], sender as u64 + 1, vec![text("merged")]);
        for receiver in (0..4).filter(|receiver| *receiver != sender) {
            assert_eq!(payloads(&all[receiver].up(sent[0].clone()).take_up()), [b"merged"]);
        }
    }
}

/// The merge view waits at UNICAST behind messages that only the merge's key makes readable. JGroups installs the key at once.
#[test]
fn the_key_of_a_merge_view_that_waits_decrypts_its_leaders_messages() {
    let (mut left, mut right, mut rogue) = (group(2), new_member(3), new_member(4));
    right.install(view(1, &[3]));
    rogue.install(view(1, &[4]));
    let blocked = |to| Message::bytes(Some(member(to)), "blocked");
    let before = sent_by(&mut left[0], 1, vec![blocked(3)]);
    assert_eq!(right.up(before[0].clone()).take_up(), []);
    let id = MergeId { initiator: member(1), id: 1 };
    let header = |kind| GmsHeader { merge_id: Some(id.clone()), ..gms(kind) };
    let request = gms_message(header(GmsKind::MergeReq), Some(3), Payload::Empty);
    let request = sent_by(&mut left[0], 1, vec![request]);
    let received = right.up_batch(request).take_up();
    assert!(received[0].transient.has(Transient::BEFORE_CONNECTION), "{received:?}");
    let answer = gms_message(header(GmsKind::MergeRsp), Some(1), view_payload(&view(1, &[3])));
    let answer = sent_by(&mut right, 3, vec![answer]);
    let received = left[0].up_batch(answer).take_up();
    assert!(received[0].transient.has(Transient::BEFORE_CONNECTION), "{received:?}");
    let merged = View::merged(ViewId { creator: member(1), id: 4 }, [1, 2, 3].map(member), []);
    left[0].install(merged.clone());
    let install = gms_message(header(GmsKind::InstallMergeView), Some(3), view_payload(&merged));
    let again = sent_by(&mut left[0], 1, vec![install, blocked(3)]);
    let own = version(&right);
    assert_eq!(right.up_batch(again).take_up().len(), 2);
    assert_eq!(version(&right), own, "until GMS installs the view, the group keeps its key");
    // The request for the rest.
    let request = Message::new(Some(member(1)), object("2"));
    let sent = sent_by(&mut right, 3, vec![request, Message::bytes(Some(member(4)), "to another")]);
    assert_eq!(hex(header_of(&sent[0]).version.as_ref().unwrap()), version(&left[0]));
    assert_eq!(hex(header_of(&sent[1]).version.as_ref().unwrap()), own);
    assert_eq!(left[0].up(sent[0].clone()).take_up().len(), 1);
    // The key is the leader's alone until then.
    let mut of_another = sent_by(&mut left[0], 1, vec![blocked(3)]);
    of_another[0].src = Some(member(4));
    assert_eq!(right.up_batch(of_another).take_up(), []);
    // GMS may ignore the view; then the key serves no longer than the leader keeps it.
    right.advance(FORMER_KEY_TIME + Duration::from_secs(1));
    let sent = sent_by(&mut right, 3, vec![Message::new(Some(member(1)), object("3"))]);
    assert_eq!(hex(header_of(&sent[0]).version.as_ref().unwrap()), own);
}

/// The leader sends an earlier merge's view again, with its current key.
#[test]
fn an_earlier_merge_view_does_not_take_away_the_key_of_a_later_one() {
    let (mut left, mut right) = (group(2), new_member(3));
    right.install(view(1, &[3]));
    let id = MergeId { initiator: member(1), id: 1 };
    let header = |kind| GmsHeader { merge_id: Some(id.clone()), ..gms(kind) };
    let answer = gms_message(header(GmsKind::MergeRsp), Some(1), view_payload(&view(1, &[3])));
    let request = gms_message(header(GmsKind::MergeReq), Some(3), Payload::Empty);
    sent_by(&mut left[0], 1, vec![request]);
    let answer = sent_by(&mut right, 3, vec![answer]);
    left[0].up_batch(answer);
    let merged = |id| View::merged(ViewId { creator: member(1), id }, [1, 2, 3].map(member), []);
    left[0].install(merged(5));
    let install = |id| gms_message(header(GmsKind::InstallMergeView), Some(3), view_payload(&merged(id)));
    let sent = sent_by(&mut left[0], 1, vec![install(5), install(4)]);
    assert_eq!(right.up_batch(sent).take_up().len(), 2);
    right.install(merged(4));
    assert_ne!(version(&right), version(&left[0]));
    right.install(merged(5));
    assert_eq!(version(&right), version(&left[0]));
}

/// It has no payload, and without it the members of another group would refuse merges until a timeout.
#[test]
fn the_end_of_a_merge_is_understood_without_the_key() {
    let (mut one, mut two) = (new_member(1), new_member(2));
    one.install(view(1, &[1]));
    two.install(view(1, &[2]));
    let cancel = gms_message(gms(GmsKind::CancelMerge), Some(2), Payload::Empty);
    let leave = gms_message(gms(GmsKind::LeaveReq), Some(2), Payload::Empty);
    let sent = sent_by(&mut one, 1, vec![cancel, leave]);
    assert_eq!(header_of(&sent[0]).kind, 0, "as JGroups sends it");
    let received = two.up_batch(sent).take_up();
    assert_eq!(
        received.iter().map(|message| gms_header(message).unwrap().kind).collect::<Vec<_>>(),
        [GmsKind::CancelMerge]
    );
}

/// Only the number of the last multicast shows the loss of the view, and only its retransmission brings the key.
#[test]
fn a_member_that_missed_the_view_gets_the_key_with_the_retransmission() {
    let mut members = group(3);
    let next = view(4, &[1, 2]);
    let lost = leave(&mut members, 0, &next);
    let highest = HeaderBody::NakAck2(NakAckHeader::HighestSeqno { seqno: 2 });
    let highest = Message::empty(None).with_header(ProtocolId::NAKACK2, highest);
    let sent = sent_by(&mut members[0], 1, vec![highest.clone()]);
    assert_eq!(members[1].up(lost[2].clone()).take_up(), []);
    assert_eq!(members[1].up(sent[0].clone()).take_up().len(), 1);
    let mut of_stranger = sent[0].clone();
    of_stranger.src = Some(member(5));
    assert_eq!(members[1].up(of_stranger).take_up(), []);
    // The request has the former key.
    let request = HeaderBody::NakAck2(NakAckHeader::XmitReq { sender: Box::new(member(1)) });
    let request = Message::new(Some(member(1)), object("1")).with_header(ProtocolId::NAKACK2, request);
    let request = sent_by(&mut members[1], 2, vec![request]);
    assert_eq!(members[0].up_batch(request).take_up().len(), 1);
    let mut answer = view_message(&next);
    answer.dest = Some(member(2));
    answer.headers.put(ProtocolId::NAKACK2, HeaderBody::NakAck2(NakAckHeader::XmitRsp { seqno: 1 }));
    let answer = sent_by(&mut members[0], 1, vec![answer]);
    let shared: Vec<bool> = keys_of(&answer[0]).iter().map(|keys| !keys.shared.is_empty()).collect();
    assert_eq!(shared, [false, true]);
    assert_eq!(members[1].up_batch(answer).take_up().len(), 1);
    assert_eq!(payloads(&members[1].up(lost[2].clone()).take_up()), [b"later"]);
}

#[test]
fn nothing_remains_of_a_group_that_the_member_has_left() {
    let mut members = group(2);
    let sent = sent_by(&mut members[0], 1, vec![Message::bytes(Some(member(2)), "secret")]);
    members[1].lower(Event::Disconnect).take_down_events();
    assert_eq!(version(&members[1]), "");
    assert_eq!(members[1].up(sent[0].clone()).take_up(), []);
    assert_eq!(members[1].send(text("x")).take_down(), []);
}
