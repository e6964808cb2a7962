//! Tests of the UDP edge.

mod member;

use std::net::{Ipv4Addr, SocketAddr};

use bytes::Bytes;
use consort_group::PhysAddr;
use consort_net::TransportConfig;
use member::{Member, bind_addr};
use tokio::net::UdpSocket;

/// UDP on the loopback interface; tests that run at the same time use groups of their own.
fn udp(group: u8) -> TransportConfig {
    TransportConfig {
        bind_addr: bind_addr("127.0.0.1"),
        mcast_addr: [239, 8, 9, group].into(),
        mcast_port: 45_600 + u16::from(group),
        ..TransportConfig::udp()
    }
}

#[tokio::test]
async fn unicasts_come_from_the_physical_address() {
    let (mut a, mut b) = (Member::start(&udp(1)), Member::start(&udp(1)));
    a.send(b.phys, "to b");
    assert_eq!(b.packet().await, (a.phys, Bytes::from("to b")));
    b.send(a.phys, vec![5; 60_000]);
    assert_eq!(a.packet().await, (b.phys, Bytes::from(vec![5; 60_000])));
}

/// S001-4: the own copy never takes the wire, and the copy from the group does not reach the edge if the system
/// filters it (Linux); elsewhere the edge drops it by its source.
#[tokio::test]
async fn a_multicast_reaches_all_members_but_its_sender() {
    let (mut a, mut b, mut c) = (Member::start(&udp(2)), Member::start(&udp(2)), Member::start(&udp(2)));
    a.multicast("to all");
    assert_eq!(b.packet().await, (a.phys, Bytes::from("to all")));
    assert_eq!(c.packet().await, (a.phys, Bytes::from("to all")));
    let is_filtered = cfg!(target_os = "linux");
    if !is_filtered {
        a.until(|seen| seen.stats.own == 1).await;
    }
    // Through the group as well, so that it arrives after the own one.
    b.multicast("answer");
    assert_eq!(a.packet().await, (b.phys, Bytes::from("answer")));
    let seen = a.until(|seen| seen.stats.packets_in == 1).await;
    assert_eq!(seen.stats.own, u64::from(!is_filtered));
}

#[tokio::test]
async fn another_group_on_the_same_port_is_not_heard() {
    let config = |last| TransportConfig { mcast_addr: [239, 8, 10, last].into(), ..udp(3) };
    let (a, b, mut c) = (Member::start(&config(1)), Member::start(&config(2)), Member::start(&config(1)));
    b.multicast("elsewhere");
    a.multicast("here");
    assert_eq!(c.packet().await, (a.phys, Bytes::from("here")));
}

#[tokio::test]
async fn without_ip_multicast_there_is_no_group() {
    let config = TransportConfig { ip_mcast: false, ..udp(4) };
    let mut member = Member::start(&config);
    member.multicast("nobody hears it");
    member.until(|seen| seen.warning_count("no_multicast") == 1).await;
}

#[tokio::test]
async fn a_burst_is_sent_in_batches() {
    let (mut a, mut b) = (Member::start(&udp(5)), Member::start(&udp(5)));
    for number in 0..64u8 {
        a.send(b.phys, vec![number; 100]);
    }
    for number in 0..64u8 {
        assert_eq!(b.packet().await.1, vec![number; 100]);
    }
    let seen = a.until(|seen| seen.stats.packets_out == 64).await;
    if cfg!(target_os = "linux") {
        assert_eq!(seen.stats.writes, 2);
    }
}

#[tokio::test]
async fn a_datagram_that_cannot_be_sent_is_dropped_alone() {
    let (mut a, mut b) = (Member::start(&udp(6)), Member::start(&udp(6)));
    a.send(b.phys, "before");
    a.send(b.phys, vec![0; 70_000]);
    a.send(b.phys, "after");
    assert_eq!(b.packet().await.1, "before");
    assert_eq!(b.packet().await.1, "after");
    assert_eq!(a.until(|seen| seen.stats.dropped == 1).await.warning_count("send_failed"), 1);
}

/// S000-63
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_receivers_read_one_socket() {
    let config = TransportConfig { ucast_receiver_threads: 4, mcast_receiver_threads: 2, ..udp(7) };
    let (a, mut b) = (Member::start(&udp(7)), Member::start(&config));
    for number in 0..500u32 {
        a.send(b.phys, number.to_be_bytes().to_vec());
    }
    let mut seen = Vec::new();
    for _ in 0..500 {
        seen.push(b.packet().await.1);
    }
    seen.sort();
    assert!(seen.iter().zip(0u32..).all(|(packet, number)| packet[..] == number.to_be_bytes()));
    a.multicast("to all");
    assert_eq!(b.packet().await.1, "to all");
    b.handle.shutdown().await;
}

/// S003-2
#[tokio::test]
async fn ipv6_works() {
    let config = TransportConfig { bind_addr: bind_addr("::1"), ip_mcast: false, ..udp(8) };
    let (a, mut b) = (Member::start(&config), Member::start(&config));
    a.send(b.phys, "six");
    assert_eq!(b.packet().await, (a.phys, Bytes::from("six")));
}

/// S003-2
#[tokio::test]
async fn a_dual_stack_member_sees_ipv4_peers_as_such() {
    let config = TransportConfig { bind_addr: bind_addr("::"), ip_mcast: false, ..udp(9) };
    let mut dual = Member::start(&config);
    let four = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let own: SocketAddr = four.local_addr().unwrap();
    four.send_to(b"four", (Ipv4Addr::LOCALHOST, dual.phys.port)).await.unwrap();
    assert_eq!(dual.packet().await, (PhysAddr::from(own), Bytes::from("four")));
    dual.send(PhysAddr::from(own), "back");
    let mut buffer = [0; 10];
    let (length, _) = four.recv_from(&mut buffer).await.unwrap();
    assert_eq!(&buffer[..length], b"back");
}
