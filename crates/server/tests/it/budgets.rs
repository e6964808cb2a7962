//! The memory that clients can make a server hold is bounded for all clients together, in bytes.

use std::time::Duration;

use bytes::Bytes;
use consort_hotrod::ops::{bulk, listener, map, task};
use consort_hotrod::{Expiration, Output, Request, RequestBody, ResponseBody, Status};
use consort_server::limits::{
    DEFINITION_BYTES_MAX, SCHEMA_BYTES_MAX, SCHEMAS_PUNCTUATION_MAX, UNWRITTEN_MAX,
};
use consort_server::{Budget, Server};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpSocket;
use tokio::time::timeout;

use crate::authentication::{refusal, users};
use crate::client::{Client, PATIENCE, RunningServer, error, get, put, request};

const MIB: usize = 1024 * 1024;

/// Returns the budget of a process with this many MiB, of which clients get a half. Requests and responses get three quarters
/// of that, and one response at most a half of these.
fn process(mib: u64) -> Budget {
    Budget::new("process", mib * MIB as u64)
}

fn bulk_get() -> RequestBody {
    RequestBody::Bulk(bulk::Request::BulkGet(0))
}

/// Starts a server with a cache that has this many values of 64 KiB.
async fn with_values(cluster: &str, process: &Budget, count: usize) -> (RunningServer, Client) {
    let server = RunningServer::secured(cluster, Server::builder().memory(process.clone())).await;
    let mut client = server.client().await;
    client.create("c").await;
    for nth in 0..count {
        let (key, value) = (Bytes::from(format!("key-{nth}")), Bytes::from(vec![7; MIB / 16]));
        let to = map::Assignment { key, expiration: Expiration::INFINITE, value };
        let put = client.ask("c", RequestBody::Map(map::Request::Put(to))).await;
        assert_eq!(put.status, Status::Success, "{put:?}");
    }
    (server, client)
}

/// Returns a client that has sent this many requests and read no response.
async fn reading(server: &RunningServer, count: u64, body: fn() -> RequestBody) -> (Client, Vec<Request>) {
    let mut client = server.client().await;
    let requests: Vec<Request> = (0..count).map(|id| request(id, "c", body())).collect();
    client.send(&requests).await;
    (client, requests)
}

/// Waits until more than this many bytes of the budget are used.
async fn used_more_than(process: &Budget, bytes: u64) {
    let used = async {
        while process.used() <= bytes {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, used).await.expect("it is used");
}

#[tokio::test]
async fn pipelined_bulk_reads_of_a_client_that_does_not_read_stay_within_the_budget() {
    const READS: u64 = 40;
    let process = process(64);
    let (server, _client) = with_values("budget-bulk", &process, 128).await;
    let (mut greedy, reads) = reading(&server, READS, bulk_get).await;
    used_more_than(&process, 8 * MIB as u64).await;
    // Other clients are served meanwhile.
    let mut other = server.client().await;
    for _ in 0..100 {
        assert_eq!(other.ask("c", get("key-1")).await.status, Status::Success);
        assert!(process.used() <= process.limit() / 2);
    }
    // The client gets all responses when it reads.
    for _ in 0..READS {
        let response = greedy.next(reads[0].context()).await.unwrap();
        let ResponseBody::Bulk(bulk::Response::Entries(entries)) = response.body else {
            panic!("{response:?}")
        };
        assert_eq!(entries.len(), 128);
    }
    // Responses have 24 MiB, and values that are read for them 8 MiB.
    let peak = process.usage().peak;
    assert!(peak > 8 * MIB as u64 && peak <= 34 * MIB as u64, "{peak} bytes");
    drop((greedy, other));
}

/// The responses would take 25 MiB, more than the sockets hold.
#[tokio::test]
async fn unread_responses_of_a_connection_are_bounded_by_one_mib_and_one_response() {
    const READS: u64 = 400;
    let process = process(512);
    let (server, _client) = with_values("budget-unwritten", &process, 1).await;
    let (mut greedy, reads) = reading(&server, READS, || get("key-0")).await;
    used_more_than(&process, (UNWRITTEN_MAX - MIB / 8) as u64).await;
    for _ in &reads {
        let response = greedy.next_of(|id| reads[id as usize].context()).await.unwrap();
        let ResponseBody::Map(map::Response::Value(value)) = response.body else { panic!("{response:?}") };
        assert_eq!(value.len(), MIB / 16);
    }
    // One response more, the requests themselves, and the rounding to 64 KiB.
    let peak = process.usage().peak as usize;
    assert!(peak <= UNWRITTEN_MAX + MIB / 4, "{peak} bytes");
    drop(server);
}

/// One response at a time, so that few bytes wait when the sockets are full. The timeout is short.
#[tokio::test]
async fn client_that_does_not_read_is_disconnected_after_the_timeout() {
    let server = Server::builder().transfer_time(Duration::from_millis(20));
    let server = RunningServer::secured("budget-untaken", server).await;
    let mut client = server.client().await;
    client.create("c").await;
    assert_eq!(client.ask("c", put("k", vec![7; MIB / 8])).await.status, Status::Success);
    assert_eq!(client.ask("c", get("k")).await.status, Status::Success);
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    let mut greedy = Client::by(socket.connect(server.at).await.unwrap());
    let metrics = async |names: [&str; 3]| {
        let metrics = crate::http::ask(&server, "/metrics", "").await.content;
        names.map(|name| crate::http::value(&metrics, name) as usize)
    };
    let figures =
        ["consort_requests_total{operation=\"GET\"}", "consort_sent_bytes_total", "consort_connections"];
    let [gets_before, sent_before, connections] = metrics(figures).await;
    let mut asked = 0;
    let closed = async {
        loop {
            let _ = greedy.stream.write_all(&encoded(&request(asked as u64, "c", get("k")))).await;
            asked += 1;
            // Until the previous response is in the sockets, or the connection is closed.
            loop {
                let [gets, sent, now] = metrics(figures).await;
                if now < connections {
                    return;
                }
                if gets - gets_before == asked && sent - sent_before >= (asked - 1) * MIB / 8 {
                    break;
                }
            }
        }
    };
    timeout(PATIENCE, closed).await.expect("it is closed");
    assert_eq!(client.ask("c", get("k")).await.status, Status::Success, "other clients are served");
    drop(greedy);
}

#[tokio::test]
async fn response_larger_than_the_limit_of_one_response_is_an_error_that_names_it() {
    let process = process(64);
    // The limit of one response is 12 MiB.
    let (server, mut client) = with_values("budget-response", &process, 224).await;
    let keys = (0..224).map(|nth| Bytes::from(format!("key-{nth}"))).collect();
    for body in [bulk_get(), RequestBody::Bulk(bulk::Request::GetAll(keys))] {
        let response = client.ask("c", body).await;
        assert_eq!(response.status, Status::ServerError);
        let text = error(&response);
        assert!(text.contains("more than 12582912 bytes, the limit of one response"), "{text}");
    }
    assert_eq!(client.ask("c", get("key-1")).await.status, Status::Success);
    drop((client, server));
}

#[tokio::test]
async fn lists_of_names_count_until_they_are_read() {
    let process = process(64);
    let server = RunningServer::secured("budget-names", Server::builder().memory(process.clone())).await;
    let mut client = server.client().await;
    for nth in 0..20 {
        let name = format!("{nth}{}", "n".repeat(1_000));
        client.create(&name).await;
    }
    let list = RequestBody::Task(task::Request::Exec("@@cache@names".into(), Vec::new()));
    let response = client.ask("", list).await;
    assert_eq!(response.status, Status::Success);
    assert!(process.usage().peak >= 40_000, "{:?}", process.usage());
}

fn encoded(request: &Request) -> Bytes {
    let mut out = Output::new();
    request.encode(&mut out);
    out.into_bytes()
}

/// Returns the beginning of a request without any byte of its value.
fn without_value(request: &Request, value: usize) -> Bytes {
    let whole = encoded(request);
    whole.slice(..whole.len() - value)
}

#[tokio::test]
async fn put_without_permission_is_refused_before_its_value_arrives() {
    let server = RunningServer::secured("budget-refused", users()).await;
    let mut client = server.client().await;
    client.plain("monitor", "monitor").await;
    const VALUE: usize = 60 * MIB;
    let put = request(7, "c", put("k", vec![7; VALUE]));
    client.stream.write_all(&without_value(&put, VALUE)).await.unwrap();
    let refused = client.next(put.context()).await.unwrap();
    assert_eq!(refused.id, 7);
    assert!(refusal(&refused).contains("ISPN000287"), "{refused:?}");
    // The rest of the request is discarded, and the connection stays open.
    for _ in 0..60 {
        client.stream.write_all(&[7; MIB]).await.unwrap();
    }
    let ping = request(8, "", RequestBody::Server(consort_hotrod::ops::server::Request::Ping));
    assert_eq!(client.send_request(ping).await.id, 8);
}

#[tokio::test]
async fn request_above_the_limit_is_refused_before_it_arrives_and_the_connection_stays_open() {
    let process = process(64);
    let (_server, mut client) = with_values("budget-request", &process, 1).await;
    // The limit of all large requests is 18 MiB.
    const VALUE: usize = 20 * MIB;
    let put = request(7, "c", put("k", vec![7; VALUE]));
    client.stream.write_all(&without_value(&put, VALUE)).await.unwrap();
    let refused = client.next(put.context()).await.unwrap();
    assert_eq!(refused.status, Status::ServerError);
    let text = error(&refused);
    assert!(text.contains("no capacity for the request") && text.contains("large_requests"), "{text}");
    client.stream.write_all(&vec![7; VALUE]).await.unwrap();
    assert_eq!(client.ask("c", get("key-0")).await.status, Status::Success);
    assert!(process.usage().peak <= 18 * MIB as u64);
}

#[tokio::test]
async fn request_that_does_not_arrive_in_time_ends_its_connection_with_an_error() {
    let builder = Server::builder().transfer_time(Duration::from_millis(20));
    let server = RunningServer::secured("budget-late", builder).await;
    let mut client = server.client().await;
    client.create("c").await;
    let put = request(7, "c", put("k", "a value"));
    client.stream.write_all(&without_value(&put, 3)).await.unwrap();
    let late = client.next(put.context()).await.unwrap();
    assert_eq!((late.id, late.status), (7, Status::TimedOut));
    assert!(error(&late).contains("has not arrived within"), "{late:?}");
    assert_eq!(client.next(put.context()).await, None, "the connection is closed");
    // A client that has sent nothing has no timeout.
    let mut other = server.client().await;
    assert_eq!(other.ask("c", get("k")).await.status, Status::NotFound);
}

#[tokio::test]
async fn too_long_definition_is_refused_with_the_limit() {
    let (_server, mut client) = RunningServer::with_cache("budget-definition", "other").await;
    let text = format!("<local-cache><!--{}--></local-cache>", "x".repeat(DEFINITION_BYTES_MAX));
    let params = vec![("name".into(), "c".into()), ("configuration".into(), text.into())];
    let create = RequestBody::Task(task::Request::Exec("@@cache@create".into(), params));
    let refused = client.ask("", create).await;
    assert_eq!(refused.status, Status::ServerError);
    let text = error(&refused);
    assert!(text.contains(&format!("the limit is {DEFINITION_BYTES_MAX}")), "{text}");
    // A long definition within the limit is parsed concurrently with requests of other clients.
    let text = format!("<local-cache><!--{}--></local-cache>", "x".repeat(DEFINITION_BYTES_MAX / 2));
    let params = vec![("name".into(), "c".into()), ("configuration".into(), text.into())];
    let create = RequestBody::Task(task::Request::Exec("@@cache@create".into(), params));
    assert_eq!(client.ask("", create).await.status, Status::Success);
}

#[tokio::test]
async fn too_long_cache_name_is_refused() {
    let server = RunningServer::start("budget-name").await;
    let mut client = server.client().await;
    let name = "n".repeat(1_025);
    let refused = client.ask("", crate::client::exec("@@cache@create", &name)).await;
    assert!(error(&refused).contains("1025 bytes; the limit is 1024"), "{refused:?}");
}

#[tokio::test]
async fn schemas_above_the_common_limit_are_refused_and_others_stay() {
    let (_server, mut client) = RunningServer::with_cache("budget-schemas", "other").await;
    let fields: String = (1..=1_000).map(|nth| format!("optional int32 f{nth}={nth};")).collect();
    let few = format!("message A {{{fields}}}");
    // Empty statements: this schema alone would be accepted.
    let nearly_all = ";".repeat(SCHEMAS_PUNCTUATION_MAX - 500);
    for (key, value, is_done) in
        [("a.proto", &few, true), ("b.proto", &nearly_all, false), ("a.proto", &few, true)]
    {
        let value = value.clone().into();
        let to = map::Assignment { key: key.into(), expiration: Expiration::INFINITE, value };
        let put = client.ask("___protobuf_metadata", RequestBody::Map(map::Request::Put(to))).await;
        assert_eq!(put.status == Status::Success, is_done, "{key}: {put:?}");
        if !is_done {
            assert!(error(&put).contains(&format!("the limit is {SCHEMAS_PUNCTUATION_MAX}")), "{put:?}");
        }
    }
}

#[tokio::test]
async fn too_long_schema_is_refused() {
    let (_server, mut client) = RunningServer::with_cache("budget-schema", "other").await;
    for (length, is_done) in [(SCHEMA_BYTES_MAX + 1, false), (SCHEMA_BYTES_MAX, true)] {
        // A comment costs only its bytes.
        let schema = format!("//{}\n", "x".repeat(length - 3));
        let put = client.ask("___protobuf_metadata", put("a.proto", schema)).await;
        assert_eq!(put.status == Status::Success, is_done, "{length}: {put:?}");
        if !is_done {
            assert_eq!(error(&put), format!("a schema can have at most {SCHEMA_BYTES_MAX} bytes"));
        }
    }
}

#[tokio::test]
async fn filters_of_near_caches_are_bounded_per_connection_and_for_all() {
    let process = process(8);
    // The limit of all filters is 1 MiB.
    let (_server, mut client) = with_values("budget-filters", &process, 1).await;
    let add = |id: &'static str, bits| RequestBody::Listener(listener::Request::AddBloom(id.into(), bits));
    let refused = client.ask("c", add("huge", 64 * 1024 * 1024)).await;
    assert_eq!(refused.status, Status::ServerError);
    assert_eq!(client.ask("c", add("half", 5 * 1024 * 1024)).await.status, Status::Success);
    let refused = client.ask("c", add("other", 5 * 1024 * 1024)).await;
    assert!(error(&refused).contains("near_cache_filters has 655360 of 1048576 bytes"), "{refused:?}");
    let removal = RequestBody::Listener(listener::Request::Remove("half".into()));
    assert_eq!(client.ask("c", removal).await.status, Status::Success);
    assert_eq!(client.ask("c", add("other", 5 * 1024 * 1024)).await.status, Status::Success);
}
