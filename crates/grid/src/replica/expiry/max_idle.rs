//! Entries with a max-idle time: an owner that has not used an entry for that time asks other owners before the entry expires.
//!
//! Every owner notes when it last returned an entry itself. An owner by whose clock the time is over, found by a read or by a
//! timer, asks the primary. The primary asks all other write owners. If one has used the entry, all are sent the time of the
//! use; if none has, the primary removes the entry as a write. An owner that has answered that it has not used an entry does
//! not return it before the primary answers. So all answers to one question still hold when the primary removes the entry.
//!
//! An owner that stops returning a segment's entries sends the primary the times of their last uses (`uses`).
//!
//! While an owner is unreachable, the question cannot be decided. An entry that was not used here for too long is then not read
//! here, and stays until all owners are back.

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

/// The limit of open questions of a member, for each cache. An entry beyond it is asked about when its timer or its caller
/// comes again.
const QUESTIONS_MAX: usize = 16_384;

/// The limit of calls that wait for one answer. A call beyond it is sent again by its caller.
const CALLS_PER_QUESTION_MAX: usize = 4_096;

/// The open questions of a member, each about an entry that may have expired.
#[derive(Default)]
pub(crate) struct IdleProbes {
    open: BTreeMap<Place, IdleProbe>,
    /// The number of the last question. An answer to an earlier question about the same entry may no longer hold.
    last: u64,
}

struct IdleProbe {
    version: Version,
    number: u64,
    asked: Time,
    /// The owners that have not answered.
    silent: Vec<Address>,
    /// The members that have asked this one.
    asking: Vec<Address>,
    waiting: Vec<PendingProbe>,
}

/// A call, and the topology with which it was accepted.
pub(crate) struct PendingProbe {
    from: Address,
    topology: u32,
    call: Call,
}

impl IdleProbes {
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Closes all questions, because the owners to ask may differ under a new topology. Returns their calls, which are handled
    /// again.
    pub(crate) fn take_all(&mut self) -> Vec<PendingProbe> {
        std::mem::take(&mut self.open).into_values().flat_map(|question| question.waiting).collect()
    }

    /// Closes late questions. Returns their calls, which are handled again and ask anew if still needed.
    pub(crate) fn take_late(&mut self, now: Time) -> Vec<PendingProbe> {
        let late = self.open.extract_if(.., |_, one| now.since(one.asked) >= RESEND_AFTER);
        late.flat_map(|(_, question)| question.waiting).collect()
    }
}

impl Shared {
    /// Returns whether other members have copies of entries.
    pub(crate) fn is_shared(&self) -> bool {
        self.config.mode.is_shared()
    }

    /// Returns an entry that was not used here for too long, if all members are reachable that may have used it.
    fn doubtful(&self, now: Time, segment: Segment, key: &[u8]) -> Option<Entry> {
        let topology = self.topology()?;
        let entry = self.container.peek(segment, key).filter(|entry| entry.is_idle(now))?;
        self.refusal(topology, segment, true).is_none().then_some(entry)
    }

    /// Returns whether this member decides about a segment's entries, and waits for no last uses of members that it cannot ask
    /// any more.
    fn judges(&self, cx: &Cx, segment: Segment) -> bool {
        self.orders(cx, segment) && self.segments[usize::from(segment.0)].pending_last_uses.is_over(cx.now)
    }

    fn others<'a>(&'a self, cx: &'a Cx, segment: Segment) -> impl Iterator<Item = &'a Address> {
        self.write_owners(segment).filter(|owner| **owner != cx.local)
    }
}

impl CacheReplica {
    /// Returns whether a call has to wait for the decision whether its key's entry has expired.
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

    /// Lets a call wait for an answer about its key's entry.
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

    /// Asks about entries that were not used here, after their timers. Only the primary does.
    pub(crate) fn ask_for_idle(&mut self, cx: &mut Cx, idle: Vec<Idle>) {
        for Idle { segment, key, version } in idle {
            if self.shared.orders(cx, segment) && !self.end_if_alone(cx, segment, &key) {
                self.question(cx, (segment, key), version, None);
            }
        }
    }

    /// Removes an expired entry if this member is the only write owner. Returns whether it is.
    fn end_if_alone(&mut self, cx: &mut Cx, segment: Segment, key: &[u8]) -> bool {
        let is_alone = self.shared.judges(cx, segment) && self.shared.others(cx, segment).next().is_none();
        if is_alone {
            let expired = self.shared.container.peek(segment, key);
            self.shared.container.expiry().note_expiration();
            self.remove_expired(cx, segment, Bytes::copy_from_slice(key), expired);
        }
        is_alone
    }

    /// Returns the question about an entry, and sends it if it is new. Returns none if there are too many.
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

    /// Handles a question: a member has not used an entry for too long.
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

    /// Handles an answer: a member has used an entry, or has not.
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

    /// Handles calls again that have waited for an answer.
    pub(crate) fn take_again(&mut self, cx: &mut Cx, waiting: Vec<PendingProbe>) {
        for PendingProbe { from, topology, call } in waiting {
            self.take_call(cx, &from, topology, call);
        }
    }
}

impl IdleProbes {
    /// Opens the question about an entry and sends it, unless it is open. Returns the calls that wait for the answer about an
    /// earlier version of the entry; none if there are too many questions.
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

    /// Notes an answer. Returns the key if its question is answered: a member has used the entry, or no owner has.
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

    /// Closes a question. The primary sends the result to all write owners and to the members that have asked. Returns the
    /// calls that have waited for it.
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
