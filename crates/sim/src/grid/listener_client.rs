//! Listeners: on some members a reader begins to listen, and takes the events.
//!
//! They draw from a random generator of their own, so that a seed's members, clients and faults are drawn as they would be
//! without listeners.

use std::time::Duration;

use consort_grid::{CacheMode, Event, ListenError, ListenOptions, ListenerId, Scope};
use consort_group::{Rng, Time};

use crate::world::World;

/// The limit of listeners of a member.
const LISTENERS_MAX: u64 = 2;

/// The longest time from a member's becoming usable to its listener's beginning: for some, faults have begun by then.
const BEGIN: Duration = Duration::from_secs(8);

/// The longest time until a woken reader takes its events.
const LOOK: Duration = Duration::from_millis(15);

/// The interval at which a reader checks whether its member goes on.
const PAUSE: Duration = Duration::from_millis(100);

/// The queue length of a slow reader.
pub(crate) const FEW: usize = 5;

/// The shortest and the longest life of a listener that ends before its member.
const LIFE_MIN: Duration = Duration::from_millis(100);
const LIFE_MAX: Duration = Duration::from_secs(5);

/// The longest time until another listener begins on the member.
const WITHOUT: Duration = Duration::from_secs(2);

/// A listener and all events that its reader has taken.
pub(crate) struct ListenerClient {
    pub(crate) node: usize,
    pub(crate) options: ListenOptions,
    /// `None` = it has not begun.
    id: Option<ListenerId>,
    /// When its reader learned that it is ready.
    pub(crate) ready: Option<Time>,
    /// When it is to end, if it ends before its member.
    ends: Option<Time>,
    /// When its reader has ended it.
    pub(crate) ended: Option<Time>,
    pub(crate) events: Vec<(Time, Event)>,
    pub(crate) failed: Option<ListenError>,
}

impl ListenerClient {
    pub(crate) fn has_begun(&self) -> bool {
        self.id.is_some()
    }

    /// Returns when the reader received the last gap.
    pub(crate) fn last_gap(&self) -> Option<Time> {
        self.events.iter().rev().find(|(_, event)| *event == Event::Gap).map(|(at, _)| *at)
    }
}

/// All listeners of a run.
pub(crate) struct ListenerClients {
    rng: Rng,
    /// A generator for later additions, so that the rest is drawn as before.
    previous: Rng,
    /// The generator for the ends of listeners.
    ends: Rng,
    pub(crate) all: Vec<ListenerClient>,
}

impl ListenerClients {
    pub(crate) fn new(rng: Rng) -> Self {
        let previous = Rng::new(rng.clone().next_u64());
        let ends = Rng::new(previous.clone().next_u64());
        Self { rng, previous, ends, all: Vec::new() }
    }

    /// Returns the number of entry events that were delivered, and the number of gaps.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let events = self.all.iter().flat_map(|listener_client| &listener_client.events);
        events.fold((0, 0), |(entries, gaps), (_, event)| match event {
            Event::Entry(_) => (entries + 1, gaps),
            Event::Gap => (entries, gaps + 1),
            Event::Complete => (entries, gaps),
        })
    }

    fn draw(&mut self, mode: CacheMode) -> ListenOptions {
        let rng = &mut self.rng;
        // If each member has its own entries, changes have no common order.
        let is_local = rng.chance(0.2) || mode == CacheMode::Invalidation;
        ListenOptions {
            scope: if is_local { Scope::Local } else { Scope::Cluster },
            with_state: rng.chance(0.6),
            with_values: rng.chance(0.7),
            with_previous: self.previous.chance(0.5),
            events_max: if rng.chance(0.1) { FEW } else { ListenOptions::default().events_max },
            ..ListenOptions::default()
        }
    }
}

impl World {
    /// Draws the listeners of a member that has become usable.
    pub(super) fn add_listener_clients(&mut self, node: usize) {
        let Some(grid) = &mut self.grid else { return };
        let Some(listener_clients) = &mut grid.listener_clients else { return };
        let count = if listener_clients.rng.chance(0.6) {
            listener_clients.rng.between(1, LISTENERS_MAX + 1)
        } else {
            0
        };
        let mut begin = Vec::new();
        for _ in 0..count {
            let at = self.now + listener_clients.rng.duration(Duration::ZERO, BEGIN);
            begin.push((at, listener_clients.draw(grid.config.mode)));
        }
        for (at, options) in begin {
            self.add_listener_client(at, node, options);
        }
    }

    /// Adds a listener that begins at this time.
    fn add_listener_client(&mut self, at: Time, node: usize, options: ListenOptions) {
        let Some(grid) = &mut self.grid else { return };
        let Some(listener_clients) = &mut grid.listener_clients else { return };
        let ends =
            grid.workload.listeners_end.then(|| at + listener_clients.ends.duration(LIFE_MIN, LIFE_MAX));
        let (events, failed) = (Vec::new(), None);
        listener_clients.all.push(ListenerClient {
            node,
            options,
            id: None,
            ready: None,
            ends,
            ended: None,
            events,
            failed,
        });
        let listener_client = listener_clients.all.len() - 1;
        for at in [Some(at), ends].into_iter().flatten() {
            self.schedule_listener_client(at, listener_client);
        }
    }

    /// Ends a listener, and begins another one after a while. Its reader has just taken all events.
    fn end_listener_client(&mut self, listener_client: usize) {
        let now = self.now;
        let Some(grid) = &mut self.grid else { return };
        let (mode, is_busy) = (grid.config.mode, grid.is_busy);
        let Some(listener_clients) = &mut grid.listener_clients else { return };
        let one = &mut listener_clients.all[listener_client];
        let (node, Some(id)) = (one.node, one.id) else { return };
        one.ended = Some(now);
        let (at, options) =
            (now + listener_clients.ends.duration(Duration::ZERO, WITHOUT), listener_clients.draw(mode));
        let own = self.nodes[node].member_clock(now);
        if let Some(member) = &mut self.nodes[node].member {
            member.node.end_listener(own, member.cache, id);
        }
        if is_busy {
            self.add_listener_client(at, node, options);
        }
    }

    /// Ends all listeners without replacement.
    pub(super) fn end_listener_clients(&mut self) {
        let listener_clients = self.grid.as_ref().and_then(|grid| grid.listener_clients.as_ref());
        for listener_client in 0..listener_clients.map_or(0, |listener_clients| listener_clients.all.len()) {
            self.run_listener_client(listener_client);
            let one =
                self.grid.as_ref().and_then(|grid| grid.listener_clients.as_ref()?.all.get(listener_client));
            let goes_on = |one: &ListenerClient| one.ended.is_none() && one.failed.is_none();
            if one.is_some_and(|one| goes_on(one) && self.nodes[one.node].is_alive()) {
                self.end_listener_client(listener_client);
            }
        }
    }

    /// Wakes a listener's reader.
    pub(super) fn wake_listener_client(&mut self, node: usize, listener: ListenerId) {
        let Some(listener_clients) = self.grid.as_mut().and_then(|grid| grid.listener_clients.as_mut())
        else {
            return;
        };
        let is_it = |listener_client: &ListenerClient| {
            listener_client.node == node && listener_client.id == Some(listener)
        };
        let Some(listener_client) = listener_clients.all.iter().position(is_it) else { return };
        let at = self.now + listener_clients.rng.duration(Duration::ZERO, LOOK);
        self.schedule_listener_client(at, listener_client);
    }

    /// Runs a reader's turn.
    pub(crate) fn run_listener_client(&mut self, listener_client: usize) {
        let now = self.now;
        let Some(grid) = &mut self.grid else { return };
        let is_busy = grid.is_busy;
        let Some(listener_clients) = &mut grid.listener_clients else { return };
        let ListenerClient { node, id, options, failed, ended, .. } = &listener_clients.all[listener_client];
        let (node, id, options, is_over) = (*node, *id, options.clone(), failed.is_some() || ended.is_some());
        let one = &mut self.nodes[node];
        let (own, name) = (one.member_clock(now), one.name.clone());
        if !one.is_alive() || is_over {
            return;
        }
        if one.is_paused {
            return self.schedule_listener_client(now + PAUSE, listener_client);
        }
        let Some(member) = &mut one.member else { return };
        let cache = member.cache;
        let one = &mut listener_clients.all[listener_client];
        let id = match id {
            Some(id) => id,
            None if !is_busy || member.is_left || member.is_leaving => return,
            None => match member.node.listen(own, cache, options) {
                Ok(id) => id,
                Err(error) => {
                    one.failed = Some(error);
                    return;
                }
            },
        };
        one.id = Some(id);
        if one.ready.is_none() && member.node.is_listening(cache, id) == Ok(true) {
            one.ready = Some(now);
        }
        // The reader takes events until none is left, as a stream is polled: then it is woken.
        loop {
            match member.node.take_events(own, cache, id) {
                Ok(events) if events.is_empty() => break,
                Ok(events) => {
                    if grid.with_operations {
                        let name = &name;
                        let wake_listener_client = events
                            .as_slice()
                            .iter()
                            .map(|event| format!("{name}: listener {} receives {event:?}", id.0));
                        grid.story.extend(
                            wake_listener_client.map(|wake_listener_client| (now, wake_listener_client)),
                        );
                    }
                    one.events.extend(events.map(|event| (now, event)));
                }
                Err(error) => {
                    one.failed = Some(error);
                    break;
                }
            }
        }
        let is_to_end = one.failed.is_none() && one.ends.is_some_and(|ends| ends <= now);
        if is_to_end {
            self.end_listener_client(listener_client);
        }
        self.work(node);
    }
}
