//! The backlog before a member's application: flow control bounds each sender's bytes.

use std::collections::BTreeMap;

use consort_group::{Address, Stack};

/// The limit of one sender's waiting bytes in `max_credits`, if the receiver has replaced no credits: bytes
/// with credits, and as many sent while a view began that joins both members, for which the sender counted no
/// credits of this receiver. Without faults the limit is 1.
const ALLOWED: u64 = 2;

/// Always allowed, because the receiver forgets replacements when it gives credits back, and bytes that it took
/// for lost may arrive later.
const REPLACEMENTS_MIN: u64 = 1;

/// Under SEQUENCER the credits are the coordinator's: one coordinator's messages may be in the backlog when
/// another begins.
const SEQUENCED: u64 = 2;

/// Delivered and not yet consumed bytes by sender, unicasts and multicasts apart.
#[derive(Default)]
pub(crate) struct Backlog {
    unconsumed: BTreeMap<(Address, bool), u64>,
    unicasts_max: Option<u64>,
    multicasts_max: Option<u64>,
    most: u64,
    excess: Option<String>,
}

impl Backlog {
    pub(crate) fn for_stack(stack: &Stack) -> Self {
        let credits = |layer| stack.attribute(layer, "max_credits")?.parse::<u64>().ok();
        let of_multicasts = if stack.probe("SEQUENCER").is_some() { SEQUENCED } else { 1 };
        Self {
            unicasts_max: credits("UFC"),
            multicasts_max: credits("MFC").map(|credits| credits * of_multicasts),
            ..Self::default()
        }
    }

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

    pub(crate) fn consume(&mut self, src: &Address, is_multicast: bool, bytes: u64) {
        if let Some(there) = self.unconsumed.get_mut(&(src.clone(), is_multicast)) {
            *there = there.saturating_sub(bytes);
        }
    }

    pub(crate) const fn most(&self) -> u64 {
        self.most
    }

    pub(crate) fn excess(&self) -> Option<&str> {
        self.excess.as_deref()
    }
}

/// How often a receiver has taken a sender's bytes for lost since it last gave credits back.
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
