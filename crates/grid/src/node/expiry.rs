//! Taking out what has expired.
//!
//! Where nobody listens, every owner does so by itself. Where somebody does, the primary removes what has expired as a
//! write, and the other owners wait for that: so it is told once, and also if the primary is lost before. So it does,
//! always, with what nobody has used for too long (`idle`).

use consort_group::Time;

use super::cache::Cache;
use super::cx::Cx;
use super::records::{Did, Record};
use crate::command::OperationId;
use crate::container::{Expired, Taken};
use crate::event::EventKind;
use crate::{Entry, Segment, Stored};

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

    /// When there may be something to take out.
    pub(crate) fn next_expiry(&self, cx: &Cx) -> Option<Time> {
        match self.has_listening() {
            true => self.container.next_expiry_in(|segment| self.expires_here(cx, segment)),
            false => self.container.next_expiry(),
        }
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
            self.note_expired(cx, taken);
            return self.ask_for_idle(cx, idle);
        }
        let looks = looks_max.min(cx.calls.room() / 2);
        let Expired { taken, idle } =
            self.container.expire_in(|segment| self.expires_here(cx, segment), cx.now, looks);
        self.ask_for_idle(cx, idle);
        self.note_expired(cx, taken.clone());
        for Taken { segment, key, entry } in taken {
            if self.orders(cx, segment) {
                self.remove_expired(cx, segment, key, Some(entry));
            }
        }
    }

    /// A key is about to be written: if it has an entry whose time is over, that has expired before.
    pub(super) fn expire_first(&mut self, cx: &mut Cx, segment: Segment, key: &[u8]) {
        if let Some(entry) = self.container.peek(segment, key).filter(|entry| entry.is_expired(cx.now)) {
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
