//! Bits that flip, messages that return, and rogue members.

use std::net::IpAddr;

use super::*;
use crate::protocols::{CertificateKey, TokenConfig, TokenSources};

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
    let auth = Auth::new(auth_config, token, &mut NoHost).unwrap();
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

struct NoHost;

impl TokenSources for NoHost {
    fn hosts(&mut self, name: &str) -> Result<Vec<IpAddr>, String> {
        Err(format!("no address of {name}"))
    }

    fn certificate_key(&mut self, _config: &TokenConfig) -> Result<CertificateKey, String> {
        Err("no key store".to_owned())
    }
}
