//! The byte vectors of the facts (section 11), as other clients write and read them.

use bytes::{Bytes, BytesMut};
use consort_hotrod::ops::event::{Event, EventData, EventKind};
use consort_hotrod::ops::listener::{Interests, Listener};
use consort_hotrod::ops::{auth, bulk, counter, iteration, listener, map, server, stream, task};
use consort_hotrod::*;

fn bytes(hex: &str) -> Bytes {
    let digits: String = hex.split_whitespace().collect();
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

fn encoded(encode: impl FnOnce(&mut Output)) -> Bytes {
    let mut out = Output::new();
    encode(&mut out);
    out.into_bytes()
}

/// Decodes and encodes the request.
#[track_caller]
fn is_request(hex: &str, header: RequestHeader, body: RequestBody) {
    let (bytes, expected) = (bytes(hex), Request { header, body });
    let mut buffer = BytesMut::from(&bytes[..]);
    let read = RequestDecoder::default().decode(&mut buffer).unwrap();
    assert_eq!(read.as_ref(), Some(&expected));
    assert!(buffer.is_empty());
    assert_eq!(encoded(|out| expected.encode(out)), bytes);
}

#[track_caller]
fn is_incoming(hex: &str, asked: RequestContext, expected: Incoming) {
    let bytes = bytes(hex);
    let mut buffer = BytesMut::from(&bytes[..]);
    let read = ResponseDecoder::default().decode(&mut buffer, |_| Some(asked)).unwrap();
    assert_eq!(read.as_ref(), Some(&expected));
    assert!(buffer.is_empty());
    let written = encoded(|out| match &expected {
        Incoming::Response(response) => response.encode(asked, out),
        Incoming::Event(event) => event.encode(out),
        Incoming::CounterEvent(event) => event.encode(out),
    });
    assert_eq!(written, bytes);
}

#[track_caller]
fn is_response(hex: &str, asked: RequestContext, response: Response) {
    is_incoming(hex, asked, Incoming::Response(response));
}

fn asked(version: ProtocolVersion, opcode: Opcode) -> RequestContext {
    RequestContext { version, opcode, intelligence: Intelligence::Hash }
}

/// A header of a hash-aware client without a topology.
fn header(id: u64, version: ProtocolVersion, cache: &str) -> RequestHeader {
    RequestHeader { cache: cache.into(), intelligence: Intelligence::Hash, ..RequestHeader::new(id, version) }
}

/// As `header`, with protostream keys and values.
fn typed(id: u64, version: ProtocolVersion, cache: &str) -> RequestHeader {
    let (key_type, value_type) = (MediaType::PROTOSTREAM, MediaType::PROTOSTREAM);
    RequestHeader { key_type, value_type, ..header(id, version, cache) }
}

fn key1() -> Bytes {
    Bytes::from_static(b"\x4a\x04key1")
}

fn value1() -> Bytes {
    Bytes::from_static(b"\x4a\x06value1")
}

#[test]
fn pings() {
    let (v31, v41) = (ProtocolVersion::V3_1, ProtocolVersion::V4_1);
    let ping = RequestBody::Server(server::Request::Ping);
    is_request("a0 00 1f 17 00 00 03 ff ff ff ff 0f 00 00", header(0, v31, ""), ping.clone());
    is_request("a0 01 29 17 01 63 00 03 ff ff ff ff 0f 00 00 00", header(1, v41, "c"), ping);
    let pong = |key_type: MediaType, value_type| server::Pong {
        key_type,
        value_type,
        newest: 41,
        opcodes: vec![1, 3],
    };
    let answer =
        |id, pong| Response::new(id, Status::Success, ResponseBody::Server(server::Response::Pong(pong)));
    is_response(
        "a1 00 18 00 00 00 00 29 02 00 01 00 03",
        asked(v31, Opcode::Ping),
        answer(0, pong(MediaType::Unspecified, MediaType::Unspecified)),
    );
    is_response(
        "a1 01 18 00 00 01 0c 00 01 0c 00 29 02 00 01 00 03",
        asked(v41, Opcode::Ping),
        answer(1, pong(MediaType::PROTOSTREAM, MediaType::PROTOSTREAM)),
    );
}

#[test]
fn puts() {
    let v41 = ProtocolVersion::V4_1;
    let put = |expiration, value| {
        RequestBody::Map(map::Request::Put(map::Assignment { key: key1(), expiration, value }))
    };
    is_request(
        "a0 02 29 01 01 63 00 03 ff ff ff ff 0f 01 0c 00 01 0c 00 00 06 4a 04 6b 65 79 31 77 08 4a 06 76 61 6c 75 65 31",
        typed(2, v41, "c"),
        put(Expiration::default(), value1()),
    );
    is_request(
        "a0 03 29 01 01 63 01 03 07 01 0c 00 01 0c 00 00 06 4a 04 6b 65 79 31 07 3c 04 4a 02 76 32",
        RequestHeader { flags: Flags::FORCE_RETURN_PREVIOUS, topology_id: 7, ..typed(3, v41, "c") },
        put(
            Expiration { lifespan: Span::Of(60, TimeUnit::Seconds), max_idle: Span::Default },
            Bytes::from_static(b"\x4a\x02v2"),
        ),
    );
    is_request(
        "a0 09 14 01 07 4d 79 43 61 63 68 65 00 03 00 05 48 65 6c 6c 6f 00 00 05 57 6f 72 6c 64",
        RequestHeader { topology_id: 0, ..header(9, ProtocolVersion::V2_0, "MyCache") },
        RequestBody::Map(map::Request::Put(map::Assignment {
            key: "Hello".into(),
            expiration: Expiration::INFINITE,
            value: "World".into(),
        })),
    );
    is_response(
        "a1 02 02 00 00",
        asked(v41, Opcode::Put),
        Response::new(2, Status::Success, ResponseBody::Empty),
    );
    let previous = |previous| {
        let body = ResponseBody::Map(map::Response::Previous(previous));
        Response::new(3, Status::SuccessWithPrevious, body)
    };
    let metadata = Some(Metadata::immortal(1));
    is_response(
        "a1 03 02 03 00 03 00 00 00 00 00 00 00 01 08 4a 06 76 61 6c 75 65 31",
        asked(v41, Opcode::Put),
        previous(Some(Previous { metadata, value: value1() })),
    );
    is_response(
        "a1 03 02 03 00 03 ff ff ff ff ff ff ff ff 00",
        asked(ProtocolVersion::V4_0, Opcode::Put),
        previous(None),
    );
    is_response(
        "a1 03 02 03 00 08 4a 06 76 61 6c 75 65 31",
        asked(ProtocolVersion::V3_1, Opcode::Put),
        previous(Some(Previous { metadata: None, value: value1() })),
    );
}

#[test]
fn gets() {
    let v20 = ProtocolVersion::V2_0;
    is_request(
        "a0 09 14 03 07 4d 79 43 61 63 68 65 00 03 00 05 48 65 6c 6c 6f",
        RequestHeader { topology_id: 0, ..header(9, v20, "MyCache") },
        RequestBody::Map(map::Request::Get("Hello".into())),
    );
    let hit = ResponseBody::Map(map::Response::Value("World".into()));
    is_response(
        "a1 09 04 00 00 05 57 6f 72 6c 64",
        asked(v20, Opcode::Get),
        Response::new(9, Status::Success, hit),
    );
    let miss = Response::new(9, Status::NotFound, ResponseBody::Empty);
    is_response("a1 09 04 02 00", asked(v20, Opcode::Get), miss);
}

#[test]
fn other_parameters() {
    let value = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let hex: String = value.bytes().map(|byte| format!("{byte:02x}")).collect();
    let begin =
        "a0 0e 28 03 01 63 00 03 ff ff ff ff 0f 01 0c 00 01 0c 00 01 0b 74 72 61 63 65 70 61 72 65 6e 74 37";
    is_request(
        &format!("{begin} {hex} 06 4a 04 6b 65 79 31"),
        RequestHeader {
            params: vec![("traceparent".into(), value.into())],
            ..typed(14, ProtocolVersion::V4_0, "c")
        },
        RequestBody::Map(map::Request::Get(key1())),
    );
}

#[test]
fn errors_are_the_same_for_every_operation() {
    let text = "org.infinispan.server.hotrod.CacheNotFoundException: Cache with name 'c' not found amongst the \
                configured caches";
    let hex: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    for &opcode in Opcode::ALL {
        is_response(
            &format!("a1 04 50 84 00 {:02x} {hex}", text.len()),
            asked(ProtocolVersion::V4_1, opcode),
            Response::error(4, Status::ParseError, text),
        );
    }
}

#[test]
fn topologies() {
    let v41 = ProtocolVersion::V4_1;
    let server = |host: &str| ServerAddress { host: host.into(), port: 11222 };
    let servers = vec![server("10.0.0.1"), server("10.0.0.2")];
    let response = |owners| {
        let topology = CacheTopology { id: 7, servers: servers.clone(), owners };
        Response { topology: Some(topology.into()), ..Response::new(5, Status::Success, ResponseBody::Empty) }
    };
    let begin = "a1 05 02 00 01 07 02 08 31 30 2e 30 2e 30 2e 31 2b d6 08 31 30 2e 30 2e 30 2e 32 2b d6";
    let knows_servers = RequestContext { intelligence: Intelligence::Topology, ..asked(v41, Opcode::Put) };
    is_response(begin, knows_servers, response(None));
    let owners = [[0, 1], [1, 0], [0, 1], [1, 0]].map(Owners::from);
    is_response(
        &format!("{begin} 03 04 02 00 01 02 01 00 02 00 01 02 01 00"),
        asked(v41, Opcode::Put),
        response(Some(owners.to_vec())),
    );
    is_response(&format!("{begin} 00 00"), asked(v41, Opcode::Put), response(None));
}

#[test]
fn tasks() {
    let v41 = ProtocolVersion::V4_1;
    let params = vec![("name".into(), "c".into()), ("template".into(), "org.infinispan.DIST_SYNC".into())];
    is_request(
        "a0 06 29 2b 00 00 03 ff ff ff ff 0f 00 00 00 13 40 40 63 61 63 68 65 40 67 65 74 6f 72 63 72 65 61 74 65
         02 04 6e 61 6d 65 01 63 08 74 65 6d 70 6c 61 74 65 18
         6f 72 67 2e 69 6e 66 69 6e 69 73 70 61 6e 2e 44 49 53 54 5f 53 59 4e 43",
        header(6, v41, ""),
        RequestBody::Task(task::Request::Exec("@@cache@getorcreate".into(), params)),
    );
    let result = |id, result: &'static str| {
        Response::new(id, Status::Success, ResponseBody::Result(Bytes::from_static(result.as_bytes())))
    };
    is_response("a1 06 2c 00 00 00", asked(v41, Opcode::Exec), result(6, ""));
    is_response(
        "a1 07 2c 00 00 09 5b 22 63 22 2c 22 64 22 5d",
        asked(v41, Opcode::Exec),
        result(7, r#"["c","d"]"#),
    );
}

#[test]
fn listeners_and_events() {
    let v41 = ProtocolVersion::V4_1;
    let id: Bytes = (0..16).collect();
    is_request(
        "a0 08 29 25 01 63 00 03 ff ff ff ff 0f 01 0c 00 01 0c 00 00
         10 00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f 00 00 00 00 0e",
        typed(8, v41, "c"),
        RequestBody::Listener(listener::Request::Add(Listener {
            id: id.clone(),
            includes_state: false,
            filter: None,
            converter: None,
            is_raw: false,
            interests: Interests::NEAR_CACHE,
        })),
    );
    let event = |kind, version| {
        let data = EventData::Key(key1(), version);
        Incoming::Event(Event { id: 0, kind, listener: id.clone(), is_retried: false, data })
    };
    let ids = "10 00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f";
    is_incoming(
        &format!("a1 00 60 00 00 {ids} 00 00 06 4a 04 6b 65 79 31 00 00 00 00 00 00 00 05"),
        asked(v41, Opcode::Ping),
        event(EventKind::Created, Some(5)),
    );
    is_incoming(
        &format!("a1 00 62 00 00 {ids} 00 00 06 4a 04 6b 65 79 31"),
        asked(v41, Opcode::Ping),
        event(EventKind::Removed, None),
    );
}

#[test]
fn walks() {
    let v41 = ProtocolVersion::V4_1;
    let begin = "a0 0a 29 31 01 63 00 03 ff ff ff ff 0f 01 0c 00 01 0c 00 00";
    let start = |segments, batch| {
        let start = iteration::Start { segments, filter: None, batch, with_metadata: false };
        RequestBody::Iteration(iteration::Request::Start(start))
    };
    let segments: BitSet = [1, 3, 12, 13].into_iter().collect();
    is_request(
        &format!("{begin} 04 0a 30 01 64 00"),
        typed(10, v41, "c"),
        start(Some(segments.clone()), 100),
    );
    is_request(&format!("{begin} 01 01 90 4e 00"), typed(10, v41, "c"), start(None, 10_000));
    let batch = |id, batch| {
        let body = ResponseBody::Iteration(iteration::Response::Batch(batch));
        Response::new(id, Status::Success, body)
    };
    let value = Bytes::from_static(b"\x4a\x01v");
    let entry = iteration::Entry { metadata: None, key: key1(), values: [value].into() };
    is_response(
        "a1 0b 34 00 00 00 01 01 00 06 4a 04 6b 65 79 31 03 4a 01 76",
        asked(v41, Opcode::IterationNext),
        batch(11, iteration::Batch { finished: BitSet::default(), projections: 1, entries: vec![entry] }),
    );
    is_response(
        "a1 0c 34 00 00 02 0a 30 00",
        asked(v41, Opcode::IterationNext),
        batch(12, iteration::Batch { finished: segments, projections: 1, entries: Vec::new() }),
    );
}

#[test]
fn counters_authentication_and_streams() {
    let v41 = ProtocolVersion::V4_1;
    let config = counter::CounterConfig {
        kind: counter::CounterKind::Bounded { lower: 0, upper: 10 },
        is_persistent: false,
        initial: 0,
    };
    is_request(
        "a0 0d 29 4b 16 6f 72 67 2e 69 6e 66 69 6e 69 73 70 61 6e 2e 43 4f 55 4e 54 45 52 00 03 ff ff ff ff 0f 00 00 00
         01 6e 02 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 0a 00 00 00 00 00 00 00 00",
        header(13, v41, "org.infinispan.COUNTER"),
        RequestBody::Counter(counter::Request::Of("n".into(), counter::Action::Create(config))),
    );
    is_request(
        "a0 00 1f 21 00 00 03 ff ff ff ff 0f 00 00",
        header(0, ProtocolVersion::V3_1, ""),
        RequestBody::Auth(auth::Request::Mechanisms),
    );
    let mechanisms = auth::Response::Mechanisms(vec!["SCRAM-SHA-256".into()]);
    is_response(
        "a1 00 22 00 00 01 0d 53 43 52 41 4d 2d 53 48 41 2d 32 35 36",
        asked(ProtocolVersion::V3_1, Opcode::AuthMechList),
        Response::new(0, Status::Success, ResponseBody::Auth(mechanisms)),
    );
    let piece = stream::Piece {
        stream: 0,
        is_last: true,
        metadata: Some(Metadata::immortal(1)),
        bytes: "abc".into(),
    };
    is_response(
        "a1 0f e8 00 00 00 00 00 00 01 03 00 00 00 00 00 00 00 01 03 61 62 63",
        asked(v41, Opcode::StartGetStream),
        Response::new(15, Status::Success, ResponseBody::Stream(stream::Response::Piece(piece))),
    );
}

#[test]
fn sizes_are_long() {
    is_response(
        "a1 01 2a 00 00 80 80 80 80 10",
        asked(ProtocolVersion::V2_0, Opcode::Size),
        Response::new(1, Status::Success, ResponseBody::Bulk(bulk::Response::Size(1 << 32))),
    );
}
