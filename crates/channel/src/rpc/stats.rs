//! Calls and round-trip times per destination (S000-58).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use consort_group::Address;

/// Further destinations are not counted: rows stay until they are reset.
const DESTINATIONS_MAX: usize = 2_000;

/// JGroups' counters have the same kinds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CallKind {
    Unicast,
    Multicast,
    Anycast,
}

/// A destination's round trips.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RttSummary {
    /// Their number.
    pub count: u64,
    /// The shortest.
    pub min: Duration,
    /// Their sum.
    pub total: Duration,
    /// The longest.
    pub max: Duration,
}

impl RttSummary {
    /// Returns the mean, or zero.
    pub fn mean(&self) -> Duration {
        self.total.checked_div(u32::try_from(self.count).unwrap_or(u32::MAX)).unwrap_or_default()
    }

    fn add(&mut self, rtt: Duration) {
        self.min = if self.count == 0 { rtt } else { self.min.min(rtt) };
        self.max = self.max.max(rtt);
        self.total += rtt;
        self.count += 1;
    }
}

/// A dispatcher's counters.
#[derive(Default, Debug)]
pub struct RpcStats {
    counts: [[AtomicU64; 2]; 3],
    has_details: AtomicBool,
    rtts: Mutex<BTreeMap<Option<Address>, RttSummary>>,
}

impl RpcStats {
    pub(crate) fn count(&self, kind: CallKind, is_sync: bool) {
        self.counts[kind as usize][usize::from(is_sync)].fetch_add(1, Relaxed);
    }

    /// Returns whether times are measured.
    pub fn has_details(&self) -> bool {
        self.has_details.load(Relaxed)
    }

    /// Switches measuring of times, off by default.
    pub fn set_details(&self, on: bool) {
        self.has_details.store(on, Relaxed);
    }

    /// Resets everything.
    pub fn reset(&self) {
        for count in self.counts.iter().flatten() {
            count.store(0, Relaxed);
        }
        self.rtts.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub(crate) fn add_rtt(&self, dest: Option<&Address>, rtt: Duration) {
        let mut rtts = self.rtts.lock().unwrap_or_else(PoisonError::into_inner);
        let dest = dest.cloned();
        if rtts.len() < DESTINATIONS_MAX || rtts.contains_key(&dest) {
            rtts.entry(dest).or_default().add(rtt);
        }
    }

    /// Returns six counters, named as JGroups'.
    pub fn counters(&self) -> [(&'static str, u64); 6] {
        let count =
            |kind: CallKind, is_sync: bool| self.counts[kind as usize][usize::from(is_sync)].load(Relaxed);
        [
            ("sync_unicasts", count(CallKind::Unicast, true)),
            ("async_unicasts", count(CallKind::Unicast, false)),
            ("sync_multicasts", count(CallKind::Multicast, true)),
            ("async_multicasts", count(CallKind::Multicast, false)),
            ("sync_anycasts", count(CallKind::Anycast, true)),
            ("async_anycasts", count(CallKind::Anycast, false)),
        ]
    }

    /// Returns times per destination (`None`: group calls).
    pub fn rtts(&self) -> Vec<(Option<Address>, RttSummary)> {
        let rtts = self.rtts.lock().unwrap_or_else(PoisonError::into_inner);
        rtts.iter().map(|(dest, rtt)| (dest.clone(), *rtt)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use consort_group::Uuid;

    /// S000-58
    #[test]
    fn six_counters_and_a_row_per_destination() {
        let stats = RpcStats::default();
        assert!(!stats.has_details());
        stats.count(CallKind::Unicast, true);
        stats.count(CallKind::Anycast, false);
        let member = Address::Uuid(Uuid { most: 1, least: 1 });
        stats.add_rtt(Some(&member), Duration::from_millis(2));
        stats.add_rtt(Some(&member), Duration::from_millis(4));
        assert_eq!(stats.counters().map(|(_, count)| count), [1, 0, 0, 0, 0, 1]);
        let (dest, rtt) = stats.rtts()[0].clone();
        assert_eq!(dest, Some(member));
        assert_eq!(
            (rtt.min.as_millis(), rtt.mean().as_millis(), rtt.max.as_millis(), rtt.count),
            (2, 3, 4, 2)
        );
        stats.reset();
        assert!(stats.rtts().is_empty());
    }
}
