//! What waits for a client, and how long those who send to it wait for it.
//!
//! A client that reads too slowly slows those who send to it, as one connection between them would. One that has not read
//! at all for a while holds up nobody more: what does not fit is dropped then, as a network would, until it reads again.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout_at};

/// With more bytes that wait for a client, nothing more is read from those who have sent it some: more than a client reads
/// while they are told to go on.
const WAITING_BYTES_WANTED: usize = 1024 * 1024;

/// Bytes that may wait for a client. What is above the wanted is one frame of each who sends at the time.
const WAITING_BYTES_MAX: usize = 8 * WAITING_BYTES_WANTED;

/// Bytes that may wait for all clients together: if many do not read, none makes the router take the host's memory.
pub(crate) const WAITING_ALL_MAX: usize = 512 * 1024 * 1024;

/// What a frame takes beside its bytes while it waits.
const FRAME_COST: usize = 128;

/// What waits for a client.
pub(crate) struct Outbox {
    /// As many as [`Outbox::push`] admits by their bytes.
    frames: mpsc::UnboundedSender<Bytes>,
    waiting: watch::Sender<Waiting>,
}

#[derive(Clone, Copy)]
struct Waiting {
    bytes: usize,
    /// When the client read last, or had nothing to read.
    read_at: Instant,
    /// Whether it is not waited for.
    is_stalled: bool,
}

/// How much a frame counts.
pub(crate) fn cost(frame: &Bytes) -> usize {
    frame.len() + FRAME_COST
}

impl Outbox {
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<Bytes>) {
        let (frames, outgoing) = mpsc::unbounded_channel();
        let waiting = Waiting { bytes: 0, read_at: Instant::now(), is_stalled: false };
        (Self { frames, waiting: watch::Sender::new(waiting) }, outgoing)
    }

    /// Whether nobody reads any more what is put into it.
    pub(crate) fn is_gone(&self) -> bool {
        self.frames.is_closed()
    }

    /// Takes a frame if there is room for it. Returns whether there was.
    pub(crate) fn push(&mut self, frame: Bytes) -> bool {
        let Waiting { bytes, is_stalled, .. } = *self.waiting.borrow();
        let max = if is_stalled { WAITING_BYTES_WANTED } else { WAITING_BYTES_MAX };
        let cost = cost(&frame);
        let is_taken = bytes + cost <= max && self.frames.send(frame).is_ok();
        if is_taken {
            // Nobody waits for more.
            self.waiting.send_if_modified(|waiting| {
                if waiting.bytes == 0 {
                    waiting.read_at = Instant::now();
                }
                waiting.bytes += cost;
                false
            });
        }
        is_taken
    }

    /// The client has read frames of this cost.
    pub(crate) fn written(&mut self, cost: usize) {
        self.waiting.send_modify(|waiting| {
            waiting.bytes = waiting.bytes.saturating_sub(cost);
            waiting.read_at = Instant::now();
            waiting.is_stalled &= waiting.bytes > WAITING_BYTES_WANTED / 2;
        });
    }

    /// What to wait for before this client is sent more; nothing as a rule.
    pub(crate) fn room(&self) -> Option<Room> {
        let Waiting { bytes, is_stalled, .. } = *self.waiting.borrow();
        (bytes > WAITING_BYTES_WANTED && !is_stalled).then(|| Room(self.waiting.clone()))
    }
}

impl Drop for Outbox {
    /// Nobody waits for a client that is gone.
    fn drop(&mut self) {
        self.waiting.send_modify(|waiting| waiting.bytes = 0);
    }
}

/// Room in an outbox, to wait for.
pub(crate) struct Room(watch::Sender<Waiting>);

impl Room {
    /// Until there is some, or the client is gone, or has not read for so long.
    pub(crate) async fn wait(self, stalls_after: Duration) {
        let mut changes = self.0.subscribe();
        loop {
            let waiting = *changes.borrow_and_update();
            if waiting.bytes <= WAITING_BYTES_WANTED || waiting.is_stalled {
                return;
            }
            // It cannot be closed, as there is a sender here.
            if timeout_at(waiting.read_at + stalls_after, changes.changed()).await.is_err() {
                self.0.send_modify(|now| now.is_stalled |= now.read_at == waiting.read_at);
            }
        }
    }
}
