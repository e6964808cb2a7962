use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;

use super::key_pair::encrypt_for;
use super::key_ring::FORMER_KEY_TIME;
use super::*;
use crate::config::Properties as _;
use crate::harness::{Harness, member, view};
use crate::protocols::auth::{Auth, AuthConfig, AuthTokenConfig};
use crate::protocols::encrypt::{SecretKey, SymEncrypt, SymEncryptConfig};
use crate::vectors::lines;
use crate::wire::{self, JoinRsp, KEY_BLOCK_MEMBERS_MAX, MemberKeys, Packet, ViewForm};
use crate::{
    Digest, DropReason, EncryptHeader, Flags, GmsKind, Indication, NakAckHeader, Object, Payload, Primitive,
    Rng, UnicastHeader, ViewId,
};

const CBC: &str = "AES/CBC/PKCS5Padding";

struct Seeded(Rng);

impl RandomBytes for Seeded {
    fn fill(&mut self, out: &mut [u8]) -> Result<(), String> {
        out.iter_mut().for_each(|byte| *byte = self.0.next_u64() as u8);
        Ok(())
    }
}

fn random(seed: u64) -> Box<dyn RandomBytes> {
    Box::new(Seeded(Rng::new(seed)))
}

/// Key generation takes long, so that all tests share the pairs of members 1 to 5.
fn pair(n: u64) -> KeyPair {
    static PAIRS: OnceLock<Vec<KeyPair>> = OnceLock::new();
    let make = |seed| KeyPair::generate(1_024, &mut *random(seed)).unwrap();
    PAIRS.get_or_init(|| (1..=5).map(make).collect())[n as usize - 1].clone()
}

fn config() -> AsymEncryptConfig {
    AsymEncryptConfig {
        asym_keylength: 1_024,
        sym_algorithm: CBC.to_owned(),
        sym_iv_length: 16,
        change_key_on_leave: true,
        ..AsymEncryptConfig::default()
    }
}

fn member_with(n: u64, config: AsymEncryptConfig) -> Harness {
    let layer = AsymEncrypt::new(config, pair(n), random(n + 100)).unwrap();
    Harness::with_layers(n, vec![Box::new(layer)])
}

fn new_member(n: u64) -> Harness {
    member_with(n, config())
}

fn gms(kind: GmsKind) -> GmsHeader {
    GmsHeader { kind, member: None, merge_id: None, merge_rejected: false }
}

fn gms_message(header: GmsHeader, dest: Option<u64>, payload: Payload) -> Message {
    Message::new(dest.map(member), payload).with_header(ProtocolId::GMS, HeaderBody::Gms(Box::new(header)))
}

fn join_req(to: u64) -> Message {
    gms_message(gms(GmsKind::JoinReq), Some(to), Payload::Bytes(None))
}

fn join_rsp(to: u64, view: &View) -> Message {
    let mut digest = Digest::default();
    view.members().iter().for_each(|member| digest.set(member.clone(), 0, 0));
    let rsp = JoinRsp { view: Some(view.clone()), digest: Some(digest), fail_reason: None };
    gms_message(gms(GmsKind::JoinRsp), Some(to), Payload::Bytes(Some(wire::encode_join_rsp(&rsp))))
}

fn view_payload(view: &View) -> Payload {
    Payload::Bytes(Some(wire::encode_view_and_digest(Some(&ViewForm::Full(view.clone())), None)))
}

fn view_message(view: &View) -> Message {
    let seqno = HeaderBody::NakAck2(NakAckHeader::Msg { seqno: 1 });
    gms_message(gms(GmsKind::View), None, view_payload(view)).with_header(ProtocolId::NAKACK2, seqno)
}

/// The messages that a member sends for these, as they arrive elsewhere.
fn sent_by(from: &mut Harness, n: u64, messages: Vec<Message>) -> Vec<Message> {
    let sent = from.send_batch(messages).take_down();
    sent.into_iter().map(|message| through_network(message, n)).collect()
}

fn through_network(message: Message, from: u64) -> Message {
    let kind = wire::message_type(&message.payload);
    let mut read = wire::decode_body(kind, &wire::encode_body(&message)).unwrap();
    read.src = Some(member(from));
    read
}

/// Member `joiner` joins at its coordinator `first`; the others get the view.
fn join(first: (u64, &mut Harness), joiner: (u64, &mut Harness), others: &mut [&mut Harness], next: &View) {
    let ((first, coordinator), (number, joiner)) = (first, joiner);
    let request = sent_by(joiner, number, vec![join_req(first)]);
    assert_eq!(coordinator.up_batch(request).take_up().len(), 1);
    coordinator.install(next.clone());
    let sent = sent_by(coordinator, first, vec![view_message(next), join_rsp(number, next)]);
    for other in others {
        assert_eq!(other.up(sent[0].clone()).install(next.clone()).take_up().len(), 1);
    }
    assert_eq!(joiner.up(sent[0].clone()).take_up(), [], "the view's sender is no member yet");
    let received = joiner.up(sent[1].clone()).take_up();
    assert_eq!(received.len(), 1);
    assert_eq!(
        wire::decode_join_rsp(received[0].payload_bytes().unwrap()).unwrap().view.as_ref(),
        Some(next)
    );
    joiner.install(next.clone()).take_up_events();
}

/// Members 1 to `count` in one group.
fn group_of(count: u64, make: impl Fn(u64) -> Harness) -> Vec<Harness> {
    let mut members: Vec<Harness> = (1..=count).map(make).collect();
    members[0].install(view(1, &[1])).take_up_events();
    for n in 2..=count {
        let next = view(n, &(1..=n).collect::<Vec<_>>());
        let (before, joiner) = members.split_at_mut(n as usize - 1);
        let (first, others) = before.split_at_mut(1);
        let mut others: Vec<&mut Harness> = others.iter_mut().collect();
        join((1, &mut first[0]), (n, &mut joiner[0]), &mut others, &next);
    }
    members.iter_mut().for_each(|member| {
        member.take_up_events();
        member.take_down();
    });
    members
}

fn group(count: u64) -> Vec<Harness> {
    group_of(count, new_member)
}

fn text(text: &'static str) -> Message {
    Message::bytes(None, text)
}

fn object(text: &str) -> Payload {
    Payload::Object(Box::new(Object::Primitive(Primitive::String(text.to_owned()))))
}

fn payloads(messages: &[Message]) -> Vec<&[u8]> {
    messages.iter().map(|message| &message.payload_bytes().unwrap()[..]).collect()
}

fn header_of(message: &Message) -> &EncryptHeader {
    match message.headers.get(ID) {
        Some(HeaderBody::Encrypt(header)) => header,
        _ => panic!("{message:?} has no header"),
    }
}

fn keys_of(message: &Message) -> Vec<MemberKeys> {
    assert_eq!(header_of(message).kind, 1);
    wire::decode_key_block(message.payload_bytes().unwrap()).unwrap().0
}

fn version(member: &Harness) -> String {
    member.stack.attribute("ASYM_ENCRYPT", "version").unwrap()
}

fn drops(member: &Harness, why: DropReason) -> u64 {
    member.stack.shared().drops.total(why)
}

/// Of files 26 and 31: the key blocks, as facts section 22.3 describes them.
#[test]
fn key_blocks_of_jgroups_are_read_and_written_to_the_same_bytes() {
    let mut seen = Vec::new();
    for file in ["26-session-asym-encrypt", "31-session-asym-key-change"] {
        for (name, bytes, _) in lines(file) {
            let Packet::Single { message, .. } = wire::decode_packet(&bytes, &[]).unwrap() else { continue };
            let Some(HeaderBody::Encrypt(header)) = message.headers.get(ID) else { continue };
            if header.kind != 1 {
                continue;
            }
            let payload = message.payload_bytes().unwrap();
            let (keys, rest) = wire::decode_key_block(payload).unwrap();
            assert_eq!(wire::encode_key_block(&keys, &rest), payload, "{name}");
            for keys in &keys {
                assert!(encrypt_for(&keys.public, &mut *random(1), &[7; 16]).is_some(), "{name}");
            }
            let shared: Vec<usize> = keys.iter().map(|keys| keys.shared.len()).collect();
            seen.push((gms_header(&message).unwrap().kind, shared, rest.len()));
        }
    }
    assert_eq!(
        seen,
        [
            (GmsKind::JoinReq, vec![0], 0),
            (GmsKind::View, vec![0, 0], 64),
            (GmsKind::JoinRsp, vec![0, 128], 64),
            (GmsKind::View, vec![0, 0], 64),
            (GmsKind::View, vec![128, 128], 64),
        ]
    );
}

#[test]
fn a_joiner_gets_the_key_with_the_response_and_payloads_are_unreadable() {
    let mut members = group(3);
    for sender in 0..3 {
        let sent = sent_by(&mut members[sender], sender as u64 + 1, vec![text("a secret")]);
        let body = wire::encode_body(&sent[0]);
        assert!(!body.windows(6).any(|window| window == b"secret"));
        for receiver in (0..3).filter(|receiver| *receiver != sender) {
            assert_eq!(payloads(&members[receiver].up(sent[0].clone()).take_up()), [b"a secret"]);
        }
    }
    let versions: Vec<String> = members.iter().map(version).collect();
    assert!(
        versions[0].len() == 32 && versions.iter().all(|version| *version == versions[0]),
        "{versions:?}"
    );
}

/// Facts section 22.3, vector 26.
#[test]
fn messages_of_a_join_carry_the_keys_that_jgroups_sends() {
    let (mut one, mut two) = (new_member(1), new_member(2));
    one.install(view(1, &[1]));
    let request = sent_by(&mut two, 2, vec![join_req(1)]);
    let keys = keys_of(&request[0]);
    assert_eq!((keys.len(), &keys[0].member, keys[0].shared.len()), (1, &member(2), 0));
    assert_eq!((&header_of(&request[0]).version, &header_of(&request[0]).iv), (&None, &None));
    one.up(request[0].clone());
    let next = view(2, &[1, 2]);
    one.install(next.clone());
    let sent = sent_by(&mut one, 1, vec![view_message(&next), join_rsp(2, &next), text("x")]);
    let shared =
        |message: &Message| keys_of(message).iter().map(|keys| keys.shared.len()).collect::<Vec<_>>();
    assert_eq!((shared(&sent[0]), shared(&sent[1])), (vec![0, 0], vec![0, 128]));
    assert_eq!(header_of(&sent[2]).kind, 0);
    // These go in clear.
    for kind in [GmsKind::ViewAck, GmsKind::MergeReq, GmsKind::GetDigestReq, GmsKind::GetDigestRsp] {
        let sent = sent_by(&mut one, 1, vec![gms_message(gms(kind), Some(2), Payload::Empty)]);
        assert!(sent[0].headers.get(ID).is_none(), "{kind:?}");
    }
}

#[test]
fn a_member_without_a_key_sends_only_its_join() {
    let mut two = new_member(2);
    let sent = two.send_batch(vec![join_req(1), text("early"), Message::empty(Some(member(1)))]).take_down();
    assert_eq!(sent.len(), 1);
    assert_eq!(drops(&two, DropReason::UnknownKey), 2);
}

/// S000-91
#[test]
fn each_payload_survives_as_itself() {
    let mut members = group(2);
    let all = [
        Payload::Empty,
        Payload::Bytes(None),
        Payload::Bytes(Some(Bytes::new())),
        Payload::Bytes(Some(vec![7; 16].into())),
        Payload::Bytes(Some(vec![7; 60_000].into())),
        Payload::Nio { direct: false, bytes: None },
        Payload::Nio { direct: true, bytes: Some(Bytes::from_static(b"direct")) },
        Payload::Object(Box::new(Object::Null)),
        object("an object"),
        Payload::Long(-5),
        Payload::Fragment(Bytes::from_static(b"piece")),
    ];
    for payload in all {
        let message = Message::new(Some(member(1)), payload).sent_by(2);
        let sent = sent_by(&mut members[1], 2, vec![message.clone()]);
        assert_eq!(members[0].up(sent[0].clone()).take_up(), [message]);
    }
}

/// S000-89
#[test]
fn a_mixed_batch_loses_only_its_plain_and_foreign_messages() {
    let mut members = group(2);
    let ours = sent_by(
        &mut members[1],
        2,
        vec![
            text("first"),
            Message::new(None, object("second")).with_flags(Flags::SERIALIZED),
            text("third").with_flags(Flags::OOB),
            Message::new(None, object("fourth")).with_flags(Flags::SERIALIZED | Flags::OOB),
            gms_message(gms(GmsKind::ViewAck), Some(1), Payload::Empty),
        ],
    );
    let [first, second, third, fourth, ack] = &ours[..] else { panic!("{ours:?}") };
    let mut other = new_member(2);
    other.install(view(1, &[2]));
    let foreign = sent_by(&mut other, 2, vec![text("of another group")]);
    let plain = text("plain").sent_by(2);
    let received = members[0]
        .up_batch(vec![
            first.clone(),
            plain,
            ack.clone(),
            second.clone(),
            foreign[0].clone(),
            Message::empty(None).sent_by(2),
            fourth.clone(),
            third.clone(),
        ])
        .take_up();
    let mut texts: Vec<String> = received.iter().map(|message| format!("{:?}", message.payload)).collect();
    texts.sort();
    let bytes = |text: &'static str| Payload::Bytes(Some(text.into()));
    let mut wanted: Vec<String> =
        [bytes("first"), object("second"), bytes("third"), object("fourth"), Payload::Empty]
            .iter()
            .map(|payload| format!("{payload:?}"))
            .collect();
    wanted.sort();
    assert_eq!(texts, wanted);
    assert_eq!(received.iter().filter(|message| message.is_oob()).count(), 2);
    let one = &members[0];
    assert_eq!((drops(one, DropReason::MissingHeader), drops(one, DropReason::UnknownKey)), (2, 1));
    assert_eq!(one.stack.attribute("ASYM_ENCRYPT", "num_rejected").as_deref(), Some("3"));
}

/// S000-57. As with SYM_ENCRYPT, the format protects no other part of the message.
#[test]
fn a_flipped_bit_in_version_vector_or_cipher_text_never_delivers_the_payload() {
    let mut members = group(2);
    let plain = Payload::Bytes(Some(Bytes::from_static(b"the payload of a message, in several blocks")));
    let message = Message::new(Some(member(1)), plain.clone());
    let sent = sent_by(&mut members[1], 2, vec![message]).remove(0);
    let body = wire::encode_body(&sent);
    let header = header_of(&sent);
    let parts = [header.version.as_ref(), header.iv.as_ref(), sent.payload_bytes()].map(|part| {
        let part = part.unwrap();
        let at = body.windows(part.len()).position(|window| window == &part[..]).unwrap();
        at..at + part.len()
    });
    for bit in 0..body.len() * 8 {
        let mut flipped = body.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let Ok(message) = wire::decode_body(0, &flipped.into()) else { continue };
        for received in members[0].up(message).take_up() {
            let is_protected = parts.iter().any(|part| part.contains(&(bit / 8)));
            assert!(!is_protected || received.payload != plain, "bit {bit}: {received:?}");
        }
    }
}

/// S000-57: of the messages that bring keys, too. The cipher text of the shared key has a version that tells.
#[test]
fn a_flipped_bit_in_the_entry_of_the_shared_key_brings_no_key() {
    let (mut one, mut two) = (new_member(1), new_member(2));
    one.install(view(1, &[1]));
    one.up_batch(sent_by(&mut two, 2, vec![join_req(1)]));
    let next = view(2, &[1, 2]);
    one.install(next.clone());
    let rsp = sent_by(&mut one, 1, vec![join_rsp(2, &next)]).remove(0);
    let own = keys_of(&rsp).remove(1).shared;
    let payload = rsp.payload_bytes().unwrap().clone();
    let at = payload.windows(own.len()).position(|window| window == &own[..]).unwrap();
    for byte in (0..own.len()).step_by(7) {
        let mut flipped = payload.to_vec();
        flipped[at + byte] ^= 1;
        let damaged = Message { payload: Payload::Bytes(Some(flipped.into())), ..rsp.clone() };
        assert_eq!(two.up(damaged).take_up(), []);
        assert_eq!(version(&two), "");
    }
    assert_eq!(two.up(rsp).take_up().len(), 1);
    assert_eq!(version(&two), version(&one));
}

fn leave(members: &mut [Harness], coordinator: usize, next: &View) -> Vec<Message> {
    let leaver = Message::empty(Some(member(3))).with_flags(Flags::OOB);
    let header = HeaderBody::Gms(Box::new(gms(GmsKind::LeaveRsp)));
    members[coordinator].install(next.clone());
    let messages = vec![leaver.with_header(ProtocolId::GMS, header), view_message(next), text("later")];
    sent_by(&mut members[coordinator], coordinator as u64 + 1, messages)
}

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

/// S000-57: the recorded view carries the former key, which a former member has.
#[test]
fn a_replayed_view_does_not_bring_back_its_key() {
    let mut members = group(4);
    let next = view(5, &[1, 2, 4]);
    let recorded = leave(&mut members, 0, &next);
    for other in [1, 3] {
        members[other].up_batch(recorded[1..].to_vec()).install(next.clone());
    }
    let last = view(6, &[1, 2]);
    let sent = leave(&mut members, 0, &last);
    members[1].up_batch(sent[1..].to_vec()).install(last.clone());
    let now = version(&members[1]);
    assert_eq!(version(&members[0]), now);
    members[1].up_batch(recorded.clone());
    assert_eq!(version(&members[1]), now);
    // Also when the former key is forgotten.
    members[1].advance(FORMER_KEY_TIME * 2).take_up();
    assert_eq!(members[1].up_batch(recorded[1..].to_vec()).take_up(), []);
    assert_eq!(version(&members[1]), now);
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

/// A group of one rogue, whose key is encrypted for a member.
fn rogue_keys(victim: u64) -> (Harness, View) {
    let mut rogue = new_member(5);
    rogue.install(view(1, &[5]));
    let learned =
        MemberKeys { member: member(victim), public: pair(victim).public().clone(), shared: Bytes::new() };
    let payload = wire::encode_key_block(&[learned], b"");
    let header =
        EncryptHeader { kind: 1, needs_deserialization: false, version: None, server: None, iv: None };
    let request = gms_message(gms(GmsKind::JoinReq), Some(5), Payload::Bytes(Some(payload)))
        .with_header(ID, HeaderBody::Encrypt(Box::new(header)))
        .sent_by(victim);
    assert_eq!(rogue.up(request).take_up().len(), 1);
    let next = view(9, &[5, victim]);
    rogue.install(next.clone());
    (rogue, next)
}

fn merge_view_of(view: &View) -> Message {
    let id = MergeId { initiator: member(5), id: 1 };
    let header = GmsHeader { merge_id: Some(id), ..gms(GmsKind::InstallMergeView) };
    gms_message(header, Some(2), view_payload(view))
}

/// S000-57: AUTH above refuses the rogue's requests, so that this member responds to none.
#[test]
fn a_rogue_member_cannot_replace_the_key() {
    let mut members = group(2);
    let before = version(&members[1]);
    let (mut rogue, next) = rogue_keys(2);
    let unicast = gms_message(gms(GmsKind::View), Some(2), view_payload(&next));
    for message in [view_message(&next), unicast, join_rsp(2, &next), merge_view_of(&next), text("hello")] {
        let sent = sent_by(&mut rogue, 5, vec![message]);
        assert_eq!(members[1].up_batch(sent).take_up(), []);
        assert_eq!(version(&members[1]), before);
    }
    // A refused merge is no agreement.
    let refusal = GmsHeader { merge_rejected: true, ..gms(GmsKind::MergeRsp) };
    let sent = sent_by(&mut members[1], 2, vec![gms_message(refusal, Some(5), Payload::Empty)]);
    assert!(sent[0].headers.get(ID).is_none(), "a refusal carries no keys");
    let sent = sent_by(&mut rogue, 5, vec![merge_view_of(&next)]);
    assert_eq!(members[1].up_batch(sent).take_up(), []);
    assert_eq!(version(&members[1]), before);
}

/// S000-57: the member has asked the rogue to join before it had a view. GMS ignores the response then.
#[test]
fn a_join_response_of_an_asked_rogue_does_not_replace_the_key_of_a_view() {
    let refusal = JoinRsp { view: None, digest: None, fail_reason: Some("no".to_owned()) };
    let refusal = Payload::Bytes(Some(wire::encode_join_rsp(&refusal)));
    for is_alone in [true, false] {
        let mut two = new_member(2);
        assert_eq!(sent_by(&mut two, 2, vec![join_req(5)]).len(), 1);
        two.install(view(1, &[2])).take_up_events();
        let mut three = new_member(3);
        let both = view(2, &[2, 3]);
        if !is_alone {
            join((2, &mut two), (3, &mut three), &mut [], &both);
            assert_eq!(sent_by(&mut two, 2, vec![join_req(5)]).len(), 1);
        }
        let before = version(&two);
        let (mut rogue, next) = rogue_keys(2);
        for rsp in [join_rsp(2, &next), gms_message(gms(GmsKind::JoinRsp), Some(2), refusal.clone())] {
            let sent = sent_by(&mut rogue, 5, vec![rsp]);
            let has_key = |keys: &MemberKeys| keys.member == member(2) && !keys.shared.is_empty();
            assert!(keys_of(&sent[0]).iter().any(has_key));
            two.up_batch(sent).take_up();
            assert_eq!(version(&two), before);
        }
        if is_alone {
            join((2, &mut two), (3, &mut three), &mut [], &both);
        }
        let (two, three) = (version(&two), version(&three));
        assert_eq!((&two, &three), (&before, &before), "the next view has the group's key");
    }
}

/// S000-57: with AUTH in the stack. The rogue has the protocol and no token.
#[test]
fn a_rogue_that_auth_refuses_neither_gets_nor_replaces_the_key() {
    let mut auth_config = AuthConfig::default();
    let mut token = AuthTokenConfig::default();
    auth_config.set("auth_class", "org.jgroups.auth.RegexMembership").unwrap().unwrap();
    token.set("auth_token.match_string", "10\\..*").unwrap().unwrap();
    let auth = Auth::new(auth_config, token, |_| Ok(Vec::new())).unwrap();
    let layer = AsymEncrypt::new(config(), pair(1), random(101)).unwrap();
    let mut one = Harness::with_layers(1, vec![Box::new(layer), Box::new(auth)]);
    one.install(view(1, &[1])).take_up_events();
    let ours = version(&one);
    let mut rogue = new_member(5);
    let request = sent_by(&mut rogue, 5, vec![join_req(1)]);
    assert_eq!(one.up_batch(request).take_up(), []);
    let refusals: Vec<Message> =
        one.take_down().into_iter().map(|message| through_network(message, 1)).collect();
    let read = rogue.up_batch(refusals).take_up();
    assert!(wire::decode_join_rsp(read[0].payload_bytes().unwrap()).unwrap().fail_reason.is_some());
    assert_ne!(version(&rogue), ours);
    // As a merge leader: its request is refused, so that its merge view brings nothing.
    rogue.install(view(1, &[5]));
    let next = View::merged(ViewId { creator: member(5), id: 9 }, [member(5), member(1)], []);
    let id = MergeId { initiator: member(5), id: 1 };
    let header = |kind| GmsHeader { merge_id: Some(id.clone()), ..gms(kind) };
    let request = gms_message(header(GmsKind::MergeReq), Some(1), Payload::Empty);
    let view = gms_message(header(GmsKind::InstallMergeView), Some(1), view_payload(&next));
    let sent = sent_by(&mut rogue, 5, vec![request, view]);
    assert_eq!(one.up_batch(sent).take_up(), []);
    let refused = one.take_down();
    assert!(refused.len() == 1 && gms_header(&refused[0]).unwrap().merge_rejected, "{refused:?}");
    assert_eq!(version(&one), ours);
}

/// S000-57: AUTH, above, refuses it; the reason has to arrive.
#[test]
fn a_refused_joiner_reads_the_reason_and_gets_no_key() {
    let (mut one, mut two) = (new_member(1), new_member(2));
    one.install(view(1, &[1]));
    one.up_batch(sent_by(&mut two, 2, vec![join_req(1)]));
    let rsp = JoinRsp { view: None, digest: None, fail_reason: Some("authentication failed".to_owned()) };
    let payload = Payload::Bytes(Some(wire::encode_join_rsp(&rsp)));
    let sent =
        sent_by(&mut one, 1, vec![gms_message(gms(GmsKind::JoinRsp), Some(2), payload), text("secret")]);
    let received = two.up(sent[0].clone()).take_up();
    assert_eq!(wire::decode_join_rsp(received[0].payload_bytes().unwrap()), Ok(rsp));
    let (ours, theirs) = (version(&one), version(&two));
    assert_ne!(ours, theirs);
    let unicast = sent_by(&mut one, 1, vec![Message::bytes(Some(member(2)), "secret")]);
    assert_eq!(two.up(unicast[0].clone()).take_up(), []);
    // Alone, it makes a key that no other member knows.
    two.install(view(1, &[2]));
    assert_ne!(version(&two), theirs);
}

/// S000-57: the public key of a refused joiner is known, and it is no member.
#[test]
fn views_bring_the_key_to_their_members_only() {
    let mut members = group(2);
    let mut rogue = new_member(5);
    members[0].up_batch(sent_by(&mut rogue, 5, vec![join_req(1)]));
    let next = View::merged(ViewId { creator: member(1), id: 7 }, [member(1), member(2)], []);
    members[0].install(next.clone());
    let id = MergeId { initiator: member(1), id: 1 };
    let header = GmsHeader { merge_id: Some(id), ..gms(GmsKind::InstallMergeView) };
    let install = gms_message(header, Some(2), view_payload(&next));
    for message in [view_message(&next), install] {
        let sent = sent_by(&mut members[0], 1, vec![message]);
        let keys = keys_of(&sent[0]);
        assert!(
            keys.len() == 2 && keys.iter().all(|keys| keys.member != member(5) && !keys.shared.is_empty())
        );
    }
}

/// S000-57: it would get the shared key in the member's place with the next change.
#[test]
fn a_joiner_does_not_replace_the_public_key_of_a_member() {
    let mut members = group(3);
    let mut rogue = new_member(2);
    let mut request = sent_by(&mut rogue, 2, vec![join_req(1)]);
    let entry = |n: u64, of: u64| MemberKeys {
        member: member(n),
        public: pair(of).public().clone(),
        shared: Bytes::new(),
    };
    for keys in [vec![entry(2, 5)], vec![entry(2, 5), entry(3, 5)]] {
        request[0].payload = Payload::Bytes(Some(wire::encode_key_block(&keys, b"")));
        members[0].up(request[0].clone());
    }
    // A joiner speaks for itself only.
    request[0].payload = Payload::Bytes(Some(wire::encode_key_block(&[entry(4, 5)], b"")));
    assert_eq!(members[0].up(request[0].clone()).take_up().len(), 2);
    let next = view(4, &[1, 2]);
    let sent = leave(&mut members, 0, &next);
    assert_eq!(keys_of(&sent[1])[1].public, *pair(2).public());
    assert_eq!(members[1].up_batch(sent[1..].to_vec()).take_up().len(), 2);
}

/// S000-57: without ASYM_ENCRYPT, or with SYM_ENCRYPT's header.
#[test]
fn a_join_without_a_public_key_is_discarded() {
    let mut one = new_member(1);
    one.install(view(1, &[1])).take_up_events();
    let plain = join_req(1).sent_by(2);
    let header = EncryptHeader {
        kind: 0,
        needs_deserialization: false,
        version: Some(vec![1; 16].into()),
        server: None,
        iv: Some(vec![2; 16].into()),
    };
    let without_key = plain.clone().with_header(ID, HeaderBody::Encrypt(Box::new(header)));
    assert_eq!(one.up_batch(vec![plain, without_key]).take_up(), []);
    assert_eq!(drops(&one, DropReason::MissingHeader), 2);
    let sym = SymEncryptConfig { keystore_name: "x".to_owned(), ..SymEncryptConfig::default() };
    let layer = SymEncrypt::new(sym, &SecretKey::new("AES", vec![1; 16]), random(1)).unwrap();
    let mut other = Harness::with_layers(2, vec![Box::new(layer)]);
    assert_eq!(one.up_batch(sent_by(&mut other, 2, vec![text("x"), join_req(1)])).take_up(), []);
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

/// A merge's messages go in clear, over connections between groups with different keys.
#[test]
fn acknowledgements_pass_with_an_unknown_key_and_no_other_message_does() {
    let mut members = group(2);
    let (mut other, _) = rogue_keys(2);
    let with = |header, payload| {
        Message::new(Some(member(1)), payload).with_header(ProtocolId::UNICAST3, HeaderBody::Unicast3(header))
    };
    let ack = UnicastHeader::Ack { seqno: 1, conn_id: 0, timestamp: 1 };
    let data = UnicastHeader::Data { seqno: 1, conn_id: 0, first: true };
    for (message, passes) in [
        (with(ack, Payload::Empty), true),
        (with(UnicastHeader::SendFirstSeqno { timestamp: 1 }, Payload::Empty), true),
        (with(UnicastHeader::Close { conn_id: 0 }, Payload::Empty), false),
        (with(data, Payload::Empty), false),
        (with(ack, Payload::Bytes(Some("payload".into()))), false),
    ] {
        let sent = sent_by(&mut other, 5, vec![message]);
        assert_eq!(members[0].up_batch(sent.clone()).take_up().len(), usize::from(passes), "{sent:?}");
    }
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

/// A flood of joins forgets the oldest joiner, which asks again.
#[test]
fn public_keys_of_joiners_are_limited_in_number() {
    let mut publics = PublicKeys::default();
    let key = Bytes::from_static(b"key");
    for n in 0..KEY_BLOCK_MEMBERS_MAX as u64 + 10 {
        publics.learn(&member(n), &key);
    }
    assert_eq!(publics.of(&member(9)), None);
    assert_eq!(publics.of(&member(10)), Some(&key));
    publics.follow(&view(1, &[10, 11]));
    assert_eq!((publics.len(), publics.of(&member(10))), (2, Some(&key)));
}

#[test]
fn settings_that_cannot_be_used_are_refused() {
    let error = |change: fn(&mut AsymEncryptConfig)| {
        let mut config = config();
        change(&mut config);
        config.check().unwrap_err()
    };
    for (change, name, text) in [
        ((|c| c.asym_algorithm = "DSA".to_owned()) as fn(&mut AsymEncryptConfig), "asym_algorithm", "DSA"),
        (|c| c.asym_keylength = 512, "asym_keylength", "use 2048"),
        (|c| c.asym_keylength = 16_384, "asym_keylength", "16384"),
        (|c| c.sym_keylength = 64, "sym_keylength", "128, 192, 256"),
        (|c| c.sym_iv_length = 0, "sym_iv_length", "16"),
        (|c| c.sym_algorithm = "DES".to_owned(), "sym_algorithm", "AES"),
        (|c| c.key_map_max_size = 21, "key_map_max_size", "20"),
    ] {
        let (attribute, why) = error(change);
        assert!(attribute == name && why.contains(text), "{attribute}: {why}");
    }
    assert_eq!(
        AsymEncryptConfig { asym_algorithm: "rsa/ECB/PKCS1Padding".to_owned(), ..config() }.check(),
        Ok(())
    );
    assert!(KeyPair::generate(512, &mut *random(1)).is_err());
}

#[test]
fn the_size_of_the_shared_key_is_the_options() {
    for bits in [128, 192, 256] {
        let mut one = member_with(1, AsymEncryptConfig { sym_keylength: bits, ..config() });
        one.install(view(1, &[1]));
        one.up_batch(sent_by(&mut new_member(2), 2, vec![join_req(1)]));
        let next = view(2, &[1, 2]);
        one.install(next.clone());
        let rsp = sent_by(&mut one, 1, vec![join_rsp(2, &next)]);
        let shared = keys_of(&rsp[0]).remove(1).shared;
        assert_eq!(pair(2).decrypt(&mut *random(9), &shared).unwrap().len() as u32 * 8, bits);
    }
}

#[test]
fn equal_random_bytes_give_equal_keys() {
    let make = || KeyPair::generate(1_024, &mut *random(77)).unwrap();
    assert_eq!(make().public(), make().public());
    let shown = format!("{:?}", make());
    assert_eq!(shown, "KeyPair(162 bytes)");
}

/// The result is another key with any padding, so that an attacker learns nothing from it.
#[test]
fn a_wrongly_padded_key_gives_other_bytes_and_no_error() {
    let text = encrypt_for(pair(1).public(), &mut *random(3), &[7; 16]).unwrap();
    assert_eq!(pair(1).decrypt(&mut *random(4), &text).unwrap()[..], [7; 16]);
    let mut wrong = text.to_vec();
    wrong[20] ^= 1;
    let other = pair(1).decrypt(&mut *random(5), &wrong);
    assert_eq!(other, pair(1).decrypt(&mut *random(6), &wrong), "blinding does not change the result");
    assert!(other.is_none_or(|bytes| bytes[..] != [7; 16]));
    assert!(encrypt_for(b"no key", &mut *random(7), &[7; 16]).is_none());
}

#[test]
fn nothing_is_sent_without_random_bytes() {
    struct Exhausted;
    impl RandomBytes for Exhausted {
        fn fill(&mut self, _out: &mut [u8]) -> Result<(), String> {
            Err("no entropy".to_owned())
        }
    }
    assert!(KeyPair::generate(1_024, &mut Exhausted).unwrap_err().contains("no RSA key"));
    let layer = AsymEncrypt::new(config(), pair(1), Box::new(Exhausted)).unwrap();
    let mut one = Harness::new(layer);
    one.install(view(1, &[1]));
    assert_eq!(one.send(text("secret")).take_down(), []);
}

#[test]
fn probe_shows_versions_and_no_key() {
    let mut members = group(2);
    let shown = |member: &Harness, name: &str| member.stack.attribute("ASYM_ENCRYPT", name).unwrap();
    assert_eq!(shown(&members[0], "num_made_keys"), "1");
    assert_eq!(shown(&members[1], "num_received_keys"), "1");
    assert_eq!(shown(&members[1], "num_public_keys"), "2");
    let events = members[1].take_indications();
    assert!(!events.iter().any(|indication| matches!(indication, Indication::Batch(_))));
}
