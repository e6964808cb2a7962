//! Worker threads for functions that take long ([`crate::CacheBuilder::costly_transform`]). They run outside the member's lock,
//! in steps: neither the driver nor other iterations wait for one.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use consort_grid::{Computation, Computed};
use tokio::runtime::Handle;

/// Then a step takes no more entries: the reader gets the results so far, and other steps run.
const STEP_TIME: Duration = Duration::from_millis(10);

/// There is at least one worker. The other cores are for the driver and callers.
const CORES_PER_WORKER: usize = 2;

pub(crate) trait Computing: Send + Sync + Sized + 'static {
    fn workers(&self) -> &Workers<Self>;

    /// Without a next step, calls `end` under the member's lock, so that a later step starts another worker.
    fn take_computation(&self, end: impl FnOnce()) -> Option<Computation>;

    fn finish_computation(&self, computed: Computed);
}

pub(crate) struct Workers<H> {
    running: AtomicUsize,
    running_max: usize,
    host: OnceLock<(Weak<H>, Handle)>,
}

impl<H> Default for Workers<H> {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            running: AtomicUsize::new(0),
            running_max: (cores / CORES_PER_WORKER).max(1),
            host: OnceLock::new(),
        }
    }
}

impl<H: Computing> Workers<H> {
    /// Only within the runtime.
    pub(crate) fn serve(&self, member: &Arc<H>) {
        let _ = self.host.set((Arc::downgrade(member), Handle::current()));
    }

    /// Unless the maximum is running: running workers look for further steps before they end.
    pub(crate) fn start(&self) {
        let Some((member, runtime)) = self.host.get() else { return };
        let one_more = |running| (running < self.running_max).then_some(running + 1);
        if self.running.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).is_err() {
            return;
        }
        match member.upgrade() {
            Some(member) => drop(runtime.spawn_blocking(move || work(&*member))),
            None => self.end(),
        }
    }

    fn end(&self) {
        self.running.fetch_sub(1, Ordering::AcqRel);
    }
}

fn work(member: &impl Computing) {
    while let Some(computation) = member.take_computation(|| member.workers().end()) {
        let begun = Instant::now();
        member.finish_computation(computation.run(|| begun.elapsed() < STEP_TIME));
    }
}
