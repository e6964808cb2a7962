//! Listeners of caches and of managers, over channels.

mod members;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use consort_cache::{
    CacheConfig, CacheError, EntryEvent, Event, EventKind, Events, Flags, Lifetime, ManagerEvent, Previous,
};
use members::{Cluster, close, open, wait_for_rebalance, within_timeout};

type Raw = Events<Bytes, Bytes>;

async fn next(events: &mut Raw) -> Event {
    within_timeout("an event", events.next()).await.expect("the listener continues").expect("an event")
}

async fn entry(events: &mut Raw) -> (EventKind, Bytes, Option<Bytes>) {
    match next(events).await {
        Event::Entry(EntryEvent { kind, key, value, .. }) => (kind, key, value),
        other => panic!("{other:?}"),
    }
}

fn bytes(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

#[tokio::test]
async fn silent_handle_writes_send_no_events() {
    let managers = Cluster::loopback("silent").join_all(["A", "B", "C"]).await;
    let caches = open(&managers, &CacheConfig::new("c")).await;
    let mut all = Vec::new();
    for cache in &caches {
        all.push(within_timeout("start", cache.listen().start()).await.expect("started"));
    }
    for (nth, cache) in caches.iter().enumerate() {
        let silent = cache.with_flags(Flags::SKIP_LISTENERS);
        let key = [nth as u8];
        within_timeout("put", silent.put(&key[..], &b"one"[..])).await.expect("put");
        within_timeout("all", silent.put_all([(&b"all"[..], &b"one"[..])])).await.expect("put");
        within_timeout("put", cache.put(&key[..], &b"two"[..])).await.expect("put");
        within_timeout("clear", silent.clear()).await.expect("cleared");
        for events in &mut all {
            let (kind, event_key, _) = entry(events).await;
            assert_eq!((kind, &event_key[..]), (EventKind::Modified, &key[..]));
        }
    }
    close(managers).await;
}

#[tokio::test]
async fn every_member_gets_events_of_all_members() {
    let managers = Cluster::loopback("told").join_all(["A", "B", "C"]).await;
    let caches = open(&managers, &CacheConfig::new("c")).await;
    let mut all = Vec::new();
    for cache in &caches {
        all.push(within_timeout("start", cache.listen().start()).await.expect("started"));
    }
    let mut keys_only =
        within_timeout("start", caches[0].listen().keys_only().start()).await.expect("started");
    let key = &b"k"[..];
    within_timeout("put", caches[0].put(key, &b"one"[..])).await.expect("put");
    within_timeout("put", caches[1].put(key, &b"two"[..])).await.expect("put");
    within_timeout("remove", caches[2].remove(key)).await.expect("removed");
    let mortal = Lifetime { lifespan: Some(Duration::from_millis(100)), max_idle: None };
    within_timeout("put", caches[0].put_with(key, &b"three"[..], mortal)).await.expect("put");
    for events in &mut all {
        assert_eq!(entry(events).await, (EventKind::Created, bytes("k"), Some(bytes("one"))));
        assert_eq!(entry(events).await, (EventKind::Modified, bytes("k"), Some(bytes("two"))));
        assert_eq!(entry(events).await, (EventKind::Removed, bytes("k"), None));
        assert_eq!(entry(events).await, (EventKind::Created, bytes("k"), Some(bytes("three"))));
        assert_eq!(entry(events).await, (EventKind::Expired, bytes("k"), None));
    }
    assert_eq!(entry(&mut keys_only).await, (EventKind::Created, bytes("k"), None));
    close(managers).await;
    for events in &mut all {
        let end = within_timeout("the end", events.next()).await;
        assert!(matches!(end, Some(Err(CacheError::Closed))), "{end:?}");
        assert!(events.next().await.is_none());
    }
}

#[tokio::test]
async fn previous_value_is_sent_on_request() {
    let managers = Cluster::loopback("before").join_all(["A", "B", "C"]).await;
    let caches = open(&managers, &CacheConfig::new("c")).await;
    let mut all = Vec::new();
    for cache in &caches {
        all.push(within_timeout("start", cache.listen().with_previous().start()).await.expect("started"));
    }
    let mut others = within_timeout("start", caches[0].listen().start()).await.expect("started");
    let key = &b"k"[..];
    within_timeout("put", caches[0].put(key, &b"one"[..])).await.expect("put");
    let mortal = Lifetime { lifespan: Some(Duration::from_millis(100)), max_idle: None };
    within_timeout("put", caches[1].put_with(key, &b"two"[..], mortal)).await.expect("put");
    for (nth, events) in all.iter_mut().chain([&mut others]).enumerate() {
        let mut last = None;
        for before in [None, Some("one"), Some("two")] {
            let Event::Entry(event) = next(events).await else { panic!("no change") };
            let wanted = before.filter(|_| nth < 3).map(bytes);
            let wanted = wanted.map(|value| Previous { value, version: last.expect("an event before") });
            assert_eq!(event.previous, wanted);
            last = Some(event.version);
        }
    }
    close(managers).await;
}

#[tokio::test]
async fn typed_events_have_present_entries_and_then_changes() {
    let managers = Cluster::loopback("typed").join_all(["A", "B"]).await;
    let stock = within_timeout("open", managers[0].cache::<String, u32>("stock")).await.expect("opened");
    let other = within_timeout("open", managers[1].cache::<String, u32>("stock")).await.expect("opened");
    wait_for_rebalance(&[&managers[0], &managers[1]], "stock", 2).await;
    for n in 0..200_u32 {
        within_timeout("put", stock.put(&n.to_string(), &n)).await.expect("put");
    }
    let mut events = within_timeout("start", other.listen().with_state().start()).await.expect("started");
    let mut replica = BTreeMap::new();
    loop {
        match within_timeout("an event", events.next())
            .await
            .expect("the listener continues")
            .expect("an event")
        {
            Event::Entry(event) => replica.insert(event.key, event.value),
            Event::Complete => break,
            Event::Gap => panic!("nothing is missing"),
        };
    }
    assert_eq!(replica, (0..200).map(|n: u32| (n.to_string(), Some(n))).collect());
    within_timeout("put", stock.put("7", &70)).await.expect("put");
    let Some(Ok(Event::Entry(event))) = within_timeout("an event", events.next()).await else {
        panic!("an event")
    };
    assert_eq!((event.kind, &event.key[..], event.value), (EventKind::Modified, "7", Some(70)));
    close(managers).await;
}

#[tokio::test]
async fn acknowledged_change_has_been_delivered() {
    let managers = Cluster::tcp("before").join_all(["A", "B", "C"]).await;
    let caches = open(&managers, &CacheConfig::new("c")).await;
    let mut events = within_timeout("start", caches[2].listen().keys_only().start()).await.expect("started");
    for n in 0..300_u32 {
        within_timeout("put", caches[0].put(&n.to_be_bytes()[..], &b"v"[..])).await.expect("put");
        // Without waiting, because the event is already there.
        let event = events.next();
        let event = tokio::time::timeout(Duration::ZERO, event).await.expect("told before the write is done");
        assert!(matches!(event, Some(Ok(Event::Entry(event))) if event.key[..] == n.to_be_bytes()));
    }
    close(managers).await;
}

#[tokio::test]
async fn a_listener_continues_when_members_crash_and_join() {
    let cluster = Cluster::loopback("goes on");
    let [a, b, c] = cluster.join_all(["A", "B", "C"]).await;
    let managers = [a.clone(), b.clone(), c.clone()];
    let caches = open(&managers, &CacheConfig::new("c")).await;
    drop(managers);
    let mut events = within_timeout("start", caches[0].listen().start()).await.expect("started");
    let mut expected = 0_u32;
    let mut put = async |count: u32| {
        for n in expected..expected + count {
            within_timeout("put", caches[0].put(&n.to_be_bytes()[..], &b"v"[..])).await.expect("put");
        }
        expected += count;
    };
    put(100).await;
    drop(caches[2].clone());
    within_timeout("abort", c.abort()).await;
    put(100).await;
    let d = cluster.join("D").await;
    let joined = within_timeout("open", d.open(CacheConfig::new("c")).raw()).await.expect("opened");
    put(100).await;
    wait_for_rebalance(&[&a, &b, &d], "c", 3).await;
    put(100).await;
    let mut counts = BTreeMap::new();
    for _ in 0..400 {
        let (kind, key, _) = entry(&mut events).await;
        assert_eq!(kind, EventKind::Created);
        *counts.entry(key).or_insert(0) += 1;
    }
    assert_eq!(counts.len(), 400);
    assert!(counts.values().all(|times| *times == 1));
    assert_eq!(within_timeout("size", joined.size()).await, Ok(400));
    close([a, b, d]).await;
}

#[tokio::test]
async fn listeners_end_with_their_streams_and_a_closed_cache_has_none() {
    let managers = Cluster::loopback("ends").join_all(["A"]).await;
    let caches = open(&managers, &CacheConfig::new("c")).await;
    for _ in 0..100 {
        drop(within_timeout("start", caches[0].listen().start()).await.expect("started"));
    }
    let unknown = within_timeout("start", caches[0].listen().transform("nothing", "").start()).await;
    assert!(unknown.unwrap_err().to_string().ends_with("has no transform nothing"));
    close(managers).await;
    let closed = within_timeout("start", caches[0].listen().start()).await;
    assert!(matches!(closed, Err(CacheError::Closed)), "{closed:?}");
}

#[tokio::test]
async fn a_manager_reports_views_topologies_and_closed_caches() {
    let cluster = Cluster::loopback("manager");
    let a = cluster.join("A").await;
    let mut events = a.events();
    let cache = within_timeout("open", a.open(CacheConfig::new("c")).raw()).await.expect("opened");
    let b = cluster.join("B").await;
    let other = within_timeout("open", b.open(CacheConfig::new("c")).raw()).await.expect("opened");
    wait_for_rebalance(&[&a, &b], "c", 2).await;
    use consort_cache::Phase::{ReadNewWriteAll, ReadOldWriteAll, Stable};
    let (mut views, mut phases) = (0, Vec::new());
    loop {
        match within_timeout("an event", events.next()).await.expect("the listener continues") {
            ManagerEvent::View(view) => views += view.len(),
            ManagerEvent::Topology { cache, topology, .. } => {
                assert_eq!(&*cache, "c");
                phases.push(topology.phase);
                if topology.members.len() == 2 && topology.phase == Stable {
                    break;
                }
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(views, 2);
    assert_eq!(phases, [Stable, ReadOldWriteAll, ReadNewWriteAll, Stable]);
    drop((cache, other));
    within_timeout("leave", a.leave("c")).await.expect("left");
    loop {
        match within_timeout("an event", events.next()).await.expect("the listener continues") {
            ManagerEvent::Closed { cache } => break assert_eq!(&*cache, "c"),
            other => assert!(matches!(other, ManagerEvent::Topology { .. }), "{other:?}"),
        }
    }
    close([a, b]).await;
    while within_timeout("the end", events.next()).await.is_some() {}
}
