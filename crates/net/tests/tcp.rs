//! Tests of the TCP edge against other members and bare sockets.

mod member;

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use consort_group::PhysAddr;
use consort_net::TransportConfig;
use member::{Member, TIMEOUT, bind_addr, tcp};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

const CLOSE_WORD: [u8; 4] = [0xff, 0xff, 0xff, 0xfb];

/// Returns the set-up bytes of a member that listens there.
fn setup(own: SocketAddr) -> Vec<u8> {
    let SocketAddr::V4(own) = own else { panic!("IPv4 only") };
    let mut bytes = b"bela\x29\x47\x00\x07\x04".to_vec();
    bytes.extend(own.ip().octets());
    bytes.extend(own.port().to_be_bytes());
    bytes
}

fn frame(payload: &[u8]) -> Vec<u8> {
    [&(payload.len() as u32).to_be_bytes()[..], payload].concat()
}

/// Connects to a member as the member that listens at `own`.
async fn connect_as(own: SocketAddr, to: &Member) -> TcpStream {
    let mut stream = TcpStream::connect(to.phys.socket_addr()).await.unwrap();
    stream.write_all(&setup(own)).await.unwrap();
    stream
}

async fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match timeout(TIMEOUT, stream.read_to_end(&mut bytes)).await.expect("the stream ends") {
        Ok(_) => {}
        // The close came before the peer had read everything.
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
    bytes
}

fn addr(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// A listener whose backlog is full: further connections get no answer.
struct FullListener {
    phys: PhysAddr,
    _listener: TcpListener,
    _backlog: Vec<TcpStream>,
}

impl FullListener {
    async fn new() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(addr(0)).unwrap();
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        let mut backlog = Vec::new();
        while let Ok(Ok(stream)) = timeout(Duration::from_millis(200), TcpStream::connect(address)).await {
            backlog.push(stream);
        }
        Self { phys: address.into(), _listener: listener, _backlog: backlog }
    }
}

#[tokio::test]
async fn packets_go_both_ways_over_one_connection() {
    let (mut a, mut b) = (Member::start(&tcp()), Member::start(&tcp()));
    a.send(b.phys, "to b");
    assert_eq!(b.packet().await, (a.phys, Bytes::from("to b")));
    b.send(a.phys, "to a");
    assert_eq!(a.packet().await, (b.phys, Bytes::from("to a")));
    let seen = b.until(|seen| seen.stats.packets_out == 1).await;
    assert_eq!((seen.stats.accepted, seen.stats.connected), (1, 0));
}

#[tokio::test]
async fn many_packets_of_all_sizes_arrive_in_order() {
    let (a, mut b) = (Member::start(&tcp()), Member::start(&tcp()));
    let sizes: Vec<usize> =
        (0..2000).map(|n| 1 + (n * 7919) % 9000).chain([1_000_000, 1, 3_000_000]).collect();
    for (number, &size) in sizes.iter().enumerate() {
        a.send(b.phys, vec![number as u8; size]);
    }
    for (number, &size) in sizes.iter().enumerate() {
        let (_, packet) = b.packet().await;
        assert_eq!(packet.len(), size);
        assert!(packet.iter().all(|&byte| byte == number as u8));
    }
}

#[tokio::test]
async fn packets_submitted_together_are_written_together() {
    let (mut a, mut b) = (Member::start(&tcp()), Member::start(&tcp()));
    a.send(b.phys, "first");
    b.packet().await;
    let before = a.until(|seen| seen.stats.packets_out == 1).await.stats.writes;
    for _ in 0..50 {
        a.send(b.phys, vec![7; 100]);
    }
    for _ in 0..50 {
        b.packet().await;
    }
    let after = a.until(|seen| seen.stats.packets_out == 51).await.stats.writes;
    assert_eq!(after - before, 1);
}

/// However the connections cross, the one of the larger address is left, and no packet is lost.
#[tokio::test]
async fn simultaneous_connects_leave_one_connection() {
    for _ in 0..20 {
        let (mut a, mut b) = (Member::start(&tcp()), Member::start(&tcp()));
        if a.phys > b.phys {
            std::mem::swap(&mut a, &mut b);
        }
        a.send(b.phys, "a");
        b.send(a.phys, "b");
        assert_eq!(b.packet().await.1, "a");
        assert_eq!(a.packet().await.1, "b");
        // Later packets use the one that is left, so each side has exactly one.
        for round in 0..10u8 {
            a.send(b.phys, vec![round]);
            assert_eq!(b.packet().await.1, vec![round]);
            b.send(a.phys, vec![round]);
            assert_eq!(a.packet().await.1, vec![round]);
        }
        let (of_a, of_b) = (a.phys, b.phys);
        assert_eq!(a.until(|seen| seen.stats.packets_out == 11).await.peers, [of_b]);
        assert_eq!(b.until(|seen| seen.stats.packets_out == 11).await.peers, [of_a]);
    }
}

/// Makes a member that has received on a connection from the peer at `from` when the peer's second one arrives.
/// Returns the member and both connections in this order.
async fn connected_twice(from: SocketAddr) -> (Member, TcpStream, TcpStream) {
    let mut member = Member::start(&tcp());
    let mut old = connect_as(from, &member).await;
    old.write_all(&frame(b"old")).await.unwrap();
    assert_eq!(member.packet().await.1, "old");
    let new = connect_as(from, &member).await;
    (member, old, new)
}

/// Checks that the member sends to the peer on this connection.
async fn answers_on(mut stream: TcpStream, peer: SocketAddr, member: &mut Member) {
    member.send(PhysAddr::from(peer), "answer");
    let mut answer = [0; 10];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer[..], frame(b"answer"));
}

/// The old connection gets the close word if the member's address is the smaller one.
#[tokio::test]
async fn a_second_connection_from_a_larger_address_replaces_the_first() {
    let larger = SocketAddr::from(([127, 0, 0, 2], 1));
    let (mut member, mut old, new) = connected_twice(larger).await;
    assert_eq!(read_to_end(&mut old).await, CLOSE_WORD);
    answers_on(new, larger, &mut member).await;
}

#[tokio::test]
async fn a_second_connection_from_a_smaller_address_is_refused() {
    let smaller = SocketAddr::from(([127, 0, 0, 0], 1));
    let (mut member, old, mut new) = connected_twice(smaller).await;
    assert_eq!(read_to_end(&mut new).await, CLOSE_WORD);
    answers_on(old, smaller, &mut member).await;
}

#[tokio::test]
async fn frames_under_way_on_a_refused_connection_arrive() {
    let mut member = Member::start(&tcp());
    let smaller = SocketAddr::from(([127, 0, 0, 0], 1));
    let mut old = connect_as(smaller, &member).await;
    old.write_all(&frame(b"old")).await.unwrap();
    member.packet().await;
    let mut new = TcpStream::connect(member.phys.socket_addr()).await.unwrap();
    new.write_all(&[setup(smaller), frame(b"late")].concat()).await.unwrap();
    assert_eq!(member.packet().await.1, "late");
}

#[tokio::test]
async fn closing_ends_with_the_close_word() {
    let mut member = Member::start(&tcp());
    let mut stream = connect_as(addr(1), &member).await;
    stream.write_all(&frame(b"hello")).await.unwrap();
    member.packet().await;
    member.send(PhysAddr::from(addr(1)), "last words");
    member.handle.shutdown().await;
    assert_eq!(read_to_end(&mut stream).await, [frame(b"last words"), CLOSE_WORD.to_vec()].concat());
}

#[tokio::test]
async fn after_the_peers_close_word_the_next_packet_opens_a_connection() {
    let mut member = Member::start(&tcp());
    let listener = TcpListener::bind(addr(0)).await.unwrap();
    let own = listener.local_addr().unwrap();
    let mut first = connect_as(own, &member).await;
    first.write_all(&frame(b"x")).await.unwrap();
    member.packet().await;
    first.write_all(&CLOSE_WORD).await.unwrap();
    member.until(|seen| seen.peers.is_empty()).await;
    member.send(PhysAddr::from(own), "again");
    let (mut second, _) = timeout(TIMEOUT, listener.accept()).await.unwrap().unwrap();
    let mut bytes = [0; 24];
    second.read_exact(&mut bytes).await.unwrap();
    assert_eq!(bytes[..], [setup(member.phys.socket_addr()), frame(b"again")].concat());
}

#[tokio::test]
async fn a_view_closes_connections_to_non_members() {
    let mut member = Member::start(&tcp());
    let (stays, goes) = (addr(1), addr(2));
    let mut staying = connect_as(stays, &member).await;
    let mut going = connect_as(goes, &member).await;
    member.until(|seen| seen.peers.len() == 2).await;
    member.install(1, &[member.phys, PhysAddr::from(stays)]);
    assert_eq!(read_to_end(&mut going).await, CLOSE_WORD);
    staying.write_all(&frame(b"still here")).await.unwrap();
    assert_eq!(member.packet().await.1, "still here");
}

#[tokio::test]
async fn idle_connections_are_reaped() {
    let config = TransportConfig {
        conn_expire_time: Duration::from_millis(50),
        reaper_interval: Duration::from_millis(10),
        ..tcp()
    };
    let mut member = Member::start(&config);
    let mut idle = connect_as(addr(1), &member).await;
    assert_eq!(read_to_end(&mut idle).await, CLOSE_WORD);
    assert_eq!(member.until(|seen| seen.peers.is_empty()).await.stats.reaped, 1);
}

/// S000-55: one task serves all connections, and their queues are plain bytes in it.
#[tokio::test]
async fn connections_have_no_tasks_of_their_own() {
    let mut member = Member::start(&tcp());
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let mut streams = Vec::new();
    for port in 1..=20 {
        streams.push(connect_as(addr(port), &member).await);
    }
    member.until(|seen| seen.peers.len() == 20).await;
    assert_eq!(tasks(), before);
}

/// S000-69, S000-55: a connection attempt that hangs delays no other peer.
#[tokio::test]
async fn a_dead_peer_does_not_delay_the_others() {
    let dead = FullListener::new().await;
    let config = TransportConfig { sock_conn_timeout: Duration::from_secs(60), ..tcp() };
    let (a, mut b) = (Member::start(&config), Member::start(&tcp()));
    for round in 0..100u8 {
        a.send(dead.phys, vec![round; 1000]);
        a.send(b.phys, vec![round]);
        assert_eq!(b.packet().await.1, vec![round]);
    }
}

#[tokio::test]
async fn a_failed_attempt_loses_its_queue_and_the_next_packet_gets_through() {
    let mut member = Member::start(&tcp());
    let listener = TcpListener::bind(addr(0)).await.unwrap();
    let peer = listener.local_addr().unwrap();
    drop(listener);
    member.send(PhysAddr::from(peer), "lost");
    member.until(|seen| seen.stats.failed == 1 && seen.stats.dropped == 1).await;
    let listener = TcpListener::bind(peer).await.unwrap();
    // Within the pause after the failure, as of a member that has just restarted and must not miss packets.
    member.send(PhysAddr::from(peer), "found");
    let accepted = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut bytes = vec![0; setup(peer).len() + frame(b"found").len()];
        stream.read_exact(&mut bytes).await.unwrap();
        bytes
    };
    let bytes = timeout(TIMEOUT, accepted).await.expect("the member connects");
    assert!(bytes.ends_with(&frame(b"found")));
}

#[tokio::test]
async fn an_attempt_ends_with_its_timeout() {
    let config = TransportConfig { sock_conn_timeout: Duration::from_millis(50), ..tcp() };
    let mut member = Member::start(&config);
    let dead = FullListener::new().await;
    member.send(dead.phys, "x");
    assert_eq!(member.until(|seen| seen.stats.failed == 1).await.stats.dropped, 1);
}

#[tokio::test]
async fn a_peer_that_never_reads_fills_its_own_queue_only() {
    let config = TransportConfig { send_queue_bytes: 1_000_000, send_buf_size: Some(64 * 1024), ..tcp() };
    let (mut a, mut b) = (Member::start(&config), Member::start(&tcp()));
    let stuck = addr(1);
    let _stuck = connect_as(stuck, &a).await;
    a.until(|seen| seen.peers.len() == 1).await;
    for round in 0..200u8 {
        a.send(PhysAddr::from(stuck), vec![round; 100_000]);
        a.send(b.phys, vec![round]);
        assert_eq!(b.packet().await.1, vec![round]);
    }
    let seen = a.until(|seen| seen.stats.dropped > 0).await;
    assert!(seen.warning_count("peer_queue_full") >= seen.stats.dropped);
    // Control is not dropped because of queued data.
    let dropped = seen.stats.dropped;
    for _ in 0..100 {
        a.send_urgent(PhysAddr::from(stuck), vec![0; 100]);
    }
    a.send(b.phys, "end");
    b.packet().await;
    assert_eq!(a.seen.borrow().stats.dropped, dropped);
}

#[tokio::test]
async fn an_invalid_length_closes_the_connection() {
    let config = TransportConfig { max_length: 1000, ..tcp() };
    let mut member = Member::start(&config);
    for (number, length) in [1001i32, i32::MAX, 0, -1, i32::MIN].into_iter().enumerate() {
        let mut stream = connect_as(addr(10 + number as u16), &member).await;
        let bytes = [frame(b"before"), length.to_be_bytes().to_vec()].concat();
        stream.write_all(&bytes).await.unwrap();
        assert_eq!(member.packet().await.1, "before");
        assert_eq!(read_to_end(&mut stream).await, b"");
    }
    assert_eq!(member.until(|seen| seen.peers.is_empty()).await.warning_count("bad_frame_length"), 5);
}

#[tokio::test]
async fn the_configured_length_is_still_read() {
    let mut member = Member::start(&TransportConfig { max_length: 1000, ..tcp() });
    let mut stream = connect_as(addr(1), &member).await;
    stream.write_all(&frame(&[5; 1000])).await.unwrap();
    assert_eq!(member.packet().await.1, vec![5; 1000]);
}

#[tokio::test]
async fn wrong_set_up_bytes_close_the_connection_at_once() {
    let config = TransportConfig { peer_addr_read_timeout: Duration::from_secs(3600), ..tcp() };
    let mut member = Member::start(&config);
    let own = member.phys.socket_addr();
    let wrong: [(&str, Vec<u8>); 6] = [
        ("wrong_cookie", b"GET / HTTP/1.1\r\n".to_vec()),
        ("wrong_cookie", b"b3la".to_vec()),
        ("wrong_version", b"bela\x29\x0c".to_vec()),
        ("wrong_version", b"bela\x29\x80\x00\x07".to_vec()),
        ("wrong_setup_address", b"bela\x29\x47\x7f\xff\x04".to_vec()),
        ("claims_own_address", setup(own)),
    ];
    for (cause, bytes) in wrong {
        let before = member.seen.borrow().warning_count(cause);
        let mut stream = TcpStream::connect(own).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        assert_eq!(read_to_end(&mut stream).await, b"", "{cause}");
        member.until(|seen| seen.warning_count(cause) == before + 1).await;
    }
    // Another micro version is accepted.
    let mut stream = TcpStream::connect(own).await.unwrap();
    stream.write_all(b"bela\x29\x40\x00\x07\x04\x7f\x00\x00\x01\x00\x01\x00\x00\x00\x02hi").await.unwrap();
    assert_eq!(member.packet().await.1, "hi");
}

#[tokio::test]
async fn a_peer_that_says_nothing_is_closed() {
    let config = TransportConfig { peer_addr_read_timeout: Duration::from_millis(50), ..tcp() };
    let mut member = Member::start(&config);
    let mut silent = TcpStream::connect(member.phys.socket_addr()).await.unwrap();
    let mut slow = TcpStream::connect(member.phys.socket_addr()).await.unwrap();
    slow.write_all(b"bela").await.unwrap();
    assert_eq!(read_to_end(&mut silent).await, b"");
    assert_eq!(read_to_end(&mut slow).await, b"");
    member.until(|seen| seen.warning_count("silent_peer") == 2).await;
}

#[tokio::test]
async fn silent_connections_do_not_lock_members_out() {
    let config = TransportConfig { peer_addr_read_timeout: Duration::from_secs(3600), ..tcp() };
    let mut member = Member::start(&config);
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(TcpStream::connect(member.phys.socket_addr()).await.unwrap());
    }
    let mut stream = connect_as(addr(1), &member).await;
    stream.write_all(&frame(b"let me in")).await.unwrap();
    assert_eq!(member.packet().await.1, "let me in");
    let seen = member.until(|seen| seen.warning_count("too_many_strangers") > 0).await;
    assert!(seen.warning_count("too_many_strangers") >= 44);
}

#[tokio::test]
async fn set_up_bytes_and_frames_may_come_byte_by_byte() {
    let mut member = Member::start(&tcp());
    let mut stream = TcpStream::connect(member.phys.socket_addr()).await.unwrap();
    stream.set_nodelay(true).unwrap();
    for byte in [setup(addr(1)), frame(b"slowly"), frame(b"done")].concat() {
        stream.write_all(&[byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    assert_eq!(member.packet().await, (PhysAddr::from(addr(1)), Bytes::from("slowly")));
    assert_eq!(member.packet().await.1, "done");
}

/// S003-2
#[tokio::test]
async fn ipv6_works() {
    let config = TransportConfig { bind_addr: bind_addr("::1"), ..tcp() };
    let (mut a, mut b) = (Member::start(&config), Member::start(&config));
    assert_eq!(a.phys.socket_addr().ip().to_string(), "::1");
    a.send(b.phys, "six");
    assert_eq!(b.packet().await, (a.phys, Bytes::from("six")));
    b.send(a.phys, "back");
    assert_eq!(a.packet().await, (b.phys, Bytes::from("back")));
}

/// S003-2
#[tokio::test]
async fn a_dual_stack_member_takes_both_families() {
    let mut dual = Member::start(&TransportConfig { bind_addr: bind_addr("::"), ..tcp() });
    let port = dual.phys.port;
    let mut four = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
    four.write_all(&[setup(addr(1)), frame(b"four")].concat()).await.unwrap();
    assert_eq!(dual.packet().await, (PhysAddr::from(addr(1)), Bytes::from("four")));
    let six = Member::start(&TransportConfig { bind_addr: bind_addr("::1"), ..tcp() });
    six.send(PhysAddr::new("::1".parse().unwrap(), port), "six");
    assert_eq!(dual.packet().await, (six.phys, Bytes::from("six")));
}

#[tokio::test]
async fn the_next_port_of_the_range_is_used() {
    let first = Member::start(&tcp());
    let config = TransportConfig { bind_port: first.phys.port, port_range: 50, ..tcp() };
    let second = Member::start(&config);
    assert!(second.phys.port > first.phys.port && second.phys.port <= first.phys.port + 50);
}

#[tokio::test]
async fn an_external_address_is_advertised() {
    let config =
        TransportConfig { external_addr: Some([192, 0, 2, 77].into()), external_port: 4711, ..tcp() };
    let member = Member::start(&config);
    assert_eq!(member.phys.to_string(), "192.0.2.77:4711");
    let listener = TcpListener::bind(addr(0)).await.unwrap();
    member.send(PhysAddr::from(listener.local_addr().unwrap()), "x");
    let (mut stream, _) = timeout(TIMEOUT, listener.accept()).await.unwrap().unwrap();
    let mut bytes = [0; 15];
    stream.read_exact(&mut bytes).await.unwrap();
    assert_eq!(bytes[..], setup(SocketAddr::from(([192, 0, 2, 77], 4711))));
}
