//! The limit and the counters of a budget, which its reservations share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use thiserror::Error;
use tokio::sync::{Mutex, MutexGuard, Notify};

#[derive(Clone, Debug)]
pub(crate) struct Limit(Arc<Counters>);

#[derive(Debug)]
struct Counters {
    name: &'static str,
    limit: AtomicU64,
    used: AtomicU64,
    peak: AtomicU64,
    refused: AtomicU64,
    parent: Option<Limit>,
    /// Turns keep many small reservations from starving a large one.
    turn: Mutex<()>,
    waiting: AtomicUsize,
    released: Notify,
}

/// A budget's limit would be exceeded. Nothing was reserved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("limit of memory exceeded: {name} has {used} of {limit} bytes in use, and {wanted} more are needed")]
pub struct Exceeded {
    /// The budget that refuses.
    pub name: &'static str,
    /// Its limit in bytes.
    pub limit: u64,
    /// The bytes in use.
    pub used: u64,
    /// The requested bytes.
    pub wanted: u64,
}

impl Limit {
    pub(crate) fn new(name: &'static str, limit: u64, parent: Option<Self>) -> Self {
        Self(Arc::new(Counters {
            name,
            limit: AtomicU64::new(limit),
            used: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            parent,
            turn: Mutex::new(()),
            waiting: AtomicUsize::new(0),
            released: Notify::new(),
        }))
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn name(&self) -> &'static str {
        self.0.name
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0.limit.load(Ordering::Relaxed)
    }

    pub(crate) fn set_bytes(&self, limit: u64) {
        self.0.limit.store(limit, Ordering::Relaxed);
        self.wake();
    }

    pub(crate) fn used(&self) -> u64 {
        self.0.used.load(Ordering::Relaxed)
    }

    pub(crate) fn peak(&self) -> u64 {
        self.0.peak.load(Ordering::Relaxed)
    }

    pub(crate) fn refused(&self) -> u64 {
        self.0.refused.load(Ordering::Relaxed)
    }

    pub(crate) async fn turn(&self) -> MutexGuard<'_, ()> {
        self.0.turn.lock().await
    }

    /// Fails at once if a limit is smaller than `bytes`.
    pub(crate) async fn add_when_released(&self, bytes: u64) -> Result<(), Exceeded> {
        loop {
            let refusing = match self.add(bytes) {
                Ok(()) => return Ok(()),
                Err(refusing) => refusing,
            };
            if refusing.bytes() < bytes {
                return Err(refusing.refuse(bytes));
            }
            let _waiting = Waiting::at(refusing);
            let released = refusing.0.released.notified();
            tokio::pin!(released);
            released.as_mut().enable();
            // A release between the attempt and `enable` wakes no waiter, and meanwhile another limit can refuse.
            match self.add(bytes) {
                Ok(()) => return Ok(()),
                Err(again) if !again.is(refusing) => continue,
                Err(_) => {}
            }
            released.await;
        }
    }

    /// Checks no limit.
    pub(crate) fn add_forced(&self, bytes: u64) {
        for limit in self.path() {
            let used = limit.0.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
            limit.0.peak.fetch_max(used, Ordering::Relaxed);
        }
    }

    fn path(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |limit| limit.0.parent.as_ref())
    }

    /// Adds to this limit and all above it, or to none: then it returns the one that refuses.
    pub(crate) fn add(&self, bytes: u64) -> Result<(), &Self> {
        for (at, limit) in self.path().enumerate() {
            if !limit.add_here(bytes) {
                for added in self.path().take(at) {
                    added.subtract_here(bytes);
                }
                return Err(limit);
            }
        }
        Ok(())
    }

    pub(crate) fn subtract(&self, bytes: u64) {
        for limit in self.path() {
            limit.subtract_here(bytes);
        }
    }

    pub(crate) fn refuse(&self, wanted: u64) -> Exceeded {
        self.0.refused.fetch_add(1, Ordering::Relaxed);
        Exceeded { name: self.0.name, limit: self.bytes(), used: self.used(), wanted }
    }

    fn add_here(&self, bytes: u64) -> bool {
        let limit = self.bytes();
        let result = self.0.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|sum| bytes == 0 || *sum <= limit)
        });
        match result {
            Ok(before) => {
                self.0.peak.fetch_max(before + bytes, Ordering::Relaxed);
                true
            }
            Err(_) => false,
        }
    }

    fn subtract_here(&self, bytes: u64) {
        // Sequentially consistent with the waiter's count: either the waiter sees these bytes, or this call sees the waiter.
        let before = self.0.used.fetch_sub(bytes, Ordering::SeqCst);
        debug_assert!(before >= bytes, "{} returned more than was reserved", self.0.name);
        self.wake();
    }

    fn wake(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
        if self.0.waiting.load(Ordering::SeqCst) > 0 {
            self.0.released.notify_waiters();
        }
    }
}

struct Waiting<'a>(&'a Limit);

impl<'a> Waiting<'a> {
    fn at(limit: &'a Limit) -> Self {
        limit.0.waiting.fetch_add(1, Ordering::SeqCst);
        std::sync::atomic::fence(Ordering::SeqCst);
        Self(limit)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}
