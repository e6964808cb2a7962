//! The list of our client's checks with servers, in each version that it supports. Authentication is in `users`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use consort_client::{
    Cache, Client, ClientError, CounterConfig, CounterEvent, CounterEvents, CounterKind, CounterState,
    CounterValue, EntryEvent, Event, EventKind, Events, Filter, Lifetime, NearCacheConfig, ProtocolVersion,
    RawCache,
};
use consort_interop::{PATIENCE, eventually, eventually_or};
use tokio::time::timeout;

use crate::chunked_values;

/// Whose server it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Consort,
    Infinispan,
}

/// Two owners of each key, which is bytes.
pub(crate) const DISTRIBUTED: &str = r#"{"distributed-cache": {"mode": "SYNC", "owners": "2", "encoding": {"media-type": "application/octet-stream"}}}"#;

const CACHE: &str = "list";

/// The whole list, in every version.
pub(crate) async fn all(at: &str, kind: Kind) {
    let newest = connected(at, None).await;
    for version in VERSIONS {
        println!("list in {}", version.unwrap_or("the newest version"));
        let client = connected(at, version).await;
        by(&client, &newest, kind, version).await;
        client.close().await;
    }
}

/// Runs the whole list with a client of this version; a client of the newest version runs the parts that this version lacks.
pub(crate) async fn by(client: &Client, newest: &Client, kind: Kind, version: Option<&str>) {
    if is_from(version, "2.1") {
        administration(client).await;
    } else {
        newest.administration().create(CACHE, DISTRIBUTED).await.unwrap();
    }
    let cache = client.raw(CACHE);
    one_key(&cache).await;
    versions(&cache).await;
    lifetimes(newest, client).await;
    statistics(client).await;
    many_keys(&client.cache(CACHE)).await;
    if is_from(version, "2.1") {
        listeners(client).await;
        near(client).await;
    }
    if is_from(version, "2.3") {
        walks(client, kind, version).await;
    }
    if is_from(version, "2.7") {
        counters(client, version).await;
        chunked_values::multimaps(client, DISTRIBUTED, version).await;
    }
    chunked_values::chunked_values(client, CACHE, version).await;
    newest.administration().remove(CACHE).await.unwrap();
    assert!(!newest.administration().names().await.unwrap().iter().any(|name| name == CACHE));
}

/// The newest that both sides know, and each by itself.
const VERSIONS: [Option<&str>; 15] = [
    None,
    Some("2.0"),
    Some("2.1"),
    Some("2.2"),
    Some("2.3"),
    Some("2.4"),
    Some("2.5"),
    Some("2.6"),
    Some("2.7"),
    Some("2.8"),
    Some("2.9"),
    Some("3.0"),
    Some("3.1"),
    Some("4.0"),
    Some("4.1"),
];

/// Whether this version is spoken or a newer one.
pub(crate) fn is_from(version: Option<&str>, since: &str) -> bool {
    version.is_none_or(|version| version >= since)
}

async fn connected(at: &str, version: Option<&str>) -> Client {
    let uri = match version {
        None => format!("hotrod://{at}"),
        Some(version) => format!("hotrod://{at}?protocol_version={version}"),
    };
    Client::connect(&uri).await.unwrap_or_else(|error| panic!("{version:?}: {error}"))
}

async fn administration(client: &Client) {
    let admin = client.administration();
    let error = client.raw(CACHE).ping().await.unwrap_err();
    assert!(matches!(error, ClientError::NoSuchCache(_)), "{error}");
    let error = client.raw(CACHE).get(&b"k"[..]).await.unwrap_err();
    assert!(matches!(error, ClientError::NoSuchCache(_)), "{error}");
    admin.create(CACHE, DISTRIBUTED).await.unwrap();
    assert!(admin.create(CACHE, DISTRIBUTED).await.is_err(), "it is there");
    admin.get_or_create(CACHE, DISTRIBUTED).await.unwrap();
    assert_eq!(admin.names().await.unwrap().iter().filter(|name| *name == CACHE).count(), 1);
    client.raw(CACHE).ping().await.unwrap();
    for lifespan in ["3600000", "-1"] {
        admin.set_attribute(CACHE, "expiration.lifespan", lifespan).await.unwrap();
    }
    for (attribute, value) in [("clustering.owners", "3"), ("mine", "3"), ("expiration.lifespan", "soon")] {
        assert!(admin.set_attribute(CACHE, attribute, value).await.is_err(), "{attribute}");
    }
    admin.set_attribute(CACHE, "aliases", "its-alias").await.unwrap();
    admin.assign_alias("its-alias", CACHE).await.unwrap();
    client.raw("its-alias").ping().await.unwrap();
    assert!(admin.assign_alias("its-alias", "no-cache").await.is_err(), "there is none");
    admin.create_template("mine", DISTRIBUTED).await.unwrap();
    admin.create_from("made", "mine").await.unwrap();
    client.raw("made").ping().await.unwrap();
    admin.remove_template("mine").await.unwrap();
    assert!(admin.create_from("another", "mine").await.is_err(), "the template is gone");
    admin.remove("made").await.unwrap();
}

async fn one_key(cache: &RawCache) {
    let (key, one, two) = (&b"key"[..], &b"one"[..], &b"two"[..]);
    assert_eq!(cache.get(key).await.unwrap(), None);
    assert!(!cache.contains(key).await.unwrap());
    assert!(!cache.replace(key, one).await.unwrap());
    assert!(!cache.remove(key).await.unwrap());
    assert_eq!(cache.take(key).await.unwrap(), None);
    assert_eq!(cache.swap(key, one).await.unwrap(), None);
    assert!(!cache.put_if_absent(key, two).await.unwrap());
    assert_eq!(cache.get(key).await.unwrap().as_deref(), Some(one));
    assert!(cache.contains(key).await.unwrap());
    assert!(cache.replace(key, two).await.unwrap());
    assert_eq!(cache.swap(key, one).await.unwrap().as_deref(), Some(two));
    assert_eq!(cache.take(key).await.unwrap().as_deref(), Some(one));
    assert!(cache.put_if_absent(key, two).await.unwrap());
    assert!(cache.remove(key).await.unwrap());
    let large: Vec<u8> = (0..=255).cycle().take(1_000_000).collect();
    cache.put(key, &large[..]).await.unwrap();
    assert_eq!(cache.get(key).await.unwrap().as_deref(), Some(&large[..]));
    cache.clear().await.unwrap();
}

async fn versions(cache: &RawCache) {
    let (key, one, two) = (&b"key"[..], &b"one"[..], &b"two"[..]);
    cache.put(key, one).await.unwrap();
    let first = cache.get_with_metadata(key).await.unwrap().unwrap();
    assert_eq!((&first.value[..], first.lifetime), (one, Lifetime::FOREVER));
    cache.put(key, two).await.unwrap();
    assert!(!cache.replace_if_version(key, first.version, one).await.unwrap());
    assert!(!cache.remove_if_version(key, first.version).await.unwrap());
    let second = cache.get_with_metadata(key).await.unwrap().unwrap();
    assert_ne!(second.version, first.version);
    assert!(cache.replace_if_version(key, second.version, one).await.unwrap());
    let third = cache.get_with_metadata(key).await.unwrap().unwrap();
    assert!(cache.remove_if_version(key, third.version).await.unwrap());
    assert!(!cache.replace_if_version(key, third.version, one).await.unwrap());
    assert_eq!(cache.get_with_metadata(key).await.unwrap(), None);
}

/// In its own cache, because the event of an expiration may come later.
async fn lifetimes(newest: &Client, client: &Client) {
    const LIFETIMES: &str = "lifetimes";
    newest.administration().create(LIFETIMES, DISTRIBUTED).await.unwrap();
    let cache = client.cache::<String, u32>(LIFETIMES);
    let hour = Lifetime::lifespan(Duration::from_secs(3_600));
    cache.with_lifetime(hour).put("long", &1).await.unwrap();
    let entry = cache.get_with_metadata("long").await.unwrap().unwrap();
    assert_eq!((entry.value, entry.lifetime, entry.last_used), (1, hour, None));
    assert!(entry.created.unwrap().elapsed().unwrap_or_default() < Duration::from_secs(60));
    let idle = Lifetime { lifespan: None, max_idle: Some(Duration::from_secs(500)) };
    cache.put_with("idle", &2, idle).await.unwrap();
    let entry = cache.get_with_metadata("idle").await.unwrap().unwrap();
    assert_eq!((entry.lifetime, entry.created), (idle, None));
    // Before 3.0 a duration of more than 30 days is sent as a point in time.
    let span = Duration::from_secs(40 * 24 * 60 * 60);
    cache.put_with("for long", &4, Lifetime::lifespan(span)).await.unwrap();
    let kept = cache.get_with_metadata("for long").await.unwrap().unwrap().lifetime.lifespan.unwrap();
    assert!(kept.abs_diff(span) < Duration::from_secs(60), "{kept:?}");
    cache.put_with("short", &3, Lifetime::lifespan(Duration::from_millis(50))).await.unwrap();
    eventually("it expires", async || cache.get("short").await.unwrap().is_none()).await;
    newest.administration().remove(LIFETIMES).await.unwrap();
}

fn numbers(count: u32) -> BTreeMap<u32, u32> {
    (0..count).map(|n| (n, n * 2)).collect()
}

async fn many_keys(cache: &Cache<u32, u32>) {
    let entries = numbers(1_000);
    cache.put_all(&entries).await.unwrap();
    assert_eq!(cache.size().await.unwrap(), 1_000);
    assert_eq!(cache.get_all([&7, &5_000, &999, &7]).await.unwrap(), [Some(14), None, Some(1_998), Some(14)]);
    assert_eq!(cache.get_all(entries.keys()).await.unwrap().into_iter().flatten().sum::<u32>(), 999_000);
    assert_eq!(cache.remove_all([&7, &5_000]).await.unwrap(), [true, false]);
    assert_eq!(cache.size().await.unwrap(), 999);
    cache.clear().await.unwrap();
    assert_eq!(cache.size().await.unwrap(), 0);
}

async fn walks(client: &Client, kind: Kind, version: Option<&str>) {
    let cache = client.cache::<u32, u32>(CACHE);
    let entries = numbers(1_000);
    cache.put_all(&entries).await.unwrap();
    for batch in [1_024, 10] {
        let (mut walk, mut found) = (cache.entries().batch(batch), BTreeMap::new());
        while let Some(item) = walk.next().await {
            let (key, value) = item.unwrap();
            assert_eq!(found.insert(key, value), None, "{key} comes twice");
        }
        assert_eq!(found, entries, "batches of {batch}");
    }
    let mut of_parts = BTreeSet::new();
    for part in [0..100, 100..256] {
        let mut walk = cache.keys().segments(part);
        while let Some(key) = walk.next().await {
            assert!(of_parts.insert(key.unwrap()));
        }
    }
    assert!(of_parts.iter().eq(entries.keys()));
    match cache.entries_with_metadata().next().await.unwrap() {
        Ok((key, entry)) => {
            assert_eq!((entry.value, entry.lifetime), (key * 2, Lifetime::FOREVER));
            assert_eq!(cache.get_with_metadata(&key).await.unwrap().unwrap().version, entry.version);
        }
        Err(error) => {
            let is_old = !is_from(version, "2.5");
            assert!(is_old && matches!(error, ClientError::Unsupported { .. }), "{error}");
        }
    }
    cache.clear().await.unwrap();
    let raw = client.raw(CACHE);
    raw.put(&b"a1"[..], &b"x"[..]).await.unwrap();
    raw.put(&b"b1"[..], &b"x"[..]).await.unwrap();
    let found = raw.keys().filter(Filter::key_prefix(&raw, "a").unwrap()).next().await.unwrap();
    match kind {
        _ if !is_from(version, "2.4") => {
            assert!(matches!(found, Err(ClientError::Unsupported { .. })), "{found:?}");
        }
        Kind::Consort => assert_eq!(found.unwrap(), "a1"),
        // Only ours have it, and others say so.
        Kind::Infinispan => assert!(matches!(found, Err(ClientError::Server { .. })), "{found:?}"),
    }
    raw.clear().await.unwrap();
}

async fn next<K>(events: &mut Events<K>) -> Event<K> {
    timeout(PATIENCE, events.next()).await.expect("an event").expect("no end").unwrap()
}

async fn next_event(events: &mut Events<u32>) -> (EventKind, u32) {
    match next(events).await {
        Event::Entry(EntryEvent { kind, key, .. }) => (kind, key),
        other => panic!("{other:?}"),
    }
}

/// The existing entries and the end of the state, in any order.
async fn state(events: &mut Events<u32>, count: usize) -> BTreeSet<u32> {
    let (mut found, mut is_complete) = (BTreeSet::new(), false);
    while found.len() < count || !is_complete {
        match next(events).await {
            Event::Entry(EntryEvent { kind: EventKind::Existing, key, .. }) => assert!(found.insert(key)),
            Event::Complete => is_complete = true,
            other => panic!("{other:?}"),
        }
    }
    found
}

async fn listeners(client: &Client) {
    let cache = client.cache::<u32, u32>(CACHE);
    let entries = numbers(50);
    cache.put_all(&entries).await.unwrap();
    let mut events = cache.listen().with_state().start().await.unwrap();
    assert!(state(&mut events, 50).await.iter().eq(entries.keys()));
    cache.put(&100, &1).await.unwrap();
    cache.put(&100, &2).await.unwrap();
    cache.remove(&100).await.unwrap();
    cache.put_with(&101, &1, Lifetime::lifespan(Duration::from_millis(20))).await.unwrap();
    // Infinispan notices an expired entry when it is read.
    eventually("it expires", async || cache.get(&101).await.unwrap().is_none()).await;
    for expected in [
        (EventKind::Created, 100),
        (EventKind::Modified, 100),
        (EventKind::Removed, 100),
        (EventKind::Created, 101),
        (EventKind::Expired, 101),
    ] {
        assert_eq!(next_event(&mut events).await, expected);
    }
    drop(events);
    let mut removals = cache.listen().kinds([EventKind::Removed]).start().await.unwrap();
    cache.put(&100, &1).await.unwrap();
    cache.remove(&100).await.unwrap();
    assert_eq!(next_event(&mut removals).await, (EventKind::Removed, 100));
    drop(removals);
    let unknown = cache.listen().filter(Filter::named("nobody-has-this", [])).start().await.unwrap_err();
    assert!(matches!(unknown, ClientError::Server { .. }), "{unknown}");
    let raw = client.raw(CACHE);
    let gone = [Bytes::from_static(b"any")];
    let converted = raw.listen().converter("___eager-key-value-version-converter", gone);
    let mut events = converted.start().await.unwrap();
    raw.put(&b"key"[..], &b"value"[..]).await.unwrap();
    raw.remove(&b"key"[..]).await.unwrap();
    for expected in [EventKind::Created, EventKind::Removed] {
        let Event::Converted { kind, data } = next(&mut events).await else { panic!("it is converted") };
        assert_eq!((kind, &data[..10], data.len()), (expected, &b"\x03key\x05value"[..], 18));
    }
    drop(events);
    cache.clear().await.unwrap();
}

async fn near(client: &Client) {
    let plain = client.cache::<u32, u32>(CACHE);
    for bloom in [true, false] {
        plain.put(&1, &10).await.unwrap();
        let cache = plain
            .near(NearCacheConfig { bloom, max_entries: 100, ..NearCacheConfig::default() })
            .await
            .unwrap();
        assert_eq!(cache.get(&1).await.unwrap(), Some(10));
        assert_eq!(cache.get(&1).await.unwrap(), Some(10));
        let stats = cache.near_stats().unwrap();
        assert!(stats.hits == 1 && stats.is_on, "{stats:?}");
        // Through a handle that does not know of the near cache.
        plain.put(&1, &11).await.unwrap();
        reads(&cache, &plain, 1, Some(11)).await;
        plain.remove(&1).await.unwrap();
        reads(&cache, &plain, 1, None).await;
        if bloom {
            let events = cache.near_stats().unwrap().events;
            plain.put_all(&(1_000..2_000).map(|n| (n, n)).collect::<BTreeMap<_, _>>()).await.unwrap();
            plain.put_all(&(1_000..2_000).map(|n| (n, 0)).collect::<BTreeMap<_, _>>()).await.unwrap();
            plain.put(&1, &12).await.unwrap();
            assert_eq!(cache.get(&1).await.unwrap(), Some(12));
            plain.put(&1, &13).await.unwrap();
            reads(&cache, &plain, 1, Some(13)).await;
            let events = cache.near_stats().unwrap().events - events;
            assert!(events < 200 || plain_listens(client).await, "{events} events of keys that are not kept");
            // More keys than the filter has room for: the filter is rebuilt, and cached entries stay correct.
            for key in 1_000..2_000 {
                assert_eq!(cache.get(&key).await.unwrap(), Some(0));
            }
            eventually("the filter is made anew", async || {
                cache.near_stats().unwrap().updates > 0 || plain_listens(client).await
            })
            .await;
            plain.put(&1_999, &1).await.unwrap();
            reads(&cache, &plain, 1_999, Some(1)).await;
        }
        plain.clear().await.unwrap();
        reads(&cache, &plain, 1_998, None).await;
    }
}

/// Waits until the near cache returns the value: after the invalidation, if it has the key.
async fn reads(near: &Cache<u32, u32>, plain: &Cache<u32, u32>, key: u32, expected: Option<u32>) {
    let before = near.near_stats().unwrap();
    eventually_or(
        async || near.get(&key).await.unwrap() == expected,
        async || {
            let (at_server, after) = (plain.get(&key).await, near.near_stats());
            format!(
                "{key} never becomes {expected:?}: server {at_server:?}, before {before:?}, now {after:?}"
            )
        },
    )
    .await;
}

/// Returns whether the version has no filters: then a near cache receives all invalidations.
async fn plain_listens(client: &Client) -> bool {
    matches!(
        client.counter("nobody-has-this").swap(1).await,
        Err(ClientError::Unsupported { needed: ProtocolVersion::V3_1, .. })
    )
}

async fn counters(client: &Client, version: Option<&str>) {
    let name = |kind: &str| format!("{kind} {}", version.unwrap_or("newest"));
    let strong = client.counter(&name("strong"));
    assert!(!strong.is_defined().await.unwrap());
    let missing = strong.get().await.unwrap_err();
    assert!(matches!(missing, ClientError::NoSuchCounter(_)), "{missing}");
    let config = CounterConfig { kind: CounterKind::Strong, is_persistent: false, initial: 5 };
    assert!(strong.create(config).await.unwrap());
    assert!(!strong.create(config).await.unwrap());
    assert_eq!(strong.config().await.unwrap(), config);
    let mut events = strong.listen().start().await.unwrap();
    assert_eq!(strong.add(3).await.unwrap(), 8);
    counted(&mut events, 5, 8).await;
    assert_eq!(strong.compare_and_swap(7, 1).await.unwrap(), 8);
    assert_eq!(strong.compare_and_swap(8, 1).await.unwrap(), 8);
    counted(&mut events, 8, 1).await;
    drop(events);
    match strong.swap(-2).await {
        Ok(before) => assert_eq!(before, 1),
        Err(error) => {
            assert!(!is_from(version, "3.1") && matches!(error, ClientError::Unsupported { .. }), "{error}");
        }
    }
    strong.reset().await.unwrap();
    assert_eq!(strong.get().await.unwrap(), 5);

    let bounded = client.counter(&name("bounded"));
    let kind = CounterKind::Bounded { lower: 0, upper: 2 };
    assert!(bounded.create(CounterConfig { kind, is_persistent: false, initial: 0 }).await.unwrap());
    let mut events = bounded.listen().start().await.unwrap();
    assert_eq!(bounded.add(2).await.unwrap(), 2);
    counted(&mut events, 0, 2).await;
    let error = bounded.add(1).await.unwrap_err();
    assert!(matches!(error, ClientError::OutOfBounds(_)), "{error}");

    let weak = client.counter(&name("weak"));
    let kind = CounterKind::Weak { concurrency: 4 };
    assert!(weak.create(CounterConfig { kind, is_persistent: false, initial: 0 }).await.unwrap());
    weak.add(2).await.unwrap();
    weak.add(3).await.unwrap();
    eventually("all is added", async || weak.get().await.unwrap() == 5).await;
    let names = client.counter_names().await.unwrap();
    assert!(["strong", "bounded", "weak"].iter().all(|kind| names.contains(&name(kind))), "{names:?}");
    for counter in [strong, bounded, weak] {
        counter.remove().await.unwrap();
    }
}

/// The counter's listener receives this change next.
async fn counted(events: &mut CounterEvents, before: i64, now: i64) {
    let value = |value| CounterValue { value, state: CounterState::Valid };
    let expected = CounterEvent::Changed { old: value(before), new: value(now) };
    let event = timeout(PATIENCE, events.next()).await.expect("an event");
    assert_eq!(event.expect("no end").unwrap(), expected);
}

async fn statistics(client: &Client) {
    let cache = client.cache::<u32, u32>(CACHE);
    cache.put(&1, &1).await.unwrap();
    let counted = cache.statistics().await.unwrap();
    for name in ["stores", "hits", "misses", "currentNumberOfEntries"] {
        assert!(counted.contains_key(name), "{name} in {counted:?}");
    }
}

/// An iteration, a listener and a near cache while the server at which they began is killed.
pub(crate) async fn lose_a_server(client: &Client, lose: impl FnOnce()) {
    client.administration().create(CACHE, DISTRIBUTED).await.unwrap();
    let cache = client.cache::<u32, u32>(CACHE).with_timeout(PATIENCE);
    let near = cache.near(NearCacheConfig::default()).await.unwrap();
    let mut events = cache.listen().start().await.unwrap();
    let entries = numbers(3_000);
    cache.put_all(&entries).await.unwrap();
    eventually("both servers are known", async || client.servers().len() == 2).await;
    for key in 0..100 {
        assert_eq!(near.get(&key).await.unwrap(), Some(key * 2));
    }
    let (mut walk, mut found) = (cache.entries().batch(200), BTreeMap::new());
    for _ in 0..500 {
        let (key, value) = walk.next().await.unwrap().unwrap();
        assert_eq!(found.insert(key, value), None, "{key} comes twice");
    }
    lose();
    while let Some(item) = walk.next().await {
        let (key, value) = item.unwrap();
        assert_eq!(found.insert(key, value), None, "{key} comes twice");
    }
    assert_eq!(found, entries);
    while next(&mut events).await != Event::Gap {}
    eventually("the near cache receives events again", async || near.near_stats().unwrap().is_on).await;
    for key in 0..100 {
        cache.put(&key, &7).await.unwrap();
    }
    eventually("near values are the server's", async || {
        for key in 0..100 {
            if near.get(&key).await.unwrap() != Some(7) {
                return false;
            }
        }
        true
    })
    .await;
    // The listener may not have been there for the first of them.
    eventually("events arrive again", async || {
        cache.put(&5_000, &1).await.unwrap();
        cache.put(&5_000, &2).await.unwrap();
        matches!(timeout(Duration::from_millis(200), events.next()).await, Ok(Some(Ok(Event::Entry(_)))))
    })
    .await;
}
