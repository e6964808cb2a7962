use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use bytes::Bytes;
use consort_group::PhysAddr;

/// 16 MiB, the size of a generous socket buffer.
pub(crate) const BYTES_MAX: usize = 16 * 1024 * 1024;

/// A packet counts these bytes beside its own.
const PACKET_OVERHEAD: usize = 64;

#[derive(Default)]
struct Waiting {
    packets: VecDeque<(PhysAddr, Bytes)>,
    length: usize,
    waker: Option<Waker>,
    /// Each sender waits once, until the queue is less than half full.
    senders: Vec<Waker>,
}

impl Waiting {
    fn is_half_full(&self) -> bool {
        self.length > BYTES_MAX / 2
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Pushed {
    pub(crate) dropped: u64,
    pub(crate) is_half_full: bool,
}

#[derive(Default)]
pub(crate) struct Inbox {
    waiting: Mutex<Waiting>,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_waker(&self, waker: Option<Waker>) {
        self.lock().waker = waker;
    }

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
        let is_half_full = waiting.is_half_full();
        let waker = if was_empty && !waiting.packets.is_empty() { waiting.waker.clone() } else { None };
        drop(waiting);
        if let Some(waker) = waker {
            waker.wake();
        }
        Pushed { dropped, is_half_full }
    }

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

    /// If so, the waker is woken when that ends.
    pub(crate) fn is_half_full(&self, waker: &Waker) -> bool {
        let mut waiting = self.lock();
        let is_half_full = waiting.is_half_full();
        if is_half_full && !waiting.senders.iter().any(|known| known.will_wake(waker)) {
            waiting.senders.push(waker.clone());
        }
        is_half_full
    }

    pub(crate) fn close(&self) {
        let mut waiting = self.lock();
        waiting.waker = None;
        let packets = std::mem::take(&mut waiting.packets);
        waiting.length = 0;
        Self::release(waiting);
        drop(packets);
    }

    fn release(mut waiting: MutexGuard<'_, Waiting>) {
        let senders = if waiting.is_half_full() { Vec::new() } else { std::mem::take(&mut waiting.senders) };
        drop(waiting);
        senders.into_iter().for_each(Waker::wake);
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

    fn half_full_inbox() -> (Inbox, Arc<Count>) {
        let (inbox, count) = (Inbox::default(), Arc::<Count>::default());
        let waker = Waker::from(count.clone());
        let from = PhysAddr::new([127, 0, 0, 1].into(), 1);
        let packet = Bytes::from(vec![0; 1 << 20]);
        assert!(!inbox.push((0..7).map(|_| (from, packet.clone()))).is_half_full);
        assert!(!inbox.is_half_full(&waker));
        assert!(inbox.push([(from, packet)]).is_half_full);
        assert!(inbox.is_half_full(&waker) && inbox.is_half_full(&waker));
        (inbox, count)
    }

    #[test]
    fn a_waiting_sender_is_woken_once_when_the_inbox_is_less_than_half_full() {
        let (inbox, count) = half_full_inbox();
        inbox.take(1, &mut Vec::new());
        inbox.take(1, &mut Vec::new());
        assert_eq!(count.0.load(Relaxed), 1);
    }

    #[test]
    fn closing_an_inbox_wakes_its_waiting_senders() {
        let (inbox, count) = half_full_inbox();
        inbox.close();
        assert_eq!(count.0.load(Relaxed), 1);
        assert!(!inbox.is_half_full(&Waker::from(count)));
    }
}
