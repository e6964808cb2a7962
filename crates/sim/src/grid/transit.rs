//! Transit times of frames: frames carry ages of entries as durations, so an entry lives longer at an owner by
//! the transit time of its frame.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::time::Duration;

use consort_group::{Address, Time};

/// Shorter transit times are not remembered.
pub(crate) const SOON: Duration = Duration::from_millis(50);

#[derive(Default)]
pub(crate) struct Transit {
    /// A hash of the content, and the time, by sender and receiver, in order.
    sent: BTreeMap<(Address, Address), VecDeque<(u64, Time)>>,
    late: Vec<(Time, Duration)>,
}

impl Transit {
    pub(crate) fn note_sent(&mut self, from: &Address, to: &Address, frame: &[u8], now: Time) {
        self.sent.entry((from.clone(), to.clone())).or_default().push_back((in_short(frame), now));
    }

    /// Frames of one member arrive in the order of sending, except for lost ones.
    pub(crate) fn note_arrived(&mut self, from: &Address, to: &Address, frame: &[u8], now: Time) {
        let Some(sent) = self.sent.get_mut(&(from.clone(), to.clone())) else { return };
        let short = in_short(frame);
        let Some(at) = sent.iter().position(|(other, _)| *other == short) else { return };
        let first = sent.drain(..=at).next_back().map_or(now, |(_, at)| at);
        if now.since(first) > SOON {
            self.late.push((now, now.since(first)));
        }
    }

    pub(crate) fn longest(&self, from: Time, to: Time) -> Duration {
        let came = self.late.partition_point(|(at, _)| *at < from);
        let late = self.late[came..].iter().take_while(|(at, _)| *at <= to);
        late.map(|(_, took)| *took).max().unwrap_or(SOON)
    }
}

fn in_short(frame: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    frame.hash(&mut hasher);
    hasher.finish()
}
