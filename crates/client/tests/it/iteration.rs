//! Iterations: each entry comes once, whatever servers do, and prefetch is bounded.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use consort_client::{Client, ClientError, EntryStream, Filter, Lifetime, ProtocolVersion};
use consort_hotrod::ops::iteration::{Batch, Entry, Request, Response};
use consort_hotrod::{BitSet, RequestBody, ResponseBody, Status};
use futures_core::Stream;

use crate::scripted_server::{ScriptedConnection, ScriptedServer, begin, pong};
use crate::servers::{DISTRIBUTED, Running, eventually};
use crate::verbs::{speaking, versions};

pub(crate) async fn all<T>(mut stream: EntryStream<T>) -> Vec<T> {
    let mut found = Vec::new();
    while let Some(item) = stream.next().await {
        found.push(item.unwrap());
    }
    found
}

async fn filled(client: &Client, count: u32) -> BTreeMap<u32, u32> {
    let cache = client.cache::<u32, u32>("c");
    let entries: BTreeMap<u32, u32> = (0..count).map(|n| (n, n * 2)).collect();
    cache.put_all(&entries).await.unwrap();
    entries
}

#[tokio::test]
async fn iteration_returns_every_entry_once_in_every_version() {
    let (server, admin) = Running::with_cache("walks", "c").await;
    let entries = filled(&admin, 2_000).await;
    for version in versions(ProtocolVersion::V2_3) {
        let client = speaking(&server, version).await.unwrap();
        let cache = client.cache::<u32, u32>("c");
        let found = all(cache.entries()).await;
        assert_eq!(found.len(), 2_000);
        assert_eq!(found.into_iter().collect::<BTreeMap<_, _>>(), entries);
        let mut values = all(cache.values()).await;
        values.sort_unstable();
        assert!(values.iter().eq(entries.values()));
        client.close().await;
    }
}

#[tokio::test]
async fn batches_segments_and_filters_follow_the_request() {
    let (_server, client) = Running::with_cache("walk-settings", "c").await;
    let entries = filled(&client, 300).await;
    let cache = client.cache::<u32, u32>("c");
    for batch in [0, 1, 7, 100_000] {
        let mut keys = all(cache.keys().batch(batch)).await;
        keys.sort_unstable();
        assert!(keys.iter().eq(entries.keys()), "batches of {batch}");
    }
    let mut of_parts = BTreeSet::new();
    for part in [0..100, 100..200, 200..256] {
        let keys = all(cache.keys().segments(part)).await;
        assert!(keys.len() > 30 && keys.into_iter().all(|key| of_parts.insert(key)));
    }
    assert!(of_parts.iter().eq(entries.keys()));
    assert!(all(cache.keys().segments([])).await.is_empty());
    assert!(all(cache.keys().segments([300])).await.is_empty(), "there is no such segment");

    let raw = client.raw("c");
    raw.clear().await.unwrap();
    for (key, value) in [("a1", "x"), ("a2", "y"), ("b1", "x")] {
        raw.put(key.as_bytes(), value.as_bytes()).await.unwrap();
    }
    let mut by_key = all(raw.keys().filter(Filter::key_prefix(&raw, "a").unwrap())).await;
    by_key.sort();
    assert_eq!(by_key, ["a1", "a2"]);
    let mut by_value = all(raw.entries().filter(Filter::value_prefix(&raw, "x").unwrap())).await;
    by_value.sort();
    assert_eq!(by_value, [("a1".into(), "x".into()), ("b1".into(), Bytes::from("x"))]);
    let error = raw.entries().filter(Filter::named("mine", [])).next().await.unwrap().unwrap_err();
    assert!(matches!(&error, ClientError::Server { message, .. } if message.contains("mine")), "{error}");
}

#[tokio::test]
async fn iteration_returns_metadata_with_entries() {
    let (_server, client) = Running::with_cache("walk-metadata", "c").await;
    let cache = client.cache::<u32, u32>("c");
    let hour = Lifetime::lifespan(Duration::from_secs(3_600));
    cache.put(&1, &10).await.unwrap();
    cache.put_with(&2, &20, hour).await.unwrap();
    let mut found = all(cache.entries_with_metadata()).await;
    found.sort_by_key(|(key, _)| *key);
    for ((key, entry), lifetime) in found.iter().zip([Lifetime::FOREVER, hour]) {
        assert_eq!((entry.value, entry.lifetime), (key * 10, lifetime));
        let read = cache.get_with_metadata(key).await.unwrap().unwrap();
        assert_eq!(entry.version, read.version);
    }
    assert_eq!(found.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn iteration_returns_every_entry_once_while_servers_join_and_leave() {
    let mut servers = BTreeMap::new();
    for name in ["A", "B", "C"] {
        servers.insert(name, Running::start("walk-failover", name).await);
    }
    let client = servers["A"].client().await;
    client.administration().create("c", DISTRIBUTED).await.unwrap();
    let entries = filled(&client, 5_000).await;
    let cache = client.cache::<u32, u32>("c");
    // The client learns of servers from responses.
    eventually("all servers are known", async || {
        cache.get(&0).await.unwrap();
        client.servers().len() == 3
    })
    .await;
    servers["A"].owners.are(3).await;
    let mut stream = cache.entries().batch(90);
    let mut found = BTreeMap::new();
    for count in 0_u32.. {
        match count {
            1_000 => drop(servers.remove("B")),
            2_000 => drop(servers.insert("D", Running::start("walk-failover", "D").await)),
            3_500 => {
                servers["D"].owners.are(3).await;
                drop(servers.remove("C"));
            }
            _ => {}
        }
        let Some(item) = stream.next().await else { break };
        let (key, value) = item.unwrap();
        assert_eq!(found.insert(key, value), None, "{key} comes twice");
    }
    assert_eq!(found, entries);
}

/// Answers the start of an iteration; returns its parameters.
async fn begun(server: &mut ScriptedConnection) -> consort_hotrod::ops::iteration::Start {
    let ping = server.next().await.expect("a ping, for the topology");
    server.reply(&ping, pong(41)).await;
    start(server).await
}

async fn start(server: &mut ScriptedConnection) -> consort_hotrod::ops::iteration::Start {
    let request = server.next().await.expect("a beginning");
    let started = ResponseBody::Iteration(Response::Started("w".into()));
    server.reply(&request, started).await;
    match request.body {
        RequestBody::Iteration(Request::Start(start)) => start,
        other => panic!("{other:?}"),
    }
}

fn batch(keys: impl IntoIterator<Item = u32>) -> ResponseBody {
    let entry = |key: u32| Entry {
        metadata: None,
        key: Bytes::from(key.to_string()),
        values: [Bytes::from_static(b"v")].into_iter().collect(),
    };
    let entries = keys.into_iter().map(entry).collect();
    ResponseBody::Iteration(Response::Batch(Batch { finished: BitSet::default(), projections: 1, entries }))
}

async fn next_asked(server: &mut ScriptedConnection) -> consort_hotrod::Request {
    let request = server.next().await.expect("a request");
    assert!(matches!(&request.body, RequestBody::Iteration(Request::Next(id)) if id.as_str() == "w"));
    request
}

#[tokio::test]
async fn prefetch_is_bounded_and_a_dropped_iteration_is_ended() {
    let played = ScriptedServer::listen().await;
    let (client, mut server) = played.client().await;
    let cache = client.raw("c");
    let streaming = begin(&cache, |cache| async move {
        let mut stream = cache.keys().batch(10);
        let first = stream.next().await.unwrap().unwrap();
        (stream, first)
    });
    assert_eq!(begun(&mut server).await.batch, 5);
    let request = next_asked(&mut server).await;
    server.reply(&request, batch(0..5)).await;
    let (mut stream, first) = streaming.await.unwrap();
    assert_eq!(first, "0");
    for key in 1..5 {
        assert_eq!(stream.next().await.unwrap().unwrap(), key.to_string());
    }
    let request = next_asked(&mut server).await;
    server.reply(&request, batch(5..10)).await;
    assert_eq!(stream.next().await.unwrap().unwrap(), "5");
    // Two pings, the start and two batches: the third is requested when there is room for it.
    assert_eq!(client.traffic().requests, 5);
    drop(stream);
    loop {
        let request = server.next().await.expect("the end");
        if let RequestBody::Iteration(Request::End(id)) = &request.body {
            assert_eq!(id.as_str(), "w");
            break;
        }
        assert!(matches!(&request.body, RequestBody::Iteration(Request::Next(_))), "{request:?}");
    }
}

#[tokio::test]
async fn an_iteration_dropped_while_it_starts_is_ended_on_the_server() {
    let played = ScriptedServer::listen().await;
    let (client, mut server) = played.client().await;
    let cache = client.raw("c");
    let mut stream = cache.keys();
    let waits = async |stream: &mut EntryStream<Bytes>| {
        let polled = std::future::poll_fn(|cx| {
            std::task::Poll::Ready(std::pin::Pin::new(&mut *stream).poll_next(cx).is_pending())
        });
        assert!(polled.await);
    };
    waits(&mut stream).await;
    let ping = server.next().await.unwrap();
    server.reply(&ping, pong(41)).await;
    eventually("the ping is answered", async || {
        waits(&mut stream).await;
        client.traffic().answers == 2
    })
    .await;
    waits(&mut stream).await;
    drop(stream);
    start(&mut server).await;
    let request = next_asked(&mut server).await;
    server.reply(&request, batch(0..5)).await;
    let end = server.next().await.unwrap();
    assert!(matches!(&end.body, RequestBody::Iteration(Request::End(_))), "{end:?}");
}

/// When the server has forgotten the iteration, the client restarts it and drops the entries it has yielded.
#[tokio::test]
async fn entries_delivered_before_an_iteration_is_lost_are_not_repeated() {
    let played = ScriptedServer::listen().await;
    let (client, mut server) = played.client().await;
    let cache = client.raw("c");
    let streaming = begin(&cache, |cache| async move { all(cache.keys()).await });
    begun(&mut server).await;
    let request = next_asked(&mut server).await;
    server.reply(&request, batch(0..3)).await;
    let request = next_asked(&mut server).await;
    let nothing = consort_hotrod::Response::new(request.header.id, Status::InvalidIteration, batch([]));
    server.send(&request, nothing).await;
    loop {
        // The end of the lost iteration, and a new start.
        let request = server.next().await.expect("another beginning");
        if let RequestBody::Iteration(Request::Start(_)) = &request.body {
            let started = ResponseBody::Iteration(Response::Started("w".into()));
            server.reply(&request, started).await;
            break;
        }
    }
    for keys in [vec![2, 3, 0], vec![1, 4], vec![]] {
        let request = next_asked(&mut server).await;
        server.reply(&request, batch(keys)).await;
    }
    assert_eq!(streaming.await.unwrap(), ["0", "1", "2", "3", "4"]);
}
