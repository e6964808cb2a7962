//! Values that another server owns, read by clients that take no response: two servers in a control group.

use consort_client::Client;
use consort_interop::{Tool, built, in_own_network};
use consort_testbed::ControlGroup;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{SERVER, of_http};

const LIMIT: u64 = 512 << 20;

const VALUE_BYTES: usize = 6 << 20;

/// Reads of a client that takes no response. Without a bound they are 1.2 GB at each server.
const READS: u8 = 200;

const PORTS: [u16; 2] = [11222, 11223];

/// Requests as a client of Hot Rod 2.5 sends them that knows no topologies.
fn requests(count: u8, opcode: u8, body: &[u8]) -> Vec<u8> {
    let request = |id: u8| {
        let id = [id | 0x80, 1 + (id >> 7)];
        [&[0xa0][..], &id, &[25, opcode, 4], b"shop", &[0, 1, 0], body].concat()
    };
    (0..count).flat_map(request).collect()
}

/// The reads of a key.
fn reads(key: &[u8]) -> Vec<u8> {
    const GET: u8 = 3;
    requests(READS, GET, &[&[key.len() as u8], key].concat())
}

/// Two servers in a control group, a client, and a cache in which each entry is on one of them.
async fn two_servers(group: &ControlGroup) -> (Vec<Tool>, Client) {
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
    (servers, client)
}

/// Connections to both servers that send these requests and take no response.
async fn greedy(requests: &[u8]) -> Vec<TcpStream> {
    let mut greedy = Vec::new();
    for port in PORTS {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("a connection");
        stream.write_all(requests).await.expect("they are sent");
        greedy.push(stream);
    }
    greedy
}

/// The most bytes of a budget that were in use.
fn peak(metrics: &str, budget: &str) -> f64 {
    let line = format!("consort_memory_peak_bytes{{budget=\"{budget}\"}} ");
    let value = metrics.lines().find_map(|one| one.strip_prefix(&line)).expect("the metric");
    value.parse().expect("a number")
}

#[test]
fn pipelined_remote_reads_of_a_large_value_by_a_client_that_does_not_read_leave_servers_alive() {
    let name = "remote_reads::\
                pipelined_remote_reads_of_a_large_value_by_a_client_that_does_not_read_leave_servers_alive";
    in_own_network(name, async {
        let group = ControlGroup::new("remote-reads", LIMIT).unwrap();
        let (_servers, client) = two_servers(&group).await;
        let cache = client.raw("shop");
        cache.put(&b"large"[..], &vec![7; VALUE_BYTES][..]).await.expect("a put");
        cache.put(&b"small"[..], &b"v"[..]).await.expect("a put");
        // One of the servers owns the value, and the other one reads it there.
        let greedy = greedy(&reads(b"large")).await;
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

/// Each is refused, because the response would be larger than a response of a server with 512 MiB may be. To find that out it
/// reads values of the other server.
#[test]
fn pipelined_bulk_reads_of_large_values_of_another_server_leave_servers_alive() {
    const BULK_GET: u8 = 0x19;
    const BULK_READS: u8 = 200;
    const BULK_VALUE_BYTES: usize = 8 << 20;
    const REFUSAL: &[u8] = b"the limit of one response";
    let name = "remote_reads::pipelined_bulk_reads_of_large_values_of_another_server_leave_servers_alive";
    in_own_network(name, async {
        let group = ControlGroup::new("remote-bulk-reads", LIMIT).unwrap();
        let (_servers, client) = two_servers(&group).await;
        let cache = client.raw("shop");
        for nth in 0..6 {
            cache.put(&[nth][..], &vec![nth; BULK_VALUE_BYTES][..]).await.expect("a put");
        }
        for mut stream in greedy(&requests(BULK_READS, BULK_GET, &[0])).await {
            let mut responses = Vec::new();
            let refused =
                |responses: &[u8]| responses.windows(REFUSAL.len()).filter(|part| *part == REFUSAL).count();
            while refused(&responses) < usize::from(BULK_READS) {
                let read = stream.read_buf(&mut responses).await.expect("responses");
                assert!(
                    read > 0,
                    "a server has closed the connection; {} were killed",
                    group.killed().unwrap()
                );
            }
        }
        assert_eq!(group.killed().unwrap(), 0);
        client.close().await;
    });
}
