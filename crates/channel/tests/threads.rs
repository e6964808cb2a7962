//! Test of the threads that carry messages: those of the application's runtime only. A program of its own, because
//! threads are counted per process.

mod cluster;

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use cluster::{Cluster, Inbox, PATIENCE, one_view};
use consort_channel::{Channel, Delivery, Flags, Message, Receiver};
use tokio::sync::watch;

const WORKERS: usize = 3;
const MESSAGES: usize = 500;

/// Thread ids of the system.
type Threads = BTreeSet<String>;

/// All threads of this process.
fn threads() -> Threads {
    let entries = std::fs::read_dir("/proc/self/task").expect("the process");
    entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn own_thread() -> String {
    let path = std::fs::read_link("/proc/thread-self").expect("a thread");
    path.file_name().expect("a number").to_string_lossy().into_owned()
}

/// The runtime's threads.
#[derive(Clone, PartialEq, Debug, Default)]
struct Pool {
    live: Threads,
    /// Including those that have ended.
    ever: Threads,
}

static POOL: LazyLock<watch::Sender<Pool>> = LazyLock::new(Default::default);

/// Waits until the runtime has its workers and no other thread.
async fn only_workers() -> Pool {
    let mut pool = POOL.subscribe();
    let settled = tokio::time::timeout(PATIENCE, pool.wait_for(|pool| pool.live.len() == WORKERS)).await;
    settled.expect("threads for what blocks end").expect("a pool").clone()
}

/// Records the tasks and threads on which it is called.
#[derive(Default)]
struct Noting {
    inbox: Inbox,
    tasks: Mutex<BTreeSet<String>>,
    threads: Mutex<Threads>,
}

impl Receiver for Noting {
    fn receive_batch(&self, delivery: Delivery) {
        self.tasks.lock().unwrap().insert(own_task());
        self.threads.lock().unwrap().insert(own_thread());
        self.inbox.receive_batch(delivery);
    }
}

fn own_task() -> String {
    tokio::task::try_id().map_or_else(|| "none".to_owned(), |id| id.to_string())
}

/// Four members send regular and out-of-band messages to all.
async fn traffic(policy: &str, before: &Threads) {
    let cluster = Cluster::new("tcp.xml").with("mpp", policy);
    let notes: Vec<Arc<Noting>> = (0..4).map(|_| Arc::default()).collect();
    let mut channels: Vec<Channel> = Vec::new();
    for (name, noting) in ["A", "B", "C", "D"].iter().zip(&notes) {
        channels.push(cluster.join(name, noting.clone()).await);
    }
    one_view(&channels.iter().collect::<Vec<_>>()).await;
    // Stacks are built on threads for blocking work, which end when idle.
    let pool = only_workers().await;
    let no_other_thread = || {
        let others: Vec<String> = threads()
            .into_iter()
            .filter(|thread| !before.contains(thread) && !pool.ever.contains(thread))
            .collect();
        assert!(others.is_empty(), "{policy}: {others:?} with {pool:?}");
    };
    for number in 0..MESSAGES {
        for channel in &channels {
            let flags = if number % 2 == 0 { Flags::NONE } else { Flags::OOB };
            channel.send(Message::bytes(None, vec![1; 100]).with_flags(flags)).await.expect("sent");
        }
        no_other_thread();
    }
    for (noting, channel) in notes.iter().zip(&channels) {
        for sender in &channels {
            noting.inbox.from(sender.address(), MESSAGES).await;
        }
        no_other_thread();
        let stacks_own = channel.with_stack(|_, _| own_task()).await.expect("open");
        let tasks = noting.tasks.lock().unwrap().clone();
        if policy == "direct" {
            assert_eq!(tasks, BTreeSet::from([stacks_own]), "who reads calls the application");
        } else {
            assert!(!tasks.contains(&stacks_own), "{policy}: the stack does not wait for the application");
        }
        let used = noting.threads.lock().unwrap().clone();
        assert!(used.is_subset(&pool.live), "{policy}: {used:?} of {pool:?}");
    }
    assert_eq!(*POOL.borrow(), pool, "{policy}: no thread was started");
    for channel in channels {
        channel.close().await;
    }
}

/// S000-73: one pool for all messages, the runtime on which the application has connected; with the policy `direct`
/// the reading task calls the application.
#[test]
fn the_runtime_of_the_application_is_the_only_pool() {
    let before = threads();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .thread_keep_alive(Duration::from_millis(1))
        .on_thread_start(|| {
            POOL.send_modify(|pool| {
                pool.live.insert(own_thread());
                pool.ever.insert(own_thread());
            });
        })
        .on_thread_stop(|| {
            POOL.send_modify(|pool| {
                pool.live.remove(&own_thread());
            });
        })
        .enable_all()
        .build()
        .expect("a runtime");
    // All of them have begun before the rest of the test.
    runtime.block_on(only_workers());
    for policy in ["max", "submit", "unbatch", "direct"] {
        runtime.block_on(traffic(policy, &before));
    }
}
