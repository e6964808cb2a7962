//! A layer of a program's own in the protocol stack: it counts payload bytes of the application in both directions.
//!
//! `cargo run -p consort-examples --bin protocol_layer`

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use consort::channel::Message;
use consort::stack::{Cx, MessageBatch, ProbeOut, Protocol, ProtocolId};
use consort_examples::{Failure, in_process};
use tokio::sync::Notify;

/// Counters that the program shares with the layer.
#[derive(Default)]
struct Traffic {
    sent: AtomicU64,
    received: AtomicU64,
    has_received: Notify,
}

/// The layer. Its methods get batches of messages and may change or remove messages.
struct Meter(Arc<Traffic>);

fn bytes(batch: &MessageBatch) -> u64 {
    batch.messages.iter().filter_map(Message::payload_bytes).map(|bytes| bytes.len() as u64).sum()
}

impl Protocol for Meter {
    fn name(&self) -> &'static str {
        "METER"
    }

    /// The id of its headers, of which it sends none. JGroups reserves the ids below 512.
    fn id(&self) -> ProtocolId {
        ProtocolId(2_000)
    }

    fn down(&mut self, _cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        self.0.sent.fetch_add(bytes(batch), Relaxed);
    }

    fn up(&mut self, _cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        self.0.received.fetch_add(bytes(batch), Relaxed);
        self.0.has_received.notify_one();
    }

    /// Attributes that `consort probe` shows.
    fn probe(&self, out: &mut ProbeOut) {
        out.put("sent_bytes", self.0.sent.load(Relaxed));
        out.put("received_bytes", self.0.received.load(Relaxed));
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let traffic = Arc::new(Traffic::default());
    let meter = Box::new(Meter(traffic.clone()));
    let a = in_process("A")?.insert_above("FRAG4", meter).connect("metered").await?;
    // A member receives its own multicasts, too.
    a.send(Message::bytes(None, vec![0; 1_000])).await?;
    while traffic.received.load(Relaxed) < 1_000 {
        traffic.has_received.notified().await;
    }
    println!("sent: {}, received: {}", traffic.sent.load(Relaxed), traffic.received.load(Relaxed));
    a.close().await;
    Ok(())
}
