//! What a live member answers to probe, and does for it.

mod cluster;

use std::sync::Arc;
use std::time::Duration;

use cluster::{Cluster, Inbox, ask, one_view};
use consort_channel::rpc::{RequestOptions, RpcDispatcher};
use consort_channel::{Channel, Message, Payload, Silent};

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
    let a = cluster.join("A", Silent).await;
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

/// The attributes of a transport that is asked over TCP.
fn diag(port: u16, more: &str) -> String {
    format!(
        "diag.enabled=\"true\" diag.enable_udp=\"false\" diag.enable_tcp=\"true\" diag.port=\"{port}\" {more}"
    )
}

#[tokio::test]
async fn probe_listens_where_bind_addr_says_and_nowhere_else() {
    let port = 32_000 + (std::process::id() % 1_000) as u16;
    for (bind_addr, answers, is_silent) in [
        ("diag.bind_addr=\"127.0.0.2\"", "127.0.0.2", "127.0.0.1"),
        // A member that is on the loopback only is not for others to ask.
        ("", "127.0.0.1", "127.0.0.3"),
    ] {
        let cluster = Cluster::new("tcp.xml").transport("TCP", &diag(port, bind_addr));
        let a = cluster.join("A", Silent).await;
        let asked = |host: &'static str| tokio::net::TcpStream::connect((host, port));
        assert!(asked(answers).await.is_ok(), "{answers}");
        assert!(asked(is_silent).await.is_err(), "{is_silent}");
        a.close().await;
    }
}

#[tokio::test]
async fn a_probe_that_everybody_reaches_without_a_passcode_is_told_of() {
    let port = 33_000 + (std::process::id() % 1_000) as u16;
    for (attributes, is_told) in [
        ("diag.bind_addr=\"0.0.0.0\"", true),
        ("diag.bind_addr=\"0.0.0.0\" diag.passcode=\"secret\"", false),
        ("diag.bind_addr=\"loopback\"", false),
        ("", false),
    ] {
        let (log, _guard) = cluster::log::Log::begin("consort_channel=warn");
        let cluster = Cluster::new("tcp.xml").transport("TCP", &diag(port, attributes));
        let a = cluster.join("A", Silent).await;
        a.close().await;
        let said = log.take();
        assert_eq!(said.contains("without diag.passcode"), is_told, "{attributes}: {said}");
        assert!(!is_told || said.contains(&format!("TCP 0.0.0.0:{port}")), "{said}");
    }
}

/// Off unless the stack says otherwise.
#[tokio::test]
async fn a_member_answers_nobody_unless_it_is_told_to() {
    let port = 34_000 + (std::process::id() % 1_000) as u16;
    let attributes = format!("diag.enable_tcp=\"true\" diag.port=\"{port}\"");
    let a = Cluster::new("tcp.xml").transport("TCP", &attributes).join("A", Silent).await;
    assert!(tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err());
    a.close().await;
}
