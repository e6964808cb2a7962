//! Versions 2.0 to 2.9: the same operations, and errors that name the version if an operation is missing.

use std::time::Duration;

use bytes::Bytes;
use consort_client::{
    Client, ClientError, CounterConfig, CounterKind, EntryEvent, Event, EventKind, Filter, Lifetime,
    NearCacheConfig, ProtocolVersion,
};
use consort_hotrod::ops::{map, server};
use consort_hotrod::{RequestBody, ResponseBody, Status};

use crate::iteration::all;
use crate::listeners::next;
use crate::scripted_server::{ScriptedServer, begin, pong};
use crate::security::{to, users, works};
use crate::servers::{DISTRIBUTED, Running, eventually};
use crate::verbs::{check_sent_flags, flags, lifetimes, many_keys, single_keys, speaking, versions};

fn before_3_0() -> impl Iterator<Item = ProtocolVersion> {
    versions(ProtocolVersion::V2_0).filter(|version| *version < ProtocolVersion::V3_0)
}

/// Expects an operation newer than the version to fail with that error, and others to succeed.
#[track_caller]
fn done_from<T: std::fmt::Debug>(
    since: ProtocolVersion,
    spoken: ProtocolVersion,
    outcome: Result<T, ClientError>,
) -> Option<T> {
    match outcome {
        Ok(done) if spoken >= since => Some(done),
        Err(ClientError::Unsupported { needed, spoken: version, .. }) if spoken < since => {
            assert_eq!((needed, version), (since, spoken));
            None
        }
        other => panic!("{since} is needed, {spoken} is spoken: {other:?}"),
    }
}

/// S002-22.
#[tokio::test]
async fn s002_22_all_verbs_work_in_every_version_before_3_0() {
    let (server, _admin) = Running::with_cache("legacy", "c").await;
    let mut spoken = Vec::new();
    for version in before_3_0() {
        let client = speaking(&server, version).await.unwrap();
        single_keys(&client.raw("c")).await;
        lifetimes(&client).await;
        long_lifetimes(&client).await;
        bulk(&client).await;
        walks(&client, version).await;
        listeners(&client, version).await;
        near(&client).await;
        counters(&client, version).await;
        administration(&client, version).await;
        let cache = client.raw("c");
        cache.ping().await.unwrap();
        assert!(cache.statistics().await.unwrap()["stores"] > 0);
        let missing = client.raw("none").get(&b"k"[..]).await.unwrap_err();
        assert!(matches!(missing, ClientError::NoSuchCache(_)), "{missing}");
        done_from(ProtocolVersion::V4_1, version, cache.reader(&b"k"[..]).await);
        let duplicates = client.multimap::<u32, u32>("m").with_duplicates().get(&1).await;
        done_from(ProtocolVersion::V4_0, version, duplicates);
        client.close().await;
        spoken.push(version.to_string());
    }
    assert_eq!(spoken, ["2.0", "2.1", "2.2", "2.3", "2.4", "2.5", "2.6", "2.7", "2.8", "2.9"]);
}

/// Old servers take spans above 30 days as points in time.
async fn long_lifetimes(client: &Client) {
    let cache = client.cache::<String, u32>("c");
    let span = Duration::from_secs(40 * 24 * 60 * 60);
    cache.put_with("for long", &1, Lifetime::lifespan(span)).await.unwrap();
    let entry = cache.get_with_metadata("for long").await.unwrap().unwrap();
    let kept = entry.lifetime.lifespan.unwrap();
    assert!(kept.abs_diff(span) < Duration::from_secs(60), "{kept:?}");
}

/// Version 2.0 has no bulk requests: each key has its own.
async fn bulk(client: &Client) {
    many_keys(client).await;
    let cache = client.cache::<String, u32>("c");
    cache.put_all([("a", &1), ("b", &2), ("a", &3)]).await.unwrap();
    assert_eq!(cache.get_all(["a", "none", "b", "a"]).await.unwrap(), [Some(3), None, Some(2), Some(3)]);
    cache.clear().await.unwrap();
}

/// Version 2.0: one request per key, all sent before the first response.
#[tokio::test]
async fn s002_22_bulk_reads_send_one_request_per_key_in_version_2_0() {
    let played = ScriptedServer::listen().await;
    let uri = format!("hotrod://{}?protocol_version=2.0", played.at());
    let serving = async {
        let mut conversation = played.accept_without_pong().await;
        let ping = conversation.next().await.unwrap();
        conversation.reply(&ping, pong(0)).await;
        conversation
    };
    let (client, mut server) = tokio::join!(Client::connect(&uri), serving);
    let cache = client.unwrap().raw("c");
    let getting =
        begin(&cache, |cache| async move { cache.get_all([&b"a"[..], &b"b"[..], &b"a"[..]]).await });
    let mut requests = Vec::new();
    for key in ["a", "b"] {
        let request = server.next().await.unwrap();
        assert_eq!(request.body, RequestBody::Map(map::Request::Get(key.into())));
        requests.push(request);
    }
    for (request, value) in requests.iter().zip(["1", "2"]).rev() {
        server.reply(request, ResponseBody::Map(map::Response::Value(value.into()))).await;
    }
    let expected: Vec<Option<Bytes>> = ["1", "2", "1"].map(|value| Some(value.into())).into();
    assert_eq!(getting.await.unwrap().unwrap(), expected);
    let putting = begin(&cache, |cache| async move {
        cache.put_all([(&b"a"[..], &b"1"[..]), (&b"b"[..], &b"2"[..])]).await
    });
    for (key, value) in [("a", "1"), ("b", "2")] {
        let request = server.next().await.unwrap();
        let RequestBody::Map(map::Request::Put(to)) = &request.body else { panic!("{request:?}") };
        assert_eq!((&to.key[..], &to.value[..]), (key.as_bytes(), value.as_bytes()));
        server.reply(&request, ResponseBody::Empty).await;
    }
    putting.await.unwrap().unwrap();
}

async fn walks(client: &Client, version: ProtocolVersion) {
    let cache = client.cache::<u32, u32>("c");
    for n in 0..300 {
        cache.put(&n, &(n * 2)).await.unwrap();
    }
    let first = cache.entries().next().await.unwrap();
    if done_from(ProtocolVersion::V2_3, version, first).is_some() {
        let mut entries = all(cache.entries().batch(20)).await;
        entries.sort_unstable();
        assert!(entries.into_iter().eq((0..300).map(|n| (n, n * 2))));
        let mut keys = all(cache.keys()).await;
        keys.sort_unstable();
        assert!(keys.into_iter().eq(0..300));
        assert!(all(cache.keys().segments(0..100)).await.len() > 30);
    }
    let first = cache.keys().next().await.unwrap();
    done_from(ProtocolVersion::V2_3, version, first);
    let first = cache.entries_with_metadata().next().await.unwrap();
    if let Some((key, entry)) = done_from(ProtocolVersion::V2_5, version, first) {
        assert_eq!(entry.version, cache.get_with_metadata(&key).await.unwrap().unwrap().version);
    }
    let raw = client.raw("c");
    raw.put(&b"prefix"[..], &b"v"[..]).await.unwrap();
    let filtered = raw.entries().filter(Filter::key_prefix(&raw, "pre").unwrap()).next().await.unwrap();
    if let Some((key, _)) = done_from(ProtocolVersion::V2_4, version, filtered) {
        assert_eq!(key, "prefix");
    }
    raw.clear().await.unwrap();
}

async fn listeners(client: &Client, version: ProtocolVersion) {
    let cache = client.cache::<u32, u32>("c");
    cache.put(&7, &1).await.unwrap();
    let mut events = cache.listen().with_state().start().await.unwrap();
    let event = next(&mut events).await;
    assert!(
        matches!(&event, Event::Entry(EntryEvent { kind: EventKind::Existing, key: 7, .. })),
        "{event:?} in {version}"
    );
    assert_eq!(next(&mut events).await, Event::Complete);
    // Servers before 2.6 send events of all kinds.
    let mut removals = cache.listen().kinds([EventKind::Removed]).start().await.unwrap();
    cache.put(&7, &2).await.unwrap();
    cache.remove(&7).await.unwrap();
    for expected in [EventKind::Modified, EventKind::Removed] {
        let event = next(&mut events).await;
        assert!(
            matches!(&event, Event::Entry(EntryEvent { kind, key: 7, .. }) if *kind == expected),
            "{event:?}"
        );
    }
    let event = next(&mut removals).await;
    assert!(matches!(&event, Event::Entry(EntryEvent { kind: EventKind::Removed, key: 7, .. })), "{event:?}");
    let filtered = {
        let raw = client.raw("c");
        raw.listen().filter(Filter::key_prefix(&raw, "a").unwrap()).start().await
    };
    done_from(ProtocolVersion::V2_1, version, filtered);
}

/// No filters before 3.1; unwanted event kinds before 2.6.
async fn near(client: &Client) {
    let written = client.cache::<u32, u32>("c");
    let cache = written.near(NearCacheConfig::default()).await.unwrap();
    written.put(&1, &10).await.unwrap();
    for _ in 0..2 {
        assert_eq!(cache.get(&1).await.unwrap(), Some(10));
    }
    eventually("the entry is cached", async || {
        cache.get(&1).await.unwrap();
        cache.near_stats().unwrap().hits > 0
    })
    .await;
    written.put(&1, &11).await.unwrap();
    eventually("the event arrives", async || cache.get(&1).await.unwrap() == Some(11)).await;
    written.remove(&1).await.unwrap();
    eventually("the event arrives", async || cache.get(&1).await.unwrap().is_none()).await;
}

async fn counters(client: &Client, version: ProtocolVersion) {
    let counter = client.counter(&format!("in {version}"));
    let config = CounterConfig { kind: CounterKind::Strong, is_persistent: false, initial: 5 };
    let created = counter.create(config).await;
    if done_from(ProtocolVersion::V2_7, version, created) == Some(true) {
        assert_eq!(counter.config().await.unwrap(), config);
        assert_eq!(counter.add(3).await.unwrap(), 8);
        assert_eq!(counter.compare_and_swap(8, 1).await.unwrap(), 8);
        assert_eq!(counter.get().await.unwrap(), 1);
        assert!(client.counter_names().await.unwrap().iter().any(|name| name == counter.name()));
        counter.remove().await.unwrap();
    }
    done_from(ProtocolVersion::V3_1, version, counter.swap(1).await);
}

async fn administration(client: &Client, version: ProtocolVersion) {
    let admin = client.administration();
    let created = admin.create("made", DISTRIBUTED).await;
    if done_from(ProtocolVersion::V2_1, version, created).is_some() {
        assert_eq!(admin.names().await.unwrap(), ["c", "made"]);
        admin.remove("made").await.unwrap();
    }
}

/// S002-25: as S002-19 for versions before 3.0.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s002_25_flags_belong_to_a_handle_that_tasks_share_in_every_version_before_3_0() {
    let (server, _admin) = Running::with_cache("legacy-flags", "c").await;
    for version in before_3_0() {
        let client = speaking(&server, version).await.unwrap();
        flags(&client).await;
        client.close().await;
        check_sent_flags(version).await;
    }
}

/// S002-22: authentication uses the old version, too.
#[tokio::test]
async fn s002_22_users_are_known_in_every_version_before_3_0() {
    let server = Running::secured("legacy-users", "A", users()).await;
    works(&to(&server).user("admin", "secret").connect().await.unwrap()).await;
    for version in before_3_0() {
        let client = to(&server).user("admin", "secret").version(version).connect().await.unwrap();
        assert_eq!(client.cache::<String, u32>("c").get("apples").await.unwrap(), Some(3));
        let stranger = to(&server).user("admin", "wrong").version(version).connect().await.unwrap_err();
        assert!(stranger.to_string().contains("authentication failed"), "{stranger}");
    }
}

/// S002-22: the client detects a server of 2.4.
#[tokio::test]
async fn s002_22_an_old_server_is_detected_and_gets_requests_of_its_version() {
    let played = ScriptedServer::listen().await;
    let uri = format!("hotrod://{}", played.at());
    let serving = async {
        let mut tried = Vec::new();
        loop {
            let mut conversation = played.accept_without_pong().await;
            let ping = conversation.next().await.unwrap();
            assert_eq!(ping.body, RequestBody::Server(server::Request::Ping));
            tried.push(ping.header.version);
            if ping.header.version <= ProtocolVersion::V2_4 {
                conversation.reply(&ping, pong(0)).await;
                return (tried, conversation);
            }
            conversation.refuse(&ping, Status::UnknownVersion, "Unknown version").await;
            assert!(conversation.next().await.is_none(), "the client closes the connection");
        }
    };
    let (client, (tried, mut server)) = tokio::join!(Client::connect(&uri), serving);
    let tried: Vec<String> = tried.iter().map(ToString::to_string).collect();
    assert_eq!(tried, ["3.0", "2.9", "2.8", "2.7", "2.6", "2.5", "2.4"]);
    let reading = begin(&client.unwrap().raw("c"), |cache| async move { cache.get(&b"k"[..]).await });
    let request = server.next().await.unwrap();
    assert_eq!(request.header.version, ProtocolVersion::V2_4);
    server.reply(&request, ResponseBody::Map(map::Response::Value(Bytes::from("v")))).await;
    assert_eq!(reading.await.unwrap().unwrap().unwrap(), "v");
}

/// S002-22: the error names the refused version, and the client tries no other.
#[tokio::test]
async fn s002_22_a_forced_version_that_the_server_does_not_know_is_refused() {
    let played = ScriptedServer::listen().await;
    let uri = format!("hotrod://{}?protocol_version=2.8", played.at());
    let serving = async {
        let mut conversation = played.accept_without_pong().await;
        let ping = conversation.next().await.unwrap();
        assert_eq!(ping.header.version, ProtocolVersion::V2_8);
        conversation.refuse(&ping, Status::UnknownVersion, "Unknown version 28").await;
        assert!(conversation.next().await.is_none(), "the client closes the connection");
    };
    let (client, ()) = tokio::join!(Client::connect(&uri), serving);
    let text = client.unwrap_err().to_string();
    assert!(text.ends_with("the server refuses: Unknown version 28"), "{text}");
}
