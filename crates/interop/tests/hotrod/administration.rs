//! Aliases and templates with the unmodified Java client, with the same results as with Infinispan's server.

use consort_interop::{Tool, in_own_network};
use consort_testbed::{HotRodClient, InfinispanServer};

use super::queries::{assert_same, run_java};
use super::{Running, arguments, java};

#[test]
fn java_administers_aliases_and_templates_as_with_infinispan() {
    // Maven cannot be reached out of a network of the test's own.
    let prepared = InfinispanServer::prepare().unwrap_or_else(|why| panic!("Infinispan's server: {why}"));
    HotRodClient::prepare().unwrap_or_else(|why| panic!("Java interop: {why}"));
    let name = "administration::java_administers_aliases_and_templates_as_with_infinispan";
    in_own_network(name, async move {
        let command = prepared.command("T", 21222).unwrap_or_else(|why| panic!("Infinispan's server: {why}"));
        let mut infinispan = Tool::start(command);
        infinispan.wait_for(&[InfinispanServer::READY]);
        let server = Running::start("administered", "A").await;
        let run = async |at: &str| run_java("Administration", &[at, "BASIC", "PROTOCOL_VERSION_AUTO"]).await;
        let theirs = run("127.0.0.1:21222").await;
        assert_same(&run(&server.at).await, &theirs);
        server.end().await;
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_administers_aliases_and_templates_of_three_servers() {
    let servers = Running::three("administered-three").await;
    let mut arguments = arguments(&servers[1].at, "HASH_DISTRIBUTION_AWARE", "PROTOCOL_VERSION_AUTO", 3);
    arguments[3] = "further".to_owned();
    java("Administration", arguments).await;
    for server in servers {
        server.end().await;
    }
}
