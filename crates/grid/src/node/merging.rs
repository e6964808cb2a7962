//! Merging what several sides of a partition have: the primary of a segment collects the other sides' entries, decides
//! key by key ([`crate::merge`]), and writes what is to change as it writes anything. So all owners agree, and clients go
//! on meanwhile; what they write is newer than all sides.
//!
//! The members of the other sides take part from the beginning and own nothing. What they had stays as it was, unread,
//! until the coordinator has heard that everything is merged.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use consort_group::{Address, Time};

use super::activation::{LOAD_KEYS, Waiting};
use super::cache::Cache;
use super::cx::Cx;
use super::records::{Did, Record};
use super::transfer::PULL_AGAIN_AFTER;
use crate::command::{Backup, Body, Chunk, Effect, OperationId, Pull, ToCoordinator};
use crate::container::{ChunkLimits, Cursor};
use crate::merge::{MergePolicy, Past, Side, SideId, Standing, Verdict, common_until, decide, parted_from};
use crate::operation::{Change, Condition, Outcome, Stored, Write, Written};
use crate::planted::Planted;
use crate::{Flags, PartitionHandling, Segment, Topology, Version};

/// What a member that has come back had before.
pub(crate) struct Frozen {
    /// The id of the topology with which it has come back.
    since: u32,
    pub(crate) topology: Topology,
}

/// What a primary merges.
#[derive(Default)]
pub(crate) struct Merge {
    todo: VecDeque<Segment>,
    active: BTreeMap<Segment, Vec<Collection>>,
    /// Segments that wait for values of our own that only the store has.
    loading: BTreeSet<Segment>,
    /// Sides that are merged.
    done: BTreeMap<Segment, BTreeSet<SideId>>,
}

impl Merge {
    pub(crate) fn is_active(&self) -> bool {
        !self.todo.is_empty() || !self.active.is_empty()
    }
}

/// A segment's entries of one side.
struct Collection {
    side: Side,
    /// Whom to ask: the first, and if that has nothing, the next.
    givers: VecDeque<Address>,
    cursor: Option<(u64, u64)>,
    asked: Time,
    entries: BTreeMap<Bytes, Stored>,
    /// What the side remembers, once everything has come.
    past: Option<Past>,
    /// The newest of what is merged of it that is from before it has parted.
    common: Version,
}

impl Collection {
    fn is_complete(&self) -> bool {
        self.past.is_some() || self.givers.is_empty()
    }

    fn begin_again(&mut self) {
        self.cursor = None;
        self.entries.clear();
    }

    fn standing(&self, key: &[u8]) -> Standing {
        let removed = || self.past.as_ref()?.removals.get(key).copied();
        match self.entries.get(key) {
            Some(stored) => Standing::Entry(stored.clone()),
            None => removed().map_or(Standing::Nothing, Standing::Removed),
        }
    }
}

impl Cache {
    /// Whether there may be a merge.
    fn merges(&self) -> bool {
        self.config.partitions == PartitionHandling::AllowReadWrites
    }

    pub(super) fn note_put(&mut self, segment: Segment, key: &[u8], version: Version) {
        if self.merges() {
            self.state(segment).past.note_put(key, version);
        }
    }

    pub(super) fn note_removal(&mut self, segment: Segment, key: &[u8], version: Version) {
        if !self.merges() {
            return;
        }
        let is_parted =
            self.frozen.is_some() || self.topology().is_some_and(|topology| topology.partings.len() > 1);
        let past = &mut self.state(segment).past;
        if is_parted {
            past.note_removal(key, version);
        } else {
            past.note(version);
        }
    }

    /// Whether a version that a side which is being merged had is from before that side has parted.
    fn is_common(&self, version: Version) -> bool {
        let Some(topology) = self.topology() else { return false };
        let sides = topology.merging.iter();
        let parted = sides.filter_map(|side| common_until(&side.partings, &topology.partings)).min();
        parted.is_none_or(|parted| version.topology() < parted)
    }

    /// As another owner, of an entry that a side had which is being merged.
    pub(super) fn note_copied(&mut self, segment: Segment, key: &[u8], version: Version) {
        if self.is_common(version) {
            self.note_put(segment, key, version);
        }
    }

    /// For whoever is to own the segment, too.
    pub(super) fn past_of(&self, segment: Segment) -> Option<Past> {
        self.merges().then(|| self.segments[usize::from(segment.0)].past.clone())
    }

    pub(super) fn mark_partings(&mut self, topology: &Topology, installed: u32) {
        if !self.merges() || self.frozen.is_some() {
            return;
        }
        for segment in self.config.all_segments() {
            // Of what was there before this life it knows what the container has.
            if self.segments[usize::from(segment.0)].past.seen.is_none() {
                let seen = self.newest_version(segment);
                self.state(segment).past.note(seen);
            }
            self.state(segment).past.mark(topology, installed);
            if topology.partings.iter().any(|parting| parting.id > installed) {
                self.note_unfinished_removals(segment);
            }
        }
    }

    /// Removals from before a parting that members which have parted may not have seen: what they still have of those keys
    /// must not come back.
    fn note_unfinished_removals(&mut self, segment: Segment) {
        let records = self.segments[usize::from(segment.0)].records.iter();
        let removals = records.filter(|record| record.did == Did::Remove);
        let removals: Vec<_> = removals.map(|record| (record.key.clone(), record.version)).collect();
        for (key, version) in removals {
            if self.container.version_of(segment, &key) < version {
                self.state(segment).past.note_removal(&key, version);
            }
        }
    }

    fn newest_version(&self, segment: Segment) -> Version {
        let all = ChunkLimits { entries_max: usize::MAX, bytes_max: usize::MAX };
        let mut newest = Version::NONE;
        // A segment that is absent has none.
        let _ = self.container.visit(segment, Cursor::START, all, Time::ZERO, |visited| {
            newest = newest.max(visited.version());
        });
        newest
    }

    /// This member has gone on while others have, too. They take it in, and merge what it has.
    pub(super) fn freeze(&mut self, cx: &mut Cx, since: u32) {
        let Some(installed) = self.installed.take() else { return };
        let topology = self.frozen.take().map_or(installed.topology, |frozen| frozen.topology);
        self.frozen = Some(Frozen { since, topology });
        for segment in (0..self.config.segments).map(Segment) {
            self.container.set_readable(segment, false);
            let state = self.state(segment);
            *state =
                super::cache::SegmentState { past: std::mem::take(&mut state.past), ..Default::default() };
        }
        self.transfer = Default::default();
        self.merge = Merge::default();
        self.begin_listening_anew(cx);
        self.give_up_writes(cx);
    }

    /// What was kept for a merge is given up when that is over.
    pub(super) fn thaw(&mut self, topology: &Topology) {
        let is_over = |frozen: &Frozen| !topology.merging.iter().any(|side| side.since == frozen.since);
        if self.frozen.as_ref().is_some_and(is_over) {
            self.frozen = None;
        }
    }

    /// With a new topology: which segments this member has to merge.
    pub(super) fn plan_merge(&mut self, cx: &mut Cx) {
        let Some(installed) = &self.installed else { return };
        let topology = &installed.topology;
        if topology.merging.is_empty() {
            self.merge = Merge::default();
            return;
        }
        let merge = &mut self.merge;
        merge.todo.clear();
        for segment in installed.writes.segments() {
            if installed.writes.primary(segment) != Some(&cx.local) {
                merge.active.remove(&segment);
                merge.done.remove(&segment);
                continue;
            }
            let done = merge.done.entry(segment).or_default();
            let left = topology.merging.iter().filter(|side| !done.contains(&side.id()));
            let left: Vec<SideId> = left.map(Side::id).collect();
            match merge.active.get_mut(&segment) {
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
                    merge.active.remove(&segment);
                    if !left.is_empty() {
                        merge.todo.push_back(segment);
                    }
                }
            }
        }
        self.go_on_merging(cx);
    }

    /// Asks again for what should have come, and goes on with what waited.
    pub(crate) fn look_after_merge(&mut self, cx: &mut Cx) {
        if self.topology().is_none_or(|topology| topology.merging.is_empty()) {
            return;
        }
        // What was asked of the store may have been dropped.
        self.merge.loading.clear();
        let mut asks = Vec::new();
        for (segment, collections) in &mut self.merge.active {
            for collection in collections.iter_mut().filter(|one| !one.is_complete()) {
                if cx.now.since(collection.asked) >= PULL_AGAIN_AFTER {
                    // Perhaps somebody else.
                    collection.begin_again();
                    collection.givers.rotate_left(1);
                    collection.asked = cx.now;
                    asks.push((*segment, collection.side.id()));
                }
            }
        }
        for (segment, side) in asks {
            self.collect(cx, segment, side);
        }
        self.go_on_merging(cx);
    }

    /// Merges what has come, asks for more, and tells the coordinator when there is nothing left.
    fn go_on_merging(&mut self, cx: &mut Cx) {
        loop {
            let is_ready = |collections: &[Collection]| collections.iter().all(Collection::is_complete);
            let ready = self.merge.active.iter().filter(|(_, collections)| is_ready(collections));
            let ready: Vec<Segment> = ready.map(|(segment, _)| *segment).collect();
            for segment in ready {
                self.merge_segment(cx, segment);
            }
            if self.merge.active.len() >= cx.pulls_max {
                return;
            }
            let Some(segment) = self.merge.todo.pop_front() else { break };
            self.begin_merging(cx, segment);
        }
        if self.merge.active.is_empty() {
            self.tell_coordinator(cx, ToCoordinator::Merged);
        }
    }

    fn begin_merging(&mut self, cx: &mut Cx, segment: Segment) {
        let Some(topology) = self.topology() else { return };
        let done = self.merge.done.get(&segment);
        let left = topology.merging.iter().filter(|side| done.is_none_or(|done| !done.contains(&side.id())));
        let collections: Vec<Collection> = left
            .map(|side| Collection {
                givers: side.givers(segment).filter(|giver| topology.contains(giver)).cloned().collect(),
                side: side.clone(),
                cursor: None,
                asked: cx.now,
                entries: BTreeMap::new(),
                past: None,
                common: Version::NONE,
            })
            .collect();
        let sides: Vec<SideId> = collections.iter().map(|one| one.side.id()).collect();
        self.merge.active.insert(segment, collections);
        for side in sides {
            self.collect(cx, segment, side);
        }
    }

    fn collection(&mut self, segment: Segment, side: SideId) -> Option<&mut Collection> {
        self.merge.active.get_mut(&segment)?.iter_mut().find(|one| one.side.id() == side)
    }

    fn collect(&mut self, cx: &mut Cx, segment: Segment, side: SideId) {
        let bytes_max = cx.chunk_bytes;
        let Some(collection) = self.collection(segment, side).filter(|one| !one.is_complete()) else {
            return;
        };
        let Some(giver) = collection.givers.front().cloned() else { return };
        let cursor = collection.cursor;
        let pull = Pull { rebalance: 0, side: Some(side), segment, cursor, bytes_max };
        self.send(cx, &giver, Body::Pull(pull));
    }

    /// Whether what this member had is kept for the merge of this side.
    pub(super) fn is_kept_for(&self, side: SideId) -> bool {
        self.frozen.as_ref().is_some_and(|frozen| frozen.since == side.0)
    }

    pub(super) fn handle_collected(&mut self, cx: &mut Cx, from: &Address, side: SideId, chunk: Chunk) {
        let now = cx.now;
        let Chunk { segment, cursor, entries, next, past, is_refused, .. } = chunk;
        let Some(collection) = self.collection(segment, side).filter(|one| !one.is_complete()) else {
            return;
        };
        if collection.givers.front() != Some(from) {
            return;
        }
        if is_refused {
            collection.begin_again();
            collection.givers.pop_front();
        } else if cursor != collection.cursor {
            // It was asked for before everything was asked for again.
            return;
        } else {
            collection.entries.extend(entries);
            collection.cursor = next;
            collection.past = past.filter(|_| next.is_none());
        }
        collection.asked = now;
        if collection.is_complete() {
            self.go_on_merging(cx);
        } else {
            self.collect(cx, segment, side);
        }
    }

    /// Everything of a segment has come: decides key by key. What does not fit among the operations that may be under way
    /// is left for later.
    fn merge_segment(&mut self, cx: &mut Cx, segment: Segment) {
        let is_ready = self.state(segment).is_open() && self.is_primary(&cx.local, segment);
        if !is_ready || self.merge.loading.contains(&segment) {
            return;
        }
        let Some(mut collections) = self.merge.active.remove(&segment) else { return };
        let mut keys: BTreeSet<Bytes> = BTreeSet::new();
        for collection in &collections {
            keys.extend(collection.entries.keys().cloned());
            keys.extend(collection.past.iter().flat_map(|past| past.removals.keys().cloned()));
        }
        let mut keys = keys.into_iter();
        while let Some(key) = keys.next() {
            if self.lacks_value(segment, &key) {
                let lacking = std::iter::once(key).chain(keys).filter(|key| self.lacks_value(segment, key));
                let version = |key: &Bytes| self.container.version_of(segment, key);
                let asked =
                    lacking.take(LOAD_KEYS).map(|key| ((segment, key.clone()), version(&key))).collect();
                self.merge.active.insert(segment, collections);
                self.merge.loading.insert(segment);
                return self.load(cx, asked, Waiting::Merge(segment));
            }
            if cx.calls.is_full() {
                self.merge.active.insert(segment, collections);
                return;
            }
            self.merge_key(cx, segment, &key, &collections);
            for collection in &mut collections {
                let version = collection.standing(&key).version();
                if self.is_common(version) {
                    collection.common = version.max(collection.common);
                }
                collection.entries.remove(&key);
                if let Some(past) = &mut collection.past {
                    past.removals.remove(&key);
                }
            }
        }
        // From now on this side has what they knew, also where they have changed it since: it is no change of those that have
        // parted from both.
        let known =
            collections.iter().filter_map(|one| self.known_of(one)).filter(|one| self.is_common(*one));
        let known = known.chain(collections.iter().map(|one| one.common)).max().unwrap_or_default();
        self.state(segment).past.note(known);
        // Also if this member is lost before they come, or who is given the segment has it of another owner.
        let others = self.write_owners(segment).filter(|owner| **owner != cx.local && !known.is_none());
        for owner in others.cloned().collect::<Vec<_>>() {
            self.send(cx, &owner, Body::Known { segment, version: known });
        }
        let sides = collections.iter().map(|collection| collection.side.id());
        self.merge.done.entry(segment).or_default().extend(sides);
    }

    /// The primary has merged a segment: with what came, this side knows all up to a version from before others have parted.
    pub(super) fn handle_known(&mut self, from: &Address, topology: u32, segment: Segment, version: Version) {
        let Some(installed) = self.installed.as_ref().filter(|_| self.frozen.is_none()) else { return };
        let is_current = topology >= installed.topology.epoch(segment);
        let is_owner = installed.writes.owners(segment).any(|owner| *owner == self.member.address);
        if is_current && is_owner && installed.writes.primary(segment) == Some(from) && self.merges() {
            self.state(segment).past.note(version);
        }
    }

    /// The newest version that a side knew before it parted from this one.
    fn known_of(&self, Collection { side, past, .. }: &Collection) -> Option<Version> {
        let parted = parted_from(&side.partings, &self.topology()?.partings)?;
        Some(past.as_ref()?.known_before(parted))
    }

    fn lacks_value(&self, segment: Segment, key: &[u8]) -> bool {
        let Some(persistence) = &self.persistence else { return false };
        let Some(entry) = self.container.peek(segment, key).filter(|entry| entry.is_passive()) else {
            return false;
        };
        let place = (segment, Bytes::copy_from_slice(key));
        persistence.value_of(&place, entry.version).is_none()
    }

    /// Values that a segment has waited for are at hand, or cannot be had now.
    pub(super) fn merge_loaded(&mut self, cx: &mut Cx, segment: Segment, is_loaded: bool) {
        self.merge.loading.remove(&segment);
        if is_loaded {
            self.go_on_merging(cx);
        }
    }

    fn merge_key(&mut self, cx: &mut Cx, segment: Segment, key: &Bytes, collections: &[Collection]) {
        let Some(topology) = self.topology() else { return };
        let past = &self.segments[usize::from(segment.0)].past;
        let own = match self.kept(cx.now, segment, key) {
            Some(entry) => Standing::Entry(Stored::of(entry, cx.now)),
            // What has expired is as good as removed by who put it: what was before it must not come back.
            None => {
                let expired = self.container.peek(segment, key).map(|entry| entry.version);
                let gone = past.removals.get(key).copied().max(expired);
                gone.map_or(Standing::Nothing, Standing::Removed)
            }
        };
        let written = match &own {
            Standing::Entry(stored) => stored.version.topology(),
            Standing::Removed(version) => version.topology(),
            Standing::Nothing => 0,
        };
        // What was written since a side has come back is newer than what it has.
        let sides: Vec<&Collection> = collections.iter().filter(|one| one.side.since > written).collect();
        if sides.is_empty() {
            return;
        }
        let theirs: Vec<Standing> = sides.iter().map(|one| one.standing(key)).collect();
        let standings: Vec<&Standing> = std::iter::once(&own).chain(&theirs).collect();
        let partings = |side: usize| match side.checked_sub(1) {
            None => &topology.partings,
            Some(at) => &sides[at].side.partings,
        };
        let nothing = Past::default();
        let past_of = |side: usize| match side.checked_sub(1) {
            None => past,
            Some(at) => sides[at].past.as_ref().unwrap_or(&nothing),
        };
        let known = |side: usize, other: usize| {
            let (own, theirs) = (partings(side), partings(other));
            // One that does not know yet that others have gone on without it has no mark.
            let known = match parted_from(own, theirs) {
                Some(parting) => past_of(side).known_before(parting),
                None => past_of(side).seen,
            };
            common_until(own, theirs).map_or(known, |until| known.min(Version::new(until, 0)))
        };
        let mut policy = &self.config.merge;
        if cx.has(Planted::PolicyIgnored) {
            policy = &MergePolicy::PreferredAlways;
        }
        let custom = match policy {
            MergePolicy::Custom(name) => cx.merges.get(name).cloned(),
            _ => None,
        };
        let verdict = decide(key, &standings, known, policy, custom.as_deref());
        // It is the change of another side, which had seen what is here: taken over as it is, it stays that side's.
        let is_ahead = |stored: &Stored| match &own {
            Standing::Nothing => true,
            _ => theirs.len() == 1 && own.version() <= known(1, 0).min(stored.version),
        };
        let copied = theirs.iter().filter_map(|standing| match (standing, &verdict) {
            (Standing::Entry(stored), Verdict::Put(value, _)) if stored.value == value => Some(stored),
            _ => None,
        });
        let copied = copied.filter(|stored| is_ahead(stored)).max_by_key(|stored| stored.version).cloned();
        let change = match verdict {
            Verdict::Stays => return,
            Verdict::Put(value, lifetime) => Change::Put { value, lifetime },
            Verdict::Remove => Change::Remove,
        };
        let number = self.open_own(cx, segment, key);
        let operation = OperationId { caller: cx.local.clone(), number };
        if let Some(stored) = copied {
            return self.copy(cx, segment, operation, key, stored);
        }
        let write = Write { condition: Condition::Always, change, wants_previous: false };
        self.carry_out(cx, segment, operation, key.clone(), write, Flags::NONE);
    }

    /// Takes over an entry that this side lacks, as it is: with a version of this side's it would count as its change
    /// when others come back later.
    fn copy(&mut self, cx: &mut Cx, segment: Segment, operation: OperationId, key: &Bytes, stored: Stored) {
        self.put_copy(cx, segment, key, stored.clone());
        let written = Written { is_done: true, was_present: false, version: stored.version, previous: None };
        let (version, outcome) = (stored.version, Outcome::Written(written));
        let record = Record {
            operation: operation.clone(),
            key: key.clone(),
            version,
            did: Did::Put,
            outcome: outcome.clone(),
            // Also when it is sent again: listeners are told of a gap when the merge is over.
            is_silent: true,
        };
        self.state(segment).records.push(record, &cx.watermarks);
        let backup = Backup {
            segment,
            finished: cx.watermarks.of(&operation.caller),
            operation,
            key: key.clone(),
            version,
            effect: Effect::Copy(stored),
            acks: 0,
            tells: false,
            outcome: Some(outcome),
            is_silent: true,
        };
        self.back_up(cx, backup);
    }
}
