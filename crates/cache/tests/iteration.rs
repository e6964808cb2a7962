//! Iterations over all entries, from every member.

mod members;

use std::collections::BTreeSet;

use bytes::Bytes;
use consort_cache::{CacheConfig, CacheError, Event, Guarantee, IterationError, RawCache, Segment};
use members::{Cluster, close, open, wait_for_rebalance, within_timeout};

fn key(n: u32) -> Vec<u8> {
    format!("key {n}").into_bytes()
}

async fn fill(caches: &[RawCache], count: u32) {
    for n in 0..count {
        let cache = &caches[n as usize % caches.len()];
        within_timeout("put", cache.put(&key(n)[..], &n.to_be_bytes()[..])).await.expect("put");
    }
}

async fn keys_of(cache: &RawCache) -> Vec<Bytes> {
    let mut keys = Vec::new();
    let mut walk = cache.keys();
    while let Some(key) = within_timeout("next", walk.next()).await {
        keys.push(key.expect("a key"));
    }
    keys
}

#[tokio::test]
async fn every_member_iterates_over_all_entries_once() {
    let managers = Cluster::loopback("walks").join_all(["A", "B", "C"]).await;
    let caches = open(&managers, &CacheConfig::new("c")).await;
    wait_for_rebalance(&[&managers[0], &managers[1], &managers[2]], "c", 3).await;
    fill(&caches, 1_000).await;
    for cache in &caches {
        for (lanes, batch) in [(1, 3), (4, 100), (4, 512)] {
            let mut found = BTreeSet::new();
            let mut walk = cache.entries().batch(batch);
            if lanes == 1 {
                walk = walk.sequential();
            }
            while let Some(entry) = within_timeout("next", walk.next()).await {
                let (key_found, value) = entry.expect("an entry");
                let n = u32::from_be_bytes(value[..].try_into().expect("four bytes"));
                assert_eq!(key_found, key(n));
                assert!(found.insert(n), "{n} comes twice");
            }
            assert_eq!(found.len(), 1_000);
        }
        assert_eq!(within_timeout("size", cache.size()).await, Ok(1_000));
    }
    close(managers).await;
}

/// Each entry is returned once, with every method of taking entries and with several of them in turn.
#[tokio::test]
async fn iteration_returns_entries_as_bytes_of_the_batch() {
    let managers = Cluster::loopback("lie").join_all(["A", "B", "C"]).await;
    let caches = open(&managers, &CacheConfig::new("c")).await;
    wait_for_rebalance(&[&managers[0], &managers[1], &managers[2]], "c", 3).await;
    fill(&caches, 1_000).await;
    for kept_every in [usize::MAX, 3] {
        let mut walk = caches[0].entries().batch(300);
        let mut found = BTreeSet::new();
        for nth in 1.. {
            let number = if nth % kept_every == 0 {
                let Some(entry) = within_timeout("next", walk.next()).await else { break };
                u32::from_be_bytes(entry.expect("an entry").1[..].try_into().expect("four bytes"))
            } else {
                let Some(entry) = within_timeout("next", walk.next_bytes()).await else { break };
                let entry = entry.expect("an entry");
                let number = u32::from_be_bytes(entry.value.try_into().expect("four bytes"));
                assert_eq!(entry.key, key(number));
                number
            };
            assert!(found.insert(number), "{number} comes twice");
        }
        assert_eq!(found.len(), 1_000);
    }
    close(managers).await;
}

/// S004-19: whole responses have the same entries as the stream.
#[tokio::test]
async fn iteration_returns_whole_batches() {
    let managers = Cluster::loopback("answers").join_all(["A", "B", "C"]).await;
    let caches = open(&managers, &CacheConfig::new("c")).await;
    wait_for_rebalance(&[&managers[0], &managers[1], &managers[2]], "c", 3).await;
    fill(&caches, 1_000).await;
    let mut walk = caches[0].entries().batch(300);
    let (mut found, mut answers) = (BTreeSet::new(), 0);
    // An entry that was taken singly is not in the rest of its response.
    let (first, _) = within_timeout("next", walk.next()).await.expect("one").expect("an entry");
    found.insert(first);
    while let Some(batch) = within_timeout("next", walk.next_batch()).await {
        let batch = batch.expect("entries");
        assert!((1..=300).contains(&batch.len()), "{}", batch.len());
        answers += 1;
        let lies: Vec<_> = batch.bytes().map(|entry| (entry.key.to_vec(), entry.value.to_vec())).collect();
        for (entry, lies) in batch.zip(lies) {
            let (key, value) = entry.expect("raw bytes are decoded whatever they are");
            assert_eq!((&key[..], &value[..]), (&lies.0[..], &lies.1[..]));
            assert!(found.insert(key), "twice");
        }
    }
    assert_eq!(found.len(), 1_000);
    assert!(answers < 100, "{answers} answers");
    close(managers).await;
}

#[tokio::test]
async fn iteration_over_some_segments_returns_their_entries_only() {
    let managers = Cluster::loopback("segments").join_all(["A", "B"]).await;
    let caches = open(&managers, &CacheConfig::new("c")).await;
    fill(&caches, 500).await;
    let mut walk = caches[0].entries().segments([Segment(3), Segment(200)]).guarantee(Guarantee::AtMostOnce);
    let mut count = 0;
    while let Some(entry) = within_timeout("next", walk.next()).await {
        let (key, _) = entry.expect("an entry");
        assert!([3, 200].contains(&consort_grid::segment_of(&key, 256).0));
        count += 1;
    }
    let expected = (0..500).filter(|&n| [3, 200].contains(&consort_grid::segment_of(&key(n), 256).0));
    assert_eq!(count, expected.count());
    close(managers).await;
}

/// S004-18: the filter runs at the owners, and only the entries that it accepts are sent.
#[tokio::test]
async fn s004_18_a_transform_runs_on_the_owners() {
    let managers = Cluster::loopback("transforms").join_all(["A", "B", "C"]).await;
    let caches = open(&managers, &CacheConfig::new("c")).await;
    wait_for_rebalance(&[&managers[0], &managers[1], &managers[2]], "c", 3).await;
    fill(&caches, 300).await;
    let failed =
        within_timeout("next", caches[0].entries().transform("ending", "7").next()).await.expect("an error");
    assert!(failed.unwrap_err().to_string().ends_with("has no transform ending"));
    for cache in &caches {
        cache.register_transform("ending", |key, entry, ending| {
            key.ends_with(ending).then(|| Bytes::from([&entry.value[..], b"!"].concat()))
        });
    }
    let before = managers[0].traffic().bytes_received;
    let mut walk = caches[0].entries().transform("ending", "7");
    let mut count = 0;
    while let Some(entry) = within_timeout("next", walk.next()).await {
        let (key, value) = entry.expect("an entry");
        assert!(key.ends_with(b"7") && value.ends_with(b"!"));
        count += 1;
    }
    assert_eq!(count, 30);
    let all = 300 * 7;
    assert!(managers[0].traffic().bytes_received - before < all, "the others stay where they are");
    close(managers).await;
}

#[tokio::test]
async fn owners_reduce_their_entries_and_values_are_returned_without_keys() {
    let managers = Cluster::loopback("reductions").join_all(["A", "B", "C"]).await;
    let caches = open(&managers, &CacheConfig::new("c")).await;
    wait_for_rebalance(&[&managers[0], &managers[1], &managers[2]], "c", 3).await;
    fill(&caches, 300).await;
    let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().expect("four bytes"));
    let failed = within_timeout("next", caches[0].reduce("smallest", "").next()).await.expect("an error");
    assert!(failed.unwrap_err().to_string().ends_with("has no transform smallest"));
    for cache in &caches {
        cache.register_reduction("largest", move |made, _, entry, below| {
            let value = number(&entry.value);
            if value < number(below) && (made.is_empty() || value > number(made)) {
                *made = value.to_be_bytes().into();
            }
        });
    }
    let before = managers[0].traffic().bytes_received;
    let mut parts = caches[0].reduce("largest", Bytes::copy_from_slice(&200_u32.to_be_bytes()));
    let mut largest = 0;
    while let Some(part) = within_timeout("next", parts.next()).await {
        largest = largest.max(number(&part.expect("a part")));
    }
    assert_eq!(largest, 199);
    let received = managers[0].traffic().bytes_received - before;
    assert!(received < 20_000, "{received} bytes: parts, and no entries");

    let mut values = BTreeSet::new();
    let mut walk = caches[1].values();
    while let Some(value) = within_timeout("next", walk.next()).await {
        assert!(values.insert(number(&value.expect("a value"))));
    }
    assert_eq!(values, (0..300).collect());
    close(managers).await;
}

#[tokio::test]
async fn a_cleared_cache_is_empty_at_every_member() {
    let managers = Cluster::loopback("cleared").join_all(["A", "B"]).await;
    let caches = open(&managers, &CacheConfig::new("c")).await;
    fill(&caches, 700).await;
    assert_eq!(within_timeout("is_empty", caches[1].is_empty()).await, Ok(false));
    within_timeout("clear", caches[0].clear()).await.expect("cleared");
    assert_eq!(within_timeout("is_empty", caches[1].is_empty()).await, Ok(true));
    assert_eq!(keys_of(&caches[0]).await.len(), 0);
    assert_eq!(caches.iter().map(|cache| cache.local_len()).sum::<u64>(), 0);
    close(managers).await;
}

/// S004-5: open iterations use no threads, and end with their reader or with the member.
#[tokio::test]
async fn s004_5_a_thousand_iterations_may_be_open() {
    let managers = Cluster::loopback("thousand").join_all(["A", "B"]).await;
    let caches = open(&managers, &CacheConfig::new("c")).await;
    fill(&caches, 300).await;
    let threads = || std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    let before = threads();
    let mut walks = Vec::new();
    for _ in 0..1_000 {
        let mut walk = caches[0].entries().batch(4);
        within_timeout("next", walk.next()).await.expect("one").expect("an entry");
        walks.push(walk);
    }
    // Other tests of this process may start some meanwhile, but not hundreds.
    assert!(threads() < before + 100, "{before} threads before, {} now", threads());
    let mut last = walks.pop().expect("the last");
    walks.truncate(500);
    close(managers).await;
    let mut came = 0;
    while let Some(entry) = within_timeout("next", last.next()).await {
        came += 1;
        if entry.is_err() {
            break;
        }
    }
    assert!(came <= 5, "a batch that was there, then the error");
    assert!(last.next().await.is_none());
}

/// Every owner would get the same request, one after the other.
#[tokio::test]
async fn panic_of_a_function_fails_its_request_and_stops_no_member() {
    let managers = Cluster::loopback("panics").join_all(["A", "B", "C"]).await;
    let mut caches = Vec::new();
    for manager in &managers {
        let builder = manager.open(CacheConfig::new("c")).transform("fails", |key, stored, _| {
            assert!(*key != *b"7", "as the test wants it");
            Some(stored.value)
        });
        let builder = builder.reduction("fails too", |_, key, _, _| {
            assert!(*key != *b"7", "as the test wants it");
        });
        caches.push(within_timeout("open", builder.raw()).await.expect("opened"));
    }
    wait_for_rebalance(&[&managers[0], &managers[1], &managers[2]], "c", 3).await;
    let mut events =
        within_timeout("listen", caches[0].listen().transform("fails", "").start()).await.expect("begun");
    for n in 0..10 {
        within_timeout("put", caches[n % 3].put(n.to_string().as_bytes(), &b"v"[..])).await.expect("put");
    }
    let mut received = Vec::new();
    while received.len() < 10 {
        received.push(within_timeout("told", events.next()).await.expect("an event").expect("no error"));
    }
    assert_eq!(received.iter().filter(|event| **event == Event::Gap).count(), 1, "{received:?}");
    for cache in &caches {
        let mut walk = cache.entries().transform("fails", "");
        let error = loop {
            if let Err(error) = within_timeout("walk", walk.next()).await.expect("an error before the end") {
                break error;
            }
        };
        let messages = managers.iter().map(|manager| format!("fails has panicked at {}", manager.name()));
        assert!(messages.collect::<Vec<_>>().contains(&error.to_string()), "{error}");
        let mut parts = cache.reduce("fails too", "");
        let failed = within_timeout("reduce", parts.next()).await.expect("an error").unwrap_err();
        assert!(matches!(failed, CacheError::Iteration(IterationError::Panicked { .. })), "{failed}");
        assert_eq!(
            within_timeout("get", cache.get(&b"7"[..])).await.expect("got").as_deref(),
            Some(&b"v"[..])
        );
    }
    assert!(managers.iter().all(|manager| manager.view().is_some_and(|view| view.len() == 3)));
    close(managers).await;
}
