//! Removal of expired entries.
//!
//! Without listeners, every owner removes them by itself. With listeners, the primary removes them as a
//! write, so that the event is delivered once, even if the primary is lost before. Entries past their
//! max-idle time are always removed as a write.

use std::time::Duration;

use consort_group::Time;

use crate::command::OperationId;
use crate::container::{Expired, Taken};
use crate::cx::Cx;
use crate::event::EventKind;
use crate::injected_bugs::InjectedBug;
use crate::operation::ago;
use crate::replica::store::Store;
use crate::replica::write::records::{WriteEffect, WriteRecord};
use crate::replica::{CacheReplica, Installed, Shared};
use crate::topology::Phase;
use crate::{Entry, Segment, Stored};

/// By then a new primary has reported the event of an expired entry, or the primary never had the entry.
const UNTOLD_FOR: Duration = Duration::from_secs(60);

impl Shared {
    pub(crate) fn orders(&self, cx: &Cx, segment: Segment) -> bool {
        let Some(topology) = self.topology() else { return false };
        let is_open = self.segments[usize::from(segment.0)].is_open();
        is_open && self.is_primary(&cx.local, segment) && self.refusal(topology, segment, true).is_none()
    }

    fn expires_here(&self, cx: &Cx, segment: Segment) -> bool {
        !self.has_listening() || self.orders(cx, segment)
    }

    pub(crate) fn may_expire(&self, cx: &Cx) -> bool {
        let next = match self.has_listening() {
            true => self.container.expiry().next_deadline_in(|segment| self.expires_here(cx, segment)),
            false => self.container.expiry().next_deadline(),
        };
        next.is_some_and(|at| at <= cx.now)
    }
}

impl CacheReplica {
    pub(crate) fn expire(&mut self, cx: &mut Cx, looks_max: usize) {
        if self.shared.is_invalidation() {
            let expired = self.shared.container.expiry().remove_expired(cx.now, looks_max);
            return expired.taken.into_iter().for_each(|one| {
                self.listeners.tell_gone(
                    &self.shared,
                    &mut self.iterations,
                    cx,
                    EventKind::Expired,
                    one.key,
                    one.entry,
                );
            });
        }
        if !self.listeners.is_listened(&self.shared) {
            let Expired { taken, idle } = self.shared.container.expiry().remove_expired(cx.now, looks_max);
            self.store.note_taken(&mut self.shared, cx, taken);
            return self.ask_for_idle(cx, idle);
        }
        if self.shared.has_listening() {
            let late = ago(cx.now, UNTOLD_FOR);
            let others: Vec<bool> =
                self.shared.config.all_segments().map(|one| !self.shared.expires_here(cx, one)).collect();
            self.store.expire_untold(&mut self.shared, cx, |one| others[usize::from(one.0)], late);
        }
        let looks = looks_max.min(cx.calls.room() / 2);
        let Expired { taken, idle } = self.shared.container.expiry().remove_expired_in(
            |segment| self.shared.expires_here(cx, segment),
            cx.now,
            looks,
        );
        self.ask_for_idle(cx, idle);
        self.store.note_taken(&mut self.shared, cx, taken.clone());
        for Taken { segment, key, entry } in taken {
            if self.shared.orders(cx, segment) && !cx.has(InjectedBug::ExpiredUntold) {
                self.remove_expired(cx, segment, key, Some(entry));
            }
        }
    }

    pub(crate) fn expire_first(&mut self, cx: &mut Cx, segment: Segment, key: &[u8]) {
        if let Some(entry) = self.shared.container.peek(segment, key).filter(|entry| entry.is_expired(cx.now))
        {
            self.shared.container.expiry().note_expiration();
            self.remove_expired(cx, segment, bytes::Bytes::copy_from_slice(key), Some(entry));
        }
    }

    pub(crate) fn remove_expired(
        &mut self,
        cx: &mut Cx,
        segment: Segment,
        key: bytes::Bytes,
        expired: Option<Entry>,
    ) {
        // After a network partition, the previous entry must not return from another partition.
        if let Some(entry) = &expired {
            self.shared.note_removal(segment, &key, entry.version);
        }
        let version = self.shared.next_version(segment);
        self.store.erase(&mut self.shared, cx, segment, &key, version);
        let number = self.shared.open_own(cx, segment, &key);
        let operation = OperationId { caller: cx.local.clone(), number };
        let told = expired.filter(|entry| self.listeners.tells_previous(&self.shared) && !entry.is_passive());
        let outcome = crate::replica::events::event_delivery::expired(
            version,
            told.map(|entry| Stored::of(entry, cx.now)),
        );
        let record = WriteRecord {
            operation,
            key,
            version,
            did: WriteEffect::Remove,
            outcome,
            skips_listeners: false,
        };
        self.shared.state(segment).records.push(record.clone(), &cx.watermarks);
        self.notify_local(cx, segment, &record, true);
        self.back_up_record(cx, segment, record);
    }
}

impl Store {
    /// Removes expired entries that the store had of segments about to be received. Their primary lacks them,
    /// so it never removes them from memory, and no listener has an event of them. This member may become the
    /// primary that reports expirations.
    pub(crate) fn expire_loaded(&mut self, shared: &mut Shared, cx: &mut Cx, segments: &[Segment]) {
        if self.is_backed() {
            self.expire_untold(shared, cx, |one| segments.contains(&one), cx.now);
        }
    }

    /// Removes expired entries that the first listener has no event of. Without listeners primaries send
    /// their removals to no other owner, so they may lack these entries.
    pub(crate) fn expire_unheard(&mut self, shared: &mut Shared, cx: &mut Cx, before: Option<&Installed>) {
        if shared.has_listening() && before.is_some_and(|before| before.listening.is_empty()) {
            let others: Vec<bool> = shared.config.all_segments().map(|one| !shared.orders(cx, one)).collect();
            self.expire_untold(shared, cx, |one| others[usize::from(one.0)], cx.now);
        }
    }

    pub(crate) fn expire_untold(
        &mut self,
        shared: &mut Shared,
        cx: &mut Cx,
        is_wanted: impl Fn(Segment) -> bool,
        now: Time,
    ) {
        let Expired { taken, .. } = shared.container.expiry().remove_expired_in(is_wanted, now, usize::MAX);
        self.note_taken(shared, cx, taken);
    }

    fn note_taken(&mut self, shared: &mut Shared, cx: &mut Cx, taken: Vec<Taken>) {
        // The entries are of an earlier incarnation and perhaps never acknowledged. An owner with only an older entry must not
        // differ from this one.
        if shared.topology().is_none_or(|topology| topology.phase == Phase::Restoring) {
            taken.iter().for_each(|one| shared.container.forget_removal(one.segment, &one.key));
        }
        // After a network partition, the previous entry must not return from another partition.
        taken.iter().for_each(|one| shared.note_removal(one.segment, &one.key, one.entry.version));
        self.note_expired(shared, cx, taken);
    }
}
