//! Tests of a live member's responses to probe.

mod cluster;

use std::sync::Arc;
use std::time::Duration;

use cluster::{Cluster, Inbox, ask, one_view};
use consort_channel::probe::passcode_prefix;
use consort_channel::rpc::{RequestOptions, RpcDispatcher};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use consort_channel::{Channel, IgnoringReceiver, Message, Payload};
use consort_testkit::Log;

/// S000-58: a member's calls and round trips, read and switched through probe.
#[tokio::test]
async fn calls_and_round_trips_are_read_through_probe() {
    let port = 30_000 + (std::process::id() % 1_000) as u16;
    let cluster = Cluster::new("tcp.xml").probed(port);
    let echo = |request: &Message| Ok(request.payload.clone());
    let a = RpcDispatcher::connect(cluster.builder("A"), &cluster.name, echo).await.unwrap();
    let b = RpcDispatcher::connect(cluster.builder("B"), &cluster.name, echo).await.unwrap();
    one_view(&[a.channel(), b.channel()]).await;
    assert!(ask(port, "rpcs-details").await.contains("off"), "times are off by default");
    ask(port, "rpcs-enable-details").await;
    let options = RequestOptions::all(Duration::from_secs(10));
    for _ in 0..5 {
        a.call(b.channel().address(), Payload::Bytes(Some("x".into())), &options).await.unwrap();
    }
    let answer = ask(port, "rpcs rpcs-details").await;
    assert!(answer.contains("sync_unicasts=5"), "{answer}");
    assert!(answer.contains("B: count=5, min="), "{answer}");
    a.channel().clone().close().await;
    b.channel().clone().close().await;
}

/// S000-59: the bundler is exchanged a hundred times under load, through probe; nothing is lost or reordered.
#[tokio::test]
async fn the_bundler_is_exchanged_under_load() {
    let port = 31_000 + (std::process::id() % 1_000) as u16;
    let cluster = Cluster::new("tcp.xml").probed(port);
    let inbox = Arc::new(Inbox::default());
    let a = cluster.join("A", IgnoringReceiver).await;
    let b = cluster.join("B", inbox.clone()).await;
    one_view(&[&a, &b]).await;
    let sender = tokio::spawn(send(a.clone(), 20_000));
    for nth in 0..100 {
        let kind = ["nb", "tq", "pd"][nth % 3];
        let answer = ask(port, &format!("op=TCP.bundler[\"{kind}\"]")).await;
        assert!(answer.contains("op="), "{answer}");
    }
    sender.await.unwrap();
    let received = inbox.from(a.address(), 20_000).await;
    let numbers: Vec<u32> =
        received.iter().map(|bytes| u32::from_be_bytes(bytes[..4].try_into().unwrap())).collect();
    assert_eq!(numbers, (0..20_000).collect::<Vec<u32>>());
    a.close().await;
    b.close().await;
}

async fn send(channel: Channel, count: u32) {
    for number in 0..count {
        channel.send(Message::bytes(None, number.to_be_bytes().to_vec())).await.unwrap();
        if number.is_multiple_of(100) {
            tokio::task::yield_now().await;
        }
    }
}

/// Attributes of a transport with probe over TCP.
fn diag(port: u16, more: &str) -> String {
    format!(
        "diag.enabled=\"true\" diag.enable_udp=\"false\" diag.enable_tcp=\"true\" diag.port=\"{port}\" {more}"
    )
}

#[tokio::test]
async fn probe_listens_at_bind_addr_only() {
    let port = 32_000 + (std::process::id() % 1_000) as u16;
    for (bind_addr, answers, is_silent) in [
        ("diag.bind_addr=\"127.0.0.2\"", "127.0.0.2", "127.0.0.1"),
        // A member on the loopback is not reachable from other hosts.
        ("", "127.0.0.1", "127.0.0.3"),
    ] {
        let cluster = Cluster::new("tcp.xml").transport("TCP", &diag(port, bind_addr));
        let a = cluster.join("A", IgnoringReceiver).await;
        let asked = |host: &'static str| tokio::net::TcpStream::connect((host, port));
        assert!(asked(answers).await.is_ok(), "{answers}");
        assert!(asked(is_silent).await.is_err(), "{is_silent}");
        a.close().await;
    }
}

#[tokio::test]
async fn a_reachable_probe_without_a_passcode_is_logged() {
    let port = 33_000 + (std::process::id() % 1_000) as u16;
    for (attributes, is_logged) in [
        ("diag.bind_addr=\"0.0.0.0\"", true),
        ("diag.bind_addr=\"0.0.0.0\" diag.passcode=\"secret\"", false),
        ("diag.bind_addr=\"loopback\"", false),
        ("", false),
    ] {
        let (log, _guard) = Log::begin("consort_channel=warn");
        let cluster = Cluster::new("tcp.xml").transport("TCP", &diag(port, attributes));
        let a = cluster.join("A", IgnoringReceiver).await;
        a.close().await;
        let logged = log.take();
        assert_eq!(logged.contains("without diag.passcode"), is_logged, "{attributes}: {logged}");
        assert!(!is_logged || logged.contains(&format!("TCP 0.0.0.0:{port}")), "{logged}");
    }
}

/// As in `consort server`.
#[tokio::test]
async fn a_guarded_member_listens_where_it_is_bound_and_is_changed_with_its_passcode_only() {
    let port = 35_000 + (std::process::id() % 1_000) as u16;
    let secret = || Some("secret".to_owned());
    let change = "jmx=FD_ALL3.timeout=50000";
    for (passcode, asked) in [(None, change.into()), (secret(), with_passcode("secret", change))] {
        let (log, _guard) = Log::begin("consort_channel=warn");
        let cluster = Cluster::new("tcp.xml").transport("TCP", &format!("diag.port=\"{port}\""));
        let builder = cluster.builder("A").guarded_diagnostics(true, passcode.clone());
        let a = cluster::join(&cluster.name, builder).await;
        let reads = ask(port, "jmx=FD_ALL3.timeout").await;
        // With a passcode, requests without it get no response.
        assert_eq!(reads.contains("timeout="), passcode.is_none(), "{reads}");
        let without = ask(port, change).await;
        assert_eq!(without.starts_with("refused: "), passcode.is_none(), "{without}");
        let with = ask_bytes(port, &asked).await;
        assert_eq!(with.contains("\nFD_ALL3.timeout=50000"), passcode.is_some(), "{with}");
        let logged = log.take();
        let expected = if passcode.is_some() {
            "probe changes this member"
        } else {
            "probe does not change this member"
        };
        assert!(
            logged.contains(expected) && logged.contains("127.0.0.1:") && logged.contains(change),
            "{logged}"
        );
        assert!(!logged.contains("without diag.passcode"), "{logged}");
        a.close().await;
    }
    // Probe that the stack enables is guarded too, and it is off unless enabled.
    for (attributes, is_on) in [(diag(port, ""), true), (format!("diag.port=\"{port}\""), false)] {
        let cluster = Cluster::new("tcp.xml").transport("TCP", &attributes);
        let builder = cluster.builder("A").guarded_diagnostics(false, None);
        let a = cluster::join(&cluster.name, builder).await;
        let connected = tokio::net::TcpStream::connect(("127.0.0.1", port)).await;
        assert_eq!(connected.is_ok(), is_on, "{attributes}");
        if is_on {
            assert!(ask(port, change).await.starts_with("refused: "));
        }
        a.close().await;
    }
}

/// Returns whether a UDP socket of this host has a port (Linux).
fn has_udp_socket(port: u16) -> bool {
    let table = std::fs::read_to_string("/proc/self/net/udp").unwrap();
    let ends = format!(":{port:04X}");
    let mut own = table.lines().skip(1).filter_map(|line| line.split_whitespace().nth(1));
    own.any(|address| address.ends_with(&ends))
}

#[tokio::test]
async fn multicast_and_tcp_are_closed_each_by_its_attribute() {
    let port = 36_000 + (std::process::id() % 1_000) as u16;
    for (udp, tcp) in [(true, true), (true, false), (false, true), (false, false)] {
        let attributes = format!(
            "diag.enabled=\"true\" diag.enable_udp=\"{udp}\" diag.enable_tcp=\"{tcp}\" diag.port=\"{port}\""
        );
        let a = Cluster::new("tcp.xml").transport("TCP", &attributes).join("A", IgnoringReceiver).await;
        let connected = tokio::net::TcpStream::connect(("127.0.0.1", port)).await;
        assert_eq!((has_udp_socket(port), connected.is_ok()), (udp, tcp), "{attributes}");
        a.close().await;
    }
}

/// A request with a passcode.
fn with_passcode(passcode: &str, request: &str) -> Vec<u8> {
    [&passcode_prefix(passcode, 1_700_000_000_000, 0.5)[..], request.as_bytes()].concat()
}

async fn ask_bytes(port: u16, request: &[u8]) -> String {
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.expect("a responder");
    stream.write_all(&[request, b"\n"].concat()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// Off by default.
#[tokio::test]
async fn probe_is_off_by_default() {
    let port = 34_000 + (std::process::id() % 1_000) as u16;
    let attributes = format!("diag.enable_tcp=\"true\" diag.port=\"{port}\"");
    let a = Cluster::new("tcp.xml").transport("TCP", &attributes).join("A", IgnoringReceiver).await;
    assert!(tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err());
    a.close().await;
}
