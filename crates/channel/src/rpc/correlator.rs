//! The pending calls: responses complete them; lost members or timeouts end them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use consort_group::{Address, Payload, View, ViewId};
use tokio::sync::oneshot;

use super::request::{FilterDecision, RequestOptions, Response, ResponseFilter, ResponseMode, Responses};
use crate::error::RpcError;

type Answer = Result<Payload, RpcError>;

/// The error is the filter's panic.
type Outcome = std::thread::Result<Responses>;

struct Call {
    wait: Wait,
    timeout: Duration,
    /// `None` is beyond the clock's range.
    deadline: Option<Instant>,
    /// Present if round trips are measured.
    sent: Option<Instant>,
}

pub(super) enum Wait {
    One { member: Address, done: oneshot::Sender<Answer> },
    Group(Box<Group>),
}

pub(super) struct Group {
    missing: Vec<Address>,
    responses: Responses,
    mode: ResponseMode,
    filter: Option<ResponseFilter>,
    done: oneshot::Sender<Outcome>,
}

impl Group {
    /// Whether the response was awaited, and whether it completes the call.
    fn answer(&mut self, member: &Address, result: &mut Answer, decision: FilterDecision) -> (bool, bool) {
        // The member itself before the site master, which another one may answer for.
        let at = self.missing.iter().position(|called| called == member);
        let at = at.or_else(|| self.missing.iter().position(|called| is_answer_of(called, member)));
        let Some(at) = at else { return (false, false) };
        let called = self.missing.swap_remove(at);
        let result = std::mem::replace(result, Ok(Payload::Empty));
        let is_good = result.is_ok();
        if decision != FilterDecision::Ignore {
            self.responses.push(Response { member: called, result });
        }
        let is_over = decision == FilterDecision::AcceptAndStop
            || self.missing.is_empty()
            || (self.mode == ResponseMode::First && is_good && decision == FilterDecision::Accept);
        (true, is_over)
    }

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
    pub(super) fn group(
        members: Vec<Address>,
        options: &RequestOptions,
        done: oneshot::Sender<Outcome>,
    ) -> Self {
        let (mode, filter) = (options.mode, options.filter.clone());
        Self::Group(Box::new(Group { missing: members, responses: Vec::new(), mode, filter, done }))
    }

    fn filter(&self, member: &Address) -> Option<ResponseFilter> {
        match self {
            Self::One { .. } => None,
            Self::Group(group) => {
                let is_awaited = || group.missing.iter().any(|called| is_answer_of(called, member));
                group.filter.clone().filter(|_| is_awaited())
            }
        }
    }

    fn lose(&mut self, is_lost: impl Fn(&Address) -> bool, error: impl Fn(&Address) -> RpcError) -> bool {
        match self {
            Self::One { member, .. } => is_lost(member),
            Self::Group(group) => {
                group.lose(is_lost, error);
                group.missing.is_empty()
            }
        }
    }

    fn end(self, error: impl Fn(&Address) -> RpcError) {
        match self {
            Self::One { member, done } => {
                let _ = done.send(Err(error(&member)));
            }
            Self::Group(mut group) => {
                group.lose(|_| true, error);
                let _ = group.done.send(Ok(group.responses));
            }
        }
    }
}

fn suspected(member: &Address) -> RpcError {
    RpcError::Suspected(member.clone().into())
}

fn unreachable(member: &Address) -> RpcError {
    RpcError::SiteUnreachable(member.site().unwrap_or_default().into())
}

/// Any of a site's masters answers a call of the site master, and one of any site a call of all site masters.
fn is_answer_of(called: &Address, src: &Address) -> bool {
    called == src || (called.is_site_master() && called.site().is_none_or(|site| Some(site) == src.site()))
}

/// Returns whether the member has left: it is of this site and not in the view. The views of other sites are not known.
fn is_outside(member: &Address, view: Option<&View>) -> bool {
    view.map_or(!member.is_of_site(), |view| !member.is_beyond(view) && !view.contains(member))
}

pub(super) struct RoundTrip {
    pub(super) sent: Instant,
    pub(super) is_group: bool,
}

/// Numbers are local, so a peer cannot make them collide.
#[derive(Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, _: &[u8]) {
        unreachable!("numbers are hashed");
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
    view: Option<View>,
    /// No call has an earlier deadline.
    next_deadline: Option<Instant>,
    is_closed: bool,
}

/// A dispatcher's pending calls; their callers bound them.
///
/// There is no timer per call, because almost all end long before: the clock's owner asks for the earliest deadline
/// ([`Correlator::next_deadline`]). Calls complete outside the lock, because a woken caller may take it at once.
#[derive(Default)]
pub(super) struct Correlator {
    calls: Mutex<Calls>,
}

impl Correlator {
    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` after the close. Members outside the last view fail at once, because their end was reported before. `known` is a
    /// view with all members.
    pub(super) fn open<T>(
        &self,
        timeout: Duration,
        is_timed: bool,
        known: Option<&ViewId>,
        wait: impl FnOnce(oneshot::Sender<T>) -> Wait,
    ) -> Option<(u64, oneshot::Receiver<T>)> {
        let (done, outcome) = oneshot::channel();
        let mut wait = wait(done);
        let now = Instant::now();
        let deadline = now.checked_add(timeout);
        let mut calls = self.lock();
        if calls.is_closed {
            return None;
        }
        calls.next_id += 1;
        let id = calls.next_id;
        let view = calls.view.as_ref();
        let is_known = known.is_some() && known == view.map(View::id);
        if !is_known && wait.lose(|member| is_outside(member, view), suspected) {
            drop(calls);
            wait.end(suspected);
        } else {
            calls.calls.insert(id, Call { wait, timeout, deadline, sent: is_timed.then_some(now) });
            calls.next_deadline = earlier(calls.next_deadline, deadline);
        }
        Some((id, outcome))
    }

    pub(super) fn forget(&self, id: u64) {
        drop(self.remove(id));
    }

    /// The caller drops it outside the lock, because the filter is application code.
    fn remove(&self, id: u64) -> Option<Call> {
        self.lock().calls.remove(&id)
    }

    pub(super) fn answer(&self, id: u64, member: &Address, mut result: Answer) -> Option<RoundTrip> {
        let mut calls = self.lock();
        let mut decision = FilterDecision::Accept;
        if let (Some(filter), Ok(payload)) = (calls.calls.get(&id)?.wait.filter(member), &result) {
            drop(calls);
            // The filter may use the dispatcher; its panic is its caller's.
            match catch_unwind(AssertUnwindSafe(|| filter(member, payload))) {
                Ok(decided) => decision = decided,
                Err(panic) => {
                    if let Some(Call { wait: Wait::Group(group), .. }) = self.remove(id) {
                        let _ = group.done.send(Err(panic));
                    }
                    return None;
                }
            }
            drop(filter);
            calls = self.lock();
        }
        let Entry::Occupied(mut call) = calls.calls.entry(id) else { return None };
        let (was_awaited, is_over) = match &mut call.get_mut().wait {
            Wait::One { member: one, .. } => {
                let is_awaited = is_answer_of(one, member);
                (is_awaited, is_awaited)
            }
            Wait::Group(group) => group.answer(member, &mut result, decision),
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
                Wait::Group(group) => drop(group.done.send(Ok(group.responses))),
            }
        }
        sent.map(|sent| RoundTrip { sent, is_group })
    }

    pub(super) fn lose(&self, is_lost: impl Fn(&Address) -> bool) {
        Self::lose_of(self.lock(), is_lost, suspected);
    }

    /// Sites cannot be reached: a response may be lost.
    pub(super) fn lose_sites(&self, sites: &[Arc<str>]) {
        let is_lost =
            |member: &Address| member.site().is_some_and(|site| sites.iter().any(|lost| **lost == *site));
        Self::lose_of(self.lock(), is_lost, unreachable);
    }

    pub(super) fn view(&self, view: &View) {
        let mut calls = self.lock();
        calls.view = Some(view.clone());
        Self::lose_of(calls, |member| is_outside(member, Some(view)), suspected);
    }

    fn lose_of(
        mut calls: MutexGuard<'_, Calls>,
        is_lost: impl Fn(&Address) -> bool,
        error: impl Fn(&Address) -> RpcError,
    ) {
        let over = calls.calls.extract_if(|_, call| call.wait.lose(&is_lost, &error));
        let over: Vec<Call> = over.map(|(_, call)| call).collect();
        drop(calls);
        for call in over {
            call.wait.end(&error);
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.lock().next_deadline
    }

    pub(super) fn expire(&self, now: Instant) {
        let mut calls = self.lock();
        let is_over = |call: &Call| call.deadline.is_some_and(|deadline| deadline <= now);
        let over = calls.calls.extract_if(|_, call| is_over(call));
        let over: Vec<Call> = over.map(|(_, call)| call).collect();
        calls.next_deadline = calls.calls.values().filter_map(|call| call.deadline).min();
        drop(calls);
        for Call { wait, timeout, .. } in over {
            wait.end(|_| RpcError::TimedOut(timeout));
        }
    }

    pub(super) fn close(&self) {
        let mut calls = self.lock();
        let over = std::mem::take(&mut calls.calls);
        calls.is_closed = true;
        calls.next_deadline = None;
        drop(calls);
        for call in over.into_values() {
            call.wait.end(|_| RpcError::Closed);
        }
    }

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

    fn view(id: u64, members: &[u64]) -> View {
        View::new(ViewId { creator: member(1), id }, members.iter().map(|&n| member(n)).collect::<Vec<_>>())
    }

    fn correlator() -> Correlator {
        let correlator = Correlator::default();
        correlator.view(&view(1, &[1, 2]));
        correlator
    }

    type Opened<T> = (u64, oneshot::Receiver<T>);

    fn one(correlator: &Correlator, n: u64, timeout: Duration, is_timed: bool) -> Opened<Answer> {
        correlator.open(timeout, is_timed, None, |done| Wait::One { member: member(n), done }).unwrap()
    }

    fn both(correlator: &Correlator, options: &RequestOptions) -> Opened<Outcome> {
        let wait = |done| Wait::group(vec![member(1), member(2)], options, done);
        correlator.open(options.timeout, false, Some(view(1, &[1, 2]).id()), wait).unwrap()
    }

    #[test]
    fn a_call_ends_when_its_time_is_over_and_not_before() {
        let correlator = correlator();
        let (_, mut late) = one(&correlator, 1, 3 * SECOND, false);
        let (id, mut soon) = both(&correlator, &RequestOptions::all(SECOND));
        correlator.answer(id, &member(2), Ok(Payload::Empty));
        let due = correlator.next_deadline().unwrap();
        correlator.expire(due.checked_sub(Duration::from_nanos(1)).unwrap());
        assert!(soon.try_recv().is_err() && correlator.len() == 2);
        correlator.expire(due);
        let results = soon.try_recv().unwrap().unwrap().into_iter().map(|row| (row.member, row.result));
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
        let correlator = correlator();
        let (_, _wait) = one(&correlator, 1, Duration::MAX, false);
        assert_eq!(correlator.next_deadline(), None);
        correlator.expire(Instant::now());
        assert_eq!(correlator.len(), 1);
    }

    #[test]
    fn an_answer_of_another_member_or_call_is_ignored() {
        let correlator = correlator();
        let (id, mut wait) = one(&correlator, 1, SECOND, true);
        assert!(correlator.answer(id, &member(2), Ok(Payload::Empty)).is_none());
        assert!(correlator.answer(id + 1, &member(1), Ok(Payload::Empty)).is_none());
        assert!(wait.try_recv().is_err());
        assert!(correlator.answer(id, &member(1), Ok(Payload::Long(7))).is_some());
        assert_eq!(wait.try_recv().unwrap(), Ok(Payload::Long(7)));
        assert!(correlator.answer(id, &member(1), Ok(Payload::Long(8))).is_none());
    }

    #[test]
    fn a_master_of_any_site_answers_a_call_of_all_site_masters() {
        let masters = [
            (Address::all_site_masters(), "nyc", true),
            (Address::site_master("nyc"), "nyc", true),
            (Address::site_master("nyc"), "sfo", false),
        ];
        for (called, site, is_answered) in masters {
            let correlator = correlator();
            let wait = |done| Wait::One { member: called.clone(), done };
            let (id, _wait) = correlator.open(SECOND, true, None, wait).unwrap();
            let answer = correlator.answer(id, &member(9).in_site(site, None), Ok(Payload::Empty));
            assert_eq!(answer.is_some(), is_answered, "{called} {site}");
        }
    }

    #[test]
    fn members_that_are_lost_end_the_calls_that_wait_for_them_alone() {
        let correlator = correlator();
        let (_, mut one) = one(&correlator, 1, SECOND, false);
        let (id, mut both) = both(&correlator, &RequestOptions::all(SECOND));
        correlator.lose(|lost| *lost == member(1));
        assert_eq!(one.try_recv().unwrap(), Err(RpcError::Suspected(member(1).into())));
        assert!(both.try_recv().is_err());
        correlator.answer(id, &member(2), Ok(Payload::Empty));
        assert_eq!(both.try_recv().unwrap().unwrap().len(), 2);
    }

    #[test]
    fn members_of_other_sites_are_lost_with_their_site_and_not_with_a_view() {
        let correlator = correlator();
        let (of_nyc, of_sfo) = (member(7).in_site("nyc", None), member(8).in_site("sfo", None));
        let call = |member: &Address| {
            let wait = |done| Wait::One { member: member.clone(), done };
            correlator.open(SECOND, false, None, wait).unwrap()
        };
        let (id, mut master) = call(&Address::site_master("nyc"));
        let (_, mut one) = call(&of_nyc);
        let (_, mut other) = call(&of_sfo);
        let members = vec![of_nyc.clone(), of_sfo.clone()];
        let options = RequestOptions::all(SECOND);
        let wait = |done| Wait::group(members, &options, done);
        let (group_id, mut both) = correlator.open(SECOND, false, None, wait).unwrap();
        correlator.view(&view(2, &[1]));
        assert_eq!(correlator.len(), 4);
        assert!(correlator.answer(id, &of_sfo, Ok(Payload::Empty)).is_none() && master.try_recv().is_err());
        correlator.answer(id, &of_nyc, Ok(Payload::Long(1)));
        assert_eq!(master.try_recv().unwrap(), Ok(Payload::Long(1)), "any of its masters answers");
        correlator.lose_sites(&["nyc".into()]);
        assert_eq!(one.try_recv().unwrap(), Err(RpcError::SiteUnreachable("nyc".into())));
        assert!(other.try_recv().is_err() && both.try_recv().is_err());
        correlator.answer(group_id, &of_sfo, Ok(Payload::Empty));
        let rows = both.try_recv().unwrap().unwrap().into_iter().map(|row| (row.member, row.result));
        let lost = (of_nyc.clone(), Err(RpcError::SiteUnreachable("nyc".into())));
        assert_eq!(rows.collect::<Vec<_>>(), [lost, (of_sfo, Ok(Payload::Empty))]);
    }

    #[test]
    fn response_of_a_called_member_is_not_that_of_its_site_master() {
        let (own, other) = (member(7).in_site("nyc", None), member(8).in_site("nyc", None));
        let master = Address::site_master("nyc");
        for called in [vec![master.clone(), own.clone()], vec![own.clone(), master.clone()]] {
            let correlator = correlator();
            let options = RequestOptions::all(SECOND);
            let wait = |done| Wait::group(called, &options, done);
            let (id, mut outcome) = correlator.open(SECOND, false, None, wait).unwrap();
            correlator.answer(id, &own, Ok(Payload::Long(7)));
            correlator.answer(id, &other, Ok(Payload::Long(8)));
            let rows = outcome.try_recv().unwrap().unwrap().into_iter().map(|row| (row.member, row.result));
            let expected = [(own.clone(), Ok(Payload::Long(7))), (master.clone(), Ok(Payload::Long(8)))];
            assert_eq!(rows.collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn a_member_that_left_before_the_call_was_opened_is_lost_at_once() {
        let correlator = Correlator::default();
        let (_, mut early) = one(&correlator, 1, SECOND, false);
        assert_eq!(early.try_recv().unwrap(), Err(RpcError::Suspected(member(1).into())));
        correlator.view(&view(2, &[1, 3]));
        let (_, mut gone) = one(&correlator, 2, SECOND, false);
        assert_eq!(gone.try_recv().unwrap(), Err(RpcError::Suspected(member(2).into())));
        // Its members were chosen by the view before.
        let (id, mut rest) = both(&correlator, &RequestOptions::all(SECOND));
        assert!(rest.try_recv().is_err() && correlator.len() == 1);
        correlator.answer(id, &member(1), Ok(Payload::Empty));
        let rows = rest.try_recv().unwrap().unwrap().into_iter().map(|row| (row.member, row.result));
        assert_eq!(
            rows.collect::<Vec<_>>(),
            [(member(2), Err(RpcError::Suspected(member(2).into()))), (member(1), Ok(Payload::Empty))]
        );
    }

    #[test]
    fn a_call_that_is_cut_short_keeps_the_answers_it_has() {
        let correlator = correlator();
        let (_, mut one) = one(&correlator, 1, SECOND, false);
        let (id, mut both) = both(&correlator, &RequestOptions::all(SECOND));
        correlator.answer(id, &member(2), Ok(Payload::Empty));
        correlator.close();
        assert_eq!(one.try_recv().unwrap(), Err(RpcError::Closed));
        let rows = both.try_recv().unwrap().unwrap().into_iter().map(|row| (row.member, row.result));
        assert_eq!(
            rows.collect::<Vec<_>>(),
            [(member(2), Ok(Payload::Empty)), (member(1), Err(RpcError::Closed))]
        );
        assert_eq!(correlator.len(), 0);
    }

    #[test]
    fn a_filter_may_ask_for_the_calls_that_wait() {
        let correlator = Arc::new(correlator());
        let (count, pending) = std::sync::mpsc::channel();
        let asking = correlator.clone();
        let options = RequestOptions::all(SECOND).with_filter(move |_, _| {
            let _ = count.send(asking.len());
            FilterDecision::AcceptAndStop
        });
        let (id, wait) = both(&correlator, &options);
        // On a thread of its own, so that a deadlock fails the test instead of hanging it.
        std::thread::spawn(move || correlator.answer(id, &member(2), Ok(Payload::Empty)).is_some());
        assert_eq!(pending.recv_timeout(20 * SECOND), Ok(1));
        assert_eq!(wait.blocking_recv().unwrap().unwrap().len(), 1);
    }
}
