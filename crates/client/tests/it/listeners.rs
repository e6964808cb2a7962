//! Listeners: their events, lost servers and slow readers.

use std::time::Duration;

use bytes::Bytes;
use consort_client::{
    ClientError, EntryEvent, Event, EventKind, Events, Filter, Flags, Lifetime, ProtocolVersion, RawCache,
    Version,
};
use consort_hotrod::ops::listener::Request;
use consort_hotrod::{RequestBody, ResponseBody};
use tokio::time::timeout;

use crate::scripted_server::{ScriptedServer, begin};
use crate::servers::{DISTRIBUTED, PATIENCE, Running, connections_to, eventually};
use crate::verbs::{speaking, versions};

pub(crate) async fn next<K>(events: &mut Events<K>) -> Event<K> {
    timeout(PATIENCE, events.next()).await.expect("an event").expect("no end").unwrap()
}

/// The kind and key of the next event.
async fn entry(events: &mut Events<String>) -> (EventKind, String) {
    match next(events).await {
        Event::Entry(EntryEvent { kind, key, version, is_repeated: false }) => {
            let is_there = matches!(kind, EventKind::Created | EventKind::Modified | EventKind::Existing);
            assert_eq!(version.is_some_and(|version| version != Version(0)), is_there);
            (kind, key)
        }
        other => panic!("{other:?}"),
    }
}

/// A cache whose writes lock their keys.
const TRANSACTIONAL: &str = r#"{"distributed-cache": {"owners": 2, "transaction": {"mode": "NON_XA"}}}"#;

fn of(kind: EventKind, key: &str) -> (EventKind, String) {
    (kind, key.to_owned())
}

/// Covers all write operations, on one key and on all.
#[tokio::test]
async fn writes_that_skip_listeners_cause_no_events_in_every_version() {
    let (server, writer) = Running::with_cache("silent", "c").await;
    for (nth, settings) in [DISTRIBUTED, TRANSACTIONAL].into_iter().enumerate() {
        let name = format!("c{nth}");
        writer.administration().create(&name, settings).await.unwrap();
        for version in versions(ProtocolVersion::V2_1) {
            let client = speaking(&server, version).await.unwrap();
            let loud = client.cache::<String, u32>(&name);
            let mut events = loud.listen().start().await.unwrap();
            let silent = loud.with_flags(Flags::SKIP_LISTENER_NOTIFICATION);
            assert!(silent.put_if_absent("a", &1).await.unwrap());
            silent.put("a", &2).await.unwrap();
            assert_eq!(silent.swap("a", &3).await.unwrap(), Some(2), "with the operation's own flags");
            silent.put_all([("b", &1), ("d", &1)]).await.unwrap();
            loud.put("b", &2).await.unwrap();
            assert_eq!(entry(&mut events).await, of(EventKind::Modified, "b"));
            assert!(silent.remove("b").await.unwrap());
            silent.clear().await.unwrap();
            loud.put("a", &4).await.unwrap();
            assert_eq!(entry(&mut events).await, of(EventKind::Created, "a"), "{name}, {version}");
            silent.clear().await.unwrap();
            client.close().await;
        }
    }
}

#[tokio::test]
async fn chunked_writes_that_skip_listeners_cause_no_events() {
    let (_server, client) = Running::with_cache("silent-pieces", "c").await;
    let raw = client.raw("c");
    let mut events = raw.listen().start().await.unwrap();
    let mut writer = raw.with_flags(Flags::SKIP_LISTENER_NOTIFICATION).writer(&b"large"[..]).unwrap();
    for _ in 0..3 {
        writer.write(&[7; 100_000]).await.unwrap();
    }
    assert!(writer.finish().await.unwrap());
    raw.put(&b"k"[..], &b"v"[..]).await.unwrap();
    let Event::Entry(EntryEvent { key, .. }) = next(&mut events).await else { panic!() };
    assert_eq!(key, "k");
    assert_eq!(raw.get(&b"large"[..]).await.unwrap().unwrap().len(), 300_000);
}

#[tokio::test]
async fn events_arrive_in_order_on_the_shared_connection_in_every_version() {
    let (server, writer) = Running::with_cache("events", "c").await;
    let written = writer.cache::<String, u32>("c");
    for version in versions(ProtocolVersion::V2_1) {
        let client = speaking(&server, version).await.unwrap();
        let cache = client.cache::<String, u32>("c");
        let mut events = cache.listen().start().await.unwrap();
        written.put("k", &1).await.unwrap();
        cache.put("k", &2).await.unwrap();
        written.remove("k").await.unwrap();
        written.put_with("t", &1, Lifetime::lifespan(Duration::from_millis(1))).await.unwrap();
        for (kind, key) in [
            (EventKind::Created, "k"),
            (EventKind::Modified, "k"),
            (EventKind::Removed, "k"),
            (EventKind::Created, "t"),
            (EventKind::Expired, "t"),
        ] {
            assert_eq!(entry(&mut events).await, of(kind, key));
        }
        assert_eq!(connections_to(server.at.port()), 2, "the writer's, and the listener's");
        client.close().await;
        assert!(matches!(timeout(PATIENCE, events.next()).await.unwrap(), Some(Ok(Event::Gap))));
        let end = timeout(PATIENCE, events.next()).await.unwrap();
        assert!(matches!(end, Some(Err(ClientError::Closed))), "{end:?}");
        eventually("it is closed", async || connections_to(server.at.port()) == 1).await;
    }
}

#[tokio::test]
async fn initial_state_arrives_first_and_filters_and_kinds_apply() {
    let (_server, client) = Running::with_cache("event-state", "c").await;
    let cache = client.raw("c");
    for key in ["a1", "a2", "b1"] {
        cache.put(key.as_bytes(), &b"1"[..]).await.unwrap();
    }
    let listen = cache.listen().with_state().filter(Filter::key_prefix(&cache, "a").unwrap());
    let mut events = listen.start().await.unwrap();
    let mut found = Vec::new();
    loop {
        match next(&mut events).await {
            Event::Entry(EntryEvent { kind: EventKind::Existing, key, .. }) => found.push(key),
            Event::Complete => break,
            other => panic!("{other:?}"),
        }
    }
    found.sort();
    assert_eq!(found, ["a1", "a2"]);
    let mut removals = cache.listen().kinds([EventKind::Removed]).start().await.unwrap();
    cache.put(&b"b2"[..], &b"1"[..]).await.unwrap();
    cache.put(&b"a3"[..], &b"1"[..]).await.unwrap();
    cache.remove(&b"b2"[..]).await.unwrap();
    let event = next(&mut events).await;
    assert!(matches!(&event, Event::Entry(EntryEvent { key, .. }) if key == "a3"), "{event:?}");
    let event = next(&mut removals).await;
    let Event::Entry(EntryEvent { kind: EventKind::Removed, key, .. }) = event else { panic!("{event:?}") };
    assert_eq!(key, "b2");
}

/// Expects an event of this kind whose converted data begins with these bytes.
async fn made(events: &mut Events<Bytes>, kind: EventKind, made: &[u8]) {
    match next(events).await {
        Event::Converted { kind: event, data } => assert_eq!((event, &data[..made.len()]), (kind, made)),
        other => panic!("{other:?}"),
    }
}

/// With plain bytes, because the converter's format is the same in every version.
#[tokio::test]
async fn a_server_converter_sends_values_in_events_in_every_version() {
    let (server, writer) = Running::with_cache("event-converter", "c").await;
    let written = writer.raw("c");
    for version in versions(ProtocolVersion::V2_1) {
        let client = speaking(&server, version).await.unwrap();
        written.put(&b"there"[..], &b"0"[..]).await.unwrap();
        let listen = client.raw("c").listen().with_state();
        let listen = listen.converter("___eager-key-value-version-converter", [Bytes::from_static(b"gone")]);
        let mut events = listen.start().await.unwrap();
        made(&mut events, EventKind::Existing, b"\x05there\x010").await;
        assert_eq!(next(&mut events).await, Event::Complete);
        written.remove(&b"there"[..]).await.unwrap();
        written.put(&b"k"[..], &b"1"[..]).await.unwrap();
        written.put(&b"k"[..], &b"2"[..]).await.unwrap();
        written.remove(&b"k"[..]).await.unwrap();
        made(&mut events, EventKind::Removed, b"\x05there\x010").await;
        made(&mut events, EventKind::Created, b"\x01k\x011").await;
        made(&mut events, EventKind::Modified, b"\x01k\x012").await;
        made(&mut events, EventKind::Removed, b"\x01k\x012").await;
        client.close().await;
    }
}

/// The server answers at once, on another thread than the caller's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn initial_state_that_arrives_before_the_response_is_delivered() {
    let (_server, client) = Running::with_cache("event-soon", "c").await;
    let cache = client.cache::<String, u32>("c");
    cache.put("there", &1).await.unwrap();
    for _ in 0..2_000 {
        let mut events = cache.listen().with_state().start().await.unwrap();
        assert_eq!(entry(&mut events).await, of(EventKind::Existing, "there"));
        assert_eq!(next(&mut events).await, Event::Complete);
    }
}

#[tokio::test]
async fn events_with_values_have_the_value_of_their_write() {
    let (_server, client) = Running::with_cache("event-values", "c").await;
    let cache = client.cache::<String, u32>("c");
    cache.put("there", &1).await.unwrap();
    let mut events = cache.listen_entries().with_state().start().await.unwrap();
    let mut entry = async || match next(&mut events).await {
        Event::Entry(EntryEvent { kind, key: (key, value), version, .. }) => {
            (kind, key, value, version.is_some())
        }
        Event::Complete => (EventKind::Existing, "complete".to_owned(), None, false),
        other => panic!("{other:?}"),
    };
    assert_eq!(entry().await, (EventKind::Existing, "there".to_owned(), Some(1), true));
    assert_eq!(entry().await.1, "complete");
    cache.put("k", &2).await.unwrap();
    assert_eq!(entry().await, (EventKind::Created, "k".to_owned(), Some(2), true));
    cache.put("k", &3).await.unwrap();
    assert_eq!(entry().await, (EventKind::Modified, "k".to_owned(), Some(3), true));
    cache.remove("k").await.unwrap();
    assert_eq!(entry().await, (EventKind::Removed, "k".to_owned(), None, false));
}

#[tokio::test]
async fn listeners_that_servers_refuse_do_not_begin() {
    let (_server, client) = Running::with_cache("events-refused", "c").await;
    let cache = client.raw("c");
    for listen in [
        cache.listen().filter(Filter::named("mine", [Bytes::new()])),
        cache.listen().filter(Filter::key_prefix(&cache, "x").unwrap()).converter("mine", []),
    ] {
        let error = listen.start().await.unwrap_err();
        assert!(matches!(error, ClientError::Server { .. }), "{error}");
    }
    let error = client.raw("none").listen().start().await.unwrap_err();
    assert!(matches!(error, ClientError::NoSuchCache(_)), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_with_state_gets_the_state_again_when_its_server_is_lost() {
    let first = Running::start("events-failover", "A").await;
    let others = [Running::start("events-failover", "B").await, Running::start("events-failover", "C").await];
    let writer = others[0].client().await;
    writer.administration().create("c", DISTRIBUTED).await.unwrap();
    let written = writer.cache::<String, u32>("c").with_timeout(PATIENCE);
    written.put("before", &1).await.unwrap();
    let client = first.client().await;
    // A listener stays at its server; the client learns of others from responses.
    let cache = client.cache::<String, u32>("c");
    let mut events = cache.listen().with_state().start().await.unwrap();
    assert_eq!(entry(&mut events).await, of(EventKind::Existing, "before"));
    assert_eq!(next(&mut events).await, Event::Complete);
    eventually("all servers are known", async || {
        cache.get("before").await.unwrap();
        client.servers().len() == 3
    })
    .await;
    first.owners.are(3).await;
    drop(first);
    let mut event = next(&mut events).await;
    assert_eq!(event, Event::Gap);
    // Each failed attempt adds a gap.
    while event == Event::Gap {
        event = next(&mut events).await;
    }
    assert!(
        matches!(&event, Event::Entry(EntryEvent { kind: EventKind::Existing, key, .. }) if key == "before")
    );
    assert_eq!(next(&mut events).await, Event::Complete);
    written.put("after", &1).await.unwrap();
    assert_eq!(entry(&mut events).await, of(EventKind::Created, "after"));
}

#[tokio::test]
async fn a_slow_reader_has_a_gap_and_does_not_block_the_connection() {
    let (_server, client) = Running::with_cache("events-slow", "c").await;
    let cache = client.cache::<String, u32>("c");
    let mut events = cache.listen().queue_len_max(10).start().await.unwrap();
    for n in 0..100 {
        cache.put(&n.to_string(), &n).await.unwrap();
    }
    eventually("all events have arrived", async || client.traffic().events == 100).await;
    assert_eq!(next(&mut events).await, Event::Gap);
    let mut last = None;
    for _ in 0..9 {
        let (kind, key) = entry(&mut events).await;
        assert_eq!(kind, EventKind::Created);
        last = Some(key);
        if last.as_deref() == Some("99") {
            break;
        }
    }
    assert_eq!(last.as_deref(), Some("99"));
}

#[tokio::test]
async fn a_dropped_listener_is_removed_and_late_events_are_ignored() {
    let played = ScriptedServer::listen().await;
    let (client, mut server) = played.client().await;
    let listening = begin(&client.raw("c"), |cache: RawCache| async move { cache.listen().start().await });
    let request = server.next().await.unwrap();
    let RequestBody::Listener(Request::Add(listener)) = &request.body else { panic!("{request:?}") };
    server.reply(&request, ResponseBody::Empty).await;
    let events = listening.await.unwrap().unwrap();
    drop(events);
    let request = server.next().await.unwrap();
    assert_eq!(request.body, RequestBody::Listener(Request::Remove(listener.id.clone())));
    let late = crate::near::modified(listener.id.clone(), "k");
    server.send_event(&late).await;
    server.reply(&request, ResponseBody::Empty).await;
    let pinging = begin(&client.raw("c"), |cache: RawCache| async move { cache.ping().await });
    let request = server.next().await.unwrap();
    server.reply(&request, crate::scripted_server::pong(41)).await;
    pinging.await.unwrap().unwrap();
    assert_eq!(client.traffic().events, 1);
}
