//! Three servers, of which one crashes.

use std::collections::BTreeMap;

use consort_testkit::Callers;

use crate::servers::{DISTRIBUTED, PATIENCE, Running, eventually};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_acknowledged_write_is_lost_when_a_server_dies_and_the_client_follows() {
    let names = ["A", "B", "C"];
    let mut servers = BTreeMap::new();
    for name in names {
        servers.insert(name, Running::start("failover", name).await);
    }
    let client = servers["A"].client().await;
    client.administration().create("c", DISTRIBUTED).await.unwrap();
    let cache = client.cache::<u64, u64>("c").with_timeout(PATIENCE);
    eventually("all servers are known", async || {
        cache.get(&0).await.unwrap();
        client.servers().len() == 3 && client.servers_of("c").len() == 3
    })
    .await;
    let callers = Callers::begin(&cache, 64);
    callers.wait_for_writes(1_000).await;
    servers["A"].owners.are(3).await;
    servers.remove("B");
    eventually("the client knows", async || client.servers().len() == 2).await;
    eventually("the topology has the others", async || client.servers_of("c").len() == 2).await;
    callers.wait_for_writes(1_000).await;
    // The client learns of the replacement from a topology.
    servers.insert("D", Running::start("failover", "D").await);
    eventually("the client hears of the new one", async || client.servers().len() == 3).await;
    callers.wait_for_writes(1_000).await;
    callers.end().await;
}
