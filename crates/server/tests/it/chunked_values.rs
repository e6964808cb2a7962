//! Values in pieces: requests that our client never sends, in old versions, out of order, and above the limits.

use bytes::Bytes;
use consort_cache::VALUE_BYTES_MAX;
use consort_hotrod::ops::map;
use consort_hotrod::ops::stream::{Piece, Request as Stream, Response as Streamed, Target};
use consort_hotrod::{Expiration, Flags, ProtocolVersion, RequestBody, Response, ResponseBody, Status};
use consort_server::limits::STREAMS_MAX;

use crate::client::{Client, RunningServer, error, get, put, request};

/// A client of a version, with flags.
struct StreamClient {
    client: Client,
    version: ProtocolVersion,
    flags: Flags,
}

impl StreamClient {
    async fn connect(server: &RunningServer, version: ProtocolVersion) -> Self {
        Self { client: server.client().await, version, flags: Flags::NONE }
    }

    async fn ask(&mut self, body: RequestBody) -> Response {
        let mut request = request(9, "c", body);
        (request.header.version, request.header.flags) = (self.version, self.flags);
        self.client.send_request(request).await
    }

    async fn stream(&mut self, request: Stream) -> Response {
        self.ask(RequestBody::Stream(request)).await
    }

    async fn start(&mut self, version: i64) -> i32 {
        let response = self.stream(Stream::StartPut(target(version))).await;
        match response.body {
            ResponseBody::Stream(Streamed::Started(stream)) => stream,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn get(&mut self) -> Option<Bytes> {
        match self.ask(get("key")).await.body {
            ResponseBody::Map(map::Response::Value(value)) => Some(value),
            ResponseBody::Empty => None,
            other => panic!("{other:?}"),
        }
    }
}

fn target(version: i64) -> Target {
    Target { key: "key".into(), expiration: Expiration::default(), version }
}

fn is_unknown(response: &Response) -> bool {
    response.status == Status::ParseError && error(response).contains("java.io.StreamCorruptedException")
}

fn piece(response: Response) -> Piece {
    match response.body {
        ResponseBody::Stream(Streamed::Piece(piece)) => piece,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn request_of_an_unknown_stream_is_refused_and_its_end_is_no_error() {
    let (server, _client) = RunningServer::with_cache("unknown", "c").await;
    let mut client = StreamClient::connect(&server, ProtocolVersion::V4_1).await;
    assert!(is_unknown(&client.stream(Stream::NextGet(1)).await));
    assert!(is_unknown(&client.stream(Stream::NextPut(1, true, "x".into())).await));
    assert_eq!(client.stream(Stream::EndGet(1)).await.status, Status::Success);
    assert_eq!(client.stream(Stream::EndPut(1)).await.status, Status::Success);
    assert_eq!(client.stream(Stream::StartGet("key".into(), 10)).await.status, Status::NotFound);
    // A stream that is being written cannot be read, and a stream belongs to its connection.
    let stream = client.start(0).await;
    assert!(is_unknown(&client.stream(Stream::NextGet(stream)).await));
    let mut other = StreamClient::connect(&server, ProtocolVersion::V4_1).await;
    assert!(is_unknown(&other.stream(Stream::NextPut(stream, true, "x".into())).await));
    assert_eq!(client.stream(Stream::NextPut(stream, false, "a".into())).await.status, Status::Success);
    assert_eq!(client.stream(Stream::NextPut(stream, true, "b".into())).await.status, Status::Success);
    assert_eq!(client.get().await.unwrap(), "ab");
    // A request after the last piece or after the end is refused.
    assert!(is_unknown(&client.stream(Stream::NextPut(stream, false, "c".into())).await));
    let stream = client.start(0).await;
    assert_eq!(client.stream(Stream::EndPut(stream)).await.status, Status::Success);
    assert!(is_unknown(&client.stream(Stream::NextPut(stream, true, "d".into())).await));
    assert_eq!(client.get().await.unwrap(), "ab");
    // An empty piece is valid.
    let stream = client.start(0).await;
    assert_eq!(client.stream(Stream::NextPut(stream, true, Bytes::new())).await.status, Status::Success);
    assert_eq!(client.get().await.unwrap(), "");
}

#[tokio::test]
async fn last_chunk_gets_the_response_of_a_put_without_the_previous_value() {
    let (server, _client) = RunningServer::with_cache("statuses", "c").await;
    let mut client = StreamClient::connect(&server, ProtocolVersion::V4_1).await;
    client.flags = Flags::FORCE_RETURN_PREVIOUS;
    for (version, expected) in [
        (5, Status::NotFound),
        (-1, Status::Success),
        (-1, Status::NotExecuted),
        (5, Status::NotExecuted),
        (0, Status::Success),
    ] {
        let stream = client.start(version).await;
        let last = client.stream(Stream::NextPut(stream, true, "value".into())).await;
        assert_eq!((last.status, last.body), (expected, ResponseBody::Empty), "version {version}");
    }
}

#[tokio::test]
async fn chunks_have_the_length_that_the_client_requests() {
    let (server, mut client) = RunningServer::with_cache("lengths", "c").await;
    client.ask("c", put("key", "0123456789")).await;
    let mut client = StreamClient::connect(&server, ProtocolVersion::V4_1).await;
    let first = piece(client.stream(Stream::StartGet("key".into(), 4)).await);
    assert!(!first.is_last && first.metadata.is_some() && first.bytes == "0123");
    let second = piece(client.stream(Stream::NextGet(first.stream)).await);
    assert!(!second.is_last && second.metadata.is_none() && second.bytes == "4567");
    let third = piece(client.stream(Stream::NextGet(first.stream)).await);
    assert!(third.is_last && third.bytes == "89");
    let fourth = piece(client.stream(Stream::NextGet(first.stream)).await);
    assert!(fourth.is_last && fourth.bytes.is_empty(), "Java's client may ask again");
    let whole = piece(client.stream(Stream::StartGet("key".into(), 10)).await);
    assert!(whole.is_last && whole.bytes == "0123456789");
    let ended = piece(client.stream(Stream::StartGet("key".into(), 0)).await);
    assert!(!ended.is_last && ended.bytes == "0");
    assert_eq!(client.stream(Stream::EndGet(ended.stream)).await.status, Status::Success);
    assert!(is_unknown(&client.stream(Stream::NextGet(ended.stream)).await));
}

#[tokio::test]
async fn streams_of_a_connection_are_bounded_by_number_and_values_by_length() {
    let (server, _client) = RunningServer::with_cache("bounded-streams", "c").await;
    let mut client = StreamClient::connect(&server, ProtocolVersion::V4_1).await;
    let mut streams = Vec::new();
    for _ in 0..STREAMS_MAX {
        streams.push(client.start(0).await);
    }
    let refused = client.stream(Stream::StartPut(target(0))).await;
    assert!(error(&refused).contains("the limit of 128 streams"), "{refused:?}");
    for stream in streams {
        client.stream(Stream::EndPut(stream)).await;
    }
    let (stream, part) = (client.start(0).await, Bytes::from(vec![7; 16 * 1024 * 1024]));
    for _ in 0..VALUE_BYTES_MAX / part.len() {
        let taken = client.stream(Stream::NextPut(stream, false, part.clone())).await;
        assert_eq!(taken.status, Status::Success);
    }
    let refused = client.stream(Stream::NextPut(stream, false, "x".into())).await;
    assert!(error(&refused).contains("bytes at most"), "{refused:?}");
    assert!(is_unknown(&client.stream(Stream::NextPut(stream, true, "x".into())).await));
    assert_eq!(client.get().await, None);
}

/// The form of 2.6, with all pieces in one request.
#[tokio::test]
async fn old_version_puts_and_gets_all_chunks_in_one_request() {
    let (server, _client) = RunningServer::with_cache("old-streams", "c").await;
    for version in [ProtocolVersion::V2_6, ProtocolVersion::V3_1, ProtocolVersion::V4_0] {
        let mut client = StreamClient::connect(&server, version).await;
        let all = |version, pieces: &[&'static str]| {
            let pieces = pieces.iter().map(|piece| Bytes::from(*piece)).collect();
            Stream::Put(target(version), pieces)
        };
        client.ask(RequestBody::Map(map::Request::Remove("key".into()))).await;
        assert_eq!(client.stream(Stream::Get("key".into(), 0)).await.status, Status::NotFound);
        assert_eq!(client.stream(all(-1, &["one", "two", "three"])).await.status, Status::Success);
        assert_eq!(client.stream(all(-1, &["no"])).await.status, Status::NotExecuted);
        let mut read = async |offset| match client.stream(Stream::Get("key".into(), offset)).await.body {
            ResponseBody::Stream(Streamed::Value(metadata, value)) => (metadata.version, value),
            other => panic!("{other:?}"),
        };
        let (seen, whole) = read(0).await;
        assert_eq!(whole, "onetwothree");
        assert_eq!(read(6).await.1, "three");
        assert_eq!(read(100).await.1, "");
        assert_eq!(client.stream(all(seen, &["four"])).await.status, Status::Success);
        assert_eq!(client.stream(all(seen, &["five"])).await.status, Status::NotExecuted);
        client.flags = Flags::FORCE_RETURN_PREVIOUS;
        let replaced = client.stream(all(0, &[])).await;
        assert_eq!(replaced.status, Status::SuccessWithPrevious);
        let ResponseBody::Stream(Streamed::Previous(Some(previous))) = replaced.body else {
            panic!("{:?}", replaced.body)
        };
        assert_eq!(previous.value, "four");
        assert_eq!(client.get().await.unwrap(), "");
    }
}
