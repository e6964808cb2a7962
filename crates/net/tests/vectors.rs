//! Bytes on connections, compared with those that JGroups writes: decoded, and written again by a member on a real
//! socket.

mod member;

use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use consort_group::wire::{
    Bulk, Packet, decode_body, decode_packet, decode_ping_data, encode_body, write_single,
};
use consort_group::{
    Address, ConnId, Cx, Effect, FdSock2Header, HeaderBody, Message, Outcome, PhysAddr, PingKind, Protocol,
    ProtocolId, Token, Uuid, Version,
};
use consort_net::framing::{Frame, decode_setup, encode_setup, next_frame};
use consort_net::{Command, TransportConfig};
use member::{Member, TIMEOUT, tcp};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;

const A: Address = Address::Uuid(Uuid { most: 0x0102_0304_0506_0708, least: 0x1112_1314_1516_1718 });
const B: Address = Address::Uuid(Uuid { most: 0x2122_2324_2526_2728, least: 0x3132_3334_3536_3738 });

/// The message type whose body fills FD_SOCK2's frames.
const EMPTY: i16 = 2;

fn vector(name: &str) -> Bytes {
    consort_testbed::vectors::vector("25-raw-sockets", name)
}

/// Splits a stream into the address in its set-up bytes and the rest.
fn split_setup(stream: &Bytes) -> (PhysAddr, BytesMut) {
    let (peer, used) = decode_setup(stream, |version| version == Version::V5_5_7).unwrap().unwrap();
    assert_eq!(encode_setup(Version::V5_5_7, peer), stream[..used]);
    (peer, BytesMut::from(&stream[used..]))
}

fn payload(input: &mut BytesMut) -> Bytes {
    match next_frame(input, TransportConfig::FRAME_LEN_MAX) {
        Ok(Some(Frame::Payload(payload))) => payload,
        other => panic!("{other:?}"),
    }
}

fn is_end(mut input: BytesMut) -> bool {
    matches!(next_frame(&mut input, 0), Ok(None)) && input.is_empty()
}

/// The transport's stream is set-up bytes, one discovery request, and the close word.
#[test]
fn a_stream_of_the_transport_is_understood() {
    let (peer, mut input) = split_setup(&vector("tcp.stream"));
    assert_eq!(peer.to_string(), "127.0.0.1:17800");
    let packet = payload(&mut input);
    let Packet::Single { version, message, .. } = decode_packet(&packet, &[]).unwrap() else {
        panic!("a single message")
    };
    assert_eq!((version, &message.src), (Version::V5_5_7, &Some(A)));
    assert_eq!(message.dest, Some(Address::Ip("127.0.0.1:17801".parse::<SocketAddr>().unwrap().into())));
    let HeaderBody::Ping(ping) = &message.headers.0[0].body else { panic!("{message:?}") };
    assert_eq!((ping.kind, ping.cluster.as_deref()), (PingKind::Request, Some("demo")));
    let data = decode_ping_data(message.payload_bytes().unwrap()).unwrap();
    let [own] = &data[..] else { panic!("{data:?}") };
    assert_eq!((&own.sender, own.phys), (&A, Some(peer)));
    let mut again = BytesMut::new();
    write_single(&mut again, version, &message, &[], Bulk::Copied);
    assert_eq!(again, packet);
    assert_eq!(next_frame(&mut input, 0), Ok(Some(Frame::Close)));
    assert!(is_end(input));
}

/// A member with the vector's address that sends the same packet and closes writes the same bytes.
#[tokio::test]
async fn a_member_writes_the_stream_of_the_transport() {
    let wanted = vector("tcp.stream");
    let (peer, mut input) = split_setup(&wanted);
    let member =
        Member::start(&TransportConfig { external_addr: peer.ip, external_port: peer.port, ..tcp() });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    member.send(listener.local_addr().unwrap().into(), payload(&mut input));
    let (mut stream, _) = timeout(TIMEOUT, listener.accept()).await.unwrap().unwrap();
    let ((), bytes) = tokio::join!(member.handle.shutdown(), read_to_end(&mut stream));
    assert_eq!(bytes, wanted);
}

async fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    timeout(TIMEOUT, stream.read_to_end(&mut bytes)).await.expect("the stream ends").unwrap();
    bytes
}

/// Decodes a body of FD_SOCK2: its sender and its header.
fn fd_sock2(body: &Bytes) -> (Address, FdSock2Header) {
    let message = decode_body(EMPTY, body).unwrap();
    let HeaderBody::FdSock2(header) = &message.headers.0[0].body else { panic!("{message:?}") };
    assert_eq!(message.headers.0.len(), 1);
    (message.src.clone().unwrap(), (**header).clone())
}

fn fd_sock2_body((src, header): (Address, FdSock2Header)) -> Bytes {
    let mut message =
        Message::empty(None).with_header(ProtocolId::FD_SOCK2, HeaderBody::FdSock2(Box::new(header)));
    message.src = Some(src);
    encode_body(&message)
}

/// A layer with one connection of its own, like FD_SOCK2: it connects and requests, or listens and responds once.
struct TestLayer {
    first_effect: Option<Effect>,
    body: Bytes,
    /// Whether it is the side that was connected to.
    is_asked: bool,
    outcomes: mpsc::Sender<Outcome>,
}

impl TestLayer {
    /// Adds one to a member's stack, and returns its outcomes.
    fn start(member: &Member, first_effect: Effect, body: Bytes) -> mpsc::Receiver<Outcome> {
        let (outcomes, outcomes_of_layer) = mpsc::channel(10);
        let is_asked = matches!(first_effect, Effect::Listen { .. });
        let talker = Self { first_effect: Some(first_effect), body, is_asked, outcomes };
        let insert = move |stack: &mut consort_group::Stack, now| {
            assert!(stack.insert_above(now, "RAW", Box::new(talker)));
        };
        member.handle.submit(Command::Call(Box::new(insert))).unwrap();
        outcomes_of_layer
    }

    fn send(&self, cx: &mut Cx<'_>, conn: ConnId) {
        cx.request(Effect::Write { conn, frame: self.body.clone() });
    }
}

impl Protocol for TestLayer {
    fn name(&self) -> &'static str {
        "TALKER"
    }

    fn id(&self) -> ProtocolId {
        ProtocolId::FD_SOCK2
    }

    fn start(&mut self, cx: &mut Cx<'_>) {
        if let Some(effect) = self.first_effect.take() {
            cx.request(effect);
        }
    }

    fn done(&mut self, cx: &mut Cx<'_>, _: Token, outcome: Outcome) {
        match outcome {
            Outcome::Connected(conn) => self.send(cx, conn),
            Outcome::Frame { conn, .. } if self.is_asked => {
                self.send(cx, conn);
                cx.request(Effect::Close { conn, is_graceful: true });
            }
            _ => {}
        }
        let _ = self.outcomes.try_send(outcome);
    }
}

async fn next(outcomes_of_layer: &mut mpsc::Receiver<Outcome>) -> Outcome {
    timeout(TIMEOUT, outcomes_of_layer.recv()).await.expect("an outcome comes").expect("the layer is there")
}

/// The requesting side of FD_SOCK2's connection: it identifies itself, sends its request, and receives the response
/// and the close.
#[tokio::test]
async fn fd_sock2_asks_as_jgroups_does() {
    let (asked, answered) = (vector("fdsock2.client"), vector("fdsock2.server"));
    let (own, mut input) = split_setup(&asked);
    let question = payload(&mut input);
    assert!(is_end(input));
    assert_eq!(own.to_string(), "127.0.0.1:17999");
    assert_eq!(fd_sock2(&question), (A, FdSock2Header::Connect(B)));
    let body = fd_sock2_body((A, FdSock2Header::Connect(B)));
    assert_eq!(body, question);

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let member = Member::start(&tcp());
    let to = listener.local_addr().unwrap().into();
    let mut outcomes_of_layer =
        TestLayer::start(&member, Effect::Connect { to, own: Some(own), timeout: TIMEOUT, name: None }, body);
    let (mut stream, _) = timeout(TIMEOUT, listener.accept()).await.unwrap().unwrap();
    let mut written = vec![0; asked.len()];
    timeout(TIMEOUT, stream.read_exact(&mut written)).await.unwrap().unwrap();
    assert_eq!(written, asked);
    let Outcome::Connected(conn) = next(&mut outcomes_of_layer).await else { panic!("not connected") };

    let answer = payload(&mut BytesMut::from(&answered[..]));
    stream.write_all(&[answered, vector("fdsock2.server.close")].concat()).await.unwrap();
    drop(stream);
    assert_eq!(next(&mut outcomes_of_layer).await, Outcome::Frame { conn, frame: answer });
    assert_eq!(
        next(&mut outcomes_of_layer).await,
        Outcome::Closed { conn, is_graceful: true, is_reset: false }
    );
}

/// The accepting side: it receives the request, writes no set-up bytes, and announces its close.
#[tokio::test]
async fn fd_sock2_answers_as_jgroups_does() {
    let (asked, answered) = (vector("fdsock2.client"), vector("fdsock2.server"));
    let mut input = BytesMut::from(&answered[..]);
    let answer = payload(&mut input);
    assert!(is_end(input));
    let body = (B, FdSock2Header::ConnectResponse { cluster: Some("demo".to_owned()), server: B });
    assert_eq!(fd_sock2(&answer), body);
    let body = fd_sock2_body(body);
    assert_eq!(body, answer);

    let member = Member::start(&tcp());
    let bind = Some([127, 0, 0, 1].into());
    let mut outcomes_of_layer =
        TestLayer::start(&member, Effect::Listen { bind, ports: vec![0], external: None }, body);
    let Outcome::Listening(at) = next(&mut outcomes_of_layer).await else { panic!("not listening") };
    let mut stream = TcpStream::connect(at.socket_addr()).await.unwrap();
    stream.write_all(&asked).await.unwrap();
    let (own, mut input) = split_setup(&asked);
    let Outcome::Accepted { conn, peer } = next(&mut outcomes_of_layer).await else { panic!("not accepted") };
    assert_eq!(peer, own);
    assert_eq!(next(&mut outcomes_of_layer).await, Outcome::Frame { conn, frame: payload(&mut input) });
    // The member waits for the peer's end before it closes its own.
    let read = [answered, vector("fdsock2.server.close")].concat();
    let mut bytes = vec![0; read.len()];
    timeout(TIMEOUT, stream.read_exact(&mut bytes)).await.unwrap().unwrap();
    assert_eq!(bytes, read);
}
