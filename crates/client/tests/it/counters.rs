//! Counters shared by clients.

use std::time::Duration;

use bytes::Bytes;
use consort_client::{
    Client, ClientError, CounterConfig, CounterEvent, CounterEvents, CounterKind, CounterState, CounterValue,
    ProtocolVersion,
};
use consort_hotrod::ops::counter::{Action, Request};
use consort_hotrod::ops::event;
use consort_hotrod::{Output, RequestBody, Response, ResponseBody, Status};
use consort_server::limits::LISTENERS_MAX;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::scripted_server::{ScriptedConnection, ScriptedServer};
use crate::servers::{DISTRIBUTED, PATIENCE, Running, eventually};
use crate::verbs::{speaking, versions};

const STRONG: CounterConfig = CounterConfig { kind: CounterKind::Strong, is_persistent: false, initial: 5 };

#[tokio::test]
async fn a_counter_is_made_once_and_counts() {
    let server = Running::start("counters", "A").await;
    let client = server.client().await;
    let counter = client.counter("orders");
    let missing = counter.get().await.unwrap_err();
    assert!(matches!(&missing, ClientError::NoSuchCounter(name) if name == "orders"), "{missing}");
    assert!(!counter.is_defined().await.unwrap());
    assert!(counter.create(STRONG).await.unwrap());
    assert!(!counter.create(STRONG).await.unwrap());
    assert!(counter.is_defined().await.unwrap());
    assert_eq!(counter.config().await.unwrap(), STRONG);
    assert_eq!(counter.add(3).await.unwrap(), 8);
    assert_eq!(counter.compare_and_swap(7, 1).await.unwrap(), 8);
    assert_eq!(counter.compare_and_swap(8, 1).await.unwrap(), 8);
    assert_eq!(counter.swap(-2).await.unwrap(), 1);
    assert_eq!(counter.get().await.unwrap(), -2);
    counter.reset().await.unwrap();
    assert_eq!(counter.get().await.unwrap(), 5);
    assert_eq!(client.counter_names().await.unwrap(), ["orders"]);
}

#[tokio::test]
async fn a_bounded_counter_stays_within_its_bounds() {
    let server = Running::start("bounded", "A").await;
    let counter = server.client().await.counter("seats");
    let kind = CounterKind::Bounded { lower: 0, upper: 2 };
    assert!(counter.create(CounterConfig { kind, is_persistent: false, initial: 0 }).await.unwrap());
    assert_eq!(counter.add(2).await.unwrap(), 2);
    let error = counter.add(1).await.unwrap_err();
    assert!(matches!(&error, ClientError::OutOfBounds(name) if name == "seats"), "{error}");
    assert!(!error.is_outcome_unknown());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn additions_of_many_callers_and_two_clients_are_all_counted() {
    let server = Running::start("adding", "A").await;
    let clients = [server.client().await, server.client().await];
    assert!(clients[0].counter("sum").create(STRONG).await.unwrap());
    let mut callers = JoinSet::new();
    for client in &clients {
        for _ in 0..10 {
            let counter = client.counter("sum");
            callers.spawn(async move {
                for _ in 0..20 {
                    counter.add(1).await.unwrap();
                }
            });
        }
    }
    while let Some(done) = callers.join_next().await {
        done.unwrap();
    }
    assert_eq!(clients[1].counter("sum").get().await.unwrap(), 5 + 2 * 10 * 20);
}

async fn next(events: &mut CounterEvents) -> CounterEvent {
    timeout(PATIENCE, events.next()).await.expect("an event").expect("no end").unwrap()
}

const VALID: CounterState = CounterState::Valid;

/// Waits for this value. Successive changes may arrive as one event, but its old value is always the last
/// reported one.
async fn changed_to(events: &mut CounterEvents, last: &mut CounterValue, value: i64, state: CounterState) {
    while *last != (CounterValue { value, state }) {
        match next(events).await {
            CounterEvent::Changed { old, new } => {
                assert_eq!(old, *last);
                *last = new;
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn counter_events_have_the_old_and_the_new_value_in_every_version() {
    let server = Running::start("counter-events", "A").await;
    let other = server.client().await;
    for version in versions(ProtocolVersion::V2_7) {
        let client = speaking(&server, version).await.unwrap();
        let name = format!("in {version}");
        let counter = client.counter(&name);
        let missing = counter.listen().start().await.unwrap_err();
        assert!(matches!(&missing, ClientError::NoSuchCounter(of) if *of == name), "{missing}");
        let kind = CounterKind::Bounded { lower: 0, upper: 10 };
        counter.create(CounterConfig { kind, is_persistent: false, initial: 5 }).await.unwrap();
        let mut events = counter.listen().start().await.unwrap();
        let mut others = counter.listen().start().await.unwrap();
        let mut last = CounterValue { value: 5, state: VALID };
        other.counter(&name).add(3).await.unwrap();
        changed_to(&mut events, &mut last, 8, VALID).await;
        counter.compare_and_swap(8, 10).await.unwrap();
        changed_to(&mut events, &mut last, 10, VALID).await;
        assert!(matches!(counter.add(1).await, Err(ClientError::OutOfBounds(_))));
        changed_to(&mut events, &mut last, 10, CounterState::UpperBound).await;
        counter.reset().await.unwrap();
        changed_to(&mut events, &mut last, 5, VALID).await;
        // Dropping one listener does not end the other.
        drop(events);
        counter.add(-1).await.unwrap();
        let mut last = CounterValue { value: 5, state: VALID };
        changed_to(&mut others, &mut last, 4, VALID).await;
        client.close().await;
        assert_eq!(next(&mut others).await, CounterEvent::Gap);
        let end = timeout(PATIENCE, others.next()).await.unwrap();
        assert!(matches!(end, Some(Err(ClientError::Closed))), "{end:?}");
    }
}

/// Registers a listener at the scripted server; returns its id.
async fn heard(client: &Client, server: &mut ScriptedConnection) -> (CounterEvents, Bytes) {
    let begun = tokio::spawn(client.counter("orders").listen().queue_len_max(2).start());
    let request = server.next().await.unwrap();
    let RequestBody::Counter(Request::Of(name, Action::AddListener(id))) = &request.body else {
        panic!("{request:?}")
    };
    assert_eq!((name.as_str(), request.header.cache.as_str()), ("orders", "org.infinispan.COUNTER"));
    server.reply(&request, ResponseBody::Empty).await;
    (begun.await.unwrap().unwrap(), id.clone())
}

#[tokio::test]
async fn a_slow_reader_of_a_counter_has_a_gap_and_a_dropped_one_is_removed() {
    let played = ScriptedServer::listen().await;
    let (client, mut server) = played.client().await;
    let (mut events, id) = heard(&client, &mut server).await;
    let mut out = Output::new();
    for n in 0..4 {
        let (old, new) = ((n, VALID), (n + 1, VALID));
        event::CounterEvent { counter: "orders".into(), listener: id.clone(), old, new }.encode(&mut out);
    }
    server.write(&out.into_bytes()).await;
    eventually("all events have arrived", async || client.traffic().events == 4).await;
    assert_eq!(next(&mut events).await, CounterEvent::Gap);
    let CounterEvent::Changed { new, .. } = next(&mut events).await else { panic!("the newest is kept") };
    let mut last = new;
    changed_to(&mut events, &mut last, 4, VALID).await;
    drop(events);
    let request = server.next().await.unwrap();
    let removal = Action::RemoveListener(id);
    assert_eq!(request.body, RequestBody::Counter(Request::Of("orders".into(), removal)));
    server.reply(&request, ResponseBody::Empty).await;
}

#[tokio::test]
async fn listeners_of_a_counter_share_one_registration() {
    let played = ScriptedServer::listen().await;
    let (client, mut server) = played.client().await;
    let (mut first, id) = heard(&client, &mut server).await;
    // The second listener sends no request.
    let mut second = client.clone().counter("orders").listen().start().await.unwrap();
    let change = |n| event::CounterEvent {
        counter: "orders".into(),
        listener: id.clone(),
        old: (n, VALID),
        new: (n + 1, VALID),
    };
    let mut out = Output::new();
    change(1).encode(&mut out);
    server.write(&out.into_bytes()).await;
    let changed = |old, new| {
        let value = |value| CounterValue { value, state: VALID };
        CounterEvent::Changed { old: value(old), new: value(new) }
    };
    for events in [&mut first, &mut second] {
        assert_eq!(next(events).await, changed(1, 2));
    }
    // The registration ends with the last listener.
    drop(first);
    let mut third = client.counter("orders").listen().start().await.unwrap();
    let mut out = Output::new();
    change(2).encode(&mut out);
    server.write(&out.into_bytes()).await;
    for events in [&mut second, &mut third] {
        assert_eq!(next(events).await, changed(2, 3));
    }
    drop((second, third));
    let request = server.next().await.unwrap();
    let removal = Action::RemoveListener(id.clone());
    assert_eq!(request.body, RequestBody::Counter(Request::Of("orders".into(), removal)));
    server.reply(&request, ResponseBody::Empty).await;
    // The next listener has a new registration.
    let (_events, other) = heard(&client, &mut server).await;
    assert_ne!(other, id);
}

/// More than a server accepts on one connection.
#[tokio::test]
async fn many_can_listen_to_a_counter() {
    let server = Running::start("counter-many-listeners", "A").await;
    let client = server.client().await;
    let counter = client.counter("orders");
    counter.create(STRONG).await.unwrap();
    let mut listening = Vec::new();
    for _ in 0..2 * LISTENERS_MAX {
        listening.push(counter.listen().start().await.unwrap());
    }
    counter.add(1).await.unwrap();
    for events in &mut listening {
        changed_to(events, &mut CounterValue { value: 5, state: VALID }, 6, VALID).await;
    }
}

#[tokio::test]
async fn a_counter_that_is_gone_when_its_listener_is_added_anew_is_an_error() {
    let played = ScriptedServer::listen().await;
    let (client, mut first) = played.client().await;
    let (mut events, _) = heard(&client, &mut first).await;
    drop(first);
    assert_eq!(next(&mut events).await, CounterEvent::Gap);
    let mut second = played.accept().await;
    let request = second.next().await.unwrap();
    let missing = Response::new(request.header.id, Status::NotFound, ResponseBody::Empty);
    second.send(&request, missing).await;
    let mut received = timeout(PATIENCE, events.next()).await.unwrap();
    // Each failed attempt adds a gap.
    while matches!(received, Some(Ok(CounterEvent::Gap))) {
        received = timeout(PATIENCE, events.next()).await.unwrap();
    }
    assert!(
        matches!(&received, Some(Err(ClientError::NoSuchCounter(name))) if name == "orders"),
        "{received:?}"
    );
    assert!(timeout(PATIENCE, events.next()).await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_counter_listener_moves_to_another_server_when_its_server_is_lost() {
    let first = Running::start("counter-failover", "A").await;
    let others =
        [Running::start("counter-failover", "B").await, Running::start("counter-failover", "C").await];
    let writer = others[0].client().await;
    writer.administration().create("c", DISTRIBUTED).await.unwrap();
    let counted = writer.counter("orders");
    counted.create(STRONG).await.unwrap();
    let client = first.client().await;
    let mut events = client.counter("orders").listen().start().await.unwrap();
    let mut last = CounterValue { value: 5, state: VALID };
    assert_eq!(counted.add(1).await.unwrap(), 6);
    changed_to(&mut events, &mut last, 6, VALID).await;
    eventually("all servers are known", async || {
        client.raw("c").get(&b"k"[..]).await.unwrap();
        client.servers().len() == 3
    })
    .await;
    first.owners.are(3).await;
    drop(first);
    assert_eq!(next(&mut events).await, CounterEvent::Gap);
    eventually("changes arrive again", async || {
        // An addition during a server's crash may be lost.
        let _ = counted.add(1).await;
        let received = timeout(Duration::from_millis(100), events.next()).await;
        matches!(received, Ok(Some(Ok(CounterEvent::Changed { .. }))))
    })
    .await;
}
