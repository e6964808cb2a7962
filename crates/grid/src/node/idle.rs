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

use super::cache::Cache;
use super::caller::RESEND_AFTER;
use super::cx::Cx;
use super::persistence::Place;
use crate::command::{Body, Call, Used};
use crate::container::Idle;
use crate::injected_bugs::InjectedBug;
use crate::operation::{Action, ReadFrom, ago};
use crate::{Entry, Flags, Segment, Version};

/// The limit of open questions of a member, for each cache. An entry beyond it is asked about when its timer or its caller
/// comes again.
const QUESTIONS_MAX: usize = 16_384;

/// The limit of calls that wait for one answer. A call beyond it is sent again by its caller.
const CALLS_PER_QUESTION_MAX: usize = 4_096;

/// The open questions of a member, each about an entry that may have expired.
#[derive(Default)]
pub(crate) struct Questions {
    open: BTreeMap<Place, Question>,
    /// The number of the last question. An answer to an earlier question about the same entry may no longer hold.
    last: u64,
    /// Whether the cache has had an entry with a `max_idle` here. Without one, no call has to ask.
    pub(super) may_arise: bool,
}

struct Question {
    version: Version,
    number: u64,
    asked: Time,
    /// The owners that have not answered.
    silent: Vec<Address>,
    /// The members that have asked this one.
    asking: Vec<Address>,
    waiting: Vec<Waiting>,
}

/// A call, and the topology with which it was accepted.
struct Waiting {
    from: Address,
    topology: u32,
    call: Call,
}

impl Questions {
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}

impl Cache {
    /// Returns whether other members have copies of entries.
    pub(super) fn is_shared(&self) -> bool {
        self.config.mode.is_shared()
    }

    /// Returns an entry that was not used here for too long, if all members are reachable that may have used it.
    fn doubtful(&self, now: Time, segment: Segment, key: &[u8]) -> Option<Entry> {
        let topology = self.topology()?;
        let entry = self.container.peek(segment, key).filter(|entry| entry.is_idle(now))?;
        self.refusal(topology, segment, true).is_none().then_some(entry)
    }

    /// Returns whether a call has to wait for the decision whether its key's entry has expired.
    pub(super) fn must_ask(&mut self, cx: &mut Cx, segment: Segment, call: &Call) -> bool {
        // Entries loaded from a store did not arrive as writes.
        let may_arise = self.questions.may_arise || self.is_backed();
        if !may_arise || !self.is_shared() || call.flags.contains(Flags::LOCAL) {
            return false;
        }
        let Some(topology) = self.topology() else { return false };
        let is_mine = match call.action {
            Action::Read(ReadFrom::Nearest) => {
                topology.read_owners().owners(segment).any(|owner| *owner == cx.local)
            }
            _ => self.orders(cx, segment),
        };
        let is_asked = is_mine && self.doubtful(cx.now, segment, &call.key).is_some();
        // An only owner needs no answer.
        is_asked && !self.end_if_alone(cx, segment, &call.key)
    }

    /// Lets a call wait for an answer about its key's entry.
    pub(super) fn ask_for_call(&mut self, cx: &mut Cx, segment: Segment, from: &Address, call: Call) {
        let version = self.container.version_of(segment, &call.key);
        let place = (segment, Bytes::copy_from_slice(&call.key));
        let topology = self.topology_id();
        let Some(question) = self.question(cx, place, version, None) else { return };
        let is_same = |one: &&mut Waiting| one.from == *from && one.call.number == call.number;
        let has_room = question.waiting.len() < CALLS_PER_QUESTION_MAX;
        match question.waiting.iter_mut().find(is_same) {
            Some(waiting) => (waiting.topology, waiting.call) = (topology, call),
            None if has_room => question.waiting.push(Waiting { from: from.clone(), topology, call }),
            None => cx.counters.overflowed += 1,
        }
    }

    /// Asks about entries that were not used here, after their timers. Only the primary does.
    pub(super) fn ask_for_idle(&mut self, cx: &mut Cx, idle: Vec<Idle>) {
        for Idle { segment, key, version } in idle {
            if self.orders(cx, segment) && !self.end_if_alone(cx, segment, &key) {
                self.question(cx, (segment, key), version, None);
            }
        }
    }

    /// Returns whether this member decides about a segment's entries, and waits for no last uses of members that it cannot ask
    /// any more.
    fn judges(&mut self, cx: &Cx, segment: Segment) -> bool {
        self.orders(cx, segment) && self.state(segment).uses_awaited.is_over(cx.now)
    }

    /// Removes an expired entry if this member is the only write owner. Returns whether it is.
    fn end_if_alone(&mut self, cx: &mut Cx, segment: Segment, key: &[u8]) -> bool {
        let is_alone = self.judges(cx, segment) && self.others(cx, segment).next().is_none();
        if is_alone {
            let expired = self.container.peek(segment, key);
            self.container.note_expiration();
            self.remove_expired(cx, segment, Bytes::copy_from_slice(key), expired);
        }
        is_alone
    }

    fn others<'a>(&'a self, cx: &'a Cx, segment: Segment) -> impl Iterator<Item = &'a Address> {
        self.write_owners(segment).filter(|owner| **owner != cx.local)
    }

    /// Returns the question about an entry, and sends it if it is new. Returns none if there are too many.
    fn question(
        &mut self,
        cx: &mut Cx,
        place: Place,
        version: Version,
        asking: Option<&Address>,
    ) -> Option<&mut Question> {
        let is_known = self.questions.open.get(&place).is_some_and(|one| one.version == version);
        if !is_known {
            if self.questions.open.len() >= QUESTIONS_MAX {
                cx.counters.overflowed += 1;
                return None;
            }
            let (segment, key) = &place;
            // The asking member is asked, too: it may meanwhile have received a later use from another owner.
            let silent: Vec<Address> = match self.is_primary(&cx.local, *segment) {
                true => self.others(cx, *segment).cloned().collect(),
                false => self.primary(*segment).cloned().into_iter().collect(),
            };
            self.questions.last += 1;
            let number = self.questions.last;
            for owner in &silent {
                self.send(cx, owner, Body::Idle { segment: *segment, key: key.clone(), version, number });
            }
            let (asking, waiting) = (Vec::new(), Vec::new());
            let question = Question { version, number, asked: cx.now, silent, asking, waiting };
            if let Some(before) = self.questions.open.insert(place.clone(), question) {
                // The earlier question was about a replaced entry: its calls find the new one.
                self.take_again(cx, before.waiting);
            }
        }
        let question = self.questions.open.get_mut(&place)?;
        if let Some(asking) = asking.filter(|asking| !question.asking.contains(asking)) {
            question.asking.push(asking.clone());
        }
        Some(question)
    }

    /// Handles a question: a member has not used an entry for too long.
    pub(super) fn handle_idle(
        &mut self,
        cx: &mut Cx,
        from: &Address,
        (segment, key): Place,
        version: Version,
        number: u64,
    ) {
        let entry = self.container.peek(segment, &key).filter(|entry| entry.version == version);
        let is_told = !cx.has(InjectedBug::UseDenied);
        let used = entry.as_ref().filter(|entry| is_told && !entry.is_expired(cx.now));
        let idle = used.map(|entry| cx.now.since(entry.last_used));
        let is_doubtful = entry.is_some_and(|entry| entry.is_idle(cx.now));
        if !is_doubtful || !self.is_primary(&cx.local, segment) {
            return self.send(cx, from, Body::Used(Used { segment, key, version, number, idle }));
        }
        // If this member does not answer, the asking member asks again.
        if self.orders(cx, segment) {
            let place = (segment, Bytes::copy_from_slice(&key));
            self.question(cx, place, version, Some(from));
        }
    }

    /// Handles an answer: a member has used an entry, or has not.
    pub(super) fn handle_used(&mut self, cx: &mut Cx, from: &Address, used: Used) {
        let Used { segment, key, version, number, idle } = used;
        let place = (segment, Bytes::copy_from_slice(&key));
        if let Some(idle) = idle
            && self.container.version_of(segment, &key) == version
        {
            let at = if cx.has(InjectedBug::UseRenewed) { cx.now } else { ago(cx.now, idle) };
            self.container.touch(segment, &key, at);
        }
        if self.questions.open.get(&place).is_none_or(|question| question.version != version) {
            return;
        }
        if idle.is_some() {
            return self.answer(cx, &place, idle);
        }
        let is_primarys = self.primary(segment) == Some(from);
        if let Some(question) = self.questions.open.get_mut(&place)
            && (question.number == number || is_primarys)
        {
            question.silent.retain(|owner| owner != from);
            self.end_if_answered(cx, &place);
        }
    }

    /// Expires an entry if all owners have answered that they have not used it.
    fn end_if_answered(&mut self, cx: &mut Cx, place: &Place) {
        let is_answered = self.questions.open.get(place).is_some_and(|one| one.silent.is_empty());
        let (segment, key) = place;
        if !is_answered {
            return;
        }
        let is_idle = self.doubtful(cx.now, *segment, key).is_some();
        if is_idle && self.judges(cx, *segment) && cx.calls.room() > 0 {
            let expired = self.container.peek(*segment, key);
            self.container.note_expiration();
            self.remove_expired(cx, *segment, key.clone(), expired);
        } else if is_idle {
            // The primary is about to change, has no room for calls, or waits for other owners: the question is sent again.
            return;
        }
        self.answer(cx, place, None);
    }

    /// Closes a question. The primary sends the result to all write owners and to the members that have asked.
    fn answer(&mut self, cx: &mut Cx, place: &Place, idle: Option<Duration>) {
        let Some(question) = self.questions.open.remove(place) else { return };
        let (segment, key) = place;
        if self.is_primary(&cx.local, *segment) {
            let mut told: Vec<Address> = self.others(cx, *segment).cloned().collect();
            told.extend(
                question
                    .asking
                    .into_iter()
                    .filter(|asking| !self.write_owners(*segment).any(|owner| owner == asking)),
            );
            for member in told {
                let (segment, key, version) = (*segment, key.clone(), question.version);
                let used = Used { segment, key, version, number: 0, idle };
                self.send(cx, &member, Body::Used(used));
            }
        }
        self.take_again(cx, question.waiting);
    }

    fn take_again(&mut self, cx: &mut Cx, waiting: Vec<Waiting>) {
        for Waiting { from, topology, call } in waiting {
            self.take_call(cx, &from, topology, call);
        }
    }

    /// Closes all questions and handles their calls again, because the owners to ask may differ under a new topology.
    pub(super) fn ask_anew(&mut self, cx: &mut Cx) {
        for (_, question) in std::mem::take(&mut self.questions.open) {
            self.take_again(cx, question.waiting);
        }
    }

    /// Handles the calls of late questions again, which ask anew if still needed.
    pub(crate) fn look_after_questions(&mut self, cx: &mut Cx) {
        let now = cx.now;
        let late = self.questions.open.extract_if(.., |_, one| now.since(one.asked) >= RESEND_AFTER);
        let late: Vec<Question> = late.map(|(_, question)| question).collect();
        for question in late {
            self.take_again(cx, question.waiting);
        }
    }
}
