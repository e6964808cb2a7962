//! Worker threads for functions that take long with an entry ([`crate::CacheBuilder::costly_transform`]). They run
//! outside the member's lock, in steps, so that neither the driver nor other iterations wait for one of them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::handler::{GridHandler, State};

/// Time after which a step takes no further entries. Then the reader gets the results so far, and other steps run.
const STEP_TIME: Duration = Duration::from_millis(10);

/// Number of cores per worker thread; there is at least one thread. The other cores are for the driver and for
/// callers.
const CORES_PER_WORKER: usize = 2;

/// The workers of a member.
pub(crate) struct Workers {
    running: AtomicUsize,
    running_max: usize,
    host: OnceLock<(Weak<GridHandler>, Handle)>,
}

impl Default for Workers {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            running: AtomicUsize::new(0),
            running_max: (cores / CORES_PER_WORKER).max(1),
            host: OnceLock::new(),
        }
    }
}

impl Workers {
    /// Sets the handler whose steps the workers run. Must be called within the runtime.
    pub(crate) fn serve(&self, handler: &Arc<GridHandler>) {
        let _ = self.host.set((Arc::downgrade(handler), Handle::current()));
    }

    /// Starts one more worker, unless the maximum is running: running workers look for further steps before they end.
    pub(crate) fn start(&self) {
        let Some((handler, runtime)) = self.host.get() else { return };
        let one_more = |running| (running < self.running_max).then_some(running + 1);
        if self.running.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).is_err() {
            return;
        }
        match handler.upgrade() {
            Some(handler) => drop(runtime.spawn_blocking(move || work(&handler))),
            None => self.end(),
        }
    }

    fn end(&self) {
        self.running.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Runs steps until none waits.
fn work(handler: &GridHandler) {
    loop {
        let mut state = handler.state();
        let now = handler.now();
        let computation = state.node.as_mut().and_then(|node| node.take_computation(now));
        if computation.is_none() {
            // Under the lock, so that a later step starts another worker.
            handler.workers.end();
        }
        dispatch_effects(handler, state);
        let Some(computation) = computation else { return };
        let begun = Instant::now();
        let computed = computation.run(|| begun.elapsed() < STEP_TIME);
        let mut state = handler.state();
        let now = handler.now();
        if let Some(node) = &mut state.node {
            node.finish_computation(now, computed);
        }
        dispatch_effects(handler, state);
    }
}

/// Delivers the node's output, without its lock.
fn dispatch_effects(handler: &GridHandler, mut state: std::sync::MutexGuard<'_, State>) {
    let effects = handler.drain(&mut state, |_, _| true);
    drop(state);
    handler.deliver_effects(effects);
}
