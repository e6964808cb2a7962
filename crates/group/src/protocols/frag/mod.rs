//! FRAG2 and FRAG4: messages larger than `frag_size` travel in pieces (facts section 19).
//!
//! Byte arrays are cut without copying. Everything else is written out as a whole and cut: FRAG2 sends such pieces as
//! byte arrays, FRAG4 as fragments of the original type. The pieces are ordinary messages to the layers below: each has
//! its own number and costs credits, and a message of any size gets through whatever the credits are.

mod join;
mod split;

use join::{GIVE_UP, Joining};

use crate::config::Bytes as ByteCount;
use crate::{
    Answer, Control, Cx, Event, HeaderBody, HeaderIds, MessageBatch, Pass, ProbeOut, Protocol, ProtocolId,
    Query, TimerKey,
};

crate::properties! {
    /// FRAG2's and FRAG4's properties.
    FragConfig {
        /// The largest payload that stays whole. Has to be below the transport's `bundler.max_size` by what headers
        /// take.
        frag_size: ByteCount = ByteCount(60_000),
    }
}

/// Messages are numbered from one of these on: far more than others remember, at three bytes per piece at most.
const FIRST_IDS: u64 = 1 << 24;

/// Which of the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FragKind {
    /// Pieces are byte arrays.
    Frag2,
    /// Pieces of what is no byte array keep its type.
    Frag4,
}

/// The protocol.
pub struct Frag {
    kind: FragKind,
    config: FragConfig,
    next_id: u64,
    joining: Joining,
    pieces_sent: u64,
    pieces_received: u64,
}

impl Frag {
    /// A fragmentation layer of this kind.
    pub fn new(kind: FragKind, config: FragConfig) -> Self {
        Self { kind, config, next_id: 0, joining: Joining::default(), pieces_sent: 0, pieces_received: 0 }
    }
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

    fn start(&mut self, cx: &mut Cx<'_>) {
        // Others remember messages that they have given up by sender and number: a process that starts again under its
        // old address must not seem to go on with those.
        self.next_id = cx.rng().below(FIRST_IDS);
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

    fn wants(&self, _batch: &MessageBatch, headers: HeaderIds) -> bool {
        headers.has(self.id())
    }

    fn up(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        let id = self.id();
        let messages = std::mem::take(&mut batch.messages);
        for mut message in messages {
            match message.headers.take(id) {
                Some(HeaderBody::Frag(header)) => batch.messages.extend(self.join(cx, *header, message)),
                _ => batch.messages.push(message),
            }
        }
    }

    fn up_event(&mut self, cx: &mut Cx<'_>, event: &Event) -> Pass {
        if let Event::View(view) = event {
            self.joining.view(cx, view);
        }
        Pass::On
    }

    fn down_event(&mut self, cx: &mut Cx<'_>, event: &Event) -> Pass {
        if *event == Event::Disconnect {
            cx.disarm(GIVE_UP);
            self.joining.clear();
        }
        Pass::On
    }

    fn control(&mut self, cx: &mut Cx<'_>, control: &Control<'_>) {
        if let Control::View(view) = control {
            self.joining.view(cx, view);
        }
    }

    fn timer(&mut self, cx: &mut Cx<'_>, _key: TimerKey) {
        self.joining.give_up(cx);
    }

    fn answer(&self, query: &Query<'_>) -> Option<Answer> {
        matches!(query, Query::FragSize).then_some(Answer::Number(self.config.frag_size.0))
    }

    fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.config);
        out.put("num_frags_sent", self.pieces_sent);
        out.put("num_frags_received", self.pieces_received);
        out.put("incomplete_messages", self.joining.len());
    }
}

#[cfg(test)]
mod tests;
