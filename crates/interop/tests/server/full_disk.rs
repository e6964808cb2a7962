//! A server whose disk is full: a file system of its own, which is small.

use std::path::PathBuf;
use std::process::Command;

use consort_client::Client;
use consort_interop::{Tool, in_own_network};

use super::{SERVER, of_http};

const VALUE_BYTES: usize = 64 << 10;

/// A file system of 24 MiB.
struct FileSystem(PathBuf);

impl FileSystem {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("consort-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=24m", "tmpfs"]).arg(&path).output();
        let mounted = mounted.expect("mount (util-linux)");
        assert!(mounted.status.success(), "{mounted:?}");
        Self(path)
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
        let _ = std::fs::remove_dir(&self.0);
    }
}

fn key(number: usize) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

/// Puts values from this number on until one is refused. Returns its number and the server's error.
async fn fill(client: &Client, from: usize) -> (usize, String) {
    let cache = client.raw("shop");
    for number in from..from + 1_000 {
        if let Err(error) = cache.put(&key(number)[..], &vec![number as u8; VALUE_BYTES][..]).await {
            return (number, error.to_string());
        }
    }
    panic!("64 MB fit into 24 MiB");
}

/// The metrics and the state of health.
async fn seen() -> (String, String) {
    (of_http(11222, "/metrics").await, of_http(11222, "/health").await)
}

#[test]
fn removals_and_clear_work_on_a_full_disk_and_entries_fit_again() {
    let name = "full_disk::removals_and_clear_work_on_a_full_disk_and_entries_fit_again";
    in_own_network(name, async {
        let disk = FileSystem::new("full-disk");
        let data = disk.0.join("data").display().to_string();
        let mut server = Tool::consort_with_log(&["server", "--data", &data]);
        server.wait_for(&["Hot Rod on"]);
        let client = Client::connect(&format!("hotrod://{SERVER}")).await.expect("a client");
        let definition = r#"{"distributed-cache": {"mode": "SYNC", "persistence": {"file-store": {}}}}"#;
        client.administration().create("shop", definition).await.expect("a cache");
        let cache = client.raw("shop");
        let mut from = 0;
        for is_cleared in [false, true] {
            let (refused, why) = fill(&client, from).await;
            assert!(refused > from + 50, "{from} to {refused}: {why}");
            assert!(why.contains("no space left"), "{why}");
            if !is_cleared {
                server.wait_for(&["shop", "cannot write"]);
            }
            let (metrics, health) = seen().await;
            assert!(metrics.contains("consort_store_failing{cache=\"shop\"} 1\n"), "{metrics}");
            assert!(health.ends_with("DEGRADED"), "{health}");
            if is_cleared {
                cache.clear().await.expect("a clear");
            } else {
                for number in from..refused {
                    assert!(
                        cache.remove(&key(number)[..]).await.expect("a removal"),
                        "{number} was not there"
                    );
                }
            }
            // The store is tried again every second.
            while let Err(error) = cache.put(&key(refused)[..], &b"value"[..]).await {
                assert!(error.to_string().contains("space"), "{error}");
            }
            if !is_cleared {
                // The log has one failure a minute at most, and the end of those failures only that it has.
                server.wait_for(&["shop", "writes again"]);
            }
            let (metrics, health) = seen().await;
            assert!(metrics.contains("consort_store_failing{cache=\"shop\"} 0\n"), "{metrics}");
            assert!(health.ends_with("HEALTHY"), "{health}");
            from = refused;
        }
        assert_eq!(cache.get(&key(from)[..]).await.expect("a read").expect("a value"), &b"value"[..]);
        client.close().await;
    });
}
