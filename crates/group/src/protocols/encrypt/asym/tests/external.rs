//! A protocol below exchanges the keys.

use super::*;
use crate::harness::phys;
use crate::{KeyRequest, PhysAddr};

fn external() -> AsymEncryptConfig {
    AsymEncryptConfig { use_external_key_exchange: true, ..config() }
}

fn external_member(n: u64) -> Harness {
    let layer = AsymEncrypt::new(external(), KeyPair::absent(), random(n + 100)).unwrap();
    Harness::with_layers(n, vec![Box::new(layer)])
}

/// The requests for keys since the last call, and the key that the member serves.
fn key_events(member: &mut Harness) -> (Vec<KeyRequest>, Option<SecretKey>) {
    let (mut requests, mut served) = (Vec::new(), None);
    for event in member.take_down_events() {
        match event {
            Event::FetchSecretKey(request) => requests.push(*request),
            Event::ServeSecretKey(key) => served = Some(key),
            _ => {}
        }
    }
    (requests, served)
}

/// Member 1 has sent the message.
fn request_at(server: Option<PhysAddr>, version: &Bytes) -> Box<KeyRequest> {
    Box::new(KeyRequest { version: version.clone(), server, sender: member(1), key_length: 16 })
}

fn fetched(member: &mut Harness, key: &SecretKey) {
    let request = request_at(None, &key.version());
    member.raise(Event::SecretKeyFetched { request, key: Ok(key.clone()) });
}

fn not_fetched(member: &mut Harness, server: Option<PhysAddr>, version: &Bytes) {
    let request = request_at(server, version);
    member.raise(Event::SecretKeyFetched { request, key: Err("no server".to_owned()) });
}

fn served_at(message: &mut Message, server: PhysAddr) {
    let Some(HeaderBody::Encrypt(mut header)) = message.headers.take(ID) else { panic!("no header") };
    header.server = Some(Address::Ip(server));
    message.headers.put(ID, HeaderBody::Encrypt(header));
}

/// Members 1 to `count`, each of which has fetched the key of member 1.
fn external_group(count: u64) -> (Vec<Harness>, SecretKey) {
    let mut members: Vec<Harness> = (1..=count).map(external_member).collect();
    members[0].install(view(1, &[1])).take_up_events();
    let key = key_events(&mut members[0]).1.expect("the coordinator serves its key");
    for n in 2..=count {
        let next = view(n, &(1..=n).collect::<Vec<_>>());
        let (before, joiner) = members.split_at_mut(n as usize - 1);
        let request = sent_by(&mut joiner[0], n, vec![join_req(1)]);
        assert!(request[0].headers.get(ID).is_none() && request[0].payload == Payload::Bytes(None));
        assert_eq!(before[0].up_batch(request).take_up().len(), 1);
        before[0].install(next.clone());
        let sent = sent_by(&mut before[0], 1, vec![view_message(&next), join_rsp(n, &next)]);
        assert_eq!((header_of(&sent[0]).kind, header_of(&sent[1]).kind), (0, 2), "only joiners lack the key");
        for other in &mut before[1..] {
            assert_eq!(other.up(sent[0].clone()).install(next.clone()).take_up().len(), 1);
        }
        let joiner = &mut joiner[0];
        assert_eq!(joiner.up(sent[1].clone()).take_up(), [], "the response waits for the key");
        let requests = key_events(joiner).0;
        assert_eq!(requests, [*request_at(None, &key.version())]);
        fetched(joiner, &key);
        let received = joiner.take_up();
        let rsp = wire::decode_join_rsp(received[0].payload_bytes().unwrap()).unwrap();
        assert_eq!(rsp.view.as_ref(), Some(&next));
        joiner.install(next.clone()).take_up_events();
    }
    members.iter_mut().for_each(|member| {
        member.take_up_events();
        member.take_down();
        member.take_down_events();
    });
    (members, key)
}

#[test]
fn joiner_fetches_the_key_and_all_read_each_other() {
    let (mut members, _) = external_group(3);
    for sender in 0..3 {
        let sent = sent_by(&mut members[sender], sender as u64 + 1, vec![text("a secret")]);
        assert!(!wire::encode_body(&sent[0]).windows(6).any(|window| window == b"secret"));
        for receiver in (0..3).filter(|receiver| *receiver != sender) {
            assert_eq!(payloads(&members[receiver].up(sent[0].clone()).take_up()), [b"a secret"]);
        }
    }
    // As with the built-in exchange, these go in clear.
    for kind in [GmsKind::ViewAck, GmsKind::MergeReq, GmsKind::MergeRsp, GmsKind::GetDigestReq] {
        let sent = sent_by(&mut members[0], 1, vec![gms_message(gms(kind), Some(2), Payload::Empty)]);
        assert!(sent[0].headers.get(ID).is_none(), "{kind:?}");
        assert_eq!(members[1].up(sent[0].clone()).take_up().len(), 1, "{kind:?}");
    }
}

#[test]
fn changed_key_is_fetched_once_from_the_named_server() {
    let (mut members, before) = external_group(3);
    let next = view(4, &[1, 2]);
    let mut sent = leave(&mut members, 0, &next);
    let key = key_events(&mut members[0]).1.expect("a new key");
    assert_ne!(key, before);
    assert_eq!((header_of(&sent[0]).kind, header_of(&sent[1]).kind, header_of(&sent[2]).kind), (0, 2, 0));
    assert_eq!(members[2].up(sent[0].clone()).take_up().len(), 1, "the leaver can read its response");
    served_at(&mut sent[1], phys(9));
    let two = &mut members[1];
    two.up(sent[1].clone()).up(sent[1].clone());
    let (requests, _) = key_events(two);
    assert_eq!(requests, [*request_at(Some(phys(9)), &key.version())]);
    fetched(two, &key);
    assert_eq!(two.take_up().len(), 2, "both messages have waited");
    assert_eq!(payloads(&two.up(sent[2].clone()).take_up()), [b"later"]);
    assert_eq!(two.stack.attribute("ASYM_ENCRYPT", "num_received_keys").as_deref(), Some("2"));
}

/// JGroups repeats a view without naming a server, and this member's own repetition names one.
#[test]
fn view_is_repeated_after_a_failure_and_its_key_is_fetched_again() {
    let (mut members, _) = external_group(2);
    let next = view(3, &[1, 2]);
    members[0].install(view(4, &[2])).install(next.clone());
    let xmit = HeaderBody::NakAck2(NakAckHeader::XmitRsp { seqno: 1 });
    let again = view_message(&next).with_header(ProtocolId::NAKACK2, xmit);
    let rejoined = view(5, &[1, 2]);
    members[0].install(view(4, &[1])).install(rejoined.clone());
    let sent = sent_by(&mut members[0], 1, vec![view_message(&rejoined), again]);
    assert_eq!((header_of(&sent[0]).kind, header_of(&sent[1]).kind), (2, 2));
    let key = key_events(&mut members[0]).1.expect("a new key");
    let two = &mut members[1];
    two.up(sent[0].clone());
    not_fetched(two, None, &key.version());
    assert_eq!((two.take_up(), drops(two, DropReason::UnknownKey)), (vec![], 1));
    key_events(two);
    let mut by_jgroups = sent[1].clone();
    let Some(HeaderBody::Encrypt(mut header)) = by_jgroups.headers.take(ID) else { panic!("no header") };
    header.kind = 0;
    by_jgroups.headers.put(ID, HeaderBody::Encrypt(header));
    for repeated in [by_jgroups, sent[1].clone()] {
        two.up(repeated);
        assert_eq!(key_events(two).0.len(), 1);
        not_fetched(two, None, &key.version());
    }
    two.up(sent[1].clone());
    fetched(two, &key);
    assert_eq!(two.take_up().len(), 1);
}

fn merge_view(to: u64, next: &View) -> Message {
    let id = MergeId { initiator: member(1), id: 1 };
    let header = GmsHeader { merge_id: Some(id), ..gms(GmsKind::InstallMergeView) };
    gms_message(header, Some(to), view_payload(next))
}

/// Member 1 leads; member 2 is coordinator of members 2 and 3.
#[test]
fn coordinator_of_a_merged_group_names_the_server_of_the_leader() {
    let (mut group, _) = external_group(1);
    let mut one = group.remove(0);
    let (mut two, mut three) = (external_member(2), external_member(3));
    let own = view(7, &[2, 3]);
    two.install(own.clone());
    let of_two = key_events(&mut two).1.unwrap();
    let request = sent_by(&mut three, 3, vec![join_req(2)]);
    two.up_batch(request);
    let sent = sent_by(&mut two, 2, vec![join_rsp(3, &own)]);
    three.up(sent[0].clone());
    fetched(&mut three, &of_two);
    three.install(own.clone());

    let merge_rsp = sent_by(&mut two, 2, vec![gms_message(gms(GmsKind::MergeRsp), Some(1), Payload::Empty)]);
    assert_eq!(one.up_batch(merge_rsp).take_up().len(), 1);
    let next = View::merged(ViewId { creator: member(1), id: 8 }, [member(1), member(2), member(3)], []);
    let mut install = sent_by(&mut one, 1, vec![merge_view(2, &next)]);
    let merged = key_events(&mut one).1.expect("the leader makes a key");
    served_at(&mut install[0], phys(1));
    two.take_up_events();
    key_events(&mut two);
    two.up(install[0].clone());
    assert_eq!(key_events(&mut two).0[0].server, Some(phys(1)));
    fetched(&mut two, &merged);
    assert_eq!(two.take_up().len(), 1);
    assert_eq!(version(&two), hex(&of_two.version()), "GMS has not installed the view");
    two.install(next.clone());
    assert_eq!(version(&two), hex(&merged.version()));
    let sent = sent_by(&mut two, 2, vec![view_message(&next)]);
    let header = header_of(&sent[0]);
    assert_eq!((header.kind, &header.server), (2, &Some(Address::Ip(phys(1)))));
    key_events(&mut three);
    three.up(sent[0].clone());
    assert_eq!(key_events(&mut three).0[0].server, Some(phys(1)));
    fetched(&mut three, &merged);
    three.take_up_events();
    three.install(next);
    assert_eq!(version(&three), version(&two));
}

/// S000-57
#[test]
fn only_members_and_asked_coordinators_make_a_member_fetch_a_key() {
    let (mut members, key) = external_group(2);
    let (mut rogue, _) = external_group(1);
    // A rogue's group has its own key, under the same member's number.
    let next = view(9, &[1, 2]);
    rogue[0].install(next.clone());
    rogue[0].install(view(10, &[1])).install(next.clone());
    let of_rogue = |message| sent_by(&mut rogue[0], 5, vec![message]).remove(0);
    let forged = [view_message(&next), join_rsp(2, &next), merge_view(2, &next)].map(of_rogue);
    for message in forged {
        assert_eq!(header_of(&message).kind, 2);
        assert_eq!(members[1].up(message).take_up(), []);
        assert_eq!(key_events(&mut members[1]).0, []);
    }
    let mut joiner = external_member(3);
    joiner.send(join_req(1)).take_down();
    joiner.up(sent_by(&mut members[0], 4, vec![join_rsp(3, &view(3, &[1, 2, 3]))]).remove(0));
    assert_eq!(key_events(&mut joiner).0, [], "member 4 was not asked");
    assert_eq!(version(&members[1]), hex(&key.version()));
}

/// A member with an old key sends an old view again.
#[test]
fn replayed_view_does_not_bring_back_its_key() {
    let (mut members, _) = external_group(3);
    let sent = leave(&mut members, 0, &view(4, &[1, 2]));
    let former = key_events(&mut members[0]).1.unwrap();
    let two = &mut members[1];
    two.up(sent[1].clone());
    fetched(two, &former);
    two.install(view(4, &[1, 2]));
    let next = view(5, &[1, 2]);
    members[0].install(view(5, &[1])).install(next.clone());
    let newer = sent_by(&mut members[0], 1, vec![view_message(&next)]);
    let key = key_events(&mut members[0]).1.unwrap();
    let two = &mut members[1];
    two.up(newer[0].clone());
    fetched(two, &key);
    key_events(two);
    two.up(sent[1].clone());
    assert_eq!((key_events(two).0, version(two)), (vec![], hex(&key.version())));
}

/// A view under the name of member 1.
fn forged(version: Bytes, server: Option<PhysAddr>) -> Message {
    let header = EncryptHeader {
        kind: 2,
        needs_deserialization: false,
        version: Some(version),
        server: server.map(Address::Ip),
        iv: Some(vec![0; 16].into()),
    };
    let message = view_message(&view(9, &[1, 2]));
    through_network(message.with_header(ID, HeaderBody::Encrypt(Box::new(header))), 1)
}

fn version_of(byte: u8) -> Bytes {
    vec![byte; 16].into()
}

/// S000-57: a forged view costs a connection, ten times a second at most.
#[test]
fn fetches_and_waiting_messages_are_bounded() {
    let (mut members, _) = external_group(2);
    let two = &mut members[1];
    (0..12).for_each(|byte| {
        two.up(forged(version_of(byte), None));
    });
    assert_eq!(key_events(two).0.len(), 9, "ten in a second, with the one of its join");
    assert_eq!(drops(two, DropReason::QueueFull), 3 + 5, "four at once, and five have ended for later ones");
    (0..100).for_each(|_| {
        two.up(forged(version_of(8), None));
    });
    assert_eq!(drops(two, DropReason::QueueFull), 8 + 40, "64 messages wait");
    for byte in 0..12 {
        not_fetched(two, None, &version_of(byte));
    }
    assert_eq!(drops(two, DropReason::UnknownKey), 64);
    two.advance(Duration::from_secs(1)).up(forged(version_of(60), None));
    assert_eq!((key_events(two).0.len(), two.take_up()), (1, vec![]));
}

/// S000-57: the message has the current version of the group's key, and a server that never answers.
#[test]
fn forged_server_does_not_hold_back_the_key() {
    let (mut members, _) = external_group(3);
    let mut sent = leave(&mut members, 0, &view(4, &[1, 2]));
    let key = key_events(&mut members[0]).1.expect("a new key");
    served_at(&mut sent[1], phys(1));
    let two = &mut members[1];
    let (silent, named) = (phys(66), phys(1));
    two.up(forged(key.version(), Some(silent))).up(sent[1].clone()).up(forged(key.version(), Some(silent)));
    assert_eq!(key_events(two).0, [*request_at(Some(silent), &key.version())]);
    not_fetched(two, Some(silent), &key.version());
    assert_eq!(drops(two, DropReason::UnknownKey), 2, "both forged ones");
    assert_eq!(key_events(two).0, [*request_at(Some(named), &key.version())]);
    not_fetched(two, Some(silent), &key.version());
    fetched(two, &key);
    assert_eq!((two.take_up().len(), version(two)), (1, hex(&key.version())));
}

#[test]
fn forged_versions_do_not_hold_back_the_key() {
    let (mut members, _) = external_group(3);
    let sent = leave(&mut members, 0, &view(4, &[1, 2]));
    let key = key_events(&mut members[0]).1.expect("a new key");
    let two = &mut members[1];
    (0..4).for_each(|byte| {
        two.up(forged(version_of(byte), Some(phys(66))));
    });
    two.up(sent[1].clone());
    assert_eq!(key_events(two).0.len(), 5);
    // That fetch has ended.
    not_fetched(two, Some(phys(66)), &version_of(0));
    fetched(two, &key);
    assert_eq!((two.take_up().len(), drops(two, DropReason::QueueFull)), (1, 1));
}

#[test]
fn waiting_message_does_not_keep_its_packet() {
    let (mut members, _) = external_group(2);
    let packet = Bytes::from(vec![7; 60_000]);
    let mut message = forged(packet.slice(..16), None);
    message.payload = Payload::Bytes(Some(packet.slice(16..64)));
    members[1].up(message);
    let requests = key_events(&mut members[1]).0;
    assert_eq!((requests.len(), packet.is_unique()), (1, true));
}

/// No key has it, and the request would be large.
#[test]
fn version_of_another_length_is_not_fetched() {
    let (mut members, _) = external_group(2);
    let two = &mut members[1];
    for length in [0, 15, 17, 60_000] {
        two.up(forged(vec![1; length].into(), None));
    }
    assert_eq!((key_events(two).0, drops(two, DropReason::UnknownKey)), (vec![], 4));
}

#[test]
fn bytes_of_waiting_messages_are_bounded_with_their_headers() {
    let (mut members, _) = external_group(2);
    for _ in 0..6 {
        let mut message = forged(version_of(1), None);
        let Some(HeaderBody::Encrypt(mut header)) = message.headers.take(ID) else { panic!("no header") };
        header.iv = Some(vec![0; 1_000_000].into());
        members[1].up(message.with_header(ID, HeaderBody::Encrypt(header)));
    }
    assert_eq!(drops(&members[1], DropReason::QueueFull), 2, "4 MiB wait");
}

#[test]
fn key_that_does_not_decrypt_the_message_is_not_installed() {
    let (mut members, key) = external_group(2);
    let two = &mut members[1];
    let other = SecretKey::new("AES", vec![9; 16]);
    let header = EncryptHeader {
        kind: 2,
        needs_deserialization: false,
        version: Some(other.version()),
        server: None,
        iv: Some(vec![0; 16].into()),
    };
    let message = gms_message(gms(GmsKind::View), None, Payload::Bytes(Some(vec![1; 64].into())));
    two.up(through_network(message.with_header(ID, HeaderBody::Encrypt(Box::new(header))), 1));
    assert_eq!(key_events(two).0.len(), 1);
    fetched(two, &other);
    assert_eq!((two.take_up(), version(two)), (vec![], hex(&key.version())));
}

/// The reason of the failure is in the log of both.
#[test]
fn members_with_different_exchanges_do_not_join_each_other() {
    let (mut inside, mut joiner) = (new_member(1), external_member(2));
    inside.install(view(1, &[1]));
    inside.up_batch(sent_by(&mut joiner, 2, vec![join_req(1)]));
    assert_eq!((inside.take_up(), drops(&inside, DropReason::MissingHeader)), (vec![], 1));
    let (mut outside, mut joiner) = (external_member(1), new_member(2));
    outside.install(view(1, &[1]));
    outside.up_batch(sent_by(&mut joiner, 2, vec![join_req(1)]));
    assert_eq!((outside.take_up(), drops(&outside, DropReason::Unexpected)), (vec![], 1));
}

#[test]
fn nothing_waits_after_the_member_has_left() {
    let (mut members, _) = external_group(3);
    let sent = leave(&mut members, 0, &view(4, &[1, 2]));
    let key = key_events(&mut members[0]).1.unwrap();
    let two = &mut members[1];
    two.up(sent[1].clone()).lower(Event::Disconnect);
    fetched(two, &key);
    assert_eq!((two.take_up(), version(two)), (vec![], String::new()));
}
