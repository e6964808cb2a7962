//! Matches answers to calls, and ends calls early when members leave or are suspected, or late when their time is over.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use consort_group::{Address, Payload, View};
use tokio::sync::oneshot;

use super::request::{Response, ResponseFilter, ResponseMode, Responses, Verdict};
use crate::error::RpcError;

/// One member's answer, or why there is none.
type Answer = Result<Payload, RpcError>;

/// A call that waits.
struct Call {
    wait: Wait,
    timeout: Duration,
    /// `None`: so far away that no clock shows it.
    deadline: Option<Instant>,
    /// When it was sent, if round trips are measured.
    sent: Option<Instant>,
}

/// For whose answers, and who is told.
enum Wait {
    One { member: Address, done: oneshot::Sender<Answer> },
    Group(Box<Group>),
}

struct Group {
    /// Who has not answered yet.
    missing: Vec<Address>,
    responses: Responses,
    mode: ResponseMode,
    filter: Option<ResponseFilter>,
    done: oneshot::Sender<Responses>,
}

impl Group {
    /// Takes an answer. Returns whether it was waited for, and whether the call is over with it.
    fn answer(&mut self, member: &Address, result: &mut Answer) -> (bool, bool) {
        let Some(at) = self.missing.iter().position(|other| other == member) else { return (false, false) };
        self.missing.swap_remove(at);
        let result = std::mem::replace(result, Ok(Payload::Empty));
        let verdict = match (&self.filter, &result) {
            (Some(filter), Ok(payload)) => filter(member, payload),
            _ => Verdict::Take,
        };
        let is_good = result.is_ok();
        if verdict != Verdict::Skip {
            self.responses.push(Response { member: member.clone(), result });
        }
        let is_over = verdict == Verdict::TakeAndStop
            || self.missing.is_empty()
            || (self.mode == ResponseMode::First && is_good && verdict == Verdict::Take);
        (true, is_over)
    }

    /// Who is lost fails with `error`.
    fn lose(&mut self, is_lost: impl Fn(&Address) -> bool, error: impl Fn(&Address) -> RpcError) {
        let Self { missing, responses, .. } = self;
        missing.retain(|member| {
            let is_lost = is_lost(member);
            if is_lost {
                responses.push(Response { member: member.clone(), result: Err(error(member)) });
            }
            !is_lost
        });
    }
}

impl Wait {
    fn concerns(&self, is_lost: impl Fn(&Address) -> bool) -> bool {
        match self {
            Self::One { member, .. } => is_lost(member),
            Self::Group(group) => group.missing.iter().any(is_lost),
        }
    }

    /// Ends the call: who is missing fails with `error`.
    fn end(self, error: impl Fn(&Address) -> RpcError) {
        match self {
            Self::One { member, done } => {
                let _ = done.send(Err(error(&member)));
            }
            Self::Group(mut group) => {
                group.lose(|_| true, error);
                let _ = group.done.send(group.responses);
            }
        }
    }
}

/// What a group call waits for.
pub(super) struct GroupCall {
    pub(super) members: Vec<Address>,
    pub(super) mode: ResponseMode,
    pub(super) filter: Option<ResponseFilter>,
}

/// A finished round trip, for statistics.
pub(super) struct RoundTrip {
    pub(super) sent: Instant,
    pub(super) is_group: bool,
}

/// Spreads numbers that we count ourselves: nobody can choose them so that they collide.
#[derive(Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0 ^ u64::from(byte));
        }
    }

    fn write_u64(&mut self, id: u64) {
        self.0 = id.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[derive(Default)]
struct Calls {
    next_id: u64,
    calls: HashMap<u64, Call, BuildHasherDefault<IdHasher>>,
    /// No call's time is over before.
    next_deadline: Option<Instant>,
    is_closed: bool,
}

/// All calls of a dispatcher that wait for answers. Bounded by the callers: each waits for its own.
///
/// There is no timer per call: almost all calls end long before their time is over, and whoever owns the clock asks
/// for the earliest deadline ([`Correlator::next_deadline`]) after every call that was sent.
#[derive(Default)]
pub(super) struct Correlator {
    calls: Mutex<Calls>,
}

impl Correlator {
    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a call to one member; `None` if the channel is closed.
    pub(super) fn open_one(
        &self,
        member: Address,
        timeout: Duration,
        is_timed: bool,
    ) -> Option<(u64, oneshot::Receiver<Answer>)> {
        let (done, wait) = oneshot::channel();
        Some((self.open(Wait::One { member, done }, timeout, is_timed)?, wait))
    }

    /// Opens a call to several members; `None` if the channel is closed.
    pub(super) fn open_group(
        &self,
        call: GroupCall,
        timeout: Duration,
        is_timed: bool,
    ) -> Option<(u64, oneshot::Receiver<Responses>)> {
        let (done, wait) = oneshot::channel();
        let GroupCall { members, mode, filter } = call;
        let group = Group { missing: members, responses: Vec::new(), mode, filter, done };
        Some((self.open(Wait::Group(Box::new(group)), timeout, is_timed)?, wait))
    }

    fn open(&self, wait: Wait, timeout: Duration, is_timed: bool) -> Option<u64> {
        let now = Instant::now();
        let deadline = now.checked_add(timeout);
        let call = Call { wait, timeout, deadline, sent: is_timed.then_some(now) };
        let mut calls = self.lock();
        if calls.is_closed {
            return None;
        }
        calls.next_id += 1;
        let id = calls.next_id;
        calls.calls.insert(id, call);
        calls.next_deadline = earlier(calls.next_deadline, deadline);
        Some(id)
    }

    /// The caller waits no longer.
    pub(super) fn forget(&self, id: u64) {
        self.lock().calls.remove(&id);
    }

    /// An answer has come.
    pub(super) fn answer(&self, id: u64, member: &Address, mut result: Answer) -> Option<RoundTrip> {
        let mut calls = self.lock();
        let Entry::Occupied(mut call) = calls.calls.entry(id) else { return None };
        let (was_awaited, is_over) = match &mut call.get_mut().wait {
            Wait::One { member: one, .. } => (one == member, one == member),
            Wait::Group(group) => group.answer(member, &mut result),
        };
        if !was_awaited {
            return None;
        }
        let sent = call.get().sent;
        let is_group = matches!(call.get().wait, Wait::Group(_));
        if is_over {
            let call = call.remove();
            drop(calls);
            match call.wait {
                Wait::One { done, .. } => drop(done.send(result)),
                Wait::Group(group) => drop(group.done.send(group.responses)),
            }
        }
        sent.map(|sent| RoundTrip { sent, is_group })
    }

    /// These members will not answer any more.
    pub(super) fn lose(&self, is_lost: impl Fn(&Address) -> bool) {
        let mut calls = self.lock();
        let concerned = calls.calls.iter().filter(|(_, call)| call.wait.concerns(&is_lost));
        let ids: Vec<u64> = concerned.map(|(&id, _)| id).collect();
        let suspected = |member: &Address| RpcError::Suspected(member.clone());
        for id in ids {
            if let Some(Call { wait: Wait::Group(group), .. }) = calls.calls.get_mut(&id) {
                group.lose(&is_lost, suspected);
                if !group.missing.is_empty() {
                    continue;
                }
            }
            if let Some(call) = calls.calls.remove(&id) {
                call.wait.end(suspected);
            }
        }
    }

    /// Members that are not in the view will not answer any more.
    pub(super) fn view(&self, view: &View) {
        self.lose(|member| !view.contains(member));
    }

    /// When [`Correlator::expire`] wants to be called.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.lock().next_deadline
    }

    /// Ends the calls whose time is over.
    pub(super) fn expire(&self, now: Instant) {
        let mut calls = self.lock();
        let is_over = |call: &Call| call.deadline.is_some_and(|deadline| deadline <= now);
        let over: Vec<u64> =
            calls.calls.iter().filter(|(_, call)| is_over(call)).map(|(&id, _)| id).collect();
        for id in over {
            if let Some(call) = calls.calls.remove(&id) {
                call.wait.end(|_| RpcError::TimedOut(call.timeout));
            }
        }
        calls.next_deadline = calls.calls.values().filter_map(|call| call.deadline).min();
    }

    /// No call is answered any more.
    pub(super) fn close(&self) {
        let mut calls = self.lock();
        calls.is_closed = true;
        calls.calls.clear();
        calls.next_deadline = None;
    }

    /// How many calls wait.
    pub(super) fn len(&self) -> usize {
        self.lock().calls.len()
    }
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use consort_group::Uuid;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn member(n: u64) -> Address {
        Address::Uuid(Uuid { most: n, least: n })
    }

    fn group(members: &[u64]) -> GroupCall {
        let members = members.iter().map(|&n| member(n)).collect();
        GroupCall { members, mode: ResponseMode::All, filter: None }
    }

    #[test]
    fn a_call_ends_when_its_time_is_over_and_not_before() {
        let correlator = Correlator::default();
        let (_, mut late) = correlator.open_one(member(1), 3 * SECOND, false).unwrap();
        let (id, mut soon) = correlator.open_group(group(&[1, 2]), SECOND, false).unwrap();
        correlator.answer(id, &member(2), Ok(Payload::Empty));
        let due = correlator.next_deadline().unwrap();
        correlator.expire(due.checked_sub(Duration::from_nanos(1)).unwrap());
        assert!(soon.try_recv().is_err() && correlator.len() == 2);
        correlator.expire(due);
        let results = soon.try_recv().unwrap().into_iter().map(|row| (row.member, row.result));
        assert_eq!(
            results.collect::<Vec<_>>(),
            [(member(2), Ok(Payload::Empty)), (member(1), Err(RpcError::TimedOut(SECOND)))]
        );
        let next = correlator.next_deadline().unwrap();
        assert!(next > due && late.try_recv().is_err());
        correlator.expire(next);
        assert_eq!(late.try_recv().unwrap(), Err(RpcError::TimedOut(3 * SECOND)));
        assert_eq!((correlator.next_deadline(), correlator.len()), (None, 0));
    }

    #[test]
    fn a_call_without_end_has_no_deadline() {
        let correlator = Correlator::default();
        let (_, _wait) = correlator.open_one(member(1), Duration::MAX, false).unwrap();
        assert_eq!(correlator.next_deadline(), None);
        correlator.expire(Instant::now());
        assert_eq!(correlator.len(), 1);
    }

    #[test]
    fn an_answer_of_another_member_or_call_is_ignored() {
        let correlator = Correlator::default();
        let (id, mut wait) = correlator.open_one(member(1), SECOND, true).unwrap();
        assert!(correlator.answer(id, &member(2), Ok(Payload::Empty)).is_none());
        assert!(correlator.answer(id + 1, &member(1), Ok(Payload::Empty)).is_none());
        assert!(wait.try_recv().is_err());
        assert!(correlator.answer(id, &member(1), Ok(Payload::Long(7))).is_some());
        assert_eq!(wait.try_recv().unwrap(), Ok(Payload::Long(7)));
        assert!(correlator.answer(id, &member(1), Ok(Payload::Long(8))).is_none());
    }

    #[test]
    fn members_that_are_lost_end_the_calls_that_wait_for_them_alone() {
        let correlator = Correlator::default();
        let (_, mut one) = correlator.open_one(member(1), SECOND, false).unwrap();
        let (id, mut both) = correlator.open_group(group(&[1, 2]), SECOND, false).unwrap();
        correlator.lose(|lost| *lost == member(1));
        assert_eq!(one.try_recv().unwrap(), Err(RpcError::Suspected(member(1))));
        assert!(both.try_recv().is_err());
        correlator.answer(id, &member(2), Ok(Payload::Empty));
        assert_eq!(both.try_recv().unwrap().len(), 2);
    }
}
