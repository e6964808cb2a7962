use consort_group::Address;

use crate::command::{Ack, Backup, Effect};
use crate::cx::Cx;
use crate::injected_bugs::InjectedBug;
use crate::replica::store::Store;
use crate::replica::write::records::is_caller_gone;
use crate::replica::write::records::{ORPHANED, WriteEffect, WriteRecord};
use crate::replica::{CacheReplica, Shared};
use crate::{Segment, Version};

impl CacheReplica {
    pub(crate) fn handle_backup(&mut self, cx: &mut Cx, from: &Address, topology: u32, mut backup: Backup) {
        let segment = backup.segment;
        let Some(installed) = &self.shared.installed else { return };
        let epoch = installed.topology.epoch(segment);
        if topology < epoch && !cx.has(InjectedBug::OldEpochTaken)
            || !self.shared.may_order(installed, from, segment)
        {
            // The primary does not know yet that the owners have changed. When it does, it sends this write to all of them.
            cx.counters.outdated += 1;
            return;
        }
        if !installed.writes.owners(segment).any(|owner| *owner == cx.local) {
            return;
        }
        if self.listeners.is_listened(&self.shared) {
            self.listeners.forward(&self.shared, &self.store, &mut self.iterations, cx, &mut backup);
        }
        let Backup {
            mut operation,
            finished,
            key,
            version,
            effect,
            expected_acks,
            sends_outcome,
            outcome,
            skips_listeners,
            ..
        } = backup;
        cx.watermarks.heard(&operation.caller, finished);
        let (caller, number) = (operation.caller.clone(), operation.number);
        if topology < self.shared.topology_id() {
            // The caller may have been a member in that topology and be none in this one.
            self.handovers.await_settled(cx);
            let own = self.shared.topology();
            if own.is_some_and(|own| is_caller_gone(own, &caller)) && !cx.has(InjectedBug::GivenUpIsFinished)
            {
                operation.number = ORPHANED;
            }
        }
        // The acknowledgement of a cache with a store waits for the write of this key; without a store, the key is not needed.
        let named =
            if self.store.is_backed() { bytes::Bytes::copy_from_slice(&key) } else { bytes::Bytes::new() };
        if self.shared.is_invalidation() {
            // No record is needed: a repeated invalidation costs an entry at worst.
            if !cx.watermarks.is_finished(&operation) && !cx.has(InjectedBug::InvalidationIgnored) {
                self.listeners.invalidate(&self.shared, &mut self.iterations, cx, segment, &key, &effect);
            }
        } else if effect != Effect::Nothing && !cx.watermarks.is_finished(&operation) {
            let did = WriteEffect::of(&effect);
            if let Some(record) = self.shared.state(segment).records.of_write(&key, version) {
                record.operation = operation;
            } else {
                let is_received = self.shared.container.state(segment) == crate::SegmentState::Receiving;
                if !(is_received && cx.has(InjectedBug::BackupNotApplied)) {
                    self.store.apply(&mut self.shared, cx, segment, &key, version, effect);
                }
                let key = bytes::Bytes::copy_from_slice(&key);
                if let Some(outcome) = outcome.clone() {
                    let record = WriteRecord { operation, key, version, did, outcome, skips_listeners };
                    self.shared.state(segment).records.push(record, &cx.watermarks);
                } else {
                    cx.counters.malformed += 1;
                }
            }
        }
        let ack = Ack { number, epoch, expected_acks, outcome: outcome.filter(|_| sends_outcome) };
        self.acknowledge(cx, (segment, named), caller, ack);
    }
}

impl Store {
    pub(crate) fn apply(
        &mut self,
        shared: &mut Shared,
        cx: &mut Cx,
        segment: Segment,
        key: &[u8],
        version: Version,
        effect: Effect,
    ) {
        match effect {
            // Owners do not remember removals; their records do.
            Effect::Put(_) | Effect::Copy(_)
                if shared.container.version_of(segment, key).is_none()
                    && shared.state(segment).records.has_newer(key, version) => {}
            Effect::Put(stored) => {
                shared.note_put(segment, key, stored.version);
                self.put_copy(shared, cx, segment, key, stored);
            }
            Effect::Copy(stored) => {
                shared.note_copied(segment, key, stored.version);
                self.put_copy(shared, cx, segment, key, stored);
            }
            Effect::CopyRemoval => {
                shared.note_copied_removal(segment, key, version);
                self.erase(shared, cx, segment, key, version);
            }
            Effect::Remove
                if cx.has(InjectedBug::RemovalForgotten)
                    && shared.container.version_of(segment, key).is_none() => {}
            Effect::Remove => {
                shared.note_removal(segment, key, version);
                self.erase(shared, cx, segment, key, version);
            }
            Effect::Gone => {
                shared.note_put(segment, key, version);
                self.erase(shared, cx, segment, key, version);
            }
            // The effect is empty, or of another mode.
            _ => {}
        }
    }

    /// For write owners that may not have a record's write.
    pub(crate) fn effect_of(
        &self,
        shared: &Shared,
        now: consort_group::Time,
        segment: Segment,
        record: &WriteRecord,
    ) -> Effect {
        match record.did {
            WriteEffect::Clear => return Effect::InvalidateAll,
            _ if shared.is_invalidation() => return Effect::Invalidate,
            WriteEffect::Remove => return Effect::Remove,
            WriteEffect::CopiedRemoval => return Effect::CopyRemoval,
            WriteEffect::Put | WriteEffect::CopiedPut => {}
        }
        // An expired entry is sent, too: an owner that lacks it has the previous entry, and must not keep that.
        let is_it = |entry: &crate::Entry| entry.version == record.version && !entry.is_passive();
        if let Some(entry) = self.held(shared, segment, &record.key).filter(is_it) {
            let stored = crate::Stored::of(entry, now);
            return if record.did == WriteEffect::CopiedPut {
                Effect::Copy(stored)
            } else {
                Effect::Put(stored)
            };
        }
        // The value of this version is available as long as it has a record (`Records::need`).
        let records = &shared.segments[usize::from(segment.0)].records;
        let is_superseded = shared.container.version_of(segment, &record.key) >= record.version
            || records.has_newer(&record.key, record.version);
        if is_superseded { Effect::Superseded } else { Effect::Gone }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use consort_group::{Time, Uuid};

    use super::*;
    use crate::command::OperationId;
    use crate::operation::{Outcome, Written};
    use crate::replica::store::Store;
    use crate::{
        CacheConfig, Container, ContainerSettings, Lifetime, Limit, MemoryBound, StoreRequest, StoreSettings,
        Stored, WhenFull,
    };

    const SEGMENT: Segment = Segment(0);

    fn member(n: u64) -> Address {
        Address::Uuid(Uuid { most: 0, least: n })
    }

    fn owner(passivation: bool) -> (CacheReplica, Cx) {
        let bound = Some(MemoryBound { limit: Limit::Entries(1), when_full: WhenFull::Remove });
        let settings = ContainerSettings { segment_count: 1, bound, is_backed: true, is_shared: true };
        let container = Arc::new(Container::new(&settings, 1));
        container.own(SEGMENT);
        let config = CacheConfig { segments: 1, ..CacheConfig::new("kept") };
        let mut cache = CacheReplica::new(config, member(1).into(), container);
        let backing = StoreSettings { passivation, remembered: None };
        cache.store = Store::new(Some(backing));
        (cache, Cx::new(member(1)))
    }

    fn put(cache: &mut CacheReplica, cx: &mut Cx, key: &'static [u8], count: u64) {
        let (version, value) = (Version::new(1, count), Bytes::from_static(key));
        let (age, idle) = Default::default();
        let stored = Stored { value, version, lifetime: Lifetime::FOREVER, age, idle };
        cache.store.apply(&mut cache.shared, cx, SEGMENT, key, version, Effect::Put(stored));
        let written = Written { is_done: true, was_present: false, version, previous: None };
        let record = WriteRecord {
            operation: OperationId { caller: member(2), number: count },
            key: Bytes::from_static(key),
            version,
            did: WriteEffect::Put,
            outcome: Outcome::Written(written),
            skips_listeners: false,
        };
        cache.shared.state(SEGMENT).records.push(record, &cx.watermarks);
    }

    /// The write has no memory for its value, no caller, or no known progress.
    fn handed_on(passivation: bool, is_finished: bool) -> Vec<Effect> {
        let (mut cache, mut cx) = owner(passivation);
        put(&mut cache, &mut cx, b"first", 1);
        cx.watermarks.heard(&member(2), if is_finished { 2 } else { 1 });
        put(&mut cache, &mut cx, b"second", 2);
        while let Some((_, request)) = cx.store.pop_front() {
            let StoreRequest::Write { number, .. } = request else { panic!("{request:?}") };
            cache.handle_stored(&mut cx, number, Ok(()));
        }
        cache.store.tick_store(&mut cache.shared, &mut cx);
        assert!(cache.shared.is_passive(SEGMENT, b"first"));
        cx.watermarks.retain(|_| false);
        let records: Vec<WriteRecord> = cache.shared.state(SEGMENT).records.iter().cloned().collect();
        let first = records.iter().filter(|record| &record.key[..] == b"first");
        first.map(|record| cache.store.effect_of(&cache.shared, Time::ZERO, SEGMENT, record)).collect()
    }

    #[test]
    fn entry_passivated_twice_is_held_until_the_store_has_the_last_write() {
        let (mut cache, mut cx) = owner(true);
        let keys: [&'static [u8]; 8] = [b"first", b"a", b"b", b"first", b"c", b"d", b"e", b"f"];
        for (key, count) in keys.into_iter().zip([1, 2, 3, 1, 4, 5, 6, 7]) {
            put(&mut cache, &mut cx, key, count);
        }
        assert!(cache.shared.is_passive(SEGMENT, b"first"));
        cx.watermarks.heard(&member(2), 8);
        let of_first = |cx: &mut Cx| -> Vec<(u64, bool)> {
            let all: Vec<_> = cx.store.drain(..).collect();
            let write = |(_, request)| match request {
                StoreRequest::Write { number, key, entry, .. } => {
                    (&key[..] == b"first").then_some((number, entry.is_some()))
                }
                other => panic!("{other:?}"),
            };
            all.into_iter().filter_map(write).collect()
        };
        let writes = of_first(&mut cx);
        assert!(matches!(writes[..], [(_, true), (_, false), (_, true)]), "{writes:?}");
        for &(number, _) in &writes[..2] {
            cache.handle_stored(&mut cx, number, Ok(()));
        }
        cache.handle_stored(&mut cx, writes[2].0, Err("full".into()));
        cx.now = Time::ZERO + std::time::Duration::from_secs(2);
        cache.store.tick_store(&mut cache.shared, &mut cx);
        assert!(matches!(of_first(&mut cx)[..], [(_, true)]), "it is tried again");
    }

    #[test]
    fn recorded_write_keeps_its_value_if_memory_has_no_room_for_it() {
        for passivation in [false, true] {
            match &handed_on(passivation, false)[..] {
                [Effect::Put(stored)] => assert_eq!(&stored.value[..], b"first"),
                other => panic!("{other:?}"),
            }
            assert_eq!(
                handed_on(passivation, true),
                [],
                "it is finished, and its record has gone with its value"
            );
        }
    }
}
