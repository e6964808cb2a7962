//! A client's connection: one task that reads requests, starts them, and writes their responses.

pub(crate) mod acceptor;
pub(crate) mod decoded_requests;
pub(crate) mod descriptors;
pub(crate) mod handshake_pool;
pub(crate) mod pre_auth;
pub(crate) mod request_buffer;
pub(crate) mod transfer_time;
pub(crate) mod turn;
mod without_tls;

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::SystemTime;

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

use crate::catalog::caches::Caches;
use crate::connection::decoded_requests::DecodedRequests;
use crate::connection::handshake_pool::HandshakeGate;
use crate::connection::pre_auth::{AuthStep, PreAuthSession};
use crate::connection::request_buffer::{CountedBytes, IncompleteRequest};
use crate::connection::transfer_time::{Alarm, Transfer};
use crate::connection::turn::Turn;
use crate::connection::without_tls::response_without_tls;
use crate::events::push::Push;
use crate::http::not_ready::NotServing;
use crate::http::{self, HttpConnection};
use crate::limits::{
    CLOSE_LINGER_MAX, CREDENTIALS_BYTES_MAX, EXPECTED_BYTES_INITIAL, EXPECTED_BYTES_MAX, LARGE_REQUEST_BYTES,
    READ_BYTES, TRANSFER_RATE_MIN, UNANSWERED_MAX, UNWRITTEN_MAX, WAITING_MAX,
};
use crate::metrics::clients::ConnectedClient;
use crate::metrics::latency::{Batch, Class};
use crate::metrics::telemetry::Tally;
use crate::ops::dispatch::{answer, try_dispatch_local};
use crate::ops::session::Session;
use crate::reply::ResponseBytes;
use crate::security::Security;
use crate::security::access::Authorization;
use crate::security::requirement::Requirement;
use crate::shutdown::{ConnectionEnding, Stage, closing};
use crate::transport::socket::{Incoming, Outgoing};

type ResponseFuture =
    Pin<Box<dyn Future<Output = (RequestContext, Response, Option<Box<ResponseBytes>>)> + Send>>;

const UNKNOWN: RequestContext = RequestContext {
    version: ProtocolVersion::NEWEST,
    opcode: Opcode::Ping,
    intelligence: Intelligence::Basic,
};

/// Bytes of each key or value of a request, beside the request's own.
const BYTES_OF_ITEM: usize = 64;

struct CompletedRequest {
    asked: RequestContext,
    response: Response,
    held: Option<Box<ResponseBytes>>,
    began: std::time::Instant,
    bytes: usize,
}

pub(crate) struct AcceptedConnection {
    pub(crate) stream: TcpStream,
    pub(crate) tally: Tally,
    pub(crate) security: Arc<Security>,
    pub(crate) caches: watch::Receiver<Option<Arc<Caches>>>,
    pub(crate) gate: HandshakeGate,
    /// The topology does not name the port.
    pub(crate) hides_topology: bool,
}

/// Before the server serves, Hot Rod requests wait, and HTTP requests get an error response.
pub(crate) async fn serve(accepted: AcceptedConnection, mut ending: watch::Receiver<Stage>) {
    let AcceptedConnection { stream, tally, security, mut caches, gate, hides_topology } = accepted;
    let (peer, mut handshake_deadline) =
        (stream.peer_addr().ok(), Instant::now() + security.handshake_timeout);
    let opened =
        with_handshake_timeout(handshake_deadline, &mut ending, security.open(stream, response_without_tls))
            .await;
    let Some((mut stream, certificate)) = opened else { return };
    let (mut from, to) = stream.split();
    let mut input = BytesMut::new();
    let Some(first) =
        with_handshake_timeout(handshake_deadline, &mut ending, first_byte(&mut from, &mut input)).await
    else {
        return;
    };
    let served = caches.borrow().clone();
    if http::begins_with(first) {
        let (caches, security) = (served.as_deref().ok_or(NotServing::Starting), &*security);
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
        // Boxed, because few connections need it and it would enlarge the state of all.
        if let Err(error) = Box::pin(visitor.serve(handshake_deadline, &mut ending)).await {
            tracing::debug!(%error, "a connection in HTTP has ended");
        }
        return;
    }
    let caches = if let Some(served) = served {
        served
    } else {
        let Some(opened) = wait_for_caches(&mut caches, &mut ending).await else { return };
        handshake_deadline = Instant::now() + security.handshake_timeout;
        opened
    };
    tally.received(input.len());
    let admission = |of: &Arc<_>| PreAuthSession::new(Arc::clone(of), peer, certificate);
    let admission = security.authenticator.as_ref().map(admission);
    let session = Session::new(caches, Authorization::new(&security));
    security.requirement.register_connection(&session.0.events_out.close_handle());
    let mut connection = Connection::new(session, admission, (from, to), input, &tally);
    connection.requests.hide_topology(hides_topology);
    let Some(first) =
        with_handshake_timeout(handshake_deadline, &mut ending, connection.first_request()).await
    else {
        return;
    };
    // A client that failed to authenticate stays on the handshake threads.
    if !connection.is_failed {
        gate.complete().await;
    }
    let _registered = tally.register(connected(&connection.session, peer));
    let mut shutdown = ConnectionEnding::new(&mut ending);
    if let Some(first) = first {
        shutdown.note(&first.header);
        let mut batch = Batch::begin();
        connection.begin((first, 0), &mut batch).await;
        batch.end(tally.times());
    }
    if let Err(error) = connection.run(shutdown).await {
        tracing::debug!(%error, "a client's connection has ended");
    }
}

fn connected(session: &Arc<Session>, peer: Option<SocketAddr>) -> ConnectedClient {
    let (user, since) = (session.access.user_name(), SystemTime::now());
    let session = Arc::downgrade(session);
    let listeners = move || session.upgrade().map_or(0, |session| session.listener_count());
    ConnectedClient { peer, user, since, listeners: Box::new(listeners) }
}

async fn with_handshake_timeout<T>(
    deadline: Instant,
    ending: &mut watch::Receiver<Stage>,
    step: impl Future<Output = io::Result<T>>,
) -> Option<T> {
    tokio::select! {
        done = timeout_at(deadline, step) => done.ok()?.ok(),
        () = closing(ending) => None,
    }
}

async fn wait_for_caches(
    caches: &mut watch::Receiver<Option<Arc<Caches>>>,
    ending: &mut watch::Receiver<Stage>,
) -> Option<Arc<Caches>> {
    tokio::select! {
        opened = caches.wait_for(Option::is_some) => opened.ok()?.clone(),
        () = closing(ending) => None,
    }
}

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

const fn has_room_for_one(waiting: usize, bytes: usize, expected: usize, unwritten: usize) -> bool {
    waiting < WAITING_MAX
        && unwritten < UNWRITTEN_MAX
        && bytes < UNANSWERED_MAX
        && waiting * expected < EXPECTED_BYTES_MAX
}

struct Connection<'a> {
    tally: &'a Tally,
    session: Arc<Session>,
    pushes: mpsc::Receiver<Push>,
    from: Incoming<'a>,
    to: Outgoing<'a>,
    admission: Option<PreAuthSession>,
    requests: DecodedRequests,
    input: BytesMut,
    output: Output,
    /// Bytes that were written to the client in total.
    sent: u64,
    /// These and the bytes in the output, at the last count.
    encoded: u64,
    /// Bytes reserved for responses in the output, each with the value of `sent` at which the response begins.
    held: VecDeque<(u64, Box<ResponseBytes>)>,
    unwritten: CountedBytes,
    taking: Option<Transfer>,
    waiting: JoinSet<CompletedRequest>,
    waiting_bytes: usize,
    unanswered: CountedBytes,
    /// The expected bytes of each waiting response.
    expected: usize,
    receiving: IncompleteRequest,
    alarm: Alarm,
    /// The client has sent unreadable bytes, and gets an error response before the connection closes.
    is_failed: bool,
}

impl<'a> Connection<'a> {
    fn new(
        (session, pushes): (Session, mpsc::Receiver<Push>),
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
            unwritten: CountedBytes::new(memory.responses.clone()),
            taking: None,
            waiting_bytes: 0,
            unanswered: CountedBytes::new(memory.requests.clone()),
            expected: EXPECTED_BYTES_INITIAL,
            receiving: IncompleteRequest::new(memory),
            alarm: Alarm::default(),
            session: Arc::new(session),
            pushes,
            from,
            to,
            admission,
            requests: DecodedRequests::new(Limits { message, ..Limits::default() }),
            input,
            output: Output::new(),
            waiting: JoinSet::new(),
            is_failed: false,
        }
    }

    /// Returns the request to start; `None` also if the first request is large and incomplete. With users, waits for
    /// authentication.
    async fn first_request(&mut self) -> io::Result<Option<Request>> {
        loop {
            match self.requests.next_single(&mut self.input) {
                Ok(Some(request)) => {
                    let first = if self.admission.is_some() {
                        if !self.authenticate(request).await? {
                            continue;
                        }
                        None
                    } else {
                        Some(request)
                    };
                    self.requests.set_limits(Limits::default());
                    return Ok(first);
                }
                // The rest of a large request is read like that of any other request of a client: its bytes are reserved,
                // and its time is limited.
                Ok(None)
                    if self.admission.is_none() && self.requests.bytes_needed() > CREDENTIALS_BYTES_MAX =>
                {
                    return Ok(None);
                }
                Ok(None) => {
                    let before = self.input.len();
                    let is_open = self.from.take(&mut self.input, CREDENTIALS_BYTES_MAX).await?;
                    self.tally.received(self.input.len() - before);
                    if !is_open {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => {
                    self.fail(error);
                    if self.admission.is_some() && !self.is_failed {
                        self.write_all().await?;
                        continue;
                    }
                    self.requests.set_limits(Limits::default());
                    return Ok(None);
                }
            }
        }
    }

    /// True if the client is authenticated or has failed too often; unread bytes are not kept for it.
    async fn authenticate(&mut self, request: Request) -> io::Result<bool> {
        let Some(admission) = &mut self.admission else { return Ok(true) };
        self.tally.request(request.body.opcode());
        self.tally.version(request.header.version);
        let (asked, response, verdict) = admission.answer(&self.session, request).await;
        self.encode(asked, &response, None);
        self.write_all().await?;
        self.is_failed = verdict == AuthStep::Rejected;
        if verdict != AuthStep::Unauthenticated {
            self.admission = None;
        }
        Ok(self.admission.is_none())
    }

    async fn write_all(&mut self) -> io::Result<()> {
        self.tally.sent(self.output.len());
        self.sent += self.output.len() as u64;
        while self.to.has_to_write(&self.output) {
            self.to.write(&mut self.output).await?;
        }
        Ok(())
    }

    /// Without budget, the connection continues with one request at a time.
    fn has_room(&self) -> bool {
        let (waiting, unwritten) = (self.waiting.len(), self.output.len());
        !self.is_failed
            && has_room_for_one(waiting, self.waiting_bytes, self.expected, unwritten)
            && (unwritten == 0 || !self.unwritten.is_beyond())
            && (waiting == 0 || !self.unanswered.is_beyond())
    }

    /// The client's deadline for sending or reading.
    fn count(&mut self, reads: bool) -> Option<Instant> {
        let unwritten = self.output.len();
        let held = self.held.iter().map(|(_, held)| held.bytes()).sum::<u64>();
        self.unwritten.set((unwritten as u64).saturating_sub(held) as usize);
        self.unanswered.set(self.waiting_bytes);
        let transfer_time = self.session.caches.memory.transfer_time;
        let encoded = self.sent + unwritten as u64;
        let more = encoded - std::mem::replace(&mut self.encoded, encoded);
        if unwritten < READ_BYTES {
            self.taking = None;
        } else if let Some(taking) = &mut self.taking {
            // A client that keeps reading gets time for new output, also if the output never becomes empty.
            taking.extend(more as usize);
        } else {
            self.taking = Some(Transfer::begin(unwritten, transfer_time));
        }
        let sending = self.receiving.run(reads);
        let taking = self.taking.as_mut().and_then(|taking| taking.run(true));
        sending.into_iter().chain(taking).min()
    }

    async fn run(&mut self, mut shutdown: ConnectionEnding<'_>) -> io::Result<()> {
        let mut is_ending = false;
        loop {
            let is_turn_over = self.begin_all(&mut shutdown).await;
            // Responses to requests that had to wait are written together with those of requests that did not.
            while let Some(completed) = self.waiting.try_join_next() {
                self.complete(completed);
            }
            if is_turn_over {
                // The other connections of this thread run before the rest of the requests that have arrived.
                yield_now().await;
                continue;
            }
            let is_done = self.waiting.is_empty() && !self.to.has_to_write(&self.output);
            if is_done && (self.is_failed || is_ending) {
                return self.to.shutdown().await;
            }
            let reads =
                !is_ending && !shutdown.reads_nothing() && self.has_room() && self.receiving.has_room();
            let until = self.count(reads);
            let (received, unsent) = (self.input.len(), self.output.len());
            // `select!` picks at random, so that a constant supply of requests or of events does not exclude the other.
            tokio::select! {
                Some(completed) = self.waiting.join_next(), if !self.waiting.is_empty() => self.complete(completed),
                Some(push) = self.pushes.recv(), if self.output.len() < UNWRITTEN_MAX => {
                    push.encode(&mut self.output);
                    while self.output.len() < UNWRITTEN_MAX
                        && let Ok(push) = self.pushes.try_recv()
                    {
                        push.encode(&mut self.output);
                    }
                }
                () = self.session.events_out.close_requested() => {
                    let is_removed = self.session.access.is_removed();
                    return Err(io::Error::other(if is_removed {
                        "the user was removed"
                    } else if self.session.caches.security().requirement.refuses() {
                        Requirement::REFUSAL
                    } else {
                        "events for the client may be missing"
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
                // A client that has shut down its sending direction may still want its responses.
                is_open = self.from.take(&mut self.input, READ_BYTES), if reads => {
                    is_ending = !is_open?;
                    self.tally.received(self.input.len() - received);
                    shutdown.note_input();
                }
                can_close = shutdown.next(is_done), if !is_ending => {
                    // Requests that arrive later are not waited for: otherwise a client that does not stop sending would
                    // keep its connection.
                    if can_close && (shutdown.refuses() || !self.has_more().await?) {
                        return self.close(&shutdown).await;
                    }
                }
                reserved = self.receiving.wait(), if !self.receiving.has_room() => {
                    if let Err(exceeded) = reserved {
                        self.refuse(&exceeded);
                    }
                }
                () = self.alarm.at(until), if until.is_some() => self.check_deadlines()?,
            }
        }
    }

    async fn has_more(&mut self) -> io::Result<bool> {
        let before = self.input.len();
        let taken = {
            let mut taking = pin!(self.from.take(&mut self.input, READ_BYTES));
            poll_fn(|cx| Poll::Ready(taking.as_mut().poll(cx))).await
        };
        let more = self.input.len() - before;
        self.tally.received(more);
        match taken {
            Poll::Ready(Err(error)) => Err(error),
            Poll::Ready(Ok(_)) | Poll::Pending => Ok(more > 0),
        }
    }

    /// All started requests have their responses.
    async fn close(&mut self, shutdown: &ConnectionEnding<'_>) -> io::Result<()> {
        shutdown.encode_notice(&mut self.output);
        let closing = async {
            while self.to.has_to_write(&self.output) {
                self.to.write(&mut self.output).await?;
            }
            self.to.shutdown().await?;
            while self.from.take(&mut self.input, READ_BYTES).await? {
                self.input.clear();
            }
            io::Result::Ok(())
        };
        timeout(CLOSE_LINGER_MAX, closing).await.unwrap_or(Ok(()))
    }

    /// Starts complete requests while their responses have capacity and the turn lasts. Returns whether the turn ended first.
    async fn begin_all(&mut self, shutdown: &mut ConnectionEnding<'_>) -> bool {
        let (mut batch, mut has_begun_all, mut turn) = (None, false, Turn::default());
        while self.has_room() && !has_begun_all && !shutdown.reads_nothing() {
            if batch.as_ref().is_some_and(|batch: &Batch| turn.is_over(batch.began())) {
                break;
            }
            match self.requests.next(&mut self.input, &self.session.caches) {
                Ok(Some((request, bytes))) if shutdown.refuses() => self.refuse_at_end(&request, bytes),
                Ok(Some(request)) => {
                    shutdown.note(&request.0.header);
                    self.begin(request, batch.get_or_insert_with(Batch::begin)).await;
                }
                Ok(None) => has_begun_all = true,
                Err(error) => self.fail(error),
            }
        }
        let is_new = batch.is_some();
        if let Some(batch) = batch {
            batch.end(self.tally.times());
        }
        if has_begun_all {
            self.check_incomplete(is_new);
        }
        if self.input.is_empty() {
            self.input = BytesMut::new();
        }
        turn.has_ended
    }

    /// Checks permission and capacity of an incomplete request, which may differ from the last call's.
    fn check_incomplete(&mut self, is_new: bool) {
        match self.requests.head(&self.input) {
            Ok(Some(head)) => {
                let resolve =
                    |name: &str| self.session.caches.get(name).map(|found| found.cache.name().to_owned());
                if let Some(refusal) = self.session.access.refusal_of_head(&head, resolve) {
                    self.tally.request(head.opcode);
                    self.session.caches.note_error(&head.header, refusal.status);
                    let response = Response::new(head.header.id, refusal.status, refusal.body);
                    self.encode(head.context(), &response, None);
                    self.requests.skip(&mut self.input);
                }
            }
            Ok(None) => {}
            Err(error) => return self.fail(error),
        }
        let is_skipping = self.requests.is_skipping();
        if self.input.is_empty() && !is_skipping {
            return self.receiving.clear();
        }
        let length = self.requests.bytes_needed().max(self.input.len());
        let kept = if is_skipping { self.input.len() } else { length };
        if let Err(exceeded) = self.receiving.receive(length, kept, is_new) {
            self.refuse(&exceeded);
        }
    }

    fn refuse_at_end(&mut self, request: &Request, bytes: usize) {
        self.tally.request(request.body.opcode());
        if bytes >= LARGE_REQUEST_BYTES {
            drop(self.receiving.take());
        }
        let refusal = ConnectionEnding::refusal(request.header.id);
        self.session.caches.note_error(&request.header, refusal.status);
        self.encode(request.context(), &refusal, None);
    }

    /// Refuses an incomplete request for lack of capacity; its rest is dropped as it arrives.
    fn refuse(&mut self, exceeded: &Exceeded) {
        let (id, asked) = self.requests.incomplete().unwrap_or((0, UNKNOWN));
        self.tally.request(asked.opcode);
        let text = format!("the server has no capacity for the request, which was not started. {exceeded}");
        self.session.caches.telemetry.errors_without_cache.note(Status::ServerError);
        self.encode(asked, &Response::error(id, Status::ServerError, text), None);
        self.requests.skip(&mut self.input);
        self.receiving.drop_held();
    }

    fn check_deadlines(&mut self) -> io::Result<()> {
        if self.taking.is_some_and(|taking| taking.is_over()) {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read its responses"));
        }
        if self.receiving.is_over() {
            let text = format!(
                "a request of at least {} bytes has not arrived within {} s and the time for its bytes at {} bytes/s",
                self.requests.bytes_needed(),
                self.session.caches.memory.transfer_time.as_secs_f32(),
                TRANSFER_RATE_MIN
            );
            tracing::debug!("closing a connection: {text}");
            let (id, asked) = self.requests.incomplete().unwrap_or((0, UNKNOWN));
            self.fail_with(asked, &Response::error(id, Status::TimedOut, text));
        }
        Ok(())
    }

    /// Answers an unreadable request. The connection ends if nothing after the request can be read.
    fn fail(&mut self, error: RequestError) {
        let version = error.version.unwrap_or(ProtocolVersion::NEWEST);
        let asked = RequestContext { version, ..UNKNOWN };
        let why = Response::error(error.id, error.error.status(), decoded_requests::text(&error.error));
        if error.error.is_stream_lost() {
            self.fail_with(asked, &why);
        } else {
            self.answer_error(asked, &why);
        }
    }

    fn answer_error(&mut self, asked: RequestContext, why: &Response) {
        self.tally.answer(why.status);
        self.session.caches.telemetry.errors_without_cache.note(why.status);
        why.encode(asked, &mut self.output);
    }

    fn fail_with(&mut self, asked: RequestContext, why: &Response) {
        self.answer_error(asked, why);
        self.is_failed = true;
        self.receiving.drop_held();
        self.receiving.clear();
    }

    /// A request that completes at the first poll, above all a read of a local entry, is answered here.
    async fn begin(&mut self, (request, bytes): (Request, usize), batch: &mut Batch) {
        let opcode = request.body.opcode();
        self.tally.request(opcode);
        self.tally.version(request.header.version);
        // The bytes of the request count until it is answered: with the reservation of a large request, or as they are.
        let large = if bytes < LARGE_REQUEST_BYTES { Vec::new() } else { self.receiving.take() };
        let bytes = if large.is_empty() { bytes + request.body.items() * BYTES_OF_ITEM } else { 0 };
        if let Some(recent) = self.requests.recent(&request)
            && let Some((asked, response)) = try_dispatch_local(&self.session, recent, &request)
        {
            batch.answered(opcode);
            return self.encode(asked, &response, None);
        }
        let mut response_future: ResponseFuture = Box::pin(answer(self.session.clone(), request));
        let polled = poll_fn(|cx| Poll::Ready(response_future.as_mut().poll(cx))).await;
        match polled {
            Poll::Ready((asked, response, held)) => {
                batch.answered(opcode);
                self.encode(asked, &response, held);
            }
            Poll::Pending => {
                let began = batch.began();
                self.tally.wait_begins();
                self.waiting_bytes += bytes;
                self.waiting.spawn(async move {
                    let (asked, response, held) = response_future.await;
                    drop::<Vec<Reservation>>(large);
                    CompletedRequest { asked, response, held, began, bytes }
                });
            }
        }
    }

    fn encode(&mut self, asked: RequestContext, response: &Response, held: Option<Box<ResponseBytes>>) {
        self.tally.answer(response.status);
        response.encode(asked, &mut self.output);
        if let Some(held) = held {
            self.held.push_back((self.sent + self.output.len() as u64, held));
        }
        if asked.opcode == Opcode::CounterAddListener {
            self.session.counter_listeners.note_answered(response.id);
        }
    }

    fn complete(&mut self, completed: Result<CompletedRequest, JoinError>) {
        self.tally.wait_ends();
        match completed {
            Ok(CompletedRequest { asked, response, held, began, bytes }) => {
                self.tally.times().add(Class::of(asked.opcode), 1, began.elapsed());
                self.waiting_bytes -= bytes;
                let before = self.output.len();
                let is_gathered = held.is_some();
                self.encode(asked, &response, held);
                if !is_gathered {
                    // Roughly the largest of the recent responses.
                    self.expected = (self.output.len() - before).max(self.expected - self.expected / 8);
                }
            }
            // Without a response the client would wait for ever.
            Err(error) => {
                tracing::error!(%error, "a request has panicked");
                self.is_failed = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_starts_no_request_beyond_its_limits() {
        assert!(has_room_for_one(WAITING_MAX - 1, UNANSWERED_MAX - 1, 1, UNWRITTEN_MAX - 1));
        assert!(!has_room_for_one(WAITING_MAX, 0, 1, 0));
        assert!(!has_room_for_one(1, UNANSWERED_MAX, 1, 0));
        assert!(!has_room_for_one(0, 0, 1, UNWRITTEN_MAX));
        assert!(!has_room_for_one(EXPECTED_BYTES_MAX / EXPECTED_BYTES_INITIAL, 0, EXPECTED_BYTES_INITIAL, 0));
    }
}
