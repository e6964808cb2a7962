//! Caches behave as their definitions say.

use std::time::Duration;

use bytes::Bytes;
use consort_hotrod::ops::map::{self, Assignment};
use consort_hotrod::ops::{bulk, task};
use consort_hotrod::{Expiration, RequestBody, ResponseBody, Span, Status, TimeUnit};
use consort_server::{CacheDefinitions, Server};
use tokio::time::{Instant, timeout, timeout_at};

use crate::client::{Client, PATIENCE, RunningServer, error, exec, get, member, put};

/// A data directory, which is removed when this is dropped.
pub(crate) struct Directory(pub(crate) std::path::PathBuf);

impl Directory {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("consort-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Self(path)
    }

    pub(crate) async fn server(&self, cluster: &str) -> RunningServer {
        RunningServer::secured(cluster, Server::builder().data(&self.0)).await
    }

    /// Returns the number of caches with files.
    fn caches(&self) -> usize {
        std::fs::read_dir(self.0.join("caches")).map_or(0, Iterator::count)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn put_for(key: &'static str, expiration: Expiration) -> RequestBody {
    RequestBody::Map(map::Request::Put(Assignment { key: key.into(), expiration, value: "value".into() }))
}

async fn size(client: &mut Client) -> u64 {
    match client.ask("c", RequestBody::Bulk(bulk::Request::Size)).await.body {
        ResponseBody::Bulk(bulk::Response::Size(size)) => size,
        other => panic!("{other:?}"),
    }
}

async fn created(client: &mut Client, params: &[(&'static str, &'static str)]) -> (Status, String) {
    let params = params.iter().map(|(name, value)| ((*name).into(), Bytes::from_static(value.as_bytes())));
    let params = [("name".into(), "c".into())].into_iter().chain(params).collect();
    let create = RequestBody::Task(task::Request::Exec("@@cache@create".into(), params));
    let answer = client.ask("", create).await;
    let why = if answer.status == Status::Success { String::new() } else { error(&answer).to_owned() };
    (answer.status, why)
}

#[tokio::test]
async fn bounded_cache_evicts_entries_or_refuses_new_ones() {
    let server = RunningServer::start("bounded").await;
    let mut client = server.client().await;
    client.create_with("c", "distributedCache:\n  memory:\n    maxCount: 2\n").await;
    for key in ["a", "b", "d", "e", "f"] {
        assert_eq!(client.ask("c", put(key, "value")).await.status, Status::Success);
    }
    assert!((1..=2).contains(&size(&mut client).await));
    let full = r#"<distributed-cache><memory max-count="2" when-full="EXCEPTION"/></distributed-cache>"#;
    client.create_with("full", full).await;
    for key in ["a", "b"] {
        assert_eq!(client.ask("full", put(key, "value")).await.status, Status::Success);
    }
    let refused = client.ask("full", put("d", "value")).await;
    assert_eq!(refused.status, Status::ServerError, "{refused:?}");
    assert_eq!(client.ask("full", get("a")).await.status, Status::Success);
}

#[tokio::test]
async fn default_lifetime_applies_to_entries_without_their_own() {
    let server = RunningServer::start("default-lifespan").await;
    let mut client = server.client().await;
    client.create_with("c", r#"{"distributed-cache": {"expiration": {"lifespan": "100ms"}}}"#).await;
    let minute = Expiration { lifespan: Span::Of(1, TimeUnit::Minutes), max_idle: Span::Default };
    let entries = vec![("c".into(), "value".into()), ("d".into(), "value".into())];
    for write in [
        put_for("forever", Expiration::INFINITE),
        put_for("minute", minute),
        put_for("default", Expiration::default()),
        RequestBody::Map(map::Request::PutIfAbsent(Assignment {
            key: "absent".into(),
            expiration: Expiration::default(),
            value: "value".into(),
        })),
        RequestBody::Bulk(bulk::Request::PutAll(Expiration::default(), entries)),
    ] {
        assert_eq!(client.ask("c", write).await.status, Status::Success);
    }
    let until = Instant::now() + PATIENCE;
    for key in ["default", "absent", "c", "d"] {
        let gone = async {
            while client.ask("c", get(key)).await.status != Status::NotFound {
                tokio::task::yield_now().await;
            }
        };
        timeout_at(until, gone).await.unwrap_or_else(|_| panic!("{key} lives on"));
    }
    for key in ["forever", "minute"] {
        assert_eq!(client.ask("c", get(key)).await.status, Status::Success, "{key}");
    }
}

#[tokio::test]
async fn asynchronous_writes_reach_all_servers() {
    let first = RunningServer::start("asynchronous").await;
    let second = RunningServer::join("asynchronous").await;
    let (mut here, mut there) = (first.client().await, second.client().await);
    let (status, why) = created(&mut here, &[("template", "org.infinispan.REPL_ASYNC")]).await;
    assert_eq!((status, &why[..]), (Status::Success, ""));
    assert_eq!(here.ask("c", put("key", "value")).await.status, Status::Success);
    let arrived = async {
        while there.ask("c", get("key")).await.status != Status::Success {
            tokio::task::yield_now().await;
        }
    };
    timeout_at(Instant::now() + PATIENCE, arrived).await.unwrap();
}

#[tokio::test]
async fn cache_with_a_store_restores_its_entries_until_it_is_removed() {
    let data = Directory::new("kept");
    let stored = r#"<distributed-cache><persistence><file-store/></persistence></distributed-cache>"#;
    for life in 0..2 {
        let server = data.server("kept").await;
        let mut client = server.client().await;
        if life == 0 {
            client.create_with("c", stored).await;
            client.create_with("../d", stored).await;
            assert_eq!(client.ask("c", put("key", "value")).await.status, Status::Success);
        } else {
            let found = client.ask("c", get("key")).await;
            assert_eq!(found.body, ResponseBody::Map(map::Response::Value("value".into())), "{found:?}");
            assert_eq!(data.caches(), 2);
            for cache in ["c", "../d"] {
                assert_eq!(client.ask("", exec("@@cache@remove", cache)).await.status, Status::Success);
            }
            assert_eq!(data.caches(), 0);
            client.create_with("c", stored).await;
            assert_eq!(client.ask("c", get("key")).await.status, Status::NotFound);
        }
        server.end.send(()).unwrap();
        server.serving.await.unwrap();
    }
}

#[tokio::test]
async fn store_without_a_data_directory_or_of_a_volatile_cache_is_refused() {
    let stored = r#"<distributed-cache><persistence><file-store/></persistence></distributed-cache>"#;
    let server = RunningServer::start("without-data").await;
    let (status, why) = created(&mut server.client().await, &[("configuration", stored)]).await;
    assert_eq!(status, Status::ServerError);
    assert!(why.contains("start every server with --data DIRECTORY"), "{why}");
    let data = Directory::new("volatile");
    let server = data.server("volatile").await;
    let mut client = server.client().await;
    let (status, why) = created(&mut client, &[("configuration", stored), ("flags", "VOLATILE")]).await;
    assert_eq!(status, Status::ServerError);
    assert!(why.contains("ends with the last server"), "{why}");
    assert_eq!(data.caches(), 0);
}

/// Runs a task on the cache. Returns its error, or an empty text.
async fn task_error(client: &mut Client, task: &str, params: &[(&'static str, &'static str)]) -> String {
    let params = params.iter().map(|(name, value)| ((*name).into(), Bytes::from_static(value.as_bytes())));
    let params = [("name".into(), "c".into())].into_iter().chain(params).collect();
    let answer = client.ask("", RequestBody::Task(task::Request::Exec(task.into(), params))).await;
    if answer.status == Status::Success { "done".to_owned() } else { error(&answer).to_owned() }
}

#[tokio::test]
async fn only_changeable_settings_of_a_cache_are_updated() {
    let (_server, mut client) = RunningServer::with_cache("updated", "c").await;
    let update = ("flags", "UPDATE");
    let same = r#"{"distributed-cache": {"owners": 2, "statistics": true}}"#;
    assert_eq!(created(&mut client, &[("configuration", same), update]).await.0, Status::Success);
    let other = "<distributed-cache><memory max-count=\"7\"/></distributed-cache>";
    let (status, why) = created(&mut client, &[("configuration", other), update]).await;
    assert_eq!(status, Status::ServerError);
    assert!(why.contains("memory of an existing cache"), "{why}");
    let more = "<distributed-cache owners=\"3\"/>";
    let (_, why) = created(&mut client, &[("configuration", more), update]).await;
    assert!(why.contains("distributed-cache.owners: it cannot be changed"), "{why}");
    assert_eq!(client.ask("", exec("@@cache@remove", "c")).await.status, Status::Success);
    assert_eq!(created(&mut client, &[("configuration", other), update]).await.0, Status::Success);
}

/// Returns an entry's lifespan in seconds.
async fn lifespan(client: &mut Client, key: &'static str) -> Option<i64> {
    match client.ask("c", RequestBody::Map(map::Request::GetWithMetadata(key.into()))).await.body {
        ResponseBody::Map(map::Response::WithMetadata(metadata, _)) => {
            metadata.lifespan.map(|lifespan| lifespan.seconds.into())
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn attribute_change_applies_on_all_servers_and_keeps_entries() {
    let servers = RunningServer::three("changed").await;
    let [mut first, mut second, mut third] =
        [servers[0].client().await, servers[1].client().await, servers[2].client().await];
    first.create_with("c", r#"{"replicated-cache": {"memory": {"max-count": 100}}}"#).await;
    assert_eq!(second.ask("c", put("kept", "value")).await.status, Status::Success);
    for (attribute, value, answer) in [
        ("memory.max-count", "10", "done"),
        ("expiration.lifespan", "1h", "done"),
        ("locking.acquire-timeout", "10s", "done"),
        (
            "owners",
            "3",
            "org.infinispan.commons.CacheConfigurationException: ISPN000686: cache configuration: owners of replicated-cache cannot be 3",
        ),
        (
            "memory.mine",
            "3",
            "org.infinispan.commons.CacheConfigurationException: cache configuration: 'mine of memory' is not supported",
        ),
        (
            "segments",
            "3",
            "org.infinispan.commons.CacheConfigurationException: cache configuration: replicated-cache.segments: it cannot be changed while the cache exists; remove the \
             cache and create it again",
        ),
    ] {
        let params = [("attribute", attribute), ("value", value)];
        let task = "@@cache@updateConfigurationAttribute";
        assert_eq!(task_error(&mut third, task, &params).await, answer, "{attribute}");
    }
    let missing = third.ask("", exec("@@cache@updateConfigurationAttribute", "d")).await;
    assert!(error(&missing).contains("ISPN000436: Cache 'd' has been requested"), "{missing:?}");
    // A server that did not run the task applies the change soon: entries that are written there by default have the new
    // lifespan.
    for client in [&mut first, &mut second, &mut third] {
        assert_eq!(lifespan(client, "kept").await, None, "it lives for ever");
        let written = async {
            loop {
                let default = Expiration { lifespan: Span::Default, max_idle: Span::Default };
                assert_eq!(client.ask("c", put_for("short", default)).await.status, Status::Success);
                if let Some(seconds) = lifespan(client, "short").await {
                    break seconds;
                }
            }
        };
        assert_eq!(timeout(PATIENCE, written).await, Ok(3_600));
    }
    // No server keeps more than the new limit.
    for key in ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14"] {
        assert_eq!(first.ask("c", put(key, "value")).await.status, Status::Success);
    }
    assert!(size(&mut second).await <= 10);
}

#[tokio::test]
async fn index_tasks_of_a_cache_without_indexes_are_refused_as_by_infinispan() {
    let (_server, mut client) = RunningServer::with_cache("not-indexed", "c").await;
    for task in ["@@cache@reindex", "@@cache@updateindexschema"] {
        let refused = client.ask("", exec(task, "c")).await;
        let refusal = (refused.status, error(&refused));
        let expected = "org.infinispan.commons.CacheException: Indexing was not enabled on cache c";
        assert_eq!(refusal, (Status::ServerError, expected), "{task}");
        let missing = client.ask("", exec(task, "d")).await;
        assert!(error(&missing).contains("ISPN000436: Cache 'd' has been requested"), "{task}: {missing:?}");
    }
}

/// Returns a builder with the caches of this file.
fn with_caches(text: &str) -> consort_server::ServerBuilder {
    Server::builder().caches(CacheDefinitions::parse("caches.yaml", text).unwrap())
}

async fn names(client: &mut Client) -> String {
    let names = RequestBody::Task(task::Request::Exec("@@cache@names".into(), Vec::new()));
    match client.ask("", names).await.body {
        ResponseBody::Result(names) => String::from_utf8_lossy(&names).into_owned(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn caches_of_the_file_exist_from_the_start_on_all_servers() {
    let first =
        RunningServer::secured("predefined", with_caches("a:\n  distributedCache:\n    owners: 2\n")).await;
    let mut client = first.client().await;
    assert_eq!(client.ask("a", put("key", "value")).await.status, Status::Success);
    // Another server's file has that cache and a second one. Clients of both servers find both.
    let both = "a:\n  distributedCache: ~\nb:\n  replicatedCache:\n    memory:\n      maxCount: 7\n";
    let second = RunningServer::joining("predefined", with_caches(both)).await;
    let mut other = second.client().await;
    assert_eq!(other.ask("a", get("key")).await.status, Status::Success);
    assert_eq!(other.ask("b", put("key", "value")).await.status, Status::Success);
    assert_eq!(client.ask("b", get("key")).await.status, Status::Success);
    for client in [&mut client, &mut other] {
        assert_eq!(names(client).await, r#"["___protobuf_metadata","a","b"]"#);
    }
    // A server whose file defines a cache differently does not start, and creates nothing.
    let different = "c:\n  localCache: ~\na:\n  distributedCache:\n    owners: 3\n";
    let refused = RunningServer::refused("predefined", with_caches(different)).await;
    assert_eq!(
        refused.to_string(),
        "caches.yaml: these caches exist with another configuration: a; remove and recreate them to apply the file"
    );
    assert_eq!(names(&mut client).await, r#"["___protobuf_metadata","a","b"]"#);
}

#[tokio::test]
async fn server_does_not_start_if_a_cache_of_its_file_conflicts() {
    for (text, task_error) in [
        (
            "a:\n  localCache:\n    persistence:\n      fileStore: ~\n",
            "caches.yaml: cache 'a': cache configuration: persistence: \
          this server has no directory for data",
        ),
        ("___a:\n  localCache: ~\n", "caches.yaml: cache '___a': cache name '___a' is reserved"),
    ] {
        let refused = RunningServer::refused("unable", with_caches(text)).await.to_string();
        assert!(refused.starts_with(task_error), "{refused}");
    }
    let two = "a:\n  localCache: ~\nb:\n  localCache:\n    owners: 2\n";
    let refused = CacheDefinitions::parse("f", two).unwrap_err().to_string();
    assert_eq!(refused, "f: cache 'b': cache configuration: owners of local-cache cannot be 2");
    let missing = CacheDefinitions::read("/does/not/exist").unwrap_err().to_string();
    assert!(missing.starts_with("/does/not/exist: "), "{missing}");
}

#[tokio::test]
async fn handle_creates_further_caches_on_a_running_server() {
    let alone = member("attribute-later", Duration::from_millis(10), "").await;
    let server = Server::builder().port(0).start(alone).await.unwrap();
    let handle = server.caches();
    let two = CacheDefinitions::parse("f", "a:\n  localCache: ~\nb:\n  localCache: ~\n").unwrap();
    assert_eq!(handle.make(&two).await.unwrap(), ["a", "b"]);
    assert_eq!(handle.make(&two).await.unwrap(), [""; 0]);
    server.serve_until(std::future::ready(())).await.unwrap();
    assert_eq!(handle.make(&two).await.unwrap_err().to_string(), "f: the server has ended");
}

/// Independent of the server that recreates the cache, and of the time.
#[tokio::test]
async fn removed_and_recreated_cache_is_empty() {
    let servers = RunningServer::three("made again").await;
    let mut clients = Vec::new();
    for server in &servers {
        clients.push(server.client().await);
    }
    for round in 0..15 {
        let [remover, maker] = [round % 3, round / 3 % 3];
        clients[remover].create("c").await;
        for key in ["a", "b", "c", "d", "e", "f", "g", "h"] {
            assert_eq!(clients[maker].ask("c", put(key, "before")).await.status, Status::Success);
        }
        assert_eq!(clients[remover].ask("", exec("@@cache@remove", "c")).await.status, Status::Success);
        clients[maker].create("c").await;
        for client in &mut clients {
            assert_eq!(size(client).await, 0, "round {round}");
        }
        assert_eq!(clients[maker].ask("", exec("@@cache@remove", "c")).await.status, Status::Success);
    }
}
