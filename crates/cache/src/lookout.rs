//! What comes soon is looked for again and again for a moment, instead of sleeping until it is there.
//!
//! To wake a thread whose CPU has nothing else to do takes the kernel some 50 us, in which a member gives hundreds of small
//! entries. Nothing hides that in a walk of one member after the other: its reader has nothing to do until it is answered,
//! and whoever answers it nothing until it asks again. So these two look; where that is in vain they look less often.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::task::yield_now;

/// How long it is looked for: a member gives 512 small entries in less, and a reader has taken them in less.
const LOOKS_FOR: Duration = Duration::from_micros(250);

/// So often it is not looked for at most after that was in vain: what comes later costs a sixteenth of that time.
const PASSES_MAX: u32 = 15;

/// Whether to look for the next thing that comes.
#[derive(Debug, Default)]
pub(crate) struct Lookout {
    /// Since something is waited for: until when it is looked for.
    until: Option<Instant>,
    is_looking: bool,
    /// So often it is not looked for from now on.
    passes: u32,
    /// So often it was not the last time.
    passed: u32,
}

impl Lookout {
    /// Something is waited for, and is not there yet. Whether to look again; if not, it is time to sleep.
    pub(crate) fn looks_again(&mut self, now: Instant) -> bool {
        match self.until {
            None if self.passes > 0 => {
                self.passes -= 1;
                self.until = Some(now);
            }
            None => {
                self.until = Some(now + LOOKS_FOR);
                self.is_looking = true;
            }
            Some(until) if self.is_looking && now >= until => {
                self.is_looking = false;
                self.passed = (2 * self.passed + 1).min(PASSES_MAX);
                self.passes = self.passed;
            }
            Some(_) => {}
        }
        self.is_looking
    }

    /// It is there.
    pub(crate) fn note_came(&mut self) {
        if std::mem::take(&mut self.is_looking) {
            self.passed = 0;
        }
        self.until = None;
    }
}

/// A member on the lookout for the next request of a reader that has nothing else to do.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    expects: AtomicBool,
    is_watched: AtomicBool,
    lookout: Mutex<Lookout>,
}

impl Watch {
    fn lookout(&self) -> MutexGuard<'_, Lookout> {
        self.lookout.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on a request may come. A task of this runtime's keeps its thread awake for a moment.
    pub(crate) fn expect(self: &Arc<Self>) {
        let Ok(runtime) = Handle::try_current() else { return };
        if self.begins(Instant::now()) {
            let watch = self.clone();
            runtime.spawn(async move {
                while watch.goes_on(Instant::now()) {
                    yield_now().await;
                }
            });
        }
    }

    /// Whether a task has to begin that looks.
    fn begins(&self, now: Instant) -> bool {
        let looks = self.lookout().looks_again(now);
        self.expects.store(true, Ordering::Relaxed);
        looks && !self.is_watched.swap(true, Ordering::Relaxed)
    }

    /// Whether that task looks again; if not, it is over.
    fn goes_on(&self, now: Instant) -> bool {
        let goes_on = self.expects.load(Ordering::Relaxed) && self.lookout().looks_again(now);
        self.is_watched.store(goes_on, Ordering::Relaxed);
        goes_on
    }

    /// Something has come.
    pub(crate) fn note_came(&self) {
        // Everything that comes is told here: most of it was not waited for.
        if self.expects.load(Ordering::Relaxed) && self.expects.swap(false, Ordering::Relaxed) {
            self.lookout().note_came();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(30);

    /// Waits for what takes so long. Whether it was looked for to the end.
    fn wait(lookout: &mut Lookout, takes: Duration) -> bool {
        let begun = Instant::now();
        let mut now = begun;
        let mut looks = lookout.looks_again(now);
        while looks && now - begun < takes {
            now += SHORT / 10;
            looks = lookout.looks_again(now);
        }
        lookout.note_came();
        looks
    }

    #[test]
    fn what_comes_soon_is_looked_for() {
        let mut lookout = Lookout::default();
        assert!((0..100).all(|_| wait(&mut lookout, SHORT)));
    }

    #[test]
    fn what_comes_late_is_looked_for_less_and_less_often() {
        let mut lookout = Lookout::default();
        let now = Instant::now();
        let begins = |_| {
            let begins = lookout.looks_again(now);
            lookout.looks_again(now + LOOKS_FOR);
            lookout.note_came();
            begins
        };
        let looked: Vec<usize> =
            (0..60).map(begins).enumerate().filter(|one| one.1).map(|one| one.0).collect();
        assert_eq!(looked, [0, 2, 6, 14, 30, 46]);
        // Once it is in time, always.
        while !wait(&mut lookout, SHORT) {}
        assert!((0..100).all(|_| wait(&mut lookout, SHORT)));
        wait(&mut lookout, 2 * LOOKS_FOR);
        assert_eq!([(); 2].map(|()| wait(&mut lookout, SHORT)), [false, true], "one miss costs one");
    }

    #[test]
    fn who_sleeps_does_so_however_often_it_is_woken_for_nothing() {
        let mut lookout = Lookout::default();
        let now = Instant::now();
        assert!(lookout.looks_again(now));
        assert!((1..10).all(|nth| !lookout.looks_again(now + nth * LOOKS_FOR)));
        lookout.note_came();
        assert!(!lookout.looks_again(now), "passed once");
        lookout.note_came();
        assert!(lookout.looks_again(now));
    }

    #[test]
    fn one_task_watches_for_a_moment_and_again_when_it_is_to() {
        let watch = Watch::default();
        let now = Instant::now();
        watch.note_came();
        let began = [(); 3].map(|()| {
            let begins = watch.begins(now);
            watch.note_came();
            begins
        });
        assert_eq!(began, [true, false, false], "it is the same one that goes on");
        assert!(!watch.goes_on(now), "nothing is expected");
        assert!(watch.begins(now) && watch.goes_on(now + LOOKS_FOR / 2) && !watch.goes_on(now + LOOKS_FOR));
        watch.note_came();
        assert!(!watch.begins(now), "the last time was in vain");
        watch.note_came();
        assert!(watch.begins(now));
    }
}
