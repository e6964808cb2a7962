//! Reassembly.
//!
//! A reassembled message carries credit, so that the application sets the sender's pace. A sender in the middle of a
//! message would wait forever if fragments kept all its credits. So they keep at most what the layers below allow;
//! the rest returns at once.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::Frag;
use crate::wire;
use crate::{Address, Answer, Cx, DropReason, FragHeader, Message, Payload, Query, Time, TimerKey, View};

/// A sender has one incomplete regular message, and the out-of-band ones that its application sends at once. Beyond
/// it the oldest is abandoned.
pub(super) const INCOMPLETE_MAX: usize = 1_000;

/// The limit of a Java array; beyond it the oldest message is abandoned.
const INCOMPLETE_BYTES_MAX: u64 = i32::MAX as u64;

/// Invented senders cannot grow the table.
pub(super) const NON_MEMBER_SENDERS_MAX: usize = 100;

/// A departed sender's multicasts wait for the member that broadcasts them, which may lack credits.
pub(super) const DEPARTED_SENDER_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) const ABANDON: TimerKey = TimerKey(1);

/// As many as can be incomplete; beyond it the oldest is forgotten.
const ABANDONED_MAX: usize = INCOMPLETE_MAX;

/// Its fragments never complete it, and would hold their sender's credit.
struct AbandonedMessage {
    src: Address,
    id: u64,
    outstanding: u32,
}

struct PartialMessage {
    num_frags: u32,
    is_multicast: bool,
    pieces: BTreeMap<u32, Bytes>,
    bytes: u64,
    first: Option<Message>,
    /// The credit not yet returned to the sender.
    credit: u32,
}

impl PartialMessage {
    fn return_credit(&mut self, cx: &mut Cx<'_>, src: &Address, why: Option<DropReason>) {
        let mut stand_in = Message::empty((!self.is_multicast).then(|| cx.local().clone()));
        stand_in.src = Some(src.clone());
        stand_in.credit = std::mem::take(&mut self.credit);
        match why {
            Some(why) => cx.discard(&stand_in, why),
            None => cx.absorb(&stand_in),
        }
    }

    fn abandon(
        mut self,
        cx: &mut Cx<'_>,
        src: &Address,
        id: u64,
        why: Option<DropReason>,
    ) -> AbandonedMessage {
        self.return_credit(cx, src, why);
        AbandonedMessage { src: src.clone(), id, outstanding: self.num_frags - self.pieces.len() as u32 }
    }
}

#[derive(Default)]
struct Sender {
    messages: BTreeMap<u64, PartialMessage>,
    bytes: u64,
    /// The credit of unicasts and of multicasts.
    withheld: [u64; 2],
    left: Option<Time>,
}

impl Sender {
    fn remove(&mut self, id: u64) -> Option<PartialMessage> {
        let incomplete = self.messages.remove(&id)?;
        self.bytes -= incomplete.bytes;
        self.withheld[usize::from(incomplete.is_multicast)] -= u64::from(incomplete.credit);
        Some(incomplete)
    }

    fn make_room(
        &mut self,
        cx: &mut Cx<'_>,
        src: &Address,
        id: u64,
        length: u64,
        abandoned: &mut VecDeque<AbandonedMessage>,
    ) {
        while self.bytes + length > INCOMPLETE_BYTES_MAX
            || (self.messages.len() >= INCOMPLETE_MAX && !self.messages.contains_key(&id))
        {
            let Some((&oldest, _)) = self.messages.first_key_value() else { return };
            let Some(incomplete) = self.remove(oldest) else { return };
            abandoned.push_back(incomplete.abandon(cx, src, oldest, Some(DropReason::QueueFull)));
        }
    }
}

#[derive(Default)]
pub(super) struct Reassembly {
    senders: BTreeMap<Address, Sender>,
    abandoned: VecDeque<AbandonedMessage>,
}

impl Reassembly {
    pub(super) fn len(&self) -> usize {
        self.senders.values().map(|sender| sender.messages.len()).sum()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Another member may complete a departed member's multicasts.
    pub(super) fn view(&mut self, cx: &mut Cx<'_>, view: &View) {
        let is_sent_by_other = is_sent_by_one(cx);
        let now = cx.now();
        for (src, sender) in &mut self.senders {
            if view.contains(src) {
                sender.left = None;
                continue;
            }
            sender.left.get_or_insert(now);
            let is_over = |incomplete: &PartialMessage| !(is_sent_by_other && incomplete.is_multicast);
            let over: Vec<u64> =
                sender.messages.iter().filter(|(_, it)| is_over(it)).map(|(id, _)| *id).collect();
            for id in over {
                if let Some(incomplete) = sender.remove(id) {
                    self.abandoned.push_back(incomplete.abandon(cx, src, id, None));
                }
            }
            sender.withheld = [0; 2];
            sender.messages.values_mut().for_each(|incomplete| incomplete.return_credit(cx, src, None));
        }
        self.senders.retain(|_, sender| !sender.messages.is_empty());
        self.limit_abandoned();
        self.arm(cx);
    }

    fn arm(&self, cx: &mut Cx<'_>) {
        match self.senders.values().filter_map(|sender| sender.left).min() {
            Some(left) => {
                let rest = (left + DEPARTED_SENDER_TIMEOUT).since(cx.now());
                cx.arm(ABANDON, rest);
            }
            None => cx.disarm(ABANDON),
        }
    }

    pub(super) fn abandon(&mut self, cx: &mut Cx<'_>) {
        let now = cx.now();
        let is_over = |sender: &Sender| sender.left.is_some_and(|left| left + DEPARTED_SENDER_TIMEOUT <= now);
        for (src, sender) in self.senders.extract_if(.., |_, sender| is_over(sender)) {
            for (id, incomplete) in sender.messages {
                self.abandoned.push_back(incomplete.abandon(cx, &src, id, None));
            }
        }
        self.limit_abandoned();
        self.arm(cx);
    }

    fn limit_abandoned(&mut self) {
        self.abandoned.drain(..self.abandoned.len().saturating_sub(ABANDONED_MAX));
    }

    fn is_abandoned(&mut self, src: &Address, id: u64) -> bool {
        let Some(at) =
            self.abandoned.iter().position(|abandoned| abandoned.id == id && abandoned.src == *src)
        else {
            return false;
        };
        self.abandoned[at].outstanding -= 1;
        if self.abandoned[at].outstanding == 0 {
            self.abandoned.remove(at);
        }
        true
    }

    fn add(
        &mut self,
        cx: &mut Cx<'_>,
        header: FragHeader,
        piece: Message,
        bytes: Bytes,
        frag_size: u64,
    ) -> Option<PartialMessage> {
        let src = piece.src.clone()?;
        if self.is_abandoned(&src, header.id) {
            cx.absorb(&piece);
            return None;
        }
        let members = cx.view().map_or(0, View::len);
        if !self.senders.contains_key(&src)
            && self.senders.len() >= members + NON_MEMBER_SENDERS_MAX
            && !cx.view().is_some_and(|view| view.contains(&src))
        {
            cx.discard(&piece, DropReason::QueueFull);
            return None;
        }
        let length = bytes.len() as u64;
        let is_multicast = piece.is_multicast();
        // If one member sends all multicasts, the credit held for all senders is that member's.
        let of_others: u64 = if is_multicast && is_sent_by_one(cx) {
            let others = self.senders.iter().filter(|(other, _)| **other != src);
            others.map(|(_, sender)| sender.withheld[1]).sum()
        } else {
            0
        };
        let sender = self.senders.entry(src.clone()).or_default();
        sender.make_room(cx, &src, header.id, length, &mut self.abandoned);
        let incomplete = sender.messages.entry(header.id).or_insert_with(|| PartialMessage {
            num_frags: header.num_frags,
            is_multicast,
            pieces: BTreeMap::new(),
            bytes: 0,
            first: None,
            credit: 0,
        });
        if (incomplete.num_frags, incomplete.is_multicast) != (header.num_frags, is_multicast) {
            cx.discard(&piece, DropReason::Malformed);
            return None;
        }
        if incomplete.pieces.contains_key(&header.frag_id) {
            cx.discard(&piece, DropReason::Duplicate);
            return None;
        }
        let is_last = incomplete.pieces.len() + 1 == header.num_frags as usize;
        let withheld = &mut sender.withheld[usize::from(is_multicast)];
        let query = Query::Withholdable { is_multicast, piece: length.max(frag_size) };
        let is_withheld = is_last
            || matches!(
                cx.ask(&query),
                Some(Answer::Number(most)) if of_others + *withheld + u64::from(piece.credit) <= most
            );
        if is_withheld {
            let credit = incomplete.credit.saturating_add(piece.credit);
            *withheld += u64::from(credit - incomplete.credit);
            incomplete.credit = credit;
        } else {
            cx.absorb(&piece);
        }
        sender.bytes += length;
        incomplete.bytes += length;
        incomplete.pieces.insert(header.frag_id, bytes);
        if header.frag_id == 0 {
            incomplete.first = Some(piece);
        }
        let done = if is_last { sender.remove(header.id) } else { None };
        if sender.messages.is_empty() {
            self.senders.remove(&src);
        }
        self.limit_abandoned();
        done
    }
}

fn is_sent_by_one(cx: &Cx<'_>) -> bool {
    matches!(cx.ask(&Query::IsSentByOne), Some(Answer::Yes(true)))
}

impl Frag {
    pub(super) fn reassemble(
        &mut self,
        cx: &mut Cx<'_>,
        header: FragHeader,
        piece: Message,
    ) -> Option<Message> {
        self.pieces_received += 1;
        let is_sound = header.num_frags > 0 && header.frag_id < header.num_frags;
        let (true, true, Some(bytes)) = (is_sound, piece.src.is_some(), piece.payload_bytes().cloned())
        else {
            cx.discard(&piece, DropReason::Malformed);
            return None;
        };
        #[cfg(feature = "injected-bugs")]
        let header = if cx.has_bug(crate::InjectedBug::FragmentsSwapped) && header.frag_id > 0 {
            FragHeader { frag_id: header.num_frags - header.frag_id, ..header }
        } else {
            header
        };
        let done = self.reassembly.add(cx, header, piece, bytes, self.config.frag_size.0)?;
        let mut first = done.first?;
        first.credit = done.credit;
        let mut whole = BytesMut::with_capacity(done.bytes as usize);
        done.pieces.values().for_each(|piece| whole.extend_from_slice(piece));
        let whole = whole.freeze();
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
                tracing::debug!(%error, "cannot decode a reassembled message");
                cx.discard(&first, DropReason::Malformed);
                None
            }
        }
    }
}
