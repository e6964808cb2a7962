//! Every operation, from every member.

mod members;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use consort_cache::{
    Address, CacheConfig, CacheError, CacheManager, CacheMode, CacheOptions, CapacityFactor, Grouper,
    Grouping, KEY_BYTES_MAX, Lifetime, Limit, Location, MemoryBound, OperationError, RawCache, ReadFrom,
    WhenFull,
};
use members::{Cluster, close, open, wait_for_rebalance, within_timeout};

fn key(n: usize, at: usize) -> Vec<u8> {
    format!("{n}-{at}").into_bytes()
}

async fn put_and_get_everywhere(caches: &[RawCache]) {
    for (n, cache) in caches.iter().enumerate() {
        for at in 0..50 {
            within_timeout("put", cache.put(&key(n, at)[..], &key(at, n)[..])).await.expect("put");
        }
    }
    for cache in caches {
        for n in 0..caches.len() {
            for at in 0..50 {
                let got = within_timeout("get", cache.get(&key(n, at)[..])).await.expect("got");
                assert_eq!(got.as_deref(), Some(&key(at, n)[..]));
            }
        }
    }
    for at in 0..50 {
        let cache = &caches[at % caches.len()];
        assert!(within_timeout("remove", cache.remove(&key(0, at)[..])).await.expect("removed"));
        assert!(!within_timeout("remove", cache.remove(&key(0, at)[..])).await.expect("asked"));
    }
    for cache in caches {
        for at in 0..50 {
            assert!(!within_timeout("contains", cache.contains(&key(0, at)[..])).await.expect("asked"));
        }
    }
}

#[tokio::test]
async fn entry_put_by_one_member_is_read_by_all() {
    let managers = Cluster::loopback("puts").join_all(["A", "B", "C"]).await;
    put_and_get_everywhere(&open(&managers, &CacheConfig::new("c")).await).await;
    let replicated = CacheConfig { mode: CacheMode::Replicated, ..CacheConfig::new("everywhere") };
    put_and_get_everywhere(&open(&managers, &replicated).await).await;
    close(managers).await;
}

#[tokio::test]
async fn a_local_cache_is_its_members_own() {
    let managers = Cluster::loopback("local").join_all(["A", "B"]).await;
    let config = CacheConfig { mode: CacheMode::Local, ..CacheConfig::new("mine") };
    let mut caches = Vec::new();
    for manager in &managers {
        caches.push(within_timeout("open", manager.open(config.clone()).raw()).await.expect("opened"));
    }
    within_timeout("put", caches[0].put(&b"k"[..], &b"v"[..])).await.expect("put");
    assert_eq!(
        within_timeout("get", caches[0].get(&b"k"[..])).await.expect("got").as_deref(),
        Some(&b"v"[..])
    );
    assert_eq!(within_timeout("get", caches[1].get(&b"k"[..])).await.expect("got"), None);
    assert_eq!(within_timeout("size", caches[0].size()).await, Ok(1));
    close(managers).await;
}

#[tokio::test]
async fn a_write_invalidates_the_key_at_all_other_members() {
    let managers = Cluster::loopback("invalidation").join_all(["A", "B", "C"]).await;
    let config = CacheConfig { mode: CacheMode::Invalidation, ..CacheConfig::new("near") };
    let caches = open(&managers, &config).await;
    wait_for_rebalance(&[&managers[0], &managers[1], &managers[2]], "near", 3).await;
    let has = async |n: usize| within_timeout("get", caches[n].get(&b"k"[..])).await.expect("got").is_some();
    for n in [0, 1, 2, 0] {
        within_timeout("put", caches[n].put(&b"k"[..], &b"v"[..])).await.expect("put");
        assert_eq!([has(0).await, has(1).await, has(2).await], [n == 0, n == 1, n == 2]);
    }
    assert!(
        !within_timeout("remove", caches[1].remove(&b"k"[..])).await.expect("removed"),
        "it had none itself"
    );
    assert!(!has(0).await);
    for cache in &caches {
        within_timeout("put", cache.put(&[7; 3][..], &b"v"[..])).await.expect("put");
        within_timeout("put", cache.put(cache.name().as_bytes(), &b"v"[..])).await.expect("put");
    }
    within_timeout("clear", caches[0].clear()).await.expect("cleared");
    for cache in &caches {
        assert_eq!(within_timeout("size", cache.size()).await, Ok(0));
    }
    assert!(
        within_timeout("listen", caches[0].listen().start()).await.is_err(),
        "changes have no common order"
    );
    close(managers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entry_put_by_one_member_is_read_by_all_over_tcp() {
    let managers = Cluster::tcp("puts-tcp").join_all(["A", "B", "C"]).await;
    put_and_get_everywhere(&open(&managers, &CacheConfig::new("c")).await).await;
    close(managers).await;
}

#[tokio::test]
async fn conditional_writes_apply_or_change_nothing_at_every_member() {
    let managers = Cluster::loopback("conditions").join_all(["A", "B", "C"]).await;
    let mut caches = Vec::new();
    for manager in &managers {
        caches.push(within_timeout("open", manager.cache::<String, u64>("c")).await.expect("opened"));
    }
    wait_for_rebalance(&[&managers[0], &managers[1], &managers[2]], "c", 3).await;
    for n in 0..9 {
        let cache = &caches[n % 3];
        let key = format!("key {}", n / 3);
        let all = async {
            assert!(!cache.replace(&key, &1).await?);
            assert!(cache.put_if_absent(&key, &1).await?);
            assert!(!cache.put_if_absent(&key, &2).await?);
            assert!(!cache.replace_if_value(&key, &7, &3).await?);
            assert!(cache.replace_if_value(&key, &1, &3).await?);
            assert!(cache.replace(&key, &4).await?);
            assert_eq!(cache.swap(&key, &5).await?, Some(4));
            let entry = cache.get_with_metadata(&key).await?.expect("an entry");
            assert_eq!((entry.value, entry.lifetime), (5, Lifetime::FOREVER));
            let other = &caches[(n + 1) % 3];
            assert_eq!(other.get_with_metadata(&key).await?.map(|entry| entry.version), Some(entry.version));
            assert!(other.replace_if_version(&key, entry.version, &6).await?);
            assert!(!cache.replace_if_version(&key, entry.version, &7).await?);
            assert!(!cache.remove_if_version(&key, entry.version).await?);
            assert!(!cache.remove_if_value(&key, &5).await?);
            assert_eq!(cache.get(&key).await?, Some(6));
            assert!(cache.remove_if_value(&key, &6).await?);
            assert_eq!(other.take(&key).await?, None);
            cache.put(&key, &8).await?;
            let entry = other.get_with_metadata(&key).await?.expect("an entry");
            assert!(cache.remove_if_version(&key, entry.version).await?);
            cache.put(&key, &9).await?;
            assert_eq!(other.take(&key).await?, Some(9));
            Ok::<_, CacheError>(())
        };
        within_timeout("all", all).await.expect("no error");
    }
    close(managers).await;
}

#[tokio::test]
async fn computing_from_three_members_counts_exactly() {
    const EACH: u64 = 100;
    let managers = Cluster::loopback("computing").join_all(["A", "B", "C"]).await;
    let mut counting = tokio::task::JoinSet::new();
    let mut caches = Vec::new();
    for manager in &managers {
        caches.push(within_timeout("open", manager.cache::<String, u64>("c")).await.expect("opened"));
    }
    for cache in caches.iter().chain(&caches) {
        let cache = cache.clone();
        counting.spawn(async move {
            for _ in 0..EACH {
                cache.compute("n", |n| Some(n.unwrap_or(&0) + 1)).await.expect("computed");
            }
        });
    }
    within_timeout("counting", counting.join_all()).await;
    for cache in &caches {
        assert_eq!(cache.get("n").await, Ok(Some(6 * EACH)));
    }
    assert_eq!(caches[0].compute("n", |_| None).await, Ok(None));
    assert_eq!(caches[1].get("n").await, Ok(None));
    close(managers).await;
}

#[tokio::test]
async fn get_all_returns_keys_in_order() {
    let managers = Cluster::loopback("many").join_all(["A", "B", "C"]).await;
    let caches = open(&managers, &CacheConfig::new("c")).await;
    let keys: Vec<Vec<u8>> = (0..5_000).map(|at| key(0, at)).collect();
    let entries = keys.iter().map(|key| (&key[..], &key[..]));
    within_timeout("put_all", caches[0].put_all(entries)).await.expect("put");
    for cache in &caches {
        let got =
            within_timeout("get_all", cache.get_all(keys.iter().map(|key| &key[..]))).await.expect("got");
        assert!(got.iter().zip(&keys).all(|(got, key)| got.as_deref() == Some(&key[..])));
    }
    let some = keys.iter().step_by(2).map(|key| &key[..]);
    let removed = within_timeout("remove_all", caches[1].remove_all(some)).await.expect("removed");
    assert_eq!(removed, vec![true; 2_500]);
    let got =
        within_timeout("get_all", caches[2].get_all(keys.iter().map(|key| &key[..]))).await.expect("got");
    assert!(got.iter().enumerate().all(|(at, got)| got.is_some() == (at % 2 == 1)));
    let removed = within_timeout("remove_all", caches[2].remove_all(keys.iter().map(|key| &key[..]))).await;
    assert_eq!(removed.expect("removed").iter().filter(|was| **was).count(), 2_500);
    close(managers).await;
}

#[tokio::test]
async fn bulk_error_names_the_key_that_failed() {
    let managers = Cluster::loopback("which").join_all(["A", "B", "C"]).await;
    let caches = open(&managers, &CacheConfig::new("c")).await;
    let long = vec![1; KEY_BYTES_MAX + 1];
    let mut keys: Vec<Vec<u8>> = (0..3_000).map(|at| key(0, at)).collect();
    keys[2_017].clone_from(&long);
    keys[2_500] = long;
    let entries = keys.iter().map(|key| (&key[..], &b"v"[..]));
    let put = within_timeout("put_all", caches[0].put_all(entries)).await;
    let removed =
        within_timeout("remove_all", caches[0].remove_all(keys[2_000..].iter().map(|key| &key[..]))).await;
    for (result, at) in [(put, 2_017), (removed.map(drop), 17)] {
        let failed = result.unwrap_err();
        assert_eq!(failed.nth, at);
        assert!(matches!(failed.error, CacheError::Operation(OperationError::TooLarge { .. })), "{failed}");
        assert_eq!(failed.to_string(), format!("key {at}: key has 65537 bytes, 65536 are allowed"));
        assert_eq!(CacheError::from(failed.clone()), failed.error);
    }
    let before = within_timeout("get_all", caches[1].get_all(keys[..2_000].iter().map(|key| &key[..]))).await;
    assert!(before.expect("got").iter().all(Option::is_some), "those before it are done");
    let numbers = within_timeout("open", managers[0].cache::<u64, u64>("d")).await.expect("opened");
    let texts = within_timeout("open", managers[0].cache::<u64, String>("d")).await.expect("opened");
    within_timeout("put", texts.put(&1, "one")).await.expect("put");
    within_timeout("put", numbers.put(&2, &u64::MAX)).await.expect("put");
    let failed = within_timeout("get_all", texts.get_all(&[1, 3, 2])).await.unwrap_err();
    assert_eq!(failed.nth, 2);
    assert!(matches!(failed.error, CacheError::Encoding(_)), "{failed}");
    close(managers).await;
}

#[tokio::test]
async fn an_owners_get_sends_nothing() {
    let managers = Cluster::loopback("owners").join_all(["A", "B"]).await;
    let caches = open(&managers, &CacheConfig::new("c")).await;
    let keys: Vec<Vec<u8>> = (0..1_000).map(|at| key(0, at)).collect();
    let entries = keys.iter().map(|key| (&key[..], &key[..]));
    within_timeout("put_all", caches[0].put_all(entries)).await.expect("put");
    let messages = || managers.iter().map(|manager| manager.traffic().messages_sent).sum::<u64>();
    let before = messages();
    for cache in &caches {
        for key in &keys {
            // Without waiting, so that no other task can run.
            let got = futures_now(cache.get(&key[..])).expect("at once").expect("got");
            assert_eq!(got.as_deref(), Some(&key[..]));
        }
    }
    assert_eq!(messages(), before);
    // A read of the primary sends a request, except on the primary.
    let primary = caches[0].with_read_from(ReadFrom::Primary);
    for key in &keys {
        assert!(within_timeout("get", primary.get(&key[..])).await.expect("got").is_some());
    }
    assert!(messages() > before);
    close(managers).await;
}

/// Returns the result of a future that is ready when it is polled once.
fn futures_now<T>(future: impl Future<Output = T>) -> Option<T> {
    use std::task::{Context, Poll, Waker};
    match std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    }
}

#[tokio::test]
async fn a_member_without_capacity_uses_the_cache_and_owns_nothing() {
    let managers = Cluster::loopback("capacity").join_all(["A", "B", "C"]).await;
    let caches = open(&managers[..2], &CacheConfig::new("c")).await;
    let opening = managers[2].open(CacheConfig::new("c")).capacity(CapacityFactor::ZERO).raw();
    let guest = within_timeout("open", opening).await.expect("opened");
    put_and_get_everywhere(&[caches[0].clone(), caches[1].clone(), guest.clone()]).await;
    assert_eq!((guest.local_len(), caches[0].local_len()), (0, 100));
    // The member without data leaves first, because a handover needs another member.
    close(managers.into_iter().rev()).await;
}

#[tokio::test]
async fn impossible_operation_fails_and_changes_nothing() {
    let cluster = Cluster::loopback("limits");
    let a = cluster.join("A").await;
    let cache = within_timeout("open", a.open(CacheConfig::new("c")).raw()).await.expect("opened");
    let key = vec![1; KEY_BYTES_MAX + 1];
    let error = cache.put(&key[..], &b"v"[..]).await.unwrap_err();
    assert_eq!(error.to_string(), "key has 65537 bytes, 65536 are allowed");
    assert!(matches!(error, CacheError::Operation(OperationError::TooLarge { .. })));
    assert_eq!(cache.local_len(), 0);
    for limit in [Limit::Entries(0), Limit::Bytes(0)] {
        let nothing = MemoryBound { limit, when_full: WhenFull::Remove };
        let error =
            within_timeout("open", a.open(CacheConfig::new("n")).memory(nothing).raw()).await.unwrap_err();
        assert_eq!(error.to_string(), format!("cache n: memory cannot be {limit}"));
    }
    let other = within_timeout("open", a.cache::<u64, u64>("d")).await.expect("opened");
    let wrong = within_timeout("open", a.cache::<u64, String>("d")).await.expect("opened");
    other.put(&1, &300).await.expect("put");
    let error = wrong.get(&1).await.unwrap_err();
    assert!(matches!(error, CacheError::Encoding(_)), "{error}");
    within_timeout("close", a.close()).await.expect("closed");
    assert_eq!(cache.get(&b"k"[..]).await, Err(CacheError::Closed));
    assert_eq!(cache.put(&b"k"[..], &b"v"[..]).await, Err(CacheError::Closed));
}

#[tokio::test]
async fn full_cache_reports_its_limit_and_the_requested_size() {
    let managers = Cluster::loopback("full").join_all(["A", "B"]).await;
    let config = CacheConfig { mode: CacheMode::Distributed { owners: 1 }, ..CacheConfig::new("c") };
    let mut caches = Vec::new();
    for (manager, when_full) in managers.iter().zip([WhenFull::Refuse, WhenFull::Remove]) {
        let bound = MemoryBound { limit: Limit::Bytes(10_000), when_full };
        caches.push(
            within_timeout("open", manager.open(config.clone()).memory(bound).raw()).await.expect("opened"),
        );
    }
    wait_for_rebalance(&[&managers[0], &managers[1]], "c", 2).await;
    let mut refused = BTreeSet::new();
    for n in 0..20 {
        let error =
            within_timeout("put", caches[n % 2].put(&key(n, n)[..], &[7; 20_000][..])).await.unwrap_err();
        let CacheError::Operation(OperationError::MemoryFull { member, limit, needed }) = error.clone()
        else {
            panic!("{error}");
        };
        assert!(limit == Limit::Bytes(10_000) && (20_000..21_000).contains(&needed), "{limit} {needed}");
        let at = managers.iter().find(|manager| member == *manager.address()).expect("a member");
        assert!(error.to_string().starts_with(&format!("memory of {} is full: ", at.name())), "{error}");
        refused.insert(at.name());
    }
    assert_eq!(refused, BTreeSet::from(["A", "B"]));
    assert_eq!(caches[0].size().await, Ok(0));
    let other = [Limit::Bytes(0), Limit::Entries(7), Limit::Bytes(20_000)];
    assert_eq!(other.map(|limit| caches[0].set_memory_limit(limit)), [false, false, true]);
    close(managers).await;
}

#[tokio::test]
async fn a_lifetime_ends_everywhere() {
    let managers = Cluster::loopback("lifetimes").join_all(["A", "B", "C"]).await;
    let caches = open(&managers, &CacheConfig::new("c")).await;
    let lifetime = Lifetime { lifespan: Some(Duration::from_millis(300)), max_idle: None };
    let brief = caches[0].with_options(CacheOptions { lifetime, ..*caches[0].options() });
    within_timeout("put", brief.put(&b"k"[..], &b"v"[..])).await.expect("put");
    for cache in &caches {
        let gone = async {
            while let Some(entry) = cache.get_with_metadata(&b"k"[..]).await.expect("got") {
                assert!(entry.age < Duration::from_millis(300) && entry.lifetime == lifetime);
                tokio::task::yield_now().await;
            }
        };
        within_timeout("the end", gone).await;
    }
    close(managers).await;
}

#[allow(dead_code)]
fn futures_are_send(manager: &CacheManager, cache: &RawCache) {
    fn send(_: impl Send) {}
    send(manager.cache::<String, String>("c"));
    send(cache.get(&b"k"[..]));
    send(cache.put(&b"k"[..], &b"v"[..]));
    send(cache.get_all([&b"k"[..]]));
    send(cache.compute(&b"k"[..], |_| None));
    send(manager.clone().close());
}

#[tokio::test]
async fn keys_of_a_group_are_on_the_same_members_and_found_from_everywhere() {
    let managers = Cluster::loopback("groups").join_all(["A", "B", "C"]).await;
    let customer = |key: &[u8]| Cow::Owned(key.split(|byte| *byte == b'/').next().unwrap_or(key).to_vec());
    let by_customer = Grouping::Custom(Grouper::new("customer", move |key| customer(key)));
    for (name, grouping) in [("tags", Grouping::Tag), ("customers", by_customer)] {
        let config =
            CacheConfig { mode: CacheMode::Distributed { owners: 1 }, grouping, ..CacheConfig::new(name) };
        let caches = open(&managers, &config).await;
        let mut segments = BTreeSet::new();
        for n in 0..40_usize {
            let key = Bytes::from(format!("{{u7}}/{n}"));
            segments.insert(caches[0].config().segment_of(&key));
            within_timeout("put", caches[n % 3].put(&key, &key)).await.expect("put");
            assert_eq!(within_timeout("get", caches[(n + 1) % 3].get(&key)).await, Ok(Some(key)));
        }
        assert_eq!(segments.len(), 1);
        let held: Vec<u64> = caches.iter().map(|cache| cache.local_len()).collect();
        assert_eq!((held.iter().sum::<u64>(), held.iter().max()), (40, Some(&40)), "{held:?}");
    }
    close(managers).await;
}

/// S000-35: of members on two machines, owners of a segment are on both, wherever the first one is.
#[tokio::test]
async fn owners_are_on_different_machines() {
    let cluster = Cluster::loopback("machines");
    let mut managers = Vec::new();
    for (name, machine) in [("A", "m1"), ("B", "m1"), ("C", "m1"), ("D", "m2"), ("E", "m2")] {
        let location = Location { machine: Some(machine.into()), ..Location::default() };
        let joining = cluster.builder(name).location(location).connect("machines");
        managers.push(within_timeout("join", joining).await.expect("joined"));
    }
    let config = CacheConfig { mode: CacheMode::Distributed { owners: 2 }, ..CacheConfig::new("c") };
    let caches = open(&managers, &config).await;
    let is_on_the_second = |owner: &&Address| managers[3..].iter().any(|manager| manager.address() == *owner);
    for cache in &caches {
        let owners = cache.topology().expect("a topology").current;
        for segment in owners.segments() {
            let on_the_second = owners.owners(segment).filter(|owner| is_on_the_second(owner)).count();
            assert_eq!((owners.owners(segment).len(), on_the_second), (2, 1), "{segment:?}: {owners:?}");
        }
    }
    close(managers).await;
}
