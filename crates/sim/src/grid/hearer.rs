//! Listeners: on some members somebody begins to listen, and takes what it is told.
//!
//! What they draw comes from randomness of their own, so that a seed's members, clients and faults are drawn as they would
//! be without them.

use std::time::Duration;

use consort_grid::{CacheMode, Event, Listen, ListenError, ListenerId, Scope};
use consort_group::{Rng, Time};

use crate::world::World;

/// Listeners of a member at most.
const HEARERS_MAX: u64 = 2;

/// How long after a member may be used a listener begins, at most: with some, faults strike already.
const BEGIN: Duration = Duration::from_secs(8);

/// How long a reader takes until it looks at what it was woken for, at most.
const LOOK: Duration = Duration::from_millis(15);

/// How often a reader looks whether its member goes on.
const PAUSE: Duration = Duration::from_millis(100);

/// Events that wait for a slow reader.
const FEW: usize = 5;

/// A listener and all that its reader has taken.
pub(crate) struct Hearer {
    pub(crate) node: usize,
    pub(crate) options: Listen,
    /// `None` = it has not begun.
    id: Option<ListenerId>,
    /// Since when it is told of everything, as its reader knows.
    pub(crate) ready: Option<Time>,
    pub(crate) events: Vec<(Time, Event)>,
    pub(crate) failed: Option<ListenError>,
}

impl Hearer {
    pub(crate) fn has_begun(&self) -> bool {
        self.id.is_some()
    }

    /// When the reader was told last that it may have missed something.
    pub(crate) fn last_gap(&self) -> Option<Time> {
        self.events.iter().rev().find(|(_, event)| *event == Event::Gap).map(|(at, _)| *at)
    }
}

/// All listeners of a run.
pub(crate) struct Hearers {
    rng: Rng,
    /// Of what was added later, so that the rest is drawn as before.
    previous: Rng,
    pub(crate) all: Vec<Hearer>,
}

impl Hearers {
    pub(crate) fn new(rng: Rng) -> Self {
        let previous = Rng::new(rng.clone().next_u64());
        Self { rng, previous, all: Vec::new() }
    }

    /// How many events of entries were told, and how many gaps.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let events = self.all.iter().flat_map(|hearer| &hearer.events);
        events.fold((0, 0), |(entries, gaps), (_, event)| match event {
            Event::Entry(_) => (entries + 1, gaps),
            Event::Gap => (entries, gaps + 1),
            Event::Complete => (entries, gaps),
        })
    }

    fn draw(&mut self, mode: CacheMode) -> Listen {
        let rng = &mut self.rng;
        // Where each member has its own entries, changes have no common order.
        let is_local = rng.chance(0.2) || mode == CacheMode::Invalidation;
        Listen {
            scope: if is_local { Scope::Local } else { Scope::Cluster },
            with_state: rng.chance(0.6),
            with_values: rng.chance(0.7),
            with_previous: self.previous.chance(0.5),
            events_max: if rng.chance(0.1) { FEW } else { Listen::default().events_max },
            ..Listen::default()
        }
    }
}

impl World {
    /// A member may be used: perhaps somebody listens there.
    pub(super) fn add_hearers(&mut self, node: usize) {
        let Some(grid) = &mut self.grid else { return };
        let Some(hearers) = &mut grid.hearers else { return };
        let count = if hearers.rng.chance(0.6) { hearers.rng.between(1, HEARERS_MAX + 1) } else { 0 };
        let mut begin = Vec::new();
        for _ in 0..count {
            let options = hearers.draw(grid.config.mode);
            let at = self.now + hearers.rng.duration(Duration::ZERO, BEGIN);
            hearers.all.push(Hearer {
                node,
                options,
                id: None,
                ready: None,
                events: Vec::new(),
                failed: None,
            });
            begin.push((at, hearers.all.len() - 1));
        }
        for (at, hearer) in begin {
            self.hear_at(at, hearer);
        }
    }

    /// A listener's reader is woken.
    pub(super) fn told(&mut self, node: usize, listener: ListenerId) {
        let Some(hearers) = self.grid.as_mut().and_then(|grid| grid.hearers.as_mut()) else { return };
        let is_it = |hearer: &Hearer| hearer.node == node && hearer.id == Some(listener);
        let Some(hearer) = hearers.all.iter().position(is_it) else { return };
        let at = self.now + hearers.rng.duration(Duration::ZERO, LOOK);
        self.hear_at(at, hearer);
    }

    /// It is a reader's turn.
    pub(crate) fn hear(&mut self, hearer: usize) {
        let now = self.now;
        let Some(grid) = &mut self.grid else { return };
        let is_busy = grid.is_busy;
        let Some(hearers) = &mut grid.hearers else { return };
        let Hearer { node, id, options, failed, .. } = &hearers.all[hearer];
        let (node, id, options, failed) = (*node, *id, options.clone(), failed.is_some());
        let one = &mut self.nodes[node];
        let (own, name) = (one.member_clock(now), one.name.clone());
        if !one.is_alive() || failed {
            return;
        }
        if one.is_paused {
            return self.hear_at(now + PAUSE, hearer);
        }
        let Some(member) = &mut one.member else { return };
        let cache = member.cache;
        let one = &mut hearers.all[hearer];
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
        // Until there is nothing more, as a stream is polled: then it is woken.
        loop {
            match member.node.take_events(own, cache, id) {
                Ok(events) if events.is_empty() => break,
                Ok(events) => {
                    if grid.tells_all {
                        let name = &name;
                        let told =
                            events.iter().map(|event| format!("{name}: listener {} is told {event:?}", id.0));
                        grid.story.extend(told.map(|told| (now, told)));
                    }
                    one.events.extend(events.into_iter().map(|event| (now, event)));
                }
                Err(error) => {
                    one.failed = Some(error);
                    break;
                }
            }
        }
        self.work(node);
    }
}
