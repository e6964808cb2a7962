//! Multimaps: several values per key.

use consort_client::{ClientError, ProtocolVersion};
use tokio::task::JoinSet;

use crate::servers::{DISTRIBUTED, Running};
use crate::verbs::{speaking, versions};

fn sorted(mut values: Vec<u32>) -> Vec<u32> {
    values.sort_unstable();
    values
}

#[tokio::test]
async fn a_key_has_each_value_once_in_every_version() {
    let (server, _admin) = Running::with_cache("multimaps", "m").await;
    for version in versions(ProtocolVersion::V2_7) {
        let client = speaking(&server, version).await.unwrap();
        let map = client.multimap::<String, u32>("m");
        assert!(map.get("a").await.unwrap().is_empty());
        assert!(map.get_with_metadata("a").await.unwrap().is_none());
        assert!(!map.contains_key("a").await.unwrap() && !map.contains_entry("a", &1).await.unwrap());
        assert!(!map.remove("a").await.unwrap() && !map.remove_entry("a", &1).await.unwrap());
        for value in [1, 2, 1] {
            map.put("a", &value).await.unwrap();
        }
        map.put("b", &3).await.unwrap();
        assert_eq!(sorted(map.get("a").await.unwrap()), [1, 2]);
        assert_eq!(map.size().await.unwrap(), 3);
        assert!(map.contains_key("a").await.unwrap());
        assert!(map.contains_entry("a", &2).await.unwrap() && !map.contains_entry("b", &2).await.unwrap());
        assert!(map.contains_value(&3).await.unwrap() && !map.contains_value(&4).await.unwrap());
        let entry = map.get_with_metadata("a").await.unwrap().unwrap();
        assert_eq!(sorted(entry.value), [1, 2]);
        assert!(map.remove_entry("a", &1).await.unwrap() && !map.remove_entry("a", &1).await.unwrap());
        let later = map.get_with_metadata("a").await.unwrap().unwrap();
        assert_eq!(later.value, [2]);
        assert_ne!(later.version, entry.version);
        assert!(map.remove_entry("a", &2).await.unwrap());
        assert!(!map.contains_key("a").await.unwrap(), "a key without values is none");
        assert!(map.remove("b").await.unwrap());
        assert_eq!(map.size().await.unwrap(), 0);
    }
}

#[tokio::test]
async fn with_duplicates_a_key_has_a_value_as_often_as_it_was_put() {
    let (server, client) = Running::with_cache("duplicates", "m").await;
    let once = client.multimap::<String, u32>("m");
    let map = once.with_duplicates();
    assert!(map.allows_duplicates() && !once.allows_duplicates());
    for value in [1, 2, 1, 1] {
        map.put("a", &value).await.unwrap();
    }
    assert_eq!(map.get("a").await.unwrap(), [1, 2, 1, 1]);
    assert_eq!(sorted(once.get("a").await.unwrap()), [1, 2], "each value once without duplicates");
    assert_eq!(map.size().await.unwrap(), 4);
    assert!(once.remove_entry("a", &1).await.unwrap());
    assert_eq!(map.get("a").await.unwrap(), [2, 1, 1], "one of them is gone");
    assert!(map.remove_entry("a", &1).await.unwrap());
    assert_eq!(map.get("a").await.unwrap(), [2], "all of them are gone");
    let old = speaking(&server, ProtocolVersion::V3_1).await.unwrap();
    let error = old.multimap::<String, u32>("m").with_duplicates().put("a", &2).await.unwrap_err();
    let ClientError::Unsupported { needed: ProtocolVersion::V4_0, .. } = error else { panic!("{error}") };
    assert_eq!(map.get("a").await.unwrap(), [2]);
}

#[tokio::test]
async fn reading_a_value_that_is_no_bucket_fails_and_keeps_it() {
    let (_server, client) = Running::with_cache("mixed", "m").await;
    let (cache, map) = (client.cache::<String, u32>("m"), client.multimap::<String, u32>("m"));
    cache.put("plain", &7).await.unwrap();
    map.put("many", &8).await.unwrap();
    for error in [
        map.get("plain").await.unwrap_err(),
        map.put("plain", &8).await.unwrap_err(),
        map.remove_entry("plain", &7).await.unwrap_err(),
        map.contains_entry("plain", &7).await.unwrap_err(),
    ] {
        assert!(error.to_string().contains("is not of a multimap"), "{error}");
    }
    assert_eq!(cache.get("plain").await.unwrap(), Some(7));
    assert_eq!(map.size().await.unwrap(), 1, "plain values are not counted");
    assert!(!map.contains_value(&7).await.unwrap());
    assert!(map.remove("plain").await.unwrap(), "a key can be freed");
}

/// Every change of a key's values is atomic on all servers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_value_is_lost_when_many_put_to_one_key_through_two_servers() {
    const CALLERS: u32 = 10;
    const VALUES: u32 = 20;
    let first = Running::start("contended", "A").await;
    let second = Running::start("contended", "B").await;
    let clients = [first.client().await, second.client().await];
    clients[0].administration().create("m", DISTRIBUTED).await.unwrap();
    let mut callers = JoinSet::new();
    for (number, client) in clients.iter().enumerate() {
        for caller in 0..CALLERS {
            let map = client.multimap::<String, u32>("m");
            callers.spawn(async move {
                for n in 0..VALUES {
                    let value = (number as u32 * CALLERS + caller) * VALUES + n;
                    map.put("key", &value).await.unwrap();
                    // Removes every other value.
                    if n % 2 == 1 {
                        assert!(map.remove_entry("key", &value).await.unwrap());
                    }
                }
            });
        }
    }
    while let Some(done) = callers.join_next().await {
        done.unwrap();
    }
    let expected: Vec<u32> = (0..2 * CALLERS * VALUES).filter(|value| value % 2 == 0).collect();
    assert_eq!(sorted(clients[1].multimap::<String, u32>("m").get("key").await.unwrap()), expected);
}
