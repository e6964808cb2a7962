//! The cost of a layer for messages on their way up: the open BARRIER (S003-1).
//!
//! A stack passes messages with nothing, BARRIER, or idle layers in between: one that batches bypass, as an
//! open BARRIER, and one that receives them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use consort_group::protocols::{Barrier, BarrierConfig};
use consort_group::{
    Address, Cx, HeaderIds, Message, MessageBatch, PhysAddr, Protocol, ProtocolId, Stack, StackSetup, Time,
    Uuid, Version,
};

use super::timing::nanos;
use crate::options::Options;
use crate::sample::Runs;
use crate::targets::{NANOS_ADDED, Row, Target};

const COUNTS: [usize; 3] = [1, 10, 100];

const BARRIER_NANOS_MAX: f64 = 5.0;

struct Layer {
    name: &'static str,
    target: Option<Target>,
    make: fn() -> Box<dyn Protocol>,
}

const LAYERS: [Layer; 3] = [
    Layer {
        name: "open BARRIER",
        target: Some(Target::AtMost(BARRIER_NANOS_MAX)),
        make: || Box::new(Barrier::new(BarrierConfig::default())),
    },
    Layer { name: "a layer that batches pass by", target: None, make: || Box::new(Nothing { wants: false }) },
    Layer { name: "a layer that wants batches", target: None, make: || Box::new(Nothing { wants: true }) },
];

/// Runs with and without the layer alternate.
const TURNS: u32 = 10;

pub(super) fn measure(options: &Options) -> Vec<Row> {
    let time = options.time() / 10 / TURNS;
    let mut rows = Vec::new();
    for count in COUNTS {
        let runs: Vec<_> = (0..options.runs()).map(|_| added(count, time)).collect();
        for (nth, Layer { name, target, .. }) in LAYERS.into_iter().enumerate() {
            let subject = match count {
                1 => format!("{name}, message by message"),
                count => format!("{name}, batches of {count}"),
            };
            let runs = Runs(runs.iter().map(|added| added[nth]).collect());
            rows.push(Row::alone((subject, NANOS_ADDED), &runs, target));
        }
    }
    rows
}

/// Negative values are kept, because they show the error of this measurement.
fn added(count: usize, time: Duration) -> [f64; LAYERS.len()] {
    let mut plain = Round::new(count, None);
    let mut rounds = LAYERS.map(|layer| Round::new(count, Some((layer.make)())));
    let mut added = LAYERS.map(|_| Runs::default());
    for _ in 0..TURNS {
        let plain = nanos(time, || plain.turn());
        for (round, added) in rounds.iter_mut().zip(&mut added) {
            added.0.push((nanos(time, || round.turn()) - plain) / count as f64);
        }
    }
    added.map(|runs| runs.median().unwrap_or_default())
}

type Hands = Arc<Mutex<Vec<Message>>>;

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

struct Nothing {
    wants: bool,
}

impl Protocol for Nothing {
    fn name(&self) -> &'static str {
        "NOTHING"
    }
    fn id(&self) -> ProtocolId {
        ProtocolId(2_001)
    }
    fn wants(&self, _batch: &MessageBatch, _headers: HeaderIds) -> bool {
        self.wants
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
    fn messages_come_round_through_every_layer() {
        for layer in LAYERS {
            let mut round = Round::new(3, Some((layer.make)()));
            round.turn();
            round.turn();
            assert!(round.0.poll_indication().is_none(), "the sink has them, not {}", layer.name);
            assert_eq!(round.0.layers().count(), 3);
        }
    }
}
