//! Health and metrics in HTTP, next to Hot Rod clients on the same port.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use consort_hotrod::{Response, Status};
use consort_server::Role;
use consort_server::limits::CREDENTIALS_BYTES_MAX;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::authentication::users;
use crate::client::{Client, PATIENCE, RunningServer, get, put};

/// A response.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) code: u16,
    fields: BTreeMap<String, String>,
    pub(crate) content: String,
}

/// An HTTP client.
struct HttpClient(TcpStream);

impl HttpClient {
    async fn at(server: &RunningServer) -> Self {
        Self(TcpStream::connect(server.at).await.unwrap())
    }

    async fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.unwrap();
    }

    /// Returns the next response, with its content or without; `None` if the connection is closed.
    async fn response(&mut self, with_content: bool) -> Option<HttpResponse> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            if timeout(PATIENCE, self.0.read(&mut byte)).await.expect("an answer").unwrap_or(0) == 0 {
                assert!(head.is_empty(), "half a head: {head:?}");
                return None;
            }
            head.extend_from_slice(&byte);
        }
        let head = String::from_utf8(head).unwrap();
        let mut lines = head.trim_end().split("\r\n");
        let code = lines.next().unwrap().strip_prefix("HTTP/1.1 ").unwrap()[..3].parse().unwrap();
        let field = |line: &str| {
            let (name, value) = line.split_once(": ").unwrap();
            (name.to_ascii_lowercase(), value.to_owned())
        };
        let fields: BTreeMap<String, String> = lines.map(field).collect();
        let length: usize = fields["content-length"].parse().unwrap();
        let mut content = vec![0; if with_content { length } else { 0 }];
        timeout(PATIENCE, self.0.read_exact(&mut content)).await.expect("the content").unwrap();
        Some(HttpResponse { code, fields, content: String::from_utf8(content).unwrap() })
    }

    async fn get(&mut self, path: &str, fields: &str) -> HttpResponse {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n")).await;
        self.response(true).await.expect("an answer")
    }

    async fn is_closed(&mut self) -> bool {
        self.response(true).await.is_none()
    }
}

/// Sends a request on a new connection. Returns the response.
pub(crate) async fn ask(server: &RunningServer, path: &str, fields: &str) -> HttpResponse {
    HttpClient::at(server).await.get(path, fields).await
}

fn basic(name: &str, password: &str) -> String {
    format!("Authorization: Basic {}\r\n", STANDARD.encode(format!("{name}:{password}")))
}

/// Returns the value of a metric; the name includes the labels.
pub(crate) fn value(metrics: &str, name: &str) -> f64 {
    let lines = metrics.lines().filter_map(|line| line.rsplit_once(' '));
    let found: Vec<&str> = lines.filter(|(own, _)| *own == name).map(|(_, value)| value).collect();
    let [value] = found[..] else { panic!("{name}: {found:?} in\n{metrics}") };
    value.parse().unwrap()
}

#[tokio::test]
async fn health_is_served_under_all_its_paths() {
    let server = RunningServer::start("health").await;
    for path in [
        "/health",
        "/health?verbose",
        "/rest/v2/container/health/status",
        "/rest/v2/cache-managers/default/health/status",
    ] {
        let response = ask(&server, path, "").await;
        assert_eq!((response.code, &*response.content), (200, "HEALTHY"), "{path}");
        assert_eq!(response.fields["content-type"], "text/plain; charset=utf-8");
        assert!(response.fields["date"].ends_with(" GMT"));
    }
    for path in ["/health/live", "/health/ready", "/health/started"] {
        assert_eq!(ask(&server, path, "").await.code, 200, "{path}");
    }
    let mut client = server.client().await;
    client.create("c").await;
    let detail = ask(&server, "/rest/v2/container/health", "").await;
    assert_eq!(detail.fields["content-type"], "application/json");
    let detail: serde_json::Value = serde_json::from_str(&detail.content).unwrap();
    let cluster = &detail["cluster_health"];
    assert_eq!((&cluster["cluster_name"], &cluster["number_of_nodes"]), (&"health".into(), &1.into()));
    assert_eq!(cluster["node_names"].as_array().unwrap().len(), 1);
    assert_eq!(detail["cache_health"], serde_json::json!([{"status": "HEALTHY", "cache_name": "c"}]));
}

#[tokio::test]
async fn connection_stays_open_as_long_as_the_client_wants() {
    let server = RunningServer::start("kept").await;
    let mut browser = HttpClient::at(&server).await;
    for _ in 0..3 {
        assert_eq!(browser.get("/health", "").await.content, "HEALTHY");
    }
    // Pipelined requests, one of them HEAD.
    browser
        .send(
            "HEAD /health HTTP/1.1\r\nHost: a\r\n\r\nGET /none HTTP/1.1\r\nHost: a\r\n\r\n\
             GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\nGET /health HTTP/1.1\r\nHost: a\r\n\r\n",
        )
        .await;
    let head = browser.response(false).await.unwrap();
    assert_eq!((head.code, &*head.fields["content-length"]), (200, "7"));
    assert_eq!(browser.response(true).await.unwrap().code, 404);
    let last = browser.response(true).await.unwrap();
    assert_eq!((last.code, &*last.fields["connection"]), (200, "close"));
    assert!(browser.is_closed().await, "what comes after the last one is not answered");
    // And a request in pieces.
    let mut slow = HttpClient::at(&server).await;
    for piece in ["G", "ET /hea", "lth HTTP/1.0\r", "\n\r", "\n"] {
        slow.send(piece).await;
    }
    assert_eq!(slow.response(true).await.unwrap().content, "HEALTHY");
    assert!(slow.is_closed().await);
}

#[tokio::test]
async fn unknown_path_or_unreadable_request_is_refused_without_harm_to_others() {
    let (server, mut client) = RunningServer::with_cache("nonsense-in-http", "c").await;
    let mut browser = HttpClient::at(&server).await;
    assert_eq!(browser.get("/", "").await.code, 404);
    assert_eq!(browser.get("/rest/v2/caches/c", "").await.code, 404);
    for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
        let mut browser = HttpClient::at(&server).await;
        let body = "x".repeat(100_000);
        browser
            .send(&format!("{method} /health HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n"))
            .await;
        // The server may close the connection before the body is sent.
        let _ = browser.0.write_all(body.as_bytes()).await;
        let response = browser.response(true).await.unwrap();
        assert_eq!((response.code, &*response.fields["allow"]), (405, "GET, HEAD"), "{method}");
        assert!(browser.is_closed().await);
    }
    for (text, code) in [
        ("GET /health HTTP/1.1\r\n\r\n".to_owned(), 400),
        ("GET /health HTTP/2.0\r\nHost: a\r\n\r\n".to_owned(), 505),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), 505),
        ("GETTING\u{0} \r\n\r\n".to_owned(), 400),
        (format!("GET /{}", "a".repeat(CREDENTIALS_BYTES_MAX)), 431),
        (format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(100)), 431),
    ] {
        let mut browser = HttpClient::at(&server).await;
        browser.send(&text).await;
        assert_eq!(browser.response(true).await.unwrap().code, code, "{text:.40}");
        assert!(browser.is_closed().await, "{text:.40}");
    }
    assert_eq!(client.ask("c", put("k", "v")).await.status, Status::Success);
}

#[tokio::test]
async fn metrics_count_requests_of_clients() {
    let (server, mut client) = RunningServer::with_cache("metrics", "c").await;
    client.ask("c", put("k", "v")).await;
    for key in ["k", "k", "none"] {
        client.ask("c", get(key)).await;
    }
    let refused: Response = client.ask("missing", get("k")).await;
    assert!(refused.status.is_error());
    let response = ask(&server, "/metrics", "").await;
    assert_eq!(response.fields["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    let metrics = &*response.content;
    for (name, wanted) in [
        ("consort_cache_hits_total{cache=\"c\"}", 2.0),
        ("consort_cache_misses_total{cache=\"c\"}", 1.0),
        ("consort_cache_stores_total{cache=\"c\"}", 1.0),
        ("consort_cache_entries{cache=\"c\"}", 1.0),
        ("consort_cache_members{cache=\"c\"}", 1.0),
        ("consort_cache_available{cache=\"c\"}", 1.0),
        ("consort_cache_rebalancing{cache=\"c\"}", 0.0),
        ("consort_request_duration_seconds_count{class=\"read\"}", 4.0),
        ("consort_request_duration_seconds_bucket{class=\"read\",le=\"+Inf\"}", 4.0),
        ("consort_request_duration_seconds_bucket{class=\"read\",le=\"10.0\"}", 4.0),
        ("consort_request_duration_seconds_count{class=\"write\"}", 1.0),
        // The creation of the cache.
        ("consort_request_duration_seconds_count{class=\"other\"}", 1.0),
        ("consort_requests_total{operation=\"GET\"}", 4.0),
        ("consort_requests_total{operation=\"PUT\"}", 1.0),
        ("consort_errors_total", 1.0),
        ("consort_connections", 2.0),
        ("consort_connections_accepted_total", 2.0),
        ("consort_http_requests_total", 1.0),
        ("consort_cluster_members", 1.0),
        ("consort_cluster_coordinator", 1.0),
    ] {
        assert!((value(metrics, name) - wanted).abs() < f64::EPSILON, "{name}: {}", value(metrics, name));
    }
    let received = value(metrics, "consort_received_bytes_total");
    assert!(received > 100.0 && value(metrics, "consort_sent_bytes_total") > 50.0);
    assert!(value(metrics, "process_resident_memory_bytes") > 1e6);
    // Every value is below its family's two lines, once.
    let mut families = Vec::new();
    for line in metrics.lines() {
        match line.strip_prefix("# TYPE ") {
            Some(family) => families.push(family.split_once(' ').unwrap().0),
            None if line.starts_with('#') => assert!(line.starts_with("# HELP "), "{line}"),
            None => {
                let name = line.split(['{', ' ']).next().unwrap();
                let of = ["_bucket", "_sum", "_count"].into_iter().find_map(|end| name.strip_suffix(end));
                let is_of = |family: &&str| *family == name || of == Some(*family);
                assert!(families.last().is_some_and(is_of), "{line}");
            }
        }
    }
    let count = families.len();
    families.sort_unstable();
    families.dedup();
    assert_eq!(families.len(), count, "a family is begun twice");
    let open =
        ask(&server, "/metrics", "Accept: application/openmetrics-text;version=1.0.0;q=0.9, */*;q=0.1\r\n");
    let open = open.await;
    assert_eq!(open.fields["content-type"], "application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert!(
        open.content.contains("# TYPE consort_cache_hits counter\n") && open.content.ends_with("\n# EOF\n")
    );
    assert!(value(&open.content, "consort_received_bytes_total") >= received);
    drop(client);
}

#[tokio::test]
async fn metrics_need_authentication_and_health_does_not() {
    let server = RunningServer::secured("watched", users()).await;
    for path in ["/health", "/health/live", "/health/ready", "/rest/v2/container/health/status"] {
        assert_eq!(ask(&server, path, "").await.code, 200, "{path}");
    }
    for path in ["/metrics", "/rest/v2/container/health"] {
        let response = ask(&server, path, "").await;
        assert_eq!(response.code, 401, "{path}");
        assert_eq!(response.fields["www-authenticate"], "Basic realm=\"consort\", charset=\"UTF-8\"");
        // All roles have the MONITOR permission.
        for role in Role::ALL {
            assert_eq!(
                ask(&server, path, &basic(role.name(), role.name())).await.code,
                200,
                "{path}: {role}"
            );
        }
        for (name, password) in [("alice", "guess"), ("nobody", "wonderland")] {
            let mut browser = HttpClient::at(&server).await;
            let response = browser.get(path, &basic(name, password)).await;
            assert_eq!(
                (response.code, &*response.content),
                (401, "ISPN006024: Invalid credentials\n"),
                "{path}: {name}"
            );
            assert!(browser.is_closed().await, "a failed login ends the connection");
        }
        for nothing in ["Basic !", "Basic YQ==", "Negotiate abc", "Bearer abc"] {
            let response = ask(&server, path, &format!("Authorization: {nothing}\r\n")).await;
            assert_eq!(response.code, 401, "{path}: {nothing}");
        }
    }
    let metrics = ask(&server, "/metrics", &basic("monitor", "monitor")).await.content;
    // Two wrong passwords and an invalid token for each of the two resources.
    assert!((value(&metrics, "consort_rejections_total") - 6.0).abs() < f64::EPSILON, "{metrics}");
    let open = RunningServer::secured("watched by all", users().public_metrics()).await;
    assert_eq!(ask(&open, "/metrics", "").await.code, 200);
    assert_eq!(ask(&open, "/rest/v2/container/health", "").await.code, 401);
}

#[tokio::test]
async fn unauthenticated_http_connection_ends_after_its_timeout() {
    let patience = Duration::from_millis(400);
    let server = RunningServer::secured("http patience", users().handshake_timeout(patience)).await;
    let begun = Instant::now();
    let mut half = HttpClient::at(&server).await;
    half.send("GET /health HTTP/1.1\r\nHost:").await;
    // Further requests do not extend the time.
    let mut asks = HttpClient::at(&server).await;
    let asking = async {
        loop {
            let request = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n";
            if asks.0.write_all(request).await.is_err() || asks.response(true).await.is_none() {
                break;
            }
        }
    };
    timeout(PATIENCE, async { tokio::join!(half.is_closed(), asking) }).await.expect("they are closed");
    assert!(begun.elapsed() >= patience);
    // The connection of an authenticated client stays open.
    let mut known = HttpClient::at(&server).await;
    assert_eq!(known.get("/metrics", &basic("monitor", "monitor")).await.code, 200);
    let mut silent = HttpClient::at(&server).await;
    assert!(silent.is_closed().await, "after its time");
    assert_eq!(known.get("/health", "").await.code, 200);
}

#[tokio::test]
async fn stopping_server_does_not_wait_for_http_clients() {
    let server = RunningServer::start("watched to its end").await;
    let mut browser = HttpClient::at(&server).await;
    assert_eq!(browser.get("/health/ready", "").await.code, 200);
    let mut half = HttpClient::at(&server).await;
    half.send("GET /metr").await;
    let mut client = Client::connect(server.at).await;
    client.create("c").await;
    server.end.send(()).unwrap();
    timeout(PATIENCE, server.serving).await.expect("it ends").unwrap();
    assert!(browser.is_closed().await && half.is_closed().await);
}

#[tokio::test]
async fn health_in_detail_lists_the_members() {
    let [first, second, third] = RunningServer::three("watched cluster").await;
    let mut client = first.client().await;
    client.create("c").await;
    let until = async |server: &RunningServer, health: &str, members: u64| {
        timeout(PATIENCE, async {
            loop {
                let detail = ask(server, "/rest/v2/container/health", "").await.content;
                let detail: serde_json::Value = serde_json::from_str(&detail).unwrap();
                let cluster = &detail["cluster_health"];
                if cluster["health_status"] == health && cluster["number_of_nodes"] == members {
                    return detail;
                }
                tokio::task::yield_now().await;
            }
        })
        .await
        .expect("that it becomes so")
    };
    until(&third, "HEALTHY", 3).await;
    let metrics = ask(&first, "/metrics", "").await.content;
    assert!((value(&metrics, "consort_cluster_members") - 3.0).abs() < f64::EPSILON, "{metrics}");
    third.end.send(()).unwrap();
    third.serving.await.unwrap();
    let detail = until(&first, "HEALTHY", 2).await;
    assert_eq!(detail["cache_health"], serde_json::json!([{"status": "HEALTHY", "cache_name": "c"}]));
    assert_eq!(ask(&second, "/health", "").await.content, "HEALTHY");
    // A dropped server leaves the cluster, and one of two servers alone is degraded.
    second.kill().await;
    let detail = until(&first, "DEGRADED", 1).await;
    assert_eq!(detail["cache_health"], serde_json::json!([{"status": "DEGRADED", "cache_name": "c"}]));
}
