//! Channels on real sockets.

mod cluster;

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use cluster::{Cluster, Inbox, PATIENCE, Slow, fill, one_view};
use consort_channel::{Channel, Delivery, Flags, IgnoringReceiver, Message, Receiver};
use consort_group::protocols::{Discard, DiscardConfig};
use tokio::sync::watch;

fn numbered(count: u32, size: usize) -> impl Iterator<Item = Message> {
    (0..count).map(move |n| {
        let mut bytes = vec![0; size.max(4)];
        bytes[..4].copy_from_slice(&n.to_be_bytes());
        Message::bytes(None, bytes)
    })
}

fn numbers(received: &[Vec<u8>]) -> Vec<u32> {
    received.iter().map(|bytes| u32::from_be_bytes(bytes[..4].try_into().unwrap())).collect()
}

/// Members of a stock stack find each other, agree on a view, and receive all messages of all members in order, once.
async fn four_members(config: &'static str) {
    four_members_of(&Cluster::new(config)).await;
}

async fn four_members_of(cluster: &Cluster) {
    let inboxes: Vec<Arc<Inbox>> = (0..4).map(|_| Arc::default()).collect();
    let mut channels: Vec<Channel> = Vec::new();
    for (name, inbox) in ["A", "B", "C", "D"].iter().zip(&inboxes) {
        channels.push(cluster.join(name, inbox.clone()).await);
    }
    one_view(&channels.iter().collect::<Vec<_>>()).await;
    let text = channels[0].view_text();
    assert!(text.ends_with("(4) [A, B, C, D]"), "{text}");
    let mut sending = Vec::new();
    for channel in &channels {
        let channel = channel.clone();
        sending.push(tokio::spawn(async move {
            for message in numbered(1_000, 100) {
                channel.send(message).await.expect("sent");
            }
        }));
    }
    for task in sending {
        task.await.unwrap();
    }
    for inbox in &inboxes {
        for sender in &channels {
            let received = inbox.from(sender.address(), 1_000).await;
            assert_eq!(numbers(&received), (0..1_000).collect::<Vec<u32>>());
        }
    }
    for channel in channels {
        channel.close().await;
    }
}

#[tokio::test]
async fn four_members_over_tcp() {
    four_members("tcp.xml").await;
}

#[tokio::test]
async fn four_members_over_tcp_with_acknowledged_multicasts() {
    four_members("tcp-new.xml").await;
}

#[tokio::test]
async fn four_members_under_the_other_name_of_tcp() {
    four_members("tcp-nio.xml").await;
}

/// S000-63: datagrams overtake each other between several receivers of a socket; messages do not.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn several_receivers_of_a_socket_keep_the_order_of_messages() {
    let udp =
        Cluster::new("udp.xml").transport("UDP", "ucast_receiver_threads=\"4\" mcast_receiver_threads=\"4\"");
    four_members_of(&udp).await;
}

#[tokio::test]
async fn large_messages_travel_in_pieces() {
    let cluster = Cluster::new("tcp.xml");
    let inbox = Arc::new(Inbox::default());
    let a = cluster.join("A", IgnoringReceiver).await;
    let b = cluster.join("B", inbox.clone()).await;
    one_view(&[&a, &b]).await;
    for message in numbered(30, 1_000_000) {
        a.send(message).await.unwrap();
    }
    let received = inbox.from(a.address(), 30).await;
    assert_eq!(numbers(&received), (0..30).collect::<Vec<u32>>());
    assert!(received.iter().all(|bytes| bytes.len() == 1_000_000));
    a.close().await;
    b.close().await;
}

#[tokio::test]
async fn unicasts_out_of_band_messages_and_state() {
    let cluster = Cluster::new("tcp.xml");
    let (at_a, at_b) = (Arc::new(Inbox::default()), Arc::new(Inbox::default()));
    *at_a.state.lock().unwrap() = b"the state".to_vec();
    let a = cluster.join("A", at_a.clone()).await;
    let b = cluster.join("B", at_b.clone()).await;
    one_view(&[&a, &b]).await;
    for mut message in numbered(100, 10) {
        message.dest = Some(b.address().clone());
        a.send(message).await.unwrap();
    }
    assert_eq!(numbers(&at_b.from(a.address(), 100).await), (0..100).collect::<Vec<u32>>());
    for mut message in numbered(100, 10) {
        message.dest = Some(a.address().clone());
        b.send(message.with_flags(Flags::OOB)).await.unwrap();
    }
    let mut got = numbers(&at_a.from(b.address(), 100).await);
    got.sort_unstable();
    assert_eq!(got, (0..100).collect::<Vec<u32>>());
    let state = b.fetch_state(None, Duration::from_secs(10)).await.unwrap();
    assert_eq!(state.as_deref(), Some(&b"the state"[..]));
    a.close().await;
    one_view(&[&b]).await;
    assert_eq!(b.view_text(), "[B|2] (1) [B]");
    b.close().await;
}

#[tokio::test]
async fn a_member_that_is_dropped_leaves() {
    let cluster = Cluster::new("tcp.xml");
    let a = cluster.join("A", IgnoringReceiver).await;
    let b = cluster.join("B", IgnoringReceiver).await;
    one_view(&[&a, &b]).await;
    drop(a);
    one_view(&[&b]).await;
    b.close().await;
}

/// Cuts a member off from the named ones, or from none.
async fn discard(channel: &Channel, names: &'static [&'static str]) {
    channel
        .with_stack(move |stack, now| {
            if stack.probe("DISCARD").is_none() {
                let layer = Discard::new(DiscardConfig::default());
                assert!(stack.insert_above(now, "TCP", Box::new(layer)));
            }
            let operation = if names.is_empty() { "ignoreNobody" } else { "ignore" };
            stack.operation(now, "DISCARD", operation, names).unwrap().unwrap();
        })
        .await
        .expect("an open channel");
}

#[tokio::test]
async fn a_partition_heals_into_one_view() {
    let cluster = Cluster::new("tcp.xml").edited(&[
        (
            "<FD_ALL3 timeout=\"${consort.suspect_after:40s}\" interval=\"${consort.heartbeat_interval:5s}\"/>",
            "<FD_ALL3 timeout=\"2s\" interval=\"200ms\"/>",
        ),
        ("min_interval=\"10s\" max_interval=\"30s\"", "min_interval=\"100ms\" max_interval=\"1s\""),
    ]);
    let inbox = Arc::new(Inbox::default());
    let a = cluster.join("A", IgnoringReceiver).await;
    let b = cluster.join("B", IgnoringReceiver).await;
    let c = cluster.join("C", inbox.clone()).await;
    one_view(&[&a, &b, &c]).await;
    discard(&a, &["C"]).await;
    discard(&b, &["C"]).await;
    discard(&c, &["A", "B"]).await;
    one_view(&[&a, &b]).await;
    one_view(&[&c]).await;
    for channel in [&a, &b, &c] {
        discard(channel, &[]).await;
    }
    one_view(&[&a, &b, &c]).await;
    let text = a.view_text();
    assert!(text.starts_with("MergeView::") && text.contains("2 subgroups"), "{text}");
    for message in numbered(100, 10) {
        b.send(message).await.unwrap();
    }
    assert_eq!(numbers(&inbox.from(b.address(), 100).await), (0..100).collect::<Vec<u32>>());
    for channel in [a, b, c] {
        channel.close().await;
    }
}

/// S000-87: discovery over a multicast group of its own finds the cluster however often a member restarts.
#[tokio::test]
async fn mping_finds_the_cluster_a_hundred_times() {
    let cluster = Cluster::new("tcp.xml");
    let port = cluster.variables.get("jgroups.udp.mcast_port").expect("a port").to_owned();
    let mping = format!("<MPING mcast_addr=\"228.3.3.3\" mcast_port=\"{port}\"/>");
    let start = cluster.text.find("<TCPPING").expect("TCPPING");
    let end = start + cluster.text[start..].find("/>").expect("its end") + 2;
    let tcpping = cluster.text[start..end].to_owned();
    let cluster = cluster.edited(&[(&tcpping, &mping)]);
    let a = cluster.join("A", IgnoringReceiver).await;
    for round in 0..100 {
        let b = cluster.join("B", IgnoringReceiver).await;
        one_view(&[&a, &b]).await;
        let text = b.view_text();
        assert!(text.ends_with("(2) [A, B]"), "round {round}: {text}");
        b.close().await;
        one_view(&[&a]).await;
    }
    a.close().await;
}

/// S000-13: with non-blocking flow control no sender waits for a receiver that does not finish: all messages that fit
/// credits and queue are taken at once, and arrive when the receiver finishes.
async fn senders_do_not_wait(config: &'static str) {
    const QUEUE: usize = 3_000_000;
    let queue = format!("_NB max_queue_size=\"{QUEUE}\" ");
    let (mfc, ufc) = (format!("<MFC{queue}"), format!("<UFC{queue}"));
    for is_multicast in [true, false] {
        let cluster = Cluster::new(config).edited(&[("<MFC ", &mfc), ("<UFC ", &ufc)]);
        let slow = Slow::new();
        let a = cluster.join("A", IgnoringReceiver).await;
        let b = cluster.join("B", slow.clone()).await;
        one_view(&[&a, &b]).await;
        let dest = (!is_multicast).then(|| b.address().clone());
        let sent = fill(&a, &Message::bytes(dest, vec![7; 10_000])).await;
        assert!(sent > QUEUE, "{config}, multicast {is_multicast}: {sent} bytes");
        slow.kept.lock().unwrap().take();
        let mut bytes = slow.bytes.subscribe();
        tokio::time::timeout(PATIENCE, bytes.wait_for(|&bytes| bytes == sent)).await.unwrap().unwrap();
        a.close().await;
        b.close().await;
    }
}

#[tokio::test]
async fn senders_over_tcp_do_not_wait() {
    senders_do_not_wait("tcp-nio.xml").await;
}

#[tokio::test]
async fn senders_over_udp_do_not_wait() {
    senders_do_not_wait("udp.xml").await;
}

/// Blocks the task that calls it until the test releases it.
#[derive(Default)]
struct Stuck {
    is_free: Mutex<bool>,
    changed: Condvar,
    entered: watch::Sender<bool>,
    bytes: watch::Sender<usize>,
}

impl Receiver for Stuck {
    fn receive_batch(&self, delivery: Delivery) {
        self.entered.send_replace(true);
        let is_free = self.is_free.lock().unwrap();
        drop(self.changed.wait_timeout_while(is_free, PATIENCE, |is_free| !*is_free).unwrap());
        let bytes: usize = delivery.messages().iter().map(Message::length).sum();
        self.bytes.send_modify(|total| *total += bytes);
    }
}

/// NAKACK4 bounds messages (8,192), not bytes. Senders wait for a member that does not read before the queue to it is
/// full, so that nothing is dropped and retransmitted.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn senders_wait_for_a_member_that_does_not_read_before_its_queue_is_full() {
    let mut cluster = Cluster::new("tcp-new.xml");
    let a = cluster.join("A", IgnoringReceiver).await;
    // Its driver calls the receiver itself, and reads nothing meanwhile.
    cluster.variables.set("mpp", "direct");
    let stuck = Arc::new(Stuck::default());
    let b = cluster.join("B", stuck.clone()).await;
    one_view(&[&a, &b]).await;
    let message = Message::bytes(None, vec![7; 50_000]);
    a.send(message.clone()).await.unwrap();
    tokio::time::timeout(PATIENCE, stuck.entered.subscribe().wait_for(|&entered| entered))
        .await
        .unwrap()
        .unwrap();
    let sent = message.length() + fill(&a, &message).await;
    // At least half of the queue was used, and far less than NAKACK4's 8,192 messages.
    assert!((5_000_000..30_000_000).contains(&sent), "{sent} bytes");
    *stuck.is_free.lock().unwrap() = true;
    stuck.changed.notify_all();
    let mut bytes = stuck.bytes.subscribe();
    tokio::time::timeout(PATIENCE, bytes.wait_for(|&bytes| bytes == sent)).await.unwrap().unwrap();
    for channel in [&a, &b] {
        let asked =
            channel.with_stack(|stack, _| stack.attribute("NAKACK4", "xmit_reqs_sent")).await.unwrap();
        assert_eq!(asked.as_deref(), Some("0"));
    }
    // The waiting sender resumes.
    a.send(message).await.unwrap();
    a.close().await;
    b.close().await;
}
