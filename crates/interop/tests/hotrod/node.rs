//! The Hot Rod client for Node.js, unmodified.

use consort_server::ClientCertificates;
use consort_testbed::HotRodJsClient;
use consort_testkit::Authority;

use super::{Running, succeeds, users};

/// The client's names of its protocol versions.
const VERSIONS: [&str; 8] = ["2.2", "2.5", "2.9", "3.0", "3.1", "4.0", "4.1", "auto"];

pub(super) async fn prepared() -> HotRodJsClient {
    let client = tokio::task::spawn_blocking(HotRodJsClient::prepare).await.unwrap();
    client.unwrap_or_else(|why| panic!("Node.js interop: {why}"))
}

async fn node(client: &HotRodJsClient, arguments: &[&str]) {
    let mut command = client.command("client");
    command.args(arguments);
    succeeds("client.js", command).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_uses_all_operations_in_every_version() {
    let client = prepared().await;
    let server = Running::start("hotrod-node", "A").await;
    for version in VERSIONS {
        node(&client, &[&server.at, version, "1"]).await;
    }
    server.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_finds_the_owners_among_three_servers() {
    let client = prepared().await;
    let servers = Running::three("hotrod-node-three").await;
    node(&client, &[&servers[1].at, "auto", "3"]).await;
    for server in servers {
        server.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_authenticates_over_tls() {
    let client = prepared().await;
    let authority = Authority::new("hotrod-node-tls");
    let shown = authority.certify("server", &["127.0.0.1", "localhost"]).identity();
    let builder = users().tls(shown, ClientCertificates::NotAsked);
    let server = Running::secured("hotrod-node-tls", "A", builder).await;
    let trusted = authority.file().display().to_string();
    for mechanism in ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"] {
        node(&client, &[&server.at, "auto", "1", "admin", "secret", mechanism, &trusted]).await;
    }
    server.end().await;
}
