//! Values that another server owns, read by clients that take no response: two servers in a control group.

use consort_client::Client;
use consort_interop::{Tool, built, in_own_network};
use consort_jgroups::ControlGroup;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::{SERVER, of_http};

const LIMIT: u64 = 512 << 20;

const VALUE_BYTES: usize = 6 << 20;

/// Reads of a client that takes no response. Without a bound they are 1.2 GB at each server.
const READS: u8 = 200;

const PORTS: [u16; 2] = [11222, 11223];

/// The reads of a key, as a client of Hot Rod 2.5 sends them that knows no topologies.
fn reads(key: &[u8]) -> Vec<u8> {
    let mut requests = Vec::new();
    for id in 0..READS {
        const GET: u8 = 3;
        let id = [id | 0x80, 1 + (id >> 7)];
        requests
            .extend([&[0xa0][..], &id, &[25, GET, 4], b"shop", &[0, 1, 0, key.len() as u8], key].concat());
    }
    requests
}

/// The most bytes of a budget that were in use.
fn peak(metrics: &str, budget: &str) -> f64 {
    let line = format!("consort_memory_peak_bytes{{budget=\"{budget}\"}} ");
    let value = metrics.lines().find_map(|one| one.strip_prefix(&line)).expect("the metric");
    value.parse().expect("a number")
}

#[test]
fn pipelined_reads_of_a_large_value_of_another_server_that_nobody_takes_leave_servers_alive() {
    let name = "remote_reads::\
                pipelined_reads_of_a_large_value_of_another_server_that_nobody_takes_leave_servers_alive";
    in_own_network(name, async {
        let group = ControlGroup::new("remote-reads", LIMIT).unwrap();
        let mut servers = Vec::new();
        for (name, port) in ["A", "B"].into_iter().zip(PORTS) {
            let hosts = "-Djgroups.tcpping.initial_hosts=127.0.0.1[7800]";
            let (name, port) = (format!("--name={name}"), format!("--port={port}"));
            let own = ["server", "--cluster=reads", "--bind=127.0.0.1", hosts, &name, &port];
            let mut server = Tool::start(group.command(&built("consort"), &own));
            server.wait_for(&["Hot Rod on"]);
            servers.push(server);
        }
        let client = Client::connect(&format!("hotrod://{SERVER}")).await.expect("a client");
        let definition = r#"{"distributed-cache": {"mode": "SYNC", "owners": 1}}"#;
        client.administration().create("shop", definition).await.expect("a cache");
        let cache = client.raw("shop");
        cache.put(&b"large"[..], &vec![7; VALUE_BYTES][..]).await.expect("a put");
        cache.put(&b"small"[..], &b"v"[..]).await.expect("a put");
        // One of the servers owns the value, and the other one reads it there.
        let mut greedy = Vec::new();
        for port in PORTS {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("a connection");
            stream.write_all(&reads(b"large")).await.expect("it is sent");
            greedy.push(stream);
        }
        // Until the reader holds a value that its client does not take; others are served meanwhile.
        let mut most = 0.0;
        while most < VALUE_BYTES as f64 {
            assert_eq!(group.killed().unwrap(), 0, "the owner or the reader was killed");
            for port in PORTS {
                most = peak(&of_http(port, "/metrics").await, "responses_to_8_mib").max(most);
            }
            assert_eq!(cache.get(&b"small"[..]).await.expect("a read").expect("a value"), &b"v"[..]);
        }
        for _ in 0..20 {
            let value = cache.get(&b"large"[..]).await.expect("a read").expect("a value");
            assert_eq!(value.len(), VALUE_BYTES);
        }
        assert_eq!(group.killed().unwrap(), 0);
        drop(greedy);
        client.close().await;
    });
}
