//! The listeners of a cache here, with indexes of those that wait: a scan of all would make many
//! registrations quadratic.

use std::collections::{BTreeMap, BTreeSet};

use crate::event::ListenerId;
use crate::publication::IterationId;
use crate::replica::events::listener::{Listener, Walk};
use crate::topology::Interest;

#[derive(Default)]
pub(crate) struct ListenerTable {
    all: BTreeMap<ListenerId, Listener>,
    unready: BTreeSet<ListenerId>,
    waiting_for_state: BTreeSet<ListenerId>,
    iterations: BTreeMap<IterationId, ListenerId>,
    /// Of the whole cluster's changes, with each [`Interest`].
    clustered: [usize; INTERESTS.len()],
    with_previous: usize,
}

const INTERESTS: [Interest; 4] = [Interest::Nothing, Interest::Keys, Interest::Entries, Interest::Previous];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    Topology,
    State,
    Iteration(IterationId),
    Nothing,
}

impl Need {
    fn of(listener: &Listener) -> Self {
        match listener.walk {
            Walk::Under(iteration) => Self::Iteration(iteration),
            _ if !listener.is_ready => Self::Topology,
            Walk::Wanted if listener.is_awaited => Self::State,
            Walk::Wanted | Walk::Over => Self::Nothing,
        }
    }
}

impl ListenerTable {
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = ListenerId> {
        self.all.keys().copied()
    }

    pub(crate) fn get(&self, id: ListenerId) -> Option<&Listener> {
        self.all.get(&id)
    }

    pub(crate) fn unready(&self) -> impl Iterator<Item = ListenerId> {
        self.unready.iter().copied()
    }

    pub(crate) fn waiting_for_state(&self) -> impl Iterator<Item = (ListenerId, &Listener)> {
        self.waiting_for_state.iter().filter_map(|id| Some((*id, self.all.get(id)?)))
    }

    /// For a topology, or for permission to read present entries.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.unready.is_empty() || !self.waiting_for_state.is_empty()
    }

    pub(crate) fn of_iteration(&self, iteration: IterationId) -> Option<ListenerId> {
        self.iterations.get(&iteration).copied()
    }

    pub(crate) fn cluster_interest(&self) -> Option<Interest> {
        let counted = INTERESTS.into_iter().zip(self.clustered);
        counted.filter(|(_, count)| *count > 0).map(|(interest, _)| interest).max()
    }

    pub(crate) fn has_clustered(&self) -> bool {
        self.cluster_interest().is_some()
    }

    pub(crate) fn want_previous(&self) -> bool {
        self.with_previous > 0
    }

    pub(crate) fn insert(&mut self, id: ListenerId, listener: Listener) {
        self.move_index(id, Need::Nothing, Need::of(&listener));
        if listener.is_clustered() {
            self.clustered[listener.interest() as usize] += 1;
        }
        self.with_previous += usize::from(listener.interest() >= Interest::Previous);
        self.all.insert(id, listener);
    }

    pub(crate) fn remove(&mut self, id: ListenerId) -> Option<Listener> {
        let listener = self.all.remove(&id)?;
        self.move_index(id, Need::of(&listener), Need::Nothing);
        if listener.is_clustered() {
            self.clustered[listener.interest() as usize] -= 1;
        }
        self.with_previous -= usize::from(listener.interest() >= Interest::Previous);
        Some(listener)
    }

    pub(crate) fn update(&mut self, id: ListenerId, change: impl FnOnce(&mut Listener)) {
        let Some(listener) = self.all.get_mut(&id) else { return };
        let before = Need::of(listener);
        change(listener);
        let now = Need::of(listener);
        self.move_index(id, before, now);
    }

    pub(crate) fn update_all(&mut self, mut change: impl FnMut(ListenerId, &mut Listener)) {
        let mut moved = Vec::new();
        for (id, listener) in &mut self.all {
            let before = Need::of(listener);
            change(*id, listener);
            let now = Need::of(listener);
            if before != now {
                moved.push((*id, before, now));
            }
        }
        for (id, before, now) in moved {
            self.move_index(id, before, now);
        }
    }

    fn move_index(&mut self, id: ListenerId, before: Need, now: Need) {
        if before == now {
            return;
        }
        match before {
            Need::Topology => drop(self.unready.remove(&id)),
            Need::State => drop(self.waiting_for_state.remove(&id)),
            Need::Iteration(iteration) => drop(self.iterations.remove(&iteration)),
            Need::Nothing => {}
        }
        match now {
            Need::Topology => drop(self.unready.insert(id)),
            Need::State => drop(self.waiting_for_state.insert(id)),
            Need::Iteration(iteration) => drop(self.iterations.insert(iteration, id)),
            Need::Nothing => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use consort_group::Rng;

    use super::*;
    use crate::cx::waiting_events::WaitingEvents;
    use crate::event::{ListenOptions, Scope};

    fn check(table: &ListenerTable) {
        let of = |need: Need| {
            let all = table.all.iter().filter(move |(_, listener)| Need::of(listener) == need);
            all.map(|(id, _)| *id).collect::<Vec<_>>()
        };
        assert_eq!(table.unready().collect::<Vec<_>>(), of(Need::Topology));
        assert_eq!(table.waiting_for_state().map(|(id, _)| id).collect::<Vec<_>>(), of(Need::State));
        assert_eq!(table.has_waiting(), !of(Need::Topology).is_empty() || !of(Need::State).is_empty());
        for (id, listener) in &table.all {
            if let Walk::Under(iteration) = listener.walk {
                assert_eq!(table.of_iteration(iteration), Some(*id));
            }
        }
        let reading = table.all.values().filter(|listener| matches!(listener.walk, Walk::Under(_)));
        assert_eq!(table.iterations.len(), reading.count());
        let clustered = table.all.values().filter(|listener| listener.is_clustered());
        assert_eq!(table.cluster_interest(), clustered.map(Listener::interest).max());
        let interests = table.all.values().map(Listener::interest);
        assert_eq!(table.want_previous(), interests.max() >= Some(Interest::Previous));
    }

    #[test]
    fn indexes_are_those_that_a_look_at_each_listener_finds() {
        let waiting = WaitingEvents::default();
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let mut table = ListenerTable::default();
            for number in 1..=300 {
                let id = ListenerId(1 + rng.below(12));
                match rng.below(8) {
                    0 | 1 => {
                        let scope = if rng.chance(0.7) { Scope::Cluster } else { Scope::Local };
                        let with_values = rng.chance(0.5);
                        let (with_previous, with_state) = (rng.chance(0.2), rng.chance(0.5));
                        let options = ListenOptions {
                            scope,
                            with_values,
                            with_previous,
                            with_state,
                            ..ListenOptions::default()
                        };
                        table.remove(id);
                        table.insert(id, Listener::new(options, None, waiting.part()));
                    }
                    2 => drop(table.remove(id)),
                    3 => table.update(id, |listener| listener.is_ready = true),
                    4 => table.update(id, |listener| listener.is_awaited ^= true),
                    5 => table.update(id, |listener| {
                        if listener.is_ready && listener.walk == Walk::Wanted {
                            listener.walk = Walk::Under(IterationId(number));
                        }
                    }),
                    6 => table.update(id, |listener| {
                        if matches!(listener.walk, Walk::Under(_)) {
                            listener.complete();
                        }
                    }),
                    _ => table.update_all(|_, listener| {
                        listener.interrupt();
                        listener.is_ready &= number % 2 == 0;
                    }),
                }
                check(&table);
            }
            for id in 1..=12 {
                table.remove(ListenerId(id));
            }
            check(&table);
            assert!(table.is_empty() && table.ids().next().is_none());
            assert!(table.get(ListenerId(1)).is_none() && !table.has_clustered());
        }
    }
}
