//! The merge of partitions (`docs/design/2026-11-grid.md`, Partitions). A segment's primary collects the
//! other partitions' entries, decides key by key ([`crate::merge`]), and applies changes as ordinary writes,
//! so that all owners agree.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use consort_group::{Address, Time};

use crate::command::{Backup, Body, Chunk, Effect, OperationId, Pull, ToCoordinator};
use crate::config::MergePolicy;
use crate::container::{ChunkLimits, Cursor};
use crate::cx::Cx;
use crate::history::{Lineage, SegmentHistory};
use crate::injected_bugs::InjectedBug;
use crate::merge::{KeyState, PartitionSide, Resolution, SideId, decide};
use crate::operation::{Change, Condition, Outcome, Stored, Write, Written};
use crate::replica::store::Store;
use crate::replica::store::loads::{AwaitingLoad, LOAD_KEYS};
use crate::replica::transfer::state_consumer::PULL_AGAIN_AFTER;
use crate::replica::write::primary::Origin;
use crate::replica::write::records::{WriteEffect, WriteRecord};
use crate::replica::{CacheReplica, Installed, Shared};
use crate::{Entry, PartitionHandling, Segment, Topology, Version};

pub(crate) struct PreMergeState {
    since: u32,
    pub(crate) topology: Topology,
    /// Segments whose state transfer was incomplete. The member knows of writes there that it lacks, so its
    /// entries would count as newer than those writes.
    partial: BTreeSet<Segment>,
}

#[derive(Default)]
pub(crate) struct Merge {
    todo: VecDeque<Segment>,
    active: BTreeMap<Segment, Vec<PartitionEntries>>,
    loading: BTreeSet<Segment>,
    done: BTreeMap<Segment, BTreeSet<SideId>>,
}

impl Merge {
    pub(crate) fn is_active(&self) -> bool {
        !self.todo.is_empty() || !self.active.is_empty()
    }
}

struct PartitionEntries {
    side: PartitionSide,
    givers: VecDeque<Address>,
    cursor: Option<(u64, u64)>,
    asked: Time,
    /// The entries age while the primary waits for other partitions.
    entries: BTreeMap<Bytes, Entry>,
    history: Option<SegmentHistory>,
}

impl PartitionEntries {
    fn is_complete(&self) -> bool {
        self.history.is_some() || self.givers.is_empty()
    }

    fn begin_again(&mut self) {
        self.cursor = None;
        self.entries.clear();
    }

    fn standing(&self, key: &[u8], now: Time) -> KeyState {
        let removed = || self.history.as_ref()?.removals.get(key).copied();
        match self.entries.get(key) {
            // A put that has expired counts as removed by its caller.
            Some(entry) if entry.is_expired(now) && !entry.is_idle(now) => KeyState::Removed(entry.version),
            Some(entry) => KeyState::Entry(Stored::of(entry.clone(), now)),
            None => removed().map_or(KeyState::Nothing, KeyState::Removed),
        }
    }
}

impl Shared {
    pub(crate) fn merges(&self) -> bool {
        self.config.partitions == PartitionHandling::AllowReadWrites
    }

    pub(crate) fn note_put(&mut self, segment: Segment, key: &[u8], version: Version) {
        if self.merges() {
            self.state(segment).history.note_put(key, version);
        }
    }

    pub(crate) fn note_removal(&mut self, segment: Segment, key: &[u8], version: Version) {
        if !self.merges() {
            return;
        }
        let is_parted =
            self.frozen.is_some() || self.topology().is_some_and(|topology| topology.split_points.len() > 1);
        let history = &mut self.state(segment).history;
        if is_parted {
            history.note_removal(key, version);
        } else {
            history.note(version);
        }
    }

    /// A merged partition's writes count as seen when all of the segment is merged.
    pub(crate) fn note_copied(&mut self, segment: Segment, key: &[u8], version: Version) {
        if self.merges() {
            self.state(segment).history.note_present(key, version);
        }
    }

    pub(crate) fn note_copied_removal(&mut self, segment: Segment, key: &[u8], version: Version) {
        if self.merges() {
            self.state(segment).history.note_absent(key, version);
        }
    }

    pub(crate) fn history_of(&self, segment: Segment) -> Option<SegmentHistory> {
        self.merges().then(|| self.segments[usize::from(segment.0)].history.clone())
    }

    pub(crate) fn begin_lineages(&mut self, topology: &Topology, installed: u32) {
        if !self.merges() || self.frozen.is_some() {
            return;
        }
        let is_new = |lineage: &&Lineage| lineage.id > installed;
        for segment in self.config.all_segments() {
            let history = &self.segments[usize::from(segment.0)].history;
            // A member that has dropped the segment knows no lineage, and may become an owner again.
            let knows_none = history.seen.is_empty();
            if knows_none || history.is_empty() {
                // Of the writes before this incarnation, it knows the entries of the container and those that have expired there
                // since.
                let newest = self.newest_version(segment).max(history.older);
                self.state(segment).history.restore(&topology.lineages, newest);
            }
            self.state(segment)
                .history
                .begin(topology.lineages.iter().filter(|lineage| knows_none || is_new(lineage)));
            if topology.lineages.iter().any(|lineage| is_new(&lineage)) {
                self.note_unfinished(segment);
            }
        }
    }

    /// Records as absent the keys of writes that other partitions may have missed: their entries must not
    /// return if the key was removed or the put value has expired.
    fn note_unfinished(&mut self, segment: Segment) {
        let records = self.segments[usize::from(segment.0)].records.iter();
        let written = records.filter(|record| !matches!(record.did, WriteEffect::Clear));
        let written: Vec<_> = written.map(|record| (record.key.clone(), record.version)).collect();
        for (key, version) in written {
            if self.container.version_of(segment, &key) < version {
                self.state(segment).history.note_absent(&key, version);
            }
        }
    }

    fn newest_version(&self, segment: Segment) -> Version {
        let all = ChunkLimits { entries_max: usize::MAX, bytes_max: usize::MAX };
        let mut newest = Version::NONE;
        // A segment that is absent has no entries.
        let _ = self.container.visit(segment, Cursor::START, all, Time::ZERO, |visited| {
            newest = newest.max(visited.version());
        });
        newest
    }

    pub(crate) fn thaw(&mut self, topology: &Topology) {
        let is_over =
            |frozen: &PreMergeState| !topology.merging.iter().any(|side| side.since == frozen.since);
        if self.frozen.as_ref().is_some_and(is_over) {
            self.frozen = None;
        }
    }

    /// A segment of incomplete state transfer is not kept: its sender has all of it, in another partition.
    pub(crate) fn is_kept_for(&self, side: SideId, segment: Segment) -> bool {
        let frozen = self.frozen.as_ref().filter(|frozen| frozen.since == side.0);
        frozen.is_some_and(|frozen| !frozen.partial.contains(&segment))
    }

    /// The receivers may become primary, or send the segment to new owners, before the next merge.
    fn send_history(&self, cx: &mut Cx, segment: Segment, history: SegmentHistory) {
        let owners: Vec<Address> = self.write_owners(segment).cloned().collect();
        let local = cx.local.clone();
        for owner in owners.iter().filter(|owner| **owner != local) {
            self.send(cx, owner, Body::HistoryUpdate { segment, history: history.clone() });
        }
    }

    /// Sends histories again when lineages begin, a merge is over, or the owners change. Owners exchange them
    /// through the primary, because an earlier update may be lost with a link and its sender. A member that
    /// sent a segment to a new owner may not have received the update yet.
    pub(crate) fn tell_known_again(&self, cx: &mut Cx, before: Option<&Installed>) {
        let (Some(before), Some(installed)) = (before, &self.installed) else { return };
        let is_same = before.topology.lineages.last() == installed.topology.lineages.last()
            && before.topology.merging == installed.topology.merging;
        if !self.merges() || self.is_invalidation() {
            return;
        }
        for segment in self.config.all_segments() {
            let history = &self.segments[usize::from(segment.0)].history;
            if is_same && before.writes.owners(segment).eq(installed.writes.owners(segment)) {
                continue;
            }
            if history.is_empty() || !self.write_owners(segment).any(|owner| *owner == cx.local) {
                continue;
            }
            match installed.writes.primary(segment) {
                Some(primary) if *primary == cx.local => self.send_history(cx, segment, history.seen_only()),
                Some(primary) => {
                    self.send(cx, primary, Body::HistoryUpdate { segment, history: history.seen_only() });
                }
                None => {}
            }
        }
    }

    /// The primary may have missed another owner's history.
    pub(crate) fn handle_history_update(
        &mut self,
        from: &Address,
        topology: u32,
        segment: Segment,
        history: &SegmentHistory,
    ) {
        let Some(installed) = self.installed.as_ref().filter(|_| self.frozen.is_none()) else { return };
        // Since an older topology, other members may have become the owners that receive changes.
        let is_current = topology >= installed.topology.primary_term(segment);
        let is_owner = |member: &Address| installed.writes.owners(segment).any(|owner| owner == member);
        let primary = installed.writes.primary(segment);
        let is_of_primary = primary == Some(from) || primary == Some(&self.member.address);
        if is_current && is_of_primary && is_owner(from) && is_owner(&self.member.address) && self.merges() {
            self.state(segment).history.learn(history);
        }
    }
}

impl CacheReplica {
    /// The other partition merges this state.
    pub(crate) fn freeze(&mut self, cx: &mut Cx, since: u32) {
        let Some(installed) = self.shared.installed.take() else { return };
        let frozen = match self.shared.frozen.take() {
            Some(frozen) => PreMergeState { since, ..frozen },
            None => {
                let partial = self.transfer.lacking(&installed.topology);
                PreMergeState { since, topology: installed.topology, partial }
            }
        };
        self.shared.frozen = Some(frozen);
        for segment in (0..self.shared.config.segments).map(Segment) {
            self.shared.container.set_readable(segment, false);
            let state = self.shared.state(segment);
            *state = crate::replica::SegmentState {
                history: std::mem::take(&mut state.history),
                ..Default::default()
            };
        }
        self.transfer = Default::default();
        self.merge = Merge::default();
        self.listeners.begin_listening_anew(&self.shared, &mut self.iterations, cx);
        self.shared.abandon_writes(cx);
    }

    pub(crate) fn resume_merge(&mut self, cx: &mut Cx) {
        loop {
            let is_ready =
                |collections: &[PartitionEntries]| collections.iter().all(PartitionEntries::is_complete);
            let ready = self.merge.active.iter().filter(|(_, collections)| is_ready(collections));
            let ready: Vec<Segment> = ready.map(|(segment, _)| *segment).collect();
            for segment in ready {
                self.merge_segment(cx, segment);
            }
            if self.merge.active.len() >= cx.pulls_max {
                return;
            }
            let Some(segment) = self.merge.todo.pop_front() else { break };
            self.merge.begin_merging(&self.shared, cx, segment);
        }
        if self.merge.active.is_empty() {
            self.shared.tell_coordinator(cx, ToCoordinator::Merged);
        }
    }

    /// Changes beyond the limit of concurrent operations wait.
    fn merge_segment(&mut self, cx: &mut Cx, segment: Segment) {
        let is_ready = self.shared.state(segment).is_open() && self.shared.is_primary(&cx.local, segment);
        if !is_ready || self.merge.loading.contains(&segment) {
            return;
        }
        let Some(mut collections) = self.merge.active.remove(&segment) else { return };
        let mut keys: BTreeSet<Bytes> = BTreeSet::new();
        for collection in &collections {
            keys.extend(collection.entries.keys().cloned());
            keys.extend(collection.history.iter().flat_map(|history| history.removals.keys().cloned()));
        }
        let mut keys = keys.into_iter();
        while let Some(key) = keys.next() {
            if self.store.lacks_value(&self.shared, segment, &key) {
                let lacking = std::iter::once(key)
                    .chain(keys)
                    .filter(|key| self.store.lacks_value(&self.shared, segment, key));
                let version = |key: &Bytes| self.shared.container.version_of(segment, key);
                let asked =
                    lacking.take(LOAD_KEYS).map(|key| ((segment, key.clone()), version(&key))).collect();
                self.merge.active.insert(segment, collections);
                self.merge.loading.insert(segment);
                return self.store.load(&self.shared, cx, asked, AwaitingLoad::Merge(segment));
            }
            if cx.calls.is_full() {
                self.merge.active.insert(segment, collections);
                return;
            }
            self.merge_key(cx, segment, &key, &collections);
            for collection in &mut collections {
                collection.entries.remove(&key);
                let Some(history) = &mut collection.history else { continue };
                let Some(version) = history.removals.remove(&key) else { continue };
                let own = &mut self.shared.segments[usize::from(segment.0)].history;
                // If both partitions removed the key, a member that has seen their removal need not have seen ours.
                let is_over = own.removals.get(&key).is_none_or(|removed| history.has_seen(*removed, own));
                if is_over && self.shared.container.peek(segment, &key).is_none() {
                    // A member that split from that partition earlier may still have the removed entry.
                    own.note_absent(&key, version);
                }
            }
        }
        if !cx.has(InjectedBug::SeenForgotten) {
            // This partition has seen all writes that the merged partitions have seen, including those of partitions that rejoin
            // later.
            for history in collections.iter().filter_map(|one| one.history.as_ref()) {
                self.shared.state(segment).history.learn(history);
            }
        }
        let history = self.shared.state(segment).history.clone();
        self.shared.send_history(cx, segment, history);
        let sides = collections.iter().map(|collection| collection.side.id());
        self.merge.done.entry(segment).or_default().extend(sides);
    }

    fn merge_key(&mut self, cx: &mut Cx, segment: Segment, key: &Bytes, collections: &[PartitionEntries]) {
        let history = &self.shared.segments[usize::from(segment.0)].history;
        let own = match self.store.kept(&self.shared, cx.now, segment, key) {
            Some(entry) => KeyState::Entry(Stored::of(entry, cx.now)),
            // An expired entry counts as removed by its caller: an older entry must not return.
            None => {
                let expired = self.shared.container.peek(segment, key).map(|entry| entry.version);
                let gone = history.removals.get(key).copied().max(expired);
                gone.map_or(KeyState::Nothing, KeyState::Removed)
            }
        };
        let written = match &own {
            KeyState::Entry(stored) => stored.version.topology(),
            KeyState::Removed(version) => version.topology(),
            KeyState::Nothing => 0,
        };
        // An entry written since a partition has rejoined is newer than the entries of that partition.
        let sides: Vec<&PartitionEntries> =
            collections.iter().filter(|one| one.side.since > written).collect();
        if sides.is_empty() {
            return;
        }
        let theirs: Vec<KeyState> = sides.iter().map(|one| one.standing(key, cx.now)).collect();
        let standings: Vec<&KeyState> = std::iter::once(&own).chain(&theirs).collect();
        let nothing = SegmentHistory::default();
        let history_of = |side: usize| match side.checked_sub(1) {
            None => history,
            Some(at) => sides[at].history.as_ref().unwrap_or(&nothing),
        };
        let has_seen = |side: usize, other: usize| {
            history_of(side).has_seen(standings[other].version(), history_of(other))
        };
        let mut policy = &self.shared.config.merge;
        if cx.has(InjectedBug::PolicyIgnored) {
            policy = &MergePolicy::PreferredAlways;
        }
        let custom = match policy {
            MergePolicy::Custom(name) => cx.merges.get(name).cloned(),
            _ => None,
        };
        let change = match decide(key, &standings, has_seen, policy, custom.as_deref()) {
            Resolution::Stays => return,
            Resolution::Copy(side) => match standings[side].clone() {
                KeyState::Entry(Stored { value, lifetime, .. }) if cx.has(InjectedBug::CopiedAnew) => {
                    Change::Put { value, lifetime }
                }
                standing => return self.copy(cx, segment, key, standing),
            },
            Resolution::Put(value, lifetime) => Change::Put { value, lifetime },
            Resolution::Remove if !matches!(own, KeyState::Entry(_)) => {
                let version = self.shared.next_version(segment);
                self.shared.state(segment).history.note(version);
                return self.copy(cx, segment, key, KeyState::Removed(version));
            }
            Resolution::Remove => Change::Remove,
        };
        let number = self.shared.open_own(cx, segment, key);
        let operation = OperationId { caller: cx.local.clone(), number };
        let write = Write { condition: Condition::Always, change, wants_previous: false };
        self.execute(cx, segment, operation, key.clone(), write, Origin::Merge);
    }

    /// Copies an entry or a removal with its own version. A new version would count as this partition's
    /// change when other partitions rejoin later.
    fn copy(&mut self, cx: &mut Cx, segment: Segment, key: &Bytes, standing: KeyState) {
        let version = standing.version();
        let effect = match standing {
            KeyState::Entry(stored) => Effect::Copy(stored),
            KeyState::Removed(_) | KeyState::Nothing => Effect::CopyRemoval,
        };
        let operation =
            OperationId { caller: cx.local.clone(), number: self.shared.open_own(cx, segment, key) };
        self.store.apply(&mut self.shared, cx, segment, key, version, effect.clone());
        let written = Written { is_done: true, was_present: false, version, previous: None };
        let outcome = Outcome::Written(written);
        let record = WriteRecord {
            operation: operation.clone(),
            key: key.clone(),
            version,
            did: WriteEffect::of(&effect),
            outcome: outcome.clone(),
            // Silent also when the record is sent again: listeners receive a gap event when the merge is over.
            skips_listeners: true,
        };
        self.shared.state(segment).records.push(record, &cx.watermarks);
        let backup = Backup {
            segment,
            finished: cx.watermarks.of(&operation.caller),
            operation,
            key: key.clone(),
            version,
            effect,
            expected_acks: 0,
            sends_outcome: false,
            outcome: Some(outcome),
            skips_listeners: true,
        };
        self.back_up(cx, backup);
    }
}

impl Merge {
    pub(crate) fn plan_merge(&mut self, shared: &Shared, cx: &Cx) -> bool {
        let Some(installed) = &shared.installed else { return false };
        let topology = &installed.topology;
        if topology.merging.is_empty() {
            *self = Self::default();
            return false;
        }
        self.todo.clear();
        for segment in installed.writes.segments() {
            if installed.writes.primary(segment) != Some(&cx.local) {
                self.active.remove(&segment);
                self.done.remove(&segment);
                continue;
            }
            let done = self.done.entry(segment).or_default();
            let left = topology.merging.iter().filter(|side| !done.contains(&side.id()));
            let left: Vec<SideId> = left.map(PartitionSide::id).collect();
            match self.active.get_mut(&segment) {
                Some(active) if active.iter().map(|one| one.side.id()).eq(left.iter().copied()) => {
                    for collection in active.iter_mut().filter(|one| !one.is_complete()) {
                        let first = collection.givers.front().cloned();
                        collection.givers.retain(|giver| topology.contains(giver));
                        if collection.givers.front() != first.as_ref() {
                            collection.begin_again();
                            collection.asked = Time::ZERO;
                        }
                    }
                }
                _ => {
                    self.active.remove(&segment);
                    if !left.is_empty() {
                        self.todo.push_back(segment);
                    }
                }
            }
        }
        true
    }

    pub(crate) fn tick_merge(&mut self, shared: &Shared, cx: &mut Cx) -> bool {
        if shared.topology().is_none_or(|topology| topology.merging.is_empty()) {
            return false;
        }
        // The requests to the store may have been dropped.
        self.loading.clear();
        let mut asks = Vec::new();
        for (segment, collections) in &mut self.active {
            for collection in collections.iter_mut().filter(|one| !one.is_complete()) {
                if cx.now.since(collection.asked) >= PULL_AGAIN_AFTER {
                    // Another member of the partition may respond.
                    collection.begin_again();
                    collection.givers.rotate_left(1);
                    collection.asked = cx.now;
                    asks.push((*segment, collection.side.id()));
                }
            }
        }
        for (segment, side) in asks {
            self.collect(shared, cx, segment, side);
        }
        true
    }

    fn begin_merging(&mut self, shared: &Shared, cx: &mut Cx, segment: Segment) {
        let Some(topology) = shared.topology() else { return };
        let done = self.done.get(&segment);
        let left = topology.merging.iter().filter(|side| done.is_none_or(|done| !done.contains(&side.id())));
        let collections: Vec<PartitionEntries> = left
            .map(|side| PartitionEntries {
                givers: side.givers(segment).filter(|giver| topology.contains(giver)).cloned().collect(),
                side: side.clone(),
                cursor: None,
                asked: cx.now,
                entries: BTreeMap::new(),
                history: None,
            })
            .collect();
        let sides: Vec<SideId> = collections.iter().map(|one| one.side.id()).collect();
        self.active.insert(segment, collections);
        for side in sides {
            self.collect(shared, cx, segment, side);
        }
    }

    fn collection(&mut self, segment: Segment, side: SideId) -> Option<&mut PartitionEntries> {
        self.active.get_mut(&segment)?.iter_mut().find(|one| one.side.id() == side)
    }

    fn collect(&mut self, shared: &Shared, cx: &mut Cx, segment: Segment, side: SideId) {
        let bytes_max = cx.chunk_bytes;
        let Some(collection) = self.collection(segment, side).filter(|one| !one.is_complete()) else {
            return;
        };
        let Some(giver) = collection.givers.front().cloned() else { return };
        let cursor = collection.cursor;
        let pull = Pull { rebalance: 0, side: Some(side), segment, cursor, bytes_max };
        shared.send(cx, &giver, Body::Pull(pull));
    }

    pub(crate) fn handle_collected(
        &mut self,
        shared: &Shared,
        cx: &mut Cx,
        from: &Address,
        side: SideId,
        chunk: Chunk,
    ) -> bool {
        let now = cx.now;
        let Chunk { segment, cursor, entries, next, history, is_refused, .. } = chunk;
        let Some(collection) = self.collection(segment, side).filter(|one| !one.is_complete()) else {
            return false;
        };
        if collection.givers.front() != Some(from) {
            return false;
        }
        if is_refused {
            collection.begin_again();
            collection.givers.pop_front();
        } else if cursor != collection.cursor {
            // The chunk responds to a request from before all requests were repeated.
            return false;
        } else {
            collection.entries.extend(entries.parts().map(|(key, stored)| (key, stored.into_entry(now))));
            collection.cursor = next;
            collection.history = history.filter(|_| next.is_none());
        }
        collection.asked = now;
        let is_complete = collection.is_complete();
        if !is_complete {
            self.collect(shared, cx, segment, side);
        }
        is_complete
    }

    pub(crate) fn merge_loaded(&mut self, segment: Segment) {
        self.loading.remove(&segment);
    }
}

impl Store {
    fn lacks_value(&self, shared: &Shared, segment: Segment, key: &[u8]) -> bool {
        let Some(persistence) = &self.persistence else { return false };
        let Some(entry) = shared.container.peek(segment, key).filter(|entry| entry.is_passive()) else {
            return false;
        };
        let place = (segment, Bytes::copy_from_slice(key));
        persistence.value_of(&place, entry.version).is_none()
    }
}
