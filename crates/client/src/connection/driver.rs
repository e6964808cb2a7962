//! The driver of a connection: a task with its socket, timer and buffers, which writes all callers' requests together. Other
//! tasks run once before a write: a caller woken by a response usually has a next request.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::BytesMut;
use consort_hotrod::Output;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Sleep;

use super::handle::ConnectionHandle;
use super::state_machine::{Connection, Effects};
use super::stream::Stream;
use crate::clock::Time;
use crate::error::ConnectionError;
use crate::limits::{READ_AT_ONCE, READ_MIN, ROUNDS_MAX};

struct StepOutcome {
    is_reached: bool,
    yields: bool,
    timeout: Time,
}

pub(crate) struct Driver {
    stream: Stream,
    pub(crate) handle: Arc<ConnectionHandle>,
    input: BytesMut,
    output: Output,
    written: u64,
    writes: u64,
    timer: Pin<Box<Sleep>>,
    effects: Effects,
    has_yielded: bool,
    is_lost: bool,
}

impl Driver {
    pub(crate) fn new(stream: Stream, handle: Arc<ConnectionHandle>) -> Self {
        let timer = Box::pin(tokio::time::sleep_until(handle.clock.instant(handle.clock.now())));
        Self {
            stream,
            handle,
            input: BytesMut::new(),
            output: Output::new(),
            written: 0,
            writes: 0,
            timer,
            effects: Effects::default(),
            has_yielded: false,
            is_lost: false,
        }
    }

    /// Moves bytes until the condition holds. Fails if the connection is lost, after its callers have been notified.
    pub(crate) async fn until(
        &mut self,
        reached: impl Fn(&Connection) -> bool,
    ) -> Result<(), ConnectionError> {
        let ended = poll_fn(|cx| self.poll(&reached, cx)).await;
        if let Err(cause) = &ended {
            self.lose(cause);
        }
        ended
    }

    fn lose(&mut self, cause: &ConnectionError) {
        if !std::mem::replace(&mut self.is_lost, true) {
            self.handle.close();
            self.handle.lock().lose(self.written, cause, &mut self.effects);
            self.handle.apply(&mut self.effects);
        }
    }

    fn poll(
        &mut self,
        reached: &impl Fn(&Connection) -> bool,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), ConnectionError>> {
        for _ in 0..ROUNDS_MAX {
            let has_read = self.read(cx)?;
            let moved = self.exchange(has_read, reached, cx);
            self.handle.apply(&mut self.effects);
            let StepOutcome { is_reached, yields, timeout } = moved?;
            if is_reached {
                return Poll::Ready(Ok(()));
            }
            self.has_yielded = yields;
            if yields {
                break;
            }
            let has_written = match self.write(cx) {
                Ok(has_written) => has_written,
                Err(cause) => return Poll::Ready(Err(self.read_rest(cause, reached, cx))),
            };
            if !has_read && !has_written {
                let at = self.handle.clock.instant(timeout);
                if self.timer.deadline() != at {
                    self.timer.as_mut().reset(at);
                }
                if self.timer.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Works under the lock: passes in the received bytes and takes the bytes to write.
    fn exchange(
        &mut self,
        has_read: bool,
        reached: &impl Fn(&Connection) -> bool,
        cx: &Context<'_>,
    ) -> Result<StepOutcome, ConnectionError> {
        let now = self.handle.clock.now();
        let mut connection = self.handle.lock();
        connection.traffic.writes = self.writes;
        if has_read {
            connection.traffic.reads += 1;
            connection.handle_receive(now, &mut self.input, &mut self.effects)?;
        }
        if connection.poll_timeout() <= now {
            connection.handle_timeout(now, &mut self.effects)?;
        }
        let yields = connection.has_output() && self.output.is_empty() && !self.has_yielded;
        if !yields {
            connection.take_output(&mut self.output);
            connection.set_writer(cx.waker());
        }
        let (is_reached, timeout) = (reached(&connection), connection.poll_timeout());
        let (is_silent, handle) = (connection.is_silent(), &self.handle);
        if handle.set_silent(is_silent) {
            tracing::debug!(is_silent, "server silence changed");
        }
        Ok(StepOutcome { is_reached, yields, timeout })
    }

    /// Reads available bytes; reserves at most twice the received bytes, because an announced length may be false.
    fn read(&mut self, cx: &mut Context<'_>) -> Result<bool, ConnectionError> {
        if self.input.capacity() - self.input.len() < READ_MIN {
            self.input.reserve(self.input.len().max(READ_AT_ONCE));
        }
        match pin!(self.stream.read_buf(&mut self.input)).poll(cx) {
            Poll::Ready(Ok(0)) => Err(ConnectionError::ClosedByServer),
            Poll::Ready(Ok(_)) => Ok(true),
            Poll::Ready(Err(error)) => Err(error.into()),
            Poll::Pending => Ok(false),
        }
    }

    /// Reads the rest that the server sent. Returns the server's notice, or else `cause`.
    fn read_rest(
        &mut self,
        cause: ConnectionError,
        reached: &impl Fn(&Connection) -> bool,
        cx: &mut Context<'_>,
    ) -> ConnectionError {
        while let Ok(true) = self.read(cx) {
            let moved = self.exchange(true, reached, cx);
            self.handle.apply(&mut self.effects);
            if let Err(said) = moved {
                return said;
            }
        }
        cause
    }

    fn write(&mut self, cx: &mut Context<'_>) -> Result<bool, ConnectionError> {
        let mut has_written = false;
        while !self.output.is_empty() {
            match pin!(self.stream.write_buf(&mut self.output)).poll(cx) {
                Poll::Ready(Ok(0)) => return Err(ConnectionError::ClosedByServer),
                Poll::Ready(Ok(count)) => {
                    self.written += count as u64;
                    self.writes += 1;
                    has_written = true;
                }
                Poll::Ready(Err(error)) => return Err(error.into()),
                Poll::Pending => break,
            }
        }
        if let Poll::Ready(written) = self.stream.poll_within(cx) {
            written?;
        }
        Ok(has_written)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.lose(&ConnectionError::ClosedLocally);
    }
}
