//! BARRIER: holds messages from below while a state is provided or applied.
//!
//! It sits below the layers that retransmit, so dropped messages arrive again.

use std::time::Duration;

use crate::{
    Control, Cx, DropReason, Event, Flags, HeaderIds, MessageBatch, Pass, ProbeOut, Protocol, ProtocolId,
    TimerKey,
};

crate::properties! {
    /// BARRIER's properties.
    BarrierConfig {
        /// The time after which the barrier opens by itself.
        max_close_time: Duration = Duration::from_secs(60),
    }
}

/// A few round trips' worth; further messages are dropped and retransmitted.
const HELD_MAX: usize = 10_000;

const OPEN: TimerKey = TimerKey(1);

/// The BARRIER layer.
pub struct Barrier {
    config: BarrierConfig,
    is_closed: bool,
    held: Vec<MessageBatch>,
    count: usize,
}

impl Barrier {
    /// Creates an open barrier.
    pub const fn new(config: BarrierConfig) -> Self {
        Self { config, is_closed: false, held: Vec::new(), count: 0 }
    }

    fn open(&mut self, cx: &mut Cx<'_>) {
        cx.disarm(OPEN);
        self.is_closed = false;
        self.count = 0;
        self.held.drain(..).for_each(|batch| cx.deliver_batch(batch));
    }
}

impl Protocol for Barrier {
    fn name(&self) -> &'static str {
        "BARRIER"
    }

    /// No headers; JGroups' number is 0.
    fn id(&self) -> ProtocolId {
        ProtocolId(0)
    }

    fn wants(&self, _batch: &MessageBatch, _headers: HeaderIds) -> bool {
        self.is_closed
    }

    fn up(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        let messages = std::mem::take(&mut batch.messages);
        let (passing, mut waiting): (Vec<_>, Vec<_>) = messages.into_iter().partition(|message| {
            message.flags.has(Flags::SKIP_BARRIER) || (message.is_oob() && !message.is_multicast())
        });
        batch.messages = passing;
        let room = HELD_MAX - self.count;
        for message in waiting.drain(room.min(waiting.len())..) {
            cx.discard(&message, DropReason::QueueFull);
        }
        if !waiting.is_empty() {
            self.count += waiting.len();
            self.held.push(MessageBatch { messages: waiting });
        }
    }

    fn down_event(&mut self, cx: &mut Cx<'_>, event: &Event) -> Pass {
        if *event == Event::Disconnect {
            self.held.clear();
            self.open(cx);
        }
        Pass::On
    }

    fn control(&mut self, cx: &mut Cx<'_>, control: &Control<'_>) {
        match control {
            // A second close does not extend the time.
            Control::CloseBarrier if self.is_closed => {}
            Control::CloseBarrier => {
                self.is_closed = true;
                if !self.config.max_close_time.is_zero() {
                    cx.arm(OPEN, self.config.max_close_time);
                }
            }
            Control::OpenBarrier => self.open(cx),
            _ => {}
        }
    }

    fn timer(&mut self, cx: &mut Cx<'_>, _key: TimerKey) {
        tracing::warn!(after = ?self.config.max_close_time, "the barrier was not opened in time");
        self.open(cx);
    }

    fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.config);
        out.put("is_closed", self.is_closed);
        out.put("held_messages", self.count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Message;
    use crate::harness::{Harness, member};

    fn from(n: u64, flags: Flags) -> Message {
        Message::bytes(Some(member(1)), vec![n as u8]).with_flags(flags).sent_by(n)
    }

    #[test]
    fn messages_wait_in_order_while_the_barrier_is_closed() {
        let mut harness = Harness::new(Barrier::new(BarrierConfig::default()));
        harness.barrier(true).up(from(2, Flags::NONE)).up(from(3, Flags::NONE));
        assert_eq!(harness.take_up(), []);
        harness.up(from(4, Flags::OOB)).up(from(5, Flags::SKIP_BARRIER));
        assert_eq!(harness.take_up().len(), 2, "these pass");
        let sources: Vec<_> = harness.barrier(false).take_up().into_iter().filter_map(|m| m.src).collect();
        assert_eq!(sources, [member(2), member(3)]);
    }

    #[test]
    fn a_closed_barrier_opens_after_max_close_time() {
        let mut harness = Harness::new(Barrier::new(BarrierConfig::default()));
        harness.barrier(true).up(from(2, Flags::NONE)).advance(Duration::from_secs(59));
        harness.barrier(true).advance(Duration::from_secs(1));
        assert_eq!(harness.take_up().len(), 1);
    }

    #[test]
    fn messages_beyond_the_limit_are_dropped_and_counted() {
        let mut harness = Harness::new(Barrier::new(BarrierConfig::default()));
        harness.barrier(true).up_batch(vec![from(2, Flags::NONE); HELD_MAX + 5]);
        assert_eq!(harness.barrier(false).take_up().len(), HELD_MAX);
        assert_eq!(harness.stack.shared().drops.total(DropReason::QueueFull), 5);
    }
}
