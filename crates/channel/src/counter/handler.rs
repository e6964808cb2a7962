use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use consort_group::protocols::CounterConfig;
use consort_group::wire::{self, CounterOperation};
use consort_group::{Address, HeaderBody, Message, MessageBatch, ProtocolId, View};

use super::error::CounterError;
use super::state::{CounterState, Done};
use crate::up_handler::{SendCapacity, UpHandler};
use crate::weak_channel::WeakChannel;

/// COUNTER of a member: it answers requests of other members also without a counter service.
pub(crate) struct CounterHandler {
    channel: OnceLock<WeakChannel>,
    state: Mutex<CounterState>,
}

impl CounterHandler {
    pub(crate) fn new(config: CounterConfig, local: Address) -> Self {
        Self { channel: OnceLock::new(), state: Mutex::new(CounterState::new(config, local)) }
    }

    /// Callers are woken outside the lock, because they may take it at once.
    fn with<R>(&self, call: impl FnOnce(&mut CounterState) -> R) -> R {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let result = call(&mut state);
        let completed = state.take_completed();
        drop(state);
        for (done, outcome) in completed {
            let _ = done.send(outcome);
        }
        result
    }

    pub(super) fn timeout(&self) -> Duration {
        self.with(|state| state.timeout())
    }

    /// The driver asks for the message and for the deadline.
    fn wake(&self) {
        if let Some(channel) = self.channel.get() {
            channel.waker().wake();
        }
    }

    /// Returns the operation's number, or 0 if it is done.
    pub(super) fn begin(
        &self,
        name: &str,
        operation: CounterOperation,
        timeout: Duration,
        done: Done,
    ) -> Result<u64, CounterError> {
        let now = Instant::now();
        let (begun, must_wake) = self.with(|state| {
            let begun = state.begin(name, operation, timeout, now, done);
            // An operation that is held needs its deadline.
            let must_wake = state.has_messages() || begun.as_ref().is_ok_and(|id| *id > 0);
            (begun, must_wake)
        });
        if must_wake {
            self.wake();
        }
        begun
    }

    pub(super) fn delete(&self, name: &str) -> Result<(), CounterError> {
        self.with(|state| state.delete(name, Instant::now()))?;
        self.wake();
        Ok(())
    }

    pub(super) fn forget(&self, id: u64) {
        self.with(|state| state.forget(id));
    }
}

impl UpHandler for CounterHandler {
    fn opened(&self, channel: WeakChannel) {
        let _ = self.channel.set(channel);
    }

    fn takes(&self, message: &Message) -> bool {
        matches!(message.headers.get(ProtocolId::COUNTER), Some(HeaderBody::Counter))
    }

    fn handle_batch(&self, batch: MessageBatch) {
        let now = Instant::now();
        self.with(|state| {
            for message in &batch.messages {
                let Some(src) = &message.src else { continue };
                let decoded = message.payload_bytes().map(wire::decode_counter);
                match decoded {
                    Some(Ok(decoded)) => state.receive(src, decoded, now),
                    Some(Err(error)) => state.warnings.count(now, "invalid message of COUNTER", || {
                        format!("a message of {src} is discarded: {error}")
                    }),
                    None => state.warnings.count(now, "invalid message of COUNTER", || {
                        format!("a message of {src} without bytes is discarded")
                    }),
                }
            }
        });
    }

    fn view(&self, view: &View) {
        self.with(|state| state.view(view, Instant::now()));
    }

    fn poll_send(&self) -> Option<Message> {
        self.with(CounterState::poll_message)
    }

    fn after_cycle(&self, capacity: &SendCapacity<'_>) {
        self.with(|state| state.after_cycle(|member| capacity.is_open(Some(member))));
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.with(|state| state.next_deadline())
    }

    fn handle_timeout(&self, now: Instant) {
        self.with(|state| state.handle_timeout(now));
    }

    fn closed(&self) {
        self.with(CounterState::close);
    }
}
