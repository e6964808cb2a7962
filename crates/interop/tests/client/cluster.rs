//! Our client with a cluster of three servers, Infinispan's or ours: the same list with each way to choose servers; and
//! continuous writes while a server is killed and another one is added.

use consort_client::Client;
use consort_interop::{PATIENCE, Tool, eventually, in_own_network};
use consort_testkit::Callers;

use crate::feature_matrix::{self, Kind};
use crate::{infinispan, prepared};

/// The whole list with a client that follows the topology, and with one that does not.
async fn list(at: &str, kind: Kind) {
    let newest = Client::connect(&format!("hotrod://{at}")).await.expect("a connection");
    newest.administration().create("known", feature_matrix::DISTRIBUTED).await.unwrap();
    // Servers send the topology in responses to requests on a cache.
    eventually("all servers are known", async || {
        newest.raw("known").get(&b"key"[..]).await.unwrap();
        newest.servers().len() == 3
    })
    .await;
    feature_matrix::by(&newest, &newest, kind, None).await;
    // In another version, after which its counters are named: those of before stay defined.
    let uri = format!("hotrod://{at}?client_intelligence=BASIC&protocol_version=4.0");
    let basic = Client::connect(&uri).await.expect("a connection");
    feature_matrix::by(&basic, &newest, kind, Some("4.0")).await;
    assert_eq!(basic.servers().len(), 1, "it does not follow");
}

/// Acknowledged writes survive all changes of the servers.
async fn lose_and_add(at: &str, lose: impl FnOnce(), add: impl FnOnce() -> Tool) {
    const CACHE: &str = "written";
    let client = Client::connect(&format!("hotrod://{at}")).await.expect("a connection");
    client.administration().create(CACHE, feature_matrix::DISTRIBUTED).await.unwrap();
    let cache = client.cache::<u64, u64>(CACHE).with_timeout(PATIENCE);
    let known = async |count: usize| {
        eventually("the client knows the servers", async || client.servers().len() == count).await;
    };
    let callers = Callers::begin(&cache, 32);
    known(3).await;
    callers.wait_for_writes(2_000).await;
    lose();
    known(2).await;
    callers.wait_for_writes(2_000).await;
    // It takes its time, and the callers go on.
    let _added = tokio::task::block_in_place(add);
    known(3).await;
    callers.wait_for_writes(2_000).await;
    callers.end().await;
}

#[test]
fn our_client_reads_acknowledged_values_from_three_infinispan_servers() {
    let prepared = prepared();
    in_own_network(
        "cluster::our_client_reads_acknowledged_values_from_three_infinispan_servers",
        async move {
            let _first = infinispan(&prepared, "A", 11222);
            let second = infinispan(&prepared, "B", 11322);
            let _third = infinispan(&prepared, "C", 11422);
            list("127.0.0.1:11222", Kind::Infinispan).await;
            lose_and_add("127.0.0.1:11222", || drop(second), || infinispan(&prepared, "D", 11522)).await;
        },
    );
}

/// A server of ours in the cluster.
pub(crate) fn consort(name: &str, port: u16) -> Tool {
    consort_with(name, port, &[])
}

/// Starts a server with further arguments.
pub(crate) fn consort_with(name: &str, port: u16, further: &[&str]) -> Tool {
    let (name, port) = (format!("--name={name}"), format!("--port={port}"));
    let found = ["-Djgroups.tcpping.initial_hosts=127.0.0.1[7800]", "-Djgroups.tcp.port_range=5"];
    let own = ["server", "--cluster=three", "--bind=127.0.0.1", &name, &port];
    let mut server = Tool::consort(&[&own[..], &found, further].concat());
    server.wait_for(&["Hot Rod"]);
    server
}

#[test]
fn our_client_reads_acknowledged_values_from_three_of_our_servers() {
    in_own_network("cluster::our_client_reads_acknowledged_values_from_three_of_our_servers", async move {
        let _first = consort("A", 11222);
        let second = consort("B", 11322);
        let _third = consort("C", 11422);
        list("127.0.0.1:11222", Kind::Consort).await;
        lose_and_add("127.0.0.1:11222", || drop(second), || consort("D", 11522)).await;
    });
}
