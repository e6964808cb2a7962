//! The delivery of events to listening members, which are write owners without entries
//! (`docs/design/2026-11-grid.md`, Listeners).
//!
//! One of the write owners, the notifier, forwards events to listening members that are no write owners, so
//! that two members hold each delivered event. Events that may be lost are sent again when owners or
//! listening members change; a repeated one is recognised by its version.

use bytes::Bytes;
use consort_group::Address;

use crate::command::{Ack, Backup, Body, Effect, Notify, OperationId};
use crate::cx::Cx;
use crate::event::{EntryEvent, EventKind, Previous, Scope};
use crate::injected_bugs::InjectedBug;
use crate::operation::{Outcome, Written};
use crate::replica::events::listeners::Listeners;
use crate::replica::iterate::Iterations;
use crate::replica::store::Store;
use crate::replica::write::records::{WriteEffect, WriteRecord};
use crate::replica::{Installed, Shared};
use crate::{Entry, Interest, Segment, SegmentState, Stored, Version};

/// A removal of an absent entry is the removal of an expired entry.
fn kind_of(did: WriteEffect, outcome: Option<&Outcome>) -> EventKind {
    let was_present = matches!(outcome, Some(Outcome::Written(written)) if written.was_present);
    match (did, was_present) {
        (WriteEffect::Put | WriteEffect::CopiedPut, false) => EventKind::Created,
        (WriteEffect::Put | WriteEffect::CopiedPut, true) => EventKind::Modified,
        (_, true) => EventKind::Removed,
        (_, false) => EventKind::Expired,
    }
}

fn value_of(effect: &Effect) -> Option<Bytes> {
    match effect {
        Effect::Put(stored) => Some(stored.value.clone()),
        _ => None,
    }
}

fn previous_of(outcome: Option<&Outcome>) -> Option<Previous> {
    match outcome {
        Some(Outcome::Written(Written { previous: Some(stored), .. })) => {
            Some(Previous { value: stored.value.clone(), version: stored.version })
        }
        _ => None,
    }
}

fn copied(tell: &Notify) -> Notify {
    let value = tell.value.as_deref().map(Bytes::copy_from_slice);
    let previous =
        tell.previous.as_ref().map(|one| Previous { value: Bytes::copy_from_slice(&one.value), ..*one });
    Notify { key: Bytes::copy_from_slice(&tell.key), value, previous, ..tell.clone() }
}

impl Notify {
    fn of(backup: &Backup) -> Self {
        Self {
            segment: backup.segment,
            operation: backup.operation.clone(),
            key: backup.key.clone(),
            version: backup.version,
            kind: kind_of(WriteEffect::of(&backup.effect), backup.outcome.as_ref()),
            value: value_of(&backup.effect),
            previous: previous_of(backup.outcome.as_ref()),
            expected_acks: backup.expected_acks,
            outcome: None,
            skips_listeners: backup.skips_listeners,
        }
    }

    pub(crate) fn event(&self) -> EntryEvent {
        let Self { kind, key, value, previous, version, .. } = self.clone();
        EntryEvent { kind, key, value, previous, version }
    }
}

impl Installed {
    pub(crate) fn notifier(&self, segment: Segment) -> Option<&Address> {
        let primary = self.writes.primary(segment);
        self.writes.owners(segment).filter(|owner| Some(*owner) != primary).max().or(primary)
    }
}

impl Listeners {
    pub(crate) fn is_listened(&self, shared: &Shared) -> bool {
        !self.is_idle() || shared.has_listening()
    }

    pub(crate) fn tells_previous(&self, shared: &Shared) -> bool {
        let is_wanted = |(_, interest): &(Address, Interest)| *interest >= Interest::Previous;
        self.want_previous()
            || shared.installed.as_ref().is_some_and(|installed| installed.listening.iter().any(is_wanted))
    }

    /// `is_new`: this member has ordered the write.
    pub(crate) fn notify_local(
        &mut self,
        shared: &Shared,
        store: &Store,
        iterations: &mut Iterations,
        cx: &mut Cx,
        segment: Segment,
        record: &WriteRecord,
        is_new: bool,
    ) {
        let effect = store.effect_of(shared, cx.now, segment, record);
        let tell = Notify {
            segment,
            operation: record.operation.clone(),
            key: record.key.clone(),
            version: record.version,
            kind: kind_of(record.did, Some(&record.outcome)),
            value: value_of(&effect),
            previous: previous_of(Some(&record.outcome)),
            expected_acks: 0,
            outcome: None,
            skips_listeners: record.skips_listeners,
        };
        if is_new && !record.skips_listeners {
            self.offer(shared, iterations, cx, Scope::Local, &tell.event());
        }
        self.notify_local_listeners(shared, iterations, cx, tell);
    }

    /// The caller waits for all members notified here. The primary may have counted fewer: its own
    /// partition's topology of the same number may lack a member that it found stalled.
    pub(crate) fn forward(
        &mut self,
        shared: &Shared,
        store: &Store,
        iterations: &mut Iterations,
        cx: &mut Cx,
        backup: &mut Backup,
    ) {
        // A merge brings versions of another partition; listeners receive a gap event when the merge is over.
        if backup.effect == Effect::Nothing || backup.effect.is_copied() {
            return;
        }
        self.add_previous(shared, store, cx, backup);
        if !self.is_idle() {
            let tell = copied(&Notify::of(backup));
            self.notify_local_listeners(shared, iterations, cx, tell);
        }
        if shared.notifier(backup.segment) == Some(&cx.local) {
            let apart = shared.listening_apart(backup.segment);
            let owners = shared.write_owners(backup.segment).count() - usize::from(!store.is_backed());
            backup.expected_acks = backup.expected_acks.max((owners + apart.len()) as u16);
            let silent = Backup { sends_outcome: false, ..backup.clone() };
            self.notify_remote(shared, cx, &silent, &apart);
        }
    }

    /// The primary's topology of the same number may lack members that want the previous value. This member
    /// has received all earlier changes, so it knows the value.
    fn add_previous(&self, shared: &Shared, store: &Store, cx: &Cx, backup: &mut Backup) {
        if !self.tells_previous(shared) {
            return;
        }
        let kind = kind_of(WriteEffect::of(&backup.effect), backup.outcome.as_ref());
        let Some(Outcome::Written(Written { previous: previous @ None, .. })) = &mut backup.outcome else {
            return;
        };
        if kind != EventKind::Created {
            let is_before = |entry: &Entry| entry.version < backup.version && !entry.is_passive();
            let before = store.held(shared, backup.segment, &backup.key).filter(is_before);
            *previous = before.map(|entry| Stored::of(entry, cx.now));
        }
    }

    pub(crate) fn handle_notify(
        &mut self,
        shared: &Shared,
        iterations: &mut Iterations,
        cx: &mut Cx,
        from: &Address,
        topology: u32,
        mut tell: Notify,
    ) {
        let epoch = shared.topology().map_or(u32::MAX, |own| own.epoch(tell.segment));
        if topology < epoch || shared.notifier(tell.segment) != Some(from) {
            // The member responsible sends the event again.
            cx.counters.outdated += 1;
            return;
        }
        let OperationId { caller, number } = tell.operation.clone();
        let ack = Ack { number, epoch, expected_acks: tell.expected_acks, outcome: tell.outcome.take() };
        self.notify_local_listeners(shared, iterations, cx, copied(&tell));
        if caller == cx.local {
            let local = cx.local.clone();
            cx.calls.ack(&local, ack);
        } else {
            shared.send(cx, &caller, Body::Ack(ack));
        }
    }

    /// Handles a mark: the primary has sent all events of these segments from before `topology`. It comes
    /// from the primary, or from the notifier to members that are no write owners.
    pub(crate) fn handle_mark(
        &mut self,
        shared: &Shared,
        cx: &mut Cx,
        from: &Address,
        topology: u32,
        segments: &[Segment],
    ) {
        if !self.is_listened(shared) {
            return;
        }
        let Some(installed) = &shared.installed else { return };
        let is_current = |segment: &&Segment| topology >= installed.topology.epoch(**segment);
        let (mut ours, mut to_pass_on) = (Vec::new(), Vec::new());
        for segment in segments.iter().filter(is_current) {
            let is_owner = installed.writes.owners(*segment).any(|owner| *owner == cx.local);
            let is_primary = installed.writes.primary(*segment) == Some(from);
            if is_owner && is_primary || !is_owner && shared.notifier(*segment) == Some(from) {
                ours.push(*segment);
            }
            if is_owner && is_primary && shared.notifier(*segment) == Some(&cx.local) {
                to_pass_on.push(*segment);
            }
        }
        pass_on_marks(shared, cx, &to_pass_on);
        self.mark(shared, cx, topology, &ours);
    }

    pub(crate) fn mark_own(&mut self, shared: &Shared, cx: &mut Cx, segments: &[Segment]) {
        if !self.is_listened(shared) {
            return;
        }
        let is_alone = |segment: &&Segment| shared.notifier(**segment) == Some(&cx.local);
        let alone: Vec<Segment> = segments.iter().filter(is_alone).copied().collect();
        pass_on_marks(shared, cx, &alone);
        self.mark(shared, cx, shared.topology_id(), segments);
    }

    /// Reports listening members that have delayed a write of this member beyond `LISTENER_ACK_TIMEOUT`.
    pub(crate) fn detect_stalled_listeners(&self, shared: &Shared, cx: &mut Cx) {
        let Some(installed) = shared.installed.as_ref().filter(|one| !one.listening.is_empty()) else {
            return;
        };
        let mut deaf = std::collections::BTreeSet::new();
        for number in cx.calls.of(shared.id) {
            let (now, local) = (cx.now, cx.local.clone());
            let Some(call) = cx.calls.get_mut(number) else { continue };
            let is_late = now.since(call.began.max(installed.at)) >= LISTENER_ACK_TIMEOUT && call.is_write();
            let segment = call.segment;
            if !is_late || !call.knows(installed.topology.epoch(segment)) {
                continue;
            }
            // Overdue owners are detected elsewhere.
            let primary = installed.writes.primary(segment);
            let has_acked = |call: &crate::cx::calls::InFlight, owner: &Address| {
                Some(owner) == primary || *owner == local || call.is_acked_by(owner)
            };
            if installed.writes.owners(segment).all(|owner| has_acked(call, owner)) {
                let apart = installed.listening.iter().map(|(member, _)| member);
                let is_owner = |member: &Address| installed.writes.owners(segment).any(|one| one == member);
                deaf.extend(apart.filter(|one| !is_owner(one) && !call.is_acked_by(one)).cloned());
            }
        }
        for member in deaf {
            shared.tell_coordinator(cx, crate::command::ToCoordinator::Deaf(member));
        }
    }

    /// The last listening member sends the outcome to the caller.
    pub(crate) fn notify_remote(
        &self,
        shared: &Shared,
        cx: &mut Cx,
        backup: &Backup,
        apart: &[(Address, Interest)],
    ) {
        for (nth, (member, interest)) in apart.iter().enumerate() {
            let mut tell = Notify::of(backup);
            if *interest < Interest::Entries || tell.skips_listeners {
                tell.value = None;
            }
            if *interest < Interest::Previous || tell.skips_listeners {
                tell.previous = None;
            }
            if backup.sends_outcome && nth + 1 == apart.len() {
                tell.outcome.clone_from(&backup.outcome);
            }
            shared.send(cx, member, Body::Notify(tell));
        }
    }

    pub(crate) fn invalidate(
        &mut self,
        shared: &Shared,
        iterations: &mut Iterations,
        cx: &mut Cx,
        segment: Segment,
        key: &[u8],
        effect: &Effect,
    ) {
        match effect {
            Effect::Invalidate if shared.container.state(segment) == SegmentState::Owned => {
                let gone = shared.container.remove(segment, key, Version::NONE, cx.now).previous;
                if let Some(entry) = gone {
                    self.tell_gone(
                        shared,
                        iterations,
                        cx,
                        EventKind::Removed,
                        Bytes::copy_from_slice(key),
                        entry,
                    );
                }
            }
            Effect::InvalidateAll if !cx.has(InjectedBug::ClearIgnored) => {
                self.clear_here(shared, iterations, cx);
            }
            _ => {}
        }
    }

    pub(crate) fn clear_here(&mut self, shared: &Shared, iterations: &mut Iterations, cx: &mut Cx) {
        for segment in shared.config.all_segments() {
            shared.container.clear_segment(segment);
        }
        // Listeners receive a gap and no event of each entry, because there may be millions.
        self.interrupt_listeners(shared, iterations, cx, false);
    }

    /// The entry is lost, not removed here.
    pub(crate) fn tell_gone(
        &mut self,
        shared: &Shared,
        iterations: &mut Iterations,
        cx: &mut Cx,
        kind: EventKind,
        key: Bytes,
        entry: Entry,
    ) {
        if !self.is_idle() {
            let version = entry.version;
            let previous = (!entry.is_passive()).then_some(Previous { value: entry.value, version });
            self.offer(
                shared,
                iterations,
                cx,
                Scope::Local,
                &EntryEvent { kind, key, value: None, previous, version },
            );
        }
    }
}

impl Shared {
    pub(crate) fn has_listening(&self) -> bool {
        self.installed.as_ref().is_some_and(|installed| !installed.listening.is_empty())
    }

    pub(crate) fn listening_apart(&self, segment: Segment) -> Vec<(Address, Interest)> {
        let Some(installed) = self.installed.as_ref().filter(|one| !one.listening.is_empty()) else {
            return Vec::new();
        };
        let is_apart = |(member, _): &&(Address, Interest)| {
            !installed.writes.owners(segment).any(|owner| owner == member)
        };
        installed.listening.iter().filter(is_apart).cloned().collect()
    }

    /// The notifier is a backup, or the primary if there is none, throughout an epoch, in which the owners'
    /// order may change.
    fn notifier(&self, segment: Segment) -> Option<&Address> {
        self.installed.as_ref()?.notifier(segment)
    }
}

fn pass_on_marks(shared: &Shared, cx: &mut Cx, segments: &[Segment]) {
    let Some(installed) = shared.installed.as_ref().filter(|_| !segments.is_empty()) else { return };
    for (member, _) in &installed.listening {
        let is_apart = |segment: &&Segment| !installed.writes.owners(**segment).any(|one| one == member);
        let apart: Vec<Segment> = segments.iter().filter(is_apart).copied().collect();
        if !apart.is_empty() {
            shared.send(cx, member, Body::Settled(apart));
        }
    }
}

/// After all owners have acknowledged a write. Stopped members leave the view after many times as long.
const LISTENER_ACK_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

pub(crate) fn expired(version: Version, previous: Option<Stored>) -> Outcome {
    Outcome::Written(Written { is_done: true, was_present: false, version, previous })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use consort_group::Uuid;

    use super::*;
    use crate::replica::CacheReplica;
    use crate::wire::FrameReader;
    use crate::{CacheConfig, ConsistentHash, Container, ContainerSettings, Lifetime, Topology};

    const SEGMENT: Segment = Segment(0);

    fn member(n: u64) -> Address {
        Address::Uuid(Uuid { most: 0, least: n })
    }

    fn backup(count: u64, value: Option<&'static [u8]>, was_present: bool) -> Backup {
        let version = Version::new(1, count);
        let (age, idle) = Default::default();
        let put = |value| Stored {
            value: Bytes::from_static(value),
            version,
            lifetime: Lifetime::FOREVER,
            age,
            idle,
        };
        let written = Written { is_done: true, was_present, version, previous: None };
        Backup {
            segment: SEGMENT,
            operation: OperationId { caller: member(4), number: count },
            finished: 1,
            key: Bytes::from_static(b"k"),
            version,
            effect: value.map_or(Effect::Remove, |value| Effect::Put(put(value))),
            expected_acks: 1,
            sends_outcome: true,
            outcome: Some(Outcome::Written(written)),
            skips_listeners: false,
        }
    }

    #[test]
    fn forwarded_event_has_the_previous_value_if_the_primary_sent_none() {
        let hash = ConsistentHash::new(vec![member(1).into(), member(2).into()], 2, 1);
        let primary = hash.primary(SEGMENT).expect("a primary").clone();
        let local = hash.owners(SEGMENT).find(|owner| **owner != primary).expect("another owner").clone();
        let mut topology = Topology::first(1, member(1).into(), 2, 1);
        topology.current = hash;
        let members = (1..4).map(|n| crate::topology::Membership::new(member(n).into(), 1));
        topology.members = members.collect();
        topology.listen(&member(3), Interest::Previous);
        let settings = ContainerSettings { segment_count: 1, bound: None, is_backed: false, is_shared: true };
        let config = CacheConfig { segments: 1, ..CacheConfig::new("heard") };
        let mut cache =
            CacheReplica::new(config, local.clone().into(), Arc::new(Container::new(&settings, 1)));
        let mut cx = Cx::new(local);
        cache.install(&mut cx, topology);
        for (count, value, was_present) in [
            (1, Some(&b"one"[..]), false),
            (2, Some(b"two"), true),
            (3, None, true),
            (4, Some(b"three"), false),
            (5, None, false),
        ] {
            cache.handle_backup(&mut cx, &primary, 1, backup(count, value, was_present));
        }
        let mut told = Vec::new();
        while let Some(frame) = cx.next_frame() {
            let mut reader = FrameReader::new(frame.bytes).expect("a frame");
            while let Some(command) = reader.next().expect("a command") {
                if let Body::Notify(tell) = command.body {
                    assert_eq!(frame.dest, member(3));
                    told.push((tell.kind, tell.previous.map(|one| (one.value, one.version))));
                }
            }
        }
        let before =
            |value: &'static str, count| Some((Bytes::from_static(value.as_bytes()), Version::new(1, count)));
        assert_eq!(
            told,
            [
                (EventKind::Created, None),
                (EventKind::Modified, before("one", 1)),
                (EventKind::Removed, before("two", 2)),
                (EventKind::Created, None),
                (EventKind::Expired, before("three", 4)),
            ]
        );
    }
}
