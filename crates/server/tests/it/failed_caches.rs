//! Defined caches that a server cannot open.

use std::fs;
use std::path::{Path, PathBuf};

use consort_hotrod::Status;
use tokio::time::{Instant, sleep};

use crate::client::{PATIENCE, RunningServer, error, get, put};
use crate::configurations::Directory;
use crate::http::ask;

const STORED: &str = r#"{"distributed-cache": {"persistence": {"file-store": {}}}}"#;

/// Stops a server gracefully.
pub(crate) async fn stop(server: RunningServer) {
    server.end.send(()).unwrap();
    server.serving.await.unwrap();
}

/// Returns the directory of a cache's files.
fn files_of(data: &Path, cache: &str) -> PathBuf {
    let entries = fs::read_dir(data.join("caches")).unwrap().map(|entry| entry.unwrap().path());
    let is_it =
        |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(&format!("{cache}."));
    entries.into_iter().find(is_it).expect("the directory of the cache")
}

#[tokio::test]
async fn a_cache_with_a_damaged_header_is_named_and_makes_the_server_unready_until_it_opens() {
    let data = Directory::new("failed-cache");
    let server = data.server("failed-cache").await;
    let mut client = server.client().await;
    for cache in ["orders", "stock"] {
        client.create_with(cache, STORED).await;
        assert_eq!(client.ask(cache, put("key", "value")).await.status, Status::Success);
    }
    drop(client);
    stop(server).await;

    let header = files_of(&data.0, "orders").join("META");
    let intact = fs::read(&header).unwrap();
    fs::write(&header, "xxxxxxxxxx").unwrap();
    let server = data.server("failed-cache").await;
    let mut client = server.client().await;
    let refused = client.ask("orders", get("key")).await;
    assert_eq!(refused.status, Status::ServerError, "{refused:?}");
    assert!(error(&refused).contains("cannot open the defined cache 'orders'"), "{refused:?}");
    assert_eq!(client.ask("stock", get("key")).await.status, Status::Success, "other caches are served");
    let ready = ask(&server, "/health/ready", "").await;
    assert_eq!(
        (ready.code, ask(&server, "/health", "").await.content),
        (503, "DEGRADED".to_owned()),
        "{ready:?}"
    );
    assert!(ready.content.contains("1 defined caches could not be opened"), "{ready:?}");
    let detail: serde_json::Value =
        serde_json::from_str(&ask(&server, "/rest/v2/container/health", "").await.content).unwrap();
    let orders = detail["cache_health"].as_array().unwrap().iter().find(|it| it["cache_name"] == "orders");
    let orders = orders.unwrap_or_else(|| panic!("{detail}"));
    assert_eq!(orders["status"], "FAILED", "{detail}");
    assert!(orders["error"].as_str().unwrap().contains("META"), "{detail}");
    let metrics = ask(&server, "/metrics", "").await.content;
    assert!(metrics.contains("consort_cache_failed{cache=\"orders\"} 1\n"), "{metrics}");
    assert!(metrics.contains("consort_cache_failed{cache=\"stock\"} 0\n"), "{metrics}");
    assert!(files_of(&data.0, "orders").join("META").exists(), "its files are kept");

    // After the file is repaired, the server opens the cache by itself.
    fs::write(&header, intact).unwrap();
    let until = Instant::now() + PATIENCE;
    while ask(&server, "/health/ready", "").await.code != 200 {
        assert!(Instant::now() < until, "the cache is not opened again");
        sleep(std::time::Duration::from_millis(100)).await;
    }
    assert_eq!(client.ask("orders", get("key")).await.status, Status::Success, "no entry was lost");
    stop(server).await;
}

#[tokio::test]
async fn a_store_that_cannot_write_is_named_in_health_and_metrics() {
    let data = Directory::new("failing-store");
    let server = data.server("failing-store").await;
    let mut client = server.client().await;
    for cache in ["orders", "stock"] {
        client.create_with(cache, STORED).await;
        assert_eq!(client.ask(cache, put("key", "value")).await.status, Status::Success);
    }
    assert_eq!(ask(&server, "/health", "").await.content, "HEALTHY");
    let metrics = ask(&server, "/metrics", "").await.content;
    for line in
        ["failing{cache=\"orders\"} 0", "failures_total{cache=\"orders\"} 0", "pending{cache=\"orders\"} 0"]
    {
        assert!(metrics.contains(&format!("consort_store_{line}\n")), "{line}: {metrics}");
    }
    for family in ["consort_store_bytes", "consort_store_free_bytes", "consort_store_entries"] {
        let line =
            metrics.lines().find_map(|line| line.strip_prefix(&format!("{family}{{cache=\"orders\"}} ")));
        assert!(line.unwrap().parse::<u64>().unwrap() > 0, "{family}: {metrics}");
    }
    // A file has 64 MiB. Then the store needs another file, which cannot be created because the directory is gone.
    fs::remove_dir_all(files_of(&data.0, "orders")).unwrap();
    let large = "x".repeat(8 << 20);
    let mut refused = None;
    for key in ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10"] {
        let answered = client.ask("orders", put(key, large.clone())).await;
        if answered.status != Status::Success {
            refused = Some(answered.body);
            break;
        }
    }
    assert!(refused.is_some(), "80 MiB are in a file of 64");
    let until = Instant::now() + PATIENCE;
    while ask(&server, "/health", "").await.content != "DEGRADED" {
        assert!(Instant::now() < until, "{refused:?}");
        sleep(std::time::Duration::from_millis(20)).await;
    }
    let detail: serde_json::Value =
        serde_json::from_str(&ask(&server, "/rest/v2/container/health", "").await.content).unwrap();
    let of = |cache: &str| {
        let all = detail["cache_health"].as_array().unwrap();
        all.iter().find(|it| it["cache_name"] == cache).unwrap().clone()
    };
    assert_eq!(
        (&of("orders")["status"], &of("stock")["status"]),
        (&"DEGRADED".into(), &"HEALTHY".into()),
        "{detail}"
    );
    assert!(of("orders")["error"].as_str().unwrap().contains("cannot begin"), "{detail}");
    let metrics = ask(&server, "/metrics", "").await.content;
    assert!(metrics.contains("consort_store_failing{cache=\"orders\"} 1\n"), "{metrics}");
    assert!(metrics.contains("consort_store_failing{cache=\"stock\"} 0\n"), "{metrics}");
}

/// Collects all texts that users see: the sources with their messages and help, the documents, the chart.
fn texts(directory: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            texts(&path, into);
        } else if [".rs", ".md", ".yaml", ".txt", ".tpl", ".json"].iter().any(|end| name.ends_with(end)) {
            into.push(path);
        }
    }
}

#[test]
fn no_message_suggests_deleting_files_that_may_be_the_last_copy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = Vec::new();
    for part in ["crates", "docs", "charts"] {
        texts(&root.join(part), &mut found);
    }
    assert!(found.len() > 300, "{}", found.len());
    let suggests = ["can be", "may be", "should be", "safe to", "safely"];
    let actions = ["deleted", "delete", "removed by hand"];
    for path in found.iter().filter(|path| !path.ends_with(file!().rsplit('/').next().unwrap())) {
        // Messages may span several lines.
        let text = fs::read_to_string(path).unwrap().replace("\\\n", " ").replace('\n', " ");
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for (suggest, action) in suggests.iter().flat_map(|one| actions.iter().map(move |other| (one, other)))
        {
            let phrase = format!("{suggest} {action}");
            assert!(!text.contains(&phrase), "{}: '{phrase}'", path.display());
        }
    }
}
