//! Tests of members whose messages go through routers (TUNNEL), also within TLS, and of routers that end.

mod cluster;

use std::net::SocketAddr;
use std::sync::Arc;

use cluster::{Cluster, Inbox, PATIENCE, one_view};
use consort_channel::{Channel, Message};
use consort_router::{Router, RouterClientTls, RouterConfig, RouterTls, list_members_over_tls};
use consort_testkit::{Authority, Log};
use consort_tls::ClientCertificates;

/// Starts a router on any port, or on an earlier one's.
async fn router(port: u16) -> Router {
    let config = RouterConfig { port, ..RouterConfig::default() };
    let starting = async {
        loop {
            // An earlier router's connections may still end.
            if let Ok(router) = Router::start(&config).await {
                return router;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, starting).await.expect("the port is free again")
}

/// Members with these routers and attributes of TUNNEL.
fn cluster(routers: &[SocketAddr], attributes: &str) -> Cluster {
    let places: Vec<String> =
        routers.iter().map(|place| format!("{}[{}]", place.ip(), place.port())).collect();
    cluster_at(&places.join(","), attributes)
}

fn cluster_at(routers: &str, attributes: &str) -> Cluster {
    let tunnel = format!("<TUNNEL reconnect_interval=\"200\" {attributes} ");
    Cluster::new("tunnel.xml")
        .with("jgroups.tunnel.gossip_router_hosts", routers)
        .with("jgroups.diag.enabled", "false")
        .edited(&[
            ("<TUNNEL ", &tunnel),
            ("<MERGE3/>", "<MERGE3 min_interval=\"300\" max_interval=\"900\"/>"),
        ])
}

/// Members of one view, in which A admitted all others.
async fn joined(cluster: &Cluster, names: &[&str]) -> (Vec<Channel>, Vec<Arc<Inbox>>) {
    let (mut channels, mut inboxes) = (Vec::new(), Vec::new());
    for name in names {
        let inbox: Arc<Inbox> = Arc::default();
        channels.push(cluster.join(name, inbox.clone()).await);
        inboxes.push(inbox);
    }
    one_view(&channels.iter().collect::<Vec<_>>()).await;
    let expected = format!("|{}] ({}) [{}]", names.len() - 1, names.len(), names.join(", "));
    assert!(channels[0].view_text().ends_with(&expected), "{}", channels[0].view_text());
    (channels, inboxes)
}

/// Each member multicasts its messages with these numbers.
async fn multicast(channels: &[Channel], numbers: std::ops::Range<u32>, size: usize) {
    for number in numbers {
        for channel in channels {
            let mut bytes = number.to_be_bytes().to_vec();
            bytes.resize(size, 7);
            channel.send(Message::bytes(None, bytes)).await.unwrap();
        }
    }
}

/// Every member has received the messages of each member up to this number, once and in order.
async fn all_received(channels: &[Channel], inboxes: &[Arc<Inbox>], count: u32) {
    for inbox in inboxes {
        for channel in channels {
            let received = inbox.from(channel.address(), count as usize).await;
            let numbers: Vec<u32> =
                received.iter().map(|bytes| u32::from_be_bytes(bytes[..4].try_into().unwrap())).collect();
            assert!(numbers.iter().copied().eq(0..count), "{numbers:?}");
        }
    }
}

async fn close(channels: Vec<Channel>) {
    for channel in channels {
        channel.close().await;
    }
}

#[tokio::test]
async fn three_members_exchange_messages_of_all_sizes_through_one_router() {
    let (log, _guard) = Log::begin("warn");
    let router = router(0).await;
    let cluster = cluster(&[router.local_addr()], "");
    let (channels, inboxes) = joined(&cluster, &["A", "B", "C"]).await;
    multicast(&channels, 0..200, 10).await;
    multicast(&channels, 200..210, 200_000).await;
    all_received(&channels, &inboxes, 210).await;
    let to_c = Message::bytes(Some(channels[2].address().clone()), vec![0, 0, 0, 210]);
    channels[0].send(to_c).await.unwrap();
    assert_eq!(inboxes[2].from(channels[0].address(), 211).await.len(), 211);
    assert_eq!((router.member_count(), router.dropped()), (3, 0));
    close(channels).await;
    assert_eq!(router.member_count(), 0, "all have unregistered");
    router.close().await;
    assert_eq!(log.take(), "", "no warnings");
}

/// A dropped member ends without leaving. Its router tells the others, which do not wait for its heartbeats.
#[tokio::test]
async fn a_member_that_ends_without_leaving_is_suspected_through_its_router() {
    let router = router(0).await;
    let (mut channels, _inboxes) = joined(&cluster(&[router.local_addr()], ""), &["A", "B", "C"]).await;
    drop(channels.remove(1));
    one_view(&channels.iter().collect::<Vec<_>>()).await;
    close(channels).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_delivered_once_and_in_order_while_routers_end_and_start_again() {
    let mut routers = vec![router(0).await, router(0).await];
    let places: Vec<SocketAddr> = routers.iter().map(Router::local_addr).collect();
    let (channels, inboxes) = joined(&cluster(&places, ""), &["A", "B", "C"]).await;
    let mut sent = 0;
    for round in 0..4 {
        let nth = round % 2;
        multicast(&channels, sent..sent + 100, 1_000).await;
        // A drop ends all connections at once, as a killed process.
        drop(routers.remove(nth));
        multicast(&channels, sent + 100..sent + 200, 1_000).await;
        routers.insert(nth, router(places[nth].port()).await);
        multicast(&channels, sent + 200..sent + 300, 1_000).await;
        sent += 300;
        all_received(&channels, &inboxes, sent).await;
        // All are back before the other router ends.
        let wait = async {
            while routers[nth].member_count() < 3 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.expect("registered again");
    }
    one_view(&channels.iter().collect::<Vec<_>>()).await;
    assert!(channels[0].view_text().ends_with("|2] (3) [A, B, C]"), "{}", channels[0].view_text());
    close(channels).await;
}

#[tokio::test]
async fn members_without_any_router_go_on_when_one_starts_again() {
    let (log, _guard) = Log::begin("warn");
    let first = router(0).await;
    let place = first.local_addr();
    let (channels, inboxes) = joined(&cluster(&[place], ""), &["A", "B"]).await;
    drop(first);
    multicast(&channels, 0..50, 10).await;
    let _second = router(place.port()).await;
    all_received(&channels, &inboxes, 50).await;
    close(channels).await;
    assert!(log.take().contains("no router is connected; this member neither sends nor receives"));
}

fn attributes(authority: &Authority, own: Option<&str>) -> String {
    let own = own.map_or_else(String::new, |name| {
        // As two files of a secret of Kubernetes.
        let text = std::fs::read_to_string(authority.certify_in_one(name, &["127.0.0.1"])).unwrap();
        let (chain, key) = text.split_at(text.find("-----BEGIN PRIVATE KEY").unwrap());
        let files = [("tls.crt", chain), ("tls.key", key)].map(|(file, text)| {
            let path = authority.directory.join(file);
            std::fs::write(&path, text).unwrap();
            path
        });
        format!("tls.keystore_path=\"{}\" tls.key_path=\"{}\"", files[0].display(), files[1].display())
    });
    format!("tls.enabled=\"true\" tls.truststore_path=\"{}\" {own}", authority.file().display())
}

async fn tls_router(authority: &Authority, clients: ClientCertificates) -> Router {
    let identity = authority.certify("router", &["127.0.0.1"]).identity();
    let tls = Some(RouterTls { identity, clients });
    Router::start(&RouterConfig { port: 0, tls, ..RouterConfig::default() }).await.expect("a port")
}

#[tokio::test]
async fn key_without_its_certificate_is_refused() {
    let authority = Authority::new("tunnel-key");
    let attributes = format!("{} tls.key_path=\"key.pem\"", attributes(&authority, None));
    let place = SocketAddr::from(([127, 0, 0, 1], 1));
    let error = cluster(&[place], &attributes).builder("A").connect("key").await.unwrap_err().to_string();
    assert!(error.contains("tls.key_path needs tls.keystore_path"), "{error}");
}

#[tokio::test]
async fn members_exchange_messages_through_a_router_with_tls() {
    let authority = Authority::new("tunnel-tls");
    for needs_clients in [false, true] {
        let clients = match needs_clients {
            true => ClientCertificates::Needed(authority.roots()),
            false => ClientCertificates::NotAsked,
        };
        let router = tls_router(&authority, clients).await;
        let own = needs_clients.then_some("member");
        let (channels, inboxes) =
            joined(&cluster(&[router.local_addr()], &attributes(&authority, own)), &["A", "B", "C"]).await;
        multicast(&channels, 0..100, 100).await;
        multicast(&channels, 100..110, 200_000).await;
        all_received(&channels, &inboxes, 110).await;
        let identity = Some(authority.certify("query", &["127.0.0.1"]).identity());
        let query = RouterClientTls { roots: authority.roots(), identity, server_name: None };
        let place = router.local_addr().to_string();
        let groups = list_members_over_tls(&place, &query, PATIENCE).await.expect("a list");
        assert_eq!(groups[0].1.len(), 3);
        close(channels).await;
        router.close().await;
    }
}

#[tokio::test]
async fn wrong_certificates_are_refused_with_a_clear_text_on_both_sides() {
    let (authority, stranger) = (Authority::new("tunnel-own"), Authority::new("tunnel-other"));
    let router = tls_router(&authority, ClientCertificates::Needed(authority.roots())).await;
    let place = router.local_addr();
    for (attributes, text) in [
        // The member does not trust the router.
        (
            attributes(&stranger, Some("member")),
            "no authority in our tls.truststore_path has signed its certificate",
        ),
        (String::new(), "cannot reach the router"),
    ] {
        let (log, _guard) = Log::begin("warn");
        let alone = cluster(&[place], &attributes).join("X", Inbox::default()).await;
        assert!(alone.view_text().ends_with("(1) [X]"), "{}", alone.view_text());
        alone.close().await;
        let log = log.take();
        assert!(log.contains(text), "{log}");
    }
    // The router does not trust the member, or gets no certificate.
    let roots = authority.roots();
    let foreign = stranger.certify("foreign", &["127.0.0.1"]).identity();
    for (identity, text) in [(Some(foreign), "UnknownCA"), (None, "requires a certificate")] {
        let query = RouterClientTls { roots: roots.clone(), identity, server_name: None };
        let error = list_members_over_tls(&place.to_string(), &query, PATIENCE).await.unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
    assert_eq!(router.member_count(), 0);
}

#[tokio::test]
async fn a_routers_certificate_has_the_name_that_the_member_connects_to_or_tls_server_name() {
    let authority = Authority::new("tunnel-names");
    let identity = authority.certify("router", &["localhost"]).identity();
    let tls = Some(RouterTls { identity, clients: ClientCertificates::NotAsked });
    let router = Router::start(&RouterConfig { port: 0, tls, ..RouterConfig::default() }).await.unwrap();
    let port = router.local_addr().port();
    let trust = attributes(&authority, None);
    let with_name = format!("{trust} tls.server_name=\"localhost\"");
    for (host, attributes) in [("localhost", &trust), ("127.0.0.1", &with_name)] {
        let place = format!("{host}[{port}]");
        let (channels, _) = joined(&cluster_at(&place, attributes), &["A", "B"]).await;
        close(channels).await;
    }
    let (log, _guard) = Log::begin("warn");
    let alone = cluster_at(&format!("127.0.0.1[{port}]"), &trust).join("X", Inbox::default()).await;
    alone.close().await;
    let log = log.take();
    assert!(log.contains("set tls.server_name to a name in its certificate"), "{log}");
    let query = RouterClientTls { roots: authority.roots(), identity: None, server_name: None };
    let groups = list_members_over_tls(&format!("localhost:{port}"), &query, PATIENCE).await;
    assert!(groups.is_ok(), "{groups:?}");
    let error = list_members_over_tls(&format!("127.0.0.1:{port}"), &query, PATIENCE).await.unwrap_err();
    assert!(error.to_string().contains("--tls-server-name"), "{error}");
    let named = RouterClientTls { server_name: Some("localhost".to_owned()), ..query };
    assert!(list_members_over_tls(&format!("127.0.0.1:{port}"), &named, PATIENCE).await.is_ok());
}

#[tokio::test]
async fn members_with_tcpgossip_find_each_other_through_a_router_with_tls() {
    let authority = Authority::new("tcpgossip-tls");
    let router = tls_router(&authority, ClientCertificates::Needed(authority.roots())).await;
    let place = format!("127.0.0.1[{}]", router.local_addr().port());
    let tls = format!("<TCPGOSSIP {} ", attributes(&authority, Some("member")));
    let cluster = Cluster::new("tcpgossip.xml")
        .with("jgroups.tcpgossip.initial_hosts", &place)
        .edited(&[("<TCPGOSSIP ", &tls)]);
    let (channels, inboxes) = joined(&cluster, &["A", "B"]).await;
    multicast(&channels, 0..10, 100).await;
    all_received(&channels, &inboxes, 10).await;
    assert_eq!(router.member_count(), 2);
    close(channels).await;
}
