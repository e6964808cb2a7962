//! Low-priority threads for clients that are not authenticated yet: TLS handshakes and password hashes of thousands must not
//! delay authenticated clients. A connection leaves them with its first request or its authentication, but not one in HTTP.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::Duration;

use consort_memory::{Budget, Reservation};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{AbortHandle, Id, JoinSet};
use tokio::time::Instant;

use crate::compute_pool::processors;
use crate::limits::{HANDSHAKE_THREADS_SHARE, PREAUTH_AGE_MIN, PREAUTH_BYTES_MAX, PREAUTH_CONNECTIONS_MIN};
use crate::transport::addresses::Origin;

pub(crate) type Serving = Pin<Box<dyn Future<Output = ()> + Send>>;

/// With all CPUs busy, the threads get about a tenth of one, so that clients that reconnect all at once still get in.
const NICENESS: i32 = 10;

/// Until the handshake is complete, the handshake threads serve the connection.
#[derive(Clone, Default)]
pub(crate) struct HandshakeGate(Arc<AtomicBool>);

impl HandshakeGate {
    /// Another runtime's poll continues the connection.
    pub(crate) async fn complete(&self) {
        poll_fn(|_| if self.0.swap(true, Relaxed) { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    fn is_complete(&self) -> bool {
        self.0.load(Relaxed)
    }
}

pub(crate) struct HandshakePool {
    /// `None` only while this is dropped.
    runtime: Option<Runtime>,
    connections: JoinSet<Option<Serving>>,
    budget: Budget,
    all: BTreeMap<u64, PendingConnection>,
    by_task: HashMap<Id, u64>,
    by_origin: BTreeMap<Origin, BTreeSet<u64>>,
    next_number: u64,
    pub(crate) age_min: Duration,
}

struct PendingConnection {
    task: AbortHandle,
    origin: Origin,
    since: Instant,
    #[expect(dead_code, reason = "its bytes are returned when it is dropped")]
    bytes: Reservation,
}

impl HandshakePool {
    pub(crate) fn new(budget: Budget) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads((processors() / HANDSHAKE_THREADS_SHARE).max(1))
            .thread_name("handshake")
            .on_thread_start(lower_thread_priority)
            .enable_time()
            .build()?;
        Ok(Self {
            runtime: Some(runtime),
            connections: JoinSet::new(),
            budget,
            all: BTreeMap::new(),
            by_task: HashMap::new(),
            by_origin: BTreeMap::new(),
            next_number: 0,
            age_min: PREAUTH_AGE_MIN,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// The stream's runtime polls its I/O. Returns the origins of connections closed to free capacity.
    pub(crate) fn spawn(
        &mut self,
        origin: Origin,
        serving: impl FnOnce(HandshakeGate) -> Serving,
    ) -> Vec<Origin> {
        let mut ended = Vec::new();
        let bytes = loop {
            match self.budget.try_reserve(PREAUTH_BYTES_MAX as u64) {
                Ok(bytes) => break bytes,
                Err(_) if self.all.len() < PREAUTH_CONNECTIONS_MIN => {
                    break self.budget.reserve_forced(PREAUTH_BYTES_MAX as u64);
                }
                Err(_) => ended.extend(self.close_oldest()),
            }
        };
        let gate = HandshakeGate::default();
        let mut serving = serving(gate.clone());
        let handshake = async move {
            let is_complete = poll_fn(|cx| match serving.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(false),
                Poll::Pending if gate.is_complete() => Poll::Ready(true),
                Poll::Pending => Poll::Pending,
            });
            is_complete.await.then_some(serving)
        };
        if let Some(runtime) = &self.runtime {
            let task = self.connections.spawn_on(handshake, runtime.handle());
            let number = self.next_number;
            self.next_number += 1;
            self.by_task.insert(task.id(), number);
            self.by_origin.entry(origin).or_default().insert(number);
            self.all.insert(number, PendingConnection { task, origin, since: Instant::now(), bytes });
        }
        ended
    }

    fn oldest(&self) -> Option<u64> {
        let most = self.by_origin.values().max_by_key(|of| (of.len(), Reverse(of.first().copied())))?;
        most.first().copied()
    }

    /// Until then a connection can only be added by closing another one; `None` if there is capacity now.
    pub(crate) fn full_until(&self) -> Option<Instant> {
        let is_full = self.budget.used() + PREAUTH_BYTES_MAX as u64 > self.budget.limit();
        if is_full && self.all.len() >= PREAUTH_CONNECTIONS_MIN { self.oldest_closable_at() } else { None }
    }

    pub(crate) fn oldest_closable_at(&self) -> Option<Instant> {
        Some(self.all.get(&self.oldest()?)?.since + self.age_min)
    }

    /// The origin with the most connections loses its oldest one.
    pub(crate) fn close_oldest(&mut self) -> Option<Origin> {
        let number = self.oldest()?;
        let ended = self.forget(number)?;
        ended.task.abort();
        Some(ended.origin)
    }

    fn forget(&mut self, number: u64) -> Option<PendingConnection> {
        let connection = self.all.remove(&number)?;
        self.by_task.remove(&connection.task.id());
        if let Some(of) = self.by_origin.get_mut(&connection.origin) {
            of.remove(&number);
            if of.is_empty() {
                self.by_origin.remove(&connection.origin);
            }
        }
        Some(connection)
    }

    /// `Some(None)` if a connection has ended. Returns `None` at once without connections.
    pub(crate) async fn join_next(&mut self) -> Option<Option<Serving>> {
        let (task, serving) = match self.connections.join_next_with_id().await? {
            Ok(handshake) => handshake,
            // A task that has panicked has ended, too.
            Err(error) => (error.id(), None),
        };
        if let Some(number) = self.by_task.get(&task).copied() {
            self.forget(number);
        }
        Some(serving)
    }

    pub(crate) async fn shutdown(&mut self) {
        self.connections.shutdown().await;
    }
}

impl Drop for HandshakePool {
    fn drop(&mut self) {
        // Without waiting for the hash of a password.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn lower_thread_priority() {
    // On other systems this would set the priority of the whole process.
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, NICENESS) {
        tracing::debug!(%error, "cannot lower the priority of a handshake thread");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::PREAUTH_TOTAL_BYTES_MAX;
    use crate::memory::Memory;

    fn thread() -> String {
        std::thread::current().name().unwrap_or_default().to_owned()
    }

    fn pool() -> HandshakePool {
        HandshakePool::new(Memory::default().handshakes).unwrap()
    }

    fn here() -> Origin {
        Origin::of(std::net::Ipv4Addr::LOCALHOST.into())
    }

    #[tokio::test]
    async fn connection_beyond_the_budget_closes_the_oldest_of_the_origin_with_most() {
        let mut pool = pool();
        let limit = PREAUTH_TOTAL_BYTES_MAX as usize / PREAUTH_BYTES_MAX;
        assert!(pool.full_until().is_none());
        let (few, many) = (here(), Origin::of([192, 0, 2, 1].into()));
        let silent = |_: HandshakeGate| -> Serving { Box::pin(std::future::pending()) };
        assert_eq!(pool.spawn(few, silent), []);
        for _ in 1..limit {
            assert_eq!(pool.spawn(many, silent), []);
        }
        for _ in 0..limit / 4 {
            assert_eq!(pool.spawn(many, silent), [many]);
            assert_eq!(pool.spawn(few, silent), [many], "those of the origin that has few stay");
            assert_eq!(pool.len(), limit);
        }
        let oldest = pool.full_until().expect("the budget is exhausted");
        assert!(oldest > Instant::now() - PREAUTH_AGE_MIN && oldest <= Instant::now() + PREAUTH_AGE_MIN);
        let usage = pool.budget.usage();
        assert_eq!((usage.peak, usage.used), (PREAUTH_TOTAL_BYTES_MAX, PREAUTH_TOTAL_BYTES_MAX));
        pool.shutdown().await;
        while pool.join_next().await.is_some() {}
        let origins: usize = pool.by_origin.len();
        assert!(origins <= 2 && pool.by_task.len() == pool.all.len());
    }

    #[tokio::test]
    async fn some_connections_are_accepted_while_clients_hold_all_their_memory() {
        let process = Budget::new("process", 1024 * 1024 * 1024);
        let memory = Memory::within(process.clone());
        let _held = process.try_reserve(process.limit()).unwrap();
        let mut pool = HandshakePool::new(memory.handshakes).unwrap();
        for _ in 0..PREAUTH_CONNECTIONS_MIN {
            assert_eq!(pool.spawn(here(), |_| Box::pin(std::future::pending())), []);
        }
        assert_eq!(pool.spawn(here(), |_| Box::pin(std::future::pending())), [here()]);
        assert_eq!(pool.len(), PREAUTH_CONNECTIONS_MIN);
        pool.shutdown().await;
    }

    #[tokio::test]
    async fn connection_leaves_the_pool_after_its_handshake() {
        let mut pool = pool();
        let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
        pool.spawn(here(), |gate| {
            Box::pin(async move {
                tokio::task::yield_now().await;
                sender.send(thread()).unwrap();
                gate.complete().await;
                sender.send(thread()).unwrap();
            })
        });
        assert_eq!(pool.len(), 1);
        let serving = pool.join_next().await.unwrap().expect("its handshake is complete");
        assert_eq!(receiver.recv().await.unwrap(), "handshake");
        assert!(receiver.try_recv().is_err(), "it stops at the gate");
        serving.await;
        assert_eq!(receiver.recv().await, Some(thread()));
        assert!(pool.join_next().await.is_none());
    }

    #[tokio::test]
    async fn connection_that_ends_before_its_handshake_leaves_the_pool() {
        let mut pool = pool();
        pool.spawn(here(), |_| Box::pin(async {}));
        pool.spawn(here(), |_| Box::pin(async { panic!("as a test wants it") }));
        assert!(pool.join_next().await.unwrap().is_none());
        assert!(pool.join_next().await.unwrap().is_none());
        pool.spawn(here(), |_| Box::pin(std::future::pending()));
        pool.shutdown().await;
        assert!(pool.join_next().await.is_none());
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn handshake_and_hash_threads_have_low_priority() {
        let own = rustix::process::getpriority_process(None).unwrap();
        let mut pool = pool();
        let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
        pool.spawn(here(), |_| {
            Box::pin(async move {
                let niceness = || rustix::process::getpriority_process(None).unwrap();
                sender.send(niceness()).unwrap();
                sender.send(tokio::task::spawn_blocking(niceness).await.unwrap()).unwrap();
            })
        });
        assert_eq!(receiver.recv().await, Some(NICENESS));
        assert_eq!(receiver.recv().await, Some(NICENESS));
        assert_eq!(rustix::process::getpriority_process(None).unwrap(), own, "others do not");
    }
}
