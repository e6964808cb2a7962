//! One operation as a future. An operation that ends within the call uses neither the channel nor a table; others wait without an
//! allocation. Dropping the future ends the wait; the operation goes on.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use consort_grid::{
    Action, CacheMode, Change, Flags, OperationError, Outcome, ReadFrom, Segment, SubmitOptions, Topology,
    Write, Written,
};
use consort_group::{Address, Time};

use crate::handler::GridHandler;
use crate::open_cache::OpenCache;
use crate::options::CacheOptions;
use crate::waiters;

/// Bytes of a key. Members copy keys for records and removals.
pub const KEY_BYTES_MAX: usize = 64 * 1024;

/// Bytes of a value. It is in memory several times on the path to its owners, and other commands wait behind
/// it.
pub const VALUE_BYTES_MAX: usize = 64 * 1024 * 1024;

struct Request {
    key: Bytes,
    action: Action,
    flags: Flags,
    timeout: Duration,
    response_bytes_max: u32,
    /// The first attempt, if it had to wait.
    began: Option<Time>,
    ticket: Option<u64>,
}

enum Step {
    New(Request),
    Submitted(u64),
    Over,
}

pub(crate) struct Operation<'a> {
    handler: &'a GridHandler,
    cache: &'a OpenCache,
    step: Step,
}

impl<'a> Operation<'a> {
    pub(crate) fn new(
        handler: &'a GridHandler,
        cache: &'a OpenCache,
        key: Bytes,
        action: Action,
        &CacheOptions { flags, timeout, response_bytes_max, .. }: &CacheOptions,
    ) -> Self {
        let request = Request { key, action, flags, timeout, response_bytes_max, began: None, ticket: None };
        Self { handler, cache, step: Step::New(request) }
    }

    fn submit(&mut self, cx: &Context<'_>) -> Poll<waiters::Result> {
        let Step::New(request) = &mut self.step else { return Poll::Ready(Err(OperationError::Closed)) };
        if let Err(error) = check(&request.key, sent_len(&request.action)) {
            return self.over(Err(error));
        }
        let mut state = self.handler.state();
        let state_ref = &mut *state;
        let Some(node) = state_ref.node.as_mut().filter(|_| !self.cache.is_closing()) else {
            drop(state);
            return self.over(Err(OperationError::Closed));
        };
        let now = self.handler.now();
        let waited = request.began.map_or(Duration::ZERO, |began| now.since(began));
        if request.began.is_some() && waited >= request.timeout {
            drop(state);
            let error = OperationError::TimedOut(request.timeout);
            return self.over(Err(error));
        }
        let backpressure = &mut state_ref.backpressure;
        let must_wait = node.is_busy()
            || !backpressure.has_room() && {
                let segment = self.cache.segment_of(&request.key);
                let topology = node.topology(self.cache.id);
                let is_own =
                    self.cache.config.mode == CacheMode::Invalidation || request.flags.contains(Flags::LOCAL);
                topology.filter(|_| !is_own).is_some_and(|topology| {
                    wants_room(topology, node.local(), segment, &request.action, |to| {
                        backpressure.is_blocked(to)
                    })
                })
            };
        if must_wait {
            request.began.get_or_insert(now);
            request.ticket = Some(backpressure.park(request.ticket, cx.waker().clone()));
            let effects = self.handler.drain(state_ref, |_, _| true);
            drop(state);
            // A cycle checks for room.
            self.handler.ring();
            self.handler.deliver_effects(effects);
            return Poll::Pending;
        }
        if let Some(ticket) = request.ticket.take() {
            backpressure.leave(ticket);
        }
        let bytes = bytes_of(&request.key, &request.action);
        let is_write = matches!(request.action, Action::Write(_));
        let Step::New(Request { key, action, flags, timeout, response_bytes_max, .. }) =
            std::mem::replace(&mut self.step, Step::Over)
        else {
            return Poll::Ready(Err(OperationError::Closed));
        };
        let timeout = timeout.saturating_sub(waited);
        let options = SubmitOptions { flags, timeout, response_bytes_max };
        let number = match node.submit_with(now, self.cache.id, key, action, options) {
            Ok(number) => number,
            Err(error) => return Poll::Ready(Err(error)),
        };
        let mut own = None;
        let effects = self.handler.drain(state_ref, |finished, result| {
            let is_own = finished == number;
            if is_own {
                own = Some(std::mem::replace(result, Err(OperationError::Closed)));
            }
            !is_own
        });
        if own.is_none() {
            self.handler.waiters().insert(number, cx.waker().clone(), is_write);
            self.cache.note_begun();
            self.step = Step::Submitted(number);
        }
        if effects.has_frames() {
            // A cycle follows, and resets the count.
            state_ref.backpressure.note_request(bytes);
        }
        drop(state);
        self.handler.deliver_effects(effects);
        own.map_or(Poll::Pending, Poll::Ready)
    }

    fn over(&mut self, result: waiters::Result) -> Poll<waiters::Result> {
        self.leave();
        Poll::Ready(result)
    }

    fn leave(&mut self) {
        match std::mem::replace(&mut self.step, Step::Over) {
            Step::New(Request { ticket: Some(ticket), .. }) => {
                self.handler.state().backpressure.leave(ticket);
            }
            Step::Submitted(number) => {
                self.handler.waiters().remove(number);
                self.cache.note_ended();
            }
            Step::New(_) | Step::Over => {}
        }
    }
}

impl Future for Operation<'_> {
    type Output = Result<Outcome, OperationError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = match self.step {
            Step::Submitted(number) => {
                let polled = self.handler.waiters().poll(number, cx);
                if polled.is_ready() {
                    self.step = Step::Over;
                    self.cache.note_ended();
                }
                polled
            }
            Step::New(_) | Step::Over => self.submit(cx),
        };
        polled.map_err(|error| self.handler.named(error))
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Carries out a write that needs no other member. `None`, without a change, if the write is not of this
/// kind, or not allowed.
pub(crate) fn try_write_local(
    handler: &GridHandler,
    cache: &OpenCache,
    key: &[u8],
    write: Write,
) -> Option<Result<Written, OperationError>> {
    check(key, value_len(&write)).ok()?;
    let mut state = handler.state();
    let node = state.node.as_mut().filter(|_| !cache.is_closing())?;
    let written = node.write_here(handler.now(), cache.id, key, write).ok()?;
    let effects = handler.drain(&mut state, |_, _| true);
    drop(state);
    handler.deliver_effects(effects);
    Some(written)
}

fn check(key: &[u8], value: usize) -> Result<(), OperationError> {
    let too_large = |what, length, limit| Err(OperationError::TooLarge { what, length, limit });
    if key.len() > KEY_BYTES_MAX {
        return too_large("key", key.len(), KEY_BYTES_MAX);
    }
    if value > VALUE_BYTES_MAX {
        return too_large("value", value, VALUE_BYTES_MAX);
    }
    Ok(())
}

fn value_len(write: &Write) -> usize {
    match &write.change {
        Change::Put { value, .. } => value.len(),
        Change::Remove | Change::Clear => 0,
    }
}

fn sent_len(action: &Action) -> usize {
    match action {
        Action::Write(write) => value_len(write),
        Action::Read(_) => 0,
    }
}

fn bytes_of(key: &Bytes, action: &Action) -> u64 {
    (key.len() + sent_len(action)) as u64
}

/// Whether an operation would go to members without room. A read that any owner may serve waits only if none
/// has room: it is small, and goes to another owner if the first is slow.
fn wants_room(
    topology: &Topology,
    local: &Address,
    segment: Segment,
    action: &Action,
    is_blocked: impl Fn(&Address) -> bool,
) -> bool {
    let owners = topology.read_owners();
    let is_without = |owner: &Address| owner != local && is_blocked(owner);
    match action {
        Action::Read(ReadFrom::Nearest) => {
            owners.owners(segment).len() > 0 && owners.owners(segment).all(is_without)
        }
        _ => owners.primary(segment).is_some_and(is_without),
    }
}
