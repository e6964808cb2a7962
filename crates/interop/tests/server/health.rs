//! The health that servers report while a cluster rebalances, and while a restarted server waits for a missing one.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use consort_client::Client;
use consort_interop::{Tool, eventually, in_own_network};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::directory::Directory;
use super::{SERVER, done};

const SERVERS: [(&str, u16); 3] = [("A", 11222), ("B", 11223), ("C", 11224)];

/// Entries of a cache that takes a while to rebalance.
const ENTRIES: u32 = 300;

const VALUE_BYTES: usize = 256 << 10;

fn start((name, port): (&str, u16), more: &[&str]) -> Tool {
    let (name, port) = (format!("--name={name}"), format!("--port={port}"));
    let hosts = "-Djgroups.tcpping.initial_hosts=127.0.0.1[7800]";
    let own =
        ["server", "--cluster=health", "--bind=127.0.0.1", "-Djgroups.tcp.port_range=5", hosts, &name, &port];
    Tool::consort_with_log(&[&own[..], more].concat())
}

/// The code and the body of a response; nothing if the server does not listen yet.
async fn response(port: u16, path: &str) -> Option<(String, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await.ok()?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await.ok()?;
    let (head, body) = response.split_once("\r\n\r\n")?;
    let code = head.split(' ').nth(1)?;
    Some((code.to_owned(), body.to_owned()))
}

async fn health(port: u16) -> String {
    response(port, "/health").await.map(|(_, body)| body).unwrap_or_default()
}

async fn code(port: u16, path: &str) -> String {
    response(port, path).await.map(|(code, _)| code).unwrap_or_default()
}

#[test]
fn a_server_is_healthy_rebalancing_and_ready_while_entries_go_to_a_new_one() {
    let name = "health::a_server_is_healthy_rebalancing_and_ready_while_entries_go_to_a_new_one";
    in_own_network(name, async {
        let [first, second, third] = SERVERS;
        let mut servers = Vec::new();
        for which in [first, second] {
            let mut server = start(which, &[]);
            server.wait_for(&["Hot Rod on"]);
            servers.push(server);
        }
        let client = Client::connect(&format!("hotrod://{SERVER}")).await.expect("a client");
        client.administration().create("shop", r#"{"distributed-cache": {}}"#).await.expect("a cache");
        let cache = client.raw("shop");
        for number in 0..ENTRIES {
            let value = vec![number as u8; VALUE_BYTES];
            cache.put(&number.to_be_bytes()[..], &value[..]).await.expect("a write");
        }
        eventually("the first server is healthy", async || health(first.1).await == "HEALTHY").await;

        // All health responses of the first server, requested without a pause.
        let seen = Arc::new(Mutex::new(BTreeSet::new()));
        let asking = tokio::spawn({
            let seen = seen.clone();
            async move {
                loop {
                    let state = (health(first.1).await, code(first.1, "/health/ready").await);
                    seen.lock().expect("what was seen").insert(state);
                }
            }
        });
        let mut server = start(third, &[]);
        server.wait_for(&["Hot Rod on"]);
        servers.push(server);
        for (name, port) in SERVERS {
            eventually(&format!("{name} is healthy"), async || health(port).await == "HEALTHY").await;
        }
        asking.abort();
        let seen: Vec<(String, String)> = seen.lock().expect("what was seen").iter().cloned().collect();
        let expected = ["HEALTHY", "HEALTHY_REBALANCING"].map(|health| (health.to_owned(), "200".to_owned()));
        assert_eq!(seen, expected);
        client.close().await;
    });
}

#[test]
fn servers_that_wait_for_a_missing_one_after_a_restart_are_initializing_and_not_ready() {
    let name = "health::servers_that_wait_for_a_missing_one_after_a_restart_are_initializing_and_not_ready";
    in_own_network(name, async {
        let directory = Directory::new("health");
        let begin = |(name, port): (&str, u16)| start((name, port), &["--data", &directory.of(name)]);
        let mut servers: Vec<Tool> = Vec::new();
        for which in SERVERS {
            let mut server = begin(which);
            server.wait_for(&["Hot Rod on"]);
            servers.push(server);
        }
        done(&["create", "shop", r#"{"distributed-cache": {"persistence": {"file-store": {}}}}"#]);
        done(&["put", "shop", "apples", "3"]);
        for mut server in servers {
            server.signal("KILL");
            server.wait_for_death();
        }

        let [first, second, third] = SERVERS;
        let mut servers: Vec<Tool> = [first, second].map(begin).into();
        for (server, (name, port)) in servers.iter_mut().zip([first, second]) {
            // By then all servers that are there have found each other.
            server.wait_for(&["not serving yet, after 5 s"]);
            assert_eq!(health(port).await, "INITIALIZING", "{name}");
            for (path, expected) in [("live", "200"), ("started", "503"), ("ready", "503")] {
                assert_eq!(code(port, &format!("/health/{path}")).await, expected, "{name}: {path}");
            }
        }
        servers.push(begin(third));
        for (server, (name, port)) in servers.iter_mut().zip(SERVERS) {
            server.wait_for(&["Hot Rod on"]);
            eventually(&format!("{name} is healthy"), async || health(port).await == "HEALTHY").await;
            assert_eq!(code(port, "/health/ready").await, "200", "{name}");
            assert_eq!(done(&["--at", &format!("127.0.0.1:{port}"), "get", "shop", "apples"]).0, "3");
        }
    });
}
