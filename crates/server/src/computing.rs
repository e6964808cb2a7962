//! Work that takes long: large conversions, the order of a large answer. It is done by a few threads, so that the thread that
//! serves a connection goes on with the requests of others.

use tokio::sync::Semaphore;

use crate::bounds::{COMPUTED_HERE_BYTES_MAX, COMPUTING_AT_ONCE, QUERIES_AT_ONCE};

static COMPUTING: Semaphore = Semaphore::const_new(COMPUTING_AT_ONCE);

/// Queries that are answered at the same time by this process: each holds a permit.
pub(crate) static QUERIES: Semaphore = Semaphore::const_new(QUERIES_AT_ONCE);

/// What `compute` gives, which looks at so many bytes. With few it is called here.
pub(crate) async fn computed<T: Send + 'static>(
    bytes: usize,
    compute: impl FnOnce() -> T + Send + 'static,
) -> T {
    if bytes <= COMPUTED_HERE_BYTES_MAX {
        return compute();
    }
    // The semaphore is never closed.
    let _permit = COMPUTING.acquire().await;
    match tokio::task::spawn_blocking(compute).await {
        Ok(computed) => computed,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime ends, and nothing is computed for this task any more.
            Err(_) => std::future::pending().await,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn large_work_is_done_by_another_thread_and_small_work_here() {
        let here = std::thread::current().id();
        let thread = || std::thread::current().id();
        assert_eq!(computed(COMPUTED_HERE_BYTES_MAX, thread).await, here);
        assert_ne!(computed(COMPUTED_HERE_BYTES_MAX + 1, thread).await, here);
    }
}
