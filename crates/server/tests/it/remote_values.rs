//! Large values of another server: their bytes are reserved before they are sent.

use bytes::Bytes;
use consort_hotrod::ops::{bulk, map};
use consort_hotrod::{Flags, Request, RequestBody, ResponseBody, Status};
use consort_server::{Budget, Server};

use crate::client::{Client, RunningServer, get, put, request};

const MIB: usize = 1024 * 1024;

/// The values have the same size. A server with this budget holds 8 MiB of responses, each up to 1 MiB.
const VALUE_BYTES: usize = MIB - 1_000;

const PROCESS_BYTES: u64 = 128 * MIB as u64;

const READS: u64 = 60;

/// Starts two servers, one of which has the value of `large`. Returns them with their budgets.
async fn servers(cluster: &str) -> ([RunningServer; 2], [Budget; 2]) {
    let budgets = [(); 2].map(|()| Budget::new("process", PROCESS_BYTES));
    let [first, second] = budgets.each_ref().map(|budget| Server::builder().memory(budget.clone()));
    let servers =
        [RunningServer::secured(cluster, first).await, RunningServer::joining(cluster, second).await];
    let mut client = servers[0].client().await;
    client.create_with("c", r#"{"distributed-cache": {"owners": 1}}"#).await;
    for (key, value) in [("large", vec![7; VALUE_BYTES]), ("small", vec![7])] {
        assert_eq!(client.ask("c", put(key, value)).await.status, Status::Success);
    }
    (servers, budgets)
}

/// Begins many requests at both servers, one of which has the value.
async fn greedy(servers: &[RunningServer; 2], body: impl Fn() -> RequestBody, flags: Flags) -> [Client; 2] {
    let requests: Vec<Request> = (0..READS)
        .map(|id| {
            let mut request = request(id, "c", body());
            request.header.flags = flags;
            request
        })
        .collect();
    let mut clients = [servers[0].client().await, servers[1].client().await];
    for client in &mut clients {
        client.send(&requests).await;
    }
    clients
}

/// Returns the contents of the responses in their order.
async fn all(client: &mut Client, body: RequestBody) -> Vec<ResponseBody> {
    let asked = request(0, "c", body).context();
    let mut bodies = Vec::new();
    for _ in 0..READS {
        bodies.push(client.next(asked).await.expect("an answer").body);
    }
    bodies
}

/// Other clients are served while clients do not read their responses, which are bounded.
async fn others_are_served(servers: &[RunningServer; 2], budgets: &[Budget; 2]) {
    for server in servers {
        let mut other = server.client().await;
        for _ in 0..200 {
            assert_eq!(other.ask("c", get("small")).await.status, Status::Success);
        }
    }
    assert!(budgets.iter().any(|budget| budget.usage().peak > 7 * MIB as u64), "{budgets:?}");
}

/// A server's own value takes no memory, so that only responses that are being written count beyond the limit.
fn are_bounded(budgets: &[Budget; 2]) {
    for budget in budgets {
        let peak = budget.usage().peak;
        assert!(peak < 12 * MIB as u64, "{peak} bytes");
    }
}

#[tokio::test]
async fn unread_values_of_another_server_are_bounded_and_all_arrive_when_the_client_reads() {
    let (servers, budgets) = servers("remote-values").await;
    let mut clients = greedy(&servers, || get("large"), Flags::NONE).await;
    others_are_served(&servers, &budgets).await;
    for client in &mut clients {
        for body in all(client, get("large")).await {
            let ResponseBody::Map(map::Response::Value(value)) = body else { panic!("{body:?}") };
            assert_eq!(value.len(), VALUE_BYTES);
        }
    }
    are_bounded(&budgets);
}

#[tokio::test]
async fn previous_values_of_another_server_are_bounded_like_read_values() {
    let (servers, budgets) = servers("remote-previous").await;
    let put_if_absent = || {
        let RequestBody::Map(map::Request::Put(to)) = put("large", "v") else { unreachable!("it is a put") };
        RequestBody::Map(map::Request::PutIfAbsent(to))
    };
    let mut clients = greedy(&servers, put_if_absent, Flags::FORCE_RETURN_PREVIOUS).await;
    others_are_served(&servers, &budgets).await;
    for client in &mut clients {
        for body in all(client, put_if_absent()).await {
            let ResponseBody::Map(map::Response::Previous(Some(previous))) = body else { panic!("{body:?}") };
            assert_eq!(previous.value.len(), VALUE_BYTES);
        }
    }
    are_bounded(&budgets);
}

#[tokio::test]
async fn large_values_of_another_server_are_read_one_after_the_other() {
    let (servers, budgets) = servers("remote-many").await;
    let mut client = servers[0].client().await;
    // The first request of a connection is a small one.
    assert_eq!(client.ask("c", get("small")).await.status, Status::Success);
    let keys: Vec<Bytes> = (0..20).map(|nth| Bytes::from(format!("key-{nth}"))).collect();
    for key in &keys {
        let RequestBody::Map(map::Request::Put(to)) = put("key", vec![7; VALUE_BYTES]) else {
            unreachable!("it is a put")
        };
        let put = RequestBody::Map(map::Request::Put(map::Assignment { key: key.clone(), ..to }));
        assert_eq!(client.ask("c", put).await.status, Status::Success);
    }
    for server in &servers {
        let mut client = server.client().await;
        let response = client.ask("c", RequestBody::Bulk(bulk::Request::GetAll(keys.clone()))).await;
        let ResponseBody::Bulk(bulk::Response::Found(entries)) = response.body else { panic!("no entries") };
        assert_eq!(entries.len(), keys.len());
        assert!(entries.iter().all(|(_, value)| value.len() == VALUE_BYTES));
    }
    drop(budgets);
}

#[tokio::test]
async fn contains_key_does_not_transfer_a_large_value_of_another_server() {
    let (servers, budgets) = servers("remote-contains").await;
    for server in &servers {
        let mut client = server.client().await;
        for (key, status) in [("large", Status::Success), ("none", Status::NotFound)] {
            let contains = RequestBody::Map(map::Request::ContainsKey(key.into()));
            assert_eq!(client.ask("c", contains).await.status, status);
        }
    }
    // The request that put the value was larger than any response.
    assert!(budgets.iter().all(|budget| budget.usage().peak < 2 * MIB as u64), "{budgets:?}");
}
