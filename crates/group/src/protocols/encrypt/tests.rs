use bytes::Bytes;

use super::*;
use crate::harness::{Harness, exchange, member, view};
use crate::protocols::{NakAck, NakAckConfig, NakAckKind, Unicast, UnicastConfig, UnicastKind};
use crate::vectors::{lines, vector};
use crate::wire;
use crate::{Address, Flags, GmsHeader, GmsKind, NakAckHeader, Object, Payload, Primitive, Transient};

/// Counts up, so that each vector differs.
pub(in crate::protocols) struct Counting(pub(in crate::protocols) u8);

impl RandomBytes for Counting {
    fn fill(&mut self, out: &mut [u8]) -> Result<(), String> {
        for byte in out {
            self.0 = self.0.wrapping_add(1);
            *byte = self.0;
        }
        Ok(())
    }
}

struct Fixed;

impl RandomBytes for Fixed {
    fn fill(&mut self, out: &mut [u8]) -> Result<(), String> {
        out.fill(0xaa);
        Ok(())
    }
}

struct Exhausted;

impl RandomBytes for Exhausted {
    fn fill(&mut self, _out: &mut [u8]) -> Result<(), String> {
        Err("no entropy".to_owned())
    }
}

fn config(algorithm: &str) -> SymEncryptConfig {
    SymEncryptConfig {
        sym_algorithm: algorithm.to_owned(),
        sym_iv_length: if algorithm == "AES" { 0 } else { 16 },
        keystore_name: "keys.p12".to_owned(),
        ..SymEncryptConfig::default()
    }
}

const CBC: &str = "AES/CBC/PKCS5Padding";

fn layer(algorithm: &str, key: &[u8], random: impl RandomBytes + 'static) -> SymEncrypt {
    SymEncrypt::new(config(algorithm), &SecretKey::new("AES", key.to_vec()), Box::new(random)).unwrap()
}

fn key() -> Bytes {
    vector("13-transforms", "symencrypt.key")
}

fn harness() -> Harness {
    let mut harness = Harness::new(layer(CBC, &key(), Counting(0)));
    harness.install(view(1, &[1, 2])).take_up_events();
    harness
}

fn sent_by_two(messages: Vec<Message>) -> Vec<Message> {
    encrypted_with(&key(), messages)
}

fn encrypted_with(key: &[u8], messages: Vec<Message>) -> Vec<Message> {
    let mut harness = Harness::with_layers(2, vec![Box::new(layer(CBC, key, Counting(50)))]);
    let mut sent = harness.send_batch(messages).take_down();
    sent.iter_mut().for_each(|message| message.src = Some(member(2)));
    sent
}

fn from_two(mut message: Message) -> Message {
    message.src = Some(member(2));
    message
}

fn object(text: &str) -> Payload {
    Payload::Object(Box::new(Object::Primitive(Primitive::String(text.to_owned()))))
}

/// The vectors are of file 13.
#[test]
fn encrypted_messages_equal_those_of_jgroups() {
    let bytes = Payload::Bytes(Some(Bytes::from_static(b"hello")));
    for (name, algorithm, kind, payload, flags) in [
        ("cbc", CBC, 0, bytes.clone(), Flags::NONE),
        ("ecb", "AES", 0, bytes, Flags::NONE),
        ("obj", CBC, 0, object("hello"), Flags::SERIALIZED),
        ("empty", CBC, 2, Payload::Empty, Flags::NONE),
    ] {
        let wanted = vector("13-transforms", &format!("symencrypt.{name}"));
        let parties = wire::decode_body(0, &vector("13-transforms", "symencrypt.cbc")).unwrap();
        let mut message = Message::new(parties.dest.clone(), payload.clone()).with_flags(flags);
        message.src.clone_from(&parties.src);
        let sent = Harness::new(layer(algorithm, &key(), Fixed)).send(message.clone()).take_down();
        assert_eq!(wire::encode_body(&sent[0]), wanted, "{name}");
        let mut read = wire::decode_body(kind, &wanted).unwrap();
        read.src.clone_from(&parties.src);
        let received = Harness::new(layer(algorithm, &key(), Fixed)).up(read).take_up();
        assert_eq!(received, [message], "{name}");
    }
    assert_eq!(lines("13-transforms").iter().filter(|(name, ..)| name.starts_with("symencrypt")).count(), 5);
}

/// S000-91
#[test]
fn each_payload_survives_as_itself() {
    let payloads = [
        Payload::Empty,
        Payload::Bytes(None),
        Payload::Bytes(Some(Bytes::new())),
        Payload::Bytes(Some(vec![7; 16].into())),
        Payload::Bytes(Some(vec![7; 60_000].into())),
        Payload::Nio { direct: false, bytes: None },
        Payload::Nio { direct: false, bytes: Some(Bytes::from_static(b"direct")) },
        Payload::Nio { direct: true, bytes: Some(Bytes::from_static(b"direct")) },
        Payload::Object(Box::new(Object::Null)),
        Payload::Long(-5),
        Payload::Fragment(Bytes::from_static(b"piece")),
        Payload::Composite(vec![from_two(Message::bytes(Some(member(1)), "part"))]),
    ];
    for algorithm in [CBC, "AES", "AES/CTR/NoPadding"] {
        for payload in payloads.clone() {
            let message = from_two(Message::new(Some(member(1)), payload.clone()));
            let mut two = Harness::with_layers(2, vec![Box::new(layer(algorithm, &key(), Counting(0)))]);
            let sent = two.send(message.clone()).take_down().remove(0);
            // The bytes go through the network.
            let kind = wire::message_type(&sent.payload);
            let read = from_two(wire::decode_body(kind, &wire::encode_body(&sent)).unwrap());
            let received = Harness::new(layer(algorithm, &key(), Counting(0))).up(read).take_up();
            assert_eq!(received, [message], "{algorithm}");
        }
    }
}

#[test]
fn cipher_texts_of_equal_messages_differ() {
    let sent = sent_by_two(vec![Message::bytes(None, "hello"); 16]);
    let mut texts: Vec<&Bytes> = sent.iter().map(|message| message.payload_bytes().unwrap()).collect();
    texts.sort();
    texts.dedup();
    assert_eq!(texts.len(), 16);
    assert!(texts.iter().all(|text| text.len() == 16));
}

/// S000-89
#[test]
fn a_mixed_batch_loses_only_its_plain_and_foreign_messages() {
    let text = |text: &'static str| Message::bytes(None, text);
    let ours = sent_by_two(vec![
        text("first"),
        Message::new(None, object("second")).with_flags(Flags::SERIALIZED),
        text("third"),
        Message::new(None, object("fourth")).with_flags(Flags::SERIALIZED | Flags::OOB),
    ]);
    let foreign = encrypted_with(&[1; 16], vec![text("of another key")]);
    let [first, second, third, fourth] = &ours[..] else { panic!("{ours:?}") };
    let mut harness = harness();
    let batch = vec![
        first.clone(),
        from_two(text("plain")),
        second.clone(),
        foreign[0].clone(),
        from_two(Message::empty(None)),
        fourth.clone(),
        third.clone(),
    ];
    let received = harness.up_batch(batch).take_up();
    let payloads: Vec<&Payload> = received.iter().map(|message| &message.payload).collect();
    let bytes = |text: &'static str| Payload::Bytes(Some(text.into()));
    assert_eq!(payloads, [&bytes("first"), &object("second"), &bytes("third"), &object("fourth")]);
    assert_eq!(received.iter().map(Message::is_oob).collect::<Vec<_>>(), [false, false, false, true]);
    let drops = &harness.stack.shared().drops;
    assert_eq!((drops.total(DropReason::MissingHeader), drops.total(DropReason::UnknownKey)), (2, 1));
    assert_eq!(harness.stack.attribute("SYM_ENCRYPT", "num_rejected").as_deref(), Some("3"));
    assert_eq!(harness.count(StackCount::RejectedMessages), 3);
}

/// S000-57. The format protects no other part of the message. A vector's bits flip those of the first block, in an
/// object's envelope its type and flags, of which some have no effect.
#[test]
fn a_flipped_bit_in_version_vector_or_cipher_text_never_delivers_the_payload() {
    let plain = Bytes::from_static(b"the payload of a message, in several blocks");
    for payload in [Payload::Bytes(Some(plain)), object("an object in several blocks of text")] {
        let sent = sent_by_two(vec![Message::new(Some(member(1)), payload.clone())]).remove(0);
        let body = wire::encode_body(&sent);
        let Some(HeaderBody::Encrypt(header)) = sent.headers.get(ProtocolId::SYM_ENCRYPT) else { panic!() };
        let parts = [&header.version, &header.iv, &sent.payload_bytes().cloned()].map(|part| {
            let part = part.as_ref().unwrap();
            let at = body.windows(part.len()).position(|window| window == &part[..]).unwrap();
            at..at + part.len()
        });
        let mut delivered = 0;
        for bit in 0..body.len() * 8 {
            let mut flipped = body.to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let Ok(message) = wire::decode_body(0, &flipped.into()) else { continue };
            let mut harness = harness();
            for received in harness.up(message).take_up() {
                delivered += 1;
                let protects = |(nth, part): (usize, &std::ops::Range<usize>)| {
                    part.contains(&(bit / 8)) && (nth != 1 || matches!(payload, Payload::Bytes(_)))
                };
                let is_protected = parts.iter().enumerate().any(protects);
                assert!(!is_protected || received.payload != payload, "bit {bit}: {received:?}");
            }
        }
        assert!(delivered > 0, "some flips are not noticed, because the format has no authentication code");
    }
}

#[test]
fn a_rogue_member_cannot_join_merge_or_send_a_view() {
    let mut harness = harness();
    for kind in [
        GmsKind::JoinReq,
        GmsKind::JoinRsp,
        GmsKind::View,
        GmsKind::MergeReq,
        GmsKind::MergeRsp,
        GmsKind::InstallMergeView,
        GmsKind::LeaveReq,
    ] {
        let header = GmsHeader { kind, member: Some(member(9)), merge_id: None, merge_rejected: false };
        let message =
            Message::bytes(None, "view").with_header(ProtocolId::GMS, HeaderBody::Gms(Box::new(header)));
        let mut plain = message.clone();
        plain.src = Some(member(9));
        let mut foreign = encrypted_with(&[2; 16], vec![message]).remove(0);
        foreign.src = Some(member(9));
        let mut forged = plain.clone();
        // The version of the cluster's key is visible on the network.
        let Some(HeaderBody::Encrypt(header)) =
            sent_by_two(vec![Message::bytes(None, "x")])[0].headers.get(ProtocolId::SYM_ENCRYPT).cloned()
        else {
            panic!("an encrypted message has the header")
        };
        forged.headers.put(ProtocolId::SYM_ENCRYPT, HeaderBody::Encrypt(header));
        assert_eq!(harness.up_batch(vec![plain, foreign, forged]).take_up(), [], "{kind:?}");
    }
    let mut kind_one = sent_by_two(vec![Message::bytes(None, "x")]).remove(0);
    let Some(HeaderBody::Encrypt(mut header)) = kind_one.headers.take(ProtocolId::SYM_ENCRYPT) else {
        panic!()
    };
    header.kind = 1;
    kind_one.headers.put(ProtocolId::SYM_ENCRYPT, HeaderBody::Encrypt(header));
    assert_eq!(harness.up(kind_one).take_up(), [], "SYM_ENCRYPT installs no keys");
}

/// The stack from the key up, for replays.
fn reliable(n: u64) -> Harness {
    let mut harness = Harness::with_layers(
        n,
        vec![
            Box::new(layer(CBC, &key(), Counting(n as u8))),
            Box::new(NakAck::new(NakAckKind::NakAck2, NakAckConfig::default())),
            Box::new(Unicast::new(UnicastKind::Unicast3, UnicastConfig::default())),
        ],
    );
    let members = crate::harness::digest(&[(1, 0, 0), (2, 0, 0)]);
    harness.set_digest(members).install(view(1, &[1, 2])).become_server().take_down();
    harness.take_up();
    harness
}

/// S000-57: the views are the same, one without the sender, and one with its next address.
#[test]
fn replayed_messages_are_discarded_in_each_view() {
    let (mut one, mut two) = (reliable(1), reliable(2));
    let dests: [Option<Address>; 2] = [None, Some(member(1))];
    two.send_batch(dests.map(|dest| Message::bytes(dest, "pay 5")).to_vec());
    let recorded: Vec<Message> = two.take_down().into_iter().map(from_two).collect();
    assert_eq!(one.up_batch(recorded.clone()).take_up().len(), 2);
    exchange(&mut two, &mut one);
    assert_eq!(one.up_batch(recorded.clone()).take_up(), []);
    one.install(view(2, &[1, 3]));
    let mcast = recorded.iter().filter(|message| message.is_multicast());
    assert_eq!(one.up_batch(mcast.cloned().collect()).take_up(), []);
    // The recorded bytes under a new member's address decrypt, but their seqno is that of another window.
    one.install(view(3, &[1, 3, 4])).merge_digest(crate::harness::digest(&[(4, 1, 1)]));
    let mut renamed = recorded[0].clone();
    assert!(matches!(
        renamed.headers.get(ProtocolId::NAKACK2),
        Some(HeaderBody::NakAck2(NakAckHeader::Msg { seqno: 1 }))
    ));
    renamed.src = Some(member(4));
    assert_eq!(one.up(renamed).take_up(), []);
}

/// A retransmission is encrypted anew.
#[test]
fn a_lost_or_undecipherable_message_is_retransmitted() {
    let (mut one, mut two) = (reliable(1), reliable(2));
    one.send_batch(vec![Message::bytes(None, "first"), Message::bytes(None, "second")]);
    let mut sent = one.take_down();
    sent.iter_mut().for_each(|message| message.src = Some(member(1)));
    sent[0].payload = Payload::Bytes(Some(vec![0; 16].into()));
    assert_eq!(two.up_batch(sent.clone()).take_up(), []);
    assert_eq!(two.stack.attribute("SYM_ENCRYPT", "num_rejected").as_deref(), Some("1"));
    let mut received = Vec::new();
    for _ in 0..10 {
        two.advance(std::time::Duration::from_millis(600));
        received.extend(exchange(&mut one, &mut two));
    }
    let payloads: Vec<&[u8]> = received.iter().map(|message| &message.payload_bytes().unwrap()[..]).collect();
    assert_eq!(payloads, [&b"first"[..], b"second"]);
}

#[test]
fn nothing_is_sent_without_random_bytes() {
    let mut harness = Harness::new(layer(CBC, &key(), Exhausted));
    assert_eq!(harness.send(Message::bytes(None, "secret")).take_down(), []);
    assert_eq!(harness.stack.shared().drops.total(DropReason::Unexpected), 1);
    // ECB has no vector.
    assert_eq!(
        Harness::new(layer("AES", &key(), Exhausted)).send(Message::bytes(None, "x")).take_down().len(),
        1
    );
}

#[test]
fn a_message_that_is_not_looped_back_stays_so() {
    let mut message = Message::new(None, object("x"));
    message.transient = Transient::DONT_LOOPBACK;
    assert_eq!(harness().send(message).take_down()[0].transient, Transient::DONT_LOOPBACK);
}

#[test]
fn probe_shows_the_keys_version_and_no_password() {
    let layer = layer(CBC, &key(), Fixed);
    let mut out = ProbeOut::default();
    layer.probe(&mut out);
    let value =
        |name: &str| out.attributes.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str());
    assert_eq!(value("version"), Some("1AC1EF01E96CAF1BE0D329331A4FC2A8"));
    assert_eq!((value("store_password"), value("key_password")), (Some("(not shown)"), Some("")));
}
