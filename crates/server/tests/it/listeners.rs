//! Listeners and near caches.

use bytes::Bytes;
use consort_hotrod::bloom::BloomFilter;
use consort_hotrod::ops::event::{Event, EventData, EventKind};
use consort_hotrod::ops::listener::{Factory, Interests, KEY_VALUE_VERSION, Listener, Request as Listening};
use consort_hotrod::ops::map;
use consort_hotrod::{Expiration, Incoming, MediaType, ProtocolVersion, RequestBody, Span, Status, TimeUnit};
use consort_server::limits::LISTENERS_MAX;
use consort_server::{KEY_PREFIX, VALUE_PREFIX};

use crate::client::{Client, RunningServer, error, get, put, request};

fn listener(id: &'static str) -> Listener {
    Listener {
        id: id.into(),
        includes_state: false,
        filter: None,
        converter: None,
        is_raw: false,
        interests: Interests::ALL,
    }
}

async fn ask(client: &mut Client, listening: Listening) -> Status {
    client.ask("c", RequestBody::Listener(listening)).await.status
}

async fn remove(client: &mut Client, key: &'static str) -> Status {
    client.ask("c", RequestBody::Map(map::Request::Remove(key.into()))).await.status
}

/// Returns the next event's kind, key and id.
async fn event(client: &mut Client) -> (EventKind, Bytes, u64) {
    let Some(Incoming::Event(Event { id, kind, data: EventData::Key(key, version), .. })) =
        client.incoming(|_| None).await
    else {
        panic!("no event")
    };
    let has_version = matches!(kind, EventKind::Created | EventKind::Modified);
    assert_eq!(version.is_some_and(|version| version != 0), has_version);
    (kind, key, id)
}

#[tokio::test]
async fn listener_receives_each_change_once_on_its_connection() {
    let (server, mut client) = RunningServer::with_cache("changes", "c").await;
    let mut other = server.client().await;
    assert_eq!(ask(&mut client, Listening::Add(listener("all"))).await, Status::Success);
    other.ask("c", put("k", "1")).await;
    other.ask("c", put("k", "2")).await;
    remove(&mut other, "k").await;
    let lifespan = Span::Of(1, TimeUnit::Milliseconds);
    let expiration = Expiration { lifespan, max_idle: Span::Infinite };
    let short = map::Assignment { key: "t".into(), expiration, value: "1".into() };
    other.ask("c", RequestBody::Map(map::Request::Put(short))).await;
    let expected = [
        (EventKind::Created, "k"),
        (EventKind::Modified, "k"),
        (EventKind::Removed, "k"),
        (EventKind::Created, "t"),
        (EventKind::Expired, "t"),
    ];
    for (kind, key) in expected {
        assert_eq!(event(&mut client).await, (kind, key.into(), 0));
    }
    assert_eq!(ask(&mut client, Listening::Remove("all".into())).await, Status::Success);
    assert_eq!(ask(&mut client, Listening::Remove("all".into())).await, Status::NotExecuted);
    other.ask("c", put("k", "3")).await;
    assert_eq!(client.ask("c", get("k")).await.status, Status::Success, "an answer, not an event");
}

/// Clients with several connections to a server use any of them.
#[tokio::test]
async fn listener_can_be_removed_on_any_connection() {
    let (server, mut client) = RunningServer::with_cache("removed", "c").await;
    let mut other = server.client().await;
    assert_eq!(ask(&mut client, Listening::Add(listener("one"))).await, Status::Success);
    assert_eq!(ask(&mut client, Listening::Add(listener("two"))).await, Status::Success);
    assert_eq!(ask(&mut other, Listening::Remove("one".into())).await, Status::Success);
    assert_eq!(ask(&mut client, Listening::Remove("one".into())).await, Status::NotExecuted);
    other.ask("c", put("k", "1")).await;
    assert_eq!(event(&mut client).await, (EventKind::Created, "k".into(), 0));
    assert_eq!(ask(&mut client, Listening::Remove("two".into())).await, Status::Success, "the first removal");
    assert_eq!(ask(&mut other, Listening::Remove("two".into())).await, Status::NotExecuted);
}

#[tokio::test]
async fn current_state_is_sent_before_the_response_with_the_id_of_the_request() {
    let (_server, mut client) = RunningServer::with_cache("state", "c").await;
    for key in ["a1", "a2", "b1"] {
        client.ask("c", put(key, "1")).await;
    }
    let filter = Some(Factory { name: KEY_PREFIX.into(), params: vec!["a".into()] });
    let with_state = Listener { includes_state: true, filter, ..listener("state") };
    let add = request(7, "c", RequestBody::Listener(Listening::Add(with_state)));
    client.send(std::slice::from_ref(&add)).await;
    let mut found = Vec::new();
    loop {
        match client.incoming(|_| Some(add.context())).await.unwrap() {
            Incoming::Event(Event {
                id: 7, kind: EventKind::Created, data: EventData::Key(key, _), ..
            }) => {
                found.push(key);
            }
            Incoming::Response(response) => {
                assert_eq!((response.id, response.status), (7, Status::Success));
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    found.sort();
    assert_eq!(found, ["a1", "a2"]);
}

#[tokio::test]
async fn listener_receives_only_kinds_of_events_in_its_interests() {
    let (server, mut client) = RunningServer::with_cache("interests", "c").await;
    let mut other = server.client().await;
    let removals = Listener { interests: Interests::from_bits(Interests::REMOVED), ..listener("removals") };
    assert_eq!(ask(&mut client, Listening::Add(removals)).await, Status::Success);
    other.ask("c", put("k", "1")).await;
    other.ask("c", put("k", "2")).await;
    remove(&mut other, "k").await;
    assert_eq!(event(&mut client).await, (EventKind::Removed, "k".into(), 0));
}

#[tokio::test]
async fn near_cache_receives_invalidations_of_keys_in_its_filter() {
    let (server, mut client) = RunningServer::with_cache("near", "c").await;
    let mut other = server.client().await;
    for key in ["near", "far", "last"] {
        other.ask("c", put(key, "1")).await;
    }
    let nothing = BloomFilter::new(4_000).unwrap();
    let update = || Listening::UpdateBloom(nothing.to_bits());
    assert_eq!(ask(&mut client, update()).await, Status::NotExecuted, "there is no filter yet");
    assert_eq!(ask(&mut client, Listening::AddBloom("near".into(), 4_000)).await, Status::Success);
    let read = |key: &'static str| RequestBody::Map(map::Request::GetWithMetadata(key.into()));
    client.ask("c", read("near")).await;
    client.ask("c", get("far")).await;
    other.ask("c", put("far", "2")).await;
    other.ask("c", put("near", "2")).await;
    assert_eq!(event(&mut client).await, (EventKind::Modified, "near".into(), 0));
    assert_eq!(ask(&mut client, update()).await, Status::Success);
    client.ask("c", read("last")).await;
    other.ask("c", put("near", "3")).await;
    remove(&mut other, "last").await;
    assert_eq!(event(&mut client).await, (EventKind::Removed, "last".into(), 0));
}

/// Returns the next event's kind, and its key, value and previous value.
async fn with_previous(client: &mut Client) -> (EventKind, String) {
    match converted(client).await {
        (kind, 0, EventData::Custom(data)) => (kind, String::from_utf8_lossy(&data).into_owned()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn converter_sends_the_previous_value_in_the_format_of_the_client() {
    const NAME: &str = "key-value-with-previous-converter-factory";
    let (server, mut writer) = RunningServer::with_cache("previous", "c").await;
    let message = |message: &str| {
        format!("\u{82}\x01\x32org.infinispan.global.commons.KeyValueWithPrevious\u{8a}\x01{message}")
    };
    let unwritten = |text: &str| text.replace(['\u{82}', '\u{8a}'], "\u{fffd}");
    let json = |value: &str, previous: &str| {
        format!(
            r#"{{"_type":"org.infinispan.commons.util.KeyValueWithPrevious","key":"k","value":{value},"prev":{previous}}}"#
        )
    };
    let text = |value: &str, previous: &str| {
        format!("KeyValueWithPrevious{{key=k, value={value}, prev={previous}}}")
    };
    for (media_type, created, modified, removed) in [
        (
            MediaType::PROTOSTREAM,
            message("\x08\n\x01k\x12\x011\x1a\0"),
            message("\x09\n\x01k\x12\x012\x1a\x011"),
            message("\x08\n\x01k\x12\0\x1a\x012"),
        ),
        (
            MediaType::named("application/json"),
            json("\"1\"", "null"),
            json("\"2\"", "\"1\""),
            json("null", "\"2\""),
        ),
        (
            MediaType::Unspecified,
            message("\x0c\n\x03R\x01k\x12\x03R\x011\x1a\0"),
            message("\x0f\n\x03R\x01k\x12\x03R\x012\x1a\x03R\x011"),
            message("\x0c\n\x03R\x01k\x12\0\x1a\x03R\x012"),
        ),
        (MediaType::TEXT, text("1", "null"), text("2", "1"), text("null", "2")),
    ] {
        let mut client = server.client().await;
        let converter = Some(Factory { name: NAME.into(), params: Vec::new() });
        let add = Listening::Add(Listener { converter, ..listener("l") });
        let mut add = request(1, "c", RequestBody::Listener(add));
        (add.header.key_type, add.header.value_type) = (media_type.clone(), media_type);
        assert_eq!(client.send_request(add).await.status, Status::Success);
        writer.ask("c", put("k", "1")).await;
        writer.ask("c", put("k", "2")).await;
        remove(&mut writer, "k").await;
        for (kind, expected) in
            [(EventKind::Created, created), (EventKind::Modified, modified), (EventKind::Removed, removed)]
        {
            assert_eq!(with_previous(&mut client).await, (kind, unwritten(&expected)));
        }
        // An expired value is sent as the value, as in Infinispan.
        let moment = Span::Of(1, TimeUnit::Milliseconds);
        let expiration = Expiration { lifespan: moment, max_idle: Span::Infinite };
        let brief = map::Assignment { key: "k".into(), expiration, value: "3".into() };
        writer.ask("c", RequestBody::Map(map::Request::Put(brief))).await;
        let (_, created) = with_previous(&mut client).await;
        assert_eq!(with_previous(&mut client).await, (EventKind::Expired, created));
    }
    let converter = Some(Factory { name: NAME.into(), params: Vec::new() });
    let add = RequestBody::Listener(Listening::Add(Listener { converter, ..listener("none") }));
    let mut add = request(1, "c", add);
    add.header.value_type = MediaType::named("image/png");
    let refused = writer.send_request(add).await;
    assert!(error(&refused).contains("has no form in the media type"), "{refused:?}");
}

fn converting(id: &'static str, params: &[&'static str]) -> Listener {
    let params = params.iter().map(|param| Bytes::from(*param)).collect();
    let converter = Some(Factory { name: KEY_VALUE_VERSION.into(), params });
    Listener { converter, is_raw: true, ..listener(id) }
}

/// Returns the next event's kind and id, and the converter's result.
async fn converted(client: &mut Client) -> (EventKind, u64, EventData) {
    match client.incoming(|_| None).await {
        Some(Incoming::Event(Event { id, kind, data, .. })) => (kind, id, data),
        other => panic!("{other:?}"),
    }
}

/// Splits the converter's result into key and value without the version, and the version.
fn parts(data: &EventData) -> (&[u8], Option<i64>) {
    let EventData::Raw(bytes) = data else { panic!("{data:?}") };
    let key = 1 + usize::from(bytes[0]);
    match bytes[key..].split_last_chunk() {
        None => (bytes, None),
        Some((_, version)) => (&bytes[..bytes.len() - 8], Some(i64::from_be_bytes(*version))),
    }
}

#[tokio::test]
async fn converter_sends_values_and_on_demand_previous_ones() {
    let (server, mut client) = RunningServer::with_cache("converter", "c").await;
    let mut other = server.client().await;
    let mut gone = server.client().await;
    other.ask("c", put("there", "0")).await;
    let with_state = Listener { includes_state: true, ..converting("there", &[]) };
    let add = request(7, "c", RequestBody::Listener(Listening::Add(with_state)));
    client.send(std::slice::from_ref(&add)).await;
    let there = match client.incoming(|_| Some(add.context())).await {
        Some(Incoming::Event(Event { id: 7, kind: EventKind::Created, data, .. })) => data,
        other => panic!("{other:?}"),
    };
    assert_eq!(parts(&there).0, b"\x05there\x010");
    let Some(Incoming::Response(_)) = client.incoming(|_| Some(add.context())).await else {
        panic!("no answer")
    };
    assert_eq!(ask(&mut gone, Listening::Add(converting("gone", &["any"]))).await, Status::Success);
    other.ask("c", put("k", "1")).await;
    other.ask("c", put("k", "22")).await;
    remove(&mut other, "k").await;
    let lifespan = Span::Of(1, TimeUnit::Milliseconds);
    let expiration = Expiration { lifespan, max_idle: Span::Infinite };
    let short = map::Assignment { key: "t".into(), expiration, value: "3".into() };
    other.ask("c", RequestBody::Map(map::Request::Put(short))).await;
    for (client, tells_gone) in [(&mut client, false), (&mut gone, true)] {
        let mut last = None;
        for (kind, made, of_gone) in [
            (EventKind::Created, &b"\x01k\x011"[..], &b""[..]),
            (EventKind::Modified, b"\x01k\x0222", b""),
            (EventKind::Removed, b"\x01k", b"\x0222"),
            (EventKind::Created, b"\x01t\x013", b""),
            (EventKind::Expired, b"\x01t", b"\x013"),
        ] {
            let (received, id, data) = converted(client).await;
            let (bytes, version) = parts(&data);
            assert_eq!((received, id), (kind, 0));
            if of_gone.is_empty() {
                assert!(
                    bytes == made && version.is_some() && version != last,
                    "{kind:?} {bytes:?} {version:?}"
                );
                last = version;
            } else {
                let wanted = if tells_gone { [made, of_gone].concat() } else { made.to_vec() };
                assert_eq!(
                    (bytes, version),
                    (&wanted[..], last.filter(|_| tells_gone)),
                    "of the value that it had"
                );
            }
        }
    }
}

/// Before 2.1, clients cannot request raw content.
#[tokio::test]
async fn converter_sends_marshalled_content_to_clients_that_unmarshal_it() {
    let (server, mut client) = RunningServer::with_cache("converter-old", "c").await;
    let mut other = server.client().await;
    for version in [ProtocolVersion::V2_0, ProtocolVersion::V4_0] {
        let wanted = Listener { is_raw: false, ..converting("all", &["any"]) };
        let mut add = request(1, "c", RequestBody::Listener(Listening::Add(wanted)));
        add.header.version = version;
        assert_eq!(client.send_request(add).await.status, Status::Success);
        other.ask("c", put("k", "1")).await;
        remove(&mut other, "k").await;
        let (kind, _, data) = converted(&mut client).await;
        let EventData::Custom(bytes) = data else { panic!("{data:?}") };
        assert_eq!((kind, &bytes[..4]), (EventKind::Created, &b"\x01k\x011"[..]));
        let (kind, _, data) = converted(&mut client).await;
        assert_eq!((kind, data), (EventKind::Removed, EventData::Custom(bytes)));
        let mut end = request(1, "c", RequestBody::Listener(Listening::Remove("all".into())));
        end.header.version = version;
        assert_eq!(client.send_request(end).await.status, Status::Success);
    }
}

#[tokio::test]
async fn value_filter_passes_entries_that_begin_or_cease_to_match() {
    let (server, mut client) = RunningServer::with_cache("by-value", "c").await;
    let mut other = server.client().await;
    let filter = Some(Factory { name: VALUE_PREFIX.into(), params: vec!["a".into()] });
    assert_eq!(ask(&mut client, Listening::Add(Listener { filter, ..listener("a") })).await, Status::Success);
    for (key, values) in [("k", ["b", "b", "a", "a", "b", "b"]), ("l", ["b", "b", "b", "b", "a", "a1"])] {
        for value in values {
            other.ask("c", put(key, value)).await;
        }
        remove(&mut other, key).await;
    }
    let modified = |key: &'static str| (EventKind::Modified, key.into(), 0);
    for expected in [modified("k"), modified("k"), modified("k"), modified("l"), modified("l")] {
        assert_eq!(event(&mut client).await, expected);
    }
    assert_eq!(event(&mut client).await, (EventKind::Removed, "l".into(), 0));
}

#[tokio::test]
async fn unsupported_listeners_are_refused() {
    let (_server, mut client) = RunningServer::with_cache("refused", "c").await;
    let factory = |name: &str| Some(Factory { name: name.into(), params: vec!["a".into()] });
    let refused = [
        Listening::Add(Listener { filter: factory("mine"), ..listener("a") }),
        Listening::Add(Listener { filter: factory(KEY_VALUE_VERSION), ..listener("b") }),
        Listening::Add(Listener { converter: factory("mine"), ..listener("c") }),
        Listening::AddBloom("d".into(), u32::MAX),
    ];
    for listening in refused {
        assert_eq!(ask(&mut client, listening).await, Status::ServerError);
    }
    for nth in 0..=LISTENERS_MAX {
        let id = Bytes::from(nth.to_string());
        let added = ask(&mut client, Listening::Add(Listener { id, ..listener("") })).await;
        assert_eq!(added == Status::Success, nth < LISTENERS_MAX);
    }
}

#[tokio::test]
async fn client_that_does_not_read_its_events_is_disconnected() {
    let (server, mut client) = RunningServer::with_cache("slow", "c").await;
    let mut other = server.client().await;
    assert_eq!(ask(&mut client, Listening::Add(listener("slow"))).await, Status::Success);
    // More than the sockets, the server's output and the grid hold together.
    let (times, padding) = (1_000, 60_000);
    for nth in 0..times {
        let key = format!("{nth:0padding$}").into();
        let expiration = Expiration::INFINITE;
        let put = map::Request::Put(map::Assignment { key, expiration, value: "1".into() });
        assert_eq!(other.ask("c", RequestBody::Map(put)).await.status, Status::Success);
    }
    let mut received = 0;
    while let Some(Incoming::Event(_)) = client.incoming(|_| None).await {
        received += 1;
    }
    assert!(received < times, "all events were sent");
    assert_eq!(other.ask("c", get("k")).await.status, Status::NotFound, "other clients are served");
}
