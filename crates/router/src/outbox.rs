//! The queue of frames to a client, and the backpressure on their senders.
//!
//! A client that reads slowly slows its senders down, as a direct connection would. After a client has not read for a
//! while, senders do not wait any more, and frames that do not fit are dropped, until it reads again.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout_at};

/// Bytes queued for a client above which its senders are not read. It is more than a client reads until a sender
/// resumes.
const WAITING_BYTES_WANTED: usize = 1024 * 1024;

/// Most bytes that may be queued for a client: above the limit for senders there is one frame of each concurrent
/// sender.
const WAITING_BYTES_MAX: usize = 8 * WAITING_BYTES_WANTED;

/// Bytes that may be queued for all clients together: clients that do not read must not exhaust the host's memory.
pub(crate) const WAITING_ALL_MAX: usize = 512 * 1024 * 1024;

/// Bytes that a queued frame counts beside its own.
const FRAME_COST: usize = 128;

/// The queue of a client.
pub(crate) struct Outbox {
    /// Bounded in bytes by [`Outbox::push`].
    frames: mpsc::UnboundedSender<Bytes>,
    waiting: watch::Sender<Waiting>,
}

#[derive(Clone, Copy)]
struct Waiting {
    bytes: usize,
    /// When the client read last, or its queue was empty.
    read_at: Instant,
    /// Whether senders do not wait for it.
    is_stalled: bool,
}

/// Returns the bytes that a frame counts.
pub(crate) fn cost(frame: &Bytes) -> usize {
    frame.len() + FRAME_COST
}

impl Outbox {
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<Bytes>) {
        let (frames, outgoing) = mpsc::unbounded_channel();
        let waiting = Waiting { bytes: 0, read_at: Instant::now(), is_stalled: false };
        (Self { frames, waiting: watch::Sender::new(waiting) }, outgoing)
    }

    /// Returns whether the connection's writer has ended.
    pub(crate) fn is_gone(&self) -> bool {
        self.frames.is_closed()
    }

    /// Queues a frame if it fits. Returns whether it did.
    pub(crate) fn push(&mut self, frame: Bytes) -> bool {
        let Waiting { bytes, is_stalled, .. } = *self.waiting.borrow();
        let max = if is_stalled { WAITING_BYTES_WANTED } else { WAITING_BYTES_MAX };
        let cost = cost(&frame);
        let is_taken = bytes + cost <= max && self.frames.send(frame).is_ok();
        if is_taken {
            // Not an event that senders wait for.
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

    /// Notes that the client has read frames of this cost.
    pub(crate) fn note_written(&mut self, cost: usize) {
        self.waiting.send_modify(|waiting| {
            waiting.bytes = waiting.bytes.saturating_sub(cost);
            waiting.read_at = Instant::now();
            waiting.is_stalled &= waiting.bytes > WAITING_BYTES_WANTED / 2;
        });
    }

    /// Returns a wait for capacity before this client is sent more; usually `None`.
    pub(crate) fn capacity_wait(&self) -> Option<CapacityWait> {
        let Waiting { bytes, is_stalled, .. } = *self.waiting.borrow();
        (bytes > WAITING_BYTES_WANTED && !is_stalled).then(|| CapacityWait(self.waiting.clone()))
    }
}

impl Drop for Outbox {
    /// Ends waits for the client.
    fn drop(&mut self) {
        self.waiting.send_modify(|waiting| waiting.bytes = 0);
    }
}

/// A wait for capacity in an outbox.
pub(crate) struct CapacityWait(watch::Sender<Waiting>);

impl CapacityWait {
    /// Waits until there is capacity, the client has closed, or it has not read for `stall_timeout`.
    pub(crate) async fn wait(self, stall_timeout: Duration) {
        let mut changes = self.0.subscribe();
        loop {
            let waiting = *changes.borrow_and_update();
            if waiting.bytes <= WAITING_BYTES_WANTED || waiting.is_stalled {
                return;
            }
            // It cannot be closed, because this value holds a sender.
            if timeout_at(waiting.read_at + stall_timeout, changes.changed()).await.is_err() {
                self.0.send_modify(|now| now.is_stalled |= now.read_at == waiting.read_at);
            }
        }
    }
}
