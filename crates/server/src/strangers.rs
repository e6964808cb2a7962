//! Threads for clients that nobody knows yet.
//!
//! Before it is known who a client is, or that it is one, it costs a server something all the same: a handshake, some
//! messages, the hash of a password, and its end. Thousands may want that at once. On the threads of those that are known
//! they would all be before them in line, so that happens on a few of their own, which have to be content with what the
//! others leave of the CPUs. A connection moves from there to the others when its first request has come, or it is known
//! whose it is. HTTP stays.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use crate::bounds::STRANGERS_SHARE;

/// All that is done for a connection, from its beginning to its end.
pub(crate) type Serving = Pin<Box<dyn Future<Output = ()> + Send>>;

/// How far the threads step back (nice): where all CPUs are busy they have a tenth of one, so that clients that come back all
/// at once still get in.
const NICENESS: i32 = 10;

/// The point up to which a connection is a stranger's.
#[derive(Clone, Default)]
pub(crate) struct Threshold(Arc<AtomicBool>);

impl Threshold {
    /// The connection goes on after this once it is polled by somebody else.
    pub(crate) async fn step_over(&self) {
        poll_fn(|_| if self.0.swap(true, Relaxed) { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    fn is_reached(&self) -> bool {
        self.0.load(Relaxed)
    }
}

/// Connections of strangers, and the threads that serve them.
pub(crate) struct Strangers {
    /// There until it is dropped.
    runtime: Option<Runtime>,
    connections: JoinSet<Option<Serving>>,
}

impl Strangers {
    /// Nobody yet.
    ///
    /// # Errors
    ///
    /// If the system has no threads.
    pub(crate) fn new() -> io::Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let runtime = Builder::new_multi_thread()
            .worker_threads((cores / STRANGERS_SHARE).max(1))
            .thread_name("strangers")
            .on_thread_start(step_back)
            .enable_time()
            .build()?;
        Ok(Self { runtime: Some(runtime), connections: JoinSet::new() })
    }

    pub(crate) fn len(&self) -> usize {
        self.connections.len()
    }

    /// One more, until the threshold. What it reads and writes is awaited by the runtime in which its stream was made.
    pub(crate) fn meet(&mut self, serving: impl FnOnce(Threshold) -> Serving) {
        let threshold = Threshold::default();
        let mut serving = serving(threshold.clone());
        let met = async move {
            let is_met = poll_fn(|cx| match serving.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(false),
                Poll::Pending if threshold.is_reached() => Poll::Ready(true),
                Poll::Pending => Poll::Pending,
            });
            is_met.await.then_some(serving)
        };
        if let Some(runtime) = &self.runtime {
            self.connections.spawn_on(met, runtime.handle());
        }
    }

    /// Waits until there is one stranger less: a connection that is to be gone on with elsewhere, or nothing if it has ended.
    /// Nothing at once if there are none.
    pub(crate) async fn next(&mut self) -> Option<Option<Serving>> {
        // One that has panicked has ended, too.
        Some(self.connections.join_next().await?.ok().flatten())
    }

    /// Ends all of them, and waits until they have.
    pub(crate) async fn shutdown(&mut self) {
        self.connections.shutdown().await;
    }
}

impl Drop for Strangers {
    fn drop(&mut self) {
        // Without waiting for the hash of a password.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Makes this thread one that has its turn after others.
fn step_back() {
    // Elsewhere this would be the whole process.
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, NICENESS) {
        tracing::debug!(%error, "a thread for clients that are not known has the priority of others");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where it is polled.
    fn thread() -> String {
        std::thread::current().name().unwrap_or_default().to_owned()
    }

    #[tokio::test]
    async fn what_comes_after_the_threshold_is_done_elsewhere() {
        let mut strangers = Strangers::new().unwrap();
        let (told, mut tells) = tokio::sync::mpsc::unbounded_channel();
        strangers.meet(|threshold| {
            Box::pin(async move {
                tokio::task::yield_now().await;
                told.send(thread()).unwrap();
                threshold.step_over().await;
                told.send(thread()).unwrap();
            })
        });
        assert_eq!(strangers.len(), 1);
        let serving = strangers.next().await.unwrap().expect("it is met");
        assert_eq!(tells.recv().await.unwrap(), "strangers");
        assert!(tells.try_recv().is_err(), "it does not go on by itself");
        serving.await;
        assert_eq!(tells.recv().await, Some(thread()));
        assert!(strangers.next().await.is_none());
    }

    #[tokio::test]
    async fn who_ends_before_the_threshold_is_gone() {
        let mut strangers = Strangers::new().unwrap();
        strangers.meet(|_| Box::pin(async {}));
        strangers.meet(|_| Box::pin(async { panic!("as a test wants it") }));
        assert!(strangers.next().await.unwrap().is_none());
        assert!(strangers.next().await.unwrap().is_none());
        strangers.meet(|_| Box::pin(std::future::pending()));
        strangers.shutdown().await;
        assert!(strangers.next().await.is_none());
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn their_threads_step_back_and_those_that_hash_for_them_too() {
        let own = rustix::process::getpriority_process(None).unwrap();
        let mut strangers = Strangers::new().unwrap();
        let (told, mut tells) = tokio::sync::mpsc::unbounded_channel();
        strangers.meet(|_| {
            Box::pin(async move {
                let niceness = || rustix::process::getpriority_process(None).unwrap();
                told.send(niceness()).unwrap();
                told.send(tokio::task::spawn_blocking(niceness).await.unwrap()).unwrap();
            })
        });
        assert_eq!(tells.recv().await, Some(NICENESS));
        assert_eq!(tells.recv().await, Some(NICENESS));
        assert_eq!(rustix::process::getpriority_process(None).unwrap(), own, "others do not");
    }
}
