//! Persistence: caches after all servers have ended, gracefully or by a kill, and restarted.

use std::path::Path;

use consort_client::{Client, CounterConfig, CounterKind};
use consort_interop::{Tool, in_own_network};

use super::directory::Directory;
use super::{cache, done};

const STRONG: CounterConfig = CounterConfig { kind: CounterKind::Strong, is_persistent: true, initial: 5 };

fn alone(directory: &str) -> Tool {
    let mut server = Tool::consort(&["server", "--data", directory]);
    server.wait_for(&["Hot Rod"]);
    server
}

async fn client(port: u16) -> Client {
    Client::connect(&format!("127.0.0.1:{port}")).await.expect("a connection")
}

/// Returns the error of a server that must not start.
fn start_error(directory: &str) -> String {
    let run = Tool::run_consort(&["server", "--data", directory]);
    assert!(!run.status.success() && run.stdout.is_empty(), "{run:?}");
    String::from_utf8(run.stderr).expect("text")
}

#[test]
fn caches_and_counters_survive_a_restart_after_any_end() {
    in_own_network("persistence::caches_and_counters_survive_a_restart_after_any_end", async {
        let directory = Directory::new("one");
        let data = directory.of("data");
        let server = alone(&data);
        done(&["create", "shop", r#"{"replicated-cache": {"segments": 8}}"#]);
        done(&["create", "passing", "--volatile"]);
        let (_, complaint_of, code) = cache(&["create", "shop", "--volatile"]);
        assert!(code == 2 && complaint_of.contains("already exists"), "{complaint_of}");
        let asking = client(11222).await;
        assert!(asking.counter("sold").create(STRONG).await.unwrap());
        let volatile = CounterConfig { is_persistent: false, ..STRONG };
        assert!(asking.counter("today").create(volatile).await.unwrap());
        assert!(!asking.counter("sold").create(volatile).await.unwrap(), "a name is one counter's");
        assert!(!asking.counter("today").create(STRONG).await.unwrap(), "a name is one counter's");
        assert_eq!(asking.counter("sold").add(37).await.unwrap(), 42);
        assert_eq!(asking.counter("today").add(1).await.unwrap(), 6);
        assert_eq!(asking.counter_names().await.unwrap(), ["sold", "today"]);
        asking.close().await;
        server.terminate();

        let server = alone(&data);
        assert_eq!(done(&["ls"]).0, "shop\n");
        let asking = client(11222).await;
        assert_eq!(asking.counter_names().await.unwrap(), ["sold"]);
        assert_eq!(asking.counter("sold").config().await.unwrap(), STRONG);
        assert_eq!(asking.counter("sold").compare_and_swap(42, 50).await.unwrap(), 42);
        assert!(asking.counter("today").create(volatile).await.unwrap(), "it is gone");
        done(&["create", "late"]);
        done(&["drop", "shop"]);
        asking.close().await;
        drop(server);

        let server = alone(&data);
        assert_eq!(done(&["ls"]).0, "late\n");
        let asking = client(11222).await;
        assert_eq!(asking.counter("sold").get().await.unwrap(), 50);
        assert!(!asking.counter("today").is_defined().await.unwrap());
        asking.close().await;
        // Two of them do not share a directory.
        let second = Tool::run_consort(&["server", "--port", "11322", "--data", &data]);
        let message = String::from_utf8_lossy(&second.stderr).into_owned();
        assert!(
            !second.status.success()
                && message.contains("in use by another store")
                && message.contains(&data),
            "{message}"
        );
        drop(server);

        for cache in ["___consort_caches", "___consort_persistent_counters"] {
            let file = Path::new(&data).join(cache).join("NOTE");
            let intact = std::fs::read(&file).expect("a note");
            std::fs::write(&file, b"nonsense").expect("written");
            let message = start_error(&data);
            assert!(message.contains(&format!("{data}/{cache}: NOTE is damaged")), "{message}");
            std::fs::write(&file, intact).expect("written");
        }
        let file = Path::new(&data).join("___consort_caches").join("META");
        let intact = std::fs::read(&file).expect("a description");
        std::fs::write(&file, b"#!/bin/sh\n").expect("written");
        assert!(start_error(&data).contains("META is damaged at byte 0: invalid META file"));
        std::fs::write(&file, intact).expect("written");
        let foreign = directory.of("file");
        std::fs::write(&foreign, b"no directory").expect("written");
        let message = start_error(&foreign);
        assert!(message.contains(&foreign), "{message}");

        let server = alone(&data);
        assert_eq!(done(&["ls"]).0, "late\n", "what could not be used was not touched");
        server.terminate();
    });
}

fn member(directory: &Directory, name: &str, port: u16, more: &[&str]) -> Tool {
    let (port, data) = (port.to_string(), directory.of(name));
    let all =
        ["server", "--cluster=kept", "--name", name, "--port", &port, "--data", &data, "--bind=127.0.0.1"];
    let found = [
        "-Djgroups.bind_port=7810",
        "-Djgroups.tcpping.initial_hosts=127.0.0.1[7810]",
        "-Djgroups.tcp.port_range=5",
    ];
    Tool::consort(&[&all[..], &found, more].concat())
}

#[test]
fn caches_and_counters_survive_the_kill_of_all_servers() {
    in_own_network("persistence::caches_and_counters_survive_the_kill_of_all_servers", async {
        let directory = Directory::new("three");
        let names = [("A", 11222), ("B", 11322), ("C", 11422)];
        let mut servers = Vec::new();
        for (name, port) in names {
            let mut server = member(&directory, name, port, &[]);
            server.wait_for(&["Hot Rod"]);
            servers.push(server);
        }
        done(&["create", "shop"]);
        let asking = client(11322).await;
        assert!(asking.counter("sold").create(STRONG).await.unwrap());
        for n in 0..20 {
            assert_eq!(asking.counter("sold").add(1).await.unwrap(), 6 + n);
        }
        let schemas = asking.raw("___protobuf_metadata");
        schemas.put(&b"bad.proto"[..], &b"message Bad {"[..]).await.unwrap();
        asking.close().await;
        drop(servers);

        // The first server waits for the others.
        let begin = |(name, port)| member(&directory, name, port, &[]);
        let mut servers: Vec<Tool> = [names[1], names[2], names[0]].map(begin).into();
        for server in &mut servers {
            server.wait_for(&["Hot Rod"]);
        }
        let mut late = member(&directory, "D", 11522, &[]);
        late.wait_for(&["Hot Rod"]);
        for port in [11222, 11322, 11422, 11522] {
            assert_eq!(done(&["--at", &format!("127.0.0.1:{port}"), "ls"]).0, "shop\n", "{port}");
            let asking = client(port).await;
            assert_eq!(asking.counter("sold").get().await.unwrap(), 25, "{port}");
            let errors = asking.raw("___protobuf_metadata").get(&b".errors"[..]).await.unwrap();
            assert_eq!(errors.as_deref(), Some(&b"bad.proto"[..]), "{port}");
            asking.raw("shop").put(&b"apples"[..], &b"3"[..]).await.unwrap();
            asking.close().await;
        }
        drop(servers);
        drop(late);

        // The others do not come back.
        let mut last = member(&directory, "C", 11422, &["--recovery-timeout=1"]);
        last.wait_for(&["Hot Rod"]);
        assert_eq!(done(&["--at", "127.0.0.1:11422", "ls"]).0, "shop\n");
        let asking = client(11422).await;
        assert_eq!(asking.counter("sold").add(1).await.unwrap(), 26);
        asking.close().await;
        last.terminate();
    });
}

/// A cache of which each server stores the entries that it owns.
const STORED: &str = r#"{"distributed-cache": {"owners": 2, "persistence": {"file-store": {}}}}"#;

/// How many keys it has.
const KEYS: usize = 200;

fn key(n: usize) -> String {
    format!("key{n}")
}

/// The last value of a key, unless it was removed.
fn last_value(n: usize) -> Option<&'static str> {
    match n {
        0..100 => Some("second"),
        100..150 => Some("first"),
        _ => None,
    }
}

/// Compares all keys, as the servers at these ports give them.
async fn compare(ports: &[u16]) {
    for port in ports {
        let asking = client(*port).await;
        let stock = asking.raw("stock");
        for n in 0..KEYS {
            let found = stock.get(key(n).as_bytes()).await.unwrap();
            assert_eq!(found.as_deref(), last_value(n).map(str::as_bytes), "{} at {port}", key(n));
        }
        asking.close().await;
    }
}

/// A server that was stopped has old files: writes and removals in the meantime take precedence. After all servers were
/// killed, each key has its last value or is removed.
#[test]
fn files_have_the_last_entries_after_any_member_was_unreachable() {
    in_own_network("persistence::files_have_the_last_entries_after_any_member_was_unreachable", async {
        let directory = Directory::new("stored");
        let begin = |(name, port)| member(&directory, name, port, &[]);
        let names = [("A", 11222), ("B", 11322), ("C", 11422)];
        let mut servers: Vec<Tool> = Vec::new();
        for one in names {
            servers.push(begin(one));
            servers.last_mut().expect("a server").wait_for(&["Hot Rod"]);
        }
        done(&["create", "stock", STORED]);
        let asking = client(11222).await;
        let stock = asking.raw("stock");
        for n in 0..KEYS {
            stock.put(key(n).as_bytes(), &b"first"[..]).await.unwrap();
        }
        drop(servers.remove(1));
        for n in 0..KEYS {
            match last_value(n) {
                Some("first") => {}
                Some(other) => stock.put(key(n).as_bytes(), other.as_bytes()).await.unwrap(),
                None => assert!(stock.remove(key(n).as_bytes()).await.unwrap()),
            }
        }
        asking.close().await;
        servers.push(begin(names[1]));
        servers[2].wait_for(&["Hot Rod"]);
        compare(&[11322, 11222, 11422]).await;
        // The merged state is the persistent one.
        drop(servers);
        let mut servers = [names[1], names[2], names[0]].map(begin);
        for server in &mut servers {
            server.wait_for(&["Hot Rod"]);
        }
        compare(&[11222, 11322, 11422]).await;

        // A server without a data directory does not serve the cache, and logs that.
        let found = "-Djgroups.tcpping.initial_hosts=127.0.0.1[7810]";
        let own = ["server", "--cluster=kept", "--name=D", "--port=11522", "--bind=127.0.0.1", found];
        let more = ["-Djgroups.bind_port=7810", "-Djgroups.tcp.port_range=5"];
        let mut without = Tool::consort_with_log(&[&own[..], &more].concat());
        without.wait_for(&["stock", "is not served here", "start every server with --data DIRECTORY"]);
        without.wait_for(&["Hot Rod"]);
        compare(&[11322]).await;
        without.terminate();
        compare(&[11222]).await;
    });
}
