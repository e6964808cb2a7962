//! Threads for long computations: large conversions, and sorting large responses.

use std::num::NonZeroUsize;
use std::sync::LazyLock;

use tokio::sync::Semaphore;

use crate::limits::{COMPUTE_INLINE_BYTES_MAX, COMPUTE_THREADS, CONCURRENT_QUERIES};

static COMPUTING: Semaphore = Semaphore::const_new(COMPUTE_THREADS);

pub(crate) static QUERIES: Semaphore = Semaphore::const_new(CONCURRENT_QUERIES);

pub(crate) fn processors() -> usize {
    static PROCESSORS: LazyLock<usize> =
        LazyLock::new(|| std::thread::available_parallelism().map_or(1, NonZeroUsize::get));
    *PROCESSORS
}

/// `compute` reads this many bytes; few bytes run on this thread.
pub(crate) async fn offload_if_large<T: Send + 'static>(
    bytes: usize,
    compute: impl FnOnce() -> T + Send + 'static,
) -> T {
    if bytes <= COMPUTE_INLINE_BYTES_MAX {
        return compute();
    }
    // The semaphore is never closed.
    let _permit = COMPUTING.acquire().await;
    match tokio::task::spawn_blocking(compute).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down, and polls this task no more.
            Err(_) => std::future::pending().await,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn large_computation_runs_on_another_thread_and_small_one_inline() {
        let here = std::thread::current().id();
        let thread = || std::thread::current().id();
        assert_eq!(offload_if_large(COMPUTE_INLINE_BYTES_MAX, thread).await, here);
        assert_ne!(offload_if_large(COMPUTE_INLINE_BYTES_MAX + 1, thread).await, here);
    }
}
