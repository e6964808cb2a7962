//! A connection without sockets, in simulated time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;
use std::time::Duration;

use bytes::Bytes;
use consort_hotrod::ops::{event, map, stream};
use consort_hotrod::{RequestContext, Status};

use super::*;

#[derive(Default)]
struct Caller(AtomicUsize);

impl Wake for Caller {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

struct Pair {
    now: Time,
    connection: Connection,
    caller: Arc<Caller>,
    asked: Vec<Request>,
    requests: consort_hotrod::RequestDecoder,
    written: u64,
    input: BytesMut,
    effects: Effects,
}

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

fn pong(newest: u8) -> ResponseBody {
    ResponseBody::Server(server::Response::Pong(server::Pong::untyped(newest, Vec::new())))
}

impl Pair {
    fn begun(forced: Option<ProtocolVersion>) -> Self {
        Self::speaking(Versions { forced, oldest: ProtocolVersion::V3_0 })
    }

    fn with_legacy(forced: Option<ProtocolVersion>) -> Self {
        Self::speaking(Versions { forced, oldest: ProtocolVersion::V2_0 })
    }

    fn speaking(versions: Versions) -> Self {
        let mut pair = Self {
            now: SECOND,
            connection: Connection::new(SECOND, versions, versions.initial(), None),
            caller: Arc::default(),
            asked: Vec::new(),
            requests: consort_hotrod::RequestDecoder::default(),
            written: 0,
            input: BytesMut::new(),
            effects: Effects::default(),
        };
        pair.write();
        pair
    }

    fn open() -> Self {
        let mut pair = Self::begun(None);
        pair.answer(0, pong(41)).unwrap();
        assert!(pair.connection.is_open());
        pair
    }

    fn write(&mut self) {
        let mut output = Output::new();
        self.connection.take_output(&mut output);
        self.written += output.len() as u64;
        let mut bytes = BytesMut::from(&output.into_bytes()[..]);
        while let Some(request) = self.requests.decode(&mut bytes).unwrap() {
            self.asked.push(request);
        }
        assert!(bytes.is_empty(), "half a request");
    }

    fn response(&mut self, index: usize, body: ResponseBody) -> (RequestContext, Response) {
        let request = self.asked.remove(index);
        (request.context(), Response::new(request.header.id, Status::Success, body))
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<(), ConnectionError> {
        self.input.extend_from_slice(bytes);
        let received = self.connection.handle_receive(self.now, &mut self.input, &mut self.effects);
        self.effects.wake.drain(..).for_each(Waker::wake);
        received
    }

    fn answer(&mut self, index: usize, body: ResponseBody) -> Result<(), ConnectionError> {
        let (asked, response) = self.response(index, body);
        let mut out = Output::new();
        response.encode(asked, &mut out);
        self.receive(&out.into_bytes())
    }

    fn waker(&self) -> Waker {
        self.caller.clone().into()
    }

    fn get(&mut self, key: &'static str, deadline: Time) -> Result<u64, Refused> {
        let body = RequestBody::Map(map::Request::Get(key.into()));
        self.submit(body, deadline)
    }

    fn submit(&mut self, body: RequestBody, deadline: Time) -> Result<u64, Refused> {
        let header = RequestHeader::new(0, ProtocolVersion::NEWEST);
        let waker = self.waker();
        self.connection.submit(self.now, &mut Request { header, body }, deadline, 3, &waker)
    }

    fn poll(&mut self, id: u64) -> Poll<(Result<Response, Failure>, u32)> {
        let waker = self.waker();
        self.connection.poll_answer(id, &waker)
    }

    fn value(&mut self, id: u64) -> Option<Bytes> {
        match self.poll(id) {
            Poll::Ready((Ok(response), _)) => match response.body {
                ResponseBody::Map(map::Response::Value(value)) => Some(value),
                other => panic!("{other:?}"),
            },
            Poll::Ready((Err(failure), _)) => panic!("{failure:?}"),
            Poll::Pending => None,
        }
    }

    fn pass(&mut self, time: Duration) -> Result<(), ConnectionError> {
        self.now += time;
        let ticked = self.connection.handle_timeout(self.now, &mut self.effects);
        self.effects.wake.drain(..).for_each(Waker::wake);
        ticked
    }
}

fn value(value: &'static str) -> ResponseBody {
    ResponseBody::Map(map::Response::Value(value.into()))
}

#[test]
fn the_newest_version_is_spoken_that_both_sides_know() {
    let cases: [(u8, Option<ProtocolVersion>, ProtocolVersion); 6] = [
        (30, None, ProtocolVersion::V3_0),
        (31, None, ProtocolVersion::V3_1),
        (40, None, ProtocolVersion::V4_0),
        (41, None, ProtocolVersion::V4_1),
        (99, None, ProtocolVersion::V4_1),
        (41, Some(ProtocolVersion::V3_1), ProtocolVersion::V3_1),
    ];
    for (newest, wanted, spoken) in cases {
        let mut pair = Pair::begun(wanted);
        assert!(pair.get("k", Time::MAX).is_err(), "before it is open");
        pair.answer(0, pong(newest)).unwrap();
        pair.get("k", Time::MAX).unwrap();
        pair.write();
        assert_eq!(pair.asked[0].header.version, spoken);
    }
}

/// S002-21.
#[test]
fn s002_21_servers_of_2_x_are_refused_with_the_reason() {
    let error = Pair::begun(None).answer(0, pong(29)).unwrap_err();
    assert_eq!(error.to_string(), "the server supports versions up to 2.9; 3.0 is needed");
    let error = Pair::begun(Some(ProtocolVersion::V4_1)).answer(0, pong(40)).unwrap_err();
    assert!(
        matches!(error, ConnectionError::VersionTooOld { newest: 40, needed: ProtocolVersion::V4_1 }),
        "{error}"
    );
    let mut pair = Pair::begun(None);
    let unknown = Response::error(1, Status::UnknownVersion, "unknown version 30");
    let mut out = Output::new();
    unknown.encode(pair.asked[0].context(), &mut out);
    let error = pair.receive(&out.into_bytes()).unwrap_err();
    assert!(matches!(&error, ConnectionError::Refused(text) if text == "unknown version 30"), "{error}");
}

/// S002-22: the client uses the version that an old server reports, also if it asked in a newer one.
#[test]
fn s002_22_the_version_is_one_before_3_0_if_the_server_says_so_or_it_is_wanted() {
    let mut pair = Pair::with_legacy(None);
    assert_eq!(pair.asked[0].header.version, ProtocolVersion::V3_0);
    pair.answer(0, pong(29)).unwrap();
    pair.get("k", Time::MAX).unwrap();
    pair.write();
    assert_eq!(pair.asked[0].header.version, ProtocolVersion::V2_9);
    for version in ProtocolVersion::ALL.into_iter().filter(|version| *version < ProtocolVersion::V3_0) {
        let mut pair = Pair::with_legacy(Some(version));
        assert_eq!(pair.asked[0].header.version, version);
        pair.answer(0, pong(0)).unwrap();
        pair.get("k", Time::MAX).unwrap();
        pair.write();
        assert_eq!(pair.asked[0].header.version, version);
        let refused = pair.submit(RequestBody::Stream(stream::Request::StartGet("k".into(), 1)), Time::MAX);
        assert!(
            matches!(refused, Err(Refused::Unsupported { needed: ProtocolVersion::V4_1, spoken }) if spoken == version),
            "{refused:?}"
        );
    }
    assert!(Pair::with_legacy(None).answer(0, pong(19)).is_err(), "1.x is not spoken");
}

/// S002-22: the client tries the next older version, unless a version is forced.
#[test]
fn s002_22_a_greeting_that_is_not_understood_leads_to_an_older_one() {
    let refused = |wanted, id, status| {
        let mut pair = Pair::with_legacy(wanted);
        let mut out = Output::new();
        Response::error(id, status, "no").encode(pair.asked[0].context(), &mut out);
        assert!(pair.receive(&out.into_bytes()).is_err());
        pair.connection.next_greeting()
    };
    assert_eq!(refused(None, 1, Status::UnknownVersion), Some(ProtocolVersion::V2_9));
    assert_eq!(
        refused(None, 0, Status::ParseError),
        Some(ProtocolVersion::V2_9),
        "the server reports no version"
    );
    assert_eq!(refused(None, 1, Status::ServerError), None);
    assert_eq!(refused(Some(ProtocolVersion::V2_5), 1, Status::UnknownVersion), None);
    assert_eq!(refused(Some(ProtocolVersion::V4_0), 1, Status::UnknownVersion), None);
}

/// S002-2.
#[test]
fn s002_2_requests_go_out_together_and_answers_find_them_in_any_order() {
    let mut pair = Pair::open();
    let ids = [(); 3].map(|()| pair.get("k", Time::MAX).unwrap());
    pair.write();
    assert_eq!(pair.asked.len(), 3);
    let mut out = Output::new();
    for (index, text) in [(2, "third"), (0, "first"), (0, "second")] {
        let (asked, response) = pair.response(index, value(text));
        response.encode(asked, &mut out);
    }
    for byte in out.into_bytes() {
        pair.receive(&[byte]).unwrap();
    }
    assert_eq!(pair.caller.0.load(Ordering::Relaxed), 3);
    let values = ids.map(|id| pair.value(id).unwrap());
    assert_eq!(values, ["first", "second", "third"]);
}

/// S002-14.
#[test]
fn s002_14_values_are_parts_of_what_was_received() {
    let mut pair = Pair::open();
    let id = pair.get("k", Time::MAX).unwrap();
    pair.write();
    let (asked, response) = pair.response(0, value("value"));
    let mut out = Output::new();
    response.encode(asked, &mut out);
    pair.input.reserve(1_000);
    pair.input.extend_from_slice(&out.into_bytes());
    let received = pair.input.as_ptr_range();
    pair.receive(&[]).unwrap();
    let value = pair.value(id).unwrap();
    assert!(received.contains(&value.as_ptr()));
}

#[test]
fn an_id_is_used_again_only_when_its_answer_has_come() {
    let mut pair = Pair::open();
    let first = pair.get("k", pair.now + SECOND).unwrap();
    pair.write();
    pair.pass(2 * SECOND).unwrap();
    let Poll::Ready((Err(failure), 0)) = pair.poll(first) else { panic!("it is late") };
    assert!(failure.cause.is_none() && failure.was_sent);
    let second = pair.get("k", Time::MAX).unwrap();
    assert_ne!(first, second);
    pair.answer(0, value("late")).unwrap();
    assert_eq!(std::mem::take(&mut pair.effects.room), 3, "its room is freed");
    assert_eq!(pair.get("k", Time::MAX).unwrap(), first);
}

#[test]
fn an_answer_that_comes_after_its_deadline_and_before_it_was_noticed_counts() {
    let mut pair = Pair::open();
    let id = pair.get("k", pair.now + SECOND).unwrap();
    pair.write();
    pair.pass(2 * SECOND).unwrap();
    pair.answer(0, value("late")).unwrap();
    assert_eq!(pair.value(id).unwrap(), "late");
}

#[test]
fn an_abandoned_request_frees_its_room_when_its_response_arrives() {
    let mut pair = Pair::open();
    let id = pair.get("k", Time::MAX).unwrap();
    pair.write();
    assert_eq!(pair.connection.abandon(id), 0);
    pair.answer(0, value("unused")).unwrap();
    assert_eq!(pair.effects.room, 3);
    assert_eq!(pair.caller.0.load(Ordering::Relaxed), 0);
}

#[test]
fn a_lost_connection_reports_which_requests_the_server_may_have() {
    let mut pair = Pair::open();
    let sent = pair.get("sent", Time::MAX).unwrap();
    pair.write();
    let unsent = pair.get("unsent", Time::MAX).unwrap();
    let written = pair.written;
    pair.connection.lose(written, &ConnectionError::ClosedByServer, &mut pair.effects);
    for (id, expected) in [(sent, true), (unsent, false)] {
        let Poll::Ready((Err(failure), _)) = pair.poll(id) else { panic!("it is lost") };
        assert_eq!(failure.was_sent, expected);
        assert!(matches!(failure.cause, Some(ConnectionError::ClosedByServer)));
    }
    assert!(matches!(pair.get("k", Time::MAX), Err(Refused::NotOpen)));
}

/// A server that shuts down has answered all requests that it has begun before it sends its notice.
#[test]
fn requests_without_a_response_are_not_begun_when_the_server_says_that_it_ends() {
    let mut pair = Pair::open();
    let [first, second] = ["a", "b"].map(|key| pair.get(key, Time::MAX).unwrap());
    pair.write();
    pair.answer(0, value("a's")).unwrap();
    assert_eq!(pair.value(first), Some("a's".into()));
    let error = pair.receive(&complaint(Status::IllegalLifecycle)).unwrap_err();
    assert!(matches!(error, ConnectionError::ServerEnds), "{error}");
    pair.connection.lose(pair.written, &error, &mut pair.effects);
    let Poll::Ready((Err(failure), _)) = pair.poll(second) else { panic!("it is lost") };
    assert!(!failure.was_sent, "{failure:?}");
    // Another error says nothing of pending requests.
    let mut pair = Pair::open();
    let first = pair.get("a", Time::MAX).unwrap();
    pair.write();
    let error = pair.receive(&complaint(Status::ServerError)).unwrap_err();
    pair.connection.lose(pair.written, &error, &mut pair.effects);
    assert!(matches!(pair.poll(first), Poll::Ready((Err(Failure { was_sent: true, .. }), _))));
}

#[test]
fn the_first_request_of_a_connection_says_that_a_close_notice_is_understood() {
    let param_counts = |newest| {
        let mut pair = Pair::begun(None);
        pair.answer(0, pong(newest)).unwrap();
        for _ in 0..2 {
            pair.get("k", Time::MAX).unwrap();
        }
        pair.write();
        let params = |request: &Request| request.header.params.len();
        pair.asked.iter().map(params).collect::<Vec<_>>()
    };
    assert_eq!(param_counts(41), [1, 0]);
    assert_eq!(param_counts(31), [0, 0], "its headers have no parameters");
}

fn complaint(status: Status) -> Bytes {
    let (version, opcode) = (ProtocolVersion::NEWEST, Opcode::Ping);
    let asked = RequestContext { version, opcode, intelligence: consort_hotrod::Intelligence::Basic };
    let mut out = Output::new();
    Response::error(0, status, "this server ends").encode(asked, &mut out);
    out.into_bytes()
}

#[test]
fn a_request_of_which_a_part_was_written_may_be_at_the_server() {
    let mut pair = Pair::open();
    let id = pair.get("k", Time::MAX).unwrap();
    let before = pair.written;
    pair.write();
    pair.connection.lose(before + 1, &ConnectionError::ClosedByServer, &mut pair.effects);
    let Poll::Ready((Err(failure), _)) = pair.poll(id) else { panic!("it is lost") };
    assert!(failure.was_sent);
}

#[test]
fn a_silent_server_is_asked_and_then_given_up() {
    let mut pair = Pair::open();
    assert_eq!(pair.connection.poll_timeout(), pair.now + PING_AFTER);
    pair.pass(PING_AFTER).unwrap();
    pair.write();
    assert_eq!(pair.asked.len(), 1, "a ping");
    pair.answer(0, pong(41)).unwrap();
    pair.pass(PING_AFTER).unwrap();
    pair.write();
    pair.pass(SILENCE_MAX - SECOND).unwrap();
    let error = pair.pass(SECOND).unwrap_err();
    assert!(matches!(error, ConnectionError::PingTimedOut(_)), "{error}");
}

/// A hanging server: its kernel accepts the bytes, and no response comes.
#[test]
fn requests_that_can_be_made_twice_end_when_the_server_has_become_silent() {
    let mut pair = Pair::open();
    let [read, write] = ["a", "b"].map(|key| pair.get(key, HOUR).unwrap());
    pair.connection.allow_move(read);
    pair.write();
    pair.pass(ASK_AFTER / 2).unwrap();
    pair.write();
    assert_eq!(pair.asked.len(), 2, "it has some time");
    pair.pass(ASK_AFTER / 2).unwrap();
    pair.write();
    assert!(matches!(pair.asked[2].body, RequestBody::Server(server::Request::Ping)), "{:?}", pair.asked);
    assert!(!pair.connection.is_silent());
    pair.pass(SILENT_AFTER).unwrap();
    assert!(pair.connection.is_silent());
    let Poll::Ready((Err(failure), _)) = pair.poll(read) else { panic!("it can be made elsewhere") };
    assert!(matches!(failure.cause, Some(ConnectionError::PingTimedOut(_))), "{failure:?}");
    assert!(pair.poll(write).is_pending());
    // If no other server exists, requests wait and are not sent repeatedly.
    let later = pair.get("c", HOUR).unwrap();
    pair.connection.allow_move(later);
    pair.pass(SILENT_AFTER).unwrap();
    assert!(pair.poll(later).is_pending());
    pair.answer(1, value("b's")).unwrap();
    assert!(!pair.connection.is_silent(), "it goes on");
    assert_eq!(pair.value(write), Some("b's".into()));
}

#[test]
fn a_server_that_works_long_on_a_request_is_not_silent() {
    let mut pair = Pair::open();
    let read = pair.get("a", HOUR).unwrap();
    pair.connection.allow_move(read);
    pair.write();
    for _ in 0..20 {
        pair.pass(ASK_AFTER).unwrap();
        pair.write();
        pair.now += ASK_AFTER / 10;
        pair.answer(1, pong(41)).unwrap();
        assert!(!pair.connection.is_silent());
    }
    assert!(pair.poll(read).is_pending());
}

#[test]
fn a_request_that_is_forgotten_ends_the_connection() {
    let mut pair = Pair::open();
    let _forgotten = pair.get("k", pair.now + SECOND).unwrap();
    pair.write();
    // The server answers all other requests.
    let ended = (0..20).find_map(|_| {
        let passed = pair.pass(PING_AFTER / 2);
        pair.write();
        while pair.asked.len() > 1 {
            pair.answer(1, pong(41)).unwrap();
        }
        passed.err()
    });
    assert!(matches!(ended, Some(ConnectionError::ResponseTimedOut(_))), "{ended:?}");
}

#[test]
fn a_connection_that_drains_answers_what_was_asked_and_takes_no_more() {
    let mut pair = Pair::open();
    let id = pair.get("k", Time::MAX).unwrap();
    pair.write();
    pair.connection.drain();
    assert!(matches!(pair.get("k", Time::MAX), Err(Refused::NotOpen)));
    assert!(!pair.connection.is_drained());
    pair.answer(0, value("v")).unwrap();
    assert_eq!(pair.value(id).unwrap(), "v");
    assert!(pair.connection.is_drained());
}

#[test]
fn an_operation_that_is_too_new_is_not_sent() {
    let mut pair = Pair::begun(None);
    pair.answer(0, pong(40)).unwrap();
    let stream = stream::Request::StartGet("k".into(), 1);
    let refused = pair.submit(RequestBody::Stream(stream), Time::MAX);
    let Err(Refused::Unsupported { needed, spoken }) = refused else { panic!("{refused:?}") };
    assert_eq!((needed, spoken), (ProtocolVersion::V4_1, ProtocolVersion::V4_0));
    assert!(!pair.connection.has_output());
}

#[test]
fn invalid_responses_end_the_connection_without_a_panic() {
    let complaint = {
        let mut out = Output::new();
        let asked = RequestContext {
            version: legacy::GREETING,
            opcode: Opcode::Ping,
            intelligence: consort_hotrod::Intelligence::Basic,
        };
        Response::error(0, Status::InvalidMagic, "what is that?").encode(asked, &mut out);
        out.into_bytes()
    };
    let cases: [&[u8]; 5] =
        [b"HTTP/1.1 400 Bad", b"\xa1\x09\x04\x00\x00", b"\xa1\x01\x04\x77", b"\0", &complaint];
    for bytes in cases {
        let mut pair = Pair::open();
        let id = pair.get("k", Time::MAX).unwrap();
        pair.write();
        let error = pair.receive(bytes).unwrap_err();
        pair.connection.lose(pair.written, &error, &mut pair.effects);
        assert!(matches!(pair.poll(id), Poll::Ready((Err(_), _))), "{bytes:?}");
    }
    // A second response to the same request is an error.
    let mut pair = Pair::open();
    let id = pair.get("k", Time::MAX).unwrap();
    pair.write();
    let (asked, response) = pair.response(0, value("v"));
    let mut out = Output::new();
    response.encode(asked, &mut out);
    response.encode(asked, &mut out);
    pair.receive(&out.into_bytes()).unwrap_err();
    assert_eq!(pair.value(id).unwrap(), "v");
}

/// Random bytes, and responses with random bits flipped.
#[test]
fn no_bytes_make_a_connection_panic() {
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for _ in 0..2_000 {
        let mut pair = Pair::open();
        let ids = [(); 3].map(|()| pair.get("k", pair.now + SECOND).unwrap());
        pair.write();
        let mut out = Output::new();
        for _ in 0..3 {
            let (asked, response) = pair.response(0, value("a value"));
            response.encode(asked, &mut out);
        }
        let mut bytes = out.into_bytes().to_vec();
        for _ in 0..next() % 4 {
            let at = next() as usize % bytes.len();
            bytes[at] ^= 1 << (next() % 8);
        }
        let ended = pair.receive(&bytes).and_then(|()| pair.pass(2 * SECOND));
        if let Err(cause) = ended {
            pair.connection.lose(pair.written, &cause, &mut pair.effects);
        }
        for id in ids {
            assert!(pair.poll(id).is_ready());
        }
    }
}

#[derive(Default)]
struct RecordingSink {
    keys: std::sync::Mutex<Vec<Bytes>>,
    lost: AtomicUsize,
}

impl crate::connection::sinks::Sink for RecordingSink {
    fn on_event(&self, event: ServerEvent) -> Option<Waker> {
        self.keys.lock().unwrap().push(match event {
            ServerEvent::Entry(event::Event { data: event::EventData::Key(key, _), .. }) => key,
            ServerEvent::Counter(event) => Bytes::copy_from_slice(event.counter.as_bytes()),
            ServerEvent::Entry(other) => panic!("{other:?}"),
        });
        None
    }

    fn on_disconnect(&self) -> Option<Waker> {
        self.lost.fetch_add(1, Ordering::Relaxed);
        None
    }
}

fn removed(listener: &'static str, key: &'static str) -> Bytes {
    let mut out = Output::new();
    let (kind, data) = (event::EventKind::Removed, event::EventData::Key(key.into(), None));
    event::Event { id: 0, kind, listener: listener.into(), is_retried: false, data }.encode(&mut out);
    out.into_bytes()
}

#[test]
fn events_go_to_their_listener_until_the_connection_ends() {
    let mut pair = Pair::open();
    let sinks = [Arc::new(RecordingSink::default()), Arc::new(RecordingSink::default())];
    pair.connection.sinks.add("one".into(), sinks[0].clone());
    pair.connection.sinks.add("two".into(), sinks[1].clone());
    for (listener, key) in [("one", "a"), ("two", "b"), ("nobody", "c"), ("one", "d")] {
        pair.receive(&removed(listener, key)).unwrap();
    }
    pair.connection.sinks.remove(&"two".into());
    pair.receive(&removed("two", "e")).unwrap();
    let heard = |sink: &RecordingSink| sink.keys.lock().unwrap().clone();
    assert_eq!((heard(&sinks[0]), heard(&sinks[1])), (vec!["a".into(), "d".into()], vec!["b".into()]));
    assert_eq!(pair.connection.traffic.events, 5);
    pair.connection.lose(pair.written, &ConnectionError::ClosedByServer, &mut pair.effects);
    assert_eq!(sinks.map(|sink| sink.lost.load(Ordering::Relaxed)), [1, 0]);
}

/// S002-15: a request counts until shortly after its response.
#[test]
fn s002_15_streams_detect_other_requests_of_the_connection() {
    let mut pair = Pair::open();
    let has_other_requests = |pair: &Pair| pair.connection.has_other_requests(pair.now);
    assert!(!has_other_requests(&pair), "the connection's own PING does not count");
    pair.submit(RequestBody::Stream(stream::Request::NextGet(1)), Time::MAX).unwrap();
    assert!(!has_other_requests(&pair), "chunks do not count");
    let id = pair.get("k", Time::MAX).unwrap();
    pair.now += SECOND;
    assert!(has_other_requests(&pair), "a pending request counts");
    pair.connection.abandon(id);
    assert!(has_other_requests(&pair), "the server still answers an abandoned request");
    pair.write();
    pair.answer(1, value("v")).unwrap();
    assert!(has_other_requests(&pair), "a recent response counts");
    pair.now += OTHER_REQUEST_RECENT;
    assert!(!has_other_requests(&pair));
    pair.answer(
        0,
        ResponseBody::Stream(stream::Response::Piece(stream::Piece {
            stream: 1,
            is_last: true,
            metadata: None,
            bytes: Bytes::new(),
        })),
    )
    .unwrap();
    assert!(!has_other_requests(&pair));
}
