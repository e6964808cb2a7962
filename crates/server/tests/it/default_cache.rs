//! Requests that name no cache.

use consort_hotrod::ops::{map, server};
use consort_hotrod::{Intelligence, Request, RequestBody, ResponseBody, Status};
use consort_server::{Server, ServerError};

use crate::client::{Client, RunningServer, error, exec, get, put, request};

async fn names(client: &mut Client) -> String {
    let response = client.ask("", exec("@@cache@names", "")).await;
    let ResponseBody::Result(names) = &response.body else { panic!("{response:?}") };
    String::from_utf8_lossy(names).into_owned()
}

fn ping() -> Request {
    let mut ping = request(1, "", RequestBody::Server(server::Request::Ping));
    ping.header.intelligence = Intelligence::Hash;
    ping
}

fn found(value: &'static str) -> ResponseBody {
    ResponseBody::Map(map::Response::Value(value.into()))
}

#[tokio::test]
async fn request_without_a_cache_uses_the_default_cache_of_all_servers() {
    let [first, second] = RunningServer::two("default-cache").await;
    let (mut client, mut other) = (first.client().await, second.client().await);
    let pong = client.send_request(ping()).await;
    assert_eq!((pong.status, pong.topology), (Status::Success, None), "a ping creates no cache");
    assert_eq!(names(&mut client).await, r#"["___protobuf_metadata"]"#);

    assert_eq!(client.ask("", put("k", "v")).await.status, Status::Success);
    assert_eq!(names(&mut client).await, r#"["___protobuf_metadata","default"]"#);
    assert_eq!(other.ask("default", get("k")).await.body, found("v"));
    assert_eq!(other.ask("", get("k")).await.body, found("v"));
    let topology = other.send_request(ping()).await.topology.expect("a topology");
    assert_eq!(topology.servers.len(), 2);

    let removed = client.ask("", exec("@@cache@remove", "default")).await;
    assert_eq!(removed.status, Status::Success);
    assert_eq!(client.ask("", get("k")).await.status, Status::NotFound, "it is created again");
}

#[tokio::test]
async fn existing_cache_can_be_the_default_cache() {
    let server = RunningServer::secured("default-cache-named", Server::builder().default_cache("shop")).await;
    let mut client = server.client().await;
    client.create_with("shop", "<local-cache/>").await;
    assert_eq!(client.ask("shop", put("k", "v")).await.status, Status::Success);
    assert_eq!(client.ask("", get("k")).await.body, found("v"));
    assert_eq!(names(&mut client).await, r#"["___protobuf_metadata","shop"]"#);
}

#[tokio::test]
async fn without_a_default_cache_requests_have_to_name_one() {
    let server = RunningServer::secured("no-default-cache", Server::builder().no_default_cache()).await;
    let mut client = server.client().await;
    assert_eq!(client.send_request(ping()).await.status, Status::Success);
    let response = client.ask("", get("k")).await;
    assert_eq!(response.status, Status::ParseError);
    assert_eq!(
        error(&response),
        "org.infinispan.server.hotrod.CacheNotFoundException: Default cache requested but not configured"
    );
    assert_eq!(names(&mut client).await, r#"["___protobuf_metadata"]"#);
}

#[tokio::test]
async fn internal_cache_cannot_be_the_default_cache() {
    let builder = Server::builder().default_cache("___protobuf_metadata");
    let refused = RunningServer::refused("wrong-default-cache", builder).await;
    assert!(matches!(refused, ServerError::DefaultCache(_)), "{refused}");
}
