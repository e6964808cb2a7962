//! A bounded queue of packets for a driver, filled by other tasks.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use bytes::Bytes;
use consort_group::PhysAddr;

/// Bytes that may wait: what a generous socket buffer would hold.
pub(crate) const BYTES_MAX: usize = 16 * 1024 * 1024;

/// What a packet costs beside its bytes.
const PACKET_OVERHEAD: usize = 64;

#[derive(Default)]
struct Waiting {
    packets: VecDeque<(PhysAddr, Bytes)>,
    length: usize,
    waker: Option<Waker>,
    /// Who wants to know when it is no longer crowded; each sender is in here once.
    crowd: Vec<Waker>,
}

impl Waiting {
    fn is_crowded(&self) -> bool {
        self.length > BYTES_MAX / 2
    }
}

/// What has become of packets that were added.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pushed {
    /// How many were dropped for want of room.
    pub(crate) dropped: u64,
    /// Whether more than half of what may wait waits now.
    pub(crate) is_crowded: bool,
}

/// What waits for one driver.
#[derive(Default)]
pub(crate) struct Inbox {
    waiting: Mutex<Waiting>,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who is woken when something comes into an empty queue; nobody from now on, if absent.
    pub(crate) fn set_waker(&self, waker: Option<Waker>) {
        self.lock().waker = waker;
    }

    /// Adds packets.
    pub(crate) fn push(&self, packets: impl IntoIterator<Item = (PhysAddr, Bytes)>) -> Pushed {
        let mut waiting = self.lock();
        let was_empty = waiting.packets.is_empty();
        let mut dropped = 0;
        for (from, packet) in packets {
            let cost = packet.len() + PACKET_OVERHEAD;
            if waiting.length + cost > BYTES_MAX {
                dropped += 1;
                continue;
            }
            waiting.length += cost;
            waiting.packets.push_back((from, packet));
        }
        let is_crowded = waiting.is_crowded();
        let waker = if was_empty && !waiting.packets.is_empty() { waiting.waker.clone() } else { None };
        drop(waiting);
        if let Some(waker) = waker {
            waker.wake();
        }
        Pushed { dropped, is_crowded }
    }

    /// Takes up to `count` packets. Returns whether more are left.
    pub(crate) fn take(&self, count: usize, into: &mut Vec<(PhysAddr, Bytes)>) -> bool {
        let mut waiting = self.lock();
        let count = waiting.packets.len().min(count);
        let taken = waiting.packets.drain(..count);
        let mut length = 0;
        into.extend(taken.inspect(|(_, packet)| length += packet.len() + PACKET_OVERHEAD));
        waiting.length -= length;
        let is_more = !waiting.packets.is_empty();
        Self::release(waiting);
        is_more
    }

    /// Whether more than half of what may wait waits. If so, the waker is woken when that is over.
    pub(crate) fn is_crowded(&self, waker: &Waker) -> bool {
        let mut waiting = self.lock();
        let is_crowded = waiting.is_crowded();
        if is_crowded && !waiting.crowd.iter().any(|known| known.will_wake(waker)) {
            waiting.crowd.push(waker.clone());
        }
        is_crowded
    }

    /// Nobody will take anything any more.
    pub(crate) fn close(&self) {
        let mut waiting = self.lock();
        waiting.waker = None;
        let packets = std::mem::take(&mut waiting.packets);
        waiting.length = 0;
        Self::release(waiting);
        drop(packets);
    }

    /// Unlocks it; tells those who wait for room if there is some.
    fn release(mut waiting: MutexGuard<'_, Waiting>) {
        let crowd = if waiting.is_crowded() { Vec::new() } else { std::mem::take(&mut waiting.crowd) };
        drop(waiting);
        crowd.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    /// A queue that is more than half full of 1 MB packets, and a sender that has asked twice.
    fn crowded() -> (Inbox, Arc<Count>) {
        let (inbox, count) = (Inbox::default(), Arc::<Count>::default());
        let waker = Waker::from(count.clone());
        let from = PhysAddr::new([127, 0, 0, 1].into(), 1);
        let packet = Bytes::from(vec![0; 1 << 20]);
        assert!(!inbox.push((0..7).map(|_| (from, packet.clone()))).is_crowded);
        assert!(!inbox.is_crowded(&waker));
        assert!(inbox.push([(from, packet)]).is_crowded);
        assert!(inbox.is_crowded(&waker) && inbox.is_crowded(&waker));
        (inbox, count)
    }

    #[test]
    fn a_sender_is_told_once_when_there_is_room_again() {
        let (inbox, count) = crowded();
        inbox.take(1, &mut Vec::new());
        inbox.take(1, &mut Vec::new());
        assert_eq!(count.0.load(Relaxed), 1);
    }

    #[test]
    fn a_member_that_goes_keeps_nobody_waiting() {
        let (inbox, count) = crowded();
        inbox.close();
        assert_eq!(count.0.load(Relaxed), 1);
        assert!(!inbox.is_crowded(&Waker::from(count)));
    }
}
