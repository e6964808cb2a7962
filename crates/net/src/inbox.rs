//! A bounded queue of packets for a driver, filled by other tasks.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use bytes::Bytes;
use consort_group::PhysAddr;

/// Bytes that may wait: what a generous socket buffer would hold.
const BYTES_MAX: usize = 16 * 1024 * 1024;

/// What a packet costs beside its bytes.
const PACKET_OVERHEAD: usize = 64;

#[derive(Default)]
struct Waiting {
    packets: VecDeque<(PhysAddr, Bytes)>,
    length: usize,
    waker: Option<Waker>,
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

    /// Adds packets. Returns how many were dropped for want of room.
    pub(crate) fn push(&self, packets: impl IntoIterator<Item = (PhysAddr, Bytes)>) -> u64 {
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
        let waker = if was_empty && !waiting.packets.is_empty() { waiting.waker.clone() } else { None };
        drop(waiting);
        if let Some(waker) = waker {
            waker.wake();
        }
        dropped
    }

    /// Takes up to `count` packets. Returns whether more are left.
    pub(crate) fn take(&self, count: usize, into: &mut Vec<(PhysAddr, Bytes)>) -> bool {
        let mut waiting = self.lock();
        let count = waiting.packets.len().min(count);
        let taken = waiting.packets.drain(..count);
        let mut length = 0;
        into.extend(taken.inspect(|(_, packet)| length += packet.len() + PACKET_OVERHEAD));
        waiting.length -= length;
        !waiting.packets.is_empty()
    }
}
