//! Caches with media types, and clients that use other media types.

use bytes::Bytes;
use consort_hotrod::hash::segment_of;
use consort_hotrod::ops::event::EventData;
use consort_hotrod::ops::listener::{Factory, Interests, Listener};
use consort_hotrod::ops::map::{self, Assignment};
use consort_hotrod::ops::stream::{self, Target};
use consort_hotrod::ops::{bulk, iteration, listener, server};
use consort_hotrod::{
    BitSet, Expiration, Flags, Incoming, MediaType, ProtocolVersion, Request, RequestBody, RequestHeader,
    Response, ResponseBody, Status,
};

use crate::client::{Client, RunningServer, error, get, put, request};

const WRAPPED: &str = r#"{"replicated-cache": {"encoding": {"media-type": "application/x-protostream"}}}"#;

/// The media types of a client's keys and values.
#[derive(Clone)]
struct ClientTypes(MediaType, MediaType);

impl ClientTypes {
    fn same(media_type: &str) -> Self {
        Self(MediaType::named(media_type), MediaType::named(media_type))
    }

    fn request(&self, cache: &str, body: RequestBody) -> Request {
        let mut request = request(1, cache, body);
        request.header.key_type = self.0.clone();
        request.header.value_type = self.1.clone();
        request
    }

    async fn ask(&self, client: &mut Client, cache: &str, body: RequestBody) -> Response {
        client.send_request(self.request(cache, body)).await
    }

    async fn get(&self, client: &mut Client, cache: &str, key: &'static str) -> Bytes {
        let response = self.ask(client, cache, get(key)).await;
        match response.body {
            ResponseBody::Map(map::Response::Value(value)) => value,
            other => panic!("{other:?}"),
        }
    }
}

fn value(of: &Response) -> &[u8] {
    match &of.body {
        ResponseBody::Map(map::Response::Previous(Some(previous))) => &previous.value,
        ResponseBody::Map(map::Response::WithVersion(_, value)) => value,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn value_written_as_text_is_read_in_other_media_types() {
    let running = RunningServer::start("media").await;
    let mut client = running.client().await;
    client.create_with("c", WRAPPED).await;
    let pong = client.ask("c", RequestBody::Server(server::Request::Ping)).await.body;
    let ResponseBody::Server(server::Response::Pong(pong)) = pong else { panic!("{pong:?}") };
    assert_eq!((pong.key_type, pong.value_type), (MediaType::PROTOSTREAM, MediaType::PROTOSTREAM));

    let (text, java) = (ClientTypes::same("text/plain"), ClientTypes::same("application/x-protostream"));
    assert_eq!(text.ask(&mut client, "c", put("key1", "value1")).await.status, Status::Success);
    assert_eq!(java.get(&mut client, "c", "\x4a\x04key1").await, "\x4a\x06value1");
    assert_eq!(text.get(&mut client, "c", "key1").await, "value1");
    let json = ClientTypes(MediaType::TEXT, MediaType::named("application/json"));
    assert_eq!(json.get(&mut client, "c", "key1").await, r#"{"_type":"string","_value":"value1"}"#);
    let number = r#"{"_type": "int32", "_value": 42}"#;
    assert_eq!(json.ask(&mut client, "c", put("n", number)).await.status, Status::Success);
    assert_eq!(java.get(&mut client, "c", "\x4a\x01n").await, "\x28\x2a");
    assert_eq!(text.get(&mut client, "c", "n").await, "42");
    let utf16 = ClientTypes(MediaType::TEXT, MediaType::named("text/plain; charset=UTF-16BE"));
    assert_eq!(utf16.get(&mut client, "c", "n").await, "\u{0}4\u{0}2");
    let bytes = ClientTypes(MediaType::TEXT, MediaType::OCTET_STREAM);
    assert_eq!(bytes.ask(&mut client, "c", put("b", "\x01\x02")).await.status, Status::Success);
    assert_eq!(java.get(&mut client, "c", "\x4a\x01b").await, "\x52\x02\x01\x02");
    assert_eq!(bytes.get(&mut client, "c", "b").await, "\x01\x02");

    // Previous values, and requests with many keys.
    let mut swap = text.request("c", put("key1", "value2"));
    swap.header.flags = Flags::FORCE_RETURN_PREVIOUS;
    assert_eq!(value(&client.send_request(swap).await), b"value1");
    let with_version = RequestBody::Map(map::Request::GetWithVersion("key1".into()));
    assert_eq!(value(&text.ask(&mut client, "c", with_version).await), b"value2");
    let entries = vec![("x".into(), "1".into()), ("y".into(), "2".into())];
    let put_all = RequestBody::Bulk(bulk::Request::PutAll(Expiration::INFINITE, entries.clone()));
    assert_eq!(text.ask(&mut client, "c", put_all).await.status, Status::Success);
    let get_all = RequestBody::Bulk(bulk::Request::GetAll(vec!["y".into(), "x".into(), "none".into()]));
    let found = text.ask(&mut client, "c", get_all).await.body;
    let ResponseBody::Bulk(bulk::Response::Found(mut found)) = found else { panic!("{found:?}") };
    found.sort();
    assert_eq!(found, entries);
    let removed = text.ask(&mut client, "c", RequestBody::Map(map::Request::Remove("y".into()))).await;
    assert_eq!(removed.status, Status::Success);
}

/// The schema is written at one server, and the other server knows it when the write is answered.
#[tokio::test]
async fn entities_are_converted_to_json_and_back_by_the_schemas_on_all_servers() {
    const SCHEMA: &str =
        "syntax = \"proto3\"; package shop; message Book { string title = 1; int32 pages = 2; }";
    let first = RunningServer::start("entities").await;
    let second = RunningServer::join("entities").await;
    let (mut here, mut there) = (first.client().await, second.client().await);
    here.create_with("c", WRAPPED).await;
    let java = ClientTypes::same("application/x-protostream");
    let json = ClientTypes(MediaType::TEXT, MediaType::named("application/json"));
    // `Emma` with 474 pages, as Java's client writes it.
    let emma = &b"\x82\x01\x09shop.Book\x8a\x01\x09\x0a\x04Emma\x10\xda\x03"[..];
    assert_eq!(java.ask(&mut here, "c", put("\x4a\x01e", emma)).await.status, Status::Success);
    let refused = json.ask(&mut here, "c", get("e")).await;
    assert!(error(&refused).contains("there is no schema for _type 'shop.Book'"), "{refused:?}");
    for version in 0..10 {
        // Also with a schema of the same length as before.
        let schema = SCHEMA.replace("pages", &format!("page{version}"));
        let written = ClientTypes::same("text/plain")
            .ask(&mut here, "___protobuf_metadata", put("book.proto", schema))
            .await;
        assert_eq!(written.status, Status::Success);
        let expected = format!(r#"{{"_type":"shop.Book","title":"Emma","page{version}":474}}"#);
        assert_eq!(json.get(&mut here, "c", "e").await, expected);
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while json.get(&mut there, "c", "e").await != expected {
            assert!(
                std::time::Instant::now() < until && version > 0,
                "the other server does not know version {version}"
            );
            tokio::task::yield_now().await;
        }
    }
    let persuasion = r#"{"_type":"shop.Book","title":"Persuasion","page9":249}"#;
    assert_eq!(json.ask(&mut there, "c", put("p", persuasion)).await.status, Status::Success);
    let written = java.get(&mut here, "c", "\x4a\x01p").await;
    assert_eq!(written, &b"\x82\x01\x09shop.Book\x8a\x01\x0f\x0a\x0aPersuasion\x10\xf9\x01"[..]);
    let bad = json.ask(&mut there, "c", put("p", r#"{"_type":"shop.Book","pages":249}"#)).await;
    assert!(error(&bad).contains("shop.Book has no field 'pages' in its schema"), "{bad:?}");
    assert_eq!(json.get(&mut here, "c", "p").await, persuasion);
}

#[tokio::test]
async fn iterations_listeners_and_streams_are_converted() {
    let running = RunningServer::start("media-walks").await;
    let (mut client, mut other) = (running.client().await, running.client().await);
    client.create_with("c", WRAPPED).await;
    let (text, java) = (ClientTypes::same("text/plain"), ClientTypes::same("application/x-protostream"));
    let wanted = Listener {
        id: "id".into(),
        includes_state: false,
        filter: None,
        converter: None,
        is_raw: false,
        interests: Interests::ALL,
    };
    let add = text.request("c", RequestBody::Listener(listener::Request::Add(wanted)));
    assert_eq!(client.send_request(add).await.status, Status::Success);
    assert_eq!(java.ask(&mut other, "c", put("\x4a\x03key", "\x4a\x05value")).await.status, Status::Success);
    let Some(Incoming::Event(event)) = client.incoming(|_| None).await else { panic!("no event") };
    assert!(matches!(&event.data, EventData::Key(key, Some(_)) if key == "key"), "{event:?}");

    let start = iteration::Start { segments: None, filter: None, batch: 10, with_metadata: false };
    let started =
        text.ask(&mut other, "c", RequestBody::Iteration(iteration::Request::Start(start))).await.body;
    let ResponseBody::Iteration(iteration::Response::Started(id)) = started else { panic!("{started:?}") };
    let next = RequestBody::Iteration(iteration::Request::Next(id));
    let ResponseBody::Iteration(iteration::Response::Batch(batch)) =
        text.ask(&mut other, "c", next).await.body
    else {
        panic!("no batch")
    };
    let [entry] = &batch.entries[..] else { panic!("{batch:?}") };
    assert_eq!((&entry.key[..], &entry.values[0][..]), (&b"key"[..], &b"value"[..]));

    let target = Target { key: "large".into(), expiration: Expiration::INFINITE, version: 0 };
    let began = text.ask(&mut other, "c", RequestBody::Stream(stream::Request::StartPut(target))).await.body;
    let ResponseBody::Stream(stream::Response::Started(stream)) = began else { panic!("{began:?}") };
    for (piece, is_last) in [("in ", false), ("pieces", true)] {
        let piece = RequestBody::Stream(stream::Request::NextPut(stream, is_last, piece.into()));
        assert_eq!(text.ask(&mut other, "c", piece).await.status, Status::Success);
    }
    assert_eq!(java.get(&mut other, "c", "\x4a\x05large").await, "\x4a\x09in pieces");
    let read = RequestBody::Stream(stream::Request::StartGet("large".into(), 5));
    let ResponseBody::Stream(stream::Response::Piece(piece)) = text.ask(&mut other, "c", read).await.body
    else {
        panic!("no piece")
    };
    assert_eq!((&piece.bytes[..], piece.is_last), (&b"in pi"[..], false));
}

/// A converter gets the entry in the listener's format, unless the listener wants raw content.
#[tokio::test]
async fn converters_of_listeners_use_the_format_of_the_client() {
    let running = RunningServer::start("media-converters").await;
    let (mut client, mut other) = (running.client().await, running.client().await);
    client.create_with("c", WRAPPED).await;
    let (text, java) = (ClientTypes::same("text/plain"), ClientTypes::same("application/x-protostream"));
    for (is_raw, expected) in [(false, &b"\x03key\x05value"[..]), (true, b"\x05\x4a\x03key\x07\x4a\x05value")]
    {
        let converter = Factory { name: listener::KEY_VALUE_VERSION.into(), params: vec!["gone".into()] };
        let wanted = Listener {
            id: "id".into(),
            includes_state: false,
            filter: None,
            converter: Some(converter),
            is_raw,
            interests: Interests::ALL,
        };
        let add = text.request("c", RequestBody::Listener(listener::Request::Add(wanted)));
        assert_eq!(client.send_request(add).await.status, Status::Success);
        java.ask(&mut other, "c", put("\x4a\x03key", "\x4a\x05value")).await;
        text.ask(&mut other, "c", RequestBody::Map(map::Request::Remove("key".into()))).await;
        let mut all = Vec::new();
        for _ in 0..2 {
            let Some(Incoming::Event(event)) = client.incoming(|_| None).await else { panic!("no event") };
            all.push(match event.data {
                EventData::Custom(made) if !is_raw => made,
                EventData::Raw(made) if is_raw => made,
                other => panic!("{other:?}"),
            });
        }
        assert_eq!(&all[0][..expected.len()], expected);
        assert_eq!(all[0], all[1], "what was there, and what is gone");
        let end = text.request("c", RequestBody::Listener(listener::Request::Remove("id".into())));
        assert_eq!(client.send_request(end).await.status, Status::Success);
    }
}

/// Clients refuse keys of segments that they have not requested.
#[tokio::test]
async fn iteration_over_segments_returns_the_keys_that_the_client_finds_in_them() {
    let running = RunningServer::start("media-segments").await;
    let mut client = running.client().await;
    client.create_with("c", WRAPPED).await;
    let text = ClientTypes::same("text/plain");
    let keys: Vec<String> = (0..200).map(|n| format!("key-{n}")).collect();
    let entries = keys.iter().map(|key| (key.clone().into(), "v".into())).collect();
    let put_all = RequestBody::Bulk(bulk::Request::PutAll(Expiration::INFINITE, entries));
    assert_eq!(text.ask(&mut client, "c", put_all).await.status, Status::Success);
    let mut given = Vec::new();
    for asked in [0..100_usize, 100..256] {
        let segments: BitSet = asked.clone().collect();
        let start =
            iteration::Start { segments: Some(segments), filter: None, batch: 30, with_metadata: false };
        let start = RequestBody::Iteration(iteration::Request::Start(start));
        let started = text.ask(&mut client, "c", start).await.body;
        let ResponseBody::Iteration(iteration::Response::Started(id)) = started else {
            panic!("{started:?}")
        };
        let mut finished = Vec::new();
        loop {
            let next = RequestBody::Iteration(iteration::Request::Next(id.clone()));
            let next = text.ask(&mut client, "c", next).await.body;
            let ResponseBody::Iteration(iteration::Response::Batch(batch)) = next else { panic!("{next:?}") };
            for entry in &batch.entries {
                let segment = segment_of(&entry.key, 256) as usize;
                assert!(asked.contains(&segment) && !finished.contains(&segment), "{entry:?}");
                given.push(String::from_utf8(entry.key.to_vec()).unwrap());
            }
            finished.extend(batch.finished.iter());
            if batch.entries.is_empty() {
                break;
            }
        }
        finished.sort_unstable();
        assert!(finished.iter().copied().eq(asked), "{finished:?}");
    }
    given.sort();
    let mut keys = keys;
    keys.sort();
    assert_eq!(given, keys);
}

#[tokio::test]
async fn conversion_error_is_answered_and_changes_nothing() {
    let running = RunningServer::start("media-errors").await;
    let mut client = running.client().await;
    client.create_with("c", WRAPPED).await;
    client.create_with("j", r#"{"local-cache": {"encoding": {"media-type": "application/json"}}}"#).await;
    let (text, java) = (ClientTypes::same("text/plain"), ClientTypes::same("application/x-protostream"));
    let refused = ClientTypes::same("image/png").ask(&mut client, "c", put("k", "v")).await;
    assert_eq!(refused.status, Status::ServerError);
    let expected = "ISPN000492: Cannot find transcoder between 'image/png' to 'application/x-protostream'";
    assert!(error(&refused).contains(expected), "{refused:?}");
    let refused = text.ask(&mut client, "j", put("\"k\"", "no json")).await;
    assert!(refused.status == Status::ServerError && error(&refused).contains("invalid JSON"), "{refused:?}");
    // An entity, which cannot be converted without its schema.
    let entity = "\u{1}";
    let message = [&b"\x98\x01\xea\x84\x3d\x8a\x01\x02\x08"[..], entity.as_bytes()].concat();
    assert_eq!(java.ask(&mut client, "c", put("\x4a\x01e", message)).await.status, Status::Success);
    let refused = text.ask(&mut client, "c", get("e")).await;
    assert!(error(&refused).contains("'application/x-protostream' to 'text/plain'"), "{refused:?}");
    let size = client.ask("j", RequestBody::Bulk(bulk::Request::Size)).await.body;
    assert_eq!(size, ResponseBody::Bulk(bulk::Response::Size(0)));
}

/// Without media types of the cache or of the client, bytes are unchanged.
#[tokio::test]
async fn values_without_media_types_are_not_converted() {
    let (_running, mut client) = RunningServer::with_cache("media-none", "c").await;
    client.create_with("w", WRAPPED).await;
    assert_eq!(
        ClientTypes::same("image/png").ask(&mut client, "c", put("k", "\u{1}")).await.status,
        Status::Success
    );
    assert_eq!(ClientTypes::same("text/plain").get(&mut client, "c", "k").await, "\u{1}");
    for unspecified in [
        ClientTypes(MediaType::Unspecified, MediaType::Unspecified),
        ClientTypes::same("application/unknown"),
    ] {
        assert_eq!(unspecified.ask(&mut client, "w", put("k", "as it is")).await.status, Status::Success);
        assert_eq!(unspecified.get(&mut client, "w", "k").await, "as it is");
    }
    let header = RequestHeader { cache: "w".into(), ..RequestHeader::new(1, ProtocolVersion::V2_5) };
    let old = Request { header, body: get("k") };
    let assigned = Assignment { key: "o".into(), expiration: Expiration::INFINITE, value: "old".into() };
    let write = Request { header: old.header.clone(), body: RequestBody::Map(map::Request::Put(assigned)) };
    assert_eq!(client.send_request(write).await.status, Status::Success);
    let ResponseBody::Map(map::Response::Value(value)) = client.send_request(old).await.body else {
        panic!("no value")
    };
    assert_eq!(value, "as it is");
}
