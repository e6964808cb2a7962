//! The unfinished operations that this member has begun.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use consort_group::{Address, Time};
use smallvec::SmallVec;

use crate::command::{Ack, Call};
use crate::config::CacheId;
use crate::cx::response_window::{ResponseWindow, Slot};
use crate::operation::{Action, Change, Condition, OperationError, Outcome, Write};
use crate::{Flags, Segment, Version};

/// The first wait for a response: many round trips, and short beside every timeout.
pub(crate) const RESEND_AFTER: Duration = Duration::from_secs(1);

/// More copies would only fill a stopped or overloaded member's memory.
pub(crate) const RESEND_AFTER_MAX: Duration = Duration::from_secs(16);

/// The limit of operations from the oldest unfinished to the newest, because owners keep a record of each
/// write. A thousand callers with 64 operations each fit.
pub(crate) const CALLS_MAX: usize = 65_536;

pub(crate) struct InFlight {
    pub(crate) cache: CacheId,
    pub(crate) segment: Segment,
    pub(crate) key: Bytes,
    pub(crate) action: Action,
    pub(crate) flags: Flags,
    /// None if no member can carry out the operation.
    pub(crate) target: Option<Address>,
    pub(crate) sent: Time,
    pub(crate) patience: Duration,
    pub(crate) is_repeated: bool,
    /// Whether copies exist: the response to one does not determine the result of the other.
    pub(crate) is_sent_again: bool,
    pub(crate) began: Time,
    pub(crate) timeout: Duration,
    /// If the caller does not wait, the operation continues because the owners must agree.
    pub(crate) is_awaited: bool,
    pub(crate) response_bytes_max: u32,
    pub(crate) response_bytes: Option<u32>,
    pub(crate) keeps_target: bool,
    share: Share,
    acks: Acks,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Share {
    /// The call stays here, or its response has no value.
    None,
    Waits(Slot, u32),
    Comes(Slot, u32),
    Sent(Slot, u32),
}

#[derive(Default)]
struct Acks {
    epoch: u32,
    needed: u16,
    from: SmallVec<[Address; 2]>,
    outcome: Option<Outcome>,
}

impl InFlight {
    pub(crate) fn new(
        cache: CacheId,
        segment: Segment,
        key: Bytes,
        action: Action,
        now: Time,
        timeout: Duration,
    ) -> Self {
        Self {
            cache,
            segment,
            key,
            action,
            flags: Flags::NONE,
            target: None,
            sent: now,
            patience: RESEND_AFTER,
            is_repeated: false,
            is_sent_again: false,
            began: now,
            timeout,
            is_awaited: true,
            response_bytes_max: Call::ANY_BYTES,
            response_bytes: None,
            keeps_target: false,
            share: Share::None,
            acks: Acks::default(),
        }
    }

    pub(crate) fn waits_for_room(&self) -> bool {
        matches!(self.share, Share::Waits(..))
    }

    fn release(&mut self, number: u64, window: &mut ResponseWindow) {
        match std::mem::replace(&mut self.share, Share::None) {
            Share::None => {}
            Share::Waits(slot, bytes) => window.forget(slot, number, bytes),
            Share::Comes(slot, bytes) | Share::Sent(slot, bytes) => window.release(slot, bytes),
        }
    }

    fn has_response(&self) -> bool {
        match &self.action {
            Action::Read(_) => true,
            Action::Write(write) => write.wants_previous || self.response_bytes.is_some(),
        }
    }

    /// A write that changes nothing: an owner without a record of its number does nothing.
    pub(crate) fn nothing() -> Action {
        let condition = Condition::Version(Version::NONE);
        Action::Write(Write { condition, change: Change::Remove, wants_previous: false })
    }

    /// The previous value is removed if only listeners have asked for it.
    fn for_caller(&self, mut result: Result<Outcome, OperationError>) -> Result<Outcome, OperationError> {
        if let (Action::Write(write), Ok(Outcome::Written(written))) = (&self.action, &mut result)
            && !write.wants_previous
        {
            written.previous = None;
        }
        result
    }

    pub(crate) fn is_write(&self) -> bool {
        matches!(self.action, Action::Write(_))
    }

    pub(crate) fn may_have_been_applied(&self) -> bool {
        self.is_write() && self.is_repeated
    }

    pub(crate) fn deadline(&self) -> Time {
        self.began + self.timeout
    }

    /// Responses of earlier primaries do not count: this one may do writes that they have not done, and so
    /// not handed over.
    pub(crate) fn expect(&mut self, epoch: u32) {
        if epoch > self.acks.epoch {
            self.acks = Acks { epoch, ..Acks::default() };
        }
    }

    /// Whether a primary with this topology knows at least the epoch of the last send.
    pub(crate) fn is_expected(&self, topology: u32) -> bool {
        topology >= self.acks.epoch
    }

    pub(crate) fn knows(&self, epoch: u32) -> bool {
        self.acks.epoch >= epoch
    }

    pub(crate) fn is_acked_by(&self, member: &Address) -> bool {
        self.acks.from.contains(member)
    }

    /// Returns the outcome with the last acknowledgement of its epoch.
    fn ack(&mut self, from: &Address, ack: &mut Ack) -> Option<Outcome> {
        let acks = &mut self.acks;
        if ack.epoch < acks.epoch {
            return None;
        }
        if ack.epoch > acks.epoch {
            *acks = Acks { epoch: ack.epoch, ..Acks::default() };
        }
        if !acks.from.contains(from) {
            acks.from.push(from.clone());
        }
        if ack.outcome.is_some() {
            acks.outcome = ack.outcome.take();
        }
        acks.needed = acks.needed.max(ack.expected_acks);
        if acks.from.len() >= usize::from(acks.needed) { acks.outcome.take() } else { None }
    }
}

fn value_len(result: &Result<Outcome, OperationError>) -> Option<usize> {
    let value = match result.as_ref().ok()? {
        Outcome::Read(read) => read.as_ref(),
        Outcome::Written(written) => written.previous.as_ref(),
    };
    Some(value.map_or(0, |stored| stored.value.len()))
}

pub(crate) type Finished = (u64, Result<Outcome, OperationError>);

#[derive(Default)]
pub(crate) struct Calls {
    /// Every lower number is finished.
    base: u64,
    calls: VecDeque<Option<InFlight>>,
    count: usize,
    pub(crate) finished: VecDeque<Finished>,
    pub(crate) window: ResponseWindow,
}

impl Calls {
    pub(crate) fn finished_below(&self) -> u64 {
        self.base
    }

    pub(crate) fn is_full(&self) -> bool {
        self.calls.len() >= CALLS_MAX
    }

    pub(crate) fn room(&self) -> usize {
        CALLS_MAX.saturating_sub(self.calls.len())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn open(&mut self, call: InFlight) -> u64 {
        self.calls.push_back(Some(call));
        self.count += 1;
        self.base + self.calls.len() as u64 - 1
    }

    /// None if the call has to wait.
    pub(crate) fn reserve(&mut self, number: u64, target: &Address) -> Option<u32> {
        let (call, window) = self.with_window(number)?;
        if !call.has_response() {
            call.release(number, window);
            return Some(window.small_bytes());
        }
        let (share, needed) = (call.share, call.response_bytes);
        let is_same = share != Share::None && call.target.as_ref() == Some(target);
        let is_enough = |bytes: u32| is_same && needed.is_none_or(|one| one <= bytes);
        let (slot, bytes) = match share {
            Share::Sent(_, bytes) if is_enough(bytes) => return Some(bytes),
            Share::Comes(slot, bytes) if is_enough(bytes) => (slot, bytes),
            Share::Waits(_, bytes) if is_same && needed.is_none_or(|one| one == bytes) => return None,
            _ => {
                call.release(number, window);
                let slot = window.slot(target);
                let bytes = needed.unwrap_or_else(|| window.expected(slot));
                if !window.reserve(slot, number, bytes) {
                    call.share = Share::Waits(slot, bytes);
                    return None;
                }
                (slot, bytes)
            }
        };
        call.share = Share::Sent(slot, bytes);
        Some(bytes)
    }

    pub(crate) fn release(&mut self, number: u64) {
        if let Some((call, window)) = self.with_window(number) {
            call.release(number, window);
        }
    }

    fn with_window(&mut self, number: u64) -> Option<(&mut InFlight, &mut ResponseWindow)> {
        let at = usize::try_from(number.checked_sub(self.base)?).ok()?;
        Some((self.calls.get_mut(at)?.as_mut()?, &mut self.window))
    }

    pub(crate) fn unassign(&mut self, number: u64) {
        self.release(number);
        if let Some(call) = self.get_mut(number) {
            call.target = None;
        }
    }

    pub(crate) fn next_with_room(&mut self) -> Option<(CacheId, u64)> {
        loop {
            let number = self.window.next()?;
            // A waiting reservation is dropped when its call ends.
            if let Some(call) = self.get_mut(number)
                && let Share::Waits(slot, bytes) = call.share
            {
                call.share = Share::Comes(slot, bytes);
                call.keeps_target = true;
                return Some((call.cache, number));
            }
        }
    }

    /// Whether to send the call again: not if it was meanwhile, or if its caller accepts no such value.
    pub(crate) fn note_size(&mut self, from: &Address, number: u64, bytes: u32) -> bool {
        if let Some(slot) = self.window.find(from) {
            self.window.note_response(slot, bytes as usize);
        }
        let Some(call) = self.get_mut(number) else { return false };
        if call.response_bytes.is_some_and(|known| known >= bytes) {
            return false;
        }
        // If it was sent twice, the other copy may be carried out.
        let can_end = !call.is_write() || !call.is_sent_again;
        if bytes > call.response_bytes_max && can_end {
            let limit = call.response_bytes_max;
            self.finish(number, Err(OperationError::LargeResponse { bytes, limit }));
            return false;
        }
        // The doubled size gets ahead in the end, even if other callers write larger and larger values meanwhile.
        let known = call.response_bytes.map_or(0, |known| known.saturating_mul(2));
        call.response_bytes = Some(bytes.max(known));
        call.keeps_target = true;
        true
    }

    pub(crate) fn end_at_once(&mut self, result: Result<Outcome, OperationError>) -> u64 {
        let number = self.base + self.calls.len() as u64;
        if self.calls.is_empty() {
            self.base += 1;
        } else {
            self.calls.push_back(None);
        }
        self.finished.push_back((number, result));
        number
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut InFlight> {
        let at = usize::try_from(number.checked_sub(self.base)?).ok()?;
        self.calls.get_mut(at)?.as_mut()
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn of(&self, cache: CacheId) -> Vec<u64> {
        let is_its = |call: &Option<InFlight>| call.as_ref().is_some_and(|call| call.cache == cache);
        let its = self.calls.iter().enumerate().filter(|(_, call)| is_its(call));
        its.map(|(at, _)| self.base + at as u64).collect()
    }

    pub(crate) fn ack(&mut self, from: &Address, mut ack: Ack) {
        let number = ack.number;
        if let Some(outcome) = self.get_mut(number).and_then(|call| call.ack(from, &mut ack)) {
            self.finish(number, Ok(outcome));
        }
    }

    pub(crate) fn finish(&mut self, number: u64, result: Result<Outcome, OperationError>) {
        let Some(at) = number.checked_sub(self.base).and_then(|at| usize::try_from(at).ok()) else { return };
        let Some(place @ Some(_)) = self.calls.get_mut(at) else { return };
        if let Some(call) = place {
            if let (Share::Sent(slot, _), Some(bytes)) = (call.share, value_len(&result)) {
                self.window.note_response(slot, bytes);
            }
            call.release(number, &mut self.window);
            if call.is_awaited {
                self.finished.push_back((number, call.for_caller(result)));
            }
        }
        // The call is dropped in place: its several hundred bytes need not be moved for that.
        *place = None;
        self.count -= 1;
        while let Some(None) = self.calls.front() {
            self.calls.pop_front();
            self.base += 1;
        }
    }

    /// Gives up a write whose result cannot be known. If some owners have the write, its number is finished
    /// only when all have it; it is never carried out anew.
    pub(crate) fn let_go(&mut self, number: u64) {
        self.give_up(number, OperationError::Uncertain);
        self.unassign(number);
        if let Some(call) = self.get_mut(number) {
            call.action = InFlight::nothing();
            call.flags = Flags::NONE;
        }
    }

    pub(crate) fn give_up(&mut self, number: u64, error: OperationError) {
        self.tell(number, Err(error));
    }

    pub(crate) fn tell(&mut self, number: u64, result: Result<Outcome, OperationError>) {
        if let Some(call) = self.get_mut(number)
            && call.is_awaited
        {
            call.is_awaited = false;
            let result = call.for_caller(result);
            self.finished.push_back((number, result));
        }
    }
}

#[cfg(test)]
mod tests {
    use consort_group::Uuid;

    use super::*;
    use crate::operation::ReadFrom;

    fn call() -> InFlight {
        let action = Action::Read(ReadFrom::Nearest);
        InFlight::new(CacheId(1), Segment(0), Bytes::new(), action, Time::ZERO, Duration::from_secs(1))
    }

    fn member(n: u64) -> Address {
        Address::Uuid(Uuid { most: 0, least: n })
    }

    fn ack(number: u64, epoch: u32, outcome: Option<Outcome>) -> Ack {
        Ack { number, epoch, expected_acks: 2, outcome }
    }

    #[test]
    fn as_many_are_waited_for_as_anybody_has_said() {
        let mut calls = Calls::default();
        let number = calls.open(call());
        calls.ack(&member(1), Ack { expected_acks: 3, ..ack(number, 1, Some(Outcome::Read(None))) });
        calls.ack(&member(2), ack(number, 1, None));
        assert_eq!(calls.finished.len(), 0);
        calls.ack(&member(3), ack(number, 1, None));
        assert_eq!(calls.finished.len(), 1);
    }

    #[test]
    fn finished_calls_are_those_below_the_oldest_unfinished_one() {
        let mut calls = Calls::default();
        let numbers: Vec<u64> = (0..4).map(|_| calls.open(call())).collect();
        assert_eq!(numbers, [0, 1, 2, 3]);
        calls.finish(1, Ok(Outcome::Read(None)));
        calls.finish(2, Ok(Outcome::Read(None)));
        assert_eq!(calls.finished_below(), 0);
        calls.finish(0, Ok(Outcome::Read(None)));
        assert_eq!(calls.finished_below(), 3);
        calls.finish(1, Ok(Outcome::Read(None)));
        assert_eq!(calls.finished.len(), 3, "an operation ends once");
        assert_eq!(calls.open(call()), 4);
    }

    #[test]
    fn call_that_ends_at_once_is_finished_after_older_calls() {
        let mut calls = Calls::default();
        let ended = |calls: &mut Calls| calls.end_at_once(Ok(Outcome::Read(None)));
        assert_eq!((ended(&mut calls), calls.finished_below()), (0, 1));
        let number = calls.open(call());
        assert_eq!((number, ended(&mut calls), calls.finished_below()), (1, 2, 1));
        calls.finish(number, Ok(Outcome::Read(None)));
        assert_eq!((calls.finished.len(), calls.finished_below(), calls.count()), (3, 3, 0));
    }

    #[test]
    fn acknowledgements_of_two_epochs_do_not_add_up() {
        let mut calls = Calls::default();
        let number = calls.open(call());
        let outcome = Some(Outcome::Read(None));
        calls.ack(&member(1), ack(number, 5, outcome.clone()));
        calls.ack(&member(1), ack(number, 5, None));
        calls.ack(&member(2), ack(number, 6, None));
        calls.ack(&member(3), ack(number, 5, None));
        assert!(calls.finished.is_empty());
        calls.ack(&member(1), ack(number, 6, outcome));
        assert_eq!(calls.finished.len(), 1);
    }

    #[test]
    fn caller_that_stopped_waiting_gets_no_second_result() {
        let mut calls = Calls::default();
        let number = calls.open(call());
        calls.give_up(number, OperationError::TimedOut(Duration::from_secs(1)));
        assert_eq!((calls.finished.len(), calls.finished_below()), (1, 0));
        calls.finish(number, Ok(Outcome::Read(None)));
        assert_eq!((calls.finished.len(), calls.finished_below()), (1, 1));
    }

    /// Owners that lack a write with a finished number would believe that all have it.
    #[test]
    fn uncertain_call_reports_its_result_and_stays_unfinished() {
        let mut calls = Calls::default();
        let number = calls.open(call());
        calls.let_go(number);
        assert_eq!(calls.finished.pop_front(), Some((number, Err(OperationError::Uncertain))));
        assert_eq!(
            (calls.finished_below(), calls.get_mut(number).map(|call| call.is_write())),
            (0, Some(true))
        );
        calls.ack(&member(1), ack(number, 5, Some(Outcome::Read(None))));
        calls.ack(&member(2), ack(number, 5, None));
        assert_eq!((calls.finished.len(), calls.finished_below()), (0, 1));
    }
}
