//! Tests of sending while another peer has stopped reading, over every transport.

mod cluster;

use std::sync::Arc;

use cluster::stallable_member::{StalledCluster, TRANSPORTS};
use cluster::{Inbox, PATIENCE};
use consort_channel::{Message, SendError};

const MESSAGES: usize = 2_000;

/// S000-7: messages to a peer that does not read are queued and delay nothing else: sends to others complete and
/// arrive, and `try_send` to the peer fails at once. When it reads again, it gets all messages.
async fn a_stalled_peer_delays_no_other(transport: usize) {
    let at_other = Arc::new(Inbox::default());
    let mut cluster = StalledCluster::new(TRANSPORTS[transport], at_other.clone()).await;
    assert!(cluster.waiting > 200, "{} messages", cluster.waiting);
    let stalled = cluster.stalled.channel.address().clone();
    let to_all_others = async {
        for _ in 0..MESSAGES {
            let message = Message::bytes(Some(cluster.other.address().clone()), vec![1; 1_000]);
            cluster.sender.send(message).await.expect("sent");
            let refused = cluster.sender.try_send(Message::bytes(Some(stalled.clone()), vec![1; 10_000]));
            assert!(matches!(refused, Err(SendError::Full)), "{refused:?}");
        }
        at_other.from(cluster.sender.address(), MESSAGES).await;
    };
    tokio::time::timeout(PATIENCE, to_all_others).await.expect("no send waits for the peer");
    cluster.stalled.resume();
    cluster.inbox.from(cluster.sender.address(), cluster.waiting).await;
    cluster.other.close().await;
    cluster.sender.close().await;
}

#[tokio::test]
async fn over_udp_a_stalled_peer_delays_no_other() {
    a_stalled_peer_delays_no_other(0).await;
}

#[tokio::test]
async fn over_tcp_nio2_a_stalled_peer_delays_no_other() {
    a_stalled_peer_delays_no_other(1).await;
}

#[tokio::test]
async fn over_tcp_a_stalled_peer_delays_no_other() {
    a_stalled_peer_delays_no_other(2).await;
}
