//! The receiver's side: pieces become the message again.
//!
//! A joined message carries credit as any other does, so that the application's pace decides the sender's. But a
//! sender that has to wait for credits in the middle of a message would wait for good if the pieces kept all of
//! them: what the layers below say would stall it goes back at once, and the joined message carries the rest.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::Frag;
use crate::wire;
use crate::{Address, Answer, Cx, DropReason, FragHeader, Message, Payload, Query, Time, TimerKey, View};

/// Incomplete messages of one sender at most. Regular messages of a sender are at most one at a time, out-of-band
/// ones as many as its application sends at once; beyond this the oldest is given up.
pub(super) const INCOMPLETE_MAX: usize = 1_000;

/// Bytes in incomplete messages of one sender at most: no Java member can send a larger message, because its arrays
/// end there. Beyond this the oldest is given up.
const INCOMPLETE_BYTES_MAX: u64 = i32::MAX as u64;

/// Senders that are not members and have incomplete messages. A flood of invented senders must not grow the table.
pub(super) const STRANGERS_MAX: usize = 100;

/// How long the multicasts of a member that has left are kept if another one sends them: the rest waits for that one's
/// credits, or it has dropped it. No working cluster waits so long.
pub(super) const KEPT: Duration = Duration::from_secs(60);

pub(super) const GIVE_UP: TimerKey = TimerKey(1);

/// Messages that were given up and whose other pieces may still come. As many as can be incomplete at once; beyond
/// this the oldest is forgotten.
const GIVEN_UP_MAX: usize = INCOMPLETE_MAX;

/// A message that was given up. Its other pieces would never be complete, and hold their sender's credit meanwhile.
struct GivenUp {
    src: Address,
    id: u64,
    outstanding: u32,
}

/// A message whose pieces come in.
struct Incomplete {
    num_frags: u32,
    is_multicast: bool,
    pieces: BTreeMap<u32, Bytes>,
    bytes: u64,
    /// The piece with the headers.
    first: Option<Message>,
    /// Not given back to the sender yet.
    credit: u32,
}

impl Incomplete {
    /// What it holds of its sender's credit goes back; with a reason it is counted.
    fn give_back(&mut self, cx: &mut Cx<'_>, src: &Address, why: Option<DropReason>) {
        let mut stand_in = Message::empty((!self.is_multicast).then(|| cx.local().clone()));
        stand_in.src = Some(src.clone());
        stand_in.credit = std::mem::take(&mut self.credit);
        match why {
            Some(why) => cx.discard(&stand_in, why),
            None => cx.absorb(&stand_in),
        }
    }

    fn give_up(mut self, cx: &mut Cx<'_>, src: &Address, id: u64, why: Option<DropReason>) -> GivenUp {
        self.give_back(cx, src, why);
        GivenUp { src: src.clone(), id, outstanding: self.num_frags - self.pieces.len() as u32 }
    }
}

/// What one sender has not completed.
#[derive(Default)]
struct Sender {
    /// By id, which its sender counts up.
    messages: BTreeMap<u64, Incomplete>,
    bytes: u64,
    /// Credit that incomplete unicasts and multicasts hold.
    withheld: [u64; 2],
    /// When it left.
    left: Option<Time>,
}

impl Sender {
    fn remove(&mut self, id: u64) -> Option<Incomplete> {
        let incomplete = self.messages.remove(&id)?;
        self.bytes -= incomplete.bytes;
        self.withheld[usize::from(incomplete.is_multicast)] -= u64::from(incomplete.credit);
        Some(incomplete)
    }

    /// Makes room for a piece of this length, of a message that may be new.
    fn make_room(
        &mut self,
        cx: &mut Cx<'_>,
        src: &Address,
        id: u64,
        length: u64,
        given_up: &mut VecDeque<GivenUp>,
    ) {
        while self.bytes + length > INCOMPLETE_BYTES_MAX
            || (self.messages.len() >= INCOMPLETE_MAX && !self.messages.contains_key(&id))
        {
            let Some((&oldest, _)) = self.messages.first_key_value() else { return };
            let Some(incomplete) = self.remove(oldest) else { return };
            given_up.push_back(incomplete.give_up(cx, src, oldest, Some(DropReason::QueueFull)));
        }
    }
}

/// The incomplete messages of all senders.
#[derive(Default)]
pub(super) struct Joining {
    senders: BTreeMap<Address, Sender>,
    given_up: VecDeque<GivenUp>,
}

impl Joining {
    pub(super) fn len(&self) -> usize {
        self.senders.values().map(|sender| sender.messages.len()).sum()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Gives up what members that left have begun and cannot finish. Others may finish their multicasts, and have
    /// sent whole ones that come after those.
    pub(super) fn view(&mut self, cx: &mut Cx<'_>, view: &View) {
        let is_sent_by_other = is_sent_by_one(cx);
        let now = cx.now();
        for (src, sender) in &mut self.senders {
            if view.contains(src) {
                sender.left = None;
                continue;
            }
            sender.left.get_or_insert(now);
            let is_over = |incomplete: &Incomplete| !(is_sent_by_other && incomplete.is_multicast);
            let over: Vec<u64> =
                sender.messages.iter().filter(|(_, it)| is_over(it)).map(|(id, _)| *id).collect();
            for id in over {
                if let Some(incomplete) = sender.remove(id) {
                    self.given_up.push_back(incomplete.give_up(cx, src, id, None));
                }
            }
            sender.withheld = [0; 2];
            sender.messages.values_mut().for_each(|incomplete| incomplete.give_back(cx, src, None));
        }
        self.senders.retain(|_, sender| !sender.messages.is_empty());
        self.bound_given_up();
        self.arm(cx);
    }

    fn arm(&self, cx: &mut Cx<'_>) {
        match self.senders.values().filter_map(|sender| sender.left).min() {
            Some(left) => {
                let rest = (left + KEPT).since(cx.now());
                cx.arm(GIVE_UP, rest);
            }
            None => cx.disarm(GIVE_UP),
        }
    }

    /// Gives up what those who left long ago have begun.
    pub(super) fn give_up(&mut self, cx: &mut Cx<'_>) {
        let now = cx.now();
        let is_over = |sender: &Sender| sender.left.is_some_and(|left| left + KEPT <= now);
        for (src, sender) in self.senders.extract_if(.., |_, sender| is_over(sender)) {
            for (id, incomplete) in sender.messages {
                self.given_up.push_back(incomplete.give_up(cx, &src, id, None));
            }
        }
        self.bound_given_up();
        self.arm(cx);
    }

    fn bound_given_up(&mut self) {
        self.given_up.drain(..self.given_up.len().saturating_sub(GIVEN_UP_MAX));
    }

    /// Whether a piece belongs to a message that was given up.
    fn is_given_up(&mut self, src: &Address, id: u64) -> bool {
        let Some(at) = self.given_up.iter().position(|given_up| given_up.id == id && given_up.src == *src)
        else {
            return false;
        };
        self.given_up[at].outstanding -= 1;
        if self.given_up[at].outstanding == 0 {
            self.given_up.remove(at);
        }
        true
    }

    /// Adds a piece. Returns the pieces if this was the last one.
    fn add(
        &mut self,
        cx: &mut Cx<'_>,
        header: FragHeader,
        piece: Message,
        bytes: Bytes,
        frag_size: u64,
    ) -> Option<Incomplete> {
        let src = piece.src.clone()?;
        if self.is_given_up(&src, header.id) {
            cx.absorb(&piece);
            return None;
        }
        let members = cx.view().map_or(0, View::len);
        if !self.senders.contains_key(&src)
            && self.senders.len() >= members + STRANGERS_MAX
            && !cx.view().is_some_and(|view| view.contains(&src))
        {
            cx.discard(&piece, DropReason::QueueFull);
            return None;
        }
        let length = bytes.len() as u64;
        let is_multicast = piece.is_multicast();
        // Where one member sends all multicasts, what is withheld of all senders is withheld of that one.
        let of_others: u64 = if is_multicast && is_sent_by_one(cx) {
            let others = self.senders.iter().filter(|(other, _)| **other != src);
            others.map(|(_, sender)| sender.withheld[1]).sum()
        } else {
            0
        };
        let sender = self.senders.entry(src.clone()).or_default();
        sender.make_room(cx, &src, header.id, length, &mut self.given_up);
        let incomplete = sender.messages.entry(header.id).or_insert_with(|| Incomplete {
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
        self.bound_given_up();
        done
    }
}

/// Whether one member sends the multicasts of all.
fn is_sent_by_one(cx: &Cx<'_>) -> bool {
    matches!(cx.ask(&Query::IsSentByOne), Some(Answer::Yes(true)))
}

impl Frag {
    /// Takes a piece; the whole message when it was the last one.
    pub(super) fn join(&mut self, cx: &mut Cx<'_>, header: FragHeader, piece: Message) -> Option<Message> {
        self.pieces_received += 1;
        let is_sound = header.num_frags > 0 && header.frag_id < header.num_frags;
        let (true, true, Some(bytes)) = (is_sound, piece.src.is_some(), piece.payload_bytes().cloned())
        else {
            cx.discard(&piece, DropReason::Malformed);
            return None;
        };
        #[cfg(feature = "planted")]
        let header = if cx.has_planted(crate::Planted::PiecesSwapped) && header.frag_id > 0 {
            FragHeader { frag_id: header.num_frags - header.frag_id, ..header }
        } else {
            header
        };
        let done = self.joining.add(cx, header, piece, bytes, self.config.frag_size.0)?;
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
                tracing::debug!(%error, "fragments do not make a message");
                cx.discard(&first, DropReason::Malformed);
                None
            }
        }
    }
}
