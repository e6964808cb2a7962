//! Tests of sending while another peer has stopped reading, over every transport.

mod cluster;

use std::sync::Arc;

use cluster::apart::{Beside, TRANSPORTS};
use cluster::{Inbox, PATIENCE};
use consort_channel::{Message, SendError};

const MESSAGES: usize = 2_000;

/// S000-7: messages to a peer that does not read are queued and delay nothing else: sends to others complete and
/// arrive, and `try_send` to the peer fails at once. When it reads again, it gets all messages.
async fn a_stalled_peer_holds_up_nobody(transport: usize) {
    let at_other = Arc::new(Inbox::default());
    let mut beside = Beside::new(TRANSPORTS[transport], at_other.clone()).await;
    assert!(beside.waiting > 200, "{} messages", beside.waiting);
    let stalled = beside.stalled.channel.address().clone();
    let to_all_others = async {
        for _ in 0..MESSAGES {
            let message = Message::bytes(Some(beside.other.address().clone()), vec![1; 1_000]);
            beside.sender.send(message).await.expect("sent");
            let refused = beside.sender.try_send(Message::bytes(Some(stalled.clone()), vec![1; 10_000]));
            assert!(matches!(refused, Err(SendError::Full)), "{refused:?}");
        }
        at_other.from(beside.sender.address(), MESSAGES).await;
    };
    tokio::time::timeout(PATIENCE, to_all_others).await.expect("nobody waits for the peer");
    beside.stalled.go_on();
    beside.inbox.from(beside.sender.address(), beside.waiting).await;
    beside.other.close().await;
    beside.sender.close().await;
}

#[tokio::test]
async fn over_udp_a_stalled_peer_holds_up_nobody() {
    a_stalled_peer_holds_up_nobody(0).await;
}

#[tokio::test]
async fn over_tcp_nio2_a_stalled_peer_holds_up_nobody() {
    a_stalled_peer_holds_up_nobody(1).await;
}

#[tokio::test]
async fn over_tcp_a_stalled_peer_holds_up_nobody() {
    a_stalled_peer_holds_up_nobody(2).await;
}
