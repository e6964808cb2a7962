//! Every operation in every version.

use std::time::Duration;

use bytes::Bytes;
use consort_client::{
    CacheOptions, Client, ClientError, ConnectError, Flags, KEY_BYTES_MAX, Lifetime, ProtocolVersion,
    RawCache, ServerAddress,
};
use consort_hotrod::ResponseBody;

use crate::scripted_server::{ScriptedServer, begin};
use crate::servers::{Running, eventually};

/// The supported versions from this one on.
pub(crate) fn versions(from: ProtocolVersion) -> impl Iterator<Item = ProtocolVersion> {
    let oldest = if cfg!(feature = "legacy") { ProtocolVersion::V2_0 } else { ProtocolVersion::V3_0 };
    ProtocolVersion::ALL.into_iter().filter(move |version| *version >= from.max(oldest))
}

pub(crate) async fn speaking(server: &Running, version: ProtocolVersion) -> Result<Client, ConnectError> {
    let address = ServerAddress { host: server.at.ip().to_string().into(), port: server.at.port() };
    Client::builder().server(address).version(version).connect().await
}

/// S002-21.
#[tokio::test]
async fn s002_21_all_verbs_work_in_every_version_from_3_0_on() {
    let (server, admin) = Running::with_cache("verbs", "c").await;
    for version in versions(ProtocolVersion::V3_0) {
        let client = speaking(&server, version).await.unwrap();
        single_keys(&client.raw("c")).await;
        many_keys(&client).await;
        client.close().await;
    }
    single_keys(&admin.raw("c")).await;
}

pub(crate) async fn single_keys(cache: &RawCache) {
    let (key, one, two) = (&b"key"[..], &b"one"[..], &b"two"[..]);
    cache.clear().await.unwrap();
    assert_eq!(cache.get(key).await.unwrap(), None);
    assert!(!cache.contains(key).await.unwrap());
    assert!(!cache.replace(key, one).await.unwrap());
    assert!(!cache.remove(key).await.unwrap());
    assert_eq!(cache.take(key).await.unwrap(), None);
    assert!(cache.put_if_absent(key, one).await.unwrap());
    assert!(!cache.put_if_absent(key, two).await.unwrap());
    assert_eq!(cache.get(key).await.unwrap().as_deref(), Some(one));
    assert!(cache.contains(key).await.unwrap());
    assert!(cache.replace(key, two).await.unwrap());
    assert_eq!(cache.swap(key, one).await.unwrap().as_deref(), Some(two));
    assert_eq!(cache.size().await.unwrap(), 1);

    assert!(!cache.replace_if_value(key, two, two).await.unwrap(), "it has another one");
    assert!(cache.replace_if_value(key, one, two).await.unwrap());
    assert!(!cache.remove_if_value(key, one).await.unwrap(), "it has another one");
    let longer = |value: Option<&Bytes>| value.map(|value| [&value[..], b"!"].concat().into());
    assert_eq!(cache.compute(key, longer).await.unwrap().as_deref(), Some(&b"two!"[..]));
    assert_eq!(cache.compute(key, |_| None).await.unwrap(), None);
    assert!(cache.is_empty().await.unwrap());
    assert_eq!(cache.compute(key, longer).await.unwrap(), None);
    let first = |value: Option<&Bytes>| value.is_none().then(|| Bytes::from_static(b"one"));
    assert_eq!(cache.compute(key, first).await.unwrap().as_deref(), Some(one));
    assert!(cache.remove_if_value(key, one).await.unwrap());
    assert!(cache.put_if_absent(key, one).await.unwrap());
    assert!(!cache.is_empty().await.unwrap());

    let entry = cache.get_with_metadata(key).await.unwrap().unwrap();
    assert_eq!((&entry.value[..], entry.lifetime, entry.created), (one, Lifetime::FOREVER, None));
    cache.put(key, two).await.unwrap();
    assert!(!cache.replace_if_version(key, entry.version, one).await.unwrap(), "an old version");
    assert!(!cache.remove_if_version(key, entry.version).await.unwrap(), "an old version");
    let entry = cache.get_with_metadata(key).await.unwrap().unwrap();
    assert!(cache.replace_if_version(key, entry.version, one).await.unwrap());
    let entry = cache.get_with_metadata(key).await.unwrap().unwrap();
    assert!(cache.remove_if_version(key, entry.version).await.unwrap());
    assert!(!cache.replace_if_version(key, entry.version, one).await.unwrap(), "nothing is there");
    assert_eq!(cache.get_with_metadata(key).await.unwrap(), None);

    cache.put(key, one).await.unwrap();
    assert_eq!(cache.take(key).await.unwrap().as_deref(), Some(one));
    cache.put(key, one).await.unwrap();
    assert!(cache.remove(key).await.unwrap());
    assert_eq!(cache.swap(key, one).await.unwrap(), None);
}

pub(crate) async fn many_keys(client: &Client) {
    let cache = client.cache::<String, u32>("c");
    cache.clear().await.unwrap();
    let entries: Vec<(String, u32)> = (0..1_000).map(|n| (format!("key {n}"), n)).collect();
    cache.put_all(entries.iter().map(|(key, value)| (key.as_str(), value))).await.unwrap();
    assert_eq!(cache.size().await.unwrap(), 1_000);
    let asked = ["key 7", "none", "key 999", "key 7"];
    assert_eq!(cache.get_all(asked).await.unwrap(), [Some(7), None, Some(999), Some(7)]);
    assert_eq!(cache.remove_all(["key 7", "none"]).await.unwrap(), [true, false]);
    let keys = entries.iter().map(|(key, _)| key.as_str());
    let found = cache.get_all(keys).await.unwrap();
    assert_eq!(found.iter().flatten().count(), 999);
    cache.clear().await.unwrap();
    assert_eq!(cache.size().await.unwrap(), 0);
}

#[tokio::test]
async fn bulk_errors_name_the_affected_keys() {
    let (_server, client) = Running::with_cache("which", "c").await;
    let full = r#"{"distributed-cache": {"memory": {"max-size": "10000", "when-full": "EXCEPTION"}}}"#;
    client.administration().create("full", full).await.unwrap();
    let cache = client.raw("full");
    let (small, large, endless) = (vec![1], vec![7; 20_000], vec![7; KEY_BYTES_MAX + 1]);
    let failed =
        cache.put_all([("z", &small), ("user:7", &large), ("a", &small)].map(of_bytes)).await.unwrap_err();
    assert_eq!(failed.places, [2, 1, 0], "all of its request, in the order of the request");
    let message = failed.to_string();
    assert!(message.starts_with("one of the keys 2, 1, 0: "), "{message}");
    assert!(message.contains("key 1 of the request, \"user:7\": ISPN000514: memory of "), "{message}");
    let failed = cache.get_all([&b"a"[..], &endless]).await.unwrap_err();
    assert_eq!(failed.places, [1]);
    assert!(failed.to_string().starts_with("key 1: key of "), "{failed}");
    let failed = cache.remove_all([&endless[..], b"a"]).await.unwrap_err();
    assert!(failed.places == [0] && matches!(failed.error, ClientError::TooLarge { .. }), "{failed}");
}

fn of_bytes<'e>((key, value): (&'e str, &'e Vec<u8>)) -> (&'e [u8], &'e [u8]) {
    (key.as_bytes(), value)
}

#[tokio::test]
async fn values_are_of_their_types_and_large_ones_arrive() {
    let (_server, client) = Running::with_cache("types", "c").await;
    let cache = client.cache::<(u64, String), Vec<Option<i32>>>("c");
    let key = (7, "seven".to_owned());
    cache.put(&key, &vec![Some(1), None]).await.unwrap();
    assert_eq!(cache.get(&key).await.unwrap(), Some(vec![Some(1), None]));

    let raw = client.raw("c");
    let large: Vec<u8> = (0..=255).cycle().take(5_000_000).collect();
    raw.put(&b"large"[..], &large[..]).await.unwrap();
    assert_eq!(raw.get(&b"large"[..]).await.unwrap().as_deref(), Some(&large[..]));
    let error = raw.put(&vec![0; 70_000][..], &b"v"[..]).await.unwrap_err();
    assert!(matches!(error, ClientError::TooLarge { what: "key", length: 70_000, .. }), "{error}");
    assert!(!error.is_outcome_unknown());
    raw.put(&b"after"[..], &b"v"[..]).await.unwrap();
}

#[tokio::test]
async fn lifetimes_are_sent_and_returned() {
    let (_server, client) = Running::with_cache("lifetimes", "c").await;
    lifetimes(&client).await;
    let cache = client.cache::<String, u32>("c");
    cache.put_with("short", &2, Lifetime::lifespan(Duration::from_millis(1))).await.unwrap();
    eventually("the entry expires", async || cache.get("short").await.unwrap().is_none()).await;
}

pub(crate) async fn lifetimes(client: &Client) {
    let cache =
        client.cache::<String, u32>("c").with_lifetime(Lifetime::lifespan(Duration::from_secs(1_000)));
    cache.put("long", &1).await.unwrap();
    let entry = cache.get_with_metadata("long").await.unwrap().unwrap();
    assert_eq!(entry.lifetime, Lifetime::lifespan(Duration::from_secs(1_000)));
    let age = entry.created.unwrap().elapsed().unwrap_or_default();
    assert!(age < Duration::from_secs(60), "{age:?}");
    let idle = Lifetime { lifespan: None, max_idle: Some(Duration::from_secs(500)) };
    cache.put_with("idle", &3, idle).await.unwrap();
    let entry = cache.get_with_metadata("idle").await.unwrap().unwrap();
    assert_eq!((entry.lifetime, entry.created), (idle, None));
    assert!(entry.last_used.is_some());
}

/// S002-19: flags belong to the handle.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s002_19_flags_belong_to_a_handle_that_tasks_share() {
    let (_server, client) = Running::with_cache("flags", "c").await;
    flags(&client).await;
}

/// Tasks share handles with and without flags.
pub(crate) async fn flags(client: &Client) {
    let plain = client.cache::<u32, u32>("c");
    let flagged = plain.with_flags(Flags::SKIP_LISTENER_NOTIFICATION);
    let both = flagged.with_flags(Flags::SKIP_CACHE_LOAD);
    assert_eq!(plain.options().flags, Flags::NONE);
    assert_eq!(both.options().flags, Flags::SKIP_LISTENER_NOTIFICATION | Flags::SKIP_CACHE_LOAD);
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let (flagged, plain) = (flagged.clone(), plain.clone());
            tokio::spawn(async move {
                assert_eq!(flagged.options().flags, Flags::SKIP_LISTENER_NOTIFICATION);
                flagged.put(&task, &task).await.unwrap();
                assert_eq!(plain.get(&task).await.unwrap(), Some(task));
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(both.swap(&1, &2).await.unwrap(), Some(1), "with the operation's own flags");
    assert_eq!(flagged.with_options(CacheOptions::default()).options().flags, Flags::NONE);
    plain.clear().await.unwrap();
}

/// S002-19: requests carry the flags of their handle, and of no other.
#[tokio::test]
async fn s002_19_requests_carry_the_flags_of_their_handle() {
    for version in versions(ProtocolVersion::V3_0) {
        check_sent_flags(version).await;
    }
}

/// Checks the flags that a server of this version receives.
pub(crate) async fn check_sent_flags(version: ProtocolVersion) {
    let played = ScriptedServer::listen().await;
    let speaking = Client::builder().server(played.address()).version(version).connect();
    let (client, mut server) = tokio::join!(speaking, played.accept());
    let plain = client.unwrap().raw("c");
    let flagged = plain.with_flags(Flags::SKIP_INDEXING);
    // These versions mark default lifetimes by flags.
    let spans = Flags::DEFAULT_LIFESPAN | Flags::DEFAULT_MAX_IDLE;
    let spans = if version < ProtocolVersion::V2_2 { spans } else { Flags::NONE };
    for (cache, swaps, expected) in [
        (plain.clone(), false, spans),
        (flagged.clone(), false, Flags::SKIP_INDEXING | spans),
        (flagged, true, Flags::SKIP_INDEXING | Flags::FORCE_RETURN_PREVIOUS | spans),
        (plain.with_lifetime(Lifetime::FOREVER), true, Flags::FORCE_RETURN_PREVIOUS),
    ] {
        let writing = begin(&cache, async move |cache: RawCache| {
            let (key, value) = (&b"k"[..], &b"v"[..]);
            if swaps { cache.swap(key, value).await.map(drop) } else { cache.put(key, value).await }
        });
        let request = server.next().await.unwrap();
        assert_eq!((request.header.version, request.header.flags), (version, expected));
        server.reply(&request, ResponseBody::Empty).await;
        writing.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn caches_are_created_listed_and_removed() {
    let server = Running::start("administration", "A").await;
    let client = server.client().await;
    let admin = client.administration();
    let missing = client.raw("c").get(&b"k"[..]).await.unwrap_err();
    assert!(matches!(&missing, ClientError::NoSuchCache(name) if name == "c"), "{missing}");
    assert!(matches!(client.raw("c").ping().await, Err(ClientError::NoSuchCache(_))));
    admin.create("c", crate::servers::DISTRIBUTED).await.unwrap();
    client.raw("c").ping().await.unwrap();
    let twice = admin.create("c", crate::servers::DISTRIBUTED).await.unwrap_err();
    assert!(twice.to_string().contains("ISPN000507"), "{twice}");
    admin.get_or_create("c", crate::servers::DISTRIBUTED).await.unwrap();
    assert_eq!(admin.names().await.unwrap(), ["c"]);
    admin.remove("c").await.unwrap();
    assert_eq!(admin.names().await.unwrap(), Vec::<String>::new());
}
