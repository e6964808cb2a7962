//! A connection as callers see it: it has room for a request or makes them wait, and gives each its answer.

use std::future::{Future, poll_fn};
use std::ops::Deref;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use consort_hotrod::{ProtocolVersion, Request, Response};
use tokio::sync::Semaphore;
use tokio::time::timeout_at;

use crate::limits::ROOM;
use crate::clock::{Clock, Time};
use crate::connection::{Connection, Effects, Refused};
use crate::pending_requests::Failure;

/// A connection that is open, or was.
pub(crate) struct ConnectionHandle {
    connection: Mutex<Connection>,
    room: Semaphore,
    /// The server may hang. Written by who moves the connection's bytes.
    is_silent: AtomicBool,
    pub(crate) clock: Clock,
}

/// A request has no answer.
#[derive(Debug)]
pub(crate) enum CallError {
    /// It was not sent: the connection takes no more.
    NotOpen,
    /// It was not sent: the operation needs a newer version than the one that is spoken.
    Unsupported { needed: ProtocolVersion, spoken: ProtocolVersion },
    /// It was not sent: there was no room in time.
    NoRoom,
    /// It may have been sent.
    Failed(Failure),
}

impl ConnectionHandle {
    pub(crate) fn new(connection: Connection, clock: Clock) -> Self {
        Self {
            connection: Mutex::new(connection),
            room: Semaphore::new(ROOM as usize),
            is_silent: AtomicBool::new(false),
            clock,
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what has to be done after a step, without the lock.
    pub(crate) fn apply(&self, effects: &mut Effects) {
        self.free(std::mem::take(&mut effects.room));
        effects.wake.drain(..).for_each(Waker::wake);
    }

    /// Whether the server may hang: it was asked whether it is there, and has sent nothing since.
    pub(crate) fn is_silent(&self) -> bool {
        self.is_silent.load(Ordering::Relaxed)
    }

    /// Notes whether the server may hang. Whether that is news.
    pub(crate) fn set_silent(&self, is_silent: bool) -> bool {
        self.is_silent() != is_silent && self.is_silent.swap(is_silent, Ordering::Relaxed) != is_silent
    }

    /// Nobody gets room any more.
    pub(crate) fn close(&self) {
        self.room.close();
    }

    fn free(&self, units: u32) {
        if units > 0 {
            self.room.add_permits(units as usize);
        }
    }

    /// Takes room as soon as there is enough.
    async fn take_room(&self, units: u32, deadline: Time) -> Result<(), CallError> {
        match self.room.try_acquire_many(units) {
            Ok(permit) => permit.forget(),
            Err(_) => {
                let room = timeout_at(self.clock.instant(deadline), self.room.acquire_many(units)).await;
                room.map_err(|_| CallError::NoRoom)?.map_err(|_| CallError::NotOpen)?.forget();
            }
        }
        Ok(())
    }

    /// Waits for room, sends the request and waits for its answer. One that can be made twice ends early if the server is silent.
    pub(crate) async fn call(
        &self,
        request: &mut Request,
        units: u32,
        deadline: Time,
        can_move: bool,
    ) -> Result<Response, CallError> {
        let units = units.min(ROOM);
        self.take_room(units, deadline).await?;
        let mut call = Call { link: self, units, can_move, id: None };
        poll_fn(|cx| call.poll(request, deadline, cx)).await
    }

    /// Waits for room and sends the request. Its answer is awaited by itself, and wakes nobody before: what is sent later
    /// comes later there.
    pub(crate) async fn begin(
        self: &Arc<Self>,
        request: &mut Request,
        units: u32,
        deadline: Time,
    ) -> Result<Call<Arc<Self>>, CallError> {
        let units = units.min(ROOM);
        self.take_room(units, deadline).await?;
        let mut call = Call { link: self.clone(), units, can_move: false, id: None };
        call.send(request, deadline, Waker::noop())?;
        Ok(call)
    }

    /// Sends a request whose answer nobody waits for, if the connection takes any. It needs no room: it must be small, and
    /// ends what had been begun here.
    pub(crate) fn send_detached(&self, request: &mut Request, deadline: Time) {
        // Whether it is sent shows in what the server does without it, which it does in its time.
        let _ =
            Call { link: self, units: 0, can_move: false, id: None }.send(request, deadline, Waker::noop());
    }
}

/// A request that has room.
pub(crate) struct Call<L: Deref<Target = ConnectionHandle>> {
    link: L,
    /// What it gives back itself: as soon as it is submitted, that is the connection's.
    units: u32,
    can_move: bool,
    id: Option<u64>,
}

impl<L: Deref<Target = ConnectionHandle>> Call<L> {
    fn poll(
        &mut self,
        request: &mut Request,
        deadline: Time,
        cx: &Context<'_>,
    ) -> Poll<Result<Response, CallError>> {
        match self.id {
            Some(id) => self.poll_answer(id, cx),
            None => {
                self.send(request, deadline, cx.waker())?;
                Poll::Pending
            }
        }
    }

    fn poll_answer(&mut self, id: u64, cx: &Context<'_>) -> Poll<Result<Response, CallError>> {
        let Poll::Ready((ended, units)) = self.link.lock().poll_answer(id, cx.waker()) else {
            return Poll::Pending;
        };
        self.id = None;
        self.units = units;
        Poll::Ready(ended.map_err(CallError::Failed))
    }

    fn send(&mut self, request: &mut Request, deadline: Time, by: &Waker) -> Result<(), CallError> {
        if let Some(writer) = self.submit(request, deadline, by)? {
            writer.wake();
        }
        Ok(())
    }

    fn submit(
        &mut self,
        request: &mut Request,
        deadline: Time,
        by: &Waker,
    ) -> Result<Option<Waker>, CallError> {
        let now = self.link.clock.now();
        let mut connection = self.link.lock();
        match connection.submit(now, request, deadline, self.units, by) {
            Ok(id) => {
                self.id = Some(id);
                self.units = 0;
                if self.can_move {
                    connection.allow_move(id);
                }
                Ok(connection.take_writer())
            }
            Err(Refused::NotOpen) => Err(CallError::NotOpen),
            Err(Refused::Unsupported { needed, spoken }) => Err(CallError::Unsupported { needed, spoken }),
        }
    }
}

/// The answer to a request that was sent.
impl<L: Deref<Target = ConnectionHandle> + Unpin> Future for Call<L> {
    type Output = Result<Response, CallError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.id {
            Some(id) => self.poll_answer(id, cx),
            None => Poll::Ready(Err(CallError::NotOpen)),
        }
    }
}

impl<L: Deref<Target = ConnectionHandle>> Drop for Call<L> {
    fn drop(&mut self) {
        let abandoned = self.id.take().map_or(0, |id| self.link.lock().abandon(id));
        self.link.free(self.units + abandoned);
    }
}
