//! One polled source: a listener, an attempt or a connection. A step takes the slot's content, and puts its successor back or
//! releases the slot.

use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use consort_group::{PhysAddr, Time};
use tokio::net::{TcpListener, TcpStream};

use super::slots::{Attempt, Connection, State};
use super::unfinished::CAPACITY_PAUSE;
use super::{DRAIN_TIME, FAILED_MAX, LinkEvent, Links, Loss, Sink};
use crate::tcp::framed::{Frame, Framed, next_frame};
use crate::tcp::queue::SendQueue;
use crate::tcp::setup;
use crate::tcp::stream::{Opening, Stream};
use crate::tcp::tls;

/// The bound keeps timers from waiting.
const ACCEPTS_PER_CYCLE: usize = 64;

/// A fast peer must not delay others and timers. Responses leave after the read: with 1 MB a rebalance takes a sixth longer,
/// because the sender learns late of the next request.
const READ_BYTES_PER_CYCLE: usize = 128 * 1024;

/// One more connection closes the longest silent one: silent clients must not lock members out.
const UNIDENTIFIED_CONNECTIONS_MAX: usize = 256;

/// Accepting fails for example without free descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[derive(PartialEq, Eq)]
enum Reading {
    Open,
    Ended(Loss),
}

impl Links {
    pub(crate) fn service(&mut self, now: Time, index: u32, sink: Sink<'_>) {
        match self.slots.take(index) {
            None | Some(State::Vacant) => {}
            Some(State::Listening(listener)) => self.accept(now, index, listener),
            Some(State::Handshaking(opening)) => self.continue_handshake(now, index, opening, sink),
            Some(State::Unidentified(framed)) => self.identify(now, index, framed, sink),
            Some(State::Connecting(attempt)) => self.continue_attempt(now, index, attempt, sink),
            Some(State::Open(connection)) => self.serve_open(now, index, connection, sink),
            Some(State::Draining(connection)) => self.continue_drain(now, index, connection, sink),
        }
    }

    fn accept(&mut self, now: Time, index: u32, listener: TcpListener) {
        for round in 0.. {
            if round == ACCEPTS_PER_CYCLE {
                self.slots.poll_again(index);
                break;
            }
            match listener.poll_accept(&mut Context::from_waker(self.slots.waker(index))) {
                Poll::Ready(Ok((stream, _))) => self.admit(now, stream),
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Poll::Ready(Err(error)) => {
                    self.warnings.count(now, "accept_failed", || error.to_string());
                    self.slots.set_deadline(index, Some(now + ACCEPT_PAUSE));
                    break;
                }
                Poll::Pending => break,
            }
        }
        self.slots.put(index, State::Listening(listener));
    }

    fn admit(&mut self, now: Time, stream: TcpStream) {
        if self.slots.in_use() >= self.links_max {
            self.warnings.count(now, "too_many_links", || "connection not accepted".into());
            return;
        }
        let is_unidentified = |index: &u32| {
            let state = self.slots.get(*index).map(|slot| &slot.state);
            matches!(state, Some(State::Unidentified(_) | State::Handshaking(_)))
        };
        let unidentified: Vec<u32> = self.slots.by_deadline().filter(is_unidentified).collect();
        if unidentified.len() >= UNIDENTIFIED_CONNECTIONS_MAX
            && let Some(&longest) = unidentified.first()
        {
            self.warnings.count(now, "too_many_strangers", || "the longest silent is closed".into());
            drop(self.slots.take(longest));
            self.slots.release(longest);
        }
        let state = match Stream::accepted(stream, self.settings.options, self.settings.tls.clone()) {
            Ok(stream) => State::Unidentified(Box::new(Framed::new(stream, SendQueue::default()))),
            Err(opening) => State::Handshaking(opening),
        };
        self.slots.add(state, Some(now + self.settings.setup_timeout));
    }

    fn continue_handshake(&mut self, now: Time, index: u32, mut opening: Opening, sink: Sink<'_>) {
        match opening.as_mut().poll(&mut Context::from_waker(self.slots.waker(index))) {
            Poll::Pending => self.slots.put(index, State::Handshaking(opening)),
            Poll::Ready(Ok(stream)) => {
                let framed = Box::new(Framed::new(stream, SendQueue::default()));
                self.identify(now, index, framed, sink);
            }
            Poll::Ready(Err(error)) => {
                self.warnings.count(now, "tls_handshake_failed", || error.to_string());
                self.slots.release(index);
            }
        }
    }

    fn identify(&mut self, now: Time, index: u32, mut framed: Box<Framed>, sink: Sink<'_>) {
        let polled = framed.poll_fill(self.slots.waker(index), &mut self.spare);
        let is_ended = matches!(polled, Poll::Ready(Ok(0) | Err(_)));
        let (ours, is_any) = (self.settings.version, self.settings.accept_any_version);
        match setup::decode(&framed.input, |version| is_any || ours.is_compatible(version)) {
            Err(error) => {
                let closed = || format!("connection from {} closed: {error}", framed.peer());
                self.warnings.count(now, error.cause(), closed);
                self.slots.release(index);
            }
            Ok(Some((peer, length))) => {
                let _ = framed.input.split_to(length);
                self.register(now, index, peer, framed, sink);
            }
            Ok(None) if is_ended => self.slots.release(index),
            Ok(None) => {
                if polled.is_ready() {
                    self.slots.poll_again(index);
                }
                self.slots.put(index, State::Unidentified(framed));
            }
        }
    }

    /// The rule for simultaneous connections decides.
    fn register(&mut self, now: Time, index: u32, peer: PhysAddr, mut framed: Box<Framed>, sink: Sink<'_>) {
        if peer == self.own {
            self.warnings.count(now, "claims_own_address", || format!("connection from {peer} closed"));
            return self.slots.release(index);
        }
        let mut ended = None;
        if let Some(old) = self.find(peer) {
            if !self.is_pausing(old) && !yields(self.own, peer) {
                self.stats.rejected += 1;
                return self.drain(now, index, Connection { peer, framed, used: now }, DRAIN_TIME);
            }
            (framed.queue, ended) = self.replace(now, old);
        }
        self.stats.accepted += 1;
        self.by_peer.insert(peer, index);
        self.slots.set_deadline(index, None);
        // In this order, because owners ignore the end of a connection if they have another one.
        sink(LinkEvent::Accepted { link: self.slots.link(index), peer });
        if let Some(ended) = ended {
            sink(ended);
        }
        self.serve_open(now, index, Connection { peer, framed, used: now }, sink);
    }

    /// The peer does not know such an attempt, so there is no choice between connections.
    fn is_pausing(&self, index: u32) -> bool {
        let state = self.slots.get(index).map(|slot| &slot.state);
        matches!(state, Some(State::Connecting(Attempt { opening: None, .. })))
    }

    fn replace(&mut self, now: Time, old: u32) -> (SendQueue, Option<LinkEvent>) {
        let link = self.slots.link(old);
        match self.slots.take(old) {
            Some(State::Open(mut connection)) => {
                let (peer, queue) = (connection.peer, connection.framed.end_without_queue());
                self.drain(now, old, connection, DRAIN_TIME);
                (queue, Some(LinkEvent::Closed { link, peer, is_graceful: true, loss: Loss::EndOfStream }))
            }
            Some(State::Connecting(Attempt { mut queue, .. })) => {
                queue.begin(Bytes::new());
                self.slots.release(old);
                (queue, Some(LinkEvent::Failed { link, reason: "the peer connected first".into() }))
            }
            Some(state) => {
                self.slots.put(old, state);
                (SendQueue::default(), None)
            }
            None => (SendQueue::default(), None),
        }
    }

    fn continue_attempt(&mut self, now: Time, index: u32, mut attempt: Attempt, sink: Sink<'_>) {
        let Some(opening) = &mut attempt.opening else {
            return self.slots.put(index, State::Connecting(attempt));
        };
        match opening.as_mut().poll(&mut Context::from_waker(self.slots.waker(index))) {
            Poll::Pending => self.slots.put(index, State::Connecting(attempt)),
            Poll::Ready(Ok(stream)) => {
                self.stats.connected += 1;
                self.slots.set_deadline(index, None);
                sink(LinkEvent::Connected { link: self.slots.link(index) });
                let mut framed = Box::new(Framed::new(stream, attempt.queue));
                framed.is_ours = true;
                self.serve_open(now, index, Connection { peer: attempt.peer, framed, used: now }, sink);
            }
            Poll::Ready(Err(error)) => {
                if tls::is_handshake(&error) {
                    self.warnings.count(now, "tls_connect_failed", || error.to_string());
                }
                self.fail(now, index, attempt, &error.to_string(), sink);
            }
        }
    }

    /// Queued frames are dropped; layers above retransmit them.
    pub(super) fn fail(&mut self, now: Time, index: u32, attempt: Attempt, reason: &str, sink: Sink<'_>) {
        let Attempt { peer, queue, .. } = attempt;
        tracing::debug!(%peer, reason, "no connection");
        self.stats.dropped += queue.len() as u64;
        self.stats.failed += 1;
        self.forget(peer, index);
        let link = self.slots.link(index);
        self.slots.release(index);
        if self.failed.len() >= FAILED_MAX {
            self.failed.clear();
        }
        self.failed.insert(peer, now + self.settings.reconnect_pause);
        sink(LinkEvent::Failed { link, reason: reason.to_owned() });
    }

    fn serve_open(&mut self, now: Time, index: u32, mut connection: Connection, sink: Sink<'_>) {
        let reading = self.read(now, index, &mut connection, true, sink);
        if let Reading::Ended(loss) = reading {
            return self.close_lost(index, connection, loss, sink);
        }
        if connection.framed.is_peer_closing {
            // The peer closes, and its frames have been read. The next packet opens another connection.
            let (link, peer) = (self.slots.link(index), connection.peer);
            sink(LinkEvent::Closed { link, peer, is_graceful: true, loss: Loss::EndOfStream });
            return self.drain(now, index, connection, DRAIN_TIME);
        }
        self.write(now, index, connection, sink);
    }

    pub(super) fn write(&mut self, now: Time, index: u32, mut connection: Connection, sink: Sink<'_>) {
        if !connection.framed.has_output() {
            return self.slots.put(index, State::Open(connection));
        }
        match connection.framed.write(self.slots.waker(index)) {
            Ok((bytes, calls)) => {
                self.stats.bytes_out += bytes;
                self.stats.writes += calls;
                connection.used = now;
                self.slots.put(index, State::Open(connection));
            }
            Err(error) => {
                self.warnings.count(now, "write_failed", || format!("{}: {error}", connection.peer));
                // The peer may have said that it closes. Its words arrive before the end of the connection.
                let reading = self.read(now, index, &mut connection, true, sink);
                // The end of the stream may have come before the reset that a later write caused.
                let is_end = reading == Reading::Ended(Loss::EndOfStream);
                let loss = if is_end { Loss::EndOfStream } else { Loss::Reset };
                self.close_lost(index, connection, loss, sink);
            }
        }
    }

    pub(super) fn close_lost(&mut self, index: u32, connection: Connection, loss: Loss, sink: Sink<'_>) {
        let Connection { peer, framed, .. } = connection;
        self.stats.dropped += framed.queue.len() as u64;
        self.forget(peer, index);
        let link = self.slots.link(index);
        self.slots.release(index);
        sink(LinkEvent::Closed { link, peer, is_graceful: framed.is_peer_closing, loss });
    }

    fn continue_drain(&mut self, now: Time, index: u32, mut connection: Connection, sink: Sink<'_>) {
        let reading = self.read(now, index, &mut connection, false, sink);
        if reading != Reading::Open || connection.framed.write(self.slots.waker(index)).is_err() {
            return self.slots.release(index);
        }
        self.slots.put(index, State::Draining(connection));
    }

    fn read(
        &mut self,
        now: Time,
        index: u32,
        connection: &mut Connection,
        is_current: bool,
        sink: Sink<'_>,
    ) -> Reading {
        let Connection { peer, framed, used } = connection;
        let (peer, link) = (*peer, self.slots.link(index));
        let mut budget = READ_BYTES_PER_CYCLE;
        loop {
            loop {
                match next_frame(&mut framed.input, self.settings.frame_len_max) {
                    Ok(Some(Frame::Payload(frame))) => {
                        self.stats.packets_in += 1;
                        framed.finish_frame();
                        self.unfinished.note_finished(link);
                        sink(LinkEvent::Frame { link, peer, frame, is_current });
                    }
                    Ok(Some(Frame::Close)) => framed.is_peer_closing = true,
                    Ok(None) => break,
                    Err(error) => {
                        self.warnings.count(now, "bad_frame_length", || format!("{peer}: {error}"));
                        return Reading::Ended(Loss::Reset);
                    }
                }
            }
            if budget == 0 {
                self.slots.poll_again(index);
                break;
            }
            if !framed.input.is_empty()
                && !self.unfinished.admit(now, link, peer, framed, self.members.as_ref())
            {
                // Its deadline polls it again.
                self.slots.set_deadline(index, Some(now + CAPACITY_PAUSE));
                break;
            }
            match framed.poll_fill(self.slots.waker(index), &mut self.spare) {
                Poll::Ready(Ok(0)) => return Reading::Ended(Loss::EndOfStream),
                Poll::Ready(Ok(count)) => {
                    self.stats.reads += 1;
                    self.stats.bytes_in += count as u64;
                    budget = budget.saturating_sub(count);
                    *used = now;
                }
                Poll::Ready(Err(error)) => {
                    // With TLS 1.3 the connecting side learns only now that its certificate is refused.
                    if let Some(reason) = tls::reason(&error) {
                        let own = self.own;
                        let detail = || format!("no TLS between this member ({own}) and {peer}: {reason}");
                        self.warnings.count(now, "tls_refused", detail);
                    }
                    tracing::debug!(%peer, %error, "connection broke");
                    // With TLS a process that dies does not announce the end of its stream.
                    let is_end = error.kind() == io::ErrorKind::UnexpectedEof;
                    return Reading::Ended(if is_end { Loss::EndOfStream } else { Loss::Reset });
                }
                Poll::Pending => break,
            }
        }
        framed.return_buffer(&mut self.spare);
        Reading::Open
    }
}

/// The connection opened by the member with the larger address survives.
fn yields(own: PhysAddr, peer: PhysAddr) -> bool {
    own < peer
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;

    use consort_group::{PacketPriority, Version};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::config::TransportConfig;
    use crate::signals::{Owner, Signals};
    use crate::tcp::edge::link_settings;

    async fn next_events(links: &mut Links, index: u32) -> Vec<LinkEvent> {
        let mut events = Vec::new();
        while events.is_empty() {
            tokio::task::yield_now().await;
            links.service(Time::ZERO, index, &mut |event| events.push(event));
        }
        events
    }

    /// An owner that watches by connection must know the new one when the old one ends.
    #[tokio::test]
    async fn a_connection_is_reported_before_the_end_of_the_one_it_replaces() {
        for is_open in [false, true] {
            let any: SocketAddr = ([127, 0, 0, 1], 0).into();
            let (theirs, ours) =
                (TcpListener::bind(any).await.unwrap(), TcpListener::bind(any).await.unwrap());
            let peer = PhysAddr::from(theirs.local_addr().unwrap());
            let own = PhysAddr { port: 1, ..peer };
            let settings = link_settings(&TransportConfig::tcp(), Version::V5_5_7, None);
            let mut links = Links::new(Owner::Edge, Arc::new(Signals::default()), settings, own, 0);

            let old = links.connect(Time::ZERO, peer, Some(own), Duration::from_secs(9)).unwrap();
            if is_open {
                assert!(matches!(next_events(&mut links, old).await[..], [LinkEvent::Connected { .. }]));
            }
            let mut client = TcpStream::connect(ours.local_addr().unwrap()).await.unwrap();
            client.write_all(&setup::encode(Version::V5_5_7, peer)).await.unwrap();
            links.admit(Time::ZERO, ours.accept().await.unwrap().0);

            let events = next_events(&mut links, old + 1).await;
            assert!(matches!(events[0], LinkEvent::Accepted { peer: of, .. } if of == peer), "{events:?}");
            match events[1] {
                LinkEvent::Closed { link, is_graceful, .. } => assert!(is_open && is_graceful && link == 0),
                LinkEvent::Failed { link, .. } => assert!(!is_open && link == 0),
                _ => panic!("{events:?}"),
            }
            assert_eq!(links.find(peer), Some(old + 1));
        }
    }

    /// It would survive if it had begun; its queue moves to the peer's.
    #[tokio::test]
    async fn an_attempt_that_pauses_gives_way_to_the_peers_connection() {
        let any: SocketAddr = ([127, 0, 0, 1], 0).into();
        let (theirs, ours) = (TcpListener::bind(any).await.unwrap(), TcpListener::bind(any).await.unwrap());
        let peer = PhysAddr::from(theirs.local_addr().unwrap());
        let own = PhysAddr { port: u16::MAX, ..peer };
        assert!(!yields(own, peer));
        drop(theirs);
        let settings = link_settings(&TransportConfig::tcp(), Version::V5_5_7, None);
        let mut links = Links::new(Owner::Edge, Arc::new(Signals::default()), settings, own, 0);
        let refused = links.connect(Time::ZERO, peer, Some(own), Duration::from_secs(9)).unwrap();
        assert!(matches!(next_events(&mut links, refused).await[..], [LinkEvent::Failed { link: 0, .. }]));

        let pausing = links.connect(Time::ZERO, peer, Some(own), Duration::from_secs(9)).unwrap();
        assert!(links.push(Time::ZERO, pausing, PacketPriority::Data, Bytes::from("waits")));
        let mut client = TcpStream::connect(ours.local_addr().unwrap()).await.unwrap();
        client.write_all(&setup::encode(Version::V5_5_7, peer)).await.unwrap();
        links.admit(Time::ZERO, ours.accept().await.unwrap().0);
        let taken = tokio::time::timeout(Duration::from_secs(9), next_events(&mut links, pausing + 1)).await;
        let events = taken.expect("the connection is refused");
        assert!(
            matches!(events[..], [LinkEvent::Accepted { link: 2, .. }, LinkEvent::Failed { link: 1, .. }]),
            "{events:?}"
        );
        let mut frame = [0; 9];
        client.read_exact(&mut frame).await.unwrap();
        assert_eq!(&frame, b"\0\0\0\x05waits");
    }

    #[test]
    fn the_connection_of_the_larger_address_survives() {
        let phys = |text: &str| PhysAddr::from(text.parse::<SocketAddr>().unwrap());
        let table = [
            ("10.0.0.1:7800", "10.0.0.2:7800", true),
            ("10.0.0.2:7800", "10.0.0.1:7800", false),
            ("10.0.0.1:7800", "10.0.0.1:7801", true),
            ("10.0.0.1:40000", "10.0.0.1:7801", false),
            // Java compares the address as a signed number.
            ("192.168.1.1:7800", "10.0.0.1:7800", true),
            ("10.0.0.1:7800", "192.168.1.1:7800", false),
            ("[fe80::1]:7800", "[::1]:7800", true),
            ("[::1]:7800", "[2001:db8::1]:7800", true),
        ];
        for (own, peer, expected) in table {
            assert_eq!(yields(phys(own), phys(peer)), expected, "{own} {peer}");
        }
    }
}
