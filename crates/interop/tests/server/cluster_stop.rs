//! `consort cluster stop`: three servers end together, and return with their entries.

use consort_interop::{Tool, eventually, in_own_network};
use serde_json::Value;
use tokio::net::TcpStream;

use super::{cache, done, of_http};

const PORTS: [&str; 3] = ["11222", "11322", "11422"];
const KEYS: usize = 60;

fn begin(name: &str, port: &str, data: &str, options: &[&str]) -> Tool {
    let hosts = "-Djgroups.tcpping.initial_hosts=127.0.0.1[7800]";
    let (name, data) = (format!("--name={name}"), format!("--data={data}-{port}"));
    let own = ["server", "--cluster=stopped", "--bind=127.0.0.1", hosts, &name, "--port", port, &data];
    Tool::consort(&[&own, options].concat())
}

fn health_port(port: &str) -> u16 {
    port.parse::<u16>().expect("a port") + 1
}

/// Three servers that return with their data, each when the others are back.
fn three_servers(data: &str, stay: bool) -> Vec<Tool> {
    let begin = |(name, port): (&str, &str)| {
        let health = format!("--health-port={}", health_port(port));
        let options = [&health[..], "--stay-after-stop"];
        begin(name, port, data, if stay { &options } else { &[] })
    };
    let mut all: Vec<Tool> = ["A", "B", "C"].into_iter().zip(PORTS).map(begin).collect();
    all.iter_mut().for_each(|server| _ = server.wait_for(&["Hot Rod on"]));
    all
}

fn entries_here(port: &str) -> u64 {
    let at = format!("--at=127.0.0.1:{port}");
    let (out, message, code) = cache(&[&at, "describe", "shop", "--json"]);
    assert_eq!((&message[..], code), ("", 0));
    let described: Value = serde_json::from_str(&out).expect("JSON");
    described["here"]["entries"].as_u64().unwrap_or_else(|| panic!("no entries in {described}"))
}

#[test]
fn servers_end_together_and_return_with_their_entries() {
    in_own_network("cluster_stop::servers_end_together_and_return_with_their_entries", async {
        let data = std::env::temp_dir().join(format!("consort-cluster-stop-{}", std::process::id()));
        let data = data.display().to_string();
        let first = three_servers(&data, false);
        done(&[
            "create",
            "shop",
            r#"{"distributed-cache": {"owners": 2, "segments": 30, "persistence": {"passivation": true, "file-store": {}},
                "memory": {"max-count": 1000}}}"#,
        ]);
        done(&["create", "basket", r#"{"distributed-cache": {"owners": 2}}"#]);
        for key in 0..KEYS {
            done(&["put", "shop", &key.to_string(), &format!("value {key}")]);
        }
        done(&["put", "basket", "apples", "3"]);
        let before = PORTS.map(entries_here);

        // Asked by a server that is not the coordinator.
        let stopped = Tool::run_consort(&["cluster", "stop", "--at=127.0.0.1:11322"]);
        let (out, message) = (String::from_utf8(stopped.stdout), String::from_utf8(stopped.stderr));
        let (out, message) = (out.expect("text"), message.expect("text"));
        assert!(stopped.status.success(), "{out}{message}");
        assert!(out.contains("3 members") && out.ends_with("\nall servers stop\n"), "{out}");
        let mut ended: Vec<&str> = message.lines().collect();
        ended.sort_unstable();
        let expected: Vec<String> = ["A", "B", "C"]
            .iter()
            .zip(PORTS)
            .map(|(name, port)| format!("{name} has ended (127.0.0.1:{port})"))
            .collect();
        assert_eq!(ended, expected);
        // At once: when the command ends, members and clients find no port in use.
        let servers = three_servers(&data, true);
        eventually("all are served", async || cache(&["size", "shop"]).0 == format!("{KEYS}\n")).await;
        for key in 0..KEYS {
            assert_eq!(done(&["get", "shop", &key.to_string()]).0, format!("value {key}"));
        }
        assert_eq!(PORTS.map(entries_here), before, "each server has the entries that it had");
        assert_eq!(done(&["size", "basket"]).0, "0\n", "a cache without a store is empty");
        first.into_iter().for_each(|mut server| server.wait_for_end());

        let stopped = Tool::run_consort(&["cluster", "stop", "--no-wait", "--json"]);
        assert_eq!(
            (stopped.status.code(), &stopped.stderr[..]),
            (Some(0), &[][..]),
            "it waits for no server"
        );
        let members: Value = serde_json::from_slice(&stopped.stdout).expect("JSON");
        assert_eq!(members["members"].as_array().map(Vec::len), Some(3), "{members}");
        // A supervisor would start them again if they ended.
        for (server, port) in servers.into_iter().zip(PORTS) {
            let is_closed = async || TcpStream::connect(format!("127.0.0.1:{port}")).await.is_err();
            eventually("the port for clients is closed", is_closed).await;
            for (path, answer) in
                [("/health", "STOPPED"), ("/health/live", "live"), ("/health/ready", "STOPPED")]
            {
                let found = of_http(health_port(port), path).await;
                assert!(found.trim_end().ends_with(&format!("\r\n\r\n{answer}")), "{path}: {found}");
            }
            server.terminate();
        }
        for port in PORTS {
            let _ = std::fs::remove_dir_all(format!("{data}-{port}"));
        }
    });
}
