mod attacks;
mod exchange;
mod external;
mod key_changes;

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
    Rng, Transient, UnicastHeader, ViewId,
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

fn leave(members: &mut [Harness], coordinator: usize, next: &View) -> Vec<Message> {
    let leaver = Message::empty(Some(member(3))).with_flags(Flags::OOB);
    let header = HeaderBody::Gms(Box::new(gms(GmsKind::LeaveRsp)));
    members[coordinator].install(next.clone());
    let messages = vec![leaver.with_header(ProtocolId::GMS, header), view_message(next), text("later")];
    sent_by(&mut members[coordinator], coordinator as u64 + 1, messages)
}
