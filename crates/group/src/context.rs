//! The context of all layers of a stack: their shared state, and the counts of discarded input.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::{Address, AddressBook, PhysAddr, Rng, Time, Version, View};

/// The state that all layers of a stack share.
#[derive(Debug)]
pub struct Shared {
    /// The local member's address.
    pub local: Address,
    /// The local member's logical name.
    pub name: Arc<str>,
    /// The local member's physical address.
    pub phys: PhysAddr,
    /// The cluster, once connecting has begun.
    pub cluster: Option<Arc<str>>,
    /// The current view, once there is one.
    pub view: Option<View>,
    /// Names and physical addresses.
    pub book: AddressBook,
    /// The stack's only random generator.
    pub rng: Rng,
    /// The version to send and to require.
    pub version: Version,
    /// Whether the transport reaches all members with one datagram (UDP with IP multicast).
    pub has_multicast: bool,
    /// The system's monotonic clock at [`Time::ZERO`], in nanoseconds. Members of one host share it.
    pub clock_origin: u64,
    /// Counts of discarded input.
    pub drops: Drops,
    /// The bug injected into this stack.
    #[cfg(feature = "injected-bugs")]
    pub injected_bug: Option<crate::InjectedBug>,
}

/// The reason why input was discarded. A peer's wrong input is counted and raises no error.
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

/// The severity of a discarded item for the operator.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// A part of normal operation, for example around a restart. Logged at debug level.
    Expected,
    /// A sign of wrong configuration, a defect or overload. Logged as a warning.
    Unexpected,
}

/// Counts of discarded items per layer and reason. Each layer, reason and concern logs at most one line a
/// minute.
#[derive(Default, Debug)]
pub struct Drops {
    counts: BTreeMap<(&'static str, DropReason), u64>,
    logged: BTreeMap<(&'static str, DropReason, Severity), Time>,
}

impl Drops {
    /// The shortest time between two log lines of one layer, reason and concern.
    pub const WARN_INTERVAL: Duration = Duration::from_secs(60);

    /// Counts one item. Calls `detail` only when a log line is due.
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

    /// Returns when a line of this concern was logged last for this layer and reason.
    pub fn logged(&self, layer: &'static str, why: DropReason, severity: Severity) -> Option<Time> {
        self.logged.get(&(layer, why, severity)).copied()
    }

    /// Returns the counts.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, DropReason, u64)> {
        self.counts.iter().map(|(&(layer, why), &count)| (layer, why, count))
    }

    /// Returns the count of a reason, summed over all layers.
    pub fn total(&self, why: DropReason) -> u64 {
        self.iter().filter(|(_, reason, _)| *reason == why).map(|(_, _, count)| count).sum()
    }
}
