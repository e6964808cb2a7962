use bytes::Bytes;

use super::reassembly::{DEPARTED_SENDER_TIMEOUT, INCOMPLETE_MAX, NON_MEMBER_SENDERS_MAX};
use super::*;
use crate::harness::{Harness, exchange, member, view};
use crate::protocols::{
    FlowConfig, FlowControl, FlowKind, QueueConfig, Sequencer, SequencerConfig, Unicast, UnicastConfig,
    UnicastKind,
};
use crate::vectors::lines;
use crate::wire;
use crate::{
    Address, DropReason, FcHeader, Flags, FragHeader, Message, Object, Payload, Primitive, RsvpHeader,
    RsvpKind, SequencerHeader, SequencerKind,
};

fn harness(kind: FragKind) -> Harness {
    of_size(kind, 10)
}

fn of_size(kind: FragKind, bytes: u64) -> Harness {
    let mut harness = Harness::new(Frag::new(kind, FragConfig { frag_size: ByteCount(bytes) }));
    harness.install(view(1, &[1, 2]));
    harness.take_up_events();
    harness
}

/// UFC lets the layer keep 50 - 10 bytes of credit.
fn with_credits() -> Harness {
    let config =
        FlowConfig { max_credits: ByteCount(100), min_credits: ByteCount(50), ..FlowConfig::default() };
    let flow = FlowControl::new(FlowKind::Ufc, config, QueueConfig::default());
    let frag = Frag::new(FragKind::Frag2, FragConfig { frag_size: ByteCount(10) });
    let mut harness = Harness::with_layers(1, vec![Box::new(flow), Box::new(frag)]);
    harness.install(view(1, &[1, 2]));
    harness.take_up_events();
    harness
}

fn piece(n: u64, id: u64, frag_id: u32, num_frags: u32, bytes: usize) -> Message {
    let header = FragHeader { id, frag_id, num_frags, needs_deserialization: false, original_type: 0 };
    let mut piece = Message::bytes(Some(member(1)), vec![frag_id as u8; bytes])
        .with_header(ProtocolId::FRAG2, HeaderBody::Frag(Box::new(header)));
    piece.src = Some(member(n));
    piece
}

fn incomplete(harness: &Harness) -> String {
    harness.stack.attribute("FRAG2", "incomplete_messages").unwrap()
}

fn returned(harness: &mut Harness) -> Vec<i64> {
    let is_credit = |message: &Message| {
        message.headers.get(ProtocolId::UFC) == Some(&HeaderBody::Fc(FcHeader::Replenish))
    };
    let credits = harness.take_down().into_iter().filter(is_credit);
    credits
        .filter_map(|message| if let Payload::Long(n) = message.payload { Some(n) } else { None })
        .collect()
}

fn round_trip(kind: FragKind, message: Message) -> (Vec<Message>, Vec<Message>) {
    let mut harness = harness(kind);
    let pieces = harness.send(message).take_down();
    let received: Vec<Message> = pieces
        .iter()
        .cloned()
        .map(|mut piece| {
            piece.src = Some(member(2));
            piece
        })
        .collect();
    let joined = harness.up_batch(received).take_up();
    (pieces, joined)
}

#[test]
fn byte_arrays_are_split_and_only_the_first_fragment_has_the_headers() {
    let rsvp = HeaderBody::Rsvp(RsvpHeader { kind: RsvpKind::Request, id: 5 });
    let message = Message::bytes(Some(member(1)), "abcdefghijklmnopqrstuvwxyz")
        .with_flags(Flags::OOB)
        .with_header(ProtocolId::RSVP, rsvp.clone());
    let (pieces, joined) = round_trip(FragKind::Frag2, message);
    let lengths: Vec<usize> = pieces.iter().map(Message::length).collect();
    assert_eq!(lengths, [10, 10, 6]);
    let with_rsvp = pieces.iter().filter(|piece| piece.headers.get(ProtocolId::RSVP).is_some()).count();
    assert_eq!(with_rsvp, 1);
    assert!(pieces.iter().all(|piece| piece.flags == Flags::OOB));
    assert_eq!(joined.len(), 1);
    assert_eq!(joined[0].payload, Payload::Bytes(Some("abcdefghijklmnopqrstuvwxyz".into())));
    assert_eq!(joined[0].headers.get(ProtocolId::RSVP), Some(&rsvp));
}

#[test]
fn objects_are_encoded_whole_by_frag2_and_keep_their_type_with_frag4() {
    let object = Payload::Object(Box::new(Object::Primitive(Primitive::String("x".repeat(50)))));
    for kind in [FragKind::Frag2, FragKind::Frag4] {
        let (pieces, joined) =
            round_trip(kind, Message::new(None, object.clone()).with_flags(Flags::SERIALIZED));
        assert!(pieces.len() > 5);
        let is_fragment = matches!(pieces[0].payload, Payload::Fragment(_));
        assert_eq!(is_fragment, kind == FragKind::Frag4);
        assert_eq!(joined.len(), 1, "{kind:?}");
        assert_eq!(joined[0].payload, object, "{kind:?}");
    }
}

fn frag3(piece: &Message) -> crate::Frag3Header {
    match piece.headers.get(ProtocolId::FRAG3) {
        Some(HeaderBody::Frag3(header)) => **header,
        other => panic!("{other:?}"),
    }
}

#[test]
fn frag3_tells_offset_and_length_and_restores_arrays_and_objects() {
    let rsvp = HeaderBody::Rsvp(RsvpHeader { kind: RsvpKind::Request, id: 5 });
    let message = Message::bytes(Some(member(1)), "abcdefghijklmnopqrstuvwxyz")
        .with_flags(Flags::OOB)
        .with_header(ProtocolId::RSVP, rsvp.clone());
    let (pieces, joined) = round_trip(FragKind::Frag3, message);
    let fields: Vec<_> = pieces
        .iter()
        .map(frag3)
        .map(|header| (header.frag_id, header.num_frags, header.original_length, header.offset))
        .collect();
    assert_eq!(fields, [(0, 3, 26, 0), (1, 3, 26, 10), (2, 3, 26, 20)]);
    assert!(pieces.iter().all(|piece| frag3(piece).id == frag3(&pieces[0]).id));
    assert_eq!(pieces.iter().filter(|piece| piece.headers.get(ProtocolId::RSVP).is_some()).count(), 1);
    assert_eq!(joined[0].payload, Payload::Bytes(Some("abcdefghijklmnopqrstuvwxyz".into())));
    assert_eq!((joined[0].headers.get(ProtocolId::RSVP), joined[0].flags), (Some(&rsvp), Flags::OOB));
    let object = Payload::Object(Box::new(Object::Primitive(Primitive::String("x".repeat(50)))));
    let (pieces, joined) =
        round_trip(FragKind::Frag3, Message::new(None, object.clone()).with_flags(Flags::SERIALIZED));
    assert!(pieces.iter().all(|piece| frag3(piece).needs_deserialization));
    assert!(pieces.iter().all(|piece| matches!(piece.payload, Payload::Bytes(_))));
    assert_eq!(joined[0].payload, object);
}

/// JGroups' FRAG sets neither `needs_deserialization` nor a type.
#[test]
fn frag_encodes_every_message_whole_and_counts_its_headers() {
    let rsvp = HeaderBody::Rsvp(RsvpHeader { kind: RsvpKind::Request, id: 5 });
    let message = Message::bytes(Some(member(1)), "abc")
        .with_flags(Flags::OOB)
        .with_header(ProtocolId::RSVP, rsvp.clone());
    let whole = wire::encode_typed(&Message { src: Some(member(1)), ..message.clone() });
    let (pieces, joined) = round_trip(FragKind::Frag, message.clone());
    assert_eq!(pieces.len(), whole.len().div_ceil(10), "3 bytes of payload are within frag_size");
    let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.payload_bytes().unwrap().to_vec()).collect();
    assert_eq!(bytes, whole);
    for (nth, piece) in pieces.iter().enumerate() {
        let Some(HeaderBody::Frag(header)) = piece.headers.get(ProtocolId::FRAG) else { panic!("{piece:?}") };
        assert_eq!((header.frag_id as usize, header.num_frags as usize), (nth, pieces.len()));
        assert!(!header.needs_deserialization && header.original_type == 0);
        assert_eq!((piece.headers.0.len(), piece.flags), (1, Flags::OOB));
    }
    assert_eq!((&joined[0].payload, joined[0].flags), (&message.payload, message.flags));
    assert_eq!((joined[0].headers.get(ProtocolId::RSVP), &joined[0].src), (Some(&rsvp), &Some(member(2))));
    let mut wide = of_size(FragKind::Frag, 1_000);
    wide.send(message);
    assert_eq!(wide.take_down()[0].headers.get(ProtocolId::FRAG), None);
}

#[test]
fn small_messages_stay_whole_and_in_place() {
    let mut harness = harness(FragKind::Frag2);
    let message = |text: &'static str| Message::bytes(None, text);
    harness.send_batch(vec![message("one"), message("twelve bytes"), message("three")]);
    let sent: Vec<Bytes> =
        harness.take_down().iter().filter_map(|message| message.payload_bytes().cloned()).collect();
    assert_eq!(sent, ["one", "twelve byt", "es", "three"]);
}

#[test]
fn fragments_may_arrive_in_any_order_and_more_than_once() {
    let mut harness = harness(FragKind::Frag2);
    let mut pieces = harness.send(Message::bytes(None, "abcdefghijklmnopqrstuvwxyz")).take_down();
    pieces.iter_mut().for_each(|piece| piece.src = Some(member(2)));
    pieces.reverse();
    pieces.insert(1, pieces[0].clone());
    let joined: Vec<Message> = pieces.into_iter().flat_map(|piece| harness.up(piece).take_up()).collect();
    assert_eq!(joined.len(), 1);
    assert_eq!(joined[0].payload_bytes().unwrap(), &"abcdefghijklmnopqrstuvwxyz");
}

#[test]
fn fragments_of_departed_members_are_forgotten() {
    let mut harness = harness(FragKind::Frag2);
    let mut pieces = harness.send(Message::bytes(None, "abcdefghijkl")).take_down();
    pieces.iter_mut().for_each(|piece| piece.src = Some(member(2)));
    harness.up(pieces[0].clone());
    harness.install(view(2, &[1]));
    harness.up(pieces[1].clone());
    assert_eq!(harness.take_up(), []);
}

#[test]
fn a_reassembled_message_carries_the_credit_of_its_fragments() {
    let mut harness = with_credits();
    harness.up_batch((0..4).map(|nth| piece(2, 1, nth, 5, 10)).collect());
    let joined = harness.up(piece(2, 1, 4, 5, 3)).take_up();
    assert_eq!(joined[0].credit, 43);
    harness.consumed(&member(2), false, 43);
    assert_eq!(returned(&mut harness), [], "57 of 100 are left");
    harness.up(piece(2, 2, 0, 2, 10)).up(piece(2, 2, 1, 2, 1)).consumed(&member(2), false, 11);
    assert_eq!(returned(&mut harness), [54]);
}

#[test]
fn fragments_do_not_keep_the_credit_that_the_rest_of_the_message_needs() {
    let mut harness = with_credits();
    harness.up_batch((0..10).map(|nth| piece(2, 1, nth, 100, 10)).collect());
    assert_eq!(
        returned(&mut harness),
        [50],
        "40 of the first 100 stay with the pieces, the tenth is below 50"
    );
    let joined = harness.up_batch((10..100).map(|nth| piece(2, 1, nth, 100, 10)).collect()).take_up();
    assert_eq!((joined[0].length(), joined[0].credit), (1_000, 50));
}

#[test]
fn a_message_of_more_fragments_than_a_fixed_window_holds_arrives() {
    let member_of_two = |n| {
        let config = UnicastConfig { capacity: 8, ..UnicastConfig::default() };
        let unicast = Unicast::new(UnicastKind::Unicast4, config);
        let frag = Frag::new(FragKind::Frag2, FragConfig { frag_size: ByteCount(10) });
        let mut harness = Harness::with_layers(n, vec![Box::new(unicast), Box::new(frag)]);
        harness.install(view(1, &[1, 2]));
        harness
    };
    let (mut sender, mut receiver) = (member_of_two(1), member_of_two(2));
    sender.send(Message::bytes(Some(member(2)), vec![7; 1_000]));
    let joined = exchange(&mut sender, &mut receiver);
    assert_eq!(joined.iter().map(Message::length).collect::<Vec<_>>(), [1_000]);
    assert!(joined[0].credit <= 50, "half a window and the last piece");
}

#[test]
fn an_abandoned_message_returns_its_credit() {
    let mut harness = with_credits();
    harness.up_batch((0..4).map(|nth| piece(2, 1, nth, 5, 10)).collect());
    harness.up_batch((0..4).map(|nth| piece(2, 2, nth, 5, 10)).collect());
    assert_eq!(returned(&mut harness), [], "40 stay with the first message, 40 have been given back");
    // As many incomplete messages as allowed; with one more, the first is abandoned.
    harness.up_batch((3..=INCOMPLETE_MAX as u64).map(|id| piece(2, id, 0, 2, 0)).collect());
    assert_eq!(returned(&mut harness), []);
    harness.up(piece(2, 5_000, 0, 2, 0));
    assert_eq!(returned(&mut harness), [80]);
    assert_eq!(harness.stack.shared().drops.total(DropReason::QueueFull), 1);
    assert_eq!(incomplete(&harness), INCOMPLETE_MAX.to_string());
}

#[test]
fn senders_outside_the_view_are_few() {
    let mut harness = harness(FragKind::Frag2);
    for n in 0..2 * NON_MEMBER_SENDERS_MAX as u64 {
        harness.up(piece(1_000 + n, 1, 0, 2, 10));
    }
    assert_eq!(incomplete(&harness), (NON_MEMBER_SENDERS_MAX + 2).to_string());
    harness.up(piece(2, 1, 0, 2, 10)).up(piece(2, 1, 1, 2, 10));
    assert_eq!(harness.take_up().len(), 1, "members are not limited");
}

/// It completes nothing and must not hold credit.
#[test]
fn fragments_of_an_abandoned_message_return_their_credit() {
    let mut harness = with_credits();
    harness.up(piece(2, 7, 0, 6, 10));
    harness.install(view(2, &[1])).install(view(3, &[1, 2])).take_down();
    harness.up_batch((1..6).map(|nth| piece(2, 7, nth, 6, 10)).collect());
    assert_eq!(incomplete(&harness), "0");
    assert_eq!(returned(&mut harness), [50]);
    harness.up(piece(2, 7, 0, 1, 10));
    assert_eq!(harness.take_up().len(), 1, "all fragments have arrived: the id is free again");
}

/// SEQUENCER and MFC let the layer keep 400 - 100 bytes of credit. Member 2 is coordinator.
fn ordered(numbers: &[u64]) -> Harness {
    let max_credits = ByteCount(1_000);
    let config = FlowConfig { max_credits, min_threshold: 0.4, ..FlowConfig::default() };
    let flow = FlowControl::new(FlowKind::Mfc, config, QueueConfig::default());
    let sequencer = Sequencer::new(SequencerConfig::default());
    let frag = Frag::new(FragKind::Frag2, FragConfig { frag_size: ByteCount(100) });
    let mut harness = Harness::with_layers(1, vec![Box::new(flow), Box::new(sequencer), Box::new(frag)]);
    harness.install(view(1, numbers)).raise(Event::View(view(1, numbers)));
    harness.take_up_events();
    harness
}

fn broadcast(n: u64, frag_id: u32, num_frags: u32) -> Message {
    let header = SequencerHeader {
        kind: SequencerKind::WrappedBcast,
        seqno: u64::from(frag_id) + 1,
        flush_ack: false,
    };
    let mut inner = piece(n, 7, frag_id, num_frags, 100);
    inner.dest = None;
    Message::bytes(None, wire::encode_typed(&inner))
        .with_header(ProtocolId::SEQUENCER, HeaderBody::Sequencer(header))
        .sent_by(2)
}

/// Otherwise they could hold all credits that the coordinator needs to finish one.
#[test]
fn incomplete_messages_of_all_members_share_the_credit_of_their_broadcaster() {
    let mut harness = ordered(&[2, 3, 4, 5, 1]);
    for frag_id in 0..2 {
        for n in 3..=5 {
            harness.up(broadcast(n, frag_id, 4));
        }
    }
    assert_eq!(harness.take_down(), [], "two pieces of about 140 bytes are withheld, four are given back");
    harness.up(broadcast(3, 2, 4));
    let credited: Vec<Option<Address>> =
        harness.take_down().into_iter().map(|message| message.dest).collect();
    assert_eq!((credited, incomplete(&harness).as_str()), (vec![Some(member(2))], "3"));
}

/// The coordinator has waited for credits. Later messages are delivered in any case.
#[test]
fn another_member_completes_the_multicast_of_a_departed_member() {
    let mut harness = ordered(&[2, 3, 1]);
    harness.up(broadcast(3, 0, 2));
    harness.install(view(2, &[2, 1])).raise(Event::View(view(2, &[2, 1]))).up(broadcast(3, 1, 2));
    assert_eq!(harness.take_up().iter().map(Message::length).collect::<Vec<_>>(), [200]);
}

#[test]
fn an_incomplete_multicast_of_a_departed_member_is_abandoned_after_the_timeout() {
    let mut harness = ordered(&[2, 3, 1]);
    harness.up(broadcast(3, 0, 3)).up(piece(3, 8, 0, 2, 100));
    harness.install(view(2, &[2, 1])).raise(Event::View(view(2, &[2, 1])));
    assert_eq!(incomplete(&harness), "1", "unicasts are its own");
    harness.advance(DEPARTED_SENDER_TIMEOUT / 2).install(view(3, &[2])).advance(DEPARTED_SENDER_TIMEOUT / 2);
    assert_eq!(incomplete(&harness), "0");
    harness.up(broadcast(3, 1, 3)).up(broadcast(3, 2, 3));
    assert_eq!((incomplete(&harness).as_str(), harness.take_up()), ("0", Vec::new()));
}

#[test]
fn inconsistent_headers_are_dropped() {
    let mut harness = harness(FragKind::Frag2);
    harness.up(piece(2, 1, 3, 2, 10)).up(piece(2, 1, 0, 0, 10));
    assert_eq!(harness.stack.shared().drops.total(DropReason::Malformed), 2);
    harness.up(piece(2, 2, 0, u32::MAX, 10)).up(piece(2, 2, 1, 2, 10));
    assert_eq!(harness.stack.shared().drops.total(DropReason::Malformed), 3, "another number of pieces");
    assert_eq!(harness.take_up(), []);
}

/// A process restarted under its address would continue abandoned messages.
#[test]
fn messages_are_not_numbered_from_one() {
    let sent = harness(FragKind::Frag2).send(Message::bytes(None, vec![0; 11])).take_down();
    let Some(HeaderBody::Frag(header)) = sent[0].headers.get(ProtocolId::FRAG2) else { panic!("{sent:?}") };
    assert!(header.id > 1_000, "{}", header.id);
}

/// Byte for byte (vectors 13, frag_size 20), except for the first id.
#[test]
fn fragments_equal_those_of_jgroups() {
    let vectors: Vec<(&str, Bytes)> = lines("13-transforms")
        .into_iter()
        .filter(|(name, _, _)| name.starts_with("frag"))
        .map(|(name, bytes, _)| (name, bytes))
        .collect();
    let text: String = (0..49).map(|nth| char::from(b'0' + nth % 10)).collect();
    let parties = wire::decode_body(0, &vectors[0].1).unwrap();
    let string = Object::Primitive(Primitive::String(text.clone()));
    for (prefix, kind, payload, flags) in [
        ("frag2.bytes", FragKind::Frag2, Payload::Bytes(Some(text.clone().into())), Flags::NONE),
        ("frag2.obj", FragKind::Frag2, Payload::Object(Box::new(string.clone())), Flags::SERIALIZED),
        ("frag4.obj", FragKind::Frag4, Payload::Object(Box::new(string.clone())), Flags::SERIALIZED),
    ] {
        let mut message = Message::new(parties.dest.clone(), payload).with_flags(flags);
        message.src.clone_from(&parties.src);
        let sent: Vec<Bytes> = of_size(kind, 20)
            .send(message)
            .take_down()
            .into_iter()
            .map(|mut piece| {
                let id = if kind == FragKind::Frag2 { ProtocolId::FRAG2 } else { ProtocolId::FRAG4 };
                let Some(HeaderBody::Frag(header)) = piece.headers.take(id) else { panic!("{piece:?}") };
                piece.headers.put(id, HeaderBody::Frag(Box::new(FragHeader { id: 1, ..*header })));
                if prefix == "frag2.obj" {
                    piece.src = None; // The transport fills it in there.
                }
                wire::encode_body(&piece)
            })
            .collect();
        let wanted: Vec<Bytes> = vectors
            .iter()
            .filter(|(name, _)| name.starts_with(prefix))
            .map(|(_, bytes)| bytes.clone())
            .collect();
        assert_eq!(sent, wanted, "{prefix}");
    }
}
