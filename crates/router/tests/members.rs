//! As many members as a router takes, and a client that wants to register one more.

use bytes::{Bytes, BytesMut};
use consort_group::wire::{GossipData, GossipKind, decode_gossip, encode_gossip};
use consort_group::{Address, Uuid};
use consort_net::framing::{Frame, next_frame, put_frame};
use consort_router::{CLIENT_MEMBERS_MAX, GROUP_MEMBERS_MAX, MEMBERS_MAX, Router, RouterConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The longest answer: all members of a group.
const FRAME_LEN: usize = 4 * 1024 * 1024;

struct Client {
    stream: TcpStream,
    input: BytesMut,
}

impl Client {
    async fn connect(router: &Router) -> Self {
        let stream = TcpStream::connect(router.local_addr()).await.expect("the router");
        Self { stream, input: BytesMut::new() }
    }

    async fn write(&mut self, frames: impl IntoIterator<Item = Bytes>) {
        let mut bytes = BytesMut::new();
        for frame in frames {
            put_frame(&mut bytes, &frame);
        }
        self.stream.write_all(&bytes).await.expect("the router");
    }

    async fn read(&mut self) -> GossipData {
        loop {
            match next_frame(&mut self.input, FRAME_LEN).expect("frames") {
                Some(Frame::Payload(frame)) => return decode_gossip(&frame).expect("a router's frame"),
                Some(Frame::Close) => panic!("the router has closed"),
                None => assert_ne!(self.stream.read_buf(&mut self.input).await.expect("the router"), 0),
            }
        }
    }

    /// Returns when the router has handled all that was written before.
    async fn heartbeat(&mut self) {
        self.write([encode_gossip(&GossipData::new(GossipKind::Heartbeat, None))]).await;
        assert_eq!(self.read().await.kind, GossipKind::Heartbeat);
    }

    async fn is_closed(&mut self) {
        loop {
            match next_frame(&mut self.input, FRAME_LEN).expect("frames") {
                Some(Frame::Payload(frame)) => panic!("a frame: {frame:?}"),
                Some(Frame::Close) => return,
                None => assert_ne!(self.stream.read_buf(&mut self.input).await.expect("the router"), 0),
            }
        }
    }

    /// The members of a group: the router says nothing of a group without members, and answers what it is asked in order.
    async fn members(&mut self, group: &str) -> Vec<Address> {
        let heartbeat = encode_gossip(&GossipData::new(GossipKind::Heartbeat, None));
        let question = encode_gossip(&GossipData::new(GossipKind::GetMembers, Some(group.into())));
        self.write([question, heartbeat]).await;
        let mut members = Vec::new();
        loop {
            let answer = self.read().await;
            match answer.kind {
                GossipKind::Heartbeat => return members,
                GossipKind::LastMembers => {
                    members = answer.members.into_iter().map(|one| one.sender).collect();
                }
                kind => panic!("{kind:?}"),
            }
        }
    }
}

fn member(number: usize) -> Address {
    Address::Uuid(Uuid { most: 1, least: number as u64 })
}

fn registration(group: &str, number: usize) -> Bytes {
    encode_gossip(&GossipData::new(GossipKind::Register, Some(group.into())).with_member(member(number)))
}

#[tokio::test]
async fn member_beyond_the_bound_is_not_registered_until_another_one_ends_and_its_client_is_answered() {
    let router = Router::start(&RouterConfig { port: 0, ..RouterConfig::default() }).await.expect("a port");
    let group = |number: usize| format!("group {}", number / GROUP_MEMBERS_MAX);
    let mut clients = Vec::new();
    for start in (0..MEMBERS_MAX).step_by(CLIENT_MEMBERS_MAX) {
        let mut client = Client::connect(&router).await;
        let numbers = start..MEMBERS_MAX.min(start + CLIENT_MEMBERS_MAX);
        client.write(numbers.map(|number| registration(&group(number), number))).await;
        client.heartbeat().await;
        clients.push(client);
    }
    let mut first = clients.swap_remove(0);
    assert_eq!(first.members(&group(MEMBERS_MAX - 1)).await.len(), GROUP_MEMBERS_MAX);
    assert_eq!(router.member_count(), MEMBERS_MAX);

    let mut beyond = Client::connect(&router).await;
    assert_eq!(beyond.members(&group(0)).await.len(), GROUP_MEMBERS_MAX);
    beyond.write([registration("another group", MEMBERS_MAX)]).await;
    beyond.is_closed().await;
    assert_eq!(router.member_count(), MEMBERS_MAX);

    let left = GossipData::new(GossipKind::Unregister, Some(group(5).as_str().into())).with_member(member(5));
    first.write([encode_gossip(&left)]).await;
    assert_eq!(first.members(&group(5)).await.len(), GROUP_MEMBERS_MAX - 1);
    let mut beyond = Client::connect(&router).await;
    beyond.write([registration("another group", MEMBERS_MAX)]).await;
    assert_eq!(beyond.members("another group").await, [member(MEMBERS_MAX)]);
    router.close().await;
}
