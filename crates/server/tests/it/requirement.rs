//! Servers with users and servers without users in one cluster.

use consort_hotrod::{RequestBody, Status, ops};
use consort_server::{Server, ServerError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use crate::authentication::users;
use crate::client::{Client, PATIENCE, RunningServer, error, get, put};

async fn http(server: &RunningServer, path: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(server.at).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    response
}

/// Waits until the readiness probe has this status.
async fn until_ready(server: &RunningServer, code: &str) -> String {
    let looked = async {
        loop {
            let response = http(server, "/health/ready").await;
            if response.starts_with(&format!("HTTP/1.1 {code}")) {
                return response;
            }
            sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, looked).await.expect(code)
}

async fn ends(mut client: Client) {
    let ping = crate::client::request(9, "", RequestBody::Server(ops::server::Request::Ping));
    assert_eq!(client.next(ping.context()).await, None);
}

#[tokio::test]
async fn server_without_users_does_not_start_in_a_cluster_with_users() {
    let first = RunningServer::secured("weaker-start", users()).await;
    let refused = RunningServer::refused("weaker-start", Server::builder()).await;
    assert!(matches!(refused, ServerError::WeakerAuthentication), "{refused}");
    until_ready(&first, "200").await;
}

#[tokio::test]
async fn server_without_users_refuses_clients_while_another_server_has_users() {
    let weaker = RunningServer::secured("weaker-later", Server::builder()).await;
    let mut client = weaker.client().await;
    client.create("c").await;
    assert_eq!(client.ask("c", put("k", "v")).await.status, Status::Success);
    let stronger = RunningServer::joining("weaker-later", users()).await;
    // An open connection ends, independent of its requests.
    ends(client).await;
    let not_ready = until_ready(&weaker, "503").await;
    assert!(not_ready.contains("other servers of its cluster require authentication"), "{not_ready}");
    assert!(http(&weaker, "/metrics").await.starts_with("HTTP/1.1 403"));
    for body in crate::roles::every_operation() {
        let refused = weaker.client().await.ask("c", body).await;
        assert_eq!(refused.status, Status::ServerError);
        assert!(
            error(&refused).contains("other servers of its cluster require authentication"),
            "{refused:?}"
        );
    }
    stronger.end.send(()).unwrap();
    stronger.serving.await.unwrap();
    until_ready(&weaker, "200").await;
    assert_eq!(weaker.client().await.ask("c", get("k")).await.status, Status::Success);
}

#[tokio::test]
async fn server_that_may_require_less_serves_every_client() {
    let _stronger = RunningServer::secured("weaker-allowed", users()).await;
    let weaker =
        RunningServer::joining("weaker-allowed", Server::builder().allow_weaker_authentication()).await;
    let mut client = weaker.client().await;
    client.create("c").await;
    assert_eq!(client.ask("c", put("k", "v")).await.status, Status::Success);
    until_ready(&weaker, "200").await;
}
