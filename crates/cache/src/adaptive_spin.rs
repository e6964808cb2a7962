//! Adaptive spin: a task polls briefly before it parks.
//!
//! The kernel needs some 50 us to wake a thread on an idle CPU; a member produces hundreds of small entries
//! in that time. In a sequential iteration reader and responder wait for each other, so these two spin, less
//! often where it is in vain.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::task::yield_now;

/// A member produces, and a reader consumes, 512 small entries in less.
const SPIN_MAX: Duration = Duration::from_micros(250);

/// Waits without a spin after one in vain: late responses cost a sixteenth of the maximum time.
const PASSES_MAX: u32 = 15;

#[derive(Debug, Default)]
pub(crate) struct AdaptiveSpin {
    until: Option<Instant>,
    is_spinning: bool,
    passes: u32,
    /// Since the last spin in vain.
    passed: u32,
}

impl AdaptiveSpin {
    /// If not, the task parks.
    pub(crate) fn should_spin(&mut self, now: Instant) -> bool {
        match self.until {
            None if self.passes > 0 => {
                self.passes -= 1;
                self.until = Some(now);
            }
            None => {
                self.until = Some(now + SPIN_MAX);
                self.is_spinning = true;
            }
            Some(until) if self.is_spinning && now >= until => {
                self.is_spinning = false;
                self.passed = (2 * self.passed + 1).min(PASSES_MAX);
                self.passes = self.passed;
            }
            Some(_) => {}
        }
        self.is_spinning
    }

    pub(crate) fn reset(&mut self) {
        if std::mem::take(&mut self.is_spinning) {
            self.passed = 0;
        }
        self.until = None;
    }
}

/// The spin of a member that waits for a sequential reader's next request.
#[derive(Debug, Default)]
pub(crate) struct ResponderSpin {
    expects: AtomicBool,
    is_spinning: AtomicBool,
    spin: Mutex<AdaptiveSpin>,
}

impl ResponderSpin {
    fn spin(&self) -> MutexGuard<'_, AdaptiveSpin> {
        self.spin.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A task of this runtime keeps its thread awake briefly.
    pub(crate) fn expect(self: &Arc<Self>) {
        let Ok(runtime) = Handle::try_current() else { return };
        if self.begins(Instant::now()) {
            let watch = self.clone();
            runtime.spawn(async move {
                while watch.continues(Instant::now()) {
                    yield_now().await;
                }
            });
        }
    }

    fn begins(&self, now: Instant) -> bool {
        let looks = self.spin().should_spin(now);
        self.expects.store(true, Ordering::Relaxed);
        looks && !self.is_spinning.swap(true, Ordering::Relaxed)
    }

    fn continues(&self, now: Instant) -> bool {
        let goes_on = self.expects.load(Ordering::Relaxed) && self.spin().should_spin(now);
        self.is_spinning.store(goes_on, Ordering::Relaxed);
        goes_on
    }

    pub(crate) fn reset(&self) {
        // Every received message runs this: most of them were not expected.
        if self.expects.load(Ordering::Relaxed) && self.expects.swap(false, Ordering::Relaxed) {
            self.spin().reset();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(30);

    fn wait(spin: &mut AdaptiveSpin, takes: Duration) -> bool {
        let begun = Instant::now();
        let mut now = begun;
        let mut looks = spin.should_spin(now);
        while looks && now - begun < takes {
            now += SHORT / 10;
            looks = spin.should_spin(now);
        }
        spin.reset();
        looks
    }

    #[test]
    fn response_that_comes_soon_is_spun_for() {
        let mut spin = AdaptiveSpin::default();
        assert!((0..100).all(|_| wait(&mut spin, SHORT)));
    }

    #[test]
    fn late_responses_make_spins_rarer() {
        let mut spin = AdaptiveSpin::default();
        let now = Instant::now();
        let begins = |_| {
            let begins = spin.should_spin(now);
            spin.should_spin(now + SPIN_MAX);
            spin.reset();
            begins
        };
        let looked: Vec<usize> =
            (0..60).map(begins).enumerate().filter(|one| one.1).map(|one| one.0).collect();
        assert_eq!(looked, [0, 2, 6, 14, 30, 46]);
        // Once a spin succeeds, every later one does.
        while !wait(&mut spin, SHORT) {}
        assert!((0..100).all(|_| wait(&mut spin, SHORT)));
        wait(&mut spin, 2 * SPIN_MAX);
        assert_eq!([(); 2].map(|()| wait(&mut spin, SHORT)), [false, true], "one miss costs one");
    }

    #[test]
    fn parked_thread_stays_parked_through_spurious_wakes() {
        let mut spin = AdaptiveSpin::default();
        let now = Instant::now();
        assert!(spin.should_spin(now));
        assert!((1..10).all(|nth| !spin.should_spin(now + nth * SPIN_MAX)));
        spin.reset();
        assert!(!spin.should_spin(now), "passed once");
        spin.reset();
        assert!(spin.should_spin(now));
    }

    #[test]
    fn one_task_watches_for_a_moment_and_again_when_it_is_to() {
        let watch = ResponderSpin::default();
        let now = Instant::now();
        watch.reset();
        let began = [(); 3].map(|()| {
            let begins = watch.begins(now);
            watch.reset();
            begins
        });
        assert_eq!(began, [true, false, false], "it is the same one that goes on");
        assert!(!watch.continues(now), "nothing is expected");
        assert!(watch.begins(now) && watch.continues(now + SPIN_MAX / 2) && !watch.continues(now + SPIN_MAX));
        watch.reset();
        assert!(!watch.begins(now), "the last time was in vain");
        watch.reset();
        assert!(watch.begins(now));
    }
}
