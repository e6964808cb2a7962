//! Large values read and written in chunks.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use consort_client::{
    ClientError, Lifetime, PIECE_BYTES, ProtocolVersion, RawCache, VALUE_BYTES_MAX, ValueReader,
};
use consort_hotrod::ops::{map, stream};
use consort_hotrod::{Metadata, Request, RequestBody, ResponseBody, Status};
use tokio::task::JoinHandle;

use crate::scripted_server::{ScriptedConnection, ScriptedServer};
use crate::servers::{Running, connections_to};
use crate::verbs::speaking;

/// Bytes that depend on their position.
fn pattern(at: usize, length: usize) -> Vec<u8> {
    (at..at + length).map(|n| (n * 7 + n / 251) as u8).collect()
}

async fn write(cache: &RawCache, key: &[u8], length: usize) {
    let mut writer = cache.writer(key).unwrap();
    // In parts that do not match chunks.
    for at in (0..length).step_by(50_000) {
        writer.write(&pattern(at, 50_000.min(length - at))).await.unwrap();
    }
    assert!(writer.finish().await.unwrap());
}

async fn rest(reader: &mut ValueReader) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(piece) = reader.next().await.unwrap() {
        assert!(!piece.is_empty() && piece.len() <= PIECE_BYTES);
        all.extend_from_slice(&piece);
    }
    assert!(reader.next().await.unwrap().is_none());
    all
}

#[tokio::test]
async fn values_of_any_length_are_written_and_read_in_chunks() {
    let (_server, client) = Running::with_cache("lengths", "c").await;
    let cache = client.raw("c");
    let key = &b"key"[..];
    assert!(cache.reader(key).await.unwrap().is_none());
    for length in [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES, 5_000_001] {
        write(&cache, key, length).await;
        let mut reader = cache.reader(key).await.unwrap().unwrap();
        assert!(rest(&mut reader).await == pattern(0, length), "{length} bytes");
        assert!(cache.get(key).await.unwrap().unwrap() == pattern(0, length), "{length} bytes at once");
        let entry = cache.get_with_metadata(key).await.unwrap().unwrap();
        assert_eq!((reader.version(), reader.lifetime()), (entry.version, Lifetime::FOREVER));
    }
}

#[tokio::test]
async fn a_value_is_put_under_its_condition_and_with_its_lifetime() {
    let (_server, client) = Running::with_cache("conditions", "c").await;
    let cache = client.raw("c").with_lifetime(Lifetime::lifespan(Duration::from_secs(1_000)));
    let key = &b"key"[..];
    for length in [10, 3 * PIECE_BYTES] {
        let value = pattern(0, length);
        let put = async |writer: consort_client::ValueWriter| {
            let mut writer = writer;
            writer.write(&value).await.unwrap();
            writer.finish().await.unwrap()
        };
        cache.remove(key).await.unwrap();
        let stale = consort_client::Version(1);
        assert!(!put(cache.writer(key).unwrap().if_version(stale)).await, "nothing is there");
        assert!(put(cache.writer(key).unwrap().if_absent()).await);
        assert!(!put(cache.writer(key).unwrap().if_absent()).await);
        let entry = cache.get_with_metadata(key).await.unwrap().unwrap();
        assert!(entry.value == value);
        assert_eq!(entry.lifetime, Lifetime::lifespan(Duration::from_secs(1_000)));
        assert!(put(cache.writer(key).unwrap().if_version(entry.version)).await);
        assert!(!put(cache.writer(key).unwrap().if_version(entry.version)).await, "an old version");
        let reader = cache.reader(key).await.unwrap().unwrap();
        assert!(reader.created().is_some() && reader.version() != entry.version);
    }
}

#[tokio::test]
async fn a_reader_sees_one_value_throughout_and_a_dropped_writer_changes_nothing() {
    let (_server, client) = Running::with_cache("throughout", "c").await;
    let (cache, key) = (client.raw("c"), &b"key"[..]);
    write(&cache, key, 5 * PIECE_BYTES).await;
    let mut reader = cache.reader(key).await.unwrap().unwrap();
    assert!(reader.next().await.unwrap().is_some());
    let mut writer = cache.writer(key).unwrap();
    writer.write(&vec![0; 4 * PIECE_BYTES]).await.unwrap();
    drop(writer);
    assert!(cache.get(key).await.unwrap().unwrap() == pattern(0, 5 * PIECE_BYTES));
    cache.put(key, &b"another"[..]).await.unwrap();
    assert!(rest(&mut reader).await == pattern(PIECE_BYTES, 4 * PIECE_BYTES));
    // An abandoned reader disturbs no other.
    write(&cache, key, 5 * PIECE_BYTES).await;
    for _ in 0..1_000 {
        let mut reader = cache.reader(key).await.unwrap().unwrap();
        reader.next().await.unwrap();
    }
    assert!(cache.get(key).await.unwrap().is_some());
}

#[tokio::test]
async fn servers_without_version_4_1_are_named_in_the_error() {
    let (server, _admin) = Running::with_cache("old", "c").await;
    let client = speaking(&server, ProtocolVersion::V4_0).await.unwrap();
    let cache = client.raw("c");
    let error = cache.reader(&b"key"[..]).await.unwrap_err();
    assert!(matches!(error, ClientError::Unsupported { needed: ProtocolVersion::V4_1, .. }), "{error}");
    let mut writer = cache.writer(&b"key"[..]).unwrap();
    let error = writer.write(&vec![0; 2 * PIECE_BYTES]).await.unwrap_err();
    assert!(matches!(error, ClientError::Unsupported { .. }), "{error}");
    let again = writer.write(b"more").await.unwrap_err();
    assert_eq!(again.to_string(), error.to_string());
}

#[tokio::test]
async fn a_value_that_is_too_large_is_refused_and_changes_nothing() {
    let (_server, client) = Running::with_cache("too-large", "c").await;
    let (cache, key) = (client.raw("c"), &b"key"[..]);
    cache.put(key, &b"before"[..]).await.unwrap();
    let mut writer = cache.writer(key).unwrap();
    let part = vec![7; 1024 * 1024];
    let error = async {
        for _ in 0..=VALUE_BYTES_MAX / part.len() {
            writer.write(&part).await?;
        }
        writer.finish().await
    };
    let error = error.await.unwrap_err();
    assert!(error.to_string().contains(&format!("{VALUE_BYTES_MAX} bytes at most")), "{error}");
    assert_eq!(cache.get(key).await.unwrap().as_deref(), Some(&b"before"[..]));
}

/// S002-15: between any two chunks a small request goes out and is answered on the same connection.
#[tokio::test]
async fn s002_15_small_requests_are_sent_between_chunks_on_one_connection() {
    const PIECES: usize = 200;
    let (server, client) = Running::with_cache("between", "c").await;
    let cache = client.raw("c");
    cache.put(&b"small"[..], &b"value"[..]).await.unwrap();
    let small = async || cache.get(&b"small"[..]).await.unwrap().expect("the value");
    let mut writer = cache.writer(&b"large"[..]).unwrap();
    for n in 0..PIECES {
        writer.write(&pattern(n * PIECE_BYTES, PIECE_BYTES)).await.unwrap();
        assert_eq!(small().await, "value");
        assert!(cache.get(&b"large"[..]).await.unwrap().is_none(), "no part is visible");
    }
    assert!(writer.finish().await.unwrap());
    let mut reader = cache.reader(&b"large"[..]).await.unwrap().unwrap();
    for n in 0..PIECES {
        let piece = reader.next().await.unwrap().unwrap();
        assert!(piece == pattern(n * PIECE_BYTES, PIECE_BYTES), "piece {n}");
        assert_eq!(small().await, "value");
    }
    assert!(reader.next().await.unwrap().is_none());
    assert_eq!(connections_to(server.at.port()), 1);
}

fn get_small(cache: &RawCache) -> JoinHandle<Result<Option<Bytes>, ClientError>> {
    let cache = cache.clone();
    tokio::spawn(async move { cache.get(&b"small"[..]).await })
}

/// Expects the small request next.
async fn small_is_asked(server: &mut ScriptedConnection) -> Request {
    let get = server.next().await.unwrap();
    assert!(matches!(&get.body, RequestBody::Map(map::Request::Get(key)) if key == "small"), "{get:?}");
    get
}

/// S002-15: other requests do not wait for a stream; its chunks are in order, and at most two are
/// unacknowledged while the connection has other requests.
#[tokio::test]
async fn s002_15_two_chunks_are_in_flight_and_other_requests_do_not_wait() {
    let played = ScriptedServer::listen().await;
    let (client, mut server) = played.client().await;
    let cache = client.raw("c");
    let waiting = get_small(&cache);
    let waits = small_is_asked(&mut server).await;
    let writing = tokio::spawn({
        let cache = cache.clone();
        async move {
            let mut writer = cache.writer(&b"large"[..]).unwrap();
            for n in 0..5 {
                writer.write(&[n; PIECE_BYTES]).await?;
            }
            writer.finish().await
        }
    });
    let start = server.next().await.unwrap();
    let RequestBody::Stream(stream::Request::StartPut(target)) = &start.body else { panic!("{start:?}") };
    assert_eq!((&target.key[..], target.version), (&b"large"[..], 0));
    server.reply(&start, ResponseBody::Stream(stream::Response::Started(77))).await;
    let mut pieces = Vec::new();
    for expected in 0..2 {
        let piece = server.next().await.unwrap();
        let RequestBody::Stream(stream::Request::NextPut(77, false, bytes)) = &piece.body else {
            panic!("{piece:?}")
        };
        assert_eq!((bytes.len(), bytes[0]), (PIECE_BYTES, expected));
        pieces.push(piece);
    }
    // Neither chunk is acknowledged, and the next request is the small one.
    let reading = get_small(&cache);
    let get = small_is_asked(&mut server).await;
    server.reply(&get, ResponseBody::Map(map::Response::Value("value".into()))).await;
    assert_eq!(reading.await.unwrap().unwrap().as_deref(), Some(&b"value"[..]));
    for expected in 2..5 {
        server.reply(&pieces.remove(0), ResponseBody::Empty).await;
        let piece = server.next().await.unwrap();
        let RequestBody::Stream(stream::Request::NextPut(77, is_last, bytes)) = &piece.body else {
            panic!("{piece:?}")
        };
        assert_eq!((*is_last, bytes[0]), (expected == 4, expected));
        pieces.push(piece);
    }
    for piece in &pieces {
        server.reply(piece, ResponseBody::Empty).await;
    }
    assert!(writing.await.unwrap().unwrap());
    server.reply(&waits, ResponseBody::Map(map::Response::Value("value".into()))).await;
    assert!(waiting.await.unwrap().unwrap().is_some());
}

/// S002-17: without other requests six chunks are in flight.
#[tokio::test]
async fn s002_17_six_chunks_are_written_before_the_first_is_acknowledged() {
    const PIECES: u8 = 9;
    let played = ScriptedServer::listen().await;
    let (client, mut server) = played.client().await;
    let cache = client.raw("c");
    let writing = tokio::spawn({
        let cache = cache.clone();
        async move {
            let mut writer = cache.writer(&b"large"[..]).unwrap();
            for n in 0..PIECES {
                writer.write(&[n; PIECE_BYTES]).await?;
            }
            writer.finish().await
        }
    });
    let start = server.next().await.unwrap();
    server.reply(&start, ResponseBody::Stream(stream::Response::Started(77))).await;
    let mut pieces = VecDeque::new();
    let sent = async |server: &mut ScriptedConnection, pieces: &mut VecDeque<Request>, expected: u8| {
        let piece = server.next().await.unwrap();
        let RequestBody::Stream(stream::Request::NextPut(77, is_last, bytes)) = &piece.body else {
            panic!("{piece:?}")
        };
        assert_eq!((bytes[0], *is_last), (expected, expected == PIECES - 1));
        pieces.push_back(piece);
    };
    for expected in 0..6 {
        sent(&mut server, &mut pieces, expected).await;
    }
    // No further chunk comes before the first is acknowledged.
    let reading = get_small(&cache);
    let get = small_is_asked(&mut server).await;
    for expected in 6..PIECES {
        // While the small request waits, at most two chunks are in flight.
        while pieces.len() >= 2 {
            server.reply(&pieces.pop_front().unwrap(), ResponseBody::Empty).await;
        }
        sent(&mut server, &mut pieces, expected).await;
    }
    for piece in &pieces {
        server.reply(piece, ResponseBody::Empty).await;
    }
    assert!(writing.await.unwrap().unwrap());
    server.reply(&get, ResponseBody::Map(map::Response::Value("value".into()))).await;
    assert!(reading.await.unwrap().unwrap().is_some());
}

/// S002-17: eight chunks are requested ahead, two together; three while the connection has other requests.
#[tokio::test]
async fn s002_17_chunks_are_requested_ahead_and_fewer_beside_other_requests() {
    let played = ScriptedServer::listen().await;
    let (client, mut server) = played.client().await;
    let cache = client.raw("c");
    let begin = tokio::spawn({
        let cache = cache.clone();
        async move { cache.reader(&b"large"[..]).await }
    });
    let piece = |n: u8, is_first: bool| {
        ResponseBody::Stream(stream::Response::Piece(stream::Piece {
            stream: 5,
            is_last: n == 11,
            metadata: is_first.then(|| Metadata::immortal(1)),
            bytes: vec![n; 10].into(),
        }))
    };
    let start = server.next().await.unwrap();
    server.reply(&start, piece(0, true)).await;
    let mut reader = begin.await.unwrap().unwrap().unwrap();
    let read = async |reader: &mut ValueReader| reader.next().await.unwrap().map(|piece| piece[0]);
    let asked = async |server: &mut ScriptedConnection, count: usize| {
        let mut requests = Vec::new();
        for _ in 0..count {
            let next = server.next().await.unwrap();
            assert!(matches!(next.body, RequestBody::Stream(stream::Request::NextGet(5))), "{next:?}");
            requests.push(next);
        }
        requests
    };
    // Reading the next chunk requests eight.
    assert_eq!(read(&mut reader).await, Some(0));
    let mut waiting = asked(&mut server, 8).await;
    for n in 1..=2 {
        server.reply(&waiting.remove(0), piece(n, false)).await;
    }
    for n in 1..=2 {
        assert_eq!(read(&mut reader).await, Some(n));
    }
    waiting.extend(asked(&mut server, 2).await);
    // Eight are in flight when another request comes; then at most three, and each chunk is returned as it
    // arrives.
    let reading = get_small(&cache);
    let get = small_is_asked(&mut server).await;
    for n in 3..=11 {
        server.reply(&waiting.remove(0), piece(n, false)).await;
        assert_eq!(read(&mut reader).await, Some(n));
        if waiting.len() < 3 && n < 11 {
            waiting.extend(asked(&mut server, 1).await);
        }
    }
    assert_eq!(read(&mut reader).await, None);
    server.reply(&get, ResponseBody::Map(map::Response::Value("value".into()))).await;
    assert!(reading.await.unwrap().unwrap().is_some());
}

#[tokio::test]
async fn a_stream_ends_with_its_connection_and_reports_the_outcome() {
    let played = ScriptedServer::listen().await;
    let (client, mut server) = played.client().await;
    let cache = client.raw("c");
    let begin = async |server: &mut ScriptedConnection, writer: &mut consort_client::ValueWriter| {
        let write = writer.write(&[7; PIECE_BYTES + 1]);
        let serve = async {
            let start = server.next().await.unwrap();
            server.reply(&start, ResponseBody::Stream(stream::Response::Started(1))).await;
            server.next().await.unwrap()
        };
        let (written, piece) = tokio::join!(write, serve);
        written.unwrap();
        piece
    };
    let (mut torn, mut last) = (cache.writer(&b"torn"[..]).unwrap(), cache.writer(&b"last"[..]).unwrap());
    begin(&mut server, &mut torn).await;
    let piece = begin(&mut server, &mut last).await;
    server.reply(&piece, ResponseBody::Empty).await;
    let finishing = tokio::spawn(last.finish());
    server.next().await.expect("the last piece");
    drop(server);
    // The last chunk may have completed the put.
    let error = finishing.await.unwrap().unwrap_err();
    assert!(matches!(error, ClientError::Uncertain { .. }) && error.is_outcome_unknown(), "{error}");
    // Without the last chunk nothing was changed, also on a new connection.
    let _again = played.accept().await;
    let error = torn.finish().await.unwrap_err();
    assert!(matches!(error, ClientError::StreamLost { .. }) && !error.is_outcome_unknown(), "{error}");
}

#[tokio::test]
async fn a_failed_reader_does_not_report_the_end() {
    let played = ScriptedServer::listen().await;
    let (client, mut server) = played.client().await;
    let cache = client.raw("c");
    let reading = tokio::spawn(async move { cache.reader(&b"key"[..]).await });
    let start = server.next().await.unwrap();
    let piece = |bytes: &'static [u8], is_first: bool| stream::Piece {
        stream: 5,
        is_last: false,
        metadata: is_first.then(|| Metadata::immortal(1)),
        bytes: bytes.into(),
    };
    server.reply(&start, ResponseBody::Stream(stream::Response::Piece(piece(b"one", true)))).await;
    let mut reader = reading.await.unwrap().unwrap().unwrap();
    assert_eq!(reader.next().await.unwrap().as_deref(), Some(&b"one"[..]));
    let next = server.next().await.unwrap();
    server.refuse(&next, Status::ServerError, "java.io.StreamCorruptedException: gone").await;
    for _ in 0..2 {
        let error = reader.next().await.unwrap_err();
        assert!(error.to_string().contains("StreamCorruptedException"), "{error}");
    }
}

/// Serves streams: accepts all writes, and returns as many bytes as requested.
async fn serve_streams(played: ScriptedServer, length: usize) {
    let mut client = played.accept().await;
    let value = Bytes::from(vec![7; PIECE_BYTES]);
    let mut given = 0;
    while let Some(request) = client.next().await {
        let RequestBody::Stream(asked) = &request.body else {
            client.reply(&request, ResponseBody::Map(map::Response::Value("value".into()))).await;
            continue;
        };
        let body = match asked {
            stream::Request::StartPut(_) => stream::Response::Started(1),
            stream::Request::NextPut(..) | stream::Request::EndPut(_) | stream::Request::EndGet(_) => {
                client.reply(&request, ResponseBody::Empty).await;
                continue;
            }
            _ => {
                given += PIECE_BYTES;
                let is_first = matches!(asked, stream::Request::StartGet(..));
                stream::Response::Piece(stream::Piece {
                    stream: 1,
                    is_last: given >= length,
                    metadata: is_first.then(|| Metadata::immortal(1)),
                    bytes: value.clone(),
                })
            }
        };
        client.reply(&request, ResponseBody::Stream(body)).await;
    }
}

/// S002-16: while the client writes and reads values of 550 MB, only a few chunks are in memory.
#[test]
fn s002_16_a_few_chunks_of_a_value_are_in_memory() {
    const LENGTH: usize = 9_000 * PIECE_BYTES;
    let (sender, receiver) = std::sync::mpsc::channel();
    // Allocations are counted per thread; the server has its own.
    let serving = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let played = ScriptedServer::listen().await;
            sender.send(played.at()).unwrap();
            serve_streams(played, LENGTH).await;
        });
    });
    let at = receiver.recv().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = runtime.block_on(consort_client::Client::connect(&format!("hotrod://{at}"))).unwrap();
    let cache = client.raw("c");
    let part = [7; PIECE_BYTES];
    let writing = allocation_counter::measure(|| {
        runtime.block_on(async {
            let mut writer = cache.writer(&b"key"[..]).unwrap();
            for _ in 0..LENGTH / PIECE_BYTES {
                writer.write(&part).await.unwrap();
            }
            assert!(writer.finish().await.unwrap());
        });
    });
    let reading = allocation_counter::measure(|| {
        runtime.block_on(async {
            let mut reader = cache.reader(&b"key"[..]).await.unwrap().unwrap();
            let mut length = 0;
            while let Some(piece) = reader.next().await.unwrap() {
                length += piece.len();
            }
            assert_eq!(length, LENGTH);
        });
    });
    let most = [writing.bytes_max, reading.bytes_max];
    // Nine chunks, slices of buffers: twice as much at most.
    let allowed = 18 * PIECE_BYTES as u64;
    assert!(most.iter().all(|bytes| *bytes < allowed), "{most:?} of {allowed} bytes");
    // Chunks requested beyond the end are answered before this.
    runtime.block_on(cache.get(&b"small"[..])).unwrap();
    runtime.block_on(client.close());
    drop((cache, client, runtime));
    serving.join().unwrap();
}
