//! What lies before a member's application: flow control bounds how much of it there is of every sender.

use std::collections::BTreeMap;

use consort_group::{Address, Stack};

/// The most that lies there of one sender, in `max_credits`, whatever happens: what has credits; as much of what it was
/// sending while a view began in which it and we are together, or anew, and which nobody had counted for us; and as
/// much that was on its way for so long that it was given credits for it a second time. Without faults it is one.
const ALLOWED: u64 = 3;
/// The same under SEQUENCER, where the credits are the coordinator's: what one sent may lie there when another begins.
const ALLOWED_SEQUENCED: u64 = 2 * ALLOWED;

/// Bytes of each sender that the application was given and has not worked through, unicasts and multicasts for themselves.
#[derive(Default)]
pub(crate) struct Backlog {
    unconsumed: BTreeMap<(Address, bool), u64>,
    /// What a sender may have there: its unicasts, and its multicasts. `None` without flow control.
    unicasts_max: Option<u64>,
    multicasts_max: Option<u64>,
    /// The most that there was of one sender.
    most: u64,
    /// What was too much, first.
    excess: Option<String>,
}

impl Backlog {
    /// Nothing, of an application above this stack.
    pub(crate) fn above(stack: &Stack) -> Self {
        let credits = |layer| stack.attribute(layer, "max_credits")?.parse::<u64>().ok();
        let of_multicasts = if stack.probe("SEQUENCER").is_some() { ALLOWED_SEQUENCED } else { ALLOWED };
        Self {
            unicasts_max: credits("UFC").map(|credits| credits * ALLOWED),
            multicasts_max: credits("MFC").map(|credits| credits * of_multicasts),
            ..Self::default()
        }
    }

    /// The application was given something.
    pub(crate) fn add(&mut self, src: &Address, is_multicast: bool, bytes: u64) {
        let there = self.unconsumed.entry((src.clone(), is_multicast)).or_default();
        *there += bytes;
        self.most = self.most.max(*there);
        let max = if is_multicast { self.multicasts_max } else { self.unicasts_max };
        if self.excess.is_none()
            && let Some(max) = max.filter(|max| *there > *max)
        {
            let what = if is_multicast { "multicasts" } else { "unicasts" };
            self.excess = Some(format!("{there} bytes of {what} of {src}, {max} may be there"));
        }
    }

    /// The application has worked through something.
    pub(crate) fn consume(&mut self, src: &Address, is_multicast: bool, bytes: u64) {
        if let Some(there) = self.unconsumed.get_mut(&(src.clone(), is_multicast)) {
            *there = there.saturating_sub(bytes);
        }
    }

    /// The most bytes that there were of one sender.
    pub(crate) const fn most(&self) -> u64 {
        self.most
    }

    /// What was too much, first.
    pub(crate) fn excess(&self) -> Option<&str> {
        self.excess.as_deref()
    }
}
