//! Tests that senders wait before an edge's queue to a member is full, over TCP and within a process, whatever its
//! size. A UDP socket takes all datagrams, so that UDP has no such test.

mod cluster;

use std::sync::Arc;

use cluster::stallable_member::StallableMember;
use cluster::{Cluster, Inbox, PATIENCE, one_view};
use consort_channel::{Address, Channel, IgnoringReceiver, Message, SendError};
use consort_testkit::Log;

/// Bytes of a message.
const SIZE: usize = 10_000;

fn assert_no_full_queue(warnings: &Log) {
    let text = warnings.take();
    assert!(!text.contains("queue_full"), "{text}");
}

fn message(dest: Option<&Address>) -> Message {
    Message::bytes(dest.cloned(), vec![7; SIZE])
}

/// Sends until there is no capacity, and again after each cycle until none becomes free. Returns the number of
/// messages.
async fn flood(from: &Channel, dest: Option<&Address>) -> usize {
    let mut sent = 0;
    loop {
        let before = sent;
        while from.try_send(message(dest)).is_ok() {
            sent += 1;
        }
        // Sent messages go as far as they can.
        from.with_stack(|_, _| ()).await.expect("an open channel");
        if sent == before {
            return sent;
        }
    }
}

/// Floods a stalled member; then one more send waits until the member resumes, and all messages arrive.
async fn a_flood_waits_for_a_stalled_member(cluster: Cluster, is_multicast: bool) {
    let (warnings, _guard) = Log::begin("warn");
    let inbox = Arc::new(Inbox::default());
    let sender = cluster.join("A", IgnoringReceiver).await;
    let mut stalled = StallableMember::join(&cluster, "B", inbox.clone()).await;
    one_view(&[&sender, &stalled.channel]).await;
    stalled.stall().await;
    let to_it = stalled.channel.address().clone();
    let dest = (!is_multicast).then_some(&to_it);
    let sent = flood(&sender, dest).await;
    assert_no_full_queue(&warnings);
    assert!(matches!(sender.try_send(message(dest)), Err(SendError::Full)));
    let waiting = tokio::spawn({
        let (sender, last) = (sender.clone(), message(dest));
        async move { sender.send(last).await }
    });
    sender.with_stack(|_, _| ()).await;
    assert!(!waiting.is_finished(), "it waits");
    stalled.resume();
    tokio::time::timeout(PATIENCE, waiting).await.expect("it gets capacity").unwrap().expect("sent");
    inbox.from(sender.address(), sent + 1).await;
    assert_no_full_queue(&warnings);
    sender.close().await;
}

const SMALL_TCP: &str = "send_queue_bytes=\"1M\" recv_buf_size=\"20K\" send_buf_size=\"20K\"";

#[tokio::test]
async fn over_tcp_senders_wait_before_a_small_queue_is_full() {
    a_flood_waits_for_a_stalled_member(Cluster::new("tcp.xml").transport("TCP", SMALL_TCP), false).await;
    a_flood_waits_for_a_stalled_member(Cluster::new("tcp.xml").transport("TCP", SMALL_TCP), true).await;
}

/// However many messages may wait for credits.
#[tokio::test]
async fn over_tcp_the_limit_of_flow_control_does_not_matter() {
    let cluster = Cluster::new("tcp.xml").transport("TCP", SMALL_TCP);
    let cluster = cluster.edited(&[("<UFC ", "<UFC_NB ")]);
    a_flood_waits_for_a_stalled_member(cluster, false).await;
}

#[tokio::test]
async fn within_a_process_senders_wait_before_a_members_queue_is_full() {
    for is_multicast in [false, true] {
        let transport = "<include file=\"${transport-config:udp-default.xml}\"/>";
        let edits = [(transport, "<SHARED_LOOPBACK/>"), ("capacity=\"2048\"", "capacity=\"6000\"")];
        let cluster = Cluster::new("udp-new.xml").edited(&edits);
        a_flood_waits_for_a_stalled_member(cluster, is_multicast).await;
    }
}
