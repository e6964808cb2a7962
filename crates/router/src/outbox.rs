//! The queue of frames to a client, and the backpressure on senders.
//!
//! A slow client slows senders down, as a direct connection would. After it has not read for a while, senders wait no
//! more, and frames that do not fit are dropped, until it reads again.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout_at};

/// A client with more bytes stops its senders. It is more than the client reads until one resumes.
const WAITING_BYTES_WANTED: usize = 1024 * 1024;

/// There is room for a frame of each concurrent sender.
const WAITING_BYTES_MAX: usize = 8 * WAITING_BYTES_WANTED;

/// Clients that do not read must not exhaust the host's memory.
pub(crate) const WAITING_ALL_MAX: usize = 512 * 1024 * 1024;

/// A frame counts these bytes beside its own.
const FRAME_COST: usize = 128;

pub(crate) struct Outbox {
    /// [`Outbox::push`] bounds the bytes.
    frames: mpsc::UnboundedSender<Bytes>,
    waiting: watch::Sender<Waiting>,
}

#[derive(Clone, Copy)]
struct Waiting {
    bytes: usize,
    /// The time of the last read or empty queue.
    read_at: Instant,
    /// Senders do not wait for a stalled client.
    is_stalled: bool,
}

pub(crate) fn cost(frame: &Bytes) -> usize {
    frame.len() + FRAME_COST
}

impl Outbox {
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<Bytes>) {
        let (frames, outgoing) = mpsc::unbounded_channel();
        let waiting = Waiting { bytes: 0, read_at: Instant::now(), is_stalled: false };
        (Self { frames, waiting: watch::Sender::new(waiting) }, outgoing)
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.frames.is_closed()
    }

    /// Returns whether it fits.
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

    pub(crate) fn note_written(&mut self, cost: usize) {
        self.waiting.send_modify(|waiting| {
            waiting.bytes = waiting.bytes.saturating_sub(cost);
            waiting.read_at = Instant::now();
            waiting.is_stalled &= waiting.bytes > WAITING_BYTES_WANTED / 2;
        });
    }

    /// Usually returns `None`.
    pub(crate) fn capacity_wait(&self) -> Option<CapacityWait> {
        let Waiting { bytes, is_stalled, .. } = *self.waiting.borrow();
        (bytes > WAITING_BYTES_WANTED && !is_stalled).then(|| CapacityWait(self.waiting.clone()))
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.waiting.send_modify(|waiting| waiting.bytes = 0);
    }
}

pub(crate) struct CapacityWait(watch::Sender<Waiting>);

impl CapacityWait {
    /// Returns also when the client closed, or did not read for `stall_timeout`.
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
