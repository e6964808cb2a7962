//! The queue of frames to a client, and the backpressure on senders.
//!
//! A slow client slows senders down, as a direct connection would. After it has not read for a while, senders wait no
//! more, and frames that do not fit are dropped, until it reads again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, timeout_at};

/// A client with more bytes stops its senders. It is more than the client reads until one resumes.
const WAITING_BYTES_WANTED: usize = 1024 * 1024;

/// There is room for a frame of each concurrent sender.
const WAITING_BYTES_MAX: usize = 8 * WAITING_BYTES_WANTED;

/// Clients that do not read must not exhaust the host's memory.
pub(crate) const WAITING_ALL_MAX: usize = 512 * 1024 * 1024;

/// The other half is for clients that read.
const WAITING_UNREAD_MAX: usize = WAITING_ALL_MAX / 2;

/// A client with fewer bytes reads.
const WAITING_BYTES_READ: usize = 64 * 1024;

/// A frame counts these bytes beside its own.
const FRAME_COST: usize = 128;

/// Shorter frames are copied if others wait: a slice would keep the 16 KiB of the sender's reads, many times the counted bytes.
const FRAME_OF_BUFFER_MIN: usize = 4 * 1024;

/// A client that takes fewer bytes per second stalls its senders.
const TAKEN_RATE_MIN: usize = 64 * 1024;

pub(crate) struct Outbox {
    pub(crate) peer: SocketAddr,
    /// Notified, the connection ends at once.
    pub(crate) must_end: Arc<Notify>,
    /// [`Outbox::push`] bounds the bytes.
    frames: mpsc::UnboundedSender<Bytes>,
    waiting: watch::Sender<Waiting>,
    /// A client that has taken as many begins its stall time anew.
    taken_min: usize,
}

#[derive(Clone, Copy)]
struct Waiting {
    bytes: usize,
    /// The beginning of the stall time: the queue was empty, or enough was taken.
    since: Instant,
    /// Since then.
    taken: usize,
    /// Senders do not wait for a stalled client.
    is_stalled: bool,
}

pub(crate) fn cost(frame: &Bytes) -> usize {
    frame.len() + FRAME_COST
}

impl Outbox {
    pub(crate) fn new(peer: SocketAddr, stall_timeout: Duration) -> (Self, mpsc::UnboundedReceiver<Bytes>) {
        let (frames, outgoing) = mpsc::unbounded_channel();
        let waiting = Waiting { bytes: 0, since: Instant::now(), taken: 0, is_stalled: false };
        let taken_min = TAKEN_RATE_MIN * stall_timeout.as_millis() as usize / 1_000;
        let (must_end, waiting) = (Arc::default(), watch::Sender::new(waiting));
        (Self { peer, must_end, frames, waiting, taken_min }, outgoing)
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.frames.is_closed()
    }

    /// Returns whether it fits; `all` is the sum of all clients' waiting bytes.
    pub(crate) fn push(&mut self, frame: Bytes, all: usize) -> bool {
        let Waiting { bytes, is_stalled, .. } = *self.waiting.borrow();
        let max = if is_stalled { WAITING_BYTES_WANTED } else { WAITING_BYTES_MAX };
        let all_max = if bytes > WAITING_BYTES_READ { WAITING_UNREAD_MAX } else { WAITING_ALL_MAX };
        let cost = cost(&frame);
        if bytes + cost > max || all + cost > all_max {
            return false;
        }
        let is_short = bytes > 0 && frame.len() < FRAME_OF_BUFFER_MIN;
        let is_taken =
            self.frames.send(if is_short { Bytes::copy_from_slice(&frame) } else { frame }).is_ok();
        if is_taken {
            // Not an event that senders wait for.
            self.waiting.send_if_modified(|waiting| {
                if waiting.bytes == 0 {
                    (waiting.since, waiting.taken) = (Instant::now(), 0);
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
            waiting.taken += cost;
            if waiting.taken >= self.taken_min {
                (waiting.since, waiting.taken) = (Instant::now(), 0);
            }
            waiting.is_stalled &= waiting.bytes > WAITING_BYTES_WANTED / 2;
        });
    }

    /// Usually returns `None`.
    pub(crate) fn capacity_wait(&self) -> Option<CapacityWait> {
        let Waiting { bytes, is_stalled, .. } = *self.waiting.borrow();
        (bytes > WAITING_BYTES_WANTED && !is_stalled)
            .then(|| CapacityWait { waiting: self.waiting.clone(), is_own: false })
    }

    /// As [`Outbox::capacity_wait`], for the client that sends. A client that does not take its responses has no further ones made.
    pub(crate) fn own_capacity_wait(&self) -> Option<CapacityWait> {
        (self.waiting.borrow().bytes > WAITING_BYTES_WANTED)
            .then(|| CapacityWait { waiting: self.waiting.clone(), is_own: true })
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.waiting.send_modify(|waiting| waiting.bytes = 0);
    }
}

pub(crate) struct CapacityWait {
    waiting: watch::Sender<Waiting>,
    is_own: bool,
}

impl CapacityWait {
    /// Returns also when the client closed, or did not read enough for `stall_timeout` and is another one.
    pub(crate) async fn wait(self, stall_timeout: Duration) {
        let mut changes = self.waiting.subscribe();
        loop {
            let waiting = *changes.borrow_and_update();
            if waiting.bytes <= WAITING_BYTES_WANTED || waiting.is_stalled && !self.is_own {
                return;
            }
            // It cannot be closed, because this value holds a sender.
            if waiting.is_stalled {
                let _ = changes.changed().await;
            } else if timeout_at(waiting.since + stall_timeout, changes.changed()).await.is_err() {
                self.waiting.send_modify(|now| now.is_stalled |= now.since == waiting.since);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outbox() -> (Outbox, mpsc::UnboundedReceiver<Bytes>) {
        Outbox::new(([127, 0, 0, 1], 1).into(), Duration::from_secs(5))
    }

    #[test]
    fn clients_that_do_not_read_leave_half_of_the_bytes_to_others() {
        let ((mut unread, _frames), (mut reads, _others)) = (outbox(), outbox());
        let frame = Bytes::from(vec![0; WAITING_BYTES_READ]);
        assert!(unread.push(frame.clone(), 0));
        assert!(!unread.push(frame.clone(), WAITING_UNREAD_MAX));
        assert!(reads.push(frame.clone(), WAITING_UNREAD_MAX));
        assert!(!reads.push(frame, WAITING_ALL_MAX));
    }

    #[test]
    fn short_frames_that_wait_keep_no_read_buffer() {
        let (mut outbox, mut frames) = outbox();
        let buffer = Bytes::from(vec![7; 16 * 1024]);
        assert!(outbox.push(buffer.slice(..1_000), 0) && outbox.push(buffer.slice(..1_000), 0));
        drop(frames.try_recv());
        assert!(buffer.try_into_mut().is_ok(), "the second frame is a copy");
    }

    #[tokio::test]
    async fn a_client_that_takes_few_bytes_is_stalled_as_one_that_takes_none() {
        let stall_timeout = Duration::from_millis(20);
        let (mut outbox, _frames) = Outbox::new(([127, 0, 0, 1], 1).into(), stall_timeout);
        let frame = Bytes::from(vec![0; WAITING_BYTES_READ]);
        while outbox.capacity_wait().is_none() {
            assert!(outbox.push(frame.clone(), 0));
        }
        assert!(outbox.push(frame.clone(), 0));
        let (wait, own) = (outbox.capacity_wait().unwrap(), outbox.own_capacity_wait().unwrap());
        let mut wait = Box::pin(wait.wait(stall_timeout));
        let mut reads = tokio::time::interval(Duration::from_millis(1));
        loop {
            tokio::select! {
                () = &mut wait => break,
                _ = reads.tick() => outbox.note_written(1),
            }
        }
        assert!(outbox.capacity_wait().is_none(), "senders wait no more");
        // The client itself waits until it has read.
        let mut own = Box::pin(own.wait(stall_timeout));
        assert!(tokio::time::timeout(Duration::ZERO, &mut own).await.is_err());
        (0..3).for_each(|_| outbox.note_written(cost(&frame)));
        own.await;
    }
}
