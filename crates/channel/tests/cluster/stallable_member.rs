//! A member on a thread of its own that can be stalled: it reads nothing, like a process that is swapped out or
//! stopped by a debugger, while its connections stay open.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use consort_channel::{Channel, IgnoringReceiver, Message, Receiver};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use super::{Cluster, Inbox, fill, one_view};

/// The member. On drop it resumes and then ends as a crash does.
pub struct StallableMember {
    runtime: Option<Runtime>,
    pub channel: Channel,
    resume: Option<Sender<()>>,
}

impl StallableMember {
    pub async fn join(cluster: &Cluster, name: &'static str, receiver: impl Receiver) -> Self {
        let builder = cluster.builder(name).receiver(receiver);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let cluster = cluster.name.clone();
        let joining = runtime.spawn(async move { builder.connect(&cluster).await });
        let channel = tokio::time::timeout(super::PATIENCE, joining).await.expect("joined in time");
        let channel = channel.expect("no panic").unwrap_or_else(|error| panic!("{name}: {error}"));
        Self { runtime: Some(runtime), channel, resume: None }
    }

    /// Resumes the member.
    pub fn resume(&mut self) {
        self.resume = None;
    }

    /// Stops its only thread, in the middle of the stack's work.
    pub async fn stall(&mut self) {
        let (resume, held) = channel();
        let (stalled, is_stalled) = oneshot::channel();
        let stack = self.channel.clone();
        tokio::spawn(async move {
            let stop = move |_: &mut consort_group::Stack, _| {
                let _ = stalled.send(());
                let _: Result<(), _> = held.recv();
            };
            stack.with_stack(stop).await
        });
        is_stalled.await.expect("the stack stops");
        self.resume = Some(resume);
    }
}

impl Drop for StallableMember {
    fn drop(&mut self) {
        self.resume();
        if let Some(runtime) = self.runtime.take() {
            // Blocking on its end is not possible in a task.
            runtime.shutdown_background();
        }
    }
}

/// The transports, and the stock stack of each.
pub const TRANSPORTS: [(&str, &str); 3] =
    [("UDP", "udp.xml"), ("TCP_NIO2", "tcp-nio.xml"), ("TCP", "tcp.xml")];

/// Bytes of a message to the stalled member.
const FILLING: usize = 10_000;

/// A sender, a stalled member and another member.
pub struct StalledCluster {
    pub sender: Channel,
    pub stalled: StallableMember,
    /// The inbox of the stalled member.
    pub inbox: Arc<Inbox>,
    pub other: Channel,
    /// Messages sent to the stalled member.
    pub waiting: usize,
}

impl StalledCluster {
    /// Makes the cluster, stalls one member, and sends to it until there is no capacity. The kernel's buffers are
    /// small, so that over TCP most messages are queued in the sender; over UDP those that do not fit are lost and
    /// retransmitted.
    pub async fn new((transport, config): (&'static str, &'static str), receiver: impl Receiver) -> Self {
        let buffers = match transport {
            "UDP" => "",
            _ => "recv_buf_size=\"20K\" send_buf_size=\"20K\"",
        };
        let cluster = Cluster::new(config).transport(transport, buffers);
        let inbox = Arc::new(Inbox::default());
        let sender = cluster.join("A", IgnoringReceiver).await;
        let mut stalled = StallableMember::join(&cluster, "B", inbox.clone()).await;
        let other = cluster.join("C", receiver).await;
        one_view(&[&sender, &stalled.channel, &other]).await;
        stalled.stall().await;
        let message = Message::bytes(Some(stalled.channel.address().clone()), vec![7; FILLING]);
        let waiting = fill(&sender, &message).await / FILLING;
        Self { sender, stalled, inbox, other, waiting }
    }
}
