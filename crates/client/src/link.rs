//! A connection as callers see it: it has room for a request or makes them wait, and gives each its answer.

use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use consort_hotrod::{ProtocolVersion, Request, Response};
use tokio::sync::Semaphore;
use tokio::time::timeout_at;

use crate::bounds::ROOM;
use crate::clock::{Clock, Time};
use crate::connection::{Connection, Effects, Refused};
use crate::slots::Failure;

/// A connection that is open, or was.
pub(crate) struct Link {
    connection: Mutex<Connection>,
    room: Semaphore,
    pub(crate) clock: Clock,
}

/// A request has no answer.
#[derive(Debug)]
pub(crate) enum CallError {
    /// It was not sent: the connection takes no more.
    NotOpen,
    /// It was not sent: the operation is newer than the version that is spoken.
    Unsupported(ProtocolVersion),
    /// It was not sent: there was no room in time.
    NoRoom,
    /// It may have been sent.
    Failed(Failure),
}

impl Link {
    pub(crate) fn new(connection: Connection, clock: Clock) -> Self {
        Self { connection: Mutex::new(connection), room: Semaphore::new(ROOM as usize), clock }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what has to be done after a step, without the lock.
    pub(crate) fn apply(&self, effects: &mut Effects) {
        self.free(std::mem::take(&mut effects.room));
        effects.wake.drain(..).for_each(std::task::Waker::wake);
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

    /// Waits for room, sends the request and waits for its answer.
    pub(crate) async fn call(
        &self,
        request: &mut Request,
        units: u32,
        deadline: Time,
    ) -> Result<Response, CallError> {
        let units = units.min(ROOM);
        match self.room.try_acquire_many(units) {
            Ok(permit) => permit.forget(),
            Err(_) => {
                let room = timeout_at(self.clock.instant(deadline), self.room.acquire_many(units)).await;
                room.map_err(|_| CallError::NoRoom)?.map_err(|_| CallError::NotOpen)?.forget();
            }
        }
        let mut call = Call { link: self, units, id: None };
        poll_fn(|cx| call.poll(request, deadline, cx)).await
    }
}

/// A request that has room.
struct Call<'a> {
    link: &'a Link,
    /// What it gives back itself: as soon as it is submitted, that is the connection's.
    units: u32,
    id: Option<u64>,
}

impl Call<'_> {
    fn poll(
        &mut self,
        request: &mut Request,
        deadline: Time,
        cx: &Context<'_>,
    ) -> Poll<Result<Response, CallError>> {
        let Some(id) = self.id else {
            let writer = self.submit(request, deadline, cx)?;
            if let Some(writer) = writer {
                writer.wake();
            }
            return Poll::Pending;
        };
        let Poll::Ready((ended, units)) = self.link.lock().poll_answer(id, cx.waker()) else {
            return Poll::Pending;
        };
        self.id = None;
        self.units = units;
        Poll::Ready(ended.map_err(CallError::Failed))
    }

    fn submit(
        &mut self,
        request: &mut Request,
        deadline: Time,
        cx: &Context<'_>,
    ) -> Result<Option<std::task::Waker>, CallError> {
        let now = self.link.clock.now();
        let mut connection = self.link.lock();
        match connection.submit(now, request, deadline, self.units, cx.waker()) {
            Ok(id) => {
                self.id = Some(id);
                self.units = 0;
                Ok(connection.take_writer())
            }
            Err(Refused::NotOpen) => Err(CallError::NotOpen),
            Err(Refused::Unsupported(spoken)) => Err(CallError::Unsupported(spoken)),
        }
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let abandoned = self.id.take().map_or(0, |id| self.link.lock().abandon(id));
        self.link.free(self.units + abandoned);
    }
}
