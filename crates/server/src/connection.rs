//! A client's connection: one task that reads, begins what is asked, and writes what is answered.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use bytes::BytesMut;
use consort_hotrod::{
    Intelligence, Limits, Opcode, Output, ProtocolVersion, Request, RequestContext, RequestError, Response,
    Status,
};
use consort_memory::{Exceeded, Reservation};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet, yield_now};
use tokio::time::{Instant, timeout, timeout_at};

use crate::ahead::Ahead;
use crate::answering::{answer, answer_here};
use crate::bounds::{
    CLOSE_LINGER_MAX, CREDENTIALS_BYTES_MAX, EXPECTED_FIRST, EXPECTED_MAX, LARGE_REQUEST_BYTES, READ_AT_ONCE,
    TRANSFER_RATE_MIN, UNANSWERED_MAX, UNWRITTEN_MAX, WAITING_MAX,
};
use crate::caches::Caches;
use crate::gathering::Held;
use crate::http::{self, HttpConnection};
use crate::latency::{Batch, Class};
use crate::receiving::{Counted, Receiving};
use crate::security::Security;
use crate::security::access::Authorization;
use crate::security::admission::{AuthStep, PreAuthSession};
use crate::security::requirement::Requirement;
use crate::session::Session;
use crate::shutdown::{Closure, Stage, closing};
use crate::strangers::Threshold;
use crate::stream::{Incoming, Outgoing};
use crate::telemetry::Tally;
use crate::transfer::{Alarm, Transfer};
use crate::turn::Turn;
use crate::unasked::Unasked;

type Answering = Pin<Box<dyn Future<Output = (RequestContext, Response, Option<Box<Held>>)> + Send>>;

/// A request of which not even the operation has come.
const UNKNOWN: RequestContext = RequestContext {
    version: ProtocolVersion::NEWEST,
    opcode: Opcode::Ping,
    intelligence: Intelligence::Basic,
};

/// Bytes of a key or value of a request with many, besides those of the request.
const BYTES_OF_ITEM: usize = 64;

/// The answer to a request that had to wait.
struct Answered {
    asked: RequestContext,
    response: Response,
    held: Option<Box<Held>>,
    began: std::time::Instant,
    /// Bytes of the request, if it was not a large one.
    bytes: usize,
}

/// Somebody who has come, and what there is for it.
pub(crate) struct Arrival {
    pub(crate) stream: TcpStream,
    pub(crate) tally: Tally,
    pub(crate) security: Arc<Security>,
    /// There as soon as the server serves.
    pub(crate) caches: watch::Receiver<Option<Arc<Caches>>>,
    pub(crate) threshold: Threshold,
}

/// Serves a client until it goes, or says what cannot be read, or the server ends. Until it steps over the threshold its client
/// is not known. Before the server serves, clients wait, and who speaks HTTP is told so.
pub(crate) async fn serve(arrival: Arrival, mut ending: watch::Receiver<Stage>) {
    let Arrival { stream, tally, security, mut caches, threshold } = arrival;
    let (peer, mut known_by) = (stream.peer_addr().ok(), Instant::now() + security.handshake_timeout);
    let opened = before(known_by, &mut ending, security.open(stream)).await;
    let Some((mut stream, certificate)) = opened else { return };
    let (mut from, to) = stream.split();
    let mut input = BytesMut::new();
    let Some(first) = before(known_by, &mut ending, first_byte(&mut from, &mut input)).await else { return };
    let served = caches.borrow().clone();
    if http::begins_with(first) {
        let (caches, security) = (served.as_deref(), &*security);
        let visitor = HttpConnection {
            caches,
            security,
            peer,
            certificate,
            from,
            to,
            input,
            is_authenticated: false,
            is_health_port: false,
        };
        // What few connections need does not make the state of all of them larger.
        if let Err(error) = Box::pin(visitor.serve(known_by, &mut ending)).await {
            tracing::debug!(%error, "a connection in HTTP has ended");
        }
        return;
    }
    let caches = if let Some(served) = served {
        served
    } else {
        let Some(opened) = opening(&mut caches, &mut ending).await else { return };
        known_by = Instant::now() + security.handshake_timeout;
        opened
    };
    tally.received(input.len());
    let admission = |of: &Arc<_>| PreAuthSession::new(Arc::clone(of), peer, certificate);
    let admission = security.authenticator.as_ref().map(admission);
    let session = Session::new(caches, Authorization::new(&security));
    security.requirement.register_connection(&session.0.outlet.end());
    let mut connection = Connection::new(session, admission, (from, to), input, &tally);
    let Some(first) = before(known_by, &mut ending, connection.meet()).await else { return };
    // Who is turned away stays a stranger.
    if !connection.is_lost {
        threshold.step_over().await;
    }
    let mut closure = Closure::new(&mut ending);
    if let Some(first) = first {
        closure.note(&first.header);
        let mut batch = Batch::begin();
        connection.begin((first, 0), &mut batch).await;
        batch.end(tally.times());
    }
    if let Err(error) = connection.run(closure).await {
        tracing::debug!(%error, "a client's connection has ended");
    }
}

/// What a stranger is waited for, unless it takes too long or the server ends.
async fn before<T>(
    deadline: Instant,
    ending: &mut watch::Receiver<Stage>,
    met: impl Future<Output = io::Result<T>>,
) -> Option<T> {
    tokio::select! {
        met = timeout_at(deadline, met) => met.ok()?.ok(),
        () = closing(ending) => None,
    }
}

/// Waits for the caches; nothing if the server ends before they are there.
async fn opening(
    caches: &mut watch::Receiver<Option<Arc<Caches>>>,
    ending: &mut watch::Receiver<Stage>,
) -> Option<Arc<Caches>> {
    tokio::select! {
        opened = caches.wait_for(Option::is_some) => opened.ok()?.clone(),
        () = closing(ending) => None,
    }
}

/// Waits for the first bytes, which are left where they are. Says what they begin with.
async fn first_byte(from: &mut Incoming<'_>, input: &mut BytesMut) -> io::Result<u8> {
    loop {
        if let Some(first) = input.first() {
            return Ok(*first);
        }
        if !from.take(input, CREDENTIALS_BYTES_MAX).await? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Whether a connection may begin one more request. Of its requests as many as `waiting` have no answer yet; they have `bytes`,
/// and the response to each is expected to have `expected` bytes. Its client has not taken `unwritten` bytes.
const fn has_room_for_one(waiting: usize, bytes: usize, expected: usize, unwritten: usize) -> bool {
    waiting < WAITING_MAX
        && unwritten < UNWRITTEN_MAX
        && bytes < UNANSWERED_MAX
        && waiting * expected < EXPECTED_MAX
}

struct Connection<'a> {
    tally: &'a Tally,
    session: Arc<Session>,
    unasked: mpsc::Receiver<Unasked>,
    from: Incoming<'a>,
    to: Outgoing<'a>,
    /// What its client has tried, until it is known who that is.
    admission: Option<PreAuthSession>,
    requests: Ahead,
    input: BytesMut,
    output: Output,
    /// Bytes that were written to the client in all.
    sent: u64,
    /// The same and those in the output, when they were counted last: responses and events.
    encoded: u64,
    /// Bytes that are reserved for responses in the output, each with how many bytes are sent in all when it is written.
    held: VecDeque<(u64, Box<Held>)>,
    /// The other bytes in the output.
    unwritten: Counted,
    /// The time that the client has to take what is in the output.
    taking: Option<Transfer>,
    /// Requests that wait for other members.
    waiting: JoinSet<Answered>,
    /// Bytes of these, large ones apart.
    waiting_bytes: usize,
    unanswered: Counted,
    /// Bytes that each of their responses is expected to have.
    expected: usize,
    receiving: Receiving,
    alarm: Alarm,
    /// The client has said something that cannot be read, and is told so before the end.
    is_lost: bool,
}

impl<'a> Connection<'a> {
    fn new(
        (session, unasked): (Session, mpsc::Receiver<Unasked>),
        admission: Option<PreAuthSession>,
        (from, to): (Incoming<'a>, Outgoing<'a>),
        input: BytesMut,
        tally: &'a Tally,
    ) -> Self {
        let memory = &session.caches.memory;
        let message = if admission.is_some() { CREDENTIALS_BYTES_MAX } else { Limits::default().message };
        Self {
            tally,
            sent: 0,
            encoded: 0,
            held: VecDeque::new(),
            unwritten: Counted::new(memory.responses.clone()),
            taking: None,
            waiting_bytes: 0,
            unanswered: Counted::new(memory.requests.clone()),
            expected: EXPECTED_FIRST,
            receiving: Receiving::new(memory),
            alarm: Alarm::default(),
            session: Arc::new(session),
            unasked,
            from,
            to,
            admission,
            requests: Ahead::new(Limits { message, ..Limits::default() }),
            input,
            output: Output::new(),
            waiting: JoinSet::new(),
            is_lost: false,
        }
    }

    /// Waits for the first request, which is still to be begun, or where it matters until it is known who the client is. Returns
    /// nothing also if the first request is large and has not come as a whole.
    async fn meet(&mut self) -> io::Result<Option<Request>> {
        loop {
            match self.requests.next_alone(&mut self.input) {
                Ok(Some(request)) => {
                    let first = if self.admission.is_some() {
                        if !self.admit(request).await? {
                            continue;
                        }
                        None
                    } else {
                        Some(request)
                    };
                    self.requests.set_limits(Limits::default());
                    return Ok(first);
                }
                // The rest of a large request is read as that of any other request of a client: its bytes are reserved, and it
                // has its time.
                Ok(None)
                    if self.admission.is_none() && self.requests.bytes_needed() > CREDENTIALS_BYTES_MAX =>
                {
                    return Ok(None);
                }
                Ok(None) => {
                    let before = self.input.len();
                    let goes_on = self.from.take(&mut self.input, CREDENTIALS_BYTES_MAX).await?;
                    self.tally.received(self.input.len() - before);
                    if !goes_on {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => {
                    self.lose(error);
                    return Ok(None);
                }
            }
        }
    }

    /// Answers a stranger; true if it is none any more, or has tried often enough. What it does not read is not held for it.
    async fn admit(&mut self, request: Request) -> io::Result<bool> {
        let Some(admission) = &mut self.admission else { return Ok(true) };
        self.tally.request(request.body.opcode());
        let (asked, response, verdict) = admission.answer(&self.session, request).await;
        self.encode(asked, &response, None);
        self.tally.sent(self.output.len());
        self.sent += self.output.len() as u64;
        while self.to.has_to_write(&self.output) {
            self.to.write(&mut self.output).await?;
        }
        self.is_lost = verdict == AuthStep::Rejected;
        if verdict != AuthStep::Unauthenticated {
            self.admission = None;
        }
        Ok(self.admission.is_none())
    }

    /// Whether more may be begun. Where the server has no room for what the connection has, it goes on with one request at a
    /// time.
    fn has_room(&self) -> bool {
        let (waiting, unwritten) = (self.waiting.len(), self.output.len());
        !self.is_lost
            && has_room_for_one(waiting, self.waiting_bytes, self.expected, unwritten)
            && (unwritten == 0 || !self.unwritten.is_beyond())
            && (waiting == 0 || !self.unanswered.is_beyond())
    }

    /// Counts what the connection has. Returns until when its client has time for something.
    fn count(&mut self, reads: bool) -> Option<Instant> {
        let unwritten = self.output.len();
        let held = self.held.iter().map(|(_, held)| held.bytes()).sum::<u64>();
        self.unwritten.set((unwritten as u64).saturating_sub(held) as usize);
        self.unanswered.set(self.waiting_bytes);
        let transfer_time = self.session.caches.memory.transfer_time;
        let encoded = self.sent + unwritten as u64;
        let more = encoded - std::mem::replace(&mut self.encoded, encoded);
        if unwritten < READ_AT_ONCE {
            self.taking = None;
        } else if let Some(taking) = &mut self.taking {
            // A client that takes what comes has time for it, also if there is always something.
            taking.extend(more as usize);
        } else {
            self.taking = Some(Transfer::begin(unwritten, transfer_time));
        }
        let sending = self.receiving.run(reads);
        let taking = self.taking.as_mut().and_then(|taking| taking.run(true));
        sending.into_iter().chain(taking).min()
    }

    async fn run(&mut self, mut closure: Closure<'_>) -> io::Result<()> {
        let mut is_ending = false;
        loop {
            let is_turn_over = self.begin_all(&mut closure).await;
            // What has ended is written with what ended where it began.
            while let Some(answered) = self.waiting.try_join_next() {
                self.tell(answered);
            }
            if is_turn_over {
                // The other connections of this thread run before the rest of the requests that have arrived.
                yield_now().await;
                continue;
            }
            let is_done = self.waiting.is_empty() && !self.to.has_to_write(&self.output);
            if is_done && (self.is_lost || is_ending) {
                return self.to.shutdown().await;
            }
            let reads =
                !is_ending && !closure.reads_nothing() && self.has_room() && self.receiving.has_room();
            let until = self.count(reads);
            let (received, unsent) = (self.input.len(), self.output.len());
            // Whatever there is always more of, requests or events, leaves the others their turn.
            tokio::select! {
                Some(answered) = self.waiting.join_next(), if !self.waiting.is_empty() => self.tell(answered),
                Some(unasked) = self.unasked.recv(), if self.output.len() < UNWRITTEN_MAX => {
                    unasked.encode(&mut self.output);
                    while self.output.len() < UNWRITTEN_MAX
                        && let Ok(unasked) = self.unasked.try_recv()
                    {
                        unasked.encode(&mut self.output);
                    }
                }
                () = self.session.outlet.lost() => {
                    let is_removed = self.session.access.is_removed();
                    return Err(io::Error::other(if is_removed {
                        "its client is no user any more"
                    } else if self.session.caches.security().requirement.refuses() {
                        Requirement::REFUSAL
                    } else {
                        "its client cannot be told of all changes"
                    }));
                }
                written = self.to.write(&mut self.output), if self.to.has_to_write(&self.output) => {
                    written?;
                    let written = unsent - self.output.len();
                    self.tally.sent(written);
                    self.sent += written as u64;
                    while self.held.front().is_some_and(|(sent, _)| *sent <= self.sent) {
                        self.held.pop_front();
                    }
                    if self.output.is_empty() {
                        self.output = Output::new();
                    }
                }
                // A client that says no more may still want its answers.
                goes_on = self.from.take(&mut self.input, READ_AT_ONCE), if reads => {
                    is_ending = !goes_on?;
                    self.tally.received(self.input.len() - received);
                    closure.heard();
                }
                can_close = closure.next(is_done), if !is_ending => {
                    // What comes after that time is not waited for: a client that does not stop would keep its connection.
                    if can_close && (closure.refuses() || !self.has_more().await?) {
                        return self.close(&closure).await;
                    }
                }
                reserved = self.receiving.wait(), if !self.receiving.has_room() => {
                    if let Err(exceeded) = reserved {
                        self.refuse(&exceeded);
                    }
                }
                () = self.alarm.at(until), if until.is_some() => self.look_at_time()?,
            }
        }
    }

    /// Takes what has come without waiting for it; whether something has.
    async fn has_more(&mut self) -> io::Result<bool> {
        let before = self.input.len();
        let taken = {
            let mut taking = pin!(self.from.take(&mut self.input, READ_AT_ONCE));
            poll_fn(|cx| Poll::Ready(taking.as_mut().poll(cx))).await
        };
        let more = self.input.len() - before;
        self.tally.received(more);
        match taken {
            Poll::Ready(Err(error)) => Err(error),
            Poll::Ready(Ok(_)) | Poll::Pending => Ok(more > 0),
        }
    }

    /// Closes the connection for the server's end. All that was begun is answered.
    async fn close(&mut self, closure: &Closure<'_>) -> io::Result<()> {
        closure.encode_notice(&mut self.output);
        let closing = async {
            while self.to.has_to_write(&self.output) {
                self.to.write(&mut self.output).await?;
            }
            self.to.shutdown().await?;
            while self.from.take(&mut self.input, READ_AT_ONCE).await? {
                self.input.clear();
            }
            io::Result::Ok(())
        };
        timeout(CLOSE_LINGER_MAX, closing).await.unwrap_or(Ok(()))
    }

    /// Begins the requests that have arrived whole, as far as there is room for their responses and the connection has its turn.
    /// Returns whether the turn ended before.
    async fn begin_all(&mut self, closure: &mut Closure<'_>) -> bool {
        let (mut batch, mut has_begun_all, mut turn) = (None, false, Turn::default());
        while self.has_room() && !has_begun_all && !closure.reads_nothing() {
            if batch.as_ref().is_some_and(|batch: &Batch| turn.is_over(batch.began())) {
                break;
            }
            match self.requests.next(&mut self.input, &self.session.caches) {
                Ok(Some((request, bytes))) if closure.refuses() => self.refuse_at_end(&request, bytes),
                Ok(Some(request)) => {
                    closure.note(&request.0.header);
                    self.begin(request, batch.get_or_insert_with(Batch::begin)).await;
                }
                Ok(None) => has_begun_all = true,
                Err(error) => self.lose(error),
            }
        }
        let is_new = batch.is_some();
        if let Some(batch) = batch {
            batch.end(self.tally.times());
        }
        if has_begun_all {
            self.look_at_rest(is_new);
        }
        if self.input.is_empty() {
            self.input = BytesMut::new();
        }
        turn.has_ended
    }

    /// Looks at what has come of a request that is not there as a whole: whether it will be done, and whether there is room
    /// for it. It may be another one than before.
    fn look_at_rest(&mut self, is_new: bool) {
        match self.requests.head(&self.input) {
            Ok(Some(head)) => {
                if let Some(refusal) = self.session.access.refusal_of_head(&head) {
                    self.tally.request(head.opcode);
                    self.session.caches.note_error(&head.header, refusal.status);
                    let response = Response::new(head.header.id, refusal.status, refusal.body);
                    self.encode(head.context(), &response, None);
                    self.requests.skip(&mut self.input);
                }
            }
            Ok(None) => {}
            Err(error) => return self.lose(error),
        }
        let is_skipping = self.requests.is_skipping();
        if self.input.is_empty() && !is_skipping {
            return self.receiving.rest();
        }
        let length = self.requests.bytes_needed().max(self.input.len());
        let kept = if is_skipping { self.input.len() } else { length };
        if let Err(exceeded) = self.receiving.receive(length, kept, is_new) {
            self.refuse(&exceeded);
        }
    }

    /// Answers a request that is not begun, because the server ends.
    fn refuse_at_end(&mut self, request: &Request, bytes: usize) {
        self.tally.request(request.body.opcode());
        if bytes >= LARGE_REQUEST_BYTES {
            drop(self.receiving.take());
        }
        let refusal = Closure::refusal(request.header.id);
        self.session.caches.note_error(&request.header, refusal.status);
        self.encode(request.context(), &refusal, None);
    }

    /// There is no room for the request that is not there as a whole. The rest of it is dropped as it comes.
    fn refuse(&mut self, exceeded: &Exceeded) {
        let (id, asked) = self.requests.begun().unwrap_or((0, UNKNOWN));
        self.tally.request(asked.opcode);
        let text = format!("the server has no room for the request, and nothing was done. {exceeded}");
        self.session.caches.telemetry.errors_without_cache.note(Status::ServerError);
        self.encode(asked, &Response::error(id, Status::ServerError, text), None);
        self.requests.skip(&mut self.input);
        self.receiving.drop_held();
    }

    /// Ends the connection if its client has taken too long for something.
    fn look_at_time(&mut self) -> io::Result<()> {
        if self.taking.is_some_and(|taking| taking.is_over()) {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "its client does not take its responses"));
        }
        if self.receiving.is_over() {
            let text = format!(
                "a request of at least {} bytes has not arrived within {} s and the time for its bytes at {} bytes/s",
                self.requests.bytes_needed(),
                self.session.caches.memory.transfer_time.as_secs_f32(),
                TRANSFER_RATE_MIN
            );
            tracing::debug!("a connection ends: {text}");
            let (id, asked) = self.requests.begun().unwrap_or((0, UNKNOWN));
            self.lose_with(asked, &Response::error(id, Status::TimedOut, text));
        }
        Ok(())
    }

    fn lose(&mut self, error: RequestError) {
        let version = error.version.unwrap_or(ProtocolVersion::NEWEST);
        let asked = RequestContext { version, ..UNKNOWN };
        let text = error.to_string();
        self.lose_with(asked, &Response::error(error.id, error.error.status(), text));
    }

    /// Nothing more is read. The client is told why before the end.
    fn lose_with(&mut self, asked: RequestContext, why: &Response) {
        self.tally.answer(why.status);
        self.session.caches.telemetry.errors_without_cache.note(why.status);
        why.encode(asked, &mut self.output);
        self.is_lost = true;
        self.receiving.drop_held();
        self.receiving.rest();
    }

    /// Begins a request. What ends at once, a read of what is here above all, is answered from here.
    async fn begin(&mut self, (request, bytes): (Request, usize), batch: &mut Batch) {
        let opcode = request.body.opcode();
        self.tally.request(opcode);
        // It is counted until it is answered: with what was reserved for it, or as it is.
        let large = if bytes < LARGE_REQUEST_BYTES { Vec::new() } else { self.receiving.take() };
        let bytes = if large.is_empty() { bytes + request.body.items() * BYTES_OF_ITEM } else { 0 };
        if let Some(recent) = self.requests.recent(&request)
            && let Some((asked, response)) = answer_here(&self.session, recent, &request)
        {
            batch.answered(opcode);
            return self.encode(asked, &response, None);
        }
        let mut answering: Answering = Box::pin(answer(self.session.clone(), request));
        let at_once = poll_fn(|cx| Poll::Ready(answering.as_mut().poll(cx))).await;
        match at_once {
            Poll::Ready((asked, response, held)) => {
                batch.answered(opcode);
                self.encode(asked, &response, held);
            }
            Poll::Pending => {
                let began = batch.began();
                self.tally.wait_begins();
                self.waiting_bytes += bytes;
                self.waiting.spawn(async move {
                    let (asked, response, held) = answering.await;
                    drop::<Vec<Reservation>>(large);
                    Answered { asked, response, held, began, bytes }
                });
            }
        }
    }

    fn encode(&mut self, asked: RequestContext, response: &Response, held: Option<Box<Held>>) {
        self.tally.answer(response.status);
        response.encode(asked, &mut self.output);
        if let Some(held) = held {
            self.held.push_back((self.sent + self.output.len() as u64, held));
        }
        if asked.opcode == Opcode::CounterAddListener {
            self.session.counter_listeners.answered(response.id);
        }
    }

    fn tell(&mut self, answered: Result<Answered, JoinError>) {
        self.tally.wait_ends();
        match answered {
            Ok(Answered { asked, response, held, began, bytes }) => {
                self.tally.times().add(Class::of(asked.opcode), 1, began.elapsed());
                self.waiting_bytes -= bytes;
                let before = self.output.len();
                let is_gathered = held.is_some();
                self.encode(asked, &response, held);
                if !is_gathered {
                    // The largest of the last ones, about.
                    self.expected = (self.output.len() - before).max(self.expected - self.expected / 8);
                }
            }
            // Its client would wait for ever.
            Err(error) => {
                tracing::error!(%error, "a request has panicked");
                self.is_lost = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_begins_nothing_beyond_what_may_wait_for_answers_and_for_its_client() {
        assert!(has_room_for_one(WAITING_MAX - 1, UNANSWERED_MAX - 1, 1, UNWRITTEN_MAX - 1));
        assert!(!has_room_for_one(WAITING_MAX, 0, 1, 0));
        assert!(!has_room_for_one(1, UNANSWERED_MAX, 1, 0));
        assert!(!has_room_for_one(0, 0, 1, UNWRITTEN_MAX));
        assert!(!has_room_for_one(EXPECTED_MAX / EXPECTED_FIRST, 0, EXPECTED_FIRST, 0));
    }
}
