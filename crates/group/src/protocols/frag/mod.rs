//! FRAG, FRAG2, FRAG3 and FRAG4: messages larger than `frag_size` travel in fragments.
//!
//! Byte arrays are split without copying. Other payloads are encoded whole. FRAG does so with every message, and its
//! `frag_size` counts headers, too. To the layers below, fragments are ordinary messages with seqnos and credits, so
//! a message of any size gets through.

mod fragmentation;
mod reassembly;

use reassembly::{ABANDON, Reassembly};

use crate::config::Bytes as ByteCount;
use crate::wire;
use crate::{
    Answer, Control, Cx, Event, FragHeader, HeaderBody, HeaderIds, Message, MessageBatch, Pass, ProbeOut,
    Protocol, ProtocolId, Query, TimerKey,
};

crate::properties! {
    /// The properties of all kinds.
    FragConfig {
        /// The largest payload that is not split; with FRAG the largest message with its headers. Must be
        /// below the transport's `bundler.max_size` by the size of the headers.
        frag_size: ByteCount = ByteCount(60_000),
    }
}

/// The first id is random below this, far more than a receiver remembers; ids take at most 3 bytes.
const FIRST_IDS: u64 = 1 << 24;

/// The protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FragKind {
    /// Byte arrays of the whole message.
    Frag,
    /// Byte arrays.
    Frag2,
    /// Byte arrays, with offset and length.
    Frag3,
    /// A payload keeps its type.
    Frag4,
}

impl FragKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Frag => "FRAG",
            Self::Frag2 => "FRAG2",
            Self::Frag3 => "FRAG3",
            Self::Frag4 => "FRAG4",
        }
    }

    const fn id(self) -> ProtocolId {
        match self {
            Self::Frag => ProtocolId::FRAG,
            Self::Frag2 => ProtocolId::FRAG2,
            Self::Frag3 => ProtocolId::FRAG3,
            Self::Frag4 => ProtocolId::FRAG4,
        }
    }

    fn size(self, message: &Message) -> usize {
        match self {
            Self::Frag => wire::message_size(message, 0, None),
            _ => message.length(),
        }
    }

    fn read(self, header: HeaderBody) -> Option<FragHeader> {
        match (self, header) {
            // FRAG's header does not say that the fragments are a whole message, because they always are.
            (Self::Frag, HeaderBody::Frag(header)) => {
                Some(FragHeader { needs_deserialization: true, original_type: 0, ..*header })
            }
            (Self::Frag2 | Self::Frag4, HeaderBody::Frag(header)) => Some(*header),
            (Self::Frag3, HeaderBody::Frag3(header)) => Some(FragHeader {
                id: header.id.into(),
                frag_id: header.frag_id,
                num_frags: header.num_frags,
                needs_deserialization: header.needs_deserialization,
                original_type: 0,
            }),
            _ => None,
        }
    }
}

/// The fragmentation layer.
pub struct Frag {
    kind: FragKind,
    config: FragConfig,
    next_id: u64,
    reassembly: Reassembly,
    pieces_sent: u64,
    pieces_received: u64,
}

impl Frag {
    /// Creates a layer.
    pub fn new(kind: FragKind, config: FragConfig) -> Self {
        Self {
            kind,
            config,
            next_id: 0,
            reassembly: Reassembly::default(),
            pieces_sent: 0,
            pieces_received: 0,
        }
    }
}

impl Protocol for Frag {
    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn id(&self) -> ProtocolId {
        self.kind.id()
    }

    fn start(&mut self, cx: &mut Cx<'_>) {
        // Receivers remember abandoned messages by sender and id. A process that restarts under its old
        // address must not seem to continue them.
        self.next_id = cx.rng().below(FIRST_IDS);
    }

    fn down(&mut self, _cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        let size = self.config.frag_size.0 as usize;
        if batch.messages.iter().all(|message| self.kind.size(message) <= size) {
            return;
        }
        let mut out = Vec::with_capacity(batch.len() + 1);
        for message in batch.messages.drain(..) {
            if self.kind.size(&message) > size {
                self.fragment(message, &mut out);
            } else {
                out.push(message);
            }
        }
        batch.messages = out;
    }

    fn wants(&self, _batch: &MessageBatch, headers: HeaderIds) -> bool {
        headers.has(self.id())
    }

    fn up(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        let id = self.id();
        let messages = std::mem::take(&mut batch.messages);
        for mut message in messages {
            match message.headers.take(id).and_then(|header| self.kind.read(header)) {
                Some(header) => batch.messages.extend(self.reassemble(cx, header, message)),
                None => batch.messages.push(message),
            }
        }
    }

    fn up_event(&mut self, cx: &mut Cx<'_>, event: &Event) -> Pass {
        if let Event::View(view) = event {
            self.reassembly.view(cx, view);
        }
        Pass::On
    }

    fn down_event(&mut self, cx: &mut Cx<'_>, event: &Event) -> Pass {
        if *event == Event::Disconnect {
            cx.disarm(ABANDON);
            self.reassembly.clear();
        }
        Pass::On
    }

    fn control(&mut self, cx: &mut Cx<'_>, control: &Control<'_>) {
        if let Control::View(view) = control {
            self.reassembly.view(cx, view);
        }
    }

    fn timer(&mut self, cx: &mut Cx<'_>, _key: TimerKey) {
        self.reassembly.abandon(cx);
    }

    fn answer(&self, query: &Query<'_>) -> Option<Answer> {
        matches!(query, Query::FragSize).then_some(Answer::Number(self.config.frag_size.0))
    }

    fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.config);
        out.put("num_frags_sent", self.pieces_sent);
        out.put("num_frags_received", self.pieces_received);
        out.put("incomplete_messages", self.reassembly.len());
    }
}

#[cfg(test)]
mod tests;
