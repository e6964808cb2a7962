//! What lies before a member's application: flow control bounds how much of it there is of every sender.

use std::collections::BTreeMap;

use consort_group::{Address, Stack};

/// The most bytes of one sender that wait for the application, in `max_credits`, if the receiver has replaced no credits: bytes
/// for which the sender had credits, and as many that it sent while a view began that joins both members, for which it counted
/// no credits of this receiver. Without faults the most is 1. Each time that the receiver takes bytes for lost and replaces their
/// credits, as many more may arrive.
const ALLOWED: u64 = 2;

/// Replacements that are always allowed for: the receiver forgets them when it gives credits back for what was consumed, and
/// what it had taken for lost may come later.
const REPLACEMENTS_MIN: u64 = 1;

/// Under SEQUENCER the credits are the coordinator's: what one sent may lie there when another begins.
const SEQUENCED: u64 = 2;

/// Bytes of each sender that the application was given and has not worked through, unicasts and multicasts for themselves.
#[derive(Default)]
pub(crate) struct Backlog {
    unconsumed: BTreeMap<(Address, bool), u64>,
    /// The credits of a sender: of its unicasts, and of its multicasts. `None` without flow control.
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
        let of_multicasts = if stack.probe("SEQUENCER").is_some() { SEQUENCED } else { 1 };
        Self {
            unicasts_max: credits("UFC"),
            multicasts_max: credits("MFC").map(|credits| credits * of_multicasts),
            ..Self::default()
        }
    }

    /// The application above `stack` was given something.
    pub(crate) fn add(&mut self, stack: Option<&Stack>, src: &Address, is_multicast: bool, bytes: u64) {
        let there = self.unconsumed.entry((src.clone(), is_multicast)).or_default();
        *there += bytes;
        self.most = self.most.max(*there);
        let credits = if is_multicast { self.multicasts_max } else { self.unicasts_max };
        let Some(credits) = credits.filter(|credits| *there > credits * (ALLOWED + REPLACEMENTS_MIN)) else {
            return;
        };
        let replaced = stack.map_or(0, |stack| replacements(stack, src, is_multicast));
        let max = credits * (ALLOWED + replaced.max(REPLACEMENTS_MIN));
        if self.excess.is_none() && *there > max {
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

/// How often a receiver has taken for lost what a sender had sent, since it last gave credits back for what was consumed. Under
/// SEQUENCER the credits are the coordinator's.
fn replacements(stack: &Stack, src: &Address, is_multicast: bool) -> u64 {
    let layer = if is_multicast { "MFC" } else { "UFC" };
    let text = stack.attribute(layer, "replacements_of_senders").unwrap_or_default();
    let is_sequenced = is_multicast && stack.probe("SEQUENCER").is_some();
    let src = src.to_string();
    let of_sender = |line: &str| {
        let (sender, times) = line.split_once(": ")?;
        times.parse::<u64>().ok().filter(|_| is_sequenced || sender == src)
    };
    text.lines().filter_map(of_sender).max().unwrap_or(0)
}
