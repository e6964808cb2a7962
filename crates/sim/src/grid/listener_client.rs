//! Listeners on some members. A seed's members, clients and faults are as without listeners, because of their
//! own random generator.

use std::time::Duration;

use consort_grid::{CacheMode, Event, ListenError, ListenOptions, ListenerId, Scope};
use consort_group::{Rng, Time};

use super::GridWorld;
use super::turns::Turn;

const LISTENERS_MAX: u64 = 2;

/// Faults have begun before some listeners do.
const BEGIN: Duration = Duration::from_secs(8);

/// The longest time until a woken reader takes its events.
const LOOK: Duration = Duration::from_millis(15);

const PAUSE: Duration = Duration::from_millis(100);

pub(crate) const FEW: usize = 5;

const LIFE_MIN: Duration = Duration::from_millis(100);
const LIFE_MAX: Duration = Duration::from_secs(5);

const WITHOUT: Duration = Duration::from_secs(2);

pub(crate) struct ListenerClient {
    pub(crate) node: usize,
    pub(crate) options: ListenOptions,
    id: Option<ListenerId>,
    pub(crate) ready: Option<Time>,
    ends: Option<Time>,
    pub(crate) ended: Option<Time>,
    pub(crate) events: Vec<(Time, Event)>,
    pub(crate) failed: Option<ListenError>,
}

impl ListenerClient {
    pub(crate) fn has_begun(&self) -> bool {
        self.id.is_some()
    }

    pub(crate) fn last_gap(&self) -> Option<Time> {
        self.events.iter().rev().find(|(_, event)| *event == Event::Gap).map(|(at, _)| *at)
    }
}

pub(crate) struct ListenerClients {
    rng: Rng,
    /// Later additions use it, so that the rest is drawn as before.
    previous: Rng,
    ends: Rng,
    pub(crate) all: Vec<ListenerClient>,
}

impl ListenerClients {
    pub(crate) fn new(rng: Rng) -> Self {
        let previous = Rng::new(rng.clone().next_u64());
        let ends = Rng::new(previous.clone().next_u64());
        Self { rng, previous, ends, all: Vec::new() }
    }

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

pub(super) fn add(world: &mut GridWorld, node: usize) {
    let grid = &mut world.app;
    let Some(clients) = &mut grid.listener_clients else { return };
    let count = if clients.rng.chance(0.6) { clients.rng.between(1, LISTENERS_MAX + 1) } else { 0 };
    let mut begin = Vec::new();
    for _ in 0..count {
        let at = world.now + clients.rng.duration(Duration::ZERO, BEGIN);
        begin.push((at, clients.draw(grid.config.mode)));
    }
    for (at, options) in begin {
        add_one(world, at, node, options);
    }
}

fn add_one(world: &mut GridWorld, at: Time, node: usize, options: ListenOptions) {
    let grid = &mut world.app;
    let Some(clients) = &mut grid.listener_clients else { return };
    let ends = grid.workload.listeners_end.then(|| at + clients.ends.duration(LIFE_MIN, LIFE_MAX));
    let (events, failed) = (Vec::new(), None);
    clients.all.push(ListenerClient {
        node,
        options,
        id: None,
        ready: None,
        ends,
        ended: None,
        events,
        failed,
    });
    let client = clients.all.len() - 1;
    for at in [Some(at), ends].into_iter().flatten() {
        world.schedule(at, Turn::Listener(client));
    }
}

/// The reader has just taken all events.
fn end(world: &mut GridWorld, client: usize) {
    let (now, grid) = (world.now, &mut world.app);
    let Some(clients) = &mut grid.listener_clients else { return };
    let one = &mut clients.all[client];
    let (node, Some(id)) = (one.node, one.id) else { return };
    one.ended = Some(now);
    let (at, options) =
        (now + clients.ends.duration(Duration::ZERO, WITHOUT), clients.draw(grid.config.mode));
    let own = world.nodes[node].application_clock(now);
    let member = &mut grid.members[node];
    member.node.end_listener(own, member.cache, id);
    if grid.is_busy {
        add_one(world, at, node, options);
    }
}

pub(super) fn end_all(world: &mut GridWorld) {
    let count = world.app.listener_clients.as_ref().map_or(0, |clients| clients.all.len());
    for client in 0..count {
        run(world, client);
        let one = world.app.listener_clients.as_ref().and_then(|clients| clients.all.get(client));
        let goes_on = |one: &ListenerClient| one.ended.is_none() && one.failed.is_none();
        if one.is_some_and(|one| goes_on(one) && world.nodes[one.node].is_alive()) {
            end(world, client);
        }
    }
}

pub(super) fn wake(world: &mut GridWorld, node: usize, listener: ListenerId) {
    let Some(clients) = &mut world.app.listener_clients else { return };
    let is_it = |client: &ListenerClient| client.node == node && client.id == Some(listener);
    let Some(client) = clients.all.iter().position(is_it) else { return };
    let at = world.now + clients.rng.duration(Duration::ZERO, LOOK);
    world.schedule(at, Turn::Listener(client));
}

pub(super) fn run(world: &mut GridWorld, client: usize) {
    let (now, grid) = (world.now, &mut world.app);
    let Some(clients) = &mut grid.listener_clients else { return };
    let one = &mut clients.all[client];
    let stack_node = &world.nodes[one.node];
    if !stack_node.is_alive() || one.failed.is_some() || one.ended.is_some() {
        return;
    }
    if stack_node.is_paused {
        return world.schedule(now + PAUSE, Turn::Listener(client));
    }
    let own = stack_node.application_clock(now);
    let node = one.node;
    let member = &mut grid.members[node];
    let cache = member.cache;
    let id = match one.id {
        Some(id) => id,
        None if !grid.is_busy || member.is_left || member.is_leaving => return,
        None => match member.node.listen(own, cache, one.options.clone()) {
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
                    let name = &stack_node.name;
                    let line = |event| (now, format!("{name}: listener {} receives {event:?}", id.0));
                    grid.story.extend(events.as_slice().iter().map(line));
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
        end(world, client);
    }
    world.work(node);
}
