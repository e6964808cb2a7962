//! Connections between members: opened, accepted, told apart by the address in their set-up bytes, and ended.
//!
//! One table serves the transport, others the layers with sockets of their own (FD_SOCK2): the bytes and the rule
//! for simultaneous connections are the same (facts 4.2 to 4.4 and 14.1). The table keeps one connection per peer.
//! Nothing here waits: a socket is polled when its waker has named it, and what cannot be written stays queued.

mod serve;
mod slots;
mod unfinished;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use consort_group::{Lane, PhysAddr, Time, Version};
use tokio::net::TcpListener;

use self::slots::{Attempt, Connection, Slot, Slots, State};
use self::unfinished::Unfinished;
use super::queue::{OutFrame, QueueLimits, SendQueue};
use super::setup;
use super::stream::{Opening, SocketOptions, Stream};
use crate::complaints::Complaints;
use crate::signals::{Owner, Signals};
use crate::stats::EdgeStats;
use crate::tls::Tls;

/// Sockets of one table, for a cluster of a thousand members that all reconnect at once. A peer that claims ever new
/// addresses gets no further.
const LINKS_MAX: usize = 4096;

/// How long a connection that we end may take to deliver what is under way, both ways.
const DRAIN_TIME: Duration = Duration::from_millis(1000);

/// The same when everything is closed: leaving must not take long because of a peer that hangs.
const CLOSE_TIME: Duration = Duration::from_millis(300);

/// Failed peers remembered for the pause before the next attempt.
const FAILED_MAX: usize = 1024;

/// What all connections of a table have in common.
#[derive(Clone)]
pub(crate) struct LinkSettings {
    pub(crate) version: Version,
    pub(crate) accept_any_version: bool,
    pub(crate) options: SocketOptions,
    pub(crate) setup_timeout: Duration,
    pub(crate) limits: QueueLimits,
    pub(crate) frame_len_max: usize,
    /// Idle connections are ended after this time; zero = never.
    pub(crate) expire_time: Duration,
    pub(crate) reaper_interval: Duration,
    /// The next attempt after a failed one begins not sooner.
    pub(crate) reconnect_pause: Duration,
    pub(crate) tls: Option<Tls>,
}

/// Something happened on a connection.
#[derive(Debug)]
pub(crate) enum LinkEvent {
    /// A frame arrived. It is current unless the connection is being ended by us.
    Frame { link: u64, peer: PhysAddr, frame: Bytes, is_current: bool },
    /// A peer connected, and this is the table's connection to it now.
    Accepted { link: u64, peer: PhysAddr },
    /// A connection that we opened stands.
    Connected { link: u64 },
    /// A connection that we wanted to open does not.
    Failed { link: u64, reason: String },
    /// A connection of the table ended, not by our owner's wish.
    Closed { link: u64, is_graceful: bool },
}

/// Takes what happened.
pub(crate) type Sink<'a> = &'a mut dyn FnMut(LinkEvent);

/// A table of connections.
pub(crate) struct Links {
    settings: LinkSettings,
    /// Our listening address as peers know it.
    own: PhysAddr,
    slots: Slots,
    by_peer: HashMap<PhysAddr, u32>,
    failed: HashMap<PhysAddr, Time>,
    next_reap: Option<Time>,
    /// Peers that are members of our view; nothing while it is not known which these are.
    members: Option<HashSet<PhysAddr>>,
    /// Frames that are there in part.
    unfinished: Unfinished,
    /// Slots with something new to write.
    dirty: Vec<u32>,
    /// A read buffer for whichever connection has something to read.
    spare: BytesMut,
    pub(crate) complaints: Complaints,
    pub(crate) stats: EdgeStats,
}

impl Links {
    /// An empty table. Link numbers begin at `first_link`, so that several tables can share a range.
    pub(crate) fn new(
        owner: Owner,
        signals: Arc<Signals>,
        settings: LinkSettings,
        own: PhysAddr,
        first_link: u64,
    ) -> Self {
        let is_reaping = !settings.reaper_interval.is_zero() && !settings.expire_time.is_zero();
        Self {
            next_reap: is_reaping.then_some(Time::ZERO + settings.reaper_interval),
            settings,
            own,
            slots: Slots::new(owner, signals, first_link),
            by_peer: HashMap::new(),
            failed: HashMap::new(),
            members: None,
            unfinished: Unfinished::default(),
            dirty: Vec::new(),
            spare: BytesMut::new(),
            complaints: Complaints::default(),
            stats: EdgeStats::default(),
        }
    }

    // --- what the owner asks for ---

    /// Changes our listening address, which the rule for simultaneous connections compares.
    pub(crate) fn set_own(&mut self, own: PhysAddr) {
        self.own = own;
    }

    /// Accepts connections from now on.
    pub(crate) fn listen(&mut self, listener: TcpListener) {
        self.slots.add(State::Listening(listener), None);
    }

    /// Accepts no more. Connections stay.
    pub(crate) fn close_listeners(&mut self) {
        let is_listening =
            |(index, slot): (u32, &Slot)| matches!(slot.state, State::Listening(_)).then_some(index);
        for index in self.slots.iter().filter_map(is_listening).collect::<Vec<_>>() {
            drop(self.slots.take(index));
            self.slots.release(index);
        }
    }

    /// The table's connection to a peer, standing or being opened.
    pub(crate) fn find(&self, peer: PhysAddr) -> Option<u32> {
        self.by_peer.get(&peer).copied()
    }

    /// The slot of a link that stands or is being opened.
    pub(crate) fn slot_of(&self, link: u64) -> Option<u32> {
        self.slots.iter().find_map(|(index, slot)| match slot.state {
            State::Open(_) | State::Connecting(_) if slot.link == link => Some(index),
            _ => None,
        })
    }

    /// The link in a slot.
    pub(crate) fn link_of(&self, index: u32) -> u64 {
        self.slots.link(index)
    }

    /// Begins to open a connection, a little later if an attempt has just failed. `None` if there are too many. It begins
    /// with set-up bytes if there is an own address for them.
    pub(crate) fn connect(
        &mut self,
        now: Time,
        peer: PhysAddr,
        own: Option<PhysAddr>,
        timeout: Duration,
    ) -> Option<u32> {
        if self.slots.in_use() >= LINKS_MAX {
            self.complaints.count(now, "too_many_links", || format!("no connection to {peer}"));
            return None;
        }
        let pause = self.failed.remove(&peer).map_or(Duration::ZERO, |until| until.since(now));
        let opening = pause.is_zero().then(|| self.open(peer));
        let mut queue = SendQueue::default();
        queue.begin(own.map_or_else(Bytes::new, |own| setup::encode(self.settings.version, own)));
        let deadline = now + if opening.is_some() { timeout } else { pause };
        let attempt = Attempt { peer, timeout, opening, queue };
        let index = self.slots.add(State::Connecting(attempt), Some(deadline));
        self.by_peer.insert(peer, index);
        Some(index)
    }

    fn open(&self, peer: PhysAddr) -> Opening {
        Stream::connect(peer.socket_addr(), self.settings.options, self.settings.tls.clone())
    }

    /// Queues a frame. Returns false if it was dropped for want of room.
    pub(crate) fn push(&mut self, now: Time, index: u32, lane: Lane, frame: impl Into<OutFrame>) -> bool {
        let frame = frame.into();
        let limits = self.settings.limits;
        let Some(slot) = self.slots.get_mut(index) else { return false };
        let is_taken = match &mut slot.state {
            State::Connecting(attempt) => attempt.queue.push(lane, frame, limits),
            State::Open(connection) => {
                // A blocked socket names itself when it takes more.
                if !slot.is_dirty && !connection.framed.is_blocked() {
                    slot.is_dirty = true;
                    self.dirty.push(index);
                }
                connection.framed.queue.push(lane, frame, limits)
            }
            _ => false,
        };
        if !is_taken {
            self.stats.dropped += 1;
            self.complaints
                .count(now, "peer_queue_full", || format!("{lane:?} for a peer that does not read"));
        }
        is_taken
    }

    /// Whether more than half of the data that may wait for a peer waits.
    pub(crate) fn is_crowded(&self, peer: PhysAddr) -> bool {
        let slot = self.find(peer).and_then(|index| self.slots.get(index));
        let waiting = slot.map_or(0, |slot| match &slot.state {
            State::Connecting(attempt) => attempt.queue.data_len(),
            State::Open(connection) => connection.framed.queue.data_len(),
            _ => 0,
        });
        waiting > self.queue_bytes() / 2
    }

    /// How much data may wait for each peer.
    pub(crate) fn queue_bytes(&self) -> usize {
        self.settings.limits.data
    }

    /// Ends a connection, or an attempt to open one. Nothing more is told of it.
    pub(crate) fn close(&mut self, now: Time, index: u32, is_graceful: bool) {
        match self.slots.take(index) {
            Some(State::Open(connection)) if is_graceful => self.drain(now, index, connection, DRAIN_TIME),
            Some(State::Open(Connection { peer, .. }) | State::Connecting(Attempt { peer, .. })) => {
                self.forget(peer, index);
                self.slots.release(index);
            }
            Some(state) => self.slots.put(index, state),
            None => {}
        }
    }

    /// These peers are the members from now on; nothing if it is not known of each which peer it is.
    pub(crate) fn set_members(&mut self, members: Option<&[PhysAddr]>) {
        self.members = members.map(|members| members.iter().copied().collect());
    }

    /// Gracefully ends all connections but those to these peers. Attempts are left alone: they serve somebody who is
    /// not a member yet.
    pub(crate) fn retain(&mut self, now: Time, is_member: impl Fn(PhysAddr) -> bool) {
        let is_stranger = |(index, slot): (u32, &Slot)| match &slot.state {
            State::Open(connection) if !is_member(connection.peer) => Some(index),
            _ => None,
        };
        for index in self.slots.iter().filter_map(is_stranger).collect::<Vec<_>>() {
            self.close(now, index, true);
        }
    }

    /// Ends everything: listeners and attempts at once, connections gracefully.
    pub(crate) fn begin_close(&mut self, now: Time) {
        for index in self.slots.iter().map(|(index, _)| index).collect::<Vec<_>>() {
            match self.slots.take(index) {
                Some(State::Open(connection) | State::Draining(connection)) => {
                    self.drain(now, index, connection, CLOSE_TIME);
                }
                Some(_) => self.slots.release(index),
                None => {}
            }
        }
        self.by_peer.clear();
    }

    /// Nothing is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.in_use() == 0
    }

    /// The peers with a connection that stands.
    pub(crate) fn peers(&self) -> impl Iterator<Item = PhysAddr> {
        self.slots.iter().filter_map(|(_, slot)| match &slot.state {
            State::Open(connection) => Some(connection.peer),
            _ => None,
        })
    }

    // --- what the driver calls ---

    /// Polls the sources that have to be polled although no waker named them; returns whether there are more.
    pub(crate) fn service_again(&mut self, now: Time, sink: Sink<'_>) -> bool {
        for index in self.slots.take_again() {
            self.service(now, index, sink);
        }
        self.slots.has_again()
    }

    /// Writes what has been queued since the last time: one system call per peer, if the socket takes it all.
    pub(crate) fn flush(&mut self, now: Time, sink: Sink<'_>) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for index in dirty.drain(..) {
            let Some(slot) = self.slots.get_mut(index) else { continue };
            slot.is_dirty = false;
            match self.slots.take(index) {
                Some(State::Open(connection)) => self.write(now, index, connection, sink),
                Some(state) => self.slots.put(index, state),
                None => {}
            }
        }
        self.dirty = dirty;
    }

    /// When [`Links::handle_timeout`] wants to be called.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        let deadline = self.slots.first_deadline().map(|(at, _)| at);
        [deadline, self.next_reap, self.unfinished.next_look].into_iter().flatten().min()
    }

    /// Ends what has taken too long.
    pub(crate) fn handle_timeout(&mut self, now: Time, sink: Sink<'_>) {
        while let Some((at, index)) = self.slots.first_deadline()
            && at <= now
        {
            self.slots.set_deadline(index, None);
            self.expire(now, index, sink);
        }
        if self.next_reap.is_some_and(|at| at <= now) {
            self.next_reap = Some(now + self.settings.reaper_interval);
            self.reap(now);
        }
        self.end_slow_frames(now, sink);
    }

    fn expire(&mut self, now: Time, index: u32, sink: Sink<'_>) {
        match self.slots.take(index) {
            Some(State::Connecting(mut attempt)) if attempt.opening.is_none() => {
                attempt.opening = Some(self.open(attempt.peer));
                self.slots.set_deadline(index, Some(now + attempt.timeout));
                self.slots.put(index, State::Connecting(attempt));
                self.slots.poll_again(index);
            }
            Some(State::Connecting(attempt)) => self.fail(now, index, attempt, "timed out", sink),
            Some(State::Greeting(_) | State::Stranger(_)) => {
                self.complaints.count(now, "silent_peer", || "no set-up bytes in time".into());
                self.slots.release(index);
            }
            Some(State::Draining(_)) => self.slots.release(index),
            Some(state @ (State::Listening(_) | State::Open(_))) => {
                self.slots.put(index, state);
                self.slots.poll_again(index);
            }
            Some(State::Vacant) | None => {}
        }
    }

    fn reap(&mut self, now: Time) {
        let expire_time = self.settings.expire_time;
        let is_idle = |(index, slot): (u32, &Slot)| match &slot.state {
            State::Open(connection) if now.since(connection.used) >= expire_time => Some(index),
            _ => None,
        };
        for index in self.slots.iter().filter_map(is_idle).collect::<Vec<_>>() {
            self.stats.reaped += 1;
            self.close(now, index, true);
        }
    }

    /// Takes a connection out of the table and ends it gracefully.
    fn drain(&mut self, now: Time, index: u32, mut connection: Connection, within: Duration) {
        self.forget(connection.peer, index);
        connection.framed.end(true);
        self.slots.set_deadline(index, Some(now + within));
        self.slots.put(index, State::Draining(connection));
        self.slots.poll_again(index);
    }

    /// The peer's connection is no longer this one, if it was.
    fn forget(&mut self, peer: PhysAddr, index: u32) {
        if self.by_peer.get(&peer) == Some(&index) {
            self.by_peer.remove(&peer);
        }
    }
}
