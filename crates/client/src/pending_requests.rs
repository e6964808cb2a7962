//! Requests that wait for their answers, by id.

use std::task::{Poll, Waker};

use consort_hotrod::{Asked, Response};

use crate::clock::Time;
use crate::error::ConnectionError;

/// A request has no answer.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    /// Why, if it is the connection's end; else its deadline has passed.
    pub(crate) cause: Option<ConnectionError>,
    /// Whether the server may have it.
    pub(crate) was_sent: bool,
}

/// What becomes of a request.
#[derive(Debug)]
enum Outcome {
    /// Somebody waits for it.
    Awaited(Waker),
    /// Somebody is going to take it.
    Ended(Result<Response, Failure>),
    /// Nobody asks for it any more.
    Unwanted,
    /// The connection itself has asked.
    Own,
}

/// A request that is under way.
#[derive(Debug)]
pub(crate) struct PendingRequest {
    pub(crate) asked: Asked,
    /// Where it begins in everything that is written on the connection.
    pub(crate) start: u64,
    pub(crate) deadline: Time,
    /// What it takes of the connection's room.
    pub(crate) units: u32,
    /// It can be made at another server as well while this one is silent.
    pub(crate) can_move: bool,
    /// The server has answered, or never will: its id may mean another request as soon as nobody asks for this one.
    is_over: bool,
    outcome: Outcome,
}

impl PendingRequest {
    pub(crate) const fn awaited(asked: Asked, start: u64, deadline: Time, units: u32, by: Waker) -> Self {
        let outcome = Outcome::Awaited(by);
        Self { asked, start, deadline, units, can_move: false, is_over: false, outcome }
    }

    pub(crate) const fn own(asked: Asked, start: u64, deadline: Time) -> Self {
        Self { asked, start, deadline, units: 0, can_move: false, is_over: false, outcome: Outcome::Own }
    }

    const fn is_awaited(&self) -> bool {
        matches!(self.outcome, Outcome::Awaited(_))
    }
}

/// All that are under way on a connection. Ids are small numbers from 1 on: 0 is that of events, and of complaints about
/// what could not be read.
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

    /// The id of the next one.
    pub(crate) fn next_id(&self) -> u64 {
        self.free.last().map_or(self.places.len(), |place| *place) as u64 + 1
    }

    /// Takes the place of [`PendingRequests::next_id`].
    pub(crate) fn insert(&mut self, slot: PendingRequest) {
        self.taken += 1;
        match self.free.pop() {
            Some(place) => self.places[place] = Some(slot),
            None => self.places.push(Some(slot)),
        }
    }

    /// A request can be made at another server as well.
    pub(crate) fn allow_move(&mut self, id: u64) {
        if let Some(slot) = self.get_mut(id) {
            slot.can_move = true;
        }
    }

    fn place(id: u64) -> Option<usize> {
        usize::try_from(id).ok()?.checked_sub(1)
    }

    fn get_mut(&mut self, id: u64) -> Option<&mut PendingRequest> {
        self.places.get_mut(Self::place(id)?)?.as_mut()
    }

    /// Whether the connection itself has asked this.
    pub(crate) fn is_own(&self, id: u64) -> bool {
        let slot = Self::place(id).and_then(|place| self.places.get(place)?.as_ref());
        slot.is_some_and(|slot| matches!(slot.outcome, Outcome::Own))
    }

    /// What a response with this id answers, if it can be one.
    pub(crate) fn asked(&self, id: u64) -> Option<Asked> {
        let slot = self.places.get(Self::place(id)?)?.as_ref()?;
        (!slot.is_over).then_some(slot.asked)
    }

    /// Frees the place if nothing more is to come and nobody asks. What it had of the room.
    fn release(&mut self, id: u64) -> u32 {
        let Some(place) = Self::place(id) else { return 0 };
        let is_free =
            |slot: &mut PendingRequest| slot.is_over && matches!(slot.outcome, Outcome::Unwanted | Outcome::Own);
        let Some(slot) = self.places.get_mut(place).and_then(|slot| slot.take_if(is_free)) else { return 0 };
        self.free.push(place);
        self.taken -= 1;
        slot.units
    }

    /// An answer has come. Who is to be woken, and what is free again of the room; nothing if none was to come.
    pub(crate) fn answered(&mut self, response: Response) -> Option<(Option<Waker>, u32)> {
        let id = response.id;
        let slot = self.get_mut(id).filter(|slot| !slot.is_over)?;
        slot.is_over = true;
        let waker = slot.end(Ok(response));
        Some((waker, self.release(id)))
    }

    /// Ends those that are awaited and for which this says so.
    pub(crate) fn fail(&mut self, mut failure: impl FnMut(&PendingRequest) -> Option<Failure>, wake: &mut Vec<Waker>) {
        for slot in self.places.iter_mut().flatten().filter(|slot| slot.is_awaited()) {
            if let Some(failure) = failure(slot) {
                wake.extend(slot.end(Err(failure)));
            }
        }
    }

    /// No more answers come.
    pub(crate) fn close(&mut self, failure: impl Fn(&PendingRequest) -> Failure, wake: &mut Vec<Waker>) {
        self.fail(|slot| Some(failure(slot)), wake);
        self.places.iter_mut().flatten().for_each(|slot| slot.is_over = true);
    }

    /// All those for which an answer is still to come.
    pub(crate) fn open(&self) -> impl Iterator<Item = &PendingRequest> {
        self.places.iter().flatten().filter(|slot| !slot.is_over)
    }

    /// What has become of a request. What is ready is ready once; what it had of the room is told with it.
    pub(crate) fn poll(&mut self, id: u64, by: &Waker) -> Poll<(Result<Response, Failure>, u32)> {
        let slot = self.get_mut(id).expect("who waits for a request keeps its place");
        match &mut slot.outcome {
            Outcome::Awaited(waker) => {
                waker.clone_from(by);
                Poll::Pending
            }
            Outcome::Ended(_) => {
                let Outcome::Ended(ended) = std::mem::replace(&mut slot.outcome, Outcome::Unwanted) else {
                    unreachable!("it was looked at")
                };
                Poll::Ready((ended, self.release(id)))
            }
            Outcome::Unwanted | Outcome::Own => unreachable!("nobody waits for it"),
        }
    }

    /// Nobody waits for a request any more. What is free again of the room.
    pub(crate) fn abandon(&mut self, id: u64) -> u32 {
        if let Some(slot) = self.get_mut(id) {
            slot.outcome = Outcome::Unwanted;
        }
        self.release(id)
    }
}

impl PendingRequest {
    /// Keeps how it ended for who waits for it. An answer that comes late may still be in time.
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
