//! Tests of clients that read slowly, or not at all.

use std::io::ErrorKind;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use consort_group::wire::{GossipData, GossipKind, decode_gossip, encode_gossip};
use consort_group::{Address, Uuid};
use consort_net::framing::{Frame, next_frame, put_frame};
use consort_router::{Router, RouterConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Sent frames: more than a router and sockets hold.
const FRAMES: usize = 2_000;
const FRAME_LEN: usize = 60_000;

fn member(n: u64) -> Address {
    Address::Uuid(Uuid { most: 0, least: n })
}

async fn write(stream: &mut TcpStream, data: &GossipData) {
    let mut bytes = BytesMut::new();
    put_frame(&mut bytes, &encode_gossip(data));
    stream.write_all(&bytes).await.expect("the router");
}

/// A client with a registered member, whose registration the router has handled.
async fn client(router: &Router, n: u64) -> TcpStream {
    let mut stream = TcpStream::connect(router.local_addr()).await.expect("the router");
    write(&mut stream, &GossipData::new(GossipKind::Register, Some("demo".into())).with_member(member(n)))
        .await;
    write(&mut stream, &GossipData::new(GossipKind::Heartbeat, None)).await;
    assert_eq!(next(&mut stream, &mut BytesMut::new()).await.kind, GossipKind::Heartbeat);
    stream
}

async fn next(stream: &mut TcpStream, buffer: &mut BytesMut) -> GossipData {
    loop {
        match next_frame(buffer, 1 << 20).expect("frames") {
            Some(Frame::Payload(frame)) => return decode_gossip(&frame).expect("a router's frame"),
            Some(Frame::Close) => panic!("the router has closed"),
            None => assert_ne!(stream.read_buf(buffer).await.expect("the router"), 0),
        }
    }
}

/// A numbered message.
fn message(to: u64, nth: usize) -> GossipData {
    let mut payload = vec![0; FRAME_LEN];
    payload[..8].copy_from_slice(&(nth as u64).to_be_bytes());
    let data = GossipData::new(GossipKind::Message, Some("demo".into())).with_member(member(to));
    GossipData { payload: Bytes::from(payload), ..data }
}

fn nth(data: &GossipData) -> usize {
    u64::from_be_bytes(data.payload[..8].try_into().expect("8 bytes")) as usize
}

/// The sender is read as slowly as the recipient reads: nothing is dropped.
#[tokio::test]
async fn a_slow_client_slows_its_senders() {
    let config = RouterConfig { port: 0, stall_timeout: Duration::from_secs(600), ..RouterConfig::default() };
    let router = Router::start(&config).await.expect("a port");
    let (sender, mut slow) = (client(&router, 1).await, client(&router, 2).await);
    let (mut sent, mut read) = (0, 0);
    let (mut outgoing, mut incoming) = (BytesMut::new(), BytesMut::new());
    while read < FRAMES {
        if outgoing.is_empty() && sent < FRAMES {
            put_frame(&mut outgoing, &encode_gossip(&message(2, sent)));
            sent += 1;
        }
        match sender.try_write(&outgoing) {
            Ok(count) if count > 0 => outgoing.advance(count),
            Ok(_) => assert_eq!(sent, FRAMES),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        // Read one frame whenever no more can be written.
        if !outgoing.is_empty() || sent == FRAMES {
            assert_eq!(nth(&next(&mut slow, &mut incoming).await), read);
            read += 1;
        }
    }
    assert_eq!(router.dropped(), 0);
    router.close().await;
}

/// A recipient that does not read stops its senders for a while only; when it reads again, senders wait for it again.
#[tokio::test]
async fn a_client_that_does_not_read_delays_senders_only_for_the_stall_timeout() {
    let config =
        RouterConfig { port: 0, stall_timeout: Duration::from_millis(50), ..RouterConfig::default() };
    let router = Router::start(&config).await.expect("a port");
    let (mut sender, mut stopped) = (client(&router, 1).await, client(&router, 2).await);
    let mut other = client(&router, 3).await;
    for nth in 0..FRAMES {
        write(&mut sender, &message(2, nth)).await;
    }
    write(&mut sender, &message(3, 7)).await;
    assert_eq!(nth(&next(&mut other, &mut BytesMut::new()).await), 7);
    let dropped = router.dropped();
    assert!(dropped > 0 && dropped < FRAMES as u64, "{dropped}");
    // The frames that were not dropped arrive in order, as do later ones.
    write(&mut sender, &message(2, FRAMES)).await;
    let mut buffer = BytesMut::new();
    let mut last = nth(&next(&mut stopped, &mut buffer).await);
    assert_eq!(last, 0);
    let kept = FRAMES as u64 - dropped;
    for _ in 1..kept {
        let this = nth(&next(&mut stopped, &mut buffer).await);
        assert!(this > last, "{this} after {last}");
        last = this;
    }
    router.close().await;
}
