//! The streams of a layer: connections of bytes without set-up bytes and frames (FD_SOCK, STATE_SOCK).
//!
//! Nothing blocks: a socket is polled when its waker has named it, and unwritten bytes stay queued.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use consort_group::{ConnId, CountPerSecond, Outcome, PhysAddr, StreamOptions, StreamSecurity, Time, Token};
use tokio::net::TcpListener;

use super::Outcomes;
use crate::signals::{Key, Owner, Signals, SourceWaker};
use crate::tcp::stream::{Opening, SocketOptions, Stream};
use crate::tcp::tls::Tls;
use crate::warnings::RateLimitedWarnings;

/// The sockets of a layer: a connection to and from each member of any working view.
const STREAMS_MAX: usize = 4_096;

/// Accepted connections in the TLS handshake; one more closes the oldest of them.
const HANDSHAKES_MAX: usize = 256;

/// Handshakes that programs may cause in a second by connecting to the server of a key exchange; further connections are closed,
/// and members try again when the message with the key's version is repeated. Each costs the driver about a millisecond with an
/// RSA key of 2,048 bits.
const HANDSHAKES_PER_SECOND_MAX: u32 = 500;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);

const READ_LEN: usize = 64 * 1024;

/// A flood must not starve the driver.
const READ_BYTES_PER_CYCLE: usize = 128 * 1024;

const ACCEPTS_PER_CYCLE: usize = 64;

/// Accepting fails for example without free descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A peer that reads nothing for this time loses the connection, if bytes wait for it.
const WRITE_STALL_MAX: Duration = Duration::from_secs(60);

/// In bytes per second, for the bytes that wait when a stream begins to close. Members' frames have the same rate.
const CLOSING_RATE_MIN: usize = 64 * 1024;

/// The peer closes its side meanwhile. Bytes under way arrive, too.
const DRAIN_TIME: Duration = Duration::from_secs(1);

/// A peer that hangs must not delay leaving.
const CLOSE_TIME: Duration = Duration::from_millis(300);

/// The transport's options, and certificates.
#[derive(Clone)]
pub(crate) struct StreamSettings {
    pub(crate) options: SocketOptions,
    /// The transport's.
    pub(crate) tls: Option<Tls>,
    /// Those of SSL_KEY_EXCHANGE.
    pub(crate) key_exchange: Option<Tls>,
}

impl StreamSettings {
    fn options(&self, options: StreamOptions) -> SocketOptions {
        SocketOptions {
            keep_alive: options.keep_alive,
            recv_buf: options.recv_buf.or(self.options.recv_buf),
            ..self.options
        }
    }

    /// A stream that needs certificates is never plain.
    fn tls(&self, options: StreamOptions) -> Result<Option<Tls>, &'static str> {
        match options.security {
            StreamSecurity::Transport => Ok(self.tls.clone()),
            StreamSecurity::KeyExchange => self
                .key_exchange
                .clone()
                .map(Some)
                .ok_or("this member has no certificates for a key exchange"),
        }
    }
}

enum State {
    /// A step may have the content.
    Vacant,
    Listening(TcpListener, StreamOptions),
    /// `peer` is absent for a connection that this member opens.
    Opening {
        opening: Opening,
        peer: Option<PhysAddr>,
    },
    Open(Open),
}

struct Open {
    stream: Stream,
    queue: VecDeque<Bytes>,
    /// A TLS stream may hold bytes back.
    is_unflushed: bool,
    ending: Ending,
    /// The end of a stream that closes: a peer that takes a byte now and then must not keep it open.
    end_by: Option<Time>,
}

/// The state of this member's side.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Open,
    /// The queue is written, then the side is closed. The token is of the request.
    Closing(Token),
    Closed,
}

struct Slot {
    conn: u64,
    token: Token,
    waker: Waker,
    deadline: Option<Time>,
    state: State,
}

pub(super) struct Streams {
    layer: u16,
    signals: Arc<Signals>,
    settings: StreamSettings,
    slots: Vec<Slot>,
    free: Vec<u32>,
    next_conn: u64,
    /// The slots to poll without their wakers.
    again: Vec<u32>,
    spare: BytesMut,
    drain_time: Duration,
    /// It is [`STREAMS_MAX`] except in tests.
    streams_max: usize,
    /// Of key exchanges. Those of the transport's streams are bounded by [`HANDSHAKES_MAX`] alone.
    handshakes: CountPerSecond,
    /// It is [`HANDSHAKES_PER_SECOND_MAX`] except in tests.
    handshakes_per_second_max: u32,
    warnings: RateLimitedWarnings,
}

impl Streams {
    /// Connection numbers begin at `first_conn`.
    pub(super) fn new(layer: u16, signals: Arc<Signals>, settings: StreamSettings, first_conn: u64) -> Self {
        Self {
            layer,
            signals,
            settings,
            slots: Vec::new(),
            free: Vec::new(),
            next_conn: first_conn,
            again: Vec::new(),
            spare: BytesMut::new(),
            drain_time: DRAIN_TIME,
            streams_max: STREAMS_MAX,
            handshakes: CountPerSecond::default(),
            handshakes_per_second_max: HANDSHAKES_PER_SECOND_MAX,
            warnings: RateLimitedWarnings::default(),
        }
    }

    fn add(&mut self, token: Token, state: State, deadline: Option<Time>) -> u32 {
        let conn = self.next_conn;
        self.next_conn += 1;
        let index = match self.free.pop() {
            Some(index) => {
                let slot = &mut self.slots[index as usize];
                (slot.conn, slot.token, slot.state, slot.deadline) = (conn, token, state, deadline);
                index
            }
            None => {
                let index = self.slots.len() as u32;
                let key = Key { owner: Owner::EffectStreams(self.layer), index };
                let waker = SourceWaker::waker(&self.signals, key);
                self.slots.push(Slot { conn, token, waker, deadline, state });
                index
            }
        };
        self.again.push(index);
        index
    }

    fn in_use(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The slot stays occupied until it is put back or released.
    fn take(&mut self, index: u32) -> Option<State> {
        let slot = self.slots.get_mut(index as usize)?;
        match std::mem::replace(&mut slot.state, State::Vacant) {
            State::Vacant => None,
            state => Some(state),
        }
    }

    fn put(&mut self, index: u32, state: State) {
        self.slots[index as usize].state = state;
    }

    /// Dropping the content closes the socket.
    fn release(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.state = State::Vacant;
        slot.deadline = None;
        self.free.push(index);
    }

    fn slot_of(&self, conn: ConnId) -> Option<u32> {
        let is_it = |slot: &Slot| slot.conn == conn.0 && matches!(slot.state, State::Open(_));
        self.slots.iter().position(is_it).map(|index| index as u32)
    }

    fn indexes(&self) -> std::ops::Range<u32> {
        0..self.slots.len() as u32
    }

    // --- calls of the owner ---

    pub(super) fn recv_buf(&self, options: StreamOptions) -> Option<usize> {
        self.settings.options(options).recv_buf
    }

    /// Returns why these streams cannot be opened.
    pub(super) fn refusal(&self, options: StreamOptions) -> Option<&'static str> {
        self.settings.tls(options).err()
    }

    pub(super) fn listen(&mut self, token: Token, listener: TcpListener, options: StreamOptions) {
        self.add(token, State::Listening(listener, options), None);
    }

    pub(super) fn close_listeners(&mut self) {
        for index in self.indexes() {
            if matches!(self.slots[index as usize].state, State::Listening(..)) {
                self.release(index);
            }
        }
    }

    pub(super) fn connect(
        &mut self,
        now: Time,
        token: Token,
        to: PhysAddr,
        timeout: Duration,
        options: StreamOptions,
    ) -> Result<(), &'static str> {
        if self.in_use() >= self.streams_max {
            return Err("too many connections");
        }
        if to.ip.is_none() {
            return Err("the address has no host");
        }
        let tls = self.settings.tls(options)?;
        let opening = Stream::connect(to.socket_addr(), self.settings.options(options), tls);
        self.add(token, State::Opening { opening, peer: None }, Some(now + timeout));
        Ok(())
    }

    /// Returns false if there is no such stream.
    pub(super) fn write(&mut self, now: Time, conn: ConnId, bytes: Bytes) -> bool {
        let Some(index) = self.slot_of(conn) else { return false };
        let slot = &mut self.slots[index as usize];
        if let State::Open(open) = &mut slot.state
            && open.ending == Ending::Open
            && !bytes.is_empty()
        {
            open.queue.push_back(bytes);
            slot.deadline.get_or_insert(now + WRITE_STALL_MAX);
            self.again.push(index);
        }
        true
    }

    /// Returns false if there is no such stream.
    pub(super) fn close(&mut self, now: Time, token: Token, conn: ConnId, is_graceful: bool) -> bool {
        let Some(index) = self.slot_of(conn) else { return false };
        if !is_graceful {
            self.release(index);
            return true;
        }
        let slot = &mut self.slots[index as usize];
        if let State::Open(open) = &mut slot.state
            && open.ending == Ending::Open
        {
            open.ending = Ending::Closing(token);
            let bytes: usize = open.queue.iter().map(Bytes::len).sum();
            let end_by = now + WRITE_STALL_MAX + Duration::from_secs((bytes / CLOSING_RATE_MIN) as u64);
            open.end_by = Some(end_by);
            slot.deadline.get_or_insert(now + WRITE_STALL_MAX);
            self.again.push(index);
        }
        true
    }

    /// Listeners and attempts close at once; streams that close have a moment left for their bytes.
    pub(super) fn begin_close(&mut self, now: Time) {
        self.drain_time = CLOSE_TIME;
        for index in self.indexes() {
            let slot = &mut self.slots[index as usize];
            match &mut slot.state {
                State::Open(open) if open.ending != Ending::Open => {
                    open.end_by = Some(now + CLOSE_TIME);
                    slot.deadline = open.end_by;
                }
                State::Vacant => {}
                _ => self.release(index),
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.in_use() == 0
    }

    // --- calls of the driver ---

    /// Polls the sources that stopped with input left. Returns whether there are more.
    pub(super) fn service_again(&mut self, now: Time, outcomes: &mut Outcomes) -> bool {
        for index in std::mem::take(&mut self.again) {
            self.service(now, index, outcomes);
        }
        !self.again.is_empty()
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.slots.iter().filter_map(|slot| slot.deadline).min()
    }

    pub(super) fn handle_timeout(&mut self, now: Time, outcomes: &mut Outcomes) {
        for index in self.indexes() {
            let slot = &mut self.slots[index as usize];
            if slot.deadline.is_none_or(|at| at > now) {
                continue;
            }
            slot.deadline = None;
            match self.take(index) {
                Some(State::Listening(listener, options)) => {
                    self.put(index, State::Listening(listener, options));
                    self.again.push(index);
                }
                Some(State::Opening { peer, .. }) => {
                    self.opening_failed(now, index, peer, "timed out", outcomes);
                }
                Some(State::Open(open)) => self.end(index, &open, false, "the peer reads nothing", outcomes),
                Some(State::Vacant) | None => {}
            }
        }
    }

    pub(super) fn service(&mut self, now: Time, index: u32, outcomes: &mut Outcomes) {
        match self.take(index) {
            Some(State::Listening(listener, options)) => self.accept(now, index, listener, options, outcomes),
            Some(State::Opening { opening, peer }) => {
                self.continue_opening(now, index, opening, peer, outcomes);
            }
            Some(State::Open(open)) => self.serve_open(now, index, open, outcomes),
            Some(State::Vacant) | None => {}
        }
    }

    fn accept(
        &mut self,
        now: Time,
        index: u32,
        listener: TcpListener,
        options: StreamOptions,
        outcomes: &mut Outcomes,
    ) {
        let slot = &self.slots[index as usize];
        let (waker, token) = (slot.waker.clone(), slot.token);
        for _ in 0..ACCEPTS_PER_CYCLE {
            match listener.poll_accept(&mut Context::from_waker(&waker)) {
                Poll::Ready(Ok((stream, from))) => self.admit(now, token, stream, from, options, outcomes),
                Poll::Ready(Err(error)) => {
                    self.warnings.count(now, "accept_failed", || error.to_string());
                    self.slots[index as usize].deadline = Some(now + ACCEPT_PAUSE);
                    return self.put(index, State::Listening(listener, options));
                }
                Poll::Pending => return self.put(index, State::Listening(listener, options)),
            }
        }
        self.put(index, State::Listening(listener, options));
        self.again.push(index);
    }

    fn admit(
        &mut self,
        now: Time,
        token: Token,
        stream: tokio::net::TcpStream,
        from: SocketAddr,
        options: StreamOptions,
        outcomes: &mut Outcomes,
    ) {
        if self.in_use() >= self.streams_max {
            self.warnings.count(now, "too_many_streams", || format!("connection from {from} closed"));
            return;
        }
        if options.security == StreamSecurity::KeyExchange
            && !self.handshakes.try_add(now, self.handshakes_per_second_max)
        {
            self.warnings.count(now, "too_many_handshakes", || format!("connection from {from} closed"));
            return;
        }
        // An IPv6 socket has IPv4 peers, too.
        let peer = PhysAddr::from(SocketAddr::new(from.ip().to_canonical(), from.port()));
        let Ok(tls) = self.settings.tls(options) else { return };
        match Stream::accepted(stream, self.settings.options(options), tls) {
            Ok(stream) => {
                let index = self.add(token, open(stream), None);
                let conn = ConnId(self.slots[index as usize].conn);
                outcomes.push_back((token, Outcome::Accepted { conn, peer }));
            }
            Err(opening) => {
                let is_handshake = |slot: &&Slot| matches!(slot.state, State::Opening { peer: Some(_), .. });
                let handshakes = self.slots.iter().filter(is_handshake);
                if handshakes.clone().count() >= HANDSHAKES_MAX
                    && let Some(oldest) = handshakes.min_by_key(|slot| slot.conn).map(|slot| slot.conn)
                    && let Some(index) = self.slots.iter().position(|slot| slot.conn == oldest)
                {
                    self.release(index as u32);
                }
                self.add(token, State::Opening { opening, peer: Some(peer) }, Some(now + HANDSHAKE_TIMEOUT));
            }
        }
    }

    fn continue_opening(
        &mut self,
        now: Time,
        index: u32,
        mut opening: Opening,
        peer: Option<PhysAddr>,
        outcomes: &mut Outcomes,
    ) {
        let slot = &mut self.slots[index as usize];
        match opening.as_mut().poll(&mut Context::from_waker(&slot.waker)) {
            Poll::Pending => self.put(index, State::Opening { opening, peer }),
            Poll::Ready(Ok(stream)) => {
                slot.deadline = None;
                let conn = ConnId(slot.conn);
                let outcome = match peer {
                    Some(peer) => Outcome::Accepted { conn, peer },
                    None => Outcome::Connected(conn),
                };
                outcomes.push_back((slot.token, outcome));
                self.put(index, open(stream));
                self.again.push(index);
            }
            Poll::Ready(Err(error)) => self.opening_failed(now, index, peer, &error.to_string(), outcomes),
        }
    }

    fn opening_failed(
        &mut self,
        now: Time,
        index: u32,
        peer: Option<PhysAddr>,
        reason: &str,
        outcomes: &mut Outcomes,
    ) {
        let token = self.slots[index as usize].token;
        self.release(index);
        match peer {
            Some(peer) => {
                self.warnings.count(now, "tls_accept_failed", || format!("{peer}: {reason}"));
            }
            None => outcomes.push_back((token, Outcome::Failed(reason.to_owned()))),
        }
    }

    fn serve_open(&mut self, now: Time, index: u32, mut open: Open, outcomes: &mut Outcomes) {
        match self.read(index, &mut open, outcomes) {
            Ok(true) => {}
            Ok(false) => return self.end(index, &open, true, "the peer closed the connection", outcomes),
            Err(error) => return self.end(index, &open, false, &error.to_string(), outcomes),
        }
        let slot = &mut self.slots[index as usize];
        match open.write(&slot.waker) {
            Ok(progress) => {
                if open.ending == Ending::Closed {
                    if let Some(token) = progress.closed {
                        slot.deadline = Some(now + self.drain_time);
                        outcomes.push_back((token, Outcome::Done));
                    }
                } else if !open.has_output() {
                    slot.deadline = None;
                } else if progress.has_written {
                    let stalled = now + WRITE_STALL_MAX;
                    slot.deadline = Some(open.end_by.map_or(stalled, |end| end.min(stalled)));
                }
                self.put(index, State::Open(open));
            }
            Err(error) => self.end(index, &open, false, &error.to_string(), outcomes),
        }
    }

    /// Returns false at the end of the stream.
    fn read(&mut self, index: u32, open: &mut Open, outcomes: &mut Outcomes) -> io::Result<bool> {
        let slot = &self.slots[index as usize];
        let mut budget = READ_BYTES_PER_CYCLE;
        loop {
            if budget == 0 {
                self.again.push(index);
                return Ok(true);
            }
            self.spare.reserve(READ_LEN);
            let polled = open.stream.poll_read(&mut Context::from_waker(&slot.waker), &mut self.spare);
            match polled {
                Poll::Ready(Ok(0)) => return Ok(false),
                Poll::Ready(Ok(count)) => {
                    budget = budget.saturating_sub(count);
                    // A copy, because a few bytes would keep the whole buffer.
                    let frame = Bytes::copy_from_slice(&self.spare);
                    self.spare.clear();
                    if open.ending == Ending::Open {
                        outcomes.push_back((slot.token, Outcome::Frame { conn: ConnId(slot.conn), frame }));
                    }
                }
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => return Ok(true),
            }
        }
    }

    /// The outcome depends on what this member has requested last.
    fn end(&mut self, index: u32, open: &Open, is_graceful: bool, reason: &str, outcomes: &mut Outcomes) {
        let slot = &self.slots[index as usize];
        match open.ending {
            Ending::Open => {
                let outcome =
                    Outcome::Closed { conn: ConnId(slot.conn), is_graceful, is_reset: !is_graceful };
                outcomes.push_back((slot.token, outcome));
            }
            Ending::Closing(token) => outcomes.push_back((token, Outcome::Failed(reason.to_owned()))),
            Ending::Closed => {}
        }
        self.release(index);
    }
}

fn open(stream: Stream) -> State {
    State::Open(Open {
        stream,
        queue: VecDeque::new(),
        is_unflushed: false,
        ending: Ending::Open,
        end_by: None,
    })
}

struct Progress {
    has_written: bool,
    /// The request whose close is complete.
    closed: Option<Token>,
}

impl Open {
    fn has_output(&self) -> bool {
        !self.queue.is_empty() || self.is_unflushed || matches!(self.ending, Ending::Closing(_))
    }

    fn write(&mut self, waker: &Waker) -> io::Result<Progress> {
        let mut cx = Context::from_waker(waker);
        let mut progress = Progress { has_written: false, closed: None };
        while let Some(first) = self.queue.front_mut() {
            match self.stream.poll_write(&mut cx, &[IoSlice::new(first)]) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(count)) => {
                    (progress.has_written, self.is_unflushed) = (true, true);
                    first.advance(count);
                    if first.is_empty() {
                        self.queue.pop_front();
                    }
                }
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => return Ok(progress),
            }
        }
        if self.is_unflushed {
            match self.stream.poll_flush(&mut cx) {
                Poll::Ready(result) => result?,
                Poll::Pending => return Ok(progress),
            }
            self.is_unflushed = false;
        }
        if let Ending::Closing(token) = self.ending
            && let Poll::Ready(result) = self.stream.poll_shutdown(&mut cx)
        {
            result?;
            self.ending = Ending::Closed;
            progress.closed = Some(token);
        }
        Ok(progress)
    }
}

#[cfg(test)]
mod tests {
    use consort_group::Version;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;
    use crate::config::TransportConfig;
    use crate::tcp::link_settings;

    const OPTIONS: StreamOptions =
        StreamOptions { keep_alive: false, recv_buf: None, security: StreamSecurity::Transport };

    /// A table that listens, and its address.
    struct Table {
        streams: Streams,
        at: SocketAddr,
        now: Time,
        outcomes: Outcomes,
    }

    fn tokens() -> (Token, Token) {
        (Token::new(7, 0), Token::new(7, 1))
    }

    impl Table {
        fn open() -> Self {
            Self::with(OPTIONS, None)
        }

        fn with(options: StreamOptions, key_exchange: Option<Tls>) -> Self {
            let link_settings = link_settings(&TransportConfig::tcp(), Version::V5_5_7, None);
            let settings = StreamSettings { options: link_settings.options, tls: None, key_exchange };
            let mut streams = Streams::new(7, Arc::new(Signals::default()), settings, 100);
            let listener = std::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
            listener.set_nonblocking(true).unwrap();
            let at = listener.local_addr().unwrap();
            streams.listen(tokens().0, TcpListener::from_std(listener).unwrap(), options);
            Self { streams, at, now: Time::ZERO, outcomes: Outcomes::new() }
        }

        async fn step(&mut self) {
            tokio::task::yield_now().await;
            for index in self.streams.indexes() {
                self.streams.service(self.now, index, &mut self.outcomes);
            }
        }

        async fn next(&mut self) -> (Token, Outcome) {
            loop {
                if let Some(outcome) = self.outcomes.pop_front() {
                    return outcome;
                }
                self.step().await;
            }
        }

        /// A peer's connection to the listener.
        async fn accept(&mut self) -> (TcpStream, ConnId) {
            let peer = TcpStream::connect(self.at).await.unwrap();
            let (_, Outcome::Accepted { conn, peer: from }) = self.next().await else {
                panic!("not accepted")
            };
            assert_eq!(from, PhysAddr::from(peer.local_addr().unwrap()));
            (peer, conn)
        }
    }

    #[tokio::test]
    async fn bytes_go_both_ways_without_set_up_bytes_and_frames() {
        let mut table = Table::open();
        let (mut peer, conn) = table.accept().await;
        peer.write_all(b"to the layer").await.unwrap();
        let (_, outcome) = table.next().await;
        assert_eq!(outcome, Outcome::Frame { conn, frame: Bytes::from("to the layer") });
        assert!(table.streams.write(table.now, conn, Bytes::from("to the peer")));
        table.step().await;
        let mut seen = [0; 11];
        peer.read_exact(&mut seen).await.unwrap();
        assert_eq!(&seen, b"to the peer");
        peer.shutdown().await.unwrap();
        assert_eq!(table.next().await.1, Outcome::Closed { conn, is_graceful: true, is_reset: false });
        assert!(!table.streams.write(table.now, conn, Bytes::from("late")));
    }

    #[tokio::test]
    async fn stream_with_certificates_is_refused_without_them() {
        let mut table = Table::open();
        let options = StreamOptions { security: StreamSecurity::KeyExchange, ..OPTIONS };
        let to = PhysAddr::from(table.at);
        let refused = table.streams.connect(table.now, tokens().1, to, Duration::from_secs(9), options);
        assert_eq!(refused, Err("this member has no certificates for a key exchange"));
        assert!(table.streams.refusal(options).is_some() && table.streams.refusal(OPTIONS).is_none());
    }

    #[test]
    fn receive_buffer_without_a_size_is_that_of_the_transport() {
        let config = TransportConfig { recv_buf_size: Some(30_000), ..TransportConfig::tcp() };
        let options = link_settings(&config, Version::V5_5_7, None).options;
        let streams =
            Streams::new(7, Arc::default(), StreamSettings { options, tls: None, key_exchange: None }, 100);
        assert_eq!(streams.recv_buf(OPTIONS), Some(30_000));
        let own = StreamOptions { recv_buf: Some(20_000), ..OPTIONS };
        assert_eq!(streams.recv_buf(own), Some(20_000));
    }

    #[tokio::test]
    async fn sockets_have_the_options_of_their_layer() {
        for keep_alive in [false, true] {
            let options = StreamOptions { keep_alive, recv_buf: Some(20_000), ..OPTIONS };
            let mut table = Table::open();
            table
                .streams
                .connect(table.now, tokens().1, table.at.into(), Duration::from_secs(9), options)
                .unwrap();
            while table.outcomes.len() < 2 {
                table.step().await;
            }
            let connected = table.outcomes.iter().find_map(|(_, outcome)| match outcome {
                Outcome::Connected(conn) => Some(*conn),
                _ => None,
            });
            let index = table.streams.slot_of(connected.expect("connected")).unwrap();
            let State::Open(Open { stream: Stream::Plain(stream), .. }) =
                &table.streams.slots[index as usize].state
            else {
                panic!("not open")
            };
            let socket = socket2::SockRef::from(stream);
            assert_eq!(socket.keepalive().unwrap(), keep_alive);
            // Linux doubles the size.
            assert!((20_000..=40_000).contains(&socket.recv_buffer_size().unwrap()));
        }
    }

    #[tokio::test]
    async fn graceful_close_writes_all_bytes_first_and_is_reported_with_its_token() {
        let mut table = Table::open();
        let (mut peer, conn) = table.accept().await;
        let state = Bytes::from(vec![7; 8 * 1024 * 1024]);
        let (_, close) = tokens();
        assert!(table.streams.write(table.now, conn, state.clone()));
        assert!(table.streams.close(table.now, close, conn, true));
        let mut seen = Vec::new();
        let reads = async {
            peer.read_to_end(&mut seen).await.unwrap();
            peer
        };
        let (outcome, peer) = tokio::join!(table.next(), reads);
        assert_eq!(outcome, (close, Outcome::Done));
        assert!(seen == state, "{} bytes", seen.len());
        drop(peer);
        while table.streams.in_use() > 1 {
            table.step().await;
        }
        assert!(table.outcomes.is_empty(), "the end is not reported again");
    }

    #[tokio::test]
    async fn peer_that_reads_nothing_for_60_s_loses_the_connection() {
        let mut table = Table::open();
        let (_peer, conn) = table.accept().await;
        let (_, close) = tokens();
        table.streams.write(table.now, conn, Bytes::from(vec![7; 64 * 1024 * 1024]));
        table.streams.close(table.now, close, conn, true);
        for _ in 0..100 {
            table.step().await;
        }
        let deadline = table.streams.poll_timeout().expect("a deadline");
        assert_eq!(deadline, table.now + WRITE_STALL_MAX);
        table.streams.handle_timeout(deadline, &mut table.outcomes);
        let (token, Outcome::Failed(_)) = table.outcomes.remove(0).expect("an outcome") else {
            panic!("not failed")
        };
        assert_eq!((token, table.streams.in_use()), (close, 1));
    }

    #[tokio::test]
    async fn attempt_that_fails_or_takes_too_long_is_reported() {
        let mut table = Table::open();
        let (_, connect) = tokens();
        let timeout = Duration::from_secs(1);
        let free = std::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let to = PhysAddr::from(free.local_addr().unwrap());
        drop(free);
        table.streams.connect(table.now, connect, to, timeout, OPTIONS).unwrap();
        assert!(matches!(table.next().await, (token, Outcome::Failed(_)) if token == connect));
        // It is not polled before its time is over.
        table.streams.connect(table.now, connect, to, timeout, OPTIONS).unwrap();
        table.streams.handle_timeout(table.now + timeout, &mut table.outcomes);
        assert_eq!(table.outcomes, [(connect, Outcome::Failed("timed out".to_owned()))]);
        let no_host = PhysAddr { ip: None, ..to };
        assert!(table.streams.connect(table.now, connect, no_host, timeout, OPTIONS).is_err());
    }

    #[tokio::test]
    async fn streams_beyond_the_bound_are_closed() {
        let mut table = Table::open();
        table.streams.streams_max = 2;
        let (_peer, _) = table.accept().await;
        let mut peer = TcpStream::connect(table.at).await.unwrap();
        while table.streams.warnings.iter().all(|(cause, _)| cause != "too_many_streams") {
            table.step().await;
        }
        assert!(matches!(peer.read(&mut [0]).await, Ok(0) | Err(_)));
        let to = PhysAddr::from(table.at);
        let refused = table.streams.connect(table.now, tokens().1, to, Duration::ZERO, OPTIONS);
        assert_eq!(refused, Err("too many connections"));
    }

    /// They send nothing. Each that sends the begin of a handshake would cost a signature.
    #[cfg(feature = "tls")]
    #[tokio::test]
    async fn handshakes_of_a_key_exchange_in_a_second_are_bounded() {
        let options = StreamOptions { security: StreamSecurity::KeyExchange, ..OPTIONS };
        let mut table = Table::with(options, Some(crate::tcp::key_exchange_tls::tests::tls("handshakes")));
        table.streams.handshakes_per_second_max = 2;
        let mut peers = Vec::new();
        for _ in 0..3 {
            peers.push(TcpStream::connect(table.at).await.unwrap());
        }
        let closed =
            |table: &Table| table.streams.warnings.iter().any(|(cause, _)| cause == "too_many_handshakes");
        while !closed(&table) {
            table.step().await;
        }
        assert_eq!(table.streams.in_use(), 1 + 2, "the listener and two handshakes");
        assert!(matches!(peers[2].read(&mut [0]).await, Ok(0) | Err(_)));
        table.now = table.now + Duration::from_secs(1);
        let _later = TcpStream::connect(table.at).await.unwrap();
        while table.streams.in_use() < 1 + 3 {
            table.step().await;
        }
    }

    #[tokio::test]
    async fn leaving_closes_all_streams_and_those_that_close_get_300_ms() {
        let mut table = Table::open();
        let (_open, _) = table.accept().await;
        let (_closing, conn) = table.accept().await;
        table.streams.write(table.now, conn, Bytes::from(vec![7; 64 * 1024 * 1024]));
        table.streams.close(table.now, tokens().1, conn, true);
        table.streams.begin_close(table.now);
        assert_eq!((table.streams.in_use(), table.streams.poll_timeout()), (1, Some(table.now + CLOSE_TIME)));
        table.streams.handle_timeout(table.now + CLOSE_TIME, &mut table.outcomes);
        assert!(table.streams.is_empty());
    }
}
