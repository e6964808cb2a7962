//! Our client with Infinispan's server and with ours: the same list of checks, so that the client is not only tested with our
//! server.

mod backup;
mod chunked_values;
mod cluster;
mod feature_matrix;
mod hung_server;
mod rolling_restart;
mod sites;
mod users;

use consort_client::Client;
use consort_interop::{Tool, in_own_network};
use consort_testbed::InfinispanServer;

/// A server of Infinispan's, ready for clients.
fn infinispan(prepared: &InfinispanServer, name: &str, port: u16) -> Tool {
    let command = prepared.command(name, port).unwrap_or_else(|why| panic!("Infinispan's server: {why}"));
    let mut server = Tool::start(command);
    server.wait_for(&[InfinispanServer::READY]);
    server
}

/// Maven cannot be reached from a test's own network, so artifacts are fetched before and found there.
fn prepared() -> InfinispanServer {
    InfinispanServer::prepare().unwrap_or_else(|why| panic!("Infinispan's server: {why}"))
}

#[test]
fn our_client_uses_every_feature_of_our_server() {
    in_own_network("our_client_uses_every_feature_of_our_server", async {
        let mut server = Tool::consort(&["server"]);
        server.wait_for(&["Hot Rod"]);
        feature_matrix::all("127.0.0.1:11222", feature_matrix::Kind::Consort).await;
    });
}

#[test]
fn our_client_uses_every_feature_of_infinispans_server() {
    let prepared = prepared();
    in_own_network("our_client_uses_every_feature_of_infinispans_server", async move {
        let _server = infinispan(&prepared, "A", 11222);
        feature_matrix::all("127.0.0.1:11222", feature_matrix::Kind::Infinispan).await;
    });
}

#[test]
fn our_client_reads_acknowledged_values_when_an_infinispan_server_is_killed() {
    let prepared = prepared();
    in_own_network("our_client_reads_acknowledged_values_when_an_infinispan_server_is_killed", async move {
        let first = infinispan(&prepared, "A", 11222);
        let _second = infinispan(&prepared, "B", 11322);
        let client = Client::connect("127.0.0.1:11222").await.expect("a connection");
        feature_matrix::lose_a_server(&client, || drop(first)).await;
    });
}
