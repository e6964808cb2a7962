//! Taking out what has expired.
//!
//! Where nobody listens, every owner does so by itself. Where somebody does, the primary removes what has expired as a
//! write, and the other owners wait for that: so it is told once, and also if the primary is lost before. So it does,
//! always, with what nobody has used for too long (`idle`).

use std::time::Duration;

use consort_group::Time;

use super::cache::{Cache, Installed};
use super::cx::Cx;
use super::records::{Did, Record};
use crate::command::OperationId;
use crate::container::{Expired, Taken};
use crate::event::EventKind;
use crate::operation::ago;
use crate::planted::Planted;
use crate::topology::Phase;
use crate::{Entry, Segment, Stored};

/// How long another owner keeps what has expired and the primary does not take out: by then it is lost, and another one told
/// of it, or it has never had it.
const UNTOLD_FOR: Duration = Duration::from_secs(60);

impl Cache {
    /// Whether this member may write in a segment as its primary.
    pub(super) fn orders(&self, cx: &Cx, segment: Segment) -> bool {
        let Some(topology) = self.topology() else { return false };
        let is_open = self.segments[usize::from(segment.0)].is_open();
        is_open && self.is_primary(&cx.local, segment) && self.refusal(topology, segment, true).is_none()
    }

    /// Whether what has expired in a segment may be taken out here by itself.
    fn expires_here(&self, cx: &Cx, segment: Segment) -> bool {
        !self.has_listening() || self.orders(cx, segment)
    }

    /// Whether there is something left to take out here by itself.
    pub(crate) fn may_expire(&self, cx: &Cx) -> bool {
        let next = match self.has_listening() {
            true => self.container.next_expiry_in(|segment| self.expires_here(cx, segment)),
            false => self.container.next_expiry(),
        };
        next.is_some_and(|at| at <= cx.now)
    }

    /// Takes out what has expired.
    pub(crate) fn expire(&mut self, cx: &mut Cx, looks_max: usize) {
        if self.is_invalidation() {
            let expired = self.container.expire(cx.now, looks_max);
            return expired
                .taken
                .into_iter()
                .for_each(|one| self.tell_gone(cx, EventKind::Expired, one.key, one.entry));
        }
        if !self.is_listened() {
            let Expired { taken, idle } = self.container.expire(cx.now, looks_max);
            self.note_taken(cx, taken);
            return self.ask_for_idle(cx, idle);
        }
        if self.has_listening() {
            let late = ago(cx.now, UNTOLD_FOR);
            let others: Vec<bool> =
                self.config.all_segments().map(|one| !self.expires_here(cx, one)).collect();
            self.expire_untold(cx, |one| others[usize::from(one.0)], late);
        }
        let looks = looks_max.min(cx.calls.room() / 2);
        let Expired { taken, idle } =
            self.container.expire_in(|segment| self.expires_here(cx, segment), cx.now, looks);
        self.ask_for_idle(cx, idle);
        self.note_taken(cx, taken.clone());
        for Taken { segment, key, entry } in taken {
            if self.orders(cx, segment) && !cx.has(Planted::ExpiredUntold) {
                self.remove_expired(cx, segment, key, Some(entry));
            }
        }
    }

    /// Segments are about to be received. What is here is what the store had of them: what has expired in it, its primary does not
    /// have and takes out of no memory, and nobody who listens has ever heard of it. Of what comes from now on, listeners have, and
    /// this member may be the primary that tells them of its end.
    pub(super) fn expire_loaded(&mut self, cx: &mut Cx, segments: &[Segment]) {
        if self.is_backed() {
            self.expire_untold(cx, |one| segments.contains(&one), cx.now);
        }
    }

    /// Somebody begins to listen, who has heard of nothing that has expired. Until now primaries have handed that on to nobody,
    /// so theirs may lack it.
    pub(super) fn expire_unheard(&mut self, cx: &mut Cx, before: Option<&Installed>) {
        if self.has_listening() && before.is_some_and(|before| before.listening.is_empty()) {
            let others: Vec<bool> = self.config.all_segments().map(|one| !self.orders(cx, one)).collect();
            self.expire_untold(cx, |one| others[usize::from(one.0)], cx.now);
        }
    }

    pub(super) fn expire_untold(&mut self, cx: &mut Cx, is_wanted: impl Fn(Segment) -> bool, now: Time) {
        let Expired { taken, .. } = self.container.expire_in(is_wanted, now, usize::MAX);
        self.note_taken(cx, taken);
    }

    fn note_taken(&mut self, cx: &mut Cx, taken: Vec<Taken>) {
        // Of another life, and perhaps never acknowledged: who has no more than what was before it must not differ.
        if self.topology().is_none_or(|topology| topology.phase == Phase::Restoring) {
            taken.iter().for_each(|one| self.container.forget_removal(one.segment, &one.key));
        }
        // Where others have parted, what was before it must not come back from them.
        taken.iter().for_each(|one| self.note_removal(one.segment, &one.key, one.entry.version));
        self.note_expired(cx, taken);
    }

    /// A key is about to be written: if it has an entry whose time is over, that has expired before.
    pub(super) fn expire_first(&mut self, cx: &mut Cx, segment: Segment, key: &[u8]) {
        if let Some(entry) = self.container.peek(segment, key).filter(|entry| entry.is_expired(cx.now)) {
            self.container.note_expiration();
            self.remove_expired(cx, segment, bytes::Bytes::copy_from_slice(key), Some(entry));
        }
    }

    pub(super) fn remove_expired(
        &mut self,
        cx: &mut Cx,
        segment: Segment,
        key: bytes::Bytes,
        expired: Option<Entry>,
    ) {
        // Where others have parted, what was before it must not come back from them.
        if let Some(entry) = &expired {
            self.note_removal(segment, &key, entry.version);
        }
        let version = self.next_version(segment);
        self.erase(cx, segment, &key, version);
        let number = self.open_own(cx, segment, &key);
        let operation = OperationId { caller: cx.local.clone(), number };
        let told = expired.filter(|entry| self.tells_previous() && !entry.is_passive());
        let outcome = super::telling::expired(version, told.map(|entry| Stored::of(entry, cx.now)));
        let record = Record { operation, key, version, did: Did::Remove, outcome, is_silent: false };
        self.state(segment).records.push(record.clone(), &cx.watermarks);
        self.tell_own(cx, segment, &record, true);
        self.back_up_record(cx, segment, record);
    }
}
