//! FRAG2 and FRAG4: messages larger than `frag_size` travel in pieces (facts section 19).
//!
//! Byte arrays are cut without copying. Everything else is written out as a whole and cut: FRAG2 sends such pieces as
//! byte arrays, FRAG4 as fragments of the original type. The pieces are ordinary messages to the layers below.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};

use crate::config::Bytes as ByteCount;
use crate::wire;
use crate::{
    Address, Answer, Control, Cx, DropReason, Event, FragHeader, HeaderBody, Message, MessageBatch, Pass,
    Payload, ProbeOut, Protocol, ProtocolId, Query, View,
};

crate::properties! {
    /// FRAG2's and FRAG4's properties.
    FragConfig {
        /// The largest payload that stays whole. Has to be below the transport's `bundler.max_size` by what headers
        /// take.
        frag_size: ByteCount = ByteCount(60_000),
    }
}

/// Incomplete messages of one sender at most. Regular messages of a sender are at most one at a time, out-of-band
/// ones as many as its application sends at once; beyond this the oldest is given up.
const INCOMPLETE_MAX: usize = 1_000;

/// Which of the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FragKind {
    /// Pieces are byte arrays.
    Frag2,
    /// Pieces of what is no byte array keep its type.
    Frag4,
}

/// A message whose pieces come in.
struct Incomplete {
    pieces: BTreeMap<u32, Bytes>,
    /// The piece with the headers.
    first: Option<Message>,
    credit: u32,
}

/// The protocol.
pub struct Frag {
    kind: FragKind,
    config: FragConfig,
    next_id: u64,
    /// Members of the view only; more are dropped with it.
    incomplete: BTreeMap<Address, BTreeMap<u64, Incomplete>>,
    pieces_sent: u64,
    pieces_received: u64,
}

impl Frag {
    /// A fragmentation layer of this kind.
    pub fn new(kind: FragKind, config: FragConfig) -> Self {
        Self { kind, config, next_id: 0, incomplete: BTreeMap::new(), pieces_sent: 0, pieces_received: 0 }
    }

    fn split(&mut self, message: Message, out: &mut Vec<Message>) {
        let size = (self.config.frag_size.0 as usize).max(1);
        self.next_id += 1;
        let mut header = FragHeader {
            id: self.next_id,
            frag_id: 0,
            num_frags: 0,
            needs_deserialization: false,
            original_type: 0,
        };
        let whole = match &message.payload {
            Payload::Bytes(Some(bytes)) | Payload::Nio { bytes: Some(bytes), .. } => bytes.clone(),
            _ if self.kind == FragKind::Frag2 => {
                header.needs_deserialization = true;
                wire::encode_typed(&message)
            }
            _ => {
                header.original_type = wire::message_type(&message.payload);
                wire::encode_body(&message)
            }
        };
        let is_cut = !header.needs_deserialization && header.original_type == 0;
        header.num_frags = whole.len().div_ceil(size) as u32;
        self.pieces_sent += u64::from(header.num_frags);
        for nth in 0..header.num_frags {
            header.frag_id = nth;
            let from = nth as usize * size;
            let piece = whole.slice(from..whole.len().min(from + size));
            let payload = match &message.payload {
                Payload::Nio { direct, .. } => Payload::Nio { bytes: Some(piece), direct: *direct },
                _ if header.original_type != 0 => Payload::Fragment(piece),
                _ => Payload::Bytes(Some(piece)),
            };
            let mut part = Message::new(message.dest.clone(), payload);
            part.src.clone_from(&message.src);
            part.flags = message.flags;
            part.transient = message.transient;
            if nth == 0 && is_cut {
                part.headers = message.headers.clone();
            }
            if nth == 0 {
                part.ticket = message.ticket;
            }
            part.headers.put(self.id(), HeaderBody::Frag(header));
            out.push(part);
        }
    }

    /// Takes a piece; the whole message when it was the last one.
    fn join(&mut self, cx: &mut Cx<'_>, header: FragHeader, mut piece: Message) -> Option<Message> {
        self.pieces_received += 1;
        let is_sound = header.num_frags > 0 && header.frag_id < header.num_frags;
        let (Some(src), Some(bytes), true) = (piece.src.clone(), piece.payload_bytes().cloned(), is_sound)
        else {
            cx.discard(&piece, DropReason::Malformed);
            return None;
        };
        let messages = self.incomplete.entry(src.clone()).or_default();
        if !messages.contains_key(&header.id) && messages.len() >= INCOMPLETE_MAX {
            give_up_oldest(cx, &src, messages, piece.is_multicast());
        }
        let incomplete = messages.entry(header.id).or_insert_with(|| Incomplete {
            pieces: BTreeMap::new(),
            first: None,
            credit: 0,
        });
        incomplete.credit = incomplete.credit.saturating_add(piece.credit);
        incomplete.pieces.insert(header.frag_id, bytes);
        if header.frag_id == 0 {
            piece.credit = 0;
            incomplete.first = Some(piece);
        }
        if incomplete.pieces.len() < header.num_frags as usize {
            return None;
        }
        let done = messages.remove(&header.id)?;
        if messages.is_empty() {
            self.incomplete.remove(&src);
        }
        let mut first = done.first?;
        let length = done.pieces.values().map(Bytes::len).sum();
        let mut whole = BytesMut::with_capacity(length);
        done.pieces.values().for_each(|piece| whole.extend_from_slice(piece));
        let whole = whole.freeze();
        first.credit = done.credit;
        let decoded = if header.needs_deserialization {
            wire::decode_typed(&whole)
        } else if header.original_type != 0 {
            wire::decode_body(header.original_type, &whole)
        } else {
            first.payload = match first.payload {
                Payload::Nio { direct, .. } => Payload::Nio { bytes: Some(whole), direct },
                _ => Payload::Bytes(Some(whole)),
            };
            return Some(first);
        };
        match decoded {
            Ok(mut message) => {
                message.src = first.src;
                message.dest = first.dest;
                message.transient = first.transient;
                message.credit = first.credit;
                Some(message)
            }
            Err(error) => {
                tracing::debug!(%error, "fragments do not make a message");
                cx.discard(&first, DropReason::Malformed);
                None
            }
        }
    }

    fn view(&mut self, view: &View) {
        self.incomplete.retain(|src, _| view.contains(src));
    }
}

fn give_up_oldest(
    cx: &mut Cx<'_>,
    src: &Address,
    messages: &mut BTreeMap<u64, Incomplete>,
    is_multicast: bool,
) {
    let Some((_, oldest)) = messages.pop_first() else { return };
    let mut stand_in = Message::empty((!is_multicast).then(|| cx.local().clone()));
    stand_in.src = Some(src.clone());
    stand_in.credit = oldest.credit;
    cx.discard(&stand_in, DropReason::QueueFull);
}

impl Protocol for Frag {
    fn name(&self) -> &'static str {
        match self.kind {
            FragKind::Frag2 => "FRAG2",
            FragKind::Frag4 => "FRAG4",
        }
    }

    fn id(&self) -> ProtocolId {
        match self.kind {
            FragKind::Frag2 => ProtocolId::FRAG2,
            FragKind::Frag4 => ProtocolId::FRAG4,
        }
    }

    fn down(&mut self, _cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        let size = self.config.frag_size.0 as usize;
        if batch.messages.iter().all(|message| message.length() <= size) {
            return;
        }
        let mut out = Vec::with_capacity(batch.len() + 1);
        for message in batch.messages.drain(..) {
            if message.length() > size {
                self.split(message, &mut out);
            } else {
                out.push(message);
            }
        }
        batch.messages = out;
    }

    fn up(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        let id = self.id();
        if batch.messages.iter().all(|message| message.headers.get(id).is_none()) {
            return;
        }
        let messages = std::mem::take(&mut batch.messages);
        for mut message in messages {
            match message.headers.take(id) {
                Some(HeaderBody::Frag(header)) => batch.messages.extend(self.join(cx, header, message)),
                _ => batch.messages.push(message),
            }
        }
    }

    fn up_event(&mut self, _cx: &mut Cx<'_>, event: &Event) -> Pass {
        if let Event::View(view) = event {
            self.view(view);
        }
        Pass::On
    }

    fn down_event(&mut self, _cx: &mut Cx<'_>, event: &Event) -> Pass {
        if *event == Event::Disconnect {
            self.incomplete.clear();
        }
        Pass::On
    }

    fn control(&mut self, _cx: &mut Cx<'_>, control: &Control<'_>) {
        if let Control::View(view) = control {
            self.view(view);
        }
    }

    fn answer(&self, query: &Query<'_>) -> Option<Answer> {
        matches!(query, Query::FragSize).then_some(Answer::Number(self.config.frag_size.0))
    }

    fn probe(&self, out: &mut ProbeOut) {
        for (name, value) in crate::config::Properties::show(&self.config) {
            out.put(name, value);
        }
        out.put("num_frags_sent", self.pieces_sent);
        out.put("num_frags_received", self.pieces_received);
        out.put("incomplete_messages", self.incomplete.values().map(BTreeMap::len).sum::<usize>());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Harness, member, view};
    use crate::{Flags, Object, Primitive, RsvpHeader, RsvpKind};

    fn harness(kind: FragKind) -> Harness {
        let mut harness = Harness::new(Frag::new(kind, FragConfig { frag_size: ByteCount(10) }));
        harness.install(view(1, &[1, 2]));
        harness.take_up_events();
        harness
    }

    /// Sends a message as member 1 and hands the pieces to a receiver as if member 2 had sent them.
    fn round_trip(kind: FragKind, message: Message) -> (Vec<Message>, Vec<Message>) {
        let mut harness = harness(kind);
        let pieces = harness.send(message).take_down();
        let received: Vec<Message> = pieces
            .iter()
            .cloned()
            .map(|mut piece| {
                piece.src = Some(member(2));
                piece.credit = piece.length() as u32;
                piece
            })
            .collect();
        let joined = harness.up_batch(received).take_up();
        (pieces, joined)
    }

    #[test]
    fn byte_arrays_are_cut_and_only_the_first_piece_has_the_headers() {
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
        assert_eq!(joined[0].credit, 26, "the credits of all pieces");
    }

    #[test]
    fn objects_are_written_out_whole_by_frag2_and_keep_their_type_with_frag4() {
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
    fn pieces_may_come_in_any_order_and_more_than_once() {
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
    fn pieces_of_members_that_left_are_forgotten() {
        let mut harness = harness(FragKind::Frag2);
        let mut pieces = harness.send(Message::bytes(None, "abcdefghijkl")).take_down();
        pieces.iter_mut().for_each(|piece| piece.src = Some(member(2)));
        harness.up(pieces[0].clone());
        harness.install(view(2, &[1]));
        harness.up(pieces[1].clone());
        assert_eq!(harness.take_up(), []);
    }

    #[test]
    fn headers_that_lie_are_dropped_and_tables_stay_bounded() {
        let mut harness = harness(FragKind::Frag2);
        let mut piece = harness.send(Message::bytes(None, "abcdefghijkl")).take_down().remove(0);
        piece.src = Some(member(2));
        for id in 0..2 * INCOMPLETE_MAX as u64 {
            let header = FragHeader {
                id,
                frag_id: 0,
                num_frags: u32::MAX,
                needs_deserialization: false,
                original_type: 0,
            };
            piece.headers.put(ProtocolId::FRAG2, HeaderBody::Frag(header));
            harness.up(piece.clone());
        }
        let probe = harness.stack.probe("FRAG2").unwrap();
        let incomplete = probe.attributes.iter().find(|(name, _)| name == "incomplete_messages").unwrap();
        assert_eq!(incomplete.1, INCOMPLETE_MAX.to_string());
        piece.headers.put(
            ProtocolId::FRAG2,
            HeaderBody::Frag(FragHeader {
                id: 1,
                frag_id: 3,
                num_frags: 2,
                needs_deserialization: false,
                original_type: 0,
            }),
        );
        harness.up(piece);
        assert_eq!(harness.stack.shared().drops.total(DropReason::Malformed), 1);
        assert_eq!(harness.take_up(), []);
    }
}
