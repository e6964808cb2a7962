//! Errors of requests with many keys name the failed key.

use bytes::Bytes;
use consort_hotrod::ops::bulk;
use consort_hotrod::{Expiration, MediaType, RequestBody, Status};
use tokio::time::timeout;

use crate::client::{PATIENCE, RunningServer, error, put, request};

fn put_all(entries: &[(&'static str, &[u8])]) -> RequestBody {
    let entries = entries.iter().map(|(key, value)| ((*key).into(), Bytes::copy_from_slice(value)));
    RequestBody::Bulk(bulk::Request::PutAll(Expiration::INFINITE, entries.collect()))
}

fn get_all(keys: &[&'static str]) -> RequestBody {
    RequestBody::Bulk(bulk::Request::GetAll(keys.iter().map(|key| (*key).into()).collect()))
}

#[tokio::test]
async fn error_of_put_all_names_the_failed_key() {
    let server = RunningServer::start("puts-of-many").await;
    let mut client = server.client().await;
    let full = r#"{"distributed-cache": {"memory": {"max-size": "10000", "when-full": "EXCEPTION"}}}"#;
    client.create_with("full", full).await;
    let put = put_all(&[("b", b"1"), ("user:7", &[7; 20_000]), ("a", b"1")]);
    let answer = client.ask("full", put).await;
    assert_eq!(answer.status, Status::ServerError);
    let message = error(&answer);
    assert!(
        message.contains("ContainerFullException: key 1 of the request, \"user:7\": ISPN000514: memory of "),
        "{message}"
    );
    assert!(message.contains(" is full: the limit is 10000 bytes, "), "{message}");
}

/// Independent of the order in which the server reads, and of repeated keys.
#[tokio::test]
async fn error_of_get_all_names_the_failed_key() {
    let [first, second] = RunningServer::two("gets-of-many").await;
    let mut client = first.client().await;
    let deny = r#"{"replicated-cache": {"partition-handling": {"when-split": "DENY_READ_WRITES"}}}"#;
    client.create_with("c", deny).await;
    for key in ["a", "z"] {
        assert_eq!(client.ask("c", put(key, "v")).await.status, Status::Success);
    }
    second.kill().await;
    let refused = async {
        loop {
            let answer = client.ask("c", get_all(&["z", "z", "a"])).await;
            if answer.status == Status::ServerError {
                return answer;
            }
            tokio::task::yield_now().await;
        }
    };
    let answer = timeout(PATIENCE, refused).await.expect("half is no majority");
    let message = error(&answer);
    assert!(
        message.contains("AvailabilityException: key 2 of the request, \"a\": ISPN000306: "),
        "{message}"
    );
    assert!(message.contains(": cache is degraded: owners of segment "), "{message}");
}

#[tokio::test]
async fn conversion_error_of_put_all_names_the_key() {
    let server = RunningServer::start("conversions-of-many").await;
    let mut client = server.client().await;
    let json = r#"{"local-cache": {"encoding": {"key": {"media-type": "text/plain"},
        "value": {"media-type": "application/json"}}}}"#;
    client.create_with("c", json).await;
    let mut put = request(1, "c", put_all(&[("good", b"{}"), ("bad", b"{")]));
    (put.header.key_type, put.header.value_type) = (MediaType::TEXT, MediaType::TEXT);
    let answer = client.send_request(put).await;
    assert_eq!(answer.status, Status::ServerError);
    assert!(error(&answer).starts_with("key 1 of the request, \"bad\": "), "{}", error(&answer));
}
