//! Bounds messages before flow control, per destination, so that a slow member delays none to others (S000-4).
//!
//! It is also closed while the edge's queue is more than half full. A quarter of the queue, or one larger message, passes at
//! once: NAKACK4 and UNICAST4 bound messages, not bytes, and a packet that does not fit is dropped and retransmitted. Responses
//! and up handlers' messages always pass ([`Gate::force`]).

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use consort_group::protocols::flow::HOLD_LIMIT;
use consort_group::{Address, Stack};
use tokio::sync::Notify;

/// Each message counts at least this, so that a flood of empty messages waits, too.
const MESSAGE_BYTES_MIN: u64 = 64;

/// `None` is multicasts.
type Dest = Option<Address>;

#[derive(Default, Debug)]
struct DestinationQueue {
    /// The bytes not yet passed to the stack.
    submitted: u64,
    /// The bytes in the stack.
    held: u64,
    is_half_full: bool,
}

impl DestinationQueue {
    fn has_room(&self, bytes: u64, limit: u64, burst: u64) -> bool {
        // A message larger than the whole limit passes when nothing is ahead of it.
        let fits = |ahead: u64, limit| ahead == 0 || ahead.saturating_add(bytes) <= limit;
        !self.is_half_full
            && fits(self.submitted, burst)
            && fits(self.submitted.saturating_add(self.held), limit)
    }
}

#[derive(Debug)]
struct DestinationQueues {
    queues: BTreeMap<Dest, DestinationQueue>,
    limit_unicast: Option<u64>,
    limit_multicast: Option<u64>,
    /// The bytes that the edge's queue takes at once.
    burst: u64,
    is_closed: bool,
}

impl Default for DestinationQueues {
    fn default() -> Self {
        Self {
            queues: BTreeMap::new(),
            limit_unicast: None,
            limit_multicast: None,
            // There is no edge before the first cycle.
            burst: u64::MAX,
            is_closed: false,
        }
    }
}

#[derive(Default, Debug)]
pub(crate) struct Gate {
    state: Mutex<DestinationQueues>,
    changed: Notify,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GateState {
    Open,
    Full,
    Closed,
}

pub(crate) fn weight(length: usize) -> u64 {
    (length as u64).max(MESSAGE_BYTES_MIN)
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, DestinationQueues> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn try_pass(&self, dest: &Dest, bytes: u64) -> GateState {
        let mut state = self.lock();
        if state.is_closed {
            return GateState::Closed;
        }
        let limit = if dest.is_none() { state.limit_multicast } else { state.limit_unicast };
        let (limit, burst) = (limit.unwrap_or(HOLD_LIMIT), state.burst);
        match state.queues.get_mut(dest) {
            Some(queue) => {
                if !queue.has_room(bytes, limit, burst) {
                    return GateState::Full;
                }
                queue.submitted += bytes;
            }
            None => {
                state.queues.insert(
                    dest.clone(),
                    DestinationQueue { submitted: bytes, ..DestinationQueue::default() },
                );
            }
        }
        GateState::Open
    }

    /// Reserves capacity even beyond the limit.
    pub(crate) fn force(&self, dest: &Dest, bytes: u64) {
        self.lock().queues.entry(dest.clone()).or_default().submitted += bytes;
    }

    /// Answers for a small message.
    pub(crate) fn is_open(&self, dest: Option<&Address>) -> bool {
        let state = self.lock();
        let limit = if dest.is_none() { state.limit_multicast } else { state.limit_unicast };
        let has_room = |queue: &DestinationQueue| {
            queue.has_room(MESSAGE_BYTES_MIN, limit.unwrap_or(HOLD_LIMIT), state.burst)
        };
        !state.is_closed && state.queues.get(&dest.cloned()).is_none_or(has_room)
    }

    pub(crate) fn burst_bytes(&self) -> u64 {
        self.lock().burst
    }

    /// Reserves capacity of the first destination that has it, and returns its index; `None` if the channel closes.
    pub(crate) async fn pass(&self, dests: &[Dest], bytes: u64) -> Option<usize> {
        loop {
            let changed = self.changed.notified();
            for (at, dest) in dests.iter().enumerate() {
                match self.try_pass(dest, bytes) {
                    GateState::Open => return Some(at),
                    GateState::Closed => return None,
                    GateState::Full => {}
                }
            }
            changed.await;
        }
    }

    /// The cycle passed `handed` bytes on; the stack holds the reported bytes, and a less than half full queue takes `burst`
    /// bytes.
    pub(crate) fn settle(
        &self,
        handed: &mut BTreeMap<Dest, u64>,
        stack: &Stack,
        burst: u64,
        is_half_full: impl Fn(Option<&Address>) -> bool,
    ) {
        let mut state = self.lock();
        state.limit_unicast = stack.hold_limit(false);
        state.limit_multicast = stack.hold_limit(true);
        state.burst = burst;
        let mut has_freed = false;
        while let Some((dest, bytes)) = handed.pop_first() {
            if let Some(queue) = state.queues.get_mut(&dest) {
                queue.submitted = queue.submitted.saturating_sub(bytes);
                has_freed = true;
            }
        }
        state.queues.retain(|dest, queue| {
            let held = stack.queued_bytes(dest.as_ref());
            let is_half_full = is_half_full(dest.as_ref());
            has_freed |= held < queue.held || (queue.is_half_full && !is_half_full);
            (queue.held, queue.is_half_full) = (held, is_half_full);
            queue.submitted + queue.held > 0 || queue.is_half_full
        });
        drop(state);
        if has_freed {
            self.changed.notify_waiters();
        }
    }

    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    use std::task::{Context, Poll, Wake, Waker};

    use consort_group::{PhysAddr, Protocol, ProtocolId, StackSetup, Uuid, Version};

    use super::*;

    struct Bottom;

    impl Protocol for Bottom {
        fn name(&self) -> &'static str {
            "BOTTOM"
        }
        fn id(&self) -> ProtocolId {
            ProtocolId::TP
        }
    }

    fn member(n: u64) -> Address {
        Address::Uuid(Uuid { most: n, least: n })
    }

    fn stack() -> Stack {
        let setup = StackSetup {
            local: member(1),
            name: "A".into(),
            phys: PhysAddr { ip: None, scope_id: 0, port: 1 },
            has_multicast: false,
            seed: 1,
            version: Version::V5_5_7,
        };
        Stack::new(setup, vec![Box::new(Bottom)])
    }

    /// The stack has no flow control; the edge takes 100 bytes at once.
    struct Fixture {
        gate: Gate,
        stack: Stack,
    }

    impl Fixture {
        fn new() -> Self {
            let fixture = Self { gate: Gate::default(), stack: stack() };
            fixture.cycle(&[], &[]);
            fixture
        }

        /// The driver takes the bytes; queues to `crowded` are more than half full.
        fn cycle(&self, handed: &[(&Dest, u64)], crowded: &[&Dest]) {
            let mut handed = handed.iter().map(|&(dest, bytes)| (dest.clone(), bytes)).collect();
            let is_half_full = |dest: Option<&Address>| crowded.iter().any(|one| one.as_ref() == dest);
            self.gate.settle(&mut handed, &self.stack, 100, is_half_full);
        }

        fn pass(&self, dest: &Dest, bytes: u64) -> GateState {
            self.gate.try_pass(dest, bytes)
        }
    }

    #[derive(Default)]
    struct WakeCount(AtomicU32);

    impl Wake for WakeCount {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn no_more_than_a_burst_is_on_its_way_to_a_destination() {
        let fixture = Fixture::new();
        let (to, other) = (Some(member(2)), Some(member(3)));
        let passed = [60, 41, 40, 1].map(|bytes| fixture.pass(&to, bytes));
        assert_eq!(passed, [GateState::Open, GateState::Full, GateState::Open, GateState::Full]);
        assert_eq!(fixture.pass(&other, 100), GateState::Open, "it has a burst of its own");
        fixture.cycle(&[(&to, 60)], &[]);
        assert_eq!([61, 60].map(|bytes| fixture.pass(&to, bytes)), [GateState::Full, GateState::Open]);
        fixture.cycle(&[(&to, 100)], &[]);
        assert_eq!(fixture.pass(&to, 1_000), GateState::Open, "alone, a message may be larger");
        assert_eq!(fixture.pass(&to, 1), GateState::Full);
    }

    #[test]
    fn an_answer_passes_in_any_case_and_counts() {
        let fixture = Fixture::new();
        let to = Some(member(2));
        fixture.gate.force(&to, 60);
        fixture.gate.force(&to, 60);
        assert_eq!(fixture.pass(&to, 1), GateState::Full);
        let is_open = || [to.as_ref(), None].map(|dest| fixture.gate.is_open(dest));
        assert_eq!(is_open(), [false, true]);
        fixture.cycle(&[(&to, 60)], &[]);
        assert_eq!([41, 40].map(|bytes| fixture.pass(&to, bytes)), [GateState::Full, GateState::Open]);
        fixture.cycle(&[(&to, 100)], &[&to]);
        assert_eq!(is_open(), [false, true], "it is crowded");
        fixture.cycle(&[], &[]);
        assert_eq!(is_open(), [true, true]);
        fixture.gate.close();
        assert_eq!(is_open(), [false, false]);
    }

    #[test]
    fn a_sender_that_waits_for_a_half_full_edge_is_woken_when_it_has_capacity() {
        let fixture = Fixture::new();
        let (to, all) = (Some(member(2)), None);
        assert_eq!(fixture.pass(&to, 60), GateState::Open);
        fixture.cycle(&[(&to, 60)], &[&to]);
        assert_eq!([&to, &all].map(|dest| fixture.pass(dest, 1)), [GateState::Full, GateState::Open]);

        let woken = Arc::new(WakeCount::default());
        let waker = Waker::from(woken.clone());
        let mut cx = Context::from_waker(&waker);
        let dests = [to.clone()];
        let mut waiting = pin!(fixture.gate.pass(&dests, 1));
        assert!(waiting.as_mut().poll(&mut cx).is_pending());
        fixture.cycle(&[], &[&to]);
        assert_eq!(woken.0.load(Relaxed), 0, "it is crowded still");
        fixture.cycle(&[], &[]);
        assert_eq!(woken.0.load(Relaxed), 1);
        assert_eq!(waiting.as_mut().poll(&mut cx), Poll::Ready(Some(0)));
    }

    #[test]
    fn closing_the_gate_wakes_waiting_senders() {
        let fixture = Fixture::new();
        let dests = [Some(member(2))];
        assert_eq!(fixture.pass(&dests[0], 100), GateState::Open);
        let woken = Arc::new(WakeCount::default());
        let waker = Waker::from(woken.clone());
        let mut cx = Context::from_waker(&waker);
        let mut waiting = pin!(fixture.gate.pass(&dests, 1));
        assert!(waiting.as_mut().poll(&mut cx).is_pending());
        fixture.gate.close();
        assert_eq!(woken.0.load(Relaxed), 1);
        assert_eq!(waiting.as_mut().poll(&mut cx), Poll::Ready(None));
        assert_eq!(fixture.pass(&None, 1), GateState::Closed);
    }
}
