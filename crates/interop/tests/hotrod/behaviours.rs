//! Errors, values of protostream and unusual requests: the same as with Infinispan's server. The default cache.

use consort_interop::{Tool, in_own_network};
use consort_testbed::{HotRodClient, InfinispanServer};

use super::queries::{assert_same, run_java};
use super::{Running, Server, java};

#[test]
fn java_gets_errors_and_values_as_from_infinispan() {
    // Maven cannot be reached out of a network of the test's own.
    let prepared = InfinispanServer::prepare().unwrap_or_else(|why| panic!("Infinispan's server: {why}"));
    HotRodClient::prepare().unwrap_or_else(|why| panic!("Java interop: {why}"));
    in_own_network("behaviours::java_gets_errors_and_values_as_from_infinispan", async move {
        let command = prepared.command("B", 21222).unwrap_or_else(|why| panic!("Infinispan's server: {why}"));
        let mut infinispan = Tool::start(command);
        infinispan.wait_for(&[InfinispanServer::READY]);
        // Infinispan's container has no default cache.
        let server = Running::secured("behaviours", "A", Server::builder().no_default_cache()).await;
        let theirs = run_java("Behaviours", &["127.0.0.1:21222"]).await;
        assert_same(&run_java("Behaviours", &[&server.at]).await, &theirs);
        server.end().await;
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_uses_the_default_cache_of_three_servers() {
    let servers = Running::three("default-cache").await;
    java("Behaviours", vec![servers[1].at.clone(), "default".to_owned()]).await;
    for server in servers {
        server.end().await;
    }
}
