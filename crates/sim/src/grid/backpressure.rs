//! Channels without room, and members that accept few bytes of values at a time.

use std::collections::{BTreeMap, BTreeSet};

use consort_grid::{Node, ResponseLimits};
use consort_group::{Address, Rng, Time};

pub(super) const SEED: u64 = 0x4e41_5252_4f57_4e41;

pub(crate) struct Backpressure {
    pub(super) limits: ResponseLimits,
    rng: Rng,
    closed: BTreeMap<usize, BTreeSet<Address>>,
    pub(super) most: u64,
    /// The largest value: it comes alone if it exceeds the limit.
    pub(super) largest: u64,
    pub(super) held: u64,
    pub(super) waited: u64,
}

impl Backpressure {
    pub(super) fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ SEED);
        let owner_bytes = rng.between(10, 200);
        let total_bytes = rng.between(owner_bytes, 2 * owner_bytes);
        let small_bytes = rng.between(1, owner_bytes.min(40)) as u32;
        let limits = ResponseLimits { owner_bytes, total_bytes, small_bytes };
        Self { limits, rng, closed: BTreeMap::new(), most: 0, largest: 0, held: 0, waited: 0 }
    }

    /// Whether [`Backpressure::update`] would change the state although the node has sent nothing.
    pub(super) fn has_waiting(&self, index: usize, node: &Node) -> bool {
        self.closed.get(&index).is_some_and(|closed| !closed.is_empty())
            || node.stats().response_load().waiting > 0
    }

    pub(super) fn update(&mut self, index: usize, node: &mut Node, now: Time, sent: BTreeSet<Address>) {
        let load = node.stats().response_load();
        self.most = self.most.max(load.reserved_bytes_of_one);
        self.waited += load.waiting as u64;
        let closed = self.closed.entry(index).or_default();
        let mut members = std::mem::take(closed);
        members.extend(sent);
        for member in members {
            let is_open = self.rng.chance(0.6);
            node.handle_room(|| now, &member, is_open, self.rng.between(1, 400));
            if !is_open {
                closed.insert(member);
            }
        }
        self.held = self.held.max(node.stats().counters().held);
    }
}
