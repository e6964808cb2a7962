//! Matches answers to calls, and ends calls early when members leave or are suspected.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use consort_group::{Address, Payload, View};
use tokio::sync::oneshot;

use super::request::{Response, ResponseFilter, ResponseMode, Responses, Verdict};
use crate::error::RpcError;

/// A call that waits.
struct Call {
    /// Who has not answered yet. Calls to one member, the common case, need no list.
    missing: Missing,
    responses: Responses,
    mode: ResponseMode,
    filter: Option<ResponseFilter>,
    /// When it was sent, if round trips are measured.
    sent: Option<Instant>,
    is_group: bool,
    done: oneshot::Sender<Outcome>,
}

enum Missing {
    One(Address),
    Many(Vec<Address>),
    None,
}

impl Missing {
    fn take(&mut self, member: &Address) -> bool {
        match self {
            Self::One(one) if one == member => {
                *self = Self::None;
                true
            }
            Self::Many(many) => match many.iter().position(|other| other == member) {
                Some(at) => {
                    many.swap_remove(at);
                    if many.is_empty() {
                        *self = Self::None;
                    }
                    true
                }
                None => false,
            },
            _ => false,
        }
    }

    fn members(&self) -> &[Address] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
            Self::None => &[],
        }
    }
}

/// The end of a call.
pub(super) struct Outcome {
    pub(super) responses: Responses,
}

/// A finished round trip, for statistics.
pub(super) struct RoundTrip {
    pub(super) sent: Instant,
    pub(super) is_group: bool,
}

#[derive(Default)]
struct Calls {
    next_id: u64,
    calls: HashMap<u64, Call>,
    is_closed: bool,
}

/// All calls of a dispatcher that wait for answers. Bounded by the callers: each waits for its own.
#[derive(Default)]
pub(super) struct Correlator {
    calls: Mutex<Calls>,
}

/// What a new call is made of.
pub(super) struct NewCall {
    pub(super) members: Vec<Address>,
    pub(super) mode: ResponseMode,
    pub(super) filter: Option<ResponseFilter>,
    pub(super) is_group: bool,
    pub(super) has_details: bool,
}

impl Correlator {
    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a call. `None` if the channel is closed.
    pub(super) fn open(&self, call: NewCall) -> Option<(u64, oneshot::Receiver<Outcome>)> {
        let (done, wait) = oneshot::channel();
        let mut members = call.members;
        let missing = match (members.len(), members.pop()) {
            (1, Some(one)) => Missing::One(one),
            (_, Some(last)) => {
                members.push(last);
                Missing::Many(members)
            }
            _ => Missing::None,
        };
        let call = Call {
            missing,
            responses: Vec::new(),
            mode: call.mode,
            filter: call.filter,
            sent: call.has_details.then(Instant::now),
            is_group: call.is_group,
            done,
        };
        let mut calls = self.lock();
        if calls.is_closed {
            return None;
        }
        calls.next_id += 1;
        let id = calls.next_id;
        calls.calls.insert(id, call);
        Some((id, wait))
    }

    /// Takes a call out, with the answers so far; who is missing gets `error`.
    pub(super) fn give_up(&self, id: u64, error: impl Fn(&Address) -> RpcError) -> Responses {
        let Some(mut call) = self.lock().calls.remove(&id) else { return Vec::new() };
        for member in call.missing.members() {
            call.responses.push(Response { member: member.clone(), result: Err(error(member)) });
        }
        call.responses
    }

    /// An answer has come.
    pub(super) fn answer(
        &self,
        id: u64,
        member: &Address,
        result: Result<Payload, RpcError>,
    ) -> Option<RoundTrip> {
        let mut calls = self.lock();
        let call = calls.calls.get_mut(&id)?;
        if !call.missing.take(member) {
            return None;
        }
        let verdict = match (&call.filter, &result) {
            (Some(filter), Ok(payload)) => filter(member, payload),
            _ => Verdict::Take,
        };
        let is_good = result.is_ok();
        if verdict != Verdict::Skip {
            call.responses.push(Response { member: member.clone(), result });
        }
        let round_trip = call.sent.map(|sent| RoundTrip { sent, is_group: call.is_group });
        let is_enough = verdict == Verdict::TakeAndStop
            || matches!(call.missing, Missing::None)
            || (call.mode == ResponseMode::First && is_good && verdict == Verdict::Take);
        if is_enough && let Some(call) = calls.calls.remove(&id) {
            drop(calls);
            let _ = call.done.send(Outcome { responses: call.responses });
        }
        round_trip
    }

    /// These members will not answer any more.
    pub(super) fn lose(&self, is_lost: impl Fn(&Address) -> bool) {
        let mut calls = self.lock();
        let ids: Vec<u64> = calls
            .calls
            .iter()
            .filter(|(_, call)| call.missing.members().iter().any(&is_lost))
            .map(|(&id, _)| id)
            .collect();
        for id in ids {
            let Some(call) = calls.calls.get_mut(&id) else { continue };
            let lost: Vec<Address> =
                call.missing.members().iter().filter(|member| is_lost(member)).cloned().collect();
            for member in lost {
                call.missing.take(&member);
                let result = Err(RpcError::Suspected(member.clone()));
                call.responses.push(Response { member, result });
            }
            if matches!(call.missing, Missing::None)
                && let Some(call) = calls.calls.remove(&id)
            {
                let _ = call.done.send(Outcome { responses: call.responses });
            }
        }
    }

    /// Members that are not in the view will not answer any more.
    pub(super) fn view(&self, view: &View) {
        self.lose(|member| !view.contains(member));
    }

    /// No call is answered any more.
    pub(super) fn close(&self) {
        let mut calls = self.lock();
        calls.is_closed = true;
        calls.calls.clear();
    }

    /// How many calls wait.
    pub(super) fn len(&self) -> usize {
        self.lock().calls.len()
    }
}
