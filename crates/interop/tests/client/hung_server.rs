//! A server that hangs (SIGSTOP): its sockets stay open, and nothing comes from it.

use std::path::{Path, PathBuf};

use consort_client::Client;
use consort_interop::{Tool, eventually, in_own_network};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::cluster::consort_with;
use crate::feature_matrix;

/// More than one for each segment owner.
const KEYS: u64 = 200;

async fn health(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("a connection");
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await.expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    answer.split_once("\r\n\r\n").expect("a head").1.to_owned()
}

/// A server that excludes no silent member for 600 s: that would let reads go on, too. Its stack is without FD_SOCK2, which
/// suspects a member that is stopped while it connects to it.
fn patient(name: &str, port: u16, config: &Path) -> Tool {
    let config = format!("--config={}", config.display());
    let detection = ["-Dconsort.suspect_after=600s", "-Dconsort.heartbeat_interval=1s"];
    consort_with(name, port, &[&config, detection[0], detection[1]])
}

/// The stock stack without FD_SOCK2, in a file.
fn without_fd_sock2() -> PathBuf {
    let (_, stock) = consort_conf::STOCK.iter().find(|(name, _)| *name == "tcp.xml").expect("a stock stack");
    assert!(stock.contains("<FD_SOCK2/>"), "{stock}");
    let file = std::env::temp_dir().join(format!("consort-hung-{}.xml", std::process::id()));
    std::fs::write(&file, stock.replace("<FD_SOCK2/>", "")).expect("written");
    file
}

#[test]
fn reads_continue_at_other_owners_while_a_server_hangs_and_health_names_it() {
    const TEST: &str = "hung_server::reads_continue_at_other_owners_while_a_server_hangs_and_health_names_it";
    in_own_network(TEST, async move {
        let config = without_fd_sock2();
        let servers =
            [("A", 11222), ("B", 11322), ("C", 11422)].map(|(name, port)| patient(name, port, &config));
        let client = Client::connect("hotrod://127.0.0.1:11222").await.expect("a connection");
        client.administration().create("read", feature_matrix::DISTRIBUTED).await.unwrap();
        let cache = client.cache::<u64, u64>("read");
        for key in 0..KEYS {
            cache.put(&key, &key).await.unwrap();
        }
        eventually("the client knows the servers", async || client.servers().len() == 3).await;
        // Another client knows one server, which has to ask others.
        let basic = "hotrod://127.0.0.1:11222?client_intelligence=BASIC";
        let basic = Client::connect(basic).await.expect("a connection").cache::<u64, u64>("read");
        assert_eq!(health(11222, "/health").await, "HEALTHY");
        servers[1].signal("STOP");
        for key in 0..KEYS {
            assert_eq!(cache.get(&key).await.unwrap(), Some(key));
            assert_eq!(basic.get(&key).await.unwrap(), Some(key));
        }
        for port in [11222, 11422] {
            eventually("the silence shows", async || health(port, "/health").await == "DEGRADED").await;
            let detail = health(port, "/rest/v2/container/health").await;
            assert!(detail.contains("\"silent_node_names\":[\"B\"]"), "{detail}");
            let metrics = health(port, "/metrics").await;
            assert!(metrics.contains("consort_cluster_silent_members 1"), "{metrics}");
        }
        servers[1].signal("CONT");
        for port in [11222, 11322, 11422] {
            eventually("it is heard again", async || health(port, "/health").await == "HEALTHY").await;
        }
        std::fs::remove_file(&config).expect("removed");
    });
}
