//! Readers of listeners, and checks of the events that they got.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use consort_grid::{
    Action, Change, EntryEvent, Event, EventKind, Lifetime, ListenError, ListenOptions, ListenerId,
    ReplicaTracker, Version, Write,
};
use consort_group::Time;

use crate::cluster::{Cluster, entries};
use crate::swarm::version_of;

/// A listener and all events that its reader has taken.
pub(crate) struct Reader {
    pub(crate) member: usize,
    pub(crate) id: ListenerId,
    pub(crate) options: ListenOptions,
    /// Time since which it gets all changes.
    pub(crate) ready: Option<Time>,
    pub(crate) events: Vec<(Time, Event)>,
    pub(crate) failed: Option<ListenError>,
}

impl Reader {
    pub(crate) fn begin(cluster: &mut Cluster, member: usize, options: ListenOptions) -> Self {
        let cache = cluster.cache();
        let listen = options.clone();
        let id = cluster.with(member, |node, now| node.listen(now, cache, listen)).expect("alive");
        let id = id.expect("a listener");
        cluster.log(format!("M{member}/{} begins: {options:?}", id.0));
        let mut reader = Self { member, id, options, ready: None, events: Vec::new(), failed: None };
        reader.take(cluster);
        reader
    }

    pub(crate) fn is_alive(&self, cluster: &Cluster) -> bool {
        self.failed.is_none()
            && cluster.members[self.member].as_ref().is_some_and(|member| !member.is_leaving)
    }

    /// Takes the waiting events if the reader was woken.
    pub(crate) fn poll(&mut self, cluster: &mut Cluster) {
        let member = cluster.members[self.member].as_mut();
        if self.failed.is_none() && member.is_some_and(|member| member.told.remove(&self.id)) {
            self.take(cluster);
        }
    }

    fn take(&mut self, cluster: &mut Cluster) {
        let (cache, id) = (cluster.cache(), self.id);
        let is_ready = |node: &mut consort_grid::Node, _| node.is_listening(cache, id);
        if self.ready.is_none() && cluster.with(self.member, is_ready) == Some(Ok(true)) {
            self.ready = Some(cluster.now);
        }
        // Until there are no more, as a stream is polled.
        while let Some(taken) = cluster.with(self.member, |node, now| node.take_events(now, cache, id)) {
            match taken {
                Ok(events) if events.is_empty() => break,
                Ok(events) => {
                    for event in events {
                        cluster.log(format!("M{}/{} gets {event:?}", self.member, id.0));
                        self.events.push((cluster.now, event));
                    }
                }
                Err(error) => {
                    cluster.log(format!("M{}/{} ends: {error}", self.member, id.0));
                    self.failed = Some(error);
                    break;
                }
            }
        }
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &EntryEvent> {
        self.events.iter().filter_map(|(_, event)| match event {
            Event::Entry(event) => Some(event),
            Event::Complete | Event::Gap => None,
        })
    }

    pub(crate) fn gaps(&self) -> usize {
        self.events.iter().filter(|(_, event)| *event == Event::Gap).count()
    }

    /// Checks that versions of a key since the last gap only grow, without duplicates. The kind of each event must
    /// follow from the previous state, which the event has if the listener wants it.
    pub(crate) fn check_order(&self) {
        let mut last: BTreeMap<&Bytes, &EntryEvent> = BTreeMap::new();
        for (_, event) in &self.events {
            let event = match event {
                Event::Gap => {
                    last.clear();
                    continue;
                }
                Event::Complete => continue,
                Event::Entry(event) => event,
            };
            assert!(self.options.with_previous || event.previous.is_none(), "{event:?}");
            let is_absent = |kind| matches!(kind, EventKind::Removed | EventKind::Expired);
            let before = last.insert(&event.key, event);
            // The present entries may have been read after this change, and lack it.
            let Some(before) = before else { continue };
            assert!(before.version < event.version, "{event:?} comes after {before:?}");
            // A present entry that was read may be newer than a change, whose event is then skipped.
            if event.kind != EventKind::Existing {
                let was_there = event.kind != EventKind::Created;
                assert_eq!(was_there, !is_absent(before.kind), "{event:?} comes after {before:?}");
                if !self.options.with_previous {
                    continue;
                }
                let told = event.previous.as_ref();
                let version = was_there.then_some(before.version);
                assert_eq!(told.map(|told| told.version), version, "{event:?} comes after {before:?}");
                // A value that was overwritten before its event was delivered is unknown here.
                let is_known = |value: &&Bytes| Some(*value) == told.map(|told| &told.value);
                assert!(
                    before.value.as_ref().is_none_or(|value| is_known(&value)),
                    "{event:?} after {before:?}"
                );
            }
        }
    }

    /// Checks that every acknowledged change that began after the listener was ready, and after the last gap, was
    /// delivered, or that the reader got the result of a later change before. Delivered events must be right.
    pub(crate) fn check_changes(&self, cluster: &Cluster) {
        let Some(ready) = self.ready else { panic!("{:?} of M{} was never ready", self.id, self.member) };
        let gap = self.events.iter().rev().find(|(_, event)| *event == Event::Gap).map(|(at, _)| *at);
        let told: BTreeMap<(&Bytes, Version), &EntryEvent> =
            self.entries().map(|event| ((&event.key, event.version), event)).collect();
        let mut read: BTreeMap<&Bytes, Version> = BTreeMap::new();
        for event in self.entries().filter(|event| event.kind == EventKind::Existing) {
            let newest = read.entry(&event.key).or_insert(event.version);
            *newest = event.version.max(*newest);
        }
        for done in &cluster.history {
            let Some(version) = version_of(done) else { continue };
            let event = told.get(&(&done.key, version));
            let is_after = done.began > ready && gap.is_none_or(|gap| done.began > gap);
            let is_owed = is_after && read.get(&done.key).is_none_or(|read| *read < version);
            let Some(event) = event else {
                assert!(!is_owed, "{:?} of M{} is not told of {done:?}", self.id, self.member);
                continue;
            };
            let Action::Write(Write { change, .. }) = &done.action else { continue };
            match (change, event.kind) {
                (Change::Remove, EventKind::Removed) => assert_eq!(event.value, None),
                (
                    Change::Put { value, .. },
                    EventKind::Created | EventKind::Modified | EventKind::Existing,
                ) => {
                    assert!(event.value.as_ref().is_none_or(|told| told == value), "{event:?} for {done:?}");
                    assert!(self.options.with_values || event.value.is_none());
                }
                _ => panic!("{event:?} for {done:?}"),
            }
        }
    }

    /// Checks that the entries reconstructed from the events are the present ones.
    pub(crate) fn check_replica(&self, cluster: &Cluster) {
        let mut replica = ReplicaTracker::default();
        self.events.iter().for_each(|(_, event)| replica.note(event));
        let ReplicaTracker { entries: replica, is_complete } = replica;
        assert!(is_complete, "{:?} of M{} has not been told all that is there", self.id, self.member);
        let mut there = BTreeMap::new();
        let cache = cluster.cache();
        for member in cluster.members.iter().flatten() {
            let Some(topology) = member.node.topology(cache) else { continue };
            for segment in topology.current.segments_of(member.node.local()) {
                there.extend(entries(&member.container, segment, cluster.now));
            }
        }
        let there: BTreeMap<Bytes, Version> =
            there.into_iter().map(|(key, (_, version))| (key, Version(version))).collect();
        assert_eq!(replica, there, "{:?} of M{}", self.id, self.member);
    }
}

/// Returns a write of a value.
pub(crate) fn put(value: impl Into<Bytes>, lifespan: Option<Duration>) -> Action {
    let change = Change::Put { value: value.into(), lifetime: Lifetime { lifespan, max_idle: None } };
    Action::Write(Write { condition: consort_grid::Condition::Always, change, wants_previous: false })
}

pub(crate) fn remove() -> Action {
    let condition = consort_grid::Condition::Always;
    Action::Write(Write { condition, change: Change::Remove, wants_previous: false })
}
