//! Counts for clients: of the server that is asked, and of all.

use std::collections::BTreeMap;

use consort_hotrod::ops::server;
use consort_hotrod::{ProtocolVersion, RequestBody, ResponseBody, Status};
use tokio::time::timeout;

use crate::client::{Client, PATIENCE, RunningServer, get, put, request};

async fn stats(client: &mut Client, version: ProtocolVersion) -> BTreeMap<String, i64> {
    let mut stats = request(1, "c", RequestBody::Server(server::Request::Stats));
    stats.header.version = version;
    let response = client.send_request(stats).await;
    let ResponseBody::Server(server::Response::Stats(stats)) = response.body else { panic!("{response:?}") };
    stats.iter().map(|(name, value)| (name.as_str().to_owned(), value.as_str().parse().unwrap())).collect()
}

#[tokio::test]
async fn global_statistics_are_the_sums_of_all_servers() {
    let [first, second] = RunningServer::two("statistics").await;
    let (mut client, mut other) = (first.client().await, second.client().await);
    client.create("c").await;
    assert_eq!(client.ask("c", put("k", "v")).await.status, Status::Success);
    assert_eq!(client.ask("c", put("l", "v")).await.status, Status::Success);
    assert_eq!(client.ask("c", get("k")).await.status, Status::Success);
    assert_eq!(other.ask("c", get("k")).await.status, Status::Success);
    assert_eq!(other.ask("c", get("missing")).await.status, Status::NotFound);
    let expected = [
        ("globalCurrentNumberOfEntries", 2),
        ("globalStores", 2),
        ("globalRetrievals", 3),
        ("globalHits", 2),
        ("globalMisses", 1),
        ("globalRemoveHits", 0),
        ("globalRemoveMisses", 0),
        ("globalApproximateEntries", 4),
        ("globalApproximateEntriesUnique", 2),
    ];
    for client in [&mut client, &mut other] {
        let summed = async {
            loop {
                let all = stats(client, ProtocolVersion::V2_4).await;
                if expected.iter().all(|(name, value)| all[*name] == *value) {
                    return all;
                }
                tokio::task::yield_now().await;
            }
        };
        let all = timeout(PATIENCE, summed).await.expect("the sums of both");
        assert_eq!(all.len(), 19, "{all:?}");
    }
    let (own, others) =
        (stats(&mut client, ProtocolVersion::V4_1).await, stats(&mut other, ProtocolVersion::V4_1).await);
    assert_eq!((own["stores"], own["hits"], own["misses"]), (2, 1, 0));
    assert_eq!((others["stores"], others["hits"], others["misses"]), (0, 1, 1));
    let before = stats(&mut client, ProtocolVersion::V2_3).await;
    assert_eq!(before.len(), 10, "{before:?}");
}
