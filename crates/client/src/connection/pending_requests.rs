use std::task::{Poll, Waker};

use consort_hotrod::{RequestContext, Response};

use crate::clock::Time;
use crate::error::ConnectionError;

#[derive(Clone, Debug)]
pub(crate) struct Failure {
    /// `None` if the deadline passed.
    pub(crate) cause: Option<ConnectionError>,
    pub(crate) was_sent: bool,
}

#[derive(Debug)]
enum Outcome {
    Awaited(Waker),
    Ended(Result<Response, Failure>),
    Unwanted,
    /// Sent by the connection itself.
    Own,
}

#[derive(Debug)]
pub(crate) struct PendingRequest {
    pub(crate) asked: RequestContext,
    /// Offset in the connection's output.
    pub(crate) start: u64,
    pub(crate) deadline: Time,
    /// Units of the connection's room.
    pub(crate) units: u32,
    pub(crate) can_move: bool,
    /// No response will come; the id is free once the outcome is taken.
    is_over: bool,
    outcome: Outcome,
}

impl PendingRequest {
    pub(crate) const fn awaited(
        asked: RequestContext,
        start: u64,
        deadline: Time,
        units: u32,
        by: Waker,
    ) -> Self {
        let outcome = Outcome::Awaited(by);
        Self { asked, start, deadline, units, can_move: false, is_over: false, outcome }
    }

    pub(crate) const fn own(asked: RequestContext, start: u64, deadline: Time) -> Self {
        Self { asked, start, deadline, units: 0, can_move: false, is_over: false, outcome: Outcome::Own }
    }

    const fn is_awaited(&self) -> bool {
        matches!(self.outcome, Outcome::Awaited(_))
    }
}

/// A connection's requests in flight. Ids are small numbers from 1; 0 is for events and connection errors.
#[derive(Default)]
pub(crate) struct PendingRequests {
    places: Vec<Option<PendingRequest>>,
    free: Vec<usize>,
    taken: usize,
}

impl PendingRequests {
    pub(crate) const fn is_empty(&self) -> bool {
        self.taken == 0
    }

    pub(crate) fn next_id(&self) -> u64 {
        self.free.last().map_or(self.places.len(), |index| *index) as u64 + 1
    }

    pub(crate) fn insert(&mut self, entry: PendingRequest) {
        self.taken += 1;
        match self.free.pop() {
            Some(index) => self.places[index] = Some(entry),
            None => self.places.push(Some(entry)),
        }
    }

    pub(crate) fn allow_move(&mut self, id: u64) {
        if let Some(entry) = self.get_mut(id) {
            entry.can_move = true;
        }
    }

    fn index(id: u64) -> Option<usize> {
        usize::try_from(id).ok()?.checked_sub(1)
    }

    fn get_mut(&mut self, id: u64) -> Option<&mut PendingRequest> {
        self.places.get_mut(Self::index(id)?)?.as_mut()
    }

    pub(crate) fn is_own(&self, id: u64) -> bool {
        let entry = Self::index(id).and_then(|index| self.places.get(index)?.as_ref());
        entry.is_some_and(|entry| matches!(entry.outcome, Outcome::Own))
    }

    pub(crate) fn asked(&self, id: u64) -> Option<RequestContext> {
        let entry = self.places.get(Self::index(id)?)?.as_ref()?;
        (!entry.is_over).then_some(entry.asked)
    }

    /// Frees the id if no response is expected and the caller has gone. Returns the units freed.
    fn release(&mut self, id: u64) -> u32 {
        let Some(index) = Self::index(id) else { return 0 };
        let is_free = |entry: &mut PendingRequest| {
            entry.is_over && matches!(entry.outcome, Outcome::Unwanted | Outcome::Own)
        };
        let Some(entry) = self.places.get_mut(index).and_then(|entry| entry.take_if(is_free)) else {
            return 0;
        };
        self.free.push(index);
        self.taken -= 1;
        entry.units
    }

    /// Returns the task to wake and the units freed; `None` if no response was expected.
    pub(crate) fn answered(&mut self, response: Response) -> Option<(Option<Waker>, u32)> {
        let id = response.id;
        let entry = self.get_mut(id).filter(|entry| !entry.is_over)?;
        entry.is_over = true;
        let waker = entry.end(Ok(response));
        Some((waker, self.release(id)))
    }

    pub(crate) fn fail(
        &mut self,
        mut failure: impl FnMut(&PendingRequest) -> Option<Failure>,
        wake: &mut Vec<Waker>,
    ) {
        for entry in self.places.iter_mut().flatten().filter(|entry| entry.is_awaited()) {
            if let Some(failure) = failure(entry) {
                wake.extend(entry.end(Err(failure)));
            }
        }
    }

    pub(crate) fn close(&mut self, failure: impl Fn(&PendingRequest) -> Failure, wake: &mut Vec<Waker>) {
        self.fail(|entry| Some(failure(entry)), wake);
        self.places.iter_mut().flatten().for_each(|entry| entry.is_over = true);
    }

    pub(crate) fn open(&self) -> impl Iterator<Item = &PendingRequest> {
        self.places.iter().flatten().filter(|entry| !entry.is_over)
    }

    /// Returns the outcome of a request, once, and the units freed.
    pub(crate) fn poll(&mut self, id: u64, by: &Waker) -> Poll<(Result<Response, Failure>, u32)> {
        let entry = self.get_mut(id).expect("a request stays until its caller takes the outcome");
        match &mut entry.outcome {
            Outcome::Awaited(waker) => {
                waker.clone_from(by);
                Poll::Pending
            }
            Outcome::Ended(_) => {
                let Outcome::Ended(ended) = std::mem::replace(&mut entry.outcome, Outcome::Unwanted) else {
                    unreachable!("the outcome was checked")
                };
                Poll::Ready((ended, self.release(id)))
            }
            Outcome::Unwanted | Outcome::Own => unreachable!("the request has no caller"),
        }
    }

    /// Returns the units freed.
    pub(crate) fn abandon(&mut self, id: u64) -> u32 {
        if let Some(entry) = self.get_mut(id) {
            entry.outcome = Outcome::Unwanted;
        }
        self.release(id)
    }
}

impl PendingRequest {
    /// A response replaces an untaken timeout.
    fn end(&mut self, ended: Result<Response, Failure>) -> Option<Waker> {
        match &mut self.outcome {
            Outcome::Awaited(_) => match std::mem::replace(&mut self.outcome, Outcome::Ended(ended)) {
                Outcome::Awaited(waker) => Some(waker),
                _ => None,
            },
            Outcome::Ended(earlier) => {
                *earlier = ended;
                None
            }
            Outcome::Unwanted | Outcome::Own => None,
        }
    }
}
