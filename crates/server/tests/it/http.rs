//! Health and metrics in HTTP, beside clients of Hot Rod on the same port.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use consort_hotrod::{Response, Status};
use consort_server::Role;
use consort_server::bounds::CREDENTIALS_BYTES_MAX;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::authentication::users;
use crate::client::{Client, PATIENCE, Running, get, put};

/// An answer.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) code: u16,
    fields: BTreeMap<String, String>,
    pub(crate) content: String,
}

/// A client that speaks HTTP.
struct Browser(TcpStream);

impl Browser {
    async fn at(server: &Running) -> Self {
        Self(TcpStream::connect(server.at).await.unwrap())
    }

    async fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.unwrap();
    }

    /// The next answer, of which only the head was asked for or all; nothing if the connection is closed.
    async fn told(&mut self, with_content: bool) -> Option<Told> {
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
        Some(Told { code, fields, content: String::from_utf8(content).unwrap() })
    }

    async fn get(&mut self, path: &str, fields: &str) -> Told {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n")).await;
        self.told(true).await.expect("an answer")
    }

    async fn is_closed(&mut self) -> bool {
        self.told(true).await.is_none()
    }
}

/// One request on a connection of its own.
pub(crate) async fn ask(server: &Running, path: &str, fields: &str) -> Told {
    Browser::at(server).await.get(path, fields).await
}

fn basic(name: &str, password: &str) -> String {
    format!("Authorization: Basic {}\r\n", STANDARD.encode(format!("{name}:{password}")))
}

/// The value of a metric; labels belong to its name.
pub(crate) fn value(metrics: &str, name: &str) -> f64 {
    let lines = metrics.lines().filter_map(|line| line.rsplit_once(' '));
    let found: Vec<&str> = lines.filter(|(own, _)| *own == name).map(|(_, value)| value).collect();
    let [value] = found[..] else { panic!("{name}: {found:?} in\n{metrics}") };
    value.parse().unwrap()
}

#[tokio::test]
async fn health_is_told_by_all_its_names() {
    let server = Running::start("health").await;
    for path in [
        "/health",
        "/health?verbose",
        "/rest/v2/container/health/status",
        "/rest/v2/cache-managers/default/health/status",
    ] {
        let told = ask(&server, path, "").await;
        assert_eq!((told.code, &*told.content), (200, "HEALTHY"), "{path}");
        assert_eq!(told.fields["content-type"], "text/plain; charset=utf-8");
        assert!(told.fields["date"].ends_with(" GMT"));
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
async fn a_connection_is_used_as_long_as_its_client_wants() {
    let server = Running::start("kept").await;
    let mut browser = Browser::at(&server).await;
    for _ in 0..3 {
        assert_eq!(browser.get("/health", "").await.content, "HEALTHY");
    }
    // Several that come together, and one of which only the head is wanted.
    browser
        .send(
            "HEAD /health HTTP/1.1\r\nHost: a\r\n\r\nGET /none HTTP/1.1\r\nHost: a\r\n\r\n\
             GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\nGET /health HTTP/1.1\r\nHost: a\r\n\r\n",
        )
        .await;
    let head = browser.told(false).await.unwrap();
    assert_eq!((head.code, &*head.fields["content-length"]), (200, "7"));
    assert_eq!(browser.told(true).await.unwrap().code, 404);
    let last = browser.told(true).await.unwrap();
    assert_eq!((last.code, &*last.fields["connection"]), (200, "close"));
    assert!(browser.is_closed().await, "what comes after the last one is not answered");
    // And in pieces.
    let mut slow = Browser::at(&server).await;
    for piece in ["G", "ET /hea", "lth HTTP/1.0\r", "\n\r", "\n"] {
        slow.send(piece).await;
    }
    assert_eq!(slow.told(true).await.unwrap().content, "HEALTHY");
    assert!(slow.is_closed().await);
}

#[tokio::test]
async fn what_is_not_there_or_cannot_be_read_is_told_and_hurts_nobody() {
    let (server, mut client) = Running::with_cache("nonsense-in-http", "c").await;
    let mut browser = Browser::at(&server).await;
    assert_eq!(browser.get("/", "").await.code, 404);
    assert_eq!(browser.get("/rest/v2/caches/c", "").await.code, 404);
    for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
        let mut browser = Browser::at(&server).await;
        let body = "x".repeat(100_000);
        browser
            .send(&format!("{method} /health HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n"))
            .await;
        // The body may be cut off.
        let _ = browser.0.write_all(body.as_bytes()).await;
        let told = browser.told(true).await.unwrap();
        assert_eq!((told.code, &*told.fields["allow"]), (405, "GET, HEAD"), "{method}");
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
        let mut browser = Browser::at(&server).await;
        browser.send(&text).await;
        assert_eq!(browser.told(true).await.unwrap().code, code, "{text:.40}");
        assert!(browser.is_closed().await, "{text:.40}");
    }
    assert_eq!(client.ask("c", put("k", "v")).await.status, Status::Success);
}

#[tokio::test]
async fn metrics_tell_what_clients_have_done() {
    let (server, mut client) = Running::with_cache("metrics", "c").await;
    client.ask("c", put("k", "v")).await;
    for key in ["k", "k", "none"] {
        client.ask("c", get(key)).await;
    }
    let refused: Response = client.ask("missing", get("k")).await;
    assert!(refused.status.is_error());
    let told = ask(&server, "/metrics", "").await;
    assert_eq!(told.fields["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    let metrics = &*told.content;
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
        // The cache was made.
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
    // Every value stands below its family's two lines, once.
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
async fn with_users_health_is_for_everybody_and_metrics_are_not() {
    let server = Running::secured("watched", users()).await;
    for path in ["/health", "/health/live", "/health/ready", "/rest/v2/container/health/status"] {
        assert_eq!(ask(&server, path, "").await.code, 200, "{path}");
    }
    for path in ["/metrics", "/rest/v2/container/health"] {
        let told = ask(&server, path, "").await;
        assert_eq!(told.code, 401, "{path}");
        assert_eq!(told.fields["www-authenticate"], "Basic realm=\"consort\", charset=\"UTF-8\"");
        // All roles may see how things are.
        for role in Role::ALL {
            assert_eq!(
                ask(&server, path, &basic(role.name(), role.name())).await.code,
                200,
                "{path}: {role}"
            );
        }
        for (name, password) in [("alice", "guess"), ("nobody", "wonderland")] {
            let mut browser = Browser::at(&server).await;
            let told = browser.get(path, &basic(name, password)).await;
            assert_eq!(
                (told.code, &*told.content),
                (401, "ISPN006024: Invalid credentials\n"),
                "{path}: {name}"
            );
            assert!(browser.is_closed().await, "who guesses has to come again");
        }
        for nothing in ["Basic !", "Basic YQ==", "Negotiate abc", "Bearer abc"] {
            let told = ask(&server, path, &format!("Authorization: {nothing}\r\n")).await;
            assert_eq!(told.code, 401, "{path}: {nothing}");
        }
    }
    let metrics = ask(&server, "/metrics", &basic("monitor", "monitor")).await.content;
    // Two wrong ones and a token that is none for each of the two.
    assert!((value(&metrics, "consort_rejections_total") - 6.0).abs() < f64::EPSILON, "{metrics}");
    let open = Running::secured("watched by all", users().open_metrics()).await;
    assert_eq!(ask(&open, "/metrics", "").await.code, 200);
    assert_eq!(ask(&open, "/rest/v2/container/health", "").await.code, 401);
}

#[tokio::test]
async fn a_stranger_in_http_is_not_waited_for() {
    let patience = Duration::from_millis(400);
    let server = Running::secured("http patience", users().patience(patience)).await;
    let begun = Instant::now();
    let mut half = Browser::at(&server).await;
    half.send("GET /health HTTP/1.1\r\nHost:").await;
    // Asking again is no way to stay.
    let mut asks = Browser::at(&server).await;
    let asking = async {
        loop {
            let request = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n";
            if asks.0.write_all(request).await.is_err() || asks.told(true).await.is_none() {
                break;
            }
        }
    };
    timeout(PATIENCE, async { tokio::join!(half.is_closed(), asking) }).await.expect("they are closed");
    assert!(begun.elapsed() >= patience);
    // Who has shown who it is stays.
    let mut known = Browser::at(&server).await;
    assert_eq!(known.get("/metrics", &basic("monitor", "monitor")).await.code, 200);
    let mut silent = Browser::at(&server).await;
    assert!(silent.is_closed().await, "after its time");
    assert_eq!(known.get("/health", "").await.code, 200);
}

#[tokio::test]
async fn a_server_that_ends_does_not_wait_for_those_who_watch_it() {
    let server = Running::start("watched to its end").await;
    let mut browser = Browser::at(&server).await;
    assert_eq!(browser.get("/health/ready", "").await.code, 200);
    let mut half = Browser::at(&server).await;
    half.send("GET /metr").await;
    let mut client = Client::connect(server.at).await;
    client.create("c").await;
    server.end.send(()).unwrap();
    timeout(PATIENCE, server.serving).await.expect("it ends").unwrap();
    assert!(browser.is_closed().await && half.is_closed().await);
}

#[tokio::test]
async fn a_cluster_tells_who_is_there() {
    let [first, second, third] = Running::three("watched cluster").await;
    let mut client = first.client().await;
    client.create("c").await;
    let until = async |server: &Running, health: &str, members: u64| {
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
    // A server that is dropped is no member any more, and one of two alone does not go on.
    second.kill().await;
    let detail = until(&first, "DEGRADED", 1).await;
    assert_eq!(detail["cache_health"], serde_json::json!([{"status": "DEGRADED", "cache_name": "c"}]));
}
