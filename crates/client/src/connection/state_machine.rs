//! A connection as a state machine without IO.
//!
//! It begins with the login, if configured, and a PING that negotiates the version. Requests are encoded into one buffer.
//! Responses of any fragmentation and order are matched by id. A request keeps its id until its response arrives, also without
//! its caller: its response could not be decoded otherwise. Deadlines are checked every [`TICK`].

use std::task::{Poll, Waker};

use bytes::{Bytes, BytesMut};
use consort_hotrod::ops::{auth, server};
use consort_hotrod::{
    CLOSE_NOTICE_PARAM, Incoming, Limits, Opcode, Output, ProtocolVersion, Request, RequestBody,
    RequestContext, RequestHeader, Response, ResponseBody, ResponseDecoder, Status,
};
use consort_sasl::scram::Keys;

use super::credentials::KeyDerivation;
use super::legacy::{self, Versions};
use super::login::{Login, LoginStep};
use super::pending_requests::{Failure, PendingRequest, PendingRequests};
use super::sinks::{ServerEvent, Sinks};
use crate::clock::Time;
use crate::error::ConnectionError;
use crate::limits::{
    ANSWER_BYTES_MAX, ASK_AFTER, OTHER_REQUEST_RECENT, PING_AFTER, RESPONSE_TIMEOUT_MAX, SILENCE_MAX,
    SILENT_AFTER, TICK,
};

#[derive(Default)]
pub(crate) struct Effects {
    pub(crate) wake: Vec<Waker>,
    /// Units of room that became free.
    pub(crate) room: u32,
}

#[derive(Debug)]
pub(crate) enum Refused {
    /// The connection accepts no requests.
    NotOpen,
    /// The operation needs a newer version than the negotiated one.
    Unsupported { needed: ProtocolVersion, spoken: ProtocolVersion },
}

#[derive(Debug)]
enum Phase {
    LoggingIn(Box<Login>),
    Greeting,
    Open(ProtocolVersion),
    /// Pending requests are still answered.
    Draining,
    Lost,
}

/// The traffic of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Traffic {
    /// Requests, the connection's PINGs included.
    pub requests: u64,
    /// Responses.
    pub answers: u64,
    /// Events.
    pub events: u64,
    /// Writing system calls.
    pub writes: u64,
    /// Reading system calls.
    pub reads: u64,
}

const fn is_of_stream(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::StartGetStream
            | Opcode::NextGetStream
            | Opcode::EndGetStream
            | Opcode::StartPutStream
            | Opcode::NextPutStream
            | Opcode::EndPutStream
    )
}

pub(crate) struct Connection {
    /// The owner counts the system calls.
    pub(crate) traffic: Traffic,
    pub(crate) sinks: Sinks,
    phase: Phase,
    versions: Versions,
    greeting: ProtocolVersion,
    /// The server did not understand the initial version.
    is_not_understood: bool,
    pending: PendingRequests,
    other_requests: usize,
    /// When such a request was last sent or answered.
    other_request_at: Option<Time>,
    decoder: ResponseDecoder,
    output: Output,
    /// Bytes encoded, and bytes handed out for writing.
    encoded: u64,
    handed_out: u64,
    /// The first request after an idle period counts, too.
    received_at: Time,
    checked_at: Time,
    is_pinged: bool,
    pinged_at: Time,
    /// The server may hang: nothing came since the last PING.
    is_silent: bool,
    writer: Option<Waker>,
    /// The server knows that this client understands close notices.
    has_offered_notice: bool,
}

impl Connection {
    /// Unless forced, the connection negotiates the newest version of both sides. A login must succeed before any other request.
    pub(crate) fn new(
        now: Time,
        versions: Versions,
        greeting: ProtocolVersion,
        login: Option<Login>,
    ) -> Self {
        let limits = Limits { message: ANSWER_BYTES_MAX, ..Limits::default() };
        let mut connection = Self {
            traffic: Traffic::default(),
            sinks: Sinks::default(),
            phase: Phase::Greeting,
            versions,
            greeting,
            is_not_understood: false,
            pending: PendingRequests::default(),
            other_requests: 0,
            other_request_at: None,
            decoder: ResponseDecoder::new(limits),
            output: Output::new(),
            encoded: 0,
            handed_out: 0,
            received_at: now,
            checked_at: now,
            is_pinged: false,
            pinged_at: now,
            is_silent: false,
            writer: None,
            has_offered_notice: false,
        };
        match login {
            Some(login) => {
                connection.phase = Phase::LoggingIn(Box::new(login));
                connection.ask(now, RequestBody::Auth(auth::Request::Mechanisms));
            }
            None => connection.ping(now),
        }
        connection
    }

    fn ping(&mut self, now: Time) {
        self.ask(now, RequestBody::Server(server::Request::Ping));
    }

    fn ask(&mut self, now: Time, body: RequestBody) {
        let header = RequestHeader::new(self.pending.next_id(), self.greeting);
        let request = Request { header, body };
        let entry = PendingRequest::own(request.context(), self.encoded, now + SILENCE_MAX);
        self.encode(now, &request, entry);
        (self.is_pinged, self.pinged_at) = (true, now);
    }

    fn encode(&mut self, now: Time, request: &Request, entry: PendingRequest) {
        if self.pending.is_empty() {
            self.received_at = now;
            self.checked_at = now;
        }
        let before = self.output.len();
        request.encode(&mut self.output);
        self.encoded += (self.output.len() - before) as u64;
        self.pending.insert(entry);
        self.traffic.requests += 1;
    }

    pub(crate) const fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open(_))
    }

    pub(crate) const fn is_drained(&self) -> bool {
        matches!(self.phase, Phase::Draining) && self.pending.is_empty()
    }

    pub(crate) const fn is_silent(&self) -> bool {
        self.is_silent
    }

    pub(crate) fn allow_move(&mut self, id: u64) {
        self.pending.allow_move(id);
    }

    /// [`Connection::poll_answer`] returns the outcome.
    pub(crate) fn submit(
        &mut self,
        now: Time,
        request: &mut Request,
        deadline: Time,
        units: u32,
        by: &Waker,
    ) -> Result<u64, Refused> {
        let Phase::Open(spoken) = self.phase else { return Err(Refused::NotOpen) };
        let id = self.pending.next_id();
        (request.header.id, request.header.version) = (id, spoken);
        self.offer_notice(spoken, request);
        let older = legacy::rewrite_for_version(request);
        let request = older.as_ref().unwrap_or(request);
        let needed = request.body.since();
        if spoken < needed {
            return Err(Refused::Unsupported { needed, spoken });
        }
        self.has_offered_notice = true;
        let asked = request.context();
        let entry = PendingRequest::awaited(asked, self.encoded, deadline, units, by.clone());
        self.encode(now, request, entry);
        if !is_of_stream(asked.opcode) {
            self.other_requests += 1;
            self.other_request_at = Some(now);
        }
        Ok(id)
    }

    /// Offers close notices in a connection's first request if the version has parameters, and removes the offer from others,
    /// which may have been sent on another connection before.
    fn offer_notice(&self, spoken: ProtocolVersion, request: &mut Request) {
        request.header.params.clear();
        if !self.has_offered_notice && spoken >= ProtocolVersion::V4_0 {
            request.header.params.push((CLOSE_NOTICE_PARAM.into(), Bytes::new()));
        }
    }

    /// Whether requests outside of streams are pending or recent, to which streams leave bandwidth.
    pub(crate) fn has_other_requests(&self, now: Time) -> bool {
        self.other_requests > 0
            || self.other_request_at.is_some_and(|at| now.saturating_sub(at) < OTHER_REQUEST_RECENT)
    }

    /// Returns the outcome of a request, once, and the room it frees.
    pub(crate) fn poll_answer(&mut self, id: u64, by: &Waker) -> Poll<(Result<Response, Failure>, u32)> {
        self.pending.poll(id, by)
    }

    pub(crate) fn abandon(&mut self, id: u64) -> u32 {
        self.pending.abandon(id)
    }

    /// Decodes responses and events; after invalid bytes the stream cannot be resynchronised.
    pub(crate) fn handle_receive(
        &mut self,
        now: Time,
        input: &mut BytesMut,
        effects: &mut Effects,
    ) -> Result<(), ConnectionError> {
        self.received_at = now;
        self.is_silent = false;
        loop {
            let pending = &self.pending;
            match self.decoder.decode(input, |id| pending.asked(id))? {
                Some(Incoming::Response(response)) => self.answered(now, response, effects)?,
                Some(Incoming::Event(event)) => self.dispatch_event(ServerEvent::Entry(event), effects),
                Some(Incoming::CounterEvent(event)) => {
                    self.dispatch_event(ServerEvent::Counter(event), effects);
                }
                None => return Ok(()),
            }
        }
    }

    fn dispatch_event(&mut self, event: ServerEvent, effects: &mut Effects) {
        self.traffic.events += 1;
        effects.wake.extend(self.sinks.dispatch(event));
    }

    fn answered(
        &mut self,
        now: Time,
        response: Response,
        effects: &mut Effects,
    ) -> Result<(), ConnectionError> {
        let is_new = matches!(self.phase, Phase::LoggingIn(_) | Phase::Greeting);
        self.is_not_understood |= is_new && legacy::is_not_understood(response.status);
        if self.pending.is_own(response.id) {
            self.is_pinged = false;
            match self.phase {
                Phase::LoggingIn(_) => self.continue_login(now, &response)?,
                Phase::Greeting => self.phase = Phase::Open(self.agreed(&response)?),
                Phase::Open(_) | Phase::Draining | Phase::Lost => {}
            }
        }
        let is_other = |asked: RequestContext| !is_of_stream(asked.opcode);
        if !self.pending.is_own(response.id) && self.pending.asked(response.id).is_some_and(is_other) {
            self.other_requests -= 1;
            self.other_request_at = Some(now);
        }
        // A response without a request concerns the whole connection.
        let complaint = match &response.body {
            ResponseBody::Error(text) => text.as_str().to_owned(),
            _ => String::new(),
        };
        let is_close_notice = response.id == 0 && response.status == Status::IllegalLifecycle;
        let Some((waker, room)) = self.pending.answered(response) else {
            return Err(if is_close_notice {
                ConnectionError::ServerEnds
            } else {
                ConnectionError::Refused(complaint)
            });
        };
        self.traffic.answers += 1;
        effects.wake.extend(waker);
        effects.room += room;
        Ok(())
    }

    fn continue_login(&mut self, now: Time, response: &Response) -> Result<(), ConnectionError> {
        let Phase::LoggingIn(login) = &mut self.phase else { return Ok(()) };
        let next = match &response.body {
            ResponseBody::Auth(response) => login.answered(response)?,
            ResponseBody::Error(text) => return Err(login.refused(text.as_str()).into()),
            _ => return Err(login.refused("unexpected response").into()),
        };
        match next {
            LoginStep::Send(request) => self.ask(now, RequestBody::Auth(request)),
            LoginStep::Derive => {}
            LoginStep::Done => {
                self.phase = Phase::Greeting;
                self.ping(now);
            }
        }
        Ok(())
    }

    pub(crate) fn derivation(&self) -> Option<KeyDerivation> {
        match &self.phase {
            Phase::LoggingIn(login) => login.derivation(),
            _ => None,
        }
    }

    pub(crate) fn authenticate(&mut self, now: Time, keys: &Keys) {
        let Phase::LoggingIn(login) = &mut self.phase else { return };
        if let Some(request) = login.authenticate(keys) {
            self.ask(now, RequestBody::Auth(request));
        }
    }

    fn agreed(&self, response: &Response) -> Result<ProtocolVersion, ConnectionError> {
        let newest = match &response.body {
            ResponseBody::Error(text) => return Err(ConnectionError::Refused(text.as_str().to_owned())),
            // Servers before 3.0 do not report their newest version.
            _ if self.greeting < ProtocolVersion::V3_0 => return Ok(self.greeting),
            ResponseBody::Server(server::Response::Pong(pong)) => pong.newest,
            _ => 0,
        };
        let needed = self.versions.needed();
        if newest < needed.byte() {
            return Err(ConnectionError::VersionTooOld { newest, needed });
        }
        let spoken = ProtocolVersion::ALL.into_iter().rev().find(|version| version.byte() <= newest);
        Ok(self.versions.forced.or(spoken).unwrap_or(needed))
    }

    /// The version to try on another connection, if the server did not understand this one.
    pub(crate) fn next_greeting(&self) -> Option<ProtocolVersion> {
        if self.is_not_understood { self.versions.before(self.greeting) } else { None }
    }

    pub(crate) fn poll_timeout(&self) -> Time {
        if self.pending.is_empty() { self.received_at + PING_AFTER } else { self.checked_at + TICK }
    }

    /// Fails if the server does not respond.
    pub(crate) fn handle_timeout(&mut self, now: Time, effects: &mut Effects) -> Result<(), ConnectionError> {
        self.checked_at = now;
        let silence = now.saturating_sub(self.received_at);
        if self.is_pinged && silence >= SILENCE_MAX {
            return Err(ConnectionError::PingTimedOut(SILENCE_MAX));
        }
        if self.pending.open().any(|entry| entry.deadline + RESPONSE_TIMEOUT_MAX <= now) {
            return Err(ConnectionError::ResponseTimedOut(RESPONSE_TIMEOUT_MAX));
        }
        let handed_out = self.handed_out;
        let failure = |entry: &PendingRequest| {
            let is_late = entry.deadline <= now;
            is_late.then_some(Failure { cause: None, was_sent: entry.start < handed_out })
        };
        self.pending.fail(failure, &mut effects.wake);
        if !self.is_pinged && silence >= PING_AFTER && self.is_open() {
            // The server counts as silent from now on only, however long the connection was idle.
            self.received_at = now - PING_AFTER;
            self.ping(now);
        } else if !self.is_pinged && silence >= ASK_AFTER && !self.pending.is_empty() && self.is_open() {
            self.ping(now);
        }
        self.detect_silence(now, effects);
        Ok(())
    }

    /// Fails pending requests that another server can execute, once the server is silent; later ones come only if all servers
    /// are.
    fn detect_silence(&mut self, now: Time, effects: &mut Effects) {
        let has_answered = self.received_at > self.pinged_at;
        let is_late = now.saturating_sub(self.pinged_at) >= SILENT_AFTER;
        if !self.is_open() || self.is_silent || !self.is_pinged || has_answered || !is_late {
            return;
        }
        self.is_silent = true;
        let handed_out = self.handed_out;
        let failure = |entry: &PendingRequest| {
            let cause = Some(ConnectionError::PingTimedOut(SILENT_AFTER));
            entry.can_move.then_some(Failure { cause, was_sent: entry.start < handed_out })
        };
        self.pending.fail(failure, &mut effects.wake);
    }

    pub(crate) fn take_output(&mut self, into: &mut Output) {
        if into.is_empty() {
            std::mem::swap(&mut self.output, into);
            self.handed_out = self.encoded;
        }
    }

    pub(crate) fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    pub(crate) fn set_writer(&mut self, writer: &Waker) {
        match &mut self.writer {
            Some(own) => own.clone_from(writer),
            None => self.writer = Some(writer.clone()),
        }
    }

    /// Takes the task to wake after a submission; `None` if it was woken already.
    pub(crate) const fn take_writer(&mut self) -> Option<Waker> {
        self.writer.take()
    }

    pub(crate) fn drain(&mut self) {
        if self.is_open() {
            self.phase = Phase::Draining;
        }
    }

    /// Ends the connection after `written` bytes, so that each caller learns whether the server may have its request.
    pub(crate) fn lose(&mut self, written: u64, cause: &ConnectionError, effects: &mut Effects) {
        self.phase = Phase::Lost;
        // A server that shuts down sends its notice after the responses to all requests that it has begun.
        let may_be_begun = !matches!(cause, ConnectionError::ServerEnds);
        let failure = |entry: &PendingRequest| Failure {
            cause: Some(cause.clone()),
            was_sent: may_be_begun && entry.start < written,
        };
        self.pending.close(failure, &mut effects.wake);
        effects.wake.extend(self.sinks.disconnect());
    }
}

#[cfg(test)]
mod tests;
