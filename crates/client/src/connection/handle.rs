use std::future::{Future, poll_fn};
use std::ops::Deref;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use consort_hotrod::{ProtocolVersion, Request, Response};
use tokio::sync::Semaphore;
use tokio::time::timeout_at;

use super::pending_requests::Failure;
use super::state_machine::{Connection, Effects, Refused};
use crate::clock::{Clock, Time};
use crate::limits::ROOM;

pub(crate) struct ConnectionHandle {
    connection: Mutex<Connection>,
    room: Semaphore,
    is_silent: AtomicBool,
    pub(crate) clock: Clock,
}

#[derive(Debug)]
pub(crate) enum CallError {
    /// The connection accepts no requests.
    NotOpen,
    /// The operation needs a newer protocol version.
    Unsupported { needed: ProtocolVersion, spoken: ProtocolVersion },
    /// No room before the deadline.
    NoRoom,
    /// The request may have been sent, unlike after the other errors.
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

    pub(crate) fn apply(&self, effects: &mut Effects) {
        self.free(std::mem::take(&mut effects.room));
        effects.wake.drain(..).for_each(Waker::wake);
    }

    /// Whether the server may hang: it has sent nothing since the last PING.
    pub(crate) fn is_silent(&self) -> bool {
        self.is_silent.load(Ordering::Relaxed)
    }

    pub(crate) fn set_silent(&self, is_silent: bool) -> bool {
        self.is_silent() != is_silent && self.is_silent.swap(is_silent, Ordering::Relaxed) != is_silent
    }

    pub(crate) fn close(&self) {
        self.room.close();
    }

    fn free(&self, units: u32) {
        if units > 0 {
            self.room.add_permits(units as usize);
        }
    }

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

    /// A movable request fails early if the server is silent.
    pub(crate) async fn call(
        &self,
        request: &mut Request,
        units: u32,
        deadline: Time,
        can_move: bool,
    ) -> Result<Response, CallError> {
        let units = units.min(ROOM);
        self.take_room(units, deadline).await?;
        let mut call = Call { handle: self, units, can_move, id: None };
        poll_fn(|cx| call.poll(request, deadline, cx)).await
    }

    /// The returned future yields the response; no task is woken before it is polled. Requests keep their order.
    pub(crate) async fn begin(
        self: &Arc<Self>,
        request: &mut Request,
        units: u32,
        deadline: Time,
    ) -> Result<Call<Arc<Self>>, CallError> {
        let units = units.min(ROOM);
        self.take_room(units, deadline).await?;
        let mut call = Call { handle: self.clone(), units, can_move: false, id: None };
        call.send(request, deadline, Waker::noop())?;
        Ok(call)
    }

    /// Ignores the response, and sends only if the connection is open. The request bypasses the limit of room, so it must be
    /// small; it ends a stream, iteration or listener.
    pub(crate) fn send_detached(&self, request: &mut Request, deadline: Time) {
        // A failure is harmless: the server cleans up after its own timeout.
        let _ =
            Call { handle: self, units: 0, can_move: false, id: None }.send(request, deadline, Waker::noop());
    }
}

pub(crate) struct Call<L: Deref<Target = ConnectionHandle>> {
    handle: L,
    /// Room to return here; after the submission the connection returns it.
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
        let Poll::Ready((ended, units)) = self.handle.lock().poll_answer(id, cx.waker()) else {
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
        let now = self.handle.clock.now();
        let mut connection = self.handle.lock();
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
        let abandoned = self.id.take().map_or(0, |id| self.handle.lock().abandon(id));
        self.handle.free(self.units + abandoned);
    }
}
