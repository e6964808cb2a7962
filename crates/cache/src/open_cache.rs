//! A cache that is open here, shared by its handles and the manager.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use bytes::Bytes;
use consort_grid::{CacheConfig, CacheId, Container, Entry, Lookup, OpenError, Phase, Segment, Topology};
use consort_group::Time;
use tokio::sync::watch;

use crate::rebalances::Rebalances;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum CachePhase {
    Joining,
    Open,
    /// The cluster has other settings.
    Refused(OpenError),
    /// No other member needs this one any more, or the manager is closed.
    Closed,
}

impl CachePhase {
    pub(crate) fn is_over(&self) -> bool {
        matches!(self, Self::Closed | Self::Refused(_))
    }
}

pub(crate) struct OpenCache {
    pub(crate) id: CacheId,
    pub(crate) config: CacheConfig,
    pub(crate) container: Arc<Container>,
    pub(crate) phase: watch::Sender<CachePhase>,
    pub(crate) topology: watch::Sender<Option<Topology>>,
    pub(crate) remembered: OnceLock<usize>,
    pub(crate) rebalances: Rebalances,
    is_closing: AtomicBool,
    /// Only the store is still being closed.
    is_ending: AtomicBool,
    /// Operations whose callers wait.
    running: AtomicUsize,
    /// The last of them has ended during closing.
    pub(crate) quiet: tokio::sync::Notify,
}

impl OpenCache {
    pub(crate) fn new(config: CacheConfig, container: Arc<Container>) -> Self {
        Self {
            id: config.id(),
            config,
            container,
            phase: watch::Sender::new(CachePhase::Joining),
            topology: watch::Sender::new(None),
            remembered: OnceLock::new(),
            rebalances: Rebalances::default(),
            is_closing: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            running: AtomicUsize::new(0),
            quiet: tokio::sync::Notify::new(),
        }
    }

    #[inline]
    pub(crate) fn value_here(&self, key: &[u8], now: impl FnOnce() -> Time) -> Lookup<Bytes> {
        self.container.look_up_value(self.segment_of(key), key, now)
    }

    #[inline]
    pub(crate) fn entry_here(&self, key: &[u8], now: impl FnOnce() -> Time) -> Lookup<Entry> {
        self.container.look_up(self.segment_of(key), key, now)
    }

    pub(crate) fn prefetch<'k>(&self, keys: impl IntoIterator<Item = &'k [u8]>) {
        self.container.prefetch(keys.into_iter().map(|key| (self.segment_of(key), key)));
    }

    #[inline]
    pub(crate) fn segment_of(&self, key: &[u8]) -> Segment {
        self.config.segment_of(key)
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Relaxed)
    }

    /// Refuses new operations. Returns whether they were accepted until now.
    pub(crate) fn begin_closing(&self) -> bool {
        !self.is_closing.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }

    /// Only the store may still be open. Returns false if the cache had ended already.
    pub(crate) fn begin_ending(&self) -> bool {
        self.begin_closing();
        !self.is_ending.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn note_begun(&self) {
        self.running.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn note_ended(&self) {
        if self.running.fetch_sub(1, Ordering::AcqRel) == 1 && self.is_closing() {
            self.quiet.notify_waiters();
        }
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.running.load(Ordering::Acquire) == 0
    }

    /// If two threads call this, the one with the older topology may be last.
    pub(crate) fn installed(&self, topology: Topology) {
        self.topology.send_if_modified(|known| {
            let is_newer = known.as_ref().is_none_or(|known| known.id < topology.id);
            if is_newer {
                self.rebalances.note(topology.phase != Phase::Stable, Instant::now());
                *known = Some(topology);
            }
            is_newer
        });
        self.phase.send_if_modified(|phase| {
            let is_first = *phase == CachePhase::Joining;
            if is_first {
                *phase = CachePhase::Open;
            }
            is_first
        });
    }

    pub(crate) fn ended(&self, phase: CachePhase) {
        self.begin_closing();
        for segment in self.config.all_segments() {
            self.container.set_readable(segment, false);
        }
        self.phase.send_if_modified(|now| {
            let is_news = !now.is_over();
            if is_news {
                *now = phase;
            }
            is_news
        });
    }
}
