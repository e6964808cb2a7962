//! A cache that is open on this member, as its handles and the manager share it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use bytes::Bytes;
use consort_grid::{CacheConfig, CacheId, Container, Entry, Lookup, OpenError, Phase, Segment, Topology};
use consort_group::Time;
use tokio::sync::watch;

use crate::observed::Rebalances;

/// How far a cache is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// It has no topology yet.
    Joining,
    /// It may be used.
    Open,
    /// The cluster has it with other settings.
    Refused(OpenError),
    /// Nothing depends on this member any more, or the manager is closed.
    Closed,
}

impl Standing {
    /// Whether it is no more, and its store is closed.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self, Self::Closed | Self::Refused(_))
    }
}

/// An open cache.
pub(crate) struct OpenCache {
    pub(crate) id: CacheId,
    pub(crate) config: CacheConfig,
    pub(crate) container: Arc<Container>,
    pub(crate) standing: watch::Sender<Standing>,
    pub(crate) topology: watch::Sender<Option<Topology>>,
    /// How many members the cluster had of which its store remembers something.
    pub(crate) remembered: OnceLock<usize>,
    pub(crate) rebalances: Rebalances,
    /// No operation begins any more.
    is_closing: AtomicBool,
    /// It is no more but for its store, which is being closed.
    is_ending: AtomicBool,
    /// Operations whose callers wait.
    running: AtomicUsize,
    /// Told when the last of them has ended, if it is closing.
    pub(crate) quiet: tokio::sync::Notify,
}

impl OpenCache {
    pub(crate) fn new(config: CacheConfig, container: Arc<Container>) -> Self {
        Self {
            id: config.id(),
            config,
            container,
            standing: watch::Sender::new(Standing::Joining),
            topology: watch::Sender::new(None),
            remembered: OnceLock::new(),
            rebalances: Rebalances::default(),
            is_closing: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            running: AtomicUsize::new(0),
            quiet: tokio::sync::Notify::new(),
        }
    }

    /// What a key has, if this member is one of those who are read.
    #[inline]
    pub(crate) fn value_here(&self, key: &[u8], now: impl FnOnce() -> Time) -> Lookup<Bytes> {
        self.container.look_up_value(self.segment_of(key), key, now)
    }

    /// The same with what is known besides.
    #[inline]
    pub(crate) fn entry_here(&self, key: &[u8], now: impl FnOnce() -> Time) -> Lookup<Entry> {
        self.container.look_up(self.segment_of(key), key, now)
    }

    /// Fetches into the CPU's cache what the lookups of these keys will need.
    pub(crate) fn look_ahead<'k>(&self, keys: impl IntoIterator<Item = &'k [u8]>) {
        self.container.look_ahead(keys.into_iter().map(|key| (self.segment_of(key), key)));
    }

    #[inline]
    pub(crate) fn segment_of(&self, key: &[u8]) -> Segment {
        self.config.segment_of(key)
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Relaxed)
    }

    /// Lets no operation begin any more. Whether it was open to them until now.
    pub(crate) fn begin_closing(&self) -> bool {
        !self.is_closing.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }

    /// Only its store is left. False if that was so before.
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

    /// A topology was installed. They may be told of by two threads, the older one last.
    pub(crate) fn installed(&self, topology: Topology) {
        self.topology.send_if_modified(|known| {
            let is_newer = known.as_ref().is_none_or(|known| known.id < topology.id);
            if is_newer {
                self.rebalances.note(topology.phase != Phase::Stable, Instant::now());
                *known = Some(topology);
            }
            is_newer
        });
        self.standing.send_if_modified(|standing| {
            let is_first = *standing == Standing::Joining;
            if is_first {
                *standing = Standing::Open;
            }
            is_first
        });
    }

    /// It is no more.
    pub(crate) fn ended(&self, standing: Standing) {
        self.begin_closing();
        for segment in self.config.all_segments() {
            self.container.set_readable(segment, false);
        }
        self.standing.send_if_modified(|now| {
            let is_news = !now.is_over();
            if is_news {
                *now = standing;
            }
            is_news
        });
    }
}
