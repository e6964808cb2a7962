//! What a layer adds to messages on their way up: the open BARRIER (S003-1).
//!
//! A stack of a source and a sink hands the same messages round, with nothing between them, with a layer that does
//! nothing, and with BARRIER: the stack's own work for a layer is told from the layer's.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use consort_group::protocols::{Barrier, BarrierConfig};
use consort_group::{
    Address, Cx, Message, MessageBatch, PhysAddr, Protocol, ProtocolId, Stack, StackSetup, Time, Uuid,
    Version,
};

use super::timing::nanos;
use crate::options::Options;
use crate::sample::Runs;
use crate::targets::{NANOS_ADDED, Row, Target};

/// Messages that are handed up at once.
const COUNTS: [usize; 3] = [1, 10, 100];

/// What an open BARRIER may take for a message.
const BARRIER_NANOS_MAX: f64 = 5.0;

/// Measurements with and without the layer in turn, within one run.
const TURNS: u32 = 10;

pub(super) fn measure(options: &Options) -> Vec<Row> {
    let time = options.time() / 10 / TURNS;
    let mut rows = Vec::new();
    for count in COUNTS {
        let runs = (0..options.runs()).map(|_| added(count, time));
        let (layer, barrier) = runs.map(|added| (added.layer, added.barrier)).unzip();
        let of = |what: &str| match count {
            1 => (format!("{what}, message by message"), NANOS_ADDED),
            count => (format!("{what}, batches of {count}"), NANOS_ADDED),
        };
        rows.push(Row::alone(of("open BARRIER"), &Runs(barrier), Some(Target::AtMost(BARRIER_NANOS_MAX))));
        rows.push(Row::alone(of("a layer that does nothing"), &Runs(layer), None));
    }
    rows
}

/// Nanoseconds per message.
struct Added {
    /// By a layer more, whatever it does.
    layer: f64,
    /// By BARRIER to that.
    barrier: f64,
}

fn added(count: usize, time: Duration) -> Added {
    let mut plain = Round::new(count, None);
    let mut through = Round::new(count, Some(Box::new(Nothing)));
    let mut barred = Round::new(count, Some(Box::new(Barrier::new(BarrierConfig::default()))));
    let (mut layer, mut barrier) = (Runs::default(), Runs::default());
    for _ in 0..TURNS {
        let [plain, through, barred] =
            [&mut plain, &mut through, &mut barred].map(|round| nanos(time, || round.turn()) / count as f64);
        layer.0.push(through - plain);
        barrier.0.push(barred - through);
    }
    let median = |runs: Runs| runs.median().unwrap_or_default().max(0.0);
    Added { layer: median(layer), barrier: median(barrier) }
}

/// The messages, while no stack has them.
type Hands = Arc<Mutex<Vec<Message>>>;

/// A stack that hands messages from its bottom to its top.
struct Round(Stack);

impl Round {
    fn new(count: usize, between: Option<Box<dyn Protocol>>) -> Self {
        let src = Address::Uuid(Uuid { most: 1, least: 2 });
        let messages = (0..count).map(|_| {
            let mut message = Message::bytes(None, vec![0; 100]);
            message.src = Some(src.clone());
            message
        });
        let hands: Hands = Arc::new(Mutex::new(messages.collect()));
        let mut layers: Vec<Box<dyn Protocol>> = vec![Box::new(Source(hands.clone()))];
        layers.extend(between);
        layers.push(Box::new(Sink(hands)));
        let setup = StackSetup {
            local: Address::Uuid(Uuid { most: 1, least: 1 }),
            name: "A".into(),
            phys: PhysAddr { ip: None, scope_id: 0, port: 1 },
            has_multicast: false,
            seed: 1,
            version: Version::V5_5_7,
        };
        let mut stack = Stack::new(setup, layers);
        stack.start(Time::ZERO);
        Self(stack)
    }

    fn turn(&mut self) {
        self.0.handle_receive(Time::ZERO, PhysAddr { ip: None, scope_id: 0, port: 2 }, Bytes::new());
        self.0.run(Time::ZERO);
    }
}

/// Lets everything pass.
struct Nothing;

impl Protocol for Nothing {
    fn name(&self) -> &'static str {
        "NOTHING"
    }
    fn id(&self) -> ProtocolId {
        ProtocolId(2_001)
    }
}

struct Source(Hands);

impl Protocol for Source {
    fn name(&self) -> &'static str {
        "SOURCE"
    }
    fn id(&self) -> ProtocolId {
        ProtocolId::TP
    }
    fn receive(&mut self, cx: &mut Cx<'_>, _from: PhysAddr, _packet: Bytes) {
        let messages = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        cx.deliver_batch(MessageBatch { messages });
    }
}

struct Sink(Hands);

impl Protocol for Sink {
    fn name(&self) -> &'static str {
        "SINK"
    }
    fn id(&self) -> ProtocolId {
        ProtocolId(2_000)
    }
    fn up(&mut self, _cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = std::mem::take(&mut batch.messages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_round() {
        let mut round = Round::new(3, Some(Box::new(Nothing)));
        round.turn();
        round.turn();
        assert!(round.0.poll_indication().is_none(), "the sink has them");
        assert_eq!(round.0.layers().count(), 3);
    }
}
