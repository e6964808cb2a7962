//! Entries that live as long as they are used: whoever has not used one for too long asks before it has expired.
//!
//! Every owner notes when it gave an entry itself. By whose clock the time is over, be it found by a read or by a timer,
//! asks the primary, and the primary asks all other write owners. If one has used the entry, all are told when; if none
//! has, the primary removes it as a write. An owner that has said that it has not used it gives it to nobody before it
//! hears of the primary, so what all have said to one question still holds when the primary removes it.
//!
//! Who gives a segment's entries no more tells the primary when it gave them last (`uses`).
//!
//! While an owner is away nobody can tell: then what was not used here is not read here, and stays until all are back.

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
use crate::operation::{Action, ReadFrom, ago};
use crate::planted::Planted;
use crate::{Entry, Flags, Segment, Version};

/// Entries that a member asks about at a time, for each cache. What does not fit is asked when its timer or its caller
/// comes again.
const QUESTIONS_MAX: usize = 16_384;

/// Calls that wait for one answer; what does not fit is sent again by its caller.
const CALLS_PER_QUESTION_MAX: usize = 4_096;

/// What a member does not know of its own entries.
#[derive(Default)]
pub(crate) struct Questions {
    open: BTreeMap<Place, Question>,
    /// The number of the last one: what was said to an earlier one about the same entry may no longer hold.
    last: u64,
    /// Whether the cache has had an entry with a `max_idle` here: else no call looks for one.
    pub(super) may_arise: bool,
}

struct Question {
    version: Version,
    number: u64,
    asked: Time,
    /// Who has not answered.
    silent: Vec<Address>,
    /// Who has asked us.
    asking: Vec<Address>,
    waiting: Vec<Waiting>,
}

/// A call, and the topology with which it was taken.
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
    /// Whether other members have copies of entries.
    pub(super) fn is_shared(&self) -> bool {
        self.config.mode.is_shared()
    }

    /// An entry that was not used here for too long, if everybody is there who may have.
    fn doubtful(&self, now: Time, segment: Segment, key: &[u8]) -> Option<Entry> {
        let topology = self.topology()?;
        let entry = self.container.peek(segment, key).filter(|entry| entry.is_idle(now))?;
        self.refusal(topology, segment, true).is_none().then_some(entry)
    }

    /// Whether a call has to wait until it is known whether its key's entry has expired.
    pub(super) fn must_ask(&mut self, cx: &mut Cx, segment: Segment, call: &Call) -> bool {
        // What was loaded from a store did not come as a write.
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
        // Who is alone knows.
        is_asked && !self.end_if_alone(cx, segment, &call.key)
    }

    /// A call waits for an answer.
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

    /// Timers have come of entries that were not used here. It is for the primary to find out.
    pub(super) fn ask_for_idle(&mut self, cx: &mut Cx, idle: Vec<Idle>) {
        for Idle { segment, key, version } in idle {
            if self.orders(cx, segment) && !self.end_if_alone(cx, segment, &key) {
                self.question(cx, (segment, key), version, None);
            }
        }
    }

    /// Whether this member decides, and there is nobody to be heard whom it cannot ask any more.
    fn judges(&mut self, cx: &Cx, segment: Segment) -> bool {
        self.orders(cx, segment) && self.state(segment).uses_awaited.is_over(cx.now)
    }

    /// As the only write owner: nobody else has used it. Returns whether that is so.
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

    /// The question about an entry, asked if it is new; none if there are too many.
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
            // Also whoever asks: it may have heard meanwhile that somebody has used it.
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
                // About an entry that is no more: its calls find another one.
                self.take_again(cx, before.waiting);
            }
        }
        let question = self.questions.open.get_mut(&place)?;
        if let Some(asking) = asking.filter(|asking| !question.asking.contains(asking)) {
            question.asking.push(asking.clone());
        }
        Some(question)
    }

    /// Somebody has not used an entry for too long.
    pub(super) fn handle_idle(
        &mut self,
        cx: &mut Cx,
        from: &Address,
        (segment, key): Place,
        version: Version,
        number: u64,
    ) {
        let entry = self.container.peek(segment, &key).filter(|entry| entry.version == version);
        let is_told = !cx.has(Planted::UseDenied);
        let used = entry.as_ref().filter(|entry| is_told && !entry.is_expired(cx.now));
        let idle = used.map(|entry| cx.now.since(entry.last_used));
        let is_doubtful = entry.is_some_and(|entry| entry.is_idle(cx.now));
        if !is_doubtful || !self.is_primary(&cx.local, segment) {
            return self.send(cx, from, Body::Used(Used { segment, key, version, number, idle }));
        }
        // Without an answer it is asked again.
        if self.orders(cx, segment) {
            let place = (segment, Bytes::copy_from_slice(&key));
            self.question(cx, place, version, Some(from));
        }
    }

    /// Somebody has used an entry, or not.
    pub(super) fn handle_used(&mut self, cx: &mut Cx, from: &Address, used: Used) {
        let Used { segment, key, version, number, idle } = used;
        let place = (segment, Bytes::copy_from_slice(&key));
        if let Some(idle) = idle
            && self.container.version_of(segment, &key) == version
        {
            let at = if cx.has(Planted::UseRenewed) { cx.now } else { ago(cx.now, idle) };
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

    /// If all have said that they have not used an entry, it has expired.
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
            // Its primary is about to change, has too much to do, or waits for others: it is asked again.
            return;
        }
        self.answer(cx, place, None);
    }

    /// It is known whether an entry lives. The primary tells all write owners and whoever has asked.
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

    /// With another topology others are asked, or nobody.
    pub(super) fn ask_anew(&mut self, cx: &mut Cx) {
        for (_, question) in std::mem::take(&mut self.questions.open) {
            self.take_again(cx, question.waiting);
        }
    }

    /// What was not answered is asked again, if anybody wants to know.
    pub(crate) fn look_after_questions(&mut self, cx: &mut Cx) {
        let now = cx.now;
        let late = self.questions.open.extract_if(.., |_, one| now.since(one.asked) >= RESEND_AFTER);
        let late: Vec<Question> = late.map(|(_, question)| question).collect();
        for question in late {
            self.take_again(cx, question.waiting);
        }
    }
}
