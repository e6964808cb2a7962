//! The limit of value bytes that other members may be sending to this one.
//!
//! A call states its response's maximum size, and waits here until it has reserved as many bytes. A member
//! with a larger value only responds with the size; the call reserves that and is sent again. So the bytes in
//! flight are bounded for values of any size. The first reservation follows from the member's earlier
//! responses, so that most calls are sent once.

use std::collections::BTreeMap;
use std::time::Duration;

use consort_group::Address;

/// For one member and class. A larger value is sent alone.
pub(crate) const OWNER_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// For all members together and one class.
pub(crate) const TOTAL_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The largest small value. Calls with larger ones have their own class, so that small values do not wait for
/// them. No call reserves more before it knows the size of its value.
pub(crate) const SMALL_BYTES_MAX: u32 = 64 * 1024;

/// A response without its value; limits the calls under way.
const CALL_BYTES_MIN: u32 = 1024;

const CALL_BYTES_FIRST: u32 = 4 * 1024;

/// Responses after which a member's calls may reserve less.
const RESPONSES_LOOKED_AT: u32 = 256;

/// A sender's minimum rate in bytes per second, by which the wait for responses is extended.
const TRANSFER_RATE_MIN: u64 = 4 * 1024 * 1024;

/// The limits of value bytes in flight to a member. Small and large values have the same limits, each for
/// itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResponseLimits {
    /// Bytes from one member. A larger value is sent alone.
    pub owner_bytes: u64,
    /// Bytes from all members.
    pub total_bytes: u64,
    /// The largest small value in bytes.
    pub small_bytes: u32,
}

impl Default for ResponseLimits {
    fn default() -> Self {
        Self { owner_bytes: OWNER_BYTES_MAX, total_bytes: TOTAL_BYTES_MAX, small_bytes: SMALL_BYTES_MAX }
    }
}

/// For calls with small values, and with large ones.
type OfClasses<T> = [T; 2];

/// The index of a member, valid while a call has a reservation there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slot(u32);

impl Slot {
    fn at(index: usize) -> Self {
        Self(index as u32)
    }

    fn index(self) -> usize {
        self.0 as usize
    }
}

struct Owner {
    address: Address,
    lanes: OfClasses<Lane>,
    expected: u32,
    /// Since `expected` was last adjusted.
    largest: u32,
    responses: u32,
}

#[derive(Default)]
struct Lane {
    bytes: u64,
    /// The needed bytes by waiting call, the oldest first.
    waiting: BTreeMap<u64, u32>,
}

impl Owner {
    fn new(address: Address) -> Self {
        Self { address, lanes: OfClasses::default(), expected: CALL_BYTES_FIRST, largest: 0, responses: 0 }
    }

    fn is_idle(&self) -> bool {
        self.lanes.iter().all(|lane| lane.bytes == 0 && lane.waiting.is_empty())
    }
}

#[derive(Default)]
pub(crate) struct ResponseWindow {
    limits: ResponseLimits,
    /// A slot without a member is reused.
    owners: Vec<Option<Owner>>,
    totals: OfClasses<u64>,
    /// Whether a waiting call has room at its owner and not in the total. Later calls wait behind it.
    is_full: OfClasses<bool>,
    waiting: usize,
}

/// A value that exceeds the limit is sent alone.
fn fits(used: u64, bytes: u32, limit: u64) -> bool {
    used == 0 || used + u64::from(bytes) <= limit
}

impl ResponseWindow {
    pub(crate) fn set_limits(&mut self, limits: ResponseLimits) {
        self.limits = limits;
    }

    fn class(&self, bytes: u32) -> usize {
        usize::from(bytes > self.limits.small_bytes)
    }

    pub(crate) fn small_bytes(&self) -> u32 {
        self.limits.small_bytes
    }

    /// A view has few members, so a search is as fast as an index.
    pub(crate) fn find(&self, owner: &Address) -> Option<Slot> {
        let is_its = |one: &Option<Owner>| one.as_ref().is_some_and(|one| one.address == *owner);
        self.owners.iter().position(is_its).map(Slot::at)
    }

    pub(crate) fn slot(&mut self, owner: &Address) -> Slot {
        if let Some(slot) = self.find(owner) {
            return slot;
        }
        let free = self.owners.iter().position(Option::is_none).unwrap_or(self.owners.len());
        if free == self.owners.len() {
            self.owners.push(None);
        }
        self.owners[free] = Some(Owner::new(owner.clone()));
        Slot::at(free)
    }

    fn owner(&mut self, slot: Slot) -> Option<&mut Owner> {
        self.owners.get_mut(slot.index())?.as_mut()
    }

    pub(crate) fn expected(&self, slot: Slot) -> u32 {
        let known = self
            .owners
            .get(slot.index())
            .and_then(Option::as_ref)
            .map_or(CALL_BYTES_FIRST, |owner| owner.expected);
        known.min(self.limits.small_bytes)
    }

    pub(crate) fn reserve(&mut self, slot: Slot, number: u64, bytes: u32) -> bool {
        let class = self.class(bytes);
        let Some(owner) = self.owners.get_mut(slot.index()).and_then(Option::as_mut) else { return false };
        let lane = &mut owner.lanes[class];
        let has_turn = lane.waiting.is_empty() && fits(lane.bytes, bytes, self.limits.owner_bytes);
        let is_within = fits(self.totals[class], bytes, self.limits.total_bytes);
        if has_turn && is_within && !self.is_full[class] {
            lane.bytes += u64::from(bytes);
            self.totals[class] += u64::from(bytes);
            return true;
        }
        self.is_full[class] |= has_turn;
        if lane.waiting.insert(number, bytes).is_none() {
            self.waiting += 1;
        }
        false
    }

    /// [`ResponseWindow::next`] returns the calls that may be sent now.
    pub(crate) fn release(&mut self, slot: Slot, bytes: u32) {
        let class = self.class(bytes);
        if let Some(owner) = self.owner(slot) {
            let lane = &mut owner.lanes[class];
            lane.bytes -= u64::from(bytes);
            self.totals[class] -= u64::from(bytes);
        }
    }

    pub(crate) fn forget(&mut self, slot: Slot, number: u64, bytes: u32) {
        let class = self.class(bytes);
        let lane = self.owner(slot).map(|owner| &mut owner.lanes[class]);
        if lane.is_some_and(|lane| lane.waiting.remove(&number).is_some()) {
            self.waiting -= 1;
        }
    }

    pub(crate) fn note_response(&mut self, slot: Slot, bytes: usize) {
        let small = self.limits.small_bytes;
        let Some(owner) = self.owner(slot) else { return };
        let Some(bytes) = u32::try_from(bytes).ok().filter(|bytes| *bytes <= small) else { return };
        owner.largest = owner.largest.max(bytes);
        owner.responses += 1;
        if bytes > owner.expected {
            owner.expected = bytes.next_power_of_two();
        } else if owner.responses < RESPONSES_LOOKED_AT {
            return;
        } else if owner.largest <= owner.expected / 2 {
            owner.expected = (owner.expected / 2).max(CALL_BYTES_MIN);
        }
        (owner.largest, owner.responses) = (0, 0);
    }

    pub(crate) fn next(&mut self) -> Option<u64> {
        if self.waiting == 0 {
            self.is_full = [false; 2];
            return None;
        }
        (0..self.totals.len()).find_map(|class| self.next_of(class))
    }

    /// The oldest waiting call with room at its owner waits for room in the total, too.
    fn next_of(&mut self, class: usize) -> Option<u64> {
        let limit = self.limits.owner_bytes;
        let first = |(at, owner): (usize, &Option<Owner>)| {
            let lane = &owner.as_ref()?.lanes[class];
            let (&number, &bytes) = lane.waiting.first_key_value()?;
            fits(lane.bytes, bytes, limit).then_some((number, bytes, Slot::at(at)))
        };
        let oldest = self.owners.iter().enumerate().filter_map(first).min_by_key(|(number, ..)| *number);
        let is_within = |bytes| fits(self.totals[class], bytes, self.limits.total_bytes);
        self.is_full[class] = oldest.as_ref().is_some_and(|(_, bytes, _)| !is_within(*bytes));
        let (number, bytes, slot) = oldest.filter(|_| !self.is_full[class])?;
        let lane = &mut self.owner(slot)?.lanes[class];
        lane.waiting.remove(&number);
        lane.bytes += u64::from(bytes);
        self.totals[class] += u64::from(bytes);
        self.waiting -= 1;
        Some(number)
    }

    /// How much longer than usual a member's next response may take after those before it.
    pub(crate) fn transfer_time(&self, owner: &Address) -> Duration {
        let owner = self.find(owner).and_then(|slot| self.owners[slot.index()].as_ref());
        let bytes: u64 = owner.into_iter().flat_map(|owner| &owner.lanes).map(|lane| lane.bytes).sum();
        Duration::from_millis(bytes * 1_000 / TRANSFER_RATE_MIN)
    }

    pub(crate) fn retain(&mut self, is_member: impl Fn(&Address) -> bool) {
        for slot in &mut self.owners {
            slot.take_if(|owner| owner.is_idle() && !is_member(&owner.address));
        }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Of all members, and of the member and class with the most.
    pub(crate) fn reserved(&self) -> (u64, u64) {
        let lanes = self.owners.iter().flatten().flat_map(|owner| &owner.lanes);
        (self.totals.iter().sum(), lanes.map(|lane| lane.bytes).max().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use consort_group::Uuid;

    use super::*;

    const MIB: u32 = 1024 * 1024;

    fn member(n: u64) -> Address {
        Address::Uuid(Uuid { most: 0, least: n })
    }

    fn run(window: &mut ResponseWindow, owner: Slot, numbers: std::ops::Range<u64>, bytes: u32) -> u64 {
        let mut running: Vec<u64> = numbers.filter(|number| window.reserve(owner, *number, bytes)).collect();
        let mut most = 0;
        while let Some(_ended) = (!running.is_empty()).then(|| running.remove(0)) {
            most = most.max(window.reserved().1);
            window.release(owner, bytes);
            running.extend(std::iter::from_fn(|| window.next()));
        }
        most
    }

    #[test]
    fn calls_wait_in_order_for_the_bytes_of_their_owner() {
        let mut window = ResponseWindow::default();
        let owner = window.slot(&member(1));
        for bytes in [CALL_BYTES_MIN, 64 * 1024, 2 * MIB, 8 * MIB, 10 * MIB] {
            let most = run(&mut window, owner, 0..20_000, bytes);
            assert_eq!(most, OWNER_BYTES_MAX / u64::from(bytes) * u64::from(bytes));
            assert_eq!((window.waiting(), window.reserved()), (0, (0, 0)));
        }
        assert_eq!(run(&mut window, owner, 0..5, 64 * MIB), u64::from(64 * MIB), "one at a time");
    }

    #[test]
    fn calls_to_all_owners_wait_for_a_total() {
        let mut window = ResponseWindow::default();
        let owners: Vec<Slot> = (0..10).map(|n| window.slot(&member(n))).collect();
        let calls = || owners.iter().flat_map(|owner| (0..4).map(move |n| (*owner, n)));
        let numbers = calls().enumerate().map(|(number, (owner, _))| (number as u64, owner));
        let begun: Vec<(u64, Slot)> =
            numbers.filter(|(number, owner)| window.reserve(*owner, *number, 4 * MIB)).collect();
        assert_eq!(window.reserved(), (TOTAL_BYTES_MAX, OWNER_BYTES_MAX));
        assert_eq!((begun.len(), window.waiting()), (16, 24));
        // Calls of an owner without reservations continue when another owner's calls have ended.
        for (_, owner) in begun.iter().copied() {
            window.release(owner, 4 * MIB);
            assert!(window.next().is_some());
            assert_eq!(window.next(), None);
        }
        assert_eq!((window.waiting(), window.reserved().0), (8, TOTAL_BYTES_MAX));
    }

    #[test]
    fn large_value_is_not_overtaken_by_others_that_fit_into_the_total() {
        let mut window = ResponseWindow::default();
        let [first, second, third] = [1, 2, 3].map(|n| window.slot(&member(n)));
        assert!(window.reserve(first, 0, MIB));
        assert!(!window.reserve(second, 1, 64 * MIB));
        assert!(!window.reserve(third, 2, MIB), "it is behind that");
        assert_eq!(window.next(), None);
        window.release(first, MIB);
        assert_eq!((window.next(), window.next()), (Some(1), None));
        window.release(second, 64 * MIB);
        assert_eq!((window.next(), window.next()), (Some(2), None));
        assert!(window.reserve(second, 3, MIB));
    }

    #[test]
    fn small_values_do_not_wait_for_large_ones() {
        let mut window = ResponseWindow::default();
        let owner = window.slot(&member(1));
        assert!(window.reserve(owner, 0, 16 * MIB));
        assert!(!window.reserve(owner, 1, MIB));
        assert!(window.reserve(owner, 2, CALL_BYTES_MIN));
        window.forget(owner, 1, MIB);
        window.release(owner, 16 * MIB);
        assert_eq!((window.next(), window.waiting()), (None, 0));
    }

    #[test]
    fn calls_reserve_what_responses_have_had() {
        let mut window = ResponseWindow::default();
        let owner = window.slot(&member(1));
        assert!(window.reserve(owner, 0, 1));
        assert_eq!(window.expected(owner), CALL_BYTES_FIRST);
        for (bytes, expected) in [(10, 4_096), (5_000, 8_192), (65_536, 65_536), (65_537, 65_536)] {
            window.note_response(owner, bytes);
            assert_eq!(window.expected(owner), expected);
        }
        for _ in 0..RESPONSES_LOOKED_AT * 6 {
            window.note_response(owner, 100);
        }
        assert_eq!(window.expected(owner), CALL_BYTES_MIN);
    }

    #[test]
    fn bytes_reserved_at_a_member_that_has_gone_count_until_its_calls_have_ended() {
        let mut window = ResponseWindow::default();
        let owner = window.slot(&member(1));
        assert!(window.reserve(owner, 0, MIB));
        window.retain(|_| false);
        assert_eq!(window.reserved().0, u64::from(MIB));
        window.release(owner, MIB);
        window.retain(|_| false);
        assert_eq!(window.find(&member(1)), None);
        assert_eq!(window.slot(&member(2)), owner, "a slot without a member is used again");
        assert_eq!(window.reserved().0, 0);
    }
}
