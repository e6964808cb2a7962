use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::{Address, AddressBook, PhysAddr, Rng, Time, Version, View};

/// The shared state of all layers.
#[derive(Debug)]
pub struct Shared {
    /// The local member.
    pub local: Address,
    /// Its logical name.
    pub name: Arc<str>,
    /// Its physical address.
    pub phys: PhysAddr,
    /// The cluster, once connecting.
    pub cluster: Option<Arc<str>>,
    /// The current view.
    pub view: Option<View>,
    /// Names and physical addresses.
    pub book: AddressBook,
    /// The stack's only random generator.
    pub rng: Rng,
    /// The version sent and required.
    pub version: Version,
    /// Whether one datagram reaches all members (UDP with IP multicast).
    pub has_multicast: bool,
    /// The system's monotonic clock at [`Time::ZERO`], in nanoseconds, common to members of a host.
    pub clock_origin: u64,
    /// Counts of discarded input.
    pub drops: Drops,
    /// The injected bug.
    #[cfg(feature = "injected-bugs")]
    pub injected_bug: Option<crate::InjectedBug>,
}

/// Why input was discarded. A peer's wrong input raises no error.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum DropReason {
    Malformed,
    WrongVersion,
    WrongCluster,
    WrongDestination,
    OwnPacket,
    NotMember,
    NotServer,
    NotAuthenticated,
    Duplicate,
    BeyondWindow,
    MissingHeader,
    UnknownAddress,
    UnknownKey,
    QueueFull,
    NoCredits,
    NoRouter,
    Injected,
    Unexpected,
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        for (at, letter) in format!("{self:?}").chars().enumerate() {
            if letter.is_uppercase() && at > 0 {
                text.push('_');
            }
            text.extend(letter.to_lowercase());
        }
        f.write_str(&text)
    }
}

/// The severity of a discarded item.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// Normal, as around a restart; logged at debug level.
    Expected,
    /// Wrong configuration, a defect or overload; logged as a warning.
    Unexpected,
}

/// Counts of discarded items. Each layer, reason and concern logs at most one line a minute.
#[derive(Default, Debug)]
pub struct Drops {
    counts: BTreeMap<(&'static str, DropReason), u64>,
    logged: BTreeMap<(&'static str, DropReason, Severity), Time>,
}

impl Drops {
    /// The shortest time between log lines of one layer, reason and concern.
    pub const WARN_INTERVAL: Duration = Duration::from_secs(60);

    /// Counts an item; calls `detail` only when a log line is due.
    pub fn count(
        &mut self,
        now: Time,
        layer: &'static str,
        why: DropReason,
        severity: Severity,
        detail: impl FnOnce() -> String,
    ) {
        let count = self.counts.entry((layer, why)).or_default();
        *count += 1;
        let logged = self.logged.get(&(layer, why, severity));
        if logged.is_some_and(|at| now.since(*at) < Self::WARN_INTERVAL) {
            return;
        }
        self.logged.insert((layer, why, severity), now);
        match severity {
            Severity::Expected => tracing::debug!(layer, %why, count, "discarded: {}", detail()),
            Severity::Unexpected => tracing::warn!(layer, %why, count, "discarded: {}", detail()),
        }
    }

    /// Returns the time of the last log line.
    pub fn logged(&self, layer: &'static str, why: DropReason, severity: Severity) -> Option<Time> {
        self.logged.get(&(layer, why, severity)).copied()
    }

    /// Returns the counts.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, DropReason, u64)> {
        self.counts.iter().map(|(&(layer, why), &count)| (layer, why, count))
    }

    /// Returns a reason's count over all layers.
    pub fn total(&self, why: DropReason) -> u64 {
        self.iter().filter(|(_, reason, _)| *reason == why).map(|(_, _, count)| count).sum()
    }
}
