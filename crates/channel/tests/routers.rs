//! Tests of members that find each other through routers (TCPGOSSIP).

mod cluster;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use cluster::{Cluster, Inbox, PATIENCE, one_view};
use consort_channel::{Channel, Message};
use consort_router::{Router, RouterConfig, list_members};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Starts a router on any port, or on an earlier one's.
async fn router(port: u16) -> Router {
    Router::start(&RouterConfig { port, ..RouterConfig::default() }).await.expect("a port")
}

/// Members with these routers and a short reconnection interval.
fn cluster(routers: &[SocketAddr]) -> Cluster {
    let places: Vec<String> =
        routers.iter().map(|place| format!("{}[{}]", place.ip(), place.port())).collect();
    let plain = Cluster::new("tcpgossip.xml").with("jgroups.tcpgossip.initial_hosts", &places.join(","));
    let soon = "<MERGE3 min_interval=\"300\" max_interval=\"900\"/>";
    // More members than the stock stack has ports for; discovery does not use ports.
    let plain_transport = "<include file=\"${transport-config:tcp-default.xml}\"/>";
    let many_ports = "<include file=\"${transport-config:tcp-default.xml}\" port_range=\"80\"/>";
    plain.edited(&[
        (plain_transport, many_ports),
        ("<TCPGOSSIP ", "<TCPGOSSIP reconnect_interval=\"100\" "),
        ("<MERGE3 min_interval=\"10s\" max_interval=\"30s\"/>", soon),
    ])
}

/// Returns the names of the members registered for a cluster at a router.
async fn registered(router: SocketAddr, cluster: &str) -> BTreeSet<String> {
    let groups = list_members(&router.to_string(), PATIENCE).await.expect("a router");
    let members = groups.into_iter().filter(|(name, _)| name == cluster).flat_map(|(_, members)| members);
    members.map(|member| member.name.expect("a name").to_string()).collect()
}

/// Waits until a router's list is this one.
async fn until_registered(router: SocketAddr, cluster: &str, expected: &[&Channel]) {
    let expected: BTreeSet<String> = expected.iter().map(|channel| channel.name().to_owned()).collect();
    let wait = async {
        while registered(router, cluster).await != expected {
            tokio::task::yield_now().await;
        }
    };
    if tokio::time::timeout(PATIENCE, wait).await.is_err() {
        panic!("{router}: {:?} instead of {expected:?}", registered(router, cluster).await);
    }
}

#[tokio::test]
async fn members_find_each_other_through_a_router() {
    let router = router(0).await;
    let cluster = cluster(&[router.local_addr()]);
    let inboxes: Vec<std::sync::Arc<Inbox>> = (0..2).map(|_| std::sync::Arc::default()).collect();
    let a = cluster.join("A", inboxes[0].clone()).await;
    let b = cluster.join("B", inboxes[1].clone()).await;
    one_view(&[&a, &b]).await;
    // A admitted B at once: B has not begun a cluster of its own that is merged later.
    assert!(a.view_text().ends_with("|1] (2) [A, B]"), "{}", a.view_text());
    a.send(Message::bytes(None, vec![7; 1_000])).await.unwrap();
    assert_eq!(inboxes[1].from(a.address(), 1).await, [vec![7; 1_000]]);
    until_registered(router.local_addr(), &cluster.name, &[&a, &b]).await;
    a.close().await;
    until_registered(router.local_addr(), &cluster.name, &[&b]).await;
    b.close().await;
    until_registered(router.local_addr(), &cluster.name, &[]).await;
    assert_eq!((router.member_count(), router.dropped()), (0, 0));
    router.close().await;
}

/// S003-4
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_routers_list_the_present_members_as_twenty_join_and_leave() {
    let routers = [router(0).await, router(0).await];
    let places = routers.each_ref().map(Router::local_addr);
    let cluster = cluster(&places);
    let mut members: Vec<Channel> = vec![cluster.join("m0", Inbox::default()).await];
    let mut next = 1;
    for round in 0..5 {
        let joining: Vec<_> = (0..if round == 0 { 19 } else { 6 })
            .map(|_| {
                next += 1;
                format!("m{}", next - 1)
            })
            .collect();
        for name in &joining {
            members.push(cluster.join(name, Inbox::default()).await);
        }
        let all: Vec<&Channel> = members.iter().collect();
        one_view(&all).await;
        for place in places {
            until_registered(place, &cluster.name, &all).await;
        }
        // Some leave in order, the first of all among them, and one crashes.
        for leaver in members.drain(..5).collect::<Vec<_>>() {
            leaver.close().await;
        }
        drop(members.pop());
        let left: Vec<&Channel> = members.iter().collect();
        for place in places {
            until_registered(place, &cluster.name, &left).await;
        }
    }
    for member in members {
        member.close().await;
    }
    for router in routers {
        router.close().await;
    }
}

/// S003-4: a router's registrations end with it, and are made again at its successor.
#[tokio::test]
async fn members_survive_a_router_and_register_with_its_successor() {
    let first = router(0).await;
    let place = first.local_addr();
    let cluster = cluster(&[place]);
    let a = cluster.join("A", Inbox::default()).await;
    first.close().await;
    let alone = cluster.join("B", Inbox::default()).await;
    assert!(alone.view_text().ends_with("(1) [B]"), "{}", alone.view_text());
    let second = router(place.port()).await;
    until_registered(place, &cluster.name, &[&a, &alone]).await;
    // Now they find each other, and merge.
    one_view(&[&a, &alone]).await;
    a.close().await;
    alone.close().await;
    second.close().await;
}

#[tokio::test]
async fn peers_that_are_no_routers_are_reported() {
    let refused = {
        let router = router(0).await;
        router.local_addr()
    };
    assert!(list_members(&refused.to_string(), PATIENCE).await.is_err());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place = listener.local_addr().unwrap().to_string();
    let silent = list_members(&place, Duration::from_millis(1)).await.unwrap_err();
    assert_eq!(silent.to_string(), "no answer within 1ms");
    let listening = tokio::spawn(async move {
        // The first connection is the abandoned one, if it was accepted.
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = [0; 64];
            if stream.read(&mut asked).await.is_ok_and(|count| count > 0)
                && stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.is_ok()
            {
                // Until it has been read.
                while stream.read(&mut asked).await.is_ok_and(|count| count > 0) {}
            }
        }
    });
    let error = list_members(&place, PATIENCE).await.unwrap_err().to_string();
    assert!(error.starts_with("the peer is no router: "), "{error}");
    listening.abort();
}
