//! Near caches: hits, and no stale entries.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use consort_client::{
    Cache, Client, ClientError, Flags, Lifetime, NearCacheConfig, ProtocolVersion, RawCache,
};
use consort_hotrod::ops::event::{Event, EventData, EventKind};
use consort_hotrod::ops::{listener, map};
use consort_hotrod::{Metadata, Request, RequestBody, ResponseBody};
use tokio::task::JoinSet;

use crate::scripted_server::{ScriptedConnection, ScriptedServer, begin};
use crate::servers::{DISTRIBUTED, PATIENCE, Running, eventually};
use crate::verbs::{speaking, versions};

type Numbers = Cache<u32, u32>;

pub(crate) fn modified(listener: Bytes, key: &'static str) -> Event {
    let data = EventData::Key(key.into(), Some(2));
    Event { id: 0, kind: EventKind::Modified, listener, is_retried: false, data }
}

async fn near(client: &Client, near: NearCacheConfig) -> Numbers {
    client.cache::<u32, u32>("c").near(near).await.unwrap()
}

#[tokio::test]
async fn a_near_cache_serves_reads_until_an_entry_changes_in_every_version() {
    let (server, writer) = Running::with_cache("near", "c").await;
    let written = writer.cache::<u32, u32>("c");
    for version in versions(ProtocolVersion::V2_1) {
        let client = speaking(&server, version).await.unwrap();
        for bloom in [true, false] {
            written.put(&1, &10).await.unwrap();
            let cache = near(&client, NearCacheConfig { bloom, ..NearCacheConfig::default() }).await;
            assert_eq!(cache.get(&1).await.unwrap(), Some(10));
            let before = client.traffic().requests;
            for _ in 0..10 {
                assert_eq!(cache.get(&1).await.unwrap(), Some(10));
                let entry = cache.get_with_metadata(&1).await.unwrap().unwrap();
                assert_eq!((entry.value, entry.lifetime), (10, Lifetime::FOREVER));
            }
            assert_eq!(client.traffic().requests, before, "{version}");
            written.put(&1, &11).await.unwrap();
            eventually("the event arrives", async || cache.get(&1).await.unwrap() == Some(11)).await;
            // The client's own writes need no event.
            cache.put(&1, &12).await.unwrap();
            assert_eq!(cache.get(&1).await.unwrap(), Some(12));
            cache.put_all([(&1, &13)]).await.unwrap();
            assert_eq!(cache.get(&1).await.unwrap(), Some(13));
            assert_eq!(cache.swap(&1, &14).await.unwrap(), Some(13));
            assert_eq!(cache.get(&1).await.unwrap(), Some(14));
            cache.remove_all([&1]).await.unwrap();
            assert_eq!(cache.get(&1).await.unwrap(), None);
            cache.put(&1, &15).await.unwrap();
            assert_eq!(cache.get(&1).await.unwrap(), Some(15));
            cache.clear().await.unwrap();
            assert_eq!(cache.get(&1).await.unwrap(), None);
            let stats = cache.near_stats().unwrap();
            assert!(stats.hits >= 20 && stats.events > 0 && stats.is_on, "{stats:?}");
        }
        client.close().await;
    }
}

/// As in Infinispan: near caches rely on listeners, and these writes skip listeners.
#[tokio::test]
async fn writes_that_skip_listeners_leave_other_near_caches_stale() {
    let (server, writer) = Running::with_cache("near-silent", "c").await;
    let client = server.client().await;
    for bloom in [true, false] {
        let cache = near(&client, NearCacheConfig { bloom, ..NearCacheConfig::default() }).await;
        let loud = writer.cache::<u32, u32>("c");
        let silent = loud.with_flags(Flags::SKIP_LISTENER_NOTIFICATION);
        for key in [1, 2] {
            loud.put(&key, &10).await.unwrap();
            eventually("the entry is cached", async || {
                let hits = cache.near_stats().unwrap().hits;
                cache.get(&key).await.unwrap() == Some(10) && cache.near_stats().unwrap().hits > hits
            })
            .await;
        }
        silent.put(&1, &11).await.unwrap();
        loud.put(&2, &11).await.unwrap();
        eventually("the event of the other write arrives", async || cache.get(&2).await.unwrap() == Some(11))
            .await;
        assert_eq!(cache.get(&1).await.unwrap(), Some(10));
        assert_eq!(loud.get(&1).await.unwrap(), Some(11));
        // The client's own writes are invalidated without an event.
        cache.with_flags(Flags::SKIP_LISTENER_NOTIFICATION).put(&1, &12).await.unwrap();
        assert_eq!(cache.get(&1).await.unwrap(), Some(12));
    }
}

#[tokio::test]
async fn handles_share_a_near_cache_of_one_kind() {
    let (_server, client) = Running::with_cache("near-shared", "c").await;
    let first = near(&client, NearCacheConfig::default()).await;
    first.put(&1, &10).await.unwrap();
    assert_eq!(first.get(&1).await.unwrap(), Some(10));
    let second = near(&client, NearCacheConfig::default()).await.with_timeout(PATIENCE);
    assert_eq!(second.get(&1).await.unwrap(), Some(10));
    assert_eq!(second.near_stats().unwrap().hits, 1);
    let other = NearCacheConfig { max_entries: 5, ..NearCacheConfig::default() };
    let error = client.cache::<u32, u32>("c").near(other).await.unwrap_err();
    assert!(matches!(error, ClientError::NearCacheConflict(_)), "{error}");
    drop((first, second));
    assert_eq!(near(&client, other).await.near_stats().unwrap().hits, 0);
    let error = client.cache::<u32, u32>("none").near(other).await.unwrap_err();
    assert!(matches!(error, ClientError::NoSuchCache(_)), "{error}");
}

#[tokio::test]
async fn entries_with_a_short_lifespan_or_max_idle_are_not_cached_too_long() {
    let (_server, client) = Running::with_cache("near-lifetimes", "c").await;
    let cache = near(&client, NearCacheConfig::default()).await;
    let idle = Lifetime { lifespan: None, max_idle: Some(Duration::from_secs(100)) };
    cache.put_with(&1, &1, idle).await.unwrap();
    cache.put_with(&2, &2, Lifetime::lifespan(Duration::from_millis(300))).await.unwrap();
    for _ in 0..2 {
        assert_eq!(cache.get(&1).await.unwrap(), Some(1));
    }
    assert_eq!(cache.near_stats().unwrap().hits, 0, "the server counts its uses");
    eventually("the entry expires", async || cache.get(&2).await.unwrap().is_none()).await;
}

#[tokio::test]
async fn a_value_written_in_chunks_is_read_again() {
    let (_server, client) = Running::with_cache("near-pieces", "c").await;
    let cache = client.raw("c").near(NearCacheConfig::default()).await.unwrap();
    cache.put(&b"k"[..], &b"old"[..]).await.unwrap();
    assert_eq!(cache.get(&b"k"[..]).await.unwrap().unwrap(), "old");
    let large = vec![7; 300_000];
    let mut writer = cache.writer(&b"k"[..]).unwrap();
    writer.write(&large).await.unwrap();
    assert!(writer.finish().await.unwrap());
    assert_eq!(cache.get(&b"k"[..]).await.unwrap().unwrap(), large);
}

/// S002-18.
#[tokio::test]
async fn s002_18_servers_send_no_events_of_uncached_keys() {
    let (server, writer) = Running::with_cache("near-far", "c").await;
    let written = writer.cache::<u32, u32>("c");
    let all: BTreeMap<u32, u32> = (0..2_000).map(|n| (n, n)).collect();
    written.put_all(&all).await.unwrap();
    let client = server.client().await;
    let cache = near(&client, NearCacheConfig { max_entries: 200, ..NearCacheConfig::default() }).await;
    for key in 0..100 {
        assert_eq!(cache.get(&key).await.unwrap(), Some(key));
    }
    for key in 100..2_000 {
        written.put(&key, &0).await.unwrap();
    }
    written.put(&7, &70).await.unwrap();
    eventually("the event arrives", async || cache.get(&7).await.unwrap() == Some(70)).await;
    // The filter is half empty: fewer than 1 % of other keys cause events.
    let events = cache.near_stats().unwrap().events;
    assert!((1..40).contains(&events), "{events} events");

    // Evicted keys are removed from the filter.
    for key in 0..1_000 {
        assert!(cache.get(&key).await.unwrap().is_some());
    }
    eventually("the client sends a new filter", async || cache.near_stats().unwrap().updates > 0).await;
    assert!(cache.near_stats().unwrap().entries <= 200);
}

/// A near cache with its scripted server and the listener's id.
async fn played() -> (RawCache, ScriptedConnection, Bytes) {
    let played = ScriptedServer::listen().await;
    let (client, mut server) = played.client().await;
    let making =
        begin(
            &client.raw("c"),
            |cache: RawCache| async move { cache.near(NearCacheConfig::default()).await },
        );
    let request = server.next().await.unwrap();
    let RequestBody::Listener(listener::Request::AddBloom(id, bits)) = &request.body else {
        panic!("{request:?}")
    };
    assert_eq!(*bits, 80_000);
    server.reply(&request, ResponseBody::Empty).await;
    (making.await.unwrap().unwrap(), server, id.clone())
}

async fn read(cache: RawCache) -> Bytes {
    cache.get(&b"k"[..]).await.unwrap().unwrap()
}

async fn asked(server: &mut ScriptedConnection) -> Request {
    let request = server.next().await.unwrap();
    let RequestBody::Map(map::Request::GetWithMetadata(key)) = &request.body else { panic!("{request:?}") };
    assert_eq!(key, "k");
    request
}

fn value(value: &'static str) -> ResponseBody {
    ResponseBody::Map(map::Response::WithMetadata(Metadata::immortal(1), value.into()))
}

/// S002-18: in each order of response and event, the old value is not cached.
#[tokio::test]
async fn s002_18_a_key_changed_during_its_read_is_not_cached() {
    let (cache, mut server, id) = played().await;
    let reading = begin(&cache, read);
    let request = asked(&mut server).await;
    server.send_event(&modified(id.clone(), "k")).await;
    server.reply(&request, value("old")).await;
    assert_eq!(reading.await.unwrap(), "old");

    let reading = begin(&cache, read);
    let request = asked(&mut server).await;
    server.reply(&request, value("new")).await;
    assert_eq!(reading.await.unwrap(), "new");
    assert_eq!(read(cache.clone()).await, "new", "the entry is cached");
    assert_eq!(cache.near_stats().unwrap().hits, 1);

    server.send_event(&modified(id.clone(), "k")).await;
    eventually("the entry is invalidated", async || cache.near_stats().unwrap().entries == 0).await;
    let reading = begin(&cache, read);
    let request = asked(&mut server).await;
    // Both in one packet: the reader wakes after both.
    let answer =
        consort_hotrod::Response::new(request.header.id, consort_hotrod::Status::Success, value("newer"));
    let mut out = consort_hotrod::Output::new();
    answer.encode(request.context(), &mut out);
    modified(id.clone(), "k").encode(&mut out);
    server.write(&out.into_bytes()).await;
    assert_eq!(reading.await.unwrap(), "newer");
    assert_eq!(cache.near_stats().unwrap().entries, 0);
}

/// S002-18: without a listener nothing is cached.
#[tokio::test]
async fn s002_18_a_near_cache_is_emptied_when_its_connection_is_lost() {
    let played = ScriptedServer::listen().await;
    let (client, mut server) = played.client().await;
    let making =
        begin(
            &client.raw("c"),
            |cache: RawCache| async move { cache.near(NearCacheConfig::default()).await },
        );
    let request = server.next().await.unwrap();
    server.reply(&request, ResponseBody::Empty).await;
    let cache = making.await.unwrap().unwrap();
    let reading = begin(&cache, read);
    let request = asked(&mut server).await;
    server.reply(&request, value("v")).await;
    assert_eq!(reading.await.unwrap(), "v");
    assert_eq!(cache.near_stats().unwrap().entries, 1);
    drop(server);
    eventually("the near cache is off", async || !cache.near_stats().unwrap().is_on).await;
    assert_eq!(cache.near_stats().unwrap().entries, 0);
    let mut server = played.accept().await;
    let adding = server.next().await.unwrap();
    assert!(matches!(&adding.body, RequestBody::Listener(listener::Request::AddBloom(..))), "{adding:?}");
    // Until the registration is answered, reads are not cached.
    let reading = begin(&cache, read);
    let request = server.next().await.unwrap();
    assert!(matches!(&request.body, RequestBody::Map(map::Request::Get(_))), "{request:?}");
    server.reply(&request, ResponseBody::Map(map::Response::Value("w".into()))).await;
    assert_eq!(reading.await.unwrap(), "w");
    server.reply(&adding, ResponseBody::Empty).await;
    eventually("the near cache is on again", async || cache.near_stats().unwrap().is_on).await;
    assert_eq!(cache.near_stats().unwrap().entries, 0);
}

/// Pseudorandom numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

const KEYS: u64 = 80;

/// Reads and changes shared keys. Operations may fail while a server crashes.
async fn disturb(cache: Numbers, seed: u64) {
    let mut random = Random(seed);
    for _ in 0..600 {
        let (key, value) = (random.below(KEYS) as u32, random.below(1_000) as u32);
        let _ = match random.below(100) {
            0..80 => cache.get(&key).await.map(drop),
            80..90 => cache.put(&key, &value).await,
            90..94 => cache.remove(&key).await.map(drop),
            94..96 => cache.put_with(&key, &value, Lifetime::lifespan(Duration::from_secs(1))).await,
            96..98 => cache.swap(&key, &value).await.map(drop),
            98 => cache.put_all([(&key, &value), (&(key + 1), &value)]).await.map_err(ClientError::from),
            _ if random.below(20) == 0 => cache.clear().await,
            _ => Ok(()),
        };
    }
}

/// S002-18: several small near caches that evict, with and without filters; one server crashes, another
/// joins.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s002_18_no_change_is_missed() {
    let mut servers = BTreeMap::new();
    for name in ["A", "B", "C"] {
        servers.insert(name, Running::start("near-random", name).await);
    }
    let plain = servers["A"].client().await;
    plain.administration().create("c", DISTRIBUTED).await.unwrap();
    let truth = plain.cache::<u32, u32>("c").with_timeout(PATIENCE);
    let mut near_ones = Vec::new();
    for (at, bloom, max_entries) in [("A", true, 30), ("B", true, 1_000), ("B", false, 30), ("C", true, 60)] {
        let client = servers[at].client().await;
        let of = NearCacheConfig { bloom, max_entries, ..NearCacheConfig::default() };
        near_ones.push(near(&client, of).await.with_timeout(PATIENCE));
    }
    for round in 0..5_u64 {
        let mut disturbing = JoinSet::new();
        for (nth, cache) in near_ones.iter().chain([&truth]).enumerate() {
            for task in 0..2 {
                disturbing.spawn(disturb(cache.clone(), 1 + round * 100 + nth as u64 * 10 + task));
            }
        }
        match round {
            2 => {
                servers["A"].owners.are(3).await;
                drop(servers.remove("B"));
            }
            3 => drop(servers.insert("D", Running::start("near-random", "D").await)),
            _ => {}
        }
        while let Some(done) = disturbing.join_next().await {
            done.unwrap();
        }
        // A missed change would stay, so that this is never reached.
        eventually("near values are the servers'", async || {
            for key in 0..=KEYS as u32 {
                let Ok(true_value) = truth.get(&key).await else { return false };
                for cache in &near_ones {
                    if cache.get(&key).await.ok() != Some(true_value) {
                        return false;
                    }
                }
            }
            true
        })
        .await;
    }
    for cache in &near_ones {
        let stats = cache.near_stats().unwrap();
        assert!(stats.is_on && stats.hits > 100 && stats.events > 100, "{stats:?}");
    }
    assert!(near_ones[0].near_stats().unwrap().updates > 0);
}
