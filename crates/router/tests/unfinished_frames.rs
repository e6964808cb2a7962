//! Tests of incomplete frames: the bytes that they hold together, and the greatest length of the first one.

use bytes::{BufMut, BytesMut};
use consort_group::wire::{GossipData, GossipKind, decode_gossip, encode_gossip};
use consort_group::{Address, Uuid};
use consort_net::framing::{Frame, next_frame, put_frame};
use consort_router::{Router, RouterConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// The longest frame that a router reads.
const FRAME_LEN: usize = 1024 * 1024;

async fn router() -> Router {
    Router::start(&RouterConfig { port: 0, ..RouterConfig::default() }).await.expect("a port")
}

/// A client with a registered member, that the router has responded to.
async fn client(router: &Router, number: u64) -> TcpStream {
    let mut stream = TcpStream::connect(router.local_addr()).await.expect("the router");
    let mut bytes = BytesMut::new();
    let member = Address::Uuid(Uuid { most: 0, least: number });
    let registration = GossipData::new(GossipKind::Register, Some("demo".into())).with_member(member);
    put_frame(&mut bytes, &encode_gossip(&registration));
    put_frame(&mut bytes, &encode_gossip(&GossipData::new(GossipKind::Heartbeat, None)));
    stream.write_all(&bytes).await.expect("the router");
    bytes.clear();
    loop {
        match next_frame(&mut bytes, FRAME_LEN).expect("frames") {
            Some(Frame::Payload(frame)) => {
                assert_eq!(decode_gossip(&frame).expect("a router's frame").kind, GossipKind::Heartbeat);
                return stream;
            }
            Some(Frame::Close) => panic!("the router has closed"),
            None => assert_ne!(stream.read_buf(&mut bytes).await.expect("the router"), 0),
        }
    }
}

#[tokio::test]
async fn incomplete_frames_hold_no_more_than_the_limit_and_other_frames_are_answered() {
    let router = router().await;
    let limit = router.unfinished().limit;
    let clients = 2 + limit as usize / FRAME_LEN;
    let mut unfinished = JoinSet::new();
    for number in 0..clients as u64 {
        let mut stream = client(&router, number).await;
        unfinished.spawn(async move {
            let mut bytes = BytesMut::new();
            bytes.put_i32(FRAME_LEN as i32);
            bytes.put_bytes(0, FRAME_LEN - 1);
            // Frames without capacity are not read to their end.
            let _ = stream.write_all(&bytes).await;
            stream
        });
    }
    while router.unfinished().used < limit {
        tokio::task::yield_now().await;
    }
    client(&router, u64::MAX).await;
    assert_eq!(router.unfinished().peak, limit);
    unfinished.shutdown().await;
    router.close().await;
}

#[tokio::test]
async fn first_frame_that_is_longer_than_a_registration_ends_its_connection() {
    let router = router().await;
    let mut stream = TcpStream::connect(router.local_addr()).await.expect("the router");
    stream.write_all(&(FRAME_LEN as i32).to_be_bytes()).await.expect("the router");
    let mut rest = Vec::new();
    // The router's close word, or a reset.
    let _ = stream.read_to_end(&mut rest).await;
    assert!(rest.len() <= 4);
    assert_eq!(router.unfinished().used, 0);
    router.close().await;
}

#[tokio::test]
async fn a_client_without_a_member_sends_no_long_frame_and_holds_no_bytes() {
    let router = router().await;
    let mut stream = TcpStream::connect(router.local_addr()).await.expect("the router");
    let mut bytes = BytesMut::new();
    put_frame(&mut bytes, &encode_gossip(&GossipData::new(GossipKind::Heartbeat, None)));
    bytes.put_i32(FRAME_LEN as i32);
    stream.write_all(&bytes).await.expect("the router");
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    assert!(rest.len() < bytes.len() + 4);
    assert_eq!(router.unfinished().peak, 0);
    router.close().await;
}
