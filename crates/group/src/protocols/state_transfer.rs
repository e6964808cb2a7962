//! STATE_TRANSFER, STATE and STATE_SOCK: a member gets the application's state from another, as of an exact point in all
//! members' messages.
//!
//! STATE_TRANSFER sends one message, STATE chunks, and with STATE_SOCK the requester reads from a socket. The requester
//! sets its windows to the provider's digest, so that exactly the messages after it are delivered on top of the state.
//!
//! Both digests must agree with the messages that the applications have seen. JGroups closes BARRIER and waits for
//! the threads above; here both steps run at the end of a sweep, when no message is between layers. Incomplete
//! messages in a fragmentation layer are not covered, as in JGroups.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::state_sock::{Readiness, SOCKETS, SocketEvent, StateSockConfig, StateSockets};
use crate::config::Bytes as ByteCount;
use crate::wire;
use crate::{
    Address, Answer, Control, Cx, Digest, DropReason, Event, Flags, HeaderBody, HeaderIds, Message,
    MessageBatch, Outcome, Pass, Payload, PhysAddr, ProbeOut, Protocol, ProtocolId, Query, StateError,
    StateHeader, StateTransferHeader, TimerKey, Token,
};

crate::properties! {
    /// STATE_TRANSFER has no properties.
    StateTransferConfig {}
}

crate::properties! {
    /// STATE's properties.
    StateConfig {
        /// The size in bytes of a chunk.
        buffer_size: ByteCount = ByteCount(8_192),
    }
}

impl StateConfig {
    /// Checks the chunks' size.
    ///
    /// # Errors
    ///
    /// The invalid attribute and the reason.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        if self.buffer_size.0 == 0 {
            return Err(("buffer_size", "buffer_size must be greater than 0".to_owned()));
        }
        Ok(())
    }
}

/// The limit of a Java array in bytes.
const STATE_MAX: usize = i32::MAX as usize;

/// A member sends one request.
const REQUESTS_MAX: usize = 1_000;

/// The next requester is served after this time.
const PROVIDE_MAX: Duration = Duration::from_secs(60);

const WAIT: TimerKey = TimerKey(1);
const PROVIDE: TimerKey = TimerKey(2);
/// Events raised after the last sweep need another one.
const SWEEP: TimerKey = TimerKey(3);

struct ServedRequest {
    token: u64,
    from: Address,
    digest: Digest,
}

struct ReceivedState {
    digest: Option<Digest>,
    state: Option<Bytes>,
}

struct PartialState {
    digest: Option<Digest>,
    bytes: BytesMut,
}

#[derive(Clone, PartialEq, Debug)]
enum Step {
    Request,
    /// With STATE and STATE_SOCK only the digest. With STATE_SOCK the address of the provider's socket, too.
    Response(Option<Digest>, Option<PhysAddr>),
    /// STATE only.
    Part,
    /// STATE and STATE_SOCK.
    End,
    Exception,
}

#[derive(Clone, PartialEq, Default, Debug)]
enum Format {
    #[default]
    StateTransfer,
    State(StateConfig),
    StateSock,
}

impl Format {
    const fn id(&self) -> ProtocolId {
        match self {
            Self::StateTransfer => ProtocolId::STATE_TRANSFER,
            Self::State(_) => ProtocolId::STATE,
            Self::StateSock => ProtocolId::STATE_SOCK,
        }
    }

    fn header(&self, step: Step) -> HeaderBody {
        if *self == Self::StateTransfer {
            return HeaderBody::StateTransfer(Box::new(match step {
                Step::Response(digest, _) => StateTransferHeader::Response(digest),
                Step::Exception => StateTransferHeader::Exception,
                _ => StateTransferHeader::Request,
            }));
        }
        let (kind, digest, bind_addr) = match step {
            Step::Request => (1, None, None),
            Step::Response(digest, socket) => (2, digest, socket),
            Step::Part => (3, None, None),
            Step::End => (4, None, None),
            Step::Exception => (5, None, None),
        };
        HeaderBody::State(Box::new(StateHeader { kind, digest, bind_addr }))
    }

    fn read(header: HeaderBody) -> Option<Step> {
        match header {
            HeaderBody::StateTransfer(header) => Some(match *header {
                StateTransferHeader::Request => Step::Request,
                StateTransferHeader::Response(digest) => Step::Response(digest, None),
                StateTransferHeader::Exception => Step::Exception,
            }),
            HeaderBody::State(header) => match header.kind {
                1 => Some(Step::Request),
                2 => Some(Step::Response(header.digest, header.bind_addr)),
                3 => Some(Step::Part),
                4 => Some(Step::End),
                5 => Some(Step::Exception),
                _ => None,
            },
            _ => None,
        }
    }
}

/// The STATE_TRANSFER layer, the STATE layer, and the STATE_SOCK layer.
#[derive(Default)]
pub struct StateTransfer {
    format: Format,
    /// STATE_SOCK only.
    sockets: Option<StateSockets>,
    members: Vec<Address>,
    asked: Option<(Address, Duration)>,
    arriving: Option<PartialState>,
    received: Option<ReceivedState>,
    serving: Option<ServedRequest>,
    waiting: VecDeque<Address>,
    next_token: u64,
    states_sent: u64,
    states_received: u64,
}

impl StateTransfer {
    /// Creates STATE_TRANSFER.
    pub fn new(_config: StateTransferConfig) -> Self {
        Self::default()
    }

    /// Creates STATE of a config that [`StateConfig::check`] accepts.
    pub fn in_chunks(config: StateConfig) -> Self {
        Self { format: Format::State(config), ..Self::default() }
    }

    /// Creates STATE_SOCK of a config that [`StateSockConfig::check`] accepts. It listens on this address; absent: the
    /// transport's.
    pub fn over_sockets(config: StateSockConfig, bind: Option<IpAddr>) -> Self {
        let sockets = Some(StateSockets::new(config, bind));
        Self { format: Format::StateSock, sockets, ..Self::default() }
    }

    fn message(&self, cx: &Cx<'_>, dest: &Address, step: Step, payload: Payload) -> Message {
        let mut message =
            Message::new(Some(dest.clone()), payload).with_header(self.id(), self.format.header(step));
        message.src = Some(cx.local().clone());
        message
    }

    fn get_state(&mut self, cx: &mut Cx<'_>, target: Option<&Address>, timeout: Duration) {
        let local = cx.local().clone();
        let provider = match target {
            Some(target) if *target == local || !self.members.contains(target) => {
                let target = cx.shared().book.member(target);
                return self.end(cx, Err(StateError::NotMember(target)));
            }
            Some(target) => Some(target.clone()),
            None => self.members.iter().find(|member| **member != local).cloned(),
        };
        // No other member: there is no state, which is no error.
        let Some(provider) = provider else { return self.end(cx, Ok(None)) };
        let flags = Flags::DONT_BUNDLE | Flags::OOB | Flags::SKIP_BARRIER;
        let request = self.message(cx, &provider, Step::Request, Payload::Empty).with_flags(flags);
        cx.send(request);
        self.asked = Some((provider, timeout));
        if !timeout.is_zero() {
            cx.arm(WAIT, timeout);
        }
    }

    fn end(&mut self, cx: &mut Cx<'_>, result: Result<Option<Bytes>, StateError>) {
        cx.disarm(WAIT);
        self.asked = None;
        self.arriving = None;
        self.received = None;
        if let Some(sockets) = &mut self.sockets {
            sockets.abort(cx);
        }
        cx.raise(Event::StateReceived(result));
    }

    /// Asks the application for the state of the next requesters. Must run between sweeps. Returns whether anything has
    /// changed; if not, an outcome has to come first.
    fn serve_next(&mut self, cx: &mut Cx<'_>) -> bool {
        let mut has_changed = false;
        while self.serving.is_none() && !self.waiting.is_empty() {
            match self.sockets.as_mut().map_or(Readiness::Ready, |sockets| sockets.prepare(cx)) {
                Readiness::Ready => {}
                Readiness::Requested => return true,
                Readiness::Waiting => return has_changed,
            }
            let Some(from) = self.waiting.pop_front() else { break };
            has_changed = true;
            let Some(Answer::Digest(digest)) = cx.ask(&Query::Digest) else {
                self.refuse(cx, &from, "the provider has no view yet");
                continue;
            };
            self.next_token += 1;
            let token = self.next_token;
            cx.control(&Control::SuspendStable(PROVIDE_MAX));
            cx.arm(PROVIDE, PROVIDE_MAX);
            cx.raise(Event::StateRequested { token, from: from.clone() });
            self.serving = Some(ServedRequest { token, from, digest });
        }
        has_changed
    }

    fn refuse(&self, cx: &mut Cx<'_>, requester: &Address, why: &str) {
        let payload = Payload::Bytes(Some(wire::encode_exception(why)));
        cx.send(self.message(cx, requester, Step::Exception, payload));
    }

    /// Sets the windows to the digest and raises the state. Must run between sweeps.
    fn take_over(&mut self, cx: &mut Cx<'_>, received: ReceivedState) {
        self.states_received += 1;
        cx.control(&Control::CloseBarrier);
        if let Some(digest) = &received.digest {
            cx.control(&Control::OverwriteDigest(digest));
        }
        self.end(cx, Ok(received.state));
        cx.control(&Control::OpenBarrier);
    }

    fn provide(&mut self, cx: &mut Cx<'_>, token: u64, state: &Result<Option<Bytes>, String>) {
        let Some(serving) = self.serving.take_if(|serving| serving.token == token) else { return };
        cx.disarm(PROVIDE);
        let to = &serving.from;
        match (state, &self.format) {
            (Ok(state), Format::StateTransfer) => {
                self.states_sent += 1;
                let step = Step::Response(Some(serving.digest), None);
                cx.send(self.message(cx, to, step, Payload::Bytes(state.clone())));
            }
            (Ok(state), Format::StateSock) => {
                let state = state.clone().unwrap_or_default();
                let offered = self.sockets.as_mut().and_then(|all| all.offer(cx, to.clone(), state));
                match offered {
                    Some(socket) => {
                        let step = Step::Response(Some(serving.digest), Some(socket));
                        cx.send(self.message(cx, to, step, Payload::Empty));
                    }
                    None => self.refuse(cx, to, "the provider has no socket"),
                }
            }
            (Ok(state), Format::State(config)) => {
                self.states_sent += 1;
                let size = config.buffer_size.0 as usize;
                let step = Step::Response(Some(serving.digest), None);
                cx.send(self.message(cx, to, step, Payload::Empty));
                let mut left = state.clone().unwrap_or_default();
                while !left.is_empty() {
                    let chunk = left.split_to(size.min(left.len()));
                    cx.send(self.message(cx, to, Step::Part, Payload::Bytes(Some(chunk))));
                }
                cx.send(self.message(cx, to, Step::End, Payload::Empty));
            }
            (Err(why), _) => self.refuse(cx, to, why),
        }
        cx.control(&Control::ResumeStable);
    }

    fn receive(&mut self, cx: &mut Cx<'_>, step: Step, message: &Message) {
        cx.absorb(message);
        let Some(src) = message.src.clone() else { return };
        let is_provider = self.asked.as_ref().is_some_and(|(provider, _)| *provider == src);
        match step {
            Step::Request => {
                if self.waiting.len() >= REQUESTS_MAX || self.waiting.contains(&src) {
                    return cx.count_drop(DropReason::QueueFull, |book| {
                        format!("state request of {}", book.member(&src))
                    });
                }
                self.waiting.push_back(src);
            }
            _ if !is_provider => {
                cx.count_drop(DropReason::Unexpected, |book| format!("state from {}", book.member(&src)));
            }
            Step::Response(digest, _) if self.format == Format::StateTransfer => {
                self.received = Some(ReceivedState { digest, state: message.payload_bytes().cloned() });
            }
            Step::Response(digest, socket) => {
                // Members must keep the messages after the digest until the last byte has arrived: each part repeats this.
                cx.control(&Control::SuspendStable(PROVIDE_MAX));
                self.arriving = Some(PartialState { digest, bytes: BytesMut::new() });
                match (&mut self.sockets, socket) {
                    (Some(sockets), Some(socket)) => sockets.fetch(cx, socket),
                    (Some(_), None) => {
                        let why = "the provider did not tell the address of its socket".to_owned();
                        self.fail(cx, StateError::Refused(why));
                    }
                    (None, _) => {}
                }
            }
            Step::Part => {
                if let Some(part) = message.payload_bytes() {
                    self.receive_part(cx, part);
                }
            }
            Step::End => match &mut self.sockets {
                Some(sockets) => {
                    let event = sockets.end_received();
                    self.handle_socket(cx, event);
                }
                None => self.complete(cx),
            },
            Step::Exception => {
                let why = message.payload_bytes().map(wire::decode_exception);
                let why = why.and_then(Result::ok).unwrap_or_else(|| "no reason was given".to_owned());
                self.fail(cx, StateError::Refused(why));
            }
        }
    }

    fn has_newer_request(&self, requester: &Address) -> bool {
        self.waiting.contains(requester)
            || self.serving.as_ref().is_some_and(|serving| serving.from == *requester)
            || self.sockets.as_ref().is_some_and(|sockets| sockets.is_served(requester))
    }

    fn complete(&mut self, cx: &mut Cx<'_>) {
        if let Some(PartialState { digest, bytes }) = self.arriving.take() {
            cx.control(&Control::ResumeStable);
            self.received = Some(ReceivedState { digest, state: Some(bytes.freeze()) });
        }
    }

    fn handle_socket(&mut self, cx: &mut Cx<'_>, event: Option<SocketEvent>) {
        match event {
            // The end of this sweep serves the next requester.
            None | Some(SocketEvent::Listening) => {}
            Some(SocketEvent::NotListening(why)) => {
                for requester in std::mem::take(&mut self.waiting) {
                    self.refuse(cx, &requester, &format!("the provider has no socket: {why}"));
                }
            }
            // The end of an earlier transfer must not end the one that the requester has asked for since.
            Some(SocketEvent::Sent(requester) | SocketEvent::NotSent(requester, _))
                if self.has_newer_request(&requester) => {}
            Some(SocketEvent::Sent(requester)) => {
                self.states_sent += 1;
                cx.send(self.message(cx, &requester, Step::End, Payload::Empty));
            }
            Some(SocketEvent::NotSent(requester, why)) => self.refuse(cx, &requester, &why),
            Some(SocketEvent::Received(bytes)) => self.receive_part(cx, &bytes),
            Some(SocketEvent::Complete) => self.complete(cx),
            Some(SocketEvent::Broken(why)) => self.fail(cx, StateError::Refused(why)),
        }
    }

    fn receive_part(&mut self, cx: &mut Cx<'_>, part: &[u8]) {
        let Some(arriving) = &mut self.arriving else { return };
        if arriving.bytes.len() + part.len() > STATE_MAX {
            return self.fail(cx, StateError::Refused("the state is larger than 2 GB".to_owned()));
        }
        arriving.bytes.extend_from_slice(part);
        // Members keep the messages after the digest as long as bytes arrive.
        cx.control(&Control::SuspendStable(PROVIDE_MAX));
    }

    fn fail(&mut self, cx: &mut Cx<'_>, error: StateError) {
        if self.arriving.is_some() {
            cx.control(&Control::ResumeStable);
        }
        self.end(cx, Err(error));
    }

    fn view(&mut self, cx: &mut Cx<'_>, members: &[Address]) {
        self.members = members.to_vec();
        self.waiting.retain(|member| members.contains(member));
        if let Some(sockets) = &mut self.sockets {
            sockets.retain_requesters(|member| members.contains(member));
        }
        let has_left = self.asked.as_ref().is_some_and(|(provider, _)| !members.contains(provider));
        if has_left && self.received.is_none() {
            self.fail(cx, StateError::ProviderLeft);
        }
    }
}

impl Protocol for StateTransfer {
    fn name(&self) -> &'static str {
        match self.format {
            Format::StateTransfer => "STATE_TRANSFER",
            Format::State(_) => "STATE",
            Format::StateSock => "STATE_SOCK",
        }
    }

    fn id(&self) -> ProtocolId {
        self.format.id()
    }

    fn wants(&self, _batch: &MessageBatch, headers: HeaderIds) -> bool {
        headers.has(self.id())
    }

    fn up(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        // Messages before the state in this batch are delivered before it.
        let messages = std::mem::take(&mut batch.messages);
        let mut is_first = true;
        for mut message in messages {
            match message.headers.take(self.format.id()).and_then(Format::read) {
                Some(step) => {
                    is_first = false;
                    self.receive(cx, step, &message);
                }
                _ if is_first => batch.messages.push(message),
                _ => cx.deliver(message),
            }
        }
    }

    fn up_event(&mut self, cx: &mut Cx<'_>, event: &Event) -> Pass {
        if let Event::View(view) = event {
            self.view(cx, view.members());
        }
        Pass::On
    }

    fn down_event(&mut self, cx: &mut Cx<'_>, event: &Event) -> Pass {
        match event {
            Event::GetState { target, timeout } => {
                self.get_state(cx, target.as_ref(), *timeout);
                Pass::Stop
            }
            Event::ProvideState { token, state } => {
                self.provide(cx, *token, state);
                Pass::Stop
            }
            Event::Disconnect => {
                if self.asked.is_some() {
                    self.fail(cx, StateError::ProviderLeft);
                }
                if self.serving.is_some() {
                    cx.disarm(PROVIDE);
                    cx.control(&Control::ResumeStable);
                }
                let mut sockets = self.sockets.take();
                if let Some(sockets) = &mut sockets {
                    sockets.close_all(cx);
                }
                *self = Self { format: self.format.clone(), sockets, ..Self::default() };
                Pass::On
            }
            _ => Pass::On,
        }
    }

    fn timer(&mut self, cx: &mut Cx<'_>, key: TimerKey) {
        if key == SOCKETS {
            let events = self.sockets.as_mut().map_or_else(Vec::new, |sockets| sockets.timer(cx));
            return events.into_iter().for_each(|event| self.handle_socket(cx, Some(event)));
        }
        match (key, &self.asked, &self.serving) {
            (PROVIDE, _, Some(ServedRequest { token, .. })) => {
                self.provide(cx, *token, &Err("the application timed out".to_owned()));
            }
            (WAIT, &Some((_, timeout)), _) if self.received.is_none() => {
                self.fail(cx, StateError::TimedOut(timeout));
            }
            _ => {}
        }
    }

    fn done(&mut self, cx: &mut Cx<'_>, token: Token, outcome: Outcome) {
        let event = self.sockets.as_mut().and_then(|sockets| sockets.done(cx, token, outcome));
        self.handle_socket(cx, event);
    }

    fn stop(&mut self, cx: &mut Cx<'_>) {
        if let Some(sockets) = &mut self.sockets {
            sockets.close_all(cx);
        }
    }

    fn flushes(&self) -> bool {
        true
    }

    fn flush(&mut self, cx: &mut Cx<'_>) {
        let received = self.received.take();
        if received.is_none() && (self.serving.is_some() || self.waiting.is_empty()) {
            return;
        }
        let has_received = received.is_some();
        if let Some(received) = received {
            self.take_over(cx, received);
        }
        // A sweep that changes nothing must not cause another one: requesters may wait for a minute.
        if self.serve_next(cx) || has_received {
            cx.arm(SWEEP, Duration::ZERO);
        }
    }

    fn probe(&self, out: &mut ProbeOut) {
        if let Format::State(config) = &self.format {
            out.put_all(config);
        }
        if let Some(sockets) = &self.sockets {
            sockets.probe(out);
        }
        out.put("num_state_reqs", self.states_sent);
        out.put("num_states_received", self.states_received);
        out.put("waiting_requesters", self.waiting.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Harness, digest, member, view};
    use crate::protocols::{NakAck, NakAckConfig, NakAckKind};
    use crate::{Indication, NakAckHeader};

    fn harness(numbers: &[u64]) -> Harness {
        let mut harness = Harness::new(StateTransfer::default());
        harness.raise(Event::View(view(1, numbers)));
        harness.answer_digest(digest(&[(1, 5, 5), (2, 7, 8)]));
        harness.take_up_events();
        harness
    }

    fn from(n: u64, header: StateTransferHeader, payload: Payload) -> Message {
        Message::new(Some(member(1)), payload)
            .with_header(ProtocolId::STATE_TRANSFER, HeaderBody::StateTransfer(Box::new(header)))
            .sent_by(n)
    }

    fn in_chunks() -> Harness {
        let config = StateConfig { buffer_size: ByteCount(4) };
        let mut harness = Harness::new(StateTransfer::in_chunks(config));
        harness.raise(Event::View(view(1, &[1, 2])));
        harness.answer_digest(digest(&[(1, 5, 5), (2, 7, 8)]));
        harness.take_up_events();
        harness
    }

    fn kinds(messages: &[Message]) -> Vec<u8> {
        let kind = |message: &Message| match message.headers.get(ProtocolId::STATE) {
            Some(HeaderBody::State(header)) => header.kind,
            other => panic!("{other:?}"),
        };
        messages.iter().map(kind).collect()
    }

    fn step(step: Step, payload: Payload) -> Message {
        let mut message = Message::new(Some(member(1)), payload)
            .with_header(ProtocolId::STATE, Format::State(StateConfig::default()).header(step));
        message.src = Some(member(2));
        message
    }

    #[test]
    fn a_provider_of_state_sends_digest_chunks_and_end() {
        let mut harness = in_chunks();
        harness.up(step(Step::Request, Payload::Empty)).advance(Duration::ZERO);
        let events = harness.take_up_events();
        let [Event::StateRequested { token, .. }] = events[..] else { panic!("{events:?}") };
        harness.lower(Event::ProvideState { token, state: Ok(Some("0123456789".into())) });
        let sent = harness.take_down();
        assert_eq!(kinds(&sent), [2, 3, 3, 3, 4]);
        let Some(HeaderBody::State(header)) = sent[0].headers.get(ProtocolId::STATE) else { panic!() };
        assert_eq!((header.digest.clone(), header.bind_addr), (Some(digest(&[(1, 5, 5), (2, 7, 8)])), None));
        let chunks: Vec<_> = sent[1..4].iter().map(|part| part.payload_bytes().unwrap().clone()).collect();
        assert_eq!(chunks, ["0123", "4567", "89"]);
        assert!(sent.iter().all(|message| message.flags == Flags::NONE));
        harness.up(step(Step::Request, Payload::Empty)).advance(Duration::ZERO);
        let events = harness.take_up_events();
        let [Event::StateRequested { token, .. }] = events[..] else { panic!("{events:?}") };
        harness.lower(Event::ProvideState { token, state: Ok(None) });
        assert_eq!(kinds(&harness.take_down()), [2, 4]);
    }

    #[test]
    fn a_requester_of_state_joins_the_chunks_and_then_sets_the_digest() {
        let mut harness = in_chunks();
        harness.lower(get(None));
        let request = harness.take_down();
        assert_eq!(
            (kinds(&request), request[0].flags),
            (vec![1], Flags::DONT_BUNDLE | Flags::OOB | Flags::SKIP_BARRIER)
        );
        let mut other = step(Step::Part, Payload::Bytes(Some("xx".into())));
        other.src = Some(member(3));
        harness.take_controls();
        harness.up(step(Step::Response(Some(digest(&[(2, 7, 8)])), None), Payload::Empty));
        for part in ["01", "2"] {
            harness.up(step(Step::Part, Payload::Bytes(Some(part.into())))).up(other.clone());
        }
        assert_eq!(harness.take_up_events(), []);
        assert!(!harness.take_controls().iter().any(|control| control.starts_with("OverwriteDigest")));
        harness.up(step(Step::End, Payload::Empty)).advance(Duration::ZERO);
        assert_eq!(harness.take_up_events(), [Event::StateReceived(Ok(Some("012".into())))]);
        assert!(harness.take_controls().iter().any(|control| control.starts_with("OverwriteDigest")));
        // Late chunks belong to no request.
        harness.up(step(Step::End, Payload::Empty)).advance(Duration::ZERO);
        assert_eq!(harness.take_up_events(), []);
    }

    #[test]
    fn a_provider_of_state_that_fails_or_leaves_between_chunks_ends_the_wait() {
        let start = || {
            let mut harness = in_chunks();
            harness.lower(get(None));
            harness.up(step(Step::Response(Some(digest(&[(2, 7, 8)])), None), Payload::Empty));
            harness.up(step(Step::Part, Payload::Bytes(Some("01".into()))));
            harness.take_controls();
            harness
        };
        let mut failed = start();
        let payload = Payload::Bytes(Some(wire::encode_exception("no")));
        failed.up(step(Step::Exception, payload));
        let why = StateError::Refused("java.lang.IllegalStateException: no".into());
        assert_eq!(failed.take_up_events(), [Event::StateReceived(Err(why))]);
        assert_eq!(failed.take_controls(), ["ResumeStable"]);
        let mut left = start();
        left.raise(Event::View(view(2, &[1])));
        let result = Event::StateReceived(Err(StateError::ProviderLeft));
        assert!(left.take_up_events().contains(&result));
    }

    fn get(target: Option<u64>) -> Event {
        Event::GetState { target: target.map(member), timeout: Duration::from_secs(10) }
    }

    #[test]
    fn the_state_comes_with_the_providers_digest() {
        let mut harness = harness(&[1, 2]);
        harness.up(from(2, StateTransferHeader::Request, Payload::Empty)).advance(Duration::ZERO);
        let events = harness.take_up_events();
        let [Event::StateRequested { token, .. }] = events[..] else { panic!("{events:?}") };
        harness.lower(Event::ProvideState { token, state: Ok(Some("state".into())) });
        let mut sent = harness.take_down();
        let header = sent[0].headers.take(ProtocolId::STATE_TRANSFER).unwrap();
        let wanted = StateTransferHeader::Response(Some(digest(&[(1, 5, 5), (2, 7, 8)])));
        assert_eq!(header, HeaderBody::StateTransfer(Box::new(wanted)));
        assert_eq!(sent[0].payload_bytes().unwrap(), "state");
    }

    #[test]
    fn requesters_are_served_one_after_the_other() {
        let mut harness = harness(&[1, 2, 3]);
        harness.up(from(2, StateTransferHeader::Request, Payload::Empty));
        harness.up(from(3, StateTransferHeader::Request, Payload::Empty)).advance(Duration::ZERO);
        assert_eq!(harness.take_up_events().len(), 1);
        harness.lower(Event::ProvideState { token: 1, state: Err("not now".to_owned()) });
        harness.advance(Duration::ZERO);
        let events = harness.take_up_events();
        assert!(matches!(&events[..], [Event::StateRequested { from, .. }] if *from == member(3)));
    }

    #[test]
    fn windows_are_set_to_the_digest_before_the_state_is_handed_up() {
        let mut harness = harness(&[1, 2]);
        harness.lower(get(None));
        assert_eq!(harness.take_down()[0].dest, Some(member(2)));
        harness.take_controls();
        let header = StateTransferHeader::Response(Some(digest(&[(2, 9, 9)])));
        harness.up(from(2, header, Payload::Bytes(Some("state".into())))).advance(Duration::ZERO);
        assert_eq!(harness.take_up_events(), [Event::StateReceived(Ok(Some("state".into())))]);
        let controls = harness.take_controls();
        assert_eq!(controls[0], "CloseBarrier");
        assert!(controls[1].starts_with("OverwriteDigest"));
        assert_eq!(controls[2], "OpenBarrier");
    }

    #[test]
    fn there_is_no_state_alone_or_from_non_members() {
        let mut harness = harness(&[1]);
        harness.lower(get(None)).lower(get(Some(9)));
        let not_member = Event::StateReceived(Err(StateError::NotMember(member(9).into())));
        assert_eq!(harness.take_up_events(), [Event::StateReceived(Ok(None)), not_member]);
    }

    #[test]
    fn a_provider_that_refuses_leaves_or_is_silent_ends_the_wait() {
        let mut harness = harness(&[1, 2]);
        harness.lower(get(None));
        let why = Payload::Bytes(Some(wire::encode_exception("no")));
        harness.up(from(2, StateTransferHeader::Exception, why));
        let refused = StateError::Refused("java.lang.IllegalStateException: no".to_owned());
        assert_eq!(harness.take_up_events(), [Event::StateReceived(Err(refused))]);
        harness.lower(get(None)).advance(Duration::from_secs(10));
        let late = StateError::TimedOut(Duration::from_secs(10));
        assert_eq!(harness.take_up_events(), [Event::StateReceived(Err(late))]);
        harness.lower(get(None)).raise(Event::View(view(2, &[1])));
        let events = harness.take_up_events();
        assert!(events.contains(&Event::StateReceived(Err(StateError::ProviderLeft))), "{events:?}");
    }

    fn over_nakack(numbers: &[u64]) -> Harness {
        let nakack = NakAck::new(NakAckKind::NakAck2, NakAckConfig::default());
        let mut harness = Harness::with_layers(1, vec![Box::new(nakack), Box::new(StateTransfer::default())]);
        harness.install(view(1, numbers)).become_server().raise(Event::View(view(1, numbers)));
        harness.take_indications();
        harness
    }

    fn multicast(from: u64, seqno: u64) -> Message {
        Message::bytes(None, vec![seqno as u8])
            .with_header(ProtocolId::NAKACK2, HeaderBody::NakAck2(NakAckHeader::Msg { seqno }))
            .sent_by(from)
    }

    /// Otherwise a message would be neither in the state nor after its digest.
    #[test]
    fn messages_covered_by_the_digest_are_delivered_before_the_state_request() {
        let mut harness = over_nakack(&[1, 2, 3]);
        harness.up_batch(vec![from(2, StateTransferHeader::Request, Payload::Empty), multicast(3, 1)]);
        harness.advance(Duration::ZERO);
        let seen = harness.take_indications();
        let [Indication::Batch(_), Indication::Event(Event::StateRequested { token, .. })] = seen[..] else {
            panic!("{seen:?}")
        };
        harness.lower(Event::ProvideState { token, state: Ok(None) });
        let header = harness.take_down().pop().unwrap().headers.take(ProtocolId::STATE_TRANSFER);
        let Some(HeaderBody::StateTransfer(header)) = header else { panic!("{header:?}") };
        let StateTransferHeader::Response(Some(digest)) = *header else { panic!("{header:?}") };
        assert_eq!(digest.get(&member(3)).unwrap().highest_delivered, 1);
    }

    /// Otherwise a message from before the reset would be delivered twice.
    #[test]
    fn messages_received_before_the_windows_are_set_are_delivered_before_the_state() {
        let mut harness = over_nakack(&[1, 2, 3]);
        harness.lower(get(Some(2)));
        let header = StateTransferHeader::Response(Some(digest(&[(3, 0, 0)])));
        let response = from(2, header, Payload::Bytes(Some("state".into())));
        harness.up_batch(vec![response, multicast(3, 1)]).advance(Duration::ZERO);
        harness.up(multicast(3, 1));
        let seen: Vec<bool> =
            harness.take_indications().iter().map(|one| matches!(one, Indication::Event(_))).collect();
        assert_eq!(seen, [false, true, false], "after the state the message comes once, from its new window");
    }
}
