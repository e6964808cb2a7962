//! Which threads carry messages: those of the application's runtime and no others. A program of its own, because
//! threads are counted for the whole process.

mod cluster;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use cluster::{Cluster, Inbox, PATIENCE, one_view};
use consort_channel::{Channel, Delivery, Flags, Message, Receiver};

const WORKERS: usize = 3;
const MESSAGES: usize = 500;

/// The threads of this process.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

/// Notes in which tasks and on which threads it is called.
#[derive(Default)]
struct Noting {
    inbox: Inbox,
    tasks: Mutex<BTreeSet<String>>,
    threads: Mutex<Vec<ThreadId>>,
}

impl Receiver for Noting {
    fn receive_batch(&self, delivery: Delivery) {
        self.tasks.lock().unwrap().insert(own_task());
        self.threads.lock().unwrap().push(std::thread::current().id());
        self.inbox.receive_batch(delivery);
    }
}

fn own_task() -> String {
    tokio::task::try_id().map_or_else(|| "none".to_owned(), |id| id.to_string())
}

/// Four members send regular and out-of-band messages to all. Returns the most threads that there were meanwhile.
async fn traffic(policy: &str, before: usize) -> usize {
    let cluster = Cluster::new("tcp.xml").with("mpp", policy);
    let notes: Vec<Arc<Noting>> = (0..4).map(|_| Arc::default()).collect();
    let mut channels: Vec<Channel> = Vec::new();
    for (name, noting) in ["A", "B", "C", "D"].iter().zip(&notes) {
        channels.push(cluster.join(name, noting.clone()).await);
    }
    one_view(&channels.iter().collect::<Vec<_>>()).await;
    // Sockets are opened, and names looked up, on threads for what blocks. They go when they have nothing to do.
    let until = Instant::now() + PATIENCE;
    while threads() > before + WORKERS && Instant::now() < until {
        tokio::task::yield_now().await;
    }
    let mut most = threads();
    for number in 0..MESSAGES {
        for channel in &channels {
            let flags = if number % 2 == 0 { Flags::NONE } else { Flags::OOB };
            channel.send(Message::bytes(None, vec![1; 100]).with_flags(flags)).await.expect("sent");
        }
        most = most.max(threads());
    }
    for (noting, channel) in notes.iter().zip(&channels) {
        for sender in &channels {
            noting.inbox.from(sender.address(), MESSAGES).await;
        }
        most = most.max(threads());
        let stacks_own = channel.with_stack(|_, _| own_task()).await.expect("open");
        let tasks = noting.tasks.lock().unwrap().clone();
        if policy == "direct" {
            assert_eq!(tasks, BTreeSet::from([stacks_own]), "who reads calls the application");
        } else {
            assert!(!tasks.contains(&stacks_own), "{policy}: the stack does not wait for the application");
        }
        let used: Vec<ThreadId> = noting.threads.lock().unwrap().clone();
        assert!(used.iter().all(|thread| WORKER_THREADS.lock().unwrap().contains(thread)), "{policy}");
    }
    for channel in channels {
        channel.close().await;
    }
    most
}

/// The threads that the runtime has started.
static WORKER_THREADS: Mutex<Vec<ThreadId>> = Mutex::new(Vec::new());

/// S000-73: one pool for all messages, the runtime that the application has connected on; with the policy `direct`
/// there is none, and whoever reads calls the application.
#[test]
fn the_runtime_of_the_application_is_the_only_pool() {
    let before = threads();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .thread_keep_alive(Duration::from_millis(1))
        .on_thread_start(|| WORKER_THREADS.lock().unwrap().push(std::thread::current().id()))
        .enable_all()
        .build()
        .expect("a runtime");
    for policy in ["max", "submit", "unbatch", "direct"] {
        let most = runtime.block_on(traffic(policy, before));
        assert_eq!(most, before + WORKERS, "{policy}");
    }
}
