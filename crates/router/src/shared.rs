//! The state that a router's connections share.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use consort_group::Time;
use consort_group::wire::WireError;
use consort_memory::Budget;
use consort_net::{Clock, RateLimitedWarnings};
use tokio::sync::{Notify, mpsc};

use crate::outbox::{CapacityWait, Outbox, cost};
use crate::routes::{CLIENT_MEMBERS_MAX, Client, Delivery, GROUP_MEMBERS_MAX, MEMBERS_MAX, Routed, Routes};

/// A member has one connection; further ones are refused.
const CONNECTIONS_MAX: usize = 10_000;

/// Connections without a registered member, also those within a handshake. A further one closes the oldest: strangers must not take
/// the places of members.
const UNREGISTERED_MAX: usize = 1_000;

/// Further registrations and ends of a second are not logged one by one: a client may repeat them.
const LOGGED_REGISTRATIONS_MAX: u32 = 100;

/// A multicast has a delivery for each member; more are not kept for the next frame.
const DELIVERIES_KEPT: usize = 16 * 1024;

/// The bound of registered members' incomplete frames longer than a read. A connection waits for the capacity for all of a further
/// one.
pub(crate) const UNFINISHED_BYTES_MAX: u64 = 128 * 1024 * 1024;

/// The time is from a frame's first to its last byte, with the wait for capacity.
pub(crate) const FRAME_TIME_MAX: Duration = Duration::from_secs(10);

const SILENCE_MAX: Duration = Duration::from_secs(10);

/// As long as the detection of a host that failed.
const TAKE_TIME_MAX: Duration = Duration::from_secs(60);

const DRAIN_TIME_MAX: Duration = Duration::from_secs(10);

#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) connections: usize,
    pub(crate) unregistered: usize,
    /// A connection without a registered member ends after this time without a frame.
    pub(crate) silence: Duration,
    /// A client must take the bytes of a write within this time, and a second for each 64 KiB.
    pub(crate) take_time: Duration,
    /// The queue of an ended connection is written for this time.
    pub(crate) drain_time: Duration,
    /// A frame must be complete within this time.
    pub(crate) frame_time: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connections: CONNECTIONS_MAX,
            unregistered: UNREGISTERED_MAX,
            silence: SILENCE_MAX,
            take_time: TAKE_TIME_MAX,
            drain_time: DRAIN_TIME_MAX,
            frame_time: FRAME_TIME_MAX,
        }
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
    /// The oldest first.
    unregistered: BTreeSet<Client>,
    /// Of this second, with its number.
    logged: (u64, u32),
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
            unregistered: BTreeSet::new(),
            logged: (0, 0),
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

    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.state().waiting
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

    /// Returns the client's frames, and the notice that its connection has to end at once.
    pub(crate) fn admit(
        &self,
        client: Client,
        peer: SocketAddr,
    ) -> (mpsc::UnboundedReceiver<Bytes>, Arc<Notify>) {
        let (outbox, outgoing) = Outbox::new(peer, self.stall_timeout);
        let must_end = outbox.must_end.clone();
        let mut state = self.state();
        state.outboxes.insert(client, outbox);
        state.unregistered.insert(client);
        let ended = state.end_oldest_unregistered(self.bounds.unregistered);
        drop(state);
        if let Some(peer) = ended {
            self.warn("too_many_unregistered", || {
                let max = self.bounds.unregistered;
                format!("closing the connection of {peer}: {max} connections have no registered member")
            });
        }
        (outgoing, must_end)
    }

    /// Returns when the recipients have capacity: whether the client has a registered member, or `None` if it is refused.
    pub(crate) async fn route(&self, from: Client, frame: Bytes) -> Result<Option<bool>, WireError> {
        let (routed, is_registered, waits, is_logged) = {
            let mut state = self.state();
            let State { routes, deliveries, .. } = &mut *state;
            let routed = routes.handle_frame(from, frame, deliveries)?;
            let is_registered = routes.is_registered(from);
            if is_registered {
                state.unregistered.remove(&from);
            } else if matches!(routed, Routed::Unregistered { .. }) {
                state.unregistered.insert(from);
                state.end_oldest_unregistered(self.bounds.unregistered);
            }
            let is_logged = self.is_logged(&mut state, &routed);
            (routed, is_registered, state.deliver(Some(from)), is_logged)
        };
        match &routed {
            Routed::Full => {
                self.warn("too_many_members", || {
                    format!(
                        "a member is not registered, and its connection is closed: the connection has \
                         {CLIENT_MEMBERS_MAX} members, its group {GROUP_MEMBERS_MAX} or 4 MiB of names, or all groups \
                         {MEMBERS_MAX} or 6 MiB"
                    )
                });
                return Ok(None);
            }
            routed => log_routed(routed, is_logged),
        }
        for capacity in waits {
            capacity.wait(self.stall_timeout).await;
        }
        Ok(Some(is_registered))
    }

    fn is_logged(&self, state: &mut State, routed: &Routed) -> bool {
        if !matches!(routed, Routed::Registered { .. } | Routed::Unregistered { .. }) {
            return false;
        }
        let second = self.clock.now().since(Time::ZERO).as_secs();
        let (of, count) = state.logged;
        let count = if of == second { count.saturating_add(1) } else { 1 };
        state.logged = (second, count);
        count <= LOGGED_REGISTRATIONS_MAX
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
        state.unregistered.remove(&client);
        let State { routes, deliveries, is_ending, .. } = &mut *state;
        let gone = routes.handle_closed(client, deliveries);
        if *is_ending {
            deliveries.clear();
        }
        state.deliver(None);
        let logged: Vec<bool> = gone.iter().map(|routed| self.is_logged(&mut state, routed)).collect();
        drop(state);
        gone.iter().zip(logged).for_each(|(routed, is_logged)| log_routed(routed, is_logged));
    }
}

/// A drop removes the client, however its connection ends.
pub(crate) struct Admitted {
    pub(crate) client: Client,
    pub(crate) peer: SocketAddr,
    pub(crate) shared: Arc<Shared>,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.shared.forget(self.client);
    }
}

impl State {
    /// Returns its address if there were more than `max`.
    fn end_oldest_unregistered(&mut self, max: usize) -> Option<SocketAddr> {
        if self.unregistered.len() <= max {
            return None;
        }
        let outbox = self.unregistered.pop_first().and_then(|oldest| self.outboxes.get(&oldest))?;
        outbox.must_end.notify_one();
        Some(outbox.peer)
    }

    /// Returns the waits before the sender is read again.
    fn deliver(&mut self, from: Option<Client>) -> Vec<CapacityWait> {
        let mut waits = Vec::new();
        for Delivery { to, frame } in self.deliveries.drain(..) {
            let Some(outbox) = self.outboxes.get_mut(&to).filter(|outbox| !outbox.is_gone()) else {
                continue;
            };
            let cost = cost(&frame);
            if outbox.push(frame, self.waiting) {
                self.waiting += cost;
            } else {
                self.dropped += 1;
                if self.dropped.is_power_of_two() {
                    let peer = outbox.peer;
                    tracing::warn!(all = self.dropped, %peer, "frames dropped: clients do not read");
                }
            }
            let is_own = from == Some(to);
            waits.extend(if is_own { outbox.own_capacity_wait() } else { outbox.capacity_wait() });
        }
        self.deliveries.shrink_to(DELIVERIES_KEPT);
        waits
    }
}

fn log_routed(routed: &Routed, is_logged: bool) {
    let line = match routed {
        Routed::Registered { group, member } => format!("{member} is registered in {group}"),
        Routed::Unregistered { group, member } => format!("{member} is no longer registered in {group}"),
        Routed::Passed(_) | Routed::Unchanged | Routed::NoSuchMember | Routed::Full => return,
    };
    if is_logged {
        tracing::info!("{line}");
    } else {
        tracing::debug!("{line}");
    }
}
