//! Counters.

use bytes::Bytes;
use consort_hotrod::ops::counter::{Action, CounterConfig, CounterKind, Request, Response as Counted};
use consort_hotrod::ops::event::{CounterEvent, CounterState};
use consort_hotrod::{Incoming, Request as HotRodRequest, RequestBody, ResponseBody, Status, Text};
use consort_server::limits::{COUNTER_NAME_MAX, COUNTERS_MAX, COUNTERS_PER_LISTENER_MAX};

use crate::client::{Client, RunningServer, request};

const STRONG: CounterConfig = CounterConfig { kind: CounterKind::Strong, is_persistent: false, initial: 5 };

async fn ask(client: &mut Client, name: &str, action: Action) -> (Status, ResponseBody) {
    let request = RequestBody::Counter(Request::Of(name.into(), action));
    let response = client.ask("org.infinispan.COUNTER", request).await;
    (response.status, response.body)
}

fn value(value: i64) -> (Status, ResponseBody) {
    (Status::Success, ResponseBody::Counter(Counted::Value(value)))
}

const fn only(status: Status) -> (Status, ResponseBody) {
    (status, ResponseBody::Empty)
}

#[tokio::test]
async fn counter_counts_on_all_servers_and_survives_one() {
    let first = RunningServer::start("counters").await;
    let second = RunningServer::join("counters").await;
    let mut here = first.client().await;
    let mut there = second.client().await;
    assert_eq!(ask(&mut here, "n", Action::Get).await, only(Status::NotFound));
    assert_eq!(ask(&mut here, "n", Action::IsDefined).await, only(Status::NotExecuted));
    assert_eq!(ask(&mut here, "n", Action::Create(STRONG)).await, only(Status::Success));
    assert_eq!(ask(&mut there, "n", Action::Create(STRONG)).await, only(Status::NotExecuted));
    for before in [5, 25] {
        assert_eq!(ask(&mut here, "n", Action::AddAndGet(10)).await, value(before + 10));
        assert_eq!(ask(&mut there, "n", Action::AddAndGet(10)).await, value(before + 20));
    }
    second.end.send(()).unwrap();
    second.serving.await.unwrap();
    assert_eq!(ask(&mut here, "n", Action::Get).await, value(45));
    assert_eq!(ask(&mut here, "n", Action::CompareAndSwap(44, 1)).await, value(45));
    assert_eq!(ask(&mut here, "n", Action::CompareAndSwap(45, 1)).await, value(45));
    assert_eq!(ask(&mut here, "n", Action::GetAndSet(2)).await, value(1));
    assert_eq!(ask(&mut here, "n", Action::Remove).await, only(Status::Success));
    assert_eq!(ask(&mut here, "n", Action::Get).await, value(5));
    let names = here.ask("", RequestBody::Counter(Request::Names)).await.body;
    assert_eq!(names, ResponseBody::Counter(Counted::Names(vec!["n".into()])));
}

#[tokio::test]
async fn bounds_and_kinds_of_counters_are_enforced() {
    let server = RunningServer::start("counters-kinds").await;
    let mut client = server.client().await;
    let bounded = CounterConfig { kind: CounterKind::Bounded { lower: 0, upper: 10 }, ..STRONG };
    assert_eq!(ask(&mut client, "b", Action::Create(bounded)).await, only(Status::Success));
    assert_eq!(ask(&mut client, "b", Action::AddAndGet(6)).await, only(Status::NotExecutedWithPrevious));
    assert_eq!(ask(&mut client, "b", Action::Get).await, value(10));
    assert_eq!(ask(&mut client, "b", Action::GetAndSet(11)).await, only(Status::NotExecutedWithPrevious));
    let configuration = (Status::Success, ResponseBody::Counter(Counted::Configuration(bounded)));
    assert_eq!(ask(&mut client, "b", Action::Configuration).await, configuration);
    let weak = CounterConfig { kind: CounterKind::Weak { concurrency: 4 }, ..STRONG };
    assert_eq!(ask(&mut client, "w", Action::Create(weak)).await, only(Status::Success));
    assert_eq!(ask(&mut client, "w", Action::AddAndGet(6)).await, value(0));
    assert_eq!(ask(&mut client, "w", Action::Get).await, value(11));
    assert_eq!(ask(&mut client, "w", Action::CompareAndSwap(11, 1)).await.0, Status::ServerError);
    let refused = [
        ("over", CounterConfig { initial: 11, ..bounded }),
        ("weak", CounterConfig { kind: CounterKind::Weak { concurrency: 0 }, ..STRONG }),
        ("kept", CounterConfig { is_persistent: true, ..STRONG }),
        ("", STRONG),
        (&"n".repeat(COUNTER_NAME_MAX + 1)[..], STRONG),
    ];
    for (name, config) in refused {
        assert_eq!(ask(&mut client, name, Action::Create(config)).await.0, Status::ServerError, "{name}");
    }
}

#[tokio::test]
async fn listener_receives_changes_of_counters() {
    let server = RunningServer::start("counters-events").await;
    let (mut client, mut other) = (server.client().await, server.client().await);
    let bounded = CounterConfig { kind: CounterKind::Bounded { lower: 0, upper: 10 }, ..STRONG };
    for name in ["a", "b", "c"] {
        ask(&mut other, name, Action::Create(bounded)).await;
    }
    let id = || "id".into();
    assert_eq!(ask(&mut client, "none", Action::AddListener(id())).await, only(Status::NotFound));
    assert_eq!(ask(&mut client, "a", Action::AddListener(id())).await, only(Status::Success));
    assert_eq!(ask(&mut client, "b", Action::AddListener(id())).await, only(Status::NotExecuted));
    for name in ["a", "c", "b"] {
        ask(&mut other, name, Action::AddAndGet(7)).await;
    }
    for name in ["a", "b"] {
        let expected = CounterEvent {
            counter: Text::from(name),
            listener: id(),
            old: (5, CounterState::Valid),
            new: (10, CounterState::UpperBound),
        };
        assert_eq!(client.incoming(|_| None).await, Some(Incoming::CounterEvent(expected)));
    }
    assert_eq!(ask(&mut client, "a", Action::RemoveListener(id())).await, only(Status::NotExecuted));
    assert_eq!(ask(&mut client, "b", Action::RemoveListener(id())).await, only(Status::Success));
    ask(&mut other, "b", Action::Reset).await;
    assert_eq!(ask(&mut client, "b", Action::Get).await, value(5), "an answer, not an event");
}

#[tokio::test]
async fn listener_is_bounded_in_its_counters() {
    let server = RunningServer::start("counters-heard").await;
    let mut client = server.client().await;
    let names: Vec<String> = (0..=COUNTERS_PER_LISTENER_MAX).map(|n| format!("c{n}")).collect();
    for ask in [Action::Create(STRONG), Action::AddListener("id".into())] {
        let asked: Vec<HotRodRequest> =
            names.iter().zip(0..).map(|(name, id)| action(id, name, ask.clone())).collect();
        client.send(&asked[..1]).await;
        assert_eq!(next_message(&mut client, &asked).await, Message::Answer(0, Status::Success));
        client.send(&asked[1..]).await;
        let mut failed = 0;
        for _ in &asked[1..] {
            let Message::Answer(_, status) = next_message(&mut client, &asked).await else {
                panic!("no answer")
            };
            failed += usize::from(status == Status::ServerError);
        }
        assert_eq!(failed, usize::from(matches!(ask, Action::AddListener(_))));
    }
    let other = ask(&mut client, "c0", Action::AddListener("other".into())).await;
    assert_eq!(other, only(Status::Success), "each listener has its own bound");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_removed_counters_are_freed_when_the_limit_is_reached() {
    let server = RunningServer::start("counters-limit").await;
    let mut client = server.client().await;
    let create = |n: usize| action(n as u64, &format!("c{n}"), Action::Create(STRONG));
    for first in (0..COUNTERS_MAX).step_by(100) {
        let asked: Vec<HotRodRequest> = (first..first + 100).map(create).collect();
        client.send(&asked).await;
        for _ in &asked {
            assert!(matches!(next_message(&mut client, &asked).await, Message::Answer(_, Status::Success)));
        }
    }
    let (status, body) = ask(&mut client, "beyond", Action::Create(STRONG)).await;
    assert_eq!(status, Status::ServerError, "{body:?}");
    assert!(format!("{body:?}").contains("the limit of 10000 counters"), "{body:?}");
    let metrics = crate::http::ask(&server, "/metrics", "").await.content;
    assert!(metrics.contains("\nconsort_counters 10000\n"), "{metrics}");
    assert!(metrics.contains("\nconsort_counters_limit 10000\n"), "{metrics}");
    // One counter stays removed, and one is used again.
    for name in ["c1", "c2"] {
        assert_eq!(ask(&mut client, name, Action::Remove).await, only(Status::Success));
        assert_eq!(ask(&mut client, name, Action::Get).await, value(5), "it stays defined, as in Infinispan");
    }
    assert_eq!(ask(&mut client, "c2", Action::AddAndGet(1)).await, value(6));
    let until = tokio::time::Instant::now() + crate::client::PATIENCE;
    while ask(&mut client, "beyond", Action::Create(STRONG)).await.0 != Status::Success {
        assert!(tokio::time::Instant::now() < until, "no name is freed");
        tokio::task::yield_now().await;
    }
    assert_eq!(ask(&mut client, "c1", Action::Get).await, only(Status::NotFound), "its name was freed");
    assert_eq!(ask(&mut client, "c2", Action::Get).await, value(6));
    assert_eq!(ask(&mut client, "one more", Action::Create(STRONG)).await.0, Status::ServerError);
}

/// Enough rounds to show a wrong order.
const ROUNDS: u64 = 100;

/// The next message: a response by its id, or the event of a change to this value.
#[derive(PartialEq, Eq, Debug)]
enum Message {
    Answer(u64, Status),
    Event(i64),
}

async fn next_message(client: &mut Client, asked: &[HotRodRequest]) -> Message {
    let of = |id| asked.iter().find(|request| request.header.id == id).map(HotRodRequest::context);
    match client.incoming(of).await.expect("the connection lasts") {
        Incoming::Response(response) => Message::Answer(response.id, response.status),
        Incoming::CounterEvent(event) => Message::Event(event.new.0),
        other => panic!("{other:?}"),
    }
}

fn action(id: u64, name: &str, action: Action) -> HotRodRequest {
    request(id, "org.infinispan.COUNTER", RequestBody::Counter(Request::Of(name.into(), action)))
}

/// Java's clients know a listener only after this response: they cannot assign earlier events. With two servers the
/// registration has to wait until both servers know the listener.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listener_receives_no_event_before_its_registration_is_answered() {
    let server = RunningServer::start("counters-first-events").await;
    let _other = RunningServer::join("counters-first-events").await;
    let (mut client, mut writer) = (server.client().await, server.client().await);
    assert_eq!(ask(&mut client, "n", Action::Create(STRONG)).await.0, Status::Success);
    let (end, mut ends) = tokio::sync::oneshot::channel::<()>();
    // Another client changes the counter all the time.
    let writing = tokio::spawn(async move {
        while ends.try_recv().is_err() {
            assert_eq!(ask(&mut writer, "n", Action::AddAndGet(1)).await.0, Status::Success);
        }
    });
    for round in 1..=ROUNDS {
        let listener = Bytes::from(format!("listener {round}"));
        let asked = [action(1, "n", Action::AddListener(listener.clone()))];
        client.send(&asked).await;
        assert_eq!(
            next_message(&mut client, &asked).await,
            Message::Answer(1, Status::Success),
            "round {round}"
        );
        // The listener receives events.
        assert!(matches!(next_message(&mut client, &asked).await, Message::Event(_)), "round {round}");
        let removal = [action(1, "n", Action::RemoveListener(listener))];
        client.send(&removal).await;
        while let Message::Event(_) = next_message(&mut client, &removal).await {}
    }
    end.send(()).unwrap();
    writing.await.unwrap();
}

/// Old Java clients look at an event that comes with the response that a bound is reached only when the next message comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn event_of_a_change_is_sent_before_the_response_to_it() {
    let server = RunningServer::start("counters-own-events").await;
    let mut client = server.client().await;
    let bounded = CounterConfig { kind: CounterKind::Bounded { lower: 0, upper: 10 }, ..STRONG };
    assert_eq!(ask(&mut client, "b", Action::Create(bounded)).await.0, Status::Success);
    assert_eq!(ask(&mut client, "b", Action::AddListener("id".into())).await.0, Status::Success);
    for _ in 0..ROUNDS {
        for (delta, value, status) in
            [(4, 9, Status::Success), (2, 10, Status::NotExecutedWithPrevious), (-5, 5, Status::Success)]
        {
            let asked = [action(1, "b", Action::AddAndGet(delta))];
            client.send(&asked).await;
            assert_eq!(next_message(&mut client, &asked).await, Message::Event(value));
            assert_eq!(next_message(&mut client, &asked).await, Message::Answer(1, status));
        }
        // Without a change there is no event to wait for.
        assert_eq!(ask(&mut client, "b", Action::AddAndGet(0)).await, value(5));
    }
}
