//! The state that a router's connections share.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use consort_group::wire::WireError;
use consort_memory::Budget;
use consort_net::{Clock, RateLimitedWarnings};
use tokio::sync::mpsc;

use crate::outbox::{CapacityWait, Outbox, WAITING_ALL_MAX, cost};
use crate::routes::{Client, Delivery, GROUP_MEMBERS_MAX, MEMBERS_MAX, Routed, Routes};

/// A member has one connection; further ones are refused.
const CONNECTIONS_MAX: usize = 10_000;

/// The bound of incomplete frames longer than a read. A connection waits for the capacity for all of a further one.
pub(crate) const UNFINISHED_BYTES_MAX: u64 = 128 * 1024 * 1024;

/// The time is from a frame's first to its last byte, with the wait for capacity.
pub(crate) const FRAME_TIME_MAX: Duration = Duration::from_secs(10);

#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) connections: usize,
    /// A frame must be complete within this time.
    pub(crate) frame_time: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { connections: CONNECTIONS_MAX, frame_time: FRAME_TIME_MAX }
    }
}

pub(crate) struct Shared {
    state: Mutex<State>,
    stall_timeout: Duration,
    pub(crate) bounds: Bounds,
    pub(crate) unfinished: Budget,
    clock: Clock,
    warnings: Mutex<RateLimitedWarnings>,
}

struct State {
    routes: Routes,
    outboxes: HashMap<Client, Outbox>,
    /// The sum includes removed clients' last frames.
    waiting: usize,
    deliveries: Vec<Delivery>,
    /// Clients did not read these frames.
    dropped: u64,
    /// The members of a router that ends are well; they must not be suspected.
    is_ending: bool,
}

impl Shared {
    pub(crate) fn new(notify_ends: bool, stall_timeout: Duration, bounds: Bounds) -> Self {
        let state = State {
            routes: Routes::new(notify_ends),
            outboxes: HashMap::new(),
            waiting: 0,
            deliveries: Vec::new(),
            dropped: 0,
            is_ending: false,
        };
        Self {
            state: Mutex::new(state),
            stall_timeout,
            bounds,
            unfinished: Budget::new("incomplete frames", UNFINISHED_BYTES_MAX),
            clock: Clock::start(),
            warnings: Mutex::default(),
        }
    }

    /// Members are not suspected because this router ends.
    pub(crate) fn begin_end(&self) {
        self.state().is_ending = true;
    }

    pub(crate) fn member_count(&self) -> usize {
        self.state().routes.len()
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.state().dropped
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The log is rate-limited per cause.
    pub(crate) fn warn(&self, cause: &'static str, detail: impl FnOnce() -> String) {
        let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        warnings.count(self.clock.now(), cause, detail);
    }

    pub(crate) fn admit(&self, client: Client) -> mpsc::UnboundedReceiver<Bytes> {
        let (outbox, outgoing) = Outbox::new();
        self.state().outboxes.insert(client, outbox);
        outgoing
    }

    /// Returns when the recipients have capacity.
    pub(crate) async fn route(&self, from: Client, frame: Bytes) -> Result<(), WireError> {
        let (routed, waits) = {
            let mut state = self.state();
            let State { routes, deliveries, .. } = &mut *state;
            let routed = routes.handle_frame(from, frame, deliveries)?;
            (routed, state.deliver())
        };
        match &routed {
            // A client may register again and again.
            Routed::Full => self.warn("too_many_members", || {
                format!("a member is not registered: its group has {GROUP_MEMBERS_MAX}, or all groups have {MEMBERS_MAX}")
            }),
            routed => log_routed(routed),
        }
        for capacity in waits {
            capacity.wait(self.stall_timeout).await;
        }
        Ok(())
    }

    /// The frames are read, or dropped with their connection.
    pub(crate) fn note_written(&self, client: Client, cost: usize) {
        let mut state = self.state();
        state.waiting = state.waiting.saturating_sub(cost);
        if let Some(outbox) = state.outboxes.get_mut(&client) {
            outbox.note_written(cost);
        }
    }

    /// The queue is still written.
    pub(crate) fn forget(&self, client: Client) {
        let mut state = self.state();
        state.outboxes.remove(&client);
        let State { routes, deliveries, is_ending, .. } = &mut *state;
        let gone = routes.handle_closed(client, deliveries);
        if *is_ending {
            deliveries.clear();
        }
        state.deliver();
        drop(state);
        gone.iter().for_each(log_routed);
    }
}

impl State {
    /// Returns the waits before the sender is read again.
    fn deliver(&mut self) -> Vec<CapacityWait> {
        let mut waits = Vec::new();
        for Delivery { to, frame } in self.deliveries.drain(..) {
            let Some(outbox) = self.outboxes.get_mut(&to).filter(|outbox| !outbox.is_gone()) else {
                continue;
            };
            let cost = cost(&frame);
            if self.waiting + cost <= WAITING_ALL_MAX && outbox.push(frame) {
                self.waiting += cost;
            } else {
                self.dropped += 1;
                if self.dropped.is_power_of_two() {
                    tracing::warn!(all = self.dropped, "frames dropped: clients do not read");
                }
            }
            waits.extend(outbox.capacity_wait());
        }
        waits
    }
}

fn log_routed(routed: &Routed) {
    match routed {
        Routed::Registered { group, member } => tracing::info!("{member} is registered in {group}"),
        Routed::Unregistered { group, member } => {
            tracing::info!("{member} is no longer registered in {group}");
        }
        Routed::Passed(_) | Routed::NoSuchMember | Routed::Full => {}
    }
}
