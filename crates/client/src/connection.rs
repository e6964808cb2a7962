//! A connection to a server as a state machine without IO: requests and bytes go in, bytes and answers come out.
//!
//! It begins with what shows whose it is, if that is wanted (`login`), and with a PING that settles the version. From then on requests are encoded one behind the other into one buffer,
//! which its owner writes whenever it can; answers are decoded as bytes come, in whatever pieces and order, and found by
//! their ids. A request keeps its id until it is answered, also if nobody waits for it any more: only with it can its
//! answer be read. Deadlines are looked at every [`TICK`]. A server that says nothing is asked whether it is there.

use std::task::{Poll, Waker};

use bytes::{Bytes, BytesMut};
use consort_hotrod::ops::{auth, server};
use consort_hotrod::{
    Asked, CLOSE_NOTICE_PARAM, Incoming, Limits, Opcode, Output, ProtocolVersion, Request, RequestBody,
    RequestHeader, Response, ResponseBody, ResponseDecoder, Status,
};
use consort_sasl::scram::Keys;

use crate::limits::{
    ANSWER_BYTES_MAX, ASK_AFTER, OTHERS_RECENT, PING_AFTER, SILENCE_MAX, SILENT_AFTER, TICK, RESPONSE_TIMEOUT_MAX,
};
use crate::clock::Time;
use crate::error::ConnectionError;
use crate::login::{KeyDerivation, Login, LoginStep};
use crate::legacy;
use crate::sinks::{Sinks, ServerEvent};
use crate::pending_requests::{Failure, PendingRequest, PendingRequests};

/// What has to be done outside.
#[derive(Default)]
pub(crate) struct Effects {
    /// Whom to wake.
    pub(crate) wake: Vec<Waker>,
    /// What is free again of the room.
    pub(crate) room: u32,
}

/// A request cannot be sent here, and was not.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The connection takes none.
    NotOpen,
    /// The operation needs a newer version than the one that is spoken.
    Unsupported { needed: ProtocolVersion, spoken: ProtocolVersion },
}

#[derive(Debug)]
enum Phase {
    /// It is shown whose the connection is.
    LoggingIn(Box<Login>),
    Greeting,
    Open(ProtocolVersion),
    /// What was asked is answered, and no more is taken.
    Draining,
    Lost,
}

/// What a connection has done.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Traffic {
    /// Requests that were made, PINGs of the connection's own included.
    pub requests: u64,
    /// Answers that have come.
    pub answers: u64,
    /// Events that have come unasked.
    pub events: u64,
    /// System calls that have written requests.
    pub writes: u64,
    /// System calls that have read answers.
    pub reads: u64,
}

/// Whether it belongs to a value that is read or written in pieces.
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

/// The state of a connection.
pub(crate) struct Connection {
    /// Its owner counts reads and writes.
    pub(crate) traffic: Traffic,
    /// Who is told of events.
    pub(crate) sinks: Sinks,
    phase: Phase,
    wanted: Option<ProtocolVersion>,
    /// What the connection itself asks is asked in this version.
    greeting: ProtocolVersion,
    /// The server has not understood the greeting.
    is_not_understood: bool,
    slots: PendingRequests,
    /// Requests under way that callers have made and that belong to no stream.
    others: usize,
    /// When one of them was last made or answered.
    others_at: Option<Time>,
    decoder: ResponseDecoder,
    output: Output,
    /// Bytes that were ever encoded, and how many of them were handed out to be written.
    encoded: u64,
    handed_out: u64,
    /// When the server last said something, or was first asked since it had nothing to say.
    heard_at: Time,
    /// When deadlines were last looked at.
    looked_at: Time,
    /// It is asked whether it is there.
    is_pinged: bool,
    /// When it was last asked.
    pinged_at: Time,
    /// It was asked whether it is there, and has sent nothing since: it may hang.
    is_silent: bool,
    /// Who writes, if it must be told that there is something.
    writer: Option<Waker>,
    /// The server knows that its close notice is understood.
    has_offered_notice: bool,
}

impl Connection {
    /// One that is just made and begins in this version. Without a wanted version, the newest is that both sides speak. With
    /// a login, nothing else is asked before that has ended well.
    pub(crate) fn new(
        now: Time,
        wanted: Option<ProtocolVersion>,
        greeting: ProtocolVersion,
        login: Option<Login>,
    ) -> Self {
        let limits = Limits { message: ANSWER_BYTES_MAX, ..Limits::default() };
        let mut connection = Self {
            traffic: Traffic::default(),
            sinks: Sinks::default(),
            phase: Phase::Greeting,
            wanted,
            greeting,
            is_not_understood: false,
            slots: PendingRequests::default(),
            others: 0,
            others_at: None,
            decoder: ResponseDecoder::new(limits),
            output: Output::new(),
            encoded: 0,
            handed_out: 0,
            heard_at: now,
            looked_at: now,
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

    /// Asks something of its own.
    fn ask(&mut self, now: Time, body: RequestBody) {
        let header = RequestHeader::new(self.slots.next_id(), self.greeting);
        let request = Request { header, body };
        let slot = PendingRequest::own(request.asked(), self.encoded, now + SILENCE_MAX);
        self.encode(now, &request, slot);
        (self.is_pinged, self.pinged_at) = (true, now);
    }

    fn encode(&mut self, now: Time, request: &Request, slot: PendingRequest) {
        if self.slots.is_empty() {
            self.heard_at = now;
            self.looked_at = now;
        }
        let before = self.output.len();
        request.encode(&mut self.output);
        self.encoded += (self.output.len() - before) as u64;
        self.slots.insert(slot);
        self.traffic.requests += 1;
    }

    /// Whether requests are taken.
    pub(crate) const fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open(_))
    }

    /// Whether there is nothing left to do here.
    pub(crate) const fn is_drained(&self) -> bool {
        matches!(self.phase, Phase::Draining) && self.slots.is_empty()
    }

    /// Whether the server may hang: it was asked whether it is there, and has sent nothing since.
    pub(crate) const fn is_silent(&self) -> bool {
        self.is_silent
    }

    /// A request that is under way can be made at another server as well.
    pub(crate) fn allow_move(&mut self, id: u64) {
        self.slots.allow_move(id);
    }

    /// Takes a request, which gets its id and its version. Its outcome is there for [`Connection::poll_answer`] later.
    pub(crate) fn submit(
        &mut self,
        now: Time,
        request: &mut Request,
        deadline: Time,
        units: u32,
        by: &Waker,
    ) -> Result<u64, Refused> {
        let Phase::Open(spoken) = self.phase else { return Err(Refused::NotOpen) };
        let id = self.slots.next_id();
        (request.header.id, request.header.version) = (id, spoken);
        self.offer_notice(spoken, request);
        let older = legacy::rewrite_for_version(request);
        let request = older.as_ref().unwrap_or(request);
        let needed = request.body.since();
        if spoken < needed {
            return Err(Refused::Unsupported { needed, spoken });
        }
        self.has_offered_notice = true;
        let asked = request.asked();
        let slot = PendingRequest::awaited(asked, self.encoded, deadline, units, by.clone());
        self.encode(now, request, slot);
        if !is_of_stream(asked.opcode) {
            self.others += 1;
            self.others_at = Some(now);
        }
        Ok(id)
    }

    /// The first request on a connection says that a close notice is understood, where versions have room for that. The request
    /// may have been made on another connection before.
    fn offer_notice(&self, spoken: ProtocolVersion, request: &mut Request) {
        request.header.params.clear();
        if !self.has_offered_notice && spoken >= ProtocolVersion::V4_0 {
            request.header.params.push((CLOSE_NOTICE_PARAM.into(), Bytes::new()));
        }
    }

    /// Whether requests that belong to no stream wait here, or have been made just now: then streams leave them the line.
    pub(crate) fn has_others(&self, now: Time) -> bool {
        self.others > 0 || self.others_at.is_some_and(|at| now.saturating_sub(at) < OTHERS_RECENT)
    }

    /// What has become of a request, once.
    pub(crate) fn poll_answer(&mut self, id: u64, by: &Waker) -> Poll<(Result<Response, Failure>, u32)> {
        self.slots.poll(id, by)
    }

    /// Nobody waits for a request any more. What is free again of the room.
    pub(crate) fn abandon(&mut self, id: u64) -> u32 {
        self.slots.abandon(id)
    }

    /// Takes the answers out of what has been received.
    ///
    /// # Errors
    ///
    /// If there is something else. Nothing that follows can be read.
    pub(crate) fn handle_receive(
        &mut self,
        now: Time,
        input: &mut BytesMut,
        effects: &mut Effects,
    ) -> Result<(), ConnectionError> {
        self.heard_at = now;
        self.is_silent = false;
        loop {
            let slots = &self.slots;
            match self.decoder.decode(input, |id| slots.asked(id))? {
                Some(Incoming::Response(response)) => self.answered(now, response, effects)?,
                Some(Incoming::Event(event)) => self.dispatch_event(ServerEvent::Entry(event), effects),
                Some(Incoming::CounterEvent(event)) => self.dispatch_event(ServerEvent::Counter(event), effects),
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
        if self.slots.is_own(response.id) {
            self.is_pinged = false;
            match self.phase {
                Phase::LoggingIn(_) => self.continue_login(now, &response)?,
                Phase::Greeting => self.phase = Phase::Open(self.agreed(&response)?),
                Phase::Open(_) | Phase::Draining | Phase::Lost => {}
            }
        }
        let is_other = |asked: Asked| !is_of_stream(asked.opcode);
        if !self.slots.is_own(response.id) && self.slots.asked(response.id).is_some_and(is_other) {
            self.others -= 1;
            self.others_at = Some(now);
        }
        // What is told to nobody is of the connection as a whole.
        let complaint = match &response.body {
            ResponseBody::Error(text) => text.as_str().to_owned(),
            _ => String::new(),
        };
        let is_close_notice = response.id == 0 && response.status == Status::IllegalLifecycle;
        let Some((waker, room)) = self.slots.answered(response) else {
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

    /// Goes on with what shows whose the connection is.
    fn continue_login(&mut self, now: Time, response: &Response) -> Result<(), ConnectionError> {
        let Phase::LoggingIn(login) = &mut self.phase else { return Ok(()) };
        let next = match &response.body {
            ResponseBody::Auth(response) => login.answered(response)?,
            ResponseBody::Error(text) => return Err(login.refused(text.as_str()).into()),
            _ => return Err(login.refused("its answer is another one").into()),
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

    /// What keys are to be derived with before it can go on, if there is something.
    pub(crate) fn derivation(&self) -> Option<KeyDerivation> {
        match &self.phase {
            Phase::LoggingIn(login) => login.derivation(),
            _ => None,
        }
    }

    /// Here are the keys.
    pub(crate) fn authenticate(&mut self, now: Time, keys: &Keys) {
        let Phase::LoggingIn(login) = &mut self.phase else { return };
        if let Some(request) = login.authenticate(keys) {
            self.ask(now, RequestBody::Auth(request));
        }
    }

    /// The version to speak, by the answer to the first PING.
    fn agreed(&self, response: &Response) -> Result<ProtocolVersion, ConnectionError> {
        let newest = match &response.body {
            ResponseBody::Error(text) => return Err(ConnectionError::Refused(text.as_str().to_owned())),
            // These tell nothing of themselves.
            _ if self.greeting < ProtocolVersion::V3_0 => return Ok(self.greeting),
            ResponseBody::Server(server::Response::Pong(pong)) => pong.newest,
            _ => 0,
        };
        let needed = self.wanted.unwrap_or(legacy::OLDEST);
        if newest < needed.byte() {
            return Err(ConnectionError::VersionTooOld { newest, needed });
        }
        let spoken = ProtocolVersion::ALL.into_iter().rev().find(|version| version.byte() <= newest);
        Ok(self.wanted.or(spoken).unwrap_or(needed))
    }

    /// In which version another connection may be understood, if that was what went wrong.
    pub(crate) fn next_greeting(&self) -> Option<ProtocolVersion> {
        let may_be_older = self.is_not_understood && self.wanted.is_none();
        if may_be_older { legacy::previous_version(self.greeting) } else { None }
    }

    /// When [`Connection::handle_timeout`] wants to be called.
    pub(crate) fn poll_timeout(&self) -> Time {
        if self.slots.is_empty() { self.heard_at + PING_AFTER } else { self.looked_at + TICK }
    }

    /// Looks at the deadlines, and whether the server is still there.
    ///
    /// # Errors
    ///
    /// If it is not.
    pub(crate) fn handle_timeout(&mut self, now: Time, effects: &mut Effects) -> Result<(), ConnectionError> {
        self.looked_at = now;
        let silence = now.saturating_sub(self.heard_at);
        if self.is_pinged && silence >= SILENCE_MAX {
            return Err(ConnectionError::PingTimedOut(SILENCE_MAX));
        }
        if self.slots.open().any(|slot| slot.deadline + RESPONSE_TIMEOUT_MAX <= now) {
            return Err(ConnectionError::ResponseTimedOut(RESPONSE_TIMEOUT_MAX));
        }
        let handed_out = self.handed_out;
        let failure = |slot: &PendingRequest| {
            let is_late = slot.deadline <= now;
            is_late.then_some(Failure { cause: None, was_sent: slot.start < handed_out })
        };
        self.slots.fail(failure, &mut effects.wake);
        if !self.is_pinged && silence >= PING_AFTER && self.is_open() {
            // Only now it may be silent, however long it had nothing to say.
            self.heard_at = now - PING_AFTER;
            self.ping(now);
        } else if !self.is_pinged && silence >= ASK_AFTER && !self.slots.is_empty() && self.is_open() {
            self.ping(now);
        }
        self.detect_silence(now, effects);
        Ok(())
    }

    /// Once the server has become silent, ends the requests under way that can be made at another server. Later ones are made here
    /// only if all servers are silent, and wait.
    fn detect_silence(&mut self, now: Time, effects: &mut Effects) {
        let has_answered = self.heard_at > self.pinged_at;
        let is_late = now.saturating_sub(self.pinged_at) >= SILENT_AFTER;
        if !self.is_open() || self.is_silent || !self.is_pinged || has_answered || !is_late {
            return;
        }
        self.is_silent = true;
        let handed_out = self.handed_out;
        let failure = |slot: &PendingRequest| {
            let cause = Some(ConnectionError::PingTimedOut(SILENT_AFTER));
            slot.can_move.then_some(Failure { cause, was_sent: slot.start < handed_out })
        };
        self.slots.fail(failure, &mut effects.wake);
    }

    /// Hands out what is to be written, if there is room for it.
    pub(crate) fn take_output(&mut self, into: &mut Output) {
        if into.is_empty() {
            std::mem::swap(&mut self.output, into);
            self.handed_out = self.encoded;
        }
    }

    /// Whether there is something to be written.
    pub(crate) fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// Who is to be woken by the next request.
    pub(crate) fn set_writer(&mut self, writer: &Waker) {
        match &mut self.writer {
            Some(own) => own.clone_from(writer),
            None => self.writer = Some(writer.clone()),
        }
    }

    /// Who has to hear of a request that was just submitted: nobody, if that is told already.
    pub(crate) const fn take_writer(&mut self) -> Option<Waker> {
        self.writer.take()
    }

    /// No more requests are taken.
    pub(crate) fn drain(&mut self) {
        if self.is_open() {
            self.phase = Phase::Draining;
        }
    }

    /// The connection is gone after so many bytes were written. Who waits is told whether the server may have its request.
    pub(crate) fn lose(&mut self, written: u64, cause: &ConnectionError, effects: &mut Effects) {
        self.phase = Phase::Lost;
        // A server that ends says so when it has answered all requests that it has begun.
        let may_be_begun = !matches!(cause, ConnectionError::ServerEnds);
        let failure = |slot: &PendingRequest| Failure {
            cause: Some(cause.clone()),
            was_sent: may_be_begun && slot.start < written,
        };
        self.slots.close(failure, &mut effects.wake);
        effects.wake.extend(self.sinks.disconnect());
    }
}

#[cfg(test)]
mod tests;
