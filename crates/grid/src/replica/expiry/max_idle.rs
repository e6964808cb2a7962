//! Entries with a max-idle time: an owner asks the others before an unused entry expires
//! (`docs/design/2026-11-grid.md`, Expiry).
//!
//! An owner by whose clock the time is over asks the primary, which asks all other write owners. If none has
//! used the entry, the primary removes it as a write. An owner that has denied a use does not return the
//! entry before the primary answers, so all answers still hold at the removal. While an owner is unreachable,
//! an entry unused here for too long is not read here, and stays.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use consort_group::{Address, Time};

use crate::command::{Body, Call, LastUse};
use crate::container::Idle;
use crate::cx::Cx;
use crate::cx::calls::RESEND_AFTER;
use crate::injected_bugs::InjectedBug;
use crate::operation::{Action, ReadFrom, ago};
use crate::replica::store::Place;
use crate::replica::{CacheReplica, Shared};
use crate::{Entry, Flags, Segment, Version};

/// A further question waits for the entry's timer or its caller to come again.
const QUESTIONS_MAX: usize = 16_384;

/// Callers send further calls again.
const CALLS_PER_QUESTION_MAX: usize = 4_096;

#[derive(Default)]
pub(crate) struct IdleProbes {
    open: BTreeMap<Place, IdleProbe>,
    /// An answer to an earlier question about the same entry may not hold.
    last: u64,
}

struct IdleProbe {
    version: Version,
    number: u64,
    asked: Time,
    silent: Vec<Address>,
    asking: Vec<Address>,
    waiting: Vec<PendingProbe>,
}

/// With the topology that the call was accepted with.
pub(crate) struct PendingProbe {
    from: Address,
    topology: u32,
    call: Call,
}

impl IdleProbes {
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// A new topology may have other owners. The calls are handled again.
    pub(crate) fn take_all(&mut self) -> Vec<PendingProbe> {
        std::mem::take(&mut self.open).into_values().flat_map(|question| question.waiting).collect()
    }

    /// Closes late questions. Their calls are handled again and ask anew if needed.
    pub(crate) fn take_late(&mut self, now: Time) -> Vec<PendingProbe> {
        let late = self.open.extract_if(.., |_, one| now.since(one.asked) >= RESEND_AFTER);
        late.flat_map(|(_, question)| question.waiting).collect()
    }
}

impl Shared {
    pub(crate) fn is_shared(&self) -> bool {
        self.config.mode.is_shared()
    }

    /// Returns an entry unused here for too long, if all members that may have used it are reachable.
    fn doubtful(&self, now: Time, segment: Segment, key: &[u8]) -> Option<Entry> {
        let topology = self.topology()?;
        let entry = self.container.peek(segment, key).filter(|entry| entry.is_idle(now))?;
        self.refusal(topology, segment, true).is_none().then_some(entry)
    }

    /// Waits for no last uses of unreachable members.
    fn judges(&self, cx: &Cx, segment: Segment) -> bool {
        self.orders(cx, segment) && self.segments[usize::from(segment.0)].pending_last_uses.is_over(cx.now)
    }

    fn others<'a>(&'a self, cx: &'a Cx, segment: Segment) -> impl Iterator<Item = &'a Address> {
        self.write_owners(segment).filter(|owner| **owner != cx.local)
    }
}

impl CacheReplica {
    pub(crate) fn must_ask(&mut self, cx: &mut Cx, segment: Segment, call: &Call) -> bool {
        // Entries loaded from a store did not arrive as writes.
        let may_arise = self.shared.has_max_idle || self.store.is_backed();
        if !may_arise || !self.shared.is_shared() || call.flags.contains(Flags::LOCAL) {
            return false;
        }
        let Some(topology) = self.shared.topology() else { return false };
        let is_mine = match call.action {
            Action::Read(ReadFrom::Nearest) => {
                topology.read_owners().owners(segment).any(|owner| *owner == cx.local)
            }
            _ => self.shared.orders(cx, segment),
        };
        let is_asked = is_mine && self.shared.doubtful(cx.now, segment, &call.key).is_some();
        // An only owner needs no answer.
        is_asked && !self.end_if_alone(cx, segment, &call.key)
    }

    pub(crate) fn ask_for_call(&mut self, cx: &mut Cx, segment: Segment, from: &Address, call: Call) {
        let version = self.shared.container.version_of(segment, &call.key);
        let place = (segment, Bytes::copy_from_slice(&call.key));
        let topology = self.shared.topology_id();
        let Some(question) = self.question(cx, place, version, None) else { return };
        let is_same = |one: &&mut PendingProbe| one.from == *from && one.call.number == call.number;
        let has_room = question.waiting.len() < CALLS_PER_QUESTION_MAX;
        match question.waiting.iter_mut().find(is_same) {
            Some(waiting) => (waiting.topology, waiting.call) = (topology, call),
            None if has_room => question.waiting.push(PendingProbe { from: from.clone(), topology, call }),
            None => cx.counters.overflowed += 1,
        }
    }

    pub(crate) fn ask_for_idle(&mut self, cx: &mut Cx, idle: Vec<Idle>) {
        for Idle { segment, key, version } in idle {
            if self.shared.orders(cx, segment) && !self.end_if_alone(cx, segment, &key) {
                self.question(cx, (segment, key), version, None);
            }
        }
    }

    fn end_if_alone(&mut self, cx: &mut Cx, segment: Segment, key: &[u8]) -> bool {
        let is_alone = self.shared.judges(cx, segment) && self.shared.others(cx, segment).next().is_none();
        if is_alone {
            let expired = self.shared.container.peek(segment, key);
            self.shared.container.expiry().note_expiration();
            self.remove_expired(cx, segment, Bytes::copy_from_slice(key), expired);
        }
        is_alone
    }

    /// `None`: too many questions are open.
    fn question(
        &mut self,
        cx: &mut Cx,
        place: Place,
        version: Version,
        asking: Option<&Address>,
    ) -> Option<&mut IdleProbe> {
        let replaced = self.idle_probes.ask_owners(&self.shared, cx, &place, version)?;
        // The earlier question was about a replaced entry: its calls find the new one.
        self.take_again(cx, replaced);
        let question = self.idle_probes.open.get_mut(&place)?;
        if let Some(asking) = asking.filter(|asking| !question.asking.contains(asking)) {
            question.asking.push(asking.clone());
        }
        Some(question)
    }

    pub(crate) fn handle_idle(
        &mut self,
        cx: &mut Cx,
        from: &Address,
        (segment, key): Place,
        version: Version,
        number: u64,
    ) {
        let entry = self.shared.container.peek(segment, &key).filter(|entry| entry.version == version);
        let is_told = !cx.has(InjectedBug::UseDenied);
        let used = entry.as_ref().filter(|entry| is_told && !entry.is_expired(cx.now));
        let idle = used.map(|entry| cx.now.since(entry.last_used));
        let is_doubtful = entry.is_some_and(|entry| entry.is_idle(cx.now));
        if !is_doubtful || !self.shared.is_primary(&cx.local, segment) {
            return self.shared.send(
                cx,
                from,
                Body::LastUse(LastUse { segment, key, version, number, idle }),
            );
        }
        // If this member does not answer, the asking member asks again.
        if self.shared.orders(cx, segment) {
            let place = (segment, Bytes::copy_from_slice(&key));
            self.question(cx, place, version, Some(from));
        }
    }

    pub(crate) fn handle_used(&mut self, cx: &mut Cx, from: &Address, used: LastUse) {
        let idle = used.idle;
        let Some(place) = self.idle_probes.note_answer(&self.shared, cx, from, used) else { return };
        if idle.is_none() {
            let (segment, key) = &place;
            let is_idle = self.shared.doubtful(cx.now, *segment, key).is_some();
            if is_idle && self.shared.judges(cx, *segment) && cx.calls.room() > 0 {
                let expired = self.shared.container.peek(*segment, key);
                self.shared.container.expiry().note_expiration();
                self.remove_expired(cx, *segment, key.clone(), expired);
            } else if is_idle {
                // The primary is about to change, has no room for calls, or waits for other owners: the question is sent again.
                return;
            }
        }
        let waiting = self.idle_probes.close_question(&self.shared, cx, &place, idle);
        self.take_again(cx, waiting);
    }

    pub(crate) fn take_again(&mut self, cx: &mut Cx, waiting: Vec<PendingProbe>) {
        for PendingProbe { from, topology, call } in waiting {
            self.take_call(cx, &from, topology, call);
        }
    }
}

impl IdleProbes {
    /// Returns the calls that wait for the answer about an earlier version; none if there are too many
    /// questions.
    fn ask_owners(
        &mut self,
        shared: &Shared,
        cx: &mut Cx,
        place: &Place,
        version: Version,
    ) -> Option<Vec<PendingProbe>> {
        if self.open.get(place).is_some_and(|one| one.version == version) {
            return Some(Vec::new());
        }
        if self.open.len() >= QUESTIONS_MAX {
            cx.counters.overflowed += 1;
            return None;
        }
        let (segment, key) = place;
        // The asking member is asked, too: it may meanwhile have received a later use from another owner.
        let silent: Vec<Address> = match shared.is_primary(&cx.local, *segment) {
            true => shared.others(cx, *segment).cloned().collect(),
            false => shared.primary(*segment).cloned().into_iter().collect(),
        };
        self.last += 1;
        let number = self.last;
        for owner in &silent {
            shared.send(cx, owner, Body::Idle { segment: *segment, key: key.clone(), version, number });
        }
        let (asking, waiting) = (Vec::new(), Vec::new());
        let question = IdleProbe { version, number, asked: cx.now, silent, asking, waiting };
        let before = self.open.insert(place.clone(), question);
        Some(before.map_or_else(Vec::new, |before| before.waiting))
    }

    /// Returns the key if its question is decided: a member has used the entry, or no owner has.
    fn note_answer(&mut self, shared: &Shared, cx: &Cx, from: &Address, used: LastUse) -> Option<Place> {
        let LastUse { segment, key, version, number, idle } = used;
        let place = (segment, Bytes::copy_from_slice(&key));
        if let Some(idle) = idle
            && shared.container.version_of(segment, &key) == version
        {
            let at = if cx.has(InjectedBug::UseRenewed) { cx.now } else { ago(cx.now, idle) };
            shared.container.touch(segment, &key, at);
        }
        let question = self.open.get_mut(&place).filter(|one| one.version == version)?;
        let is_primarys = shared.primary(segment) == Some(from);
        if idle.is_none() && !(question.number == number || is_primarys) {
            return None;
        }
        if idle.is_none() {
            question.silent.retain(|owner| owner != from);
        }
        (idle.is_some() || question.silent.is_empty()).then_some(place)
    }

    /// The primary sends the result to all write owners and to the members that have asked. Returns the calls
    /// that have waited.
    fn close_question(
        &mut self,
        shared: &Shared,
        cx: &mut Cx,
        place: &Place,
        idle: Option<Duration>,
    ) -> Vec<PendingProbe> {
        let Some(question) = self.open.remove(place) else { return Vec::new() };
        let (segment, key) = place;
        if shared.is_primary(&cx.local, *segment) {
            let mut told: Vec<Address> = shared.others(cx, *segment).cloned().collect();
            told.extend(
                question
                    .asking
                    .into_iter()
                    .filter(|asking| !shared.write_owners(*segment).any(|owner| owner == asking)),
            );
            for member in told {
                let (segment, key, version) = (*segment, key.clone(), question.version);
                let used = LastUse { segment, key, version, number: 0, idle };
                shared.send(cx, &member, Body::LastUse(used));
            }
        }
        question.waiting
    }
}
