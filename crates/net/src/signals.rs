//! The driver's mailbox: commands, and ready sockets.
//!
//! One lock guards both, which the driver takes once per cycle. A sender wakes the driver once per cycle: a hundred tasks cost
//! one wake-up (S000-72). Of wake-ups without a command ([`crate::DriverWaker`]) only the first takes the lock.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

use consort_group::{Address, Event, Message, Stack, Time};

/// [`Signals::try_push`] refuses more: enough for ten thousand callers, a few megabytes at most.
pub(crate) const COMMANDS_MAX: usize = 16 * 1024;

/// Runs on a stack.
pub type StackCall = Box<dyn FnOnce(&mut Stack, Time) + Send>;

/// A command to the stack.
pub enum Command {
    /// Send a message.
    Send(Message),
    /// Pass an event to the top.
    Event(Event),
    /// Join a cluster.
    Connect(String),
    /// Leave the cluster.
    Disconnect,
    /// Return consumed messages' credit.
    Consumed {
        /// The sender.
        src: Address,
        /// Whether they were multicasts.
        is_multicast: bool,
        /// The sum of [`Message::credit`]s.
        credit: u64,
    },
    /// Run a function between two cycles.
    Call(StackCall),
}

/// A refused command, handed back.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The queue is full.
    #[error("the driver's queue is full")]
    Full(Box<Command>),
    /// The driver is closed.
    #[error("the driver is closed")]
    Closed(Box<Command>),
}

impl std::fmt::Debug for SubmitError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Full(_) => "Full",
            Self::Closed(_) => "Closed",
        })
    }
}

/// The owner of a source, and its number there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Key {
    pub(crate) owner: Owner,
    pub(crate) index: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Owner {
    Edge,
    EffectLinks(u16),
    EffectStreams(u16),
    EffectGroup(u16),
    Jobs,
    PortProbes,
}

#[derive(Default)]
struct Inner {
    commands: Vec<Command>,
    ready: Vec<Key>,
    driver: Option<Waker>,
    /// The flag holds since the driver's last cycle.
    is_notified: bool,
    is_closing: bool,
    is_gone: bool,
}

impl Inner {
    /// Returns the waker once per cycle, to wake after the lock is released.
    fn notify(&mut self) -> Option<Waker> {
        if std::mem::replace(&mut self.is_notified, true) { None } else { self.driver.clone() }
    }
}

#[derive(Default)]
pub(crate) struct Signals {
    inner: Mutex<Inner>,
    /// Set by [`Signals::wake`]; cleared by the driver, under the lock only. The setter takes the lock next: either the driver is
    /// still to look, or the setter wakes it. Cleared before the lock, it could be set again while the driver counts as notified,
    /// and stay set.
    is_wake_requested: AtomicBool,
}

impl Signals {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No code panics under this lock except on lack of memory; its data is consistent in any case.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The queue is not bounded here, because callers bound their commands.
    pub(crate) fn push(&self, command: Command) -> Result<(), SubmitError> {
        let mut inner = self.lock();
        if inner.is_closing || inner.is_gone {
            return Err(SubmitError::Closed(Box::new(command)));
        }
        inner.commands.push(command);
        let driver = inner.notify();
        drop(inner);
        if let Some(driver) = driver {
            driver.wake();
        }
        Ok(())
    }

    pub(crate) fn try_push(&self, command: Command) -> Result<(), SubmitError> {
        let inner = self.lock();
        if inner.commands.len() >= COMMANDS_MAX && !inner.is_closing {
            return Err(SubmitError::Full(Box::new(command)));
        }
        drop(inner);
        self.push(command)
    }

    pub(crate) fn push_all(&self, commands: &mut Vec<Command>) -> bool {
        let mut inner = self.lock();
        if inner.is_closing || inner.is_gone {
            return false;
        }
        inner.commands.append(commands);
        let driver = inner.notify();
        drop(inner);
        if let Some(driver) = driver {
            driver.wake();
        }
        true
    }

    /// The cycle begins after this call and sees the caller's writes.
    pub(crate) fn wake(&self) {
        // A swap, not a load: the driver, when it clears the flag, sees the writes of all callers that found it set.
        if self.is_wake_requested.swap(true, Ordering::AcqRel) {
            return;
        }
        let driver = self.lock().notify();
        if let Some(driver) = driver {
            driver.wake();
        }
    }

    fn ready(&self, key: Key) {
        let mut inner = self.lock();
        if inner.is_gone {
            return;
        }
        inner.ready.push(key);
        let driver = inner.notify();
        drop(inner);
        if let Some(driver) = driver {
            driver.wake();
        }
    }

    pub(crate) fn close(&self) {
        let mut inner = self.lock();
        inner.is_closing = true;
        let driver = inner.notify();
        drop(inner);
        if let Some(driver) = driver {
            driver.wake();
        }
    }

    /// Both vectors must be empty, because they are swapped in. Returns whether to close.
    pub(crate) fn take(&self, driver: &Waker, commands: &mut Vec<Command>, ready: &mut Vec<Key>) -> bool {
        debug_assert!(commands.is_empty() && ready.is_empty(), "swapped in empty");
        let mut inner = self.lock();
        if !inner.driver.as_ref().is_some_and(|known| known.will_wake(driver)) {
            inner.driver = Some(driver.clone());
        }
        inner.is_notified = false;
        if self.is_wake_requested.load(Ordering::Relaxed) {
            self.is_wake_requested.swap(false, Ordering::AcqRel);
        }
        std::mem::swap(&mut inner.commands, commands);
        std::mem::swap(&mut inner.ready, ready);
        inner.is_closing
    }

    pub(crate) fn retire(&self) -> Vec<Command> {
        let mut inner = self.lock();
        inner.is_gone = true;
        inner.driver = None;
        inner.ready = Vec::new();
        std::mem::take(&mut inner.commands)
    }
}

/// With a waker per source the driver polls only ready ones.
pub(crate) struct SourceWaker {
    signals: Arc<Signals>,
    key: Key,
}

impl SourceWaker {
    pub(crate) fn waker(signals: &Arc<Signals>, key: Key) -> Waker {
        Waker::from(Arc::new(Self { signals: signals.clone(), key }))
    }
}

impl Wake for SourceWaker {
    fn wake(self: Arc<Self>) {
        self.signals.ready(self.key);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.signals.ready(self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::{Duration, Instant};

    use super::*;

    /// No test takes a tenth of it.
    const TIMEOUT: Duration = Duration::from_secs(20);

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// S000-72
    #[test]
    fn a_thousand_commands_cost_one_wake_up_and_one_drain() {
        let signals = Arc::new(Signals::default());
        let wakes = Arc::new(Wakes::default());
        let driver = Waker::from(wakes.clone());
        let (mut commands, mut ready) = (Vec::new(), Vec::new());
        signals.take(&driver, &mut commands, &mut ready);
        for _ in 0..1000 {
            signals.push(Command::Disconnect).unwrap();
        }
        SourceWaker::waker(&signals, Key { owner: Owner::Edge, index: 7 }).wake();
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        signals.take(&driver, &mut commands, &mut ready);
        assert_eq!((commands.len(), ready.len()), (1000, 1));
    }

    #[test]
    fn a_thousand_wake_ups_cost_one_wake_of_the_driver_per_cycle() {
        let signals = Arc::new(Signals::default());
        let wakes = Arc::new(Wakes::default());
        let driver = Waker::from(wakes.clone());
        let (mut commands, mut ready) = (Vec::new(), Vec::new());
        for round in 1..=3 {
            signals.take(&driver, &mut commands, &mut ready);
            std::thread::scope(|scope| {
                for _ in 0..10 {
                    scope.spawn(|| (0..100).for_each(|_| signals.wake()));
                }
            });
            assert_eq!(wakes.0.load(Ordering::Relaxed), round);
        }
        assert!(commands.is_empty() && ready.is_empty());
        signals.retire();
        signals.wake();
        assert_eq!(wakes.0.load(Ordering::Relaxed), 3, "no waker is left");
    }

    struct Unpark(std::thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    /// Some wake-ups fall between a command's and the driver's cycle.
    #[test]
    fn no_wake_up_is_lost() {
        const ROUNDS: usize = 20_000;
        let signals = Signals::default();
        let [written, seen] = [const { AtomicUsize::new(0) }; 2];
        let driver = Waker::from(Arc::new(Unpark(std::thread::current())));
        let (mut commands, mut ready) = (Vec::new(), Vec::new());
        let (signals, written, seen) = (&signals, &written, &seen);
        std::thread::scope(|scope| {
            for nth in 0..2 {
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        if round % 2 == nth {
                            signals.push(Command::Disconnect).unwrap();
                        }
                        let mine = written.fetch_add(1, Ordering::Relaxed) + 1;
                        signals.wake();
                        while seen.load(Ordering::Relaxed) < mine {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            while seen.load(Ordering::Relaxed) < 2 * ROUNDS {
                signals.take(&driver, &mut commands, &mut ready);
                commands.clear();
                let count = written.load(Ordering::Relaxed);
                seen.store(count, Ordering::Relaxed);
                if count < 2 * ROUNDS {
                    let parked = Instant::now();
                    std::thread::park_timeout(TIMEOUT);
                    if parked.elapsed() >= TIMEOUT {
                        seen.store(usize::MAX, Ordering::Relaxed);
                        panic!("a wake-up was lost");
                    }
                }
            }
        });
    }

    #[test]
    fn a_full_queue_hands_the_command_back() {
        let signals = Signals::default();
        for _ in 0..COMMANDS_MAX {
            signals.try_push(Command::Disconnect).unwrap();
        }
        assert!(matches!(signals.try_push(Command::Disconnect), Err(SubmitError::Full(_))));
    }

    #[test]
    fn a_closed_queue_hands_the_command_back() {
        let signals = Signals::default();
        signals.close();
        assert!(matches!(signals.push(Command::Disconnect), Err(SubmitError::Closed(_))));
    }
}
