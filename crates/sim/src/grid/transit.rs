//! How long frames were under way: ages of entries travel as spans, so an entry lives as much longer at an owner as the
//! frame took that brought it.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::time::Duration;

use consort_group::{Address, Time};

/// Frames that took no longer are not remembered.
pub(crate) const SOON: Duration = Duration::from_millis(50);

/// The frames of a run.
#[derive(Default)]
pub(crate) struct Transit {
    /// What was sent and has not come, in its order, from whom to whom: what it says, in short, and when.
    sent: BTreeMap<(Address, Address), VecDeque<(u64, Time)>>,
    /// When others came, and how long they took.
    late: Vec<(Time, Duration)>,
}

impl Transit {
    pub(crate) fn note_sent(&mut self, from: &Address, to: &Address, frame: &[u8], now: Time) {
        self.sent.entry((from.clone(), to.clone())).or_default().push_back((in_short(frame), now));
    }

    /// Frames of one member come in the order in which it sent them, but for those that never come.
    pub(crate) fn note_arrived(&mut self, from: &Address, to: &Address, frame: &[u8], now: Time) {
        let Some(sent) = self.sent.get_mut(&(from.clone(), to.clone())) else { return };
        let short = in_short(frame);
        let Some(at) = sent.iter().position(|(other, _)| *other == short) else { return };
        let first = sent.drain(..=at).next_back().map_or(now, |(_, at)| at);
        if now.since(first) > SOON {
            self.late.push((now, now.since(first)));
        }
    }

    /// The longest that a frame took which came between the two.
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
