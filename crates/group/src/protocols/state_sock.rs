//! The sockets of STATE_SOCK: a requester connects to the provider, writes its own address, and reads the state to the end of
//! the stream.
//!
//! The provider listens from the first request on. A requester whose connection does not come in time gets a failure. The
//! end of the stream alone does not prove that the state is complete, because a provider that crashes ends it, too. So the
//! provider sends a message after the last byte, and the requester waits for both.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::stream_listener::StreamListener;
use crate::config::Bytes as ByteCount;
use crate::wire;
use crate::{
    Address, ConnId, Cx, Effect, ExternalAddress, Outcome, PhysAddr, ProbeOut, StreamOptions, Time, TimerKey,
    Token,
};

crate::properties! {
    /// STATE_SOCK's properties.
    StateSockConfig {
        /// The port to listen on for requesters; 0 = any port.
        bind_port: u16 = 0,
        /// The address to advertise instead of the bound one (behind address translation).
        external_addr: Option<IpAddr> = None,
        /// The port to advertise with `external_addr`; 0 = the bound one.
        external_port: u16 = 0,
        /// The size in bytes of the receive buffers of the sockets; 0 = that of the transport.
        recv_buf_size: ByteCount = ByteCount(0),
        /// How many requesters read the state at once. Others wait.
        max_pool: usize = 5,
    }
}

impl StateSockConfig {
    /// Checks that a requester can be served.
    ///
    /// # Errors
    ///
    /// The invalid attribute and the reason.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        if self.max_pool == 0 {
            return Err(("max_pool", "max_pool must be greater than 0".to_owned()));
        }
        Ok(())
    }

    fn options(&self) -> StreamOptions {
        let recv_buf = usize::try_from(self.recv_buf_size.0).ok().filter(|size| *size > 0);
        StreamOptions { keep_alive: true, recv_buf, ..StreamOptions::default() }
    }
}

/// A requester connects within this time after the response.
const FETCH_MAX: Duration = Duration::from_secs(60);

/// A connection that has not told its member within this time is closed.
const IDENTIFY_MAX: Duration = Duration::from_secs(5);

/// One more connection without a known requester is closed.
const UNIDENTIFIED_MAX: usize = 64;

/// An address with all its parts is shorter.
const ADDRESS_LEN_MAX: usize = 1_024;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The provider's last message arrives within this time after the end of the stream.
const END_MAX: Duration = Duration::from_secs(10);

pub(super) const SOCKETS: TimerKey = TimerKey(4);

/// The server socket's state before a response.
pub(super) enum Readiness {
    Ready,
    /// The socket has just been requested.
    Requested,
    /// An outcome has to come first: the socket, or the end of another transfer.
    Waiting,
}

/// A state that a requester has not fetched yet.
struct Offer {
    state: Bytes,
    until: Time,
}

#[derive(Default)]
enum Fetch {
    #[default]
    None,
    Connecting(Token),
    Reading(ConnId),
    /// The stream has ended; the provider's message has not arrived.
    Ended {
        until: Time,
    },
}

/// A change that concerns the transfer.
#[derive(PartialEq, Debug)]
pub(super) enum SocketEvent {
    /// The server socket is open.
    Listening,
    /// There is no server socket.
    NotListening(String),
    /// The requester's connection has got the whole state.
    Sent(Address),
    /// The requester does not get the state.
    NotSent(Address, String),
    /// The next bytes of the fetched state.
    Received(Bytes),
    /// The whole state has been fetched.
    Complete,
    /// The state cannot be fetched.
    Broken(String),
}

pub(super) struct StateSockets {
    config: StateSockConfig,
    /// `None` is the transport's address.
    bind: Option<IpAddr>,
    listener: StreamListener,
    offers: BTreeMap<Address, Offer>,
    /// Connections that have not told their member, with the bytes so far.
    unidentified: BTreeMap<ConnId, (BytesMut, Time)>,
    /// The requests to close connections behind the state, with the requesters.
    finishing: BTreeMap<Token, (ConnId, Address)>,
    fetch: Fetch,
    /// The provider's message after the last byte has arrived.
    is_end_received: bool,
}

impl StateSockets {
    pub(super) fn new(config: StateSockConfig, bind: Option<IpAddr>) -> Self {
        Self {
            config,
            bind,
            listener: StreamListener::Closed,
            offers: BTreeMap::new(),
            unidentified: BTreeMap::new(),
            finishing: BTreeMap::new(),
            fetch: Fetch::None,
            is_end_received: false,
        }
    }

    // --- the provider ---

    pub(super) fn prepare(&mut self, cx: &mut Cx<'_>) -> Readiness {
        match self.listener {
            StreamListener::Open(_) if self.offers.len() + self.finishing.len() < self.config.max_pool => {
                Readiness::Ready
            }
            StreamListener::Closed => {
                let StateSockConfig { external_addr, external_port, .. } = self.config;
                self.listener = StreamListener::Opening(cx.request(Effect::ListenStreams {
                    bind: self.bind,
                    ports: vec![self.config.bind_port],
                    external: ExternalAddress::configured(external_addr, external_port),
                    options: self.config.options(),
                }));
                Readiness::Requested
            }
            _ => Readiness::Waiting,
        }
    }

    /// Keeps the state for this requester; returns the address to connect to.
    pub(super) fn offer(&mut self, cx: &mut Cx<'_>, to: Address, state: Bytes) -> Option<PhysAddr> {
        let own = self.listener.address()?;
        self.offers.insert(to, Offer { state, until: cx.now() + FETCH_MAX });
        self.arm(cx);
        Some(own)
    }

    /// Returns whether the requester has a state to fetch, or is fetching it.
    pub(super) fn is_served(&self, requester: &Address) -> bool {
        self.offers.contains_key(requester) || self.finishing.values().any(|(_, own)| own == requester)
    }

    pub(super) fn retain_requesters(&mut self, is_member: impl Fn(&Address) -> bool) {
        self.offers.retain(|member, _| is_member(member));
    }

    fn accept(&mut self, cx: &mut Cx<'_>, conn: ConnId) {
        if self.unidentified.len() >= UNIDENTIFIED_MAX || self.offers.is_empty() {
            return close(cx, conn);
        }
        self.unidentified.insert(conn, (BytesMut::new(), cx.now() + IDENTIFY_MAX));
        self.arm(cx);
    }

    fn identify(&mut self, cx: &mut Cx<'_>, conn: ConnId, bytes: &[u8]) {
        let Some((known, _)) = self.unidentified.get_mut(&conn) else { return };
        known.extend_from_slice(&bytes[..bytes.len().min(ADDRESS_LEN_MAX)]);
        let member = match wire::decode_address_prefix(&known.clone().freeze()) {
            Ok(member) => member,
            Err(wire::WireError::Truncated { .. }) if known.len() < ADDRESS_LEN_MAX => return,
            Err(_) => None,
        };
        self.unidentified.remove(&conn);
        let offer = member.and_then(|member| self.offers.remove_entry(&member));
        match offer {
            Some((member, Offer { state, .. })) => {
                if !state.is_empty() {
                    cx.request(Effect::Write { conn, frame: state });
                }
                let token = cx.request(Effect::Close { conn, is_graceful: true });
                self.finishing.insert(token, (conn, member));
            }
            None => close(cx, conn),
        }
    }

    // --- the requester ---

    pub(super) fn fetch(&mut self, cx: &mut Cx<'_>, from: PhysAddr) {
        self.abort(cx);
        let (timeout, options) = (CONNECT_TIMEOUT, self.config.options());
        self.fetch = Fetch::Connecting(cx.request(Effect::ConnectStream { to: from, timeout, options }));
    }

    /// Ends a fetch.
    pub(super) fn abort(&mut self, cx: &mut Cx<'_>) {
        self.is_end_received = false;
        if let Fetch::Reading(conn) = std::mem::take(&mut self.fetch) {
            close(cx, conn);
        }
    }

    /// The provider has written the last byte.
    pub(super) fn end_received(&mut self) -> Option<SocketEvent> {
        match self.fetch {
            Fetch::Ended { .. } => {
                self.fetch = Fetch::None;
                Some(SocketEvent::Complete)
            }
            Fetch::Connecting(_) | Fetch::Reading(_) => {
                self.is_end_received = true;
                None
            }
            Fetch::None => None,
        }
    }

    fn connected(&mut self, cx: &mut Cx<'_>, token: Token, conn: ConnId) {
        match self.fetch {
            Fetch::Connecting(own) if own == token => {
                let frame = wire::encode_address(cx.local());
                cx.request(Effect::Write { conn, frame });
                self.fetch = Fetch::Reading(conn);
            }
            _ => close(cx, conn),
        }
    }

    fn closed(&mut self, cx: &mut Cx<'_>, conn: ConnId, is_graceful: bool) -> Option<SocketEvent> {
        if self.unidentified.remove(&conn).is_some() {
            return None;
        }
        // The peer closed it before the request to close it, which then has no outcome.
        let gone = self.finishing.extract_if(.., |_, (own, _)| *own == conn).next();
        if let Some((_, (_, member))) = gone {
            return Some(SocketEvent::NotSent(member, "the connection broke".to_owned()));
        }
        match self.fetch {
            Fetch::Reading(own) if own == conn => {}
            _ => return None,
        }
        self.fetch = Fetch::None;
        if !is_graceful {
            return Some(SocketEvent::Broken("the connection to the provider broke".to_owned()));
        }
        if self.is_end_received {
            return Some(SocketEvent::Complete);
        }
        self.fetch = Fetch::Ended { until: cx.now() + END_MAX };
        self.arm(cx);
        None
    }

    // --- both ---

    pub(super) fn done(&mut self, cx: &mut Cx<'_>, token: Token, outcome: Outcome) -> Option<SocketEvent> {
        match outcome {
            Outcome::Listening(own) if self.listener.is_opening(token) => {
                self.listener = StreamListener::Open(own);
                Some(SocketEvent::Listening)
            }
            Outcome::Failed(why) if self.listener.is_opening(token) => {
                self.listener = StreamListener::Closed;
                Some(SocketEvent::NotListening(why))
            }
            Outcome::Done => self.finishing.remove(&token).map(|(_, member)| SocketEvent::Sent(member)),
            Outcome::Failed(why) => {
                if let Some((_, member)) = self.finishing.remove(&token) {
                    return Some(SocketEvent::NotSent(member, why));
                }
                match self.fetch {
                    Fetch::Connecting(own) if own == token => {
                        self.fetch = Fetch::None;
                        Some(SocketEvent::Broken(format!("no connection to the provider's socket: {why}")))
                    }
                    _ => None,
                }
            }
            Outcome::Accepted { conn, .. } => {
                self.accept(cx, conn);
                None
            }
            Outcome::Connected(conn) => {
                self.connected(cx, token, conn);
                None
            }
            Outcome::Frame { conn, frame } => match self.fetch {
                Fetch::Reading(own) if own == conn => Some(SocketEvent::Received(frame)),
                _ => {
                    self.identify(cx, conn, &frame);
                    None
                }
            },
            Outcome::Closed { conn, is_graceful, .. } => self.closed(cx, conn, is_graceful),
            _ => None,
        }
    }

    fn arm(&self, cx: &mut Cx<'_>) {
        let end = match self.fetch {
            Fetch::Ended { until } => Some(until),
            _ => None,
        };
        let offers = self.offers.values().map(|offer| offer.until);
        let unidentified = self.unidentified.values().map(|(_, until)| *until);
        match offers.chain(unidentified).chain(end).min() {
            Some(until) => {
                let rest = until.since(cx.now());
                cx.arm(SOCKETS, rest);
            }
            None => cx.disarm(SOCKETS),
        }
    }

    pub(super) fn timer(&mut self, cx: &mut Cx<'_>) -> Vec<SocketEvent> {
        let now = cx.now();
        for conn in self.unidentified.extract_if(.., |_, (_, until)| *until <= now).map(|(conn, _)| conn) {
            close(cx, conn);
        }
        let late = self.offers.extract_if(.., |_, offer| offer.until <= now);
        let why = || format!("the state was not fetched within {FETCH_MAX:?}");
        let mut events: Vec<SocketEvent> =
            late.map(|(member, _)| SocketEvent::NotSent(member, why())).collect();
        if let Fetch::Ended { until } = self.fetch
            && until <= now
        {
            self.fetch = Fetch::None;
            events.push(SocketEvent::Broken("the provider did not confirm the end of the state".to_owned()));
        }
        self.arm(cx);
        events
    }

    pub(super) fn close_all(&mut self, cx: &mut Cx<'_>) {
        self.abort(cx);
        self.listener.close(cx);
        for conn in std::mem::take(&mut self.unidentified).into_keys() {
            close(cx, conn);
        }
        cx.disarm(SOCKETS);
        *self = Self::new(self.config.clone(), self.bind);
    }

    pub(super) fn probe(&self, out: &mut ProbeOut) {
        out.put("bind_addr", self.bind.map_or_else(String::new, |ip| ip.to_string()));
        out.put_all(&self.config);
        out.put("actual_bind_port", self.listener.port());
    }
}

fn close(cx: &mut Cx<'_>, conn: ConnId) {
    cx.request(Effect::Close { conn, is_graceful: false });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Harness, digest, member, phys, view};
    use crate::protocols::StateTransfer;
    use crate::{Digest, Event, Flags, HeaderBody, Message, Payload, ProtocolId, StateError, StateHeader};

    const CONN: ConnId = ConnId(7);

    fn socket() -> PhysAddr {
        PhysAddr { port: 9_000, ..phys(1) }
    }

    fn own_digest() -> Digest {
        digest(&[(1, 5, 5), (2, 7, 8)])
    }

    fn harness(config: StateSockConfig, bind: Option<IpAddr>) -> Harness {
        let mut harness = Harness::new(StateTransfer::over_sockets(config, bind));
        harness.raise(Event::View(view(1, &[1, 2, 3])));
        harness.answer_digest(own_digest());
        harness.take_up_events();
        harness
    }

    fn step(kind: u8, payload: Payload) -> Message {
        message(StateHeader { kind, digest: None, bind_addr: None }, payload)
    }

    fn message(header: StateHeader, payload: Payload) -> Message {
        Message::new(Some(member(1)), payload)
            .with_header(ProtocolId::STATE_SOCK, HeaderBody::State(Box::new(header)))
            .sent_by(2)
    }

    fn response(bind_addr: Option<PhysAddr>) -> Message {
        message(StateHeader { kind: 2, digest: Some(digest(&[(2, 7, 8)])), bind_addr }, Payload::Empty)
    }

    /// The destination and header of each message sent.
    fn sent(harness: &mut Harness) -> Vec<(Address, StateHeader)> {
        let all = harness.take_down().into_iter();
        all.map(|mut message| match message.headers.take(ProtocolId::STATE_SOCK) {
            Some(HeaderBody::State(header)) => (message.dest.unwrap(), *header),
            other => panic!("{other:?}"),
        })
        .collect()
    }

    fn kinds(harness: &mut Harness) -> Vec<u8> {
        sent(harness).into_iter().map(|(_, header)| header.kind).collect()
    }

    /// A provider that has offered this state to member 2, and the token of its listener.
    fn offering(state: Option<Bytes>) -> (Harness, Token) {
        let mut harness = harness(StateSockConfig::default(), None);
        harness.up(step(1, Payload::Empty)).advance(Duration::ZERO);
        let (listener, _) = harness.take_effects().remove(0);
        harness.done(listener, Outcome::Listening(socket())).advance(Duration::ZERO);
        let events = harness.take_up_events();
        let [Event::StateRequested { token, .. }] = events[..] else { panic!("{events:?}") };
        harness.lower(Event::ProvideState { token, state: Ok(state) });
        let header = StateHeader { kind: 2, digest: Some(own_digest()), bind_addr: Some(socket()) };
        assert_eq!(sent(&mut harness), [(member(2), header)]);
        (harness, listener)
    }

    fn connect(harness: &mut Harness, listener: Token, conn: ConnId) {
        harness.done(listener, Outcome::Accepted { conn, peer: phys(2) });
    }

    fn write(harness: &mut Harness, listener: Token, conn: ConnId, bytes: &[u8]) {
        harness.done(listener, Outcome::Frame { conn, frame: Bytes::copy_from_slice(bytes) });
    }

    fn effects(harness: &mut Harness) -> Vec<Effect> {
        harness.take_effects().into_iter().map(|(_, effect)| effect).collect()
    }

    fn closed(conn: ConnId) -> Effect {
        Effect::Close { conn, is_graceful: false }
    }

    #[test]
    fn the_provider_listens_as_configured_once_a_state_is_requested() {
        let ip = IpAddr::from([10, 9, 9, 9]);
        let config = StateSockConfig {
            bind_port: 7_100,
            external_addr: Some(ip),
            external_port: 5,
            recv_buf_size: ByteCount(20_000),
            ..StateSockConfig::default()
        };
        let bind = Some(IpAddr::from([127, 0, 0, 9]));
        let mut harness = harness(config, bind);
        assert_eq!(effects(&mut harness), []);
        harness.up(step(1, Payload::Empty)).advance(Duration::ZERO);
        let listen = Effect::ListenStreams {
            bind,
            ports: vec![7_100],
            external: ExternalAddress::configured(Some(ip), 5),
            options: StreamOptions { keep_alive: true, recv_buf: Some(20_000), ..StreamOptions::default() },
        };
        assert_eq!(effects(&mut harness), [listen]);
        assert_eq!(harness.take_up_events(), [], "the application is asked once there is a socket");
    }

    #[test]
    fn a_requester_that_tells_its_address_gets_the_state_and_then_the_end() {
        for state in [Some(Bytes::from("state")), None] {
            let (mut harness, listener) = offering(state.clone());
            connect(&mut harness, listener, CONN);
            let address = wire::encode_address(&member(2));
            write(&mut harness, listener, CONN, &address[..5]);
            assert_eq!(effects(&mut harness), [], "the address is incomplete");
            write(&mut harness, listener, CONN, &address[5..]);
            let mut all = harness.take_effects();
            let (token, close) = all.pop().unwrap();
            assert_eq!(close, Effect::Close { conn: CONN, is_graceful: true });
            let written = state.map(|frame| Effect::Write { conn: CONN, frame });
            assert_eq!(
                all.into_iter().map(|(_, effect)| effect).collect::<Vec<_>>(),
                Vec::from_iter(written)
            );
            assert_eq!(kinds(&mut harness), [], "the last byte is not written yet");
            harness.done(token, Outcome::Done);
            assert_eq!(kinds(&mut harness), [4]);
        }
    }

    #[test]
    fn a_requester_whose_connection_breaks_gets_a_failure() {
        let (mut harness, listener) = offering(Some("state".into()));
        connect(&mut harness, listener, CONN);
        write(&mut harness, listener, CONN, &wire::encode_address(&member(2)));
        let (token, _) = harness.take_effects().pop().unwrap();
        harness.done(token, Outcome::Failed("reset".to_owned()));
        assert_eq!(kinds(&mut harness), [5]);
    }

    #[test]
    fn a_requester_that_does_not_connect_within_60_s_gets_a_failure() {
        let (mut harness, _) = offering(Some("state".into()));
        harness.advance(Duration::from_secs(59));
        assert_eq!(kinds(&mut harness), []);
        harness.advance(Duration::from_secs(2));
        assert_eq!(kinds(&mut harness), [5]);
    }

    #[test]
    fn connections_of_others_get_nothing_and_are_closed() {
        let (mut harness, listener) = offering(Some("state".into()));
        for bytes in [&wire::encode_address(&member(3))[..], &[0x01], &[0x02, 0, 0]] {
            connect(&mut harness, listener, CONN);
            write(&mut harness, listener, CONN, bytes);
            let all = effects(&mut harness);
            // The last one is the beginning of an address.
            assert_eq!(all, if bytes.len() == 3 { vec![] } else { vec![closed(CONN)] }, "{bytes:?}");
        }
        write(&mut harness, listener, CONN, &[0xff; 2_000]);
        assert_eq!(effects(&mut harness), [closed(CONN)]);
        connect(&mut harness, listener, CONN);
        harness.advance(Duration::from_secs(5));
        assert_eq!(effects(&mut harness), [closed(CONN)], "silence");
    }

    #[test]
    fn unidentified_connections_are_bounded_and_there_is_none_without_an_offer() {
        let (mut harness, listener) = offering(Some("state".into()));
        for n in 0..=UNIDENTIFIED_MAX as u64 {
            connect(&mut harness, listener, ConnId(n));
        }
        assert_eq!(effects(&mut harness), [closed(ConnId(UNIDENTIFIED_MAX as u64))]);
        let (mut harness, listener) = offering(Some("state".into()));
        harness.raise(Event::View(view(2, &[1, 3])));
        connect(&mut harness, listener, CONN);
        assert_eq!(effects(&mut harness), [closed(CONN)], "the requester has left");
    }

    #[test]
    fn no_more_requesters_than_max_pool_are_served_at_once() {
        for max_pool in [1, 2] {
            let mut harness = harness(StateSockConfig { max_pool, ..StateSockConfig::default() }, None);
            harness
                .up(step(1, Payload::Empty))
                .up(Message { src: Some(member(3)), ..step(1, Payload::Empty) });
            harness.advance(Duration::ZERO);
            let (listener, _) = harness.take_effects().remove(0);
            harness.done(listener, Outcome::Listening(socket())).advance(Duration::ZERO);
            harness.lower(Event::ProvideState { token: 1, state: Ok(Some("state".into())) });
            harness.advance(Duration::ZERO);
            assert_eq!(harness.take_up_events().len(), max_pool);
            connect(&mut harness, listener, CONN);
            write(&mut harness, listener, CONN, &wire::encode_address(&member(2)));
            let (token, _) = harness.take_effects().pop().unwrap();
            harness.done(token, Outcome::Done).advance(Duration::ZERO);
            assert_eq!(harness.take_up_events().len(), 2 - max_pool);
        }
        let (name, _) = StateSockConfig { max_pool: 0, ..StateSockConfig::default() }.check().unwrap_err();
        assert_eq!(name, "max_pool");
    }

    /// The request to close its connection has no outcome then.
    #[test]
    fn requester_that_closes_its_connection_first_makes_room_for_the_next() {
        let mut harness = harness(StateSockConfig { max_pool: 1, ..StateSockConfig::default() }, None);
        harness.up(step(1, Payload::Empty)).up(Message { src: Some(member(3)), ..step(1, Payload::Empty) });
        harness.advance(Duration::ZERO);
        let (listener, _) = harness.take_effects().remove(0);
        harness.done(listener, Outcome::Listening(socket())).advance(Duration::ZERO);
        harness.lower(Event::ProvideState { token: 1, state: Ok(Some("state".into())) });
        harness.advance(Duration::ZERO);
        assert_eq!(harness.take_up_events().len(), 1);
        connect(&mut harness, listener, CONN);
        write(&mut harness, listener, CONN, &wire::encode_address(&member(2)));
        harness.advance(Duration::ZERO);
        assert_eq!(harness.take_up_events(), [], "its place is taken");
        harness
            .done(listener, Outcome::Closed { conn: CONN, is_graceful: true, is_reset: false })
            .advance(Duration::ZERO);
        let events = harness.take_up_events();
        assert!(matches!(events[..], [Event::StateRequested { .. }]), "{events:?}");
    }

    #[test]
    fn receive_buffers_without_a_size_are_those_of_the_transport() {
        let recv_buf = |size| {
            let recv_buf_size = ByteCount(size);
            StateSockConfig { recv_buf_size, ..StateSockConfig::default() }.options().recv_buf
        };
        assert_eq!((recv_buf(0), recv_buf(20_000)), (None, Some(20_000)));
    }

    #[test]
    fn without_a_server_socket_requesters_get_a_failure() {
        let mut harness = harness(StateSockConfig::default(), None);
        harness.up(step(1, Payload::Empty)).advance(Duration::ZERO);
        let (listener, _) = harness.take_effects().remove(0);
        harness.done(listener, Outcome::Failed("the port is in use".to_owned())).advance(Duration::ZERO);
        assert_eq!(kinds(&mut harness), [5]);
        harness.up(step(1, Payload::Empty)).advance(Duration::ZERO);
        assert_eq!(harness.take_effects().len(), 1, "the next request tries again");
    }

    fn requesting() -> Harness {
        let mut harness = harness(StateSockConfig::default(), None);
        harness.lower(Event::GetState { target: None, timeout: Duration::from_secs(60) });
        let request = harness.take_down().remove(0);
        assert_eq!(request.flags, Flags::DONT_BUNDLE | Flags::OOB | Flags::SKIP_BARRIER);
        harness.take_controls();
        harness
    }

    /// A requester that reads from the provider's socket, and the connection's token.
    fn reading() -> (Harness, Token) {
        let mut harness = requesting();
        harness.up(response(Some(socket())));
        let (token, effect) = harness.take_effects().remove(0);
        assert!(matches!(effect, Effect::ConnectStream { to, .. } if to == socket()), "{effect:?}");
        harness.done(token, Outcome::Connected(CONN));
        let frame = wire::encode_address(&member(1));
        assert_eq!(effects(&mut harness), [Effect::Write { conn: CONN, frame }]);
        write(&mut harness, token, CONN, b"sta");
        write(&mut harness, token, CONN, b"te");
        (harness, token)
    }

    fn refused(why: &str) -> Event {
        Event::StateReceived(Err(StateError::Refused(why.to_owned())))
    }

    #[test]
    fn the_state_is_taken_once_the_stream_and_the_providers_message_have_ended_it() {
        for is_message_first in [true, false] {
            let (mut harness, token) = reading();
            let end = |harness: &mut Harness| {
                harness.up(step(4, Payload::Empty)).advance(Duration::ZERO);
            };
            if is_message_first {
                end(&mut harness);
            }
            harness.done(token, Outcome::Closed { conn: CONN, is_graceful: true, is_reset: false });
            if !is_message_first {
                assert_eq!(harness.take_up_events(), []);
                end(&mut harness);
            }
            harness.advance(Duration::ZERO);
            assert_eq!(harness.take_up_events(), [Event::StateReceived(Ok(Some("state".into())))]);
            assert!(harness.take_controls().iter().any(|control| control.starts_with("OverwriteDigest")));
        }
    }

    #[test]
    fn a_stream_that_ends_without_the_providers_message_is_no_state() {
        let (mut harness, token) = reading();
        harness.done(token, Outcome::Closed { conn: CONN, is_graceful: true, is_reset: false });
        harness.advance(Duration::from_secs(9));
        assert_eq!(harness.take_up_events(), []);
        harness.advance(Duration::from_secs(2));
        assert_eq!(harness.take_up_events(), [refused("the provider did not confirm the end of the state")]);
        let (mut harness, token) = reading();
        harness.done(token, Outcome::Closed { conn: CONN, is_graceful: false, is_reset: false });
        assert_eq!(harness.take_up_events(), [refused("the connection to the provider broke")]);
    }

    #[test]
    fn a_provider_that_cannot_be_reached_or_leaves_or_fails_ends_the_fetch() {
        let mut harness = requesting();
        harness.up(response(None));
        let why = "the provider did not tell the address of its socket";
        assert_eq!(harness.take_up_events(), [refused(why)]);
        let mut harness = requesting();
        harness.up(response(Some(socket())));
        let (token, _) = harness.take_effects().remove(0);
        harness.done(token, Outcome::Failed("refused".to_owned()));
        assert_eq!(harness.take_up_events(), [refused("no connection to the provider's socket: refused")]);

        let (mut harness, _) = reading();
        harness.raise(Event::View(view(2, &[1, 3])));
        let left = Event::StateReceived(Err(StateError::ProviderLeft));
        assert!(harness.take_up_events().contains(&left));
        assert_eq!(effects(&mut harness), [closed(CONN)]);
        let (mut harness, _) = reading();
        let payload = Payload::Bytes(Some(wire::encode_exception("no")));
        harness.up(step(5, payload));
        assert_eq!(harness.take_up_events(), [refused("java.lang.IllegalStateException: no")]);
        assert_eq!(effects(&mut harness), [closed(CONN)]);
    }

    #[test]
    fn leaving_closes_the_listener_and_every_connection() {
        let (mut harness, listener) = offering(Some("state".into()));
        connect(&mut harness, listener, CONN);
        harness.lower(Event::Disconnect);
        assert_eq!(effects(&mut harness), [Effect::CloseListener, closed(CONN)]);
    }
}
