//! Connections between members, identified by the address in their set-up bytes.
//!
//! The transport and each layer with sockets (FD_SOCK2) have a table, with one wire format and one rule for simultaneous
//! connections. A table keeps one connection per peer. A socket is polled when its waker has named it, and unwritten bytes stay
//! queued, so that nothing blocks.

mod serve;
mod slots;
mod unfinished;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use consort_group::{PacketPriority, PhysAddr, Time, Version};
use tokio::net::TcpListener;

use self::slots::{Attempt, Connection, Slot, Slots, State};
use self::unfinished::Unfinished;
use super::queue::{OutFrame, QueueLimits, SendQueue};
use super::setup;
use super::stream::{Opening, SocketOptions, Stream};
use crate::signals::{Owner, Signals};
use crate::stats::EdgeStats;
use crate::tcp::tls::Tls;
use crate::warnings::RateLimitedWarnings;

/// The bound allows a thousand members to reconnect at once, and stops a peer that claims ever new addresses.
const LINKS_MAX: usize = 4096;

/// Bytes under way arrive meanwhile, in both directions.
const DRAIN_TIME: Duration = Duration::from_millis(1000);

/// A peer that hangs must not delay leaving.
const CLOSE_TIME: Duration = Duration::from_millis(300);

/// The pause before the next attempt needs them.
const FAILED_MAX: usize = 1024;

/// Addresses of routers, which names lead to. The names of later ones remain.
const NAMES_MAX: usize = 64;

#[derive(Clone)]
pub(crate) struct LinkSettings {
    pub(crate) version: Version,
    pub(crate) accept_any_version: bool,
    pub(crate) options: SocketOptions,
    pub(crate) setup_timeout: Duration,
    pub(crate) limits: QueueLimits,
    pub(crate) frame_len_max: usize,
    /// Zero is never.
    pub(crate) expire_time: Duration,
    pub(crate) reaper_interval: Duration,
    /// The pause follows a failed attempt.
    pub(crate) reconnect_pause: Duration,
    pub(crate) tls: Option<Tls>,
}

#[derive(Debug)]
pub(crate) enum LinkEvent {
    /// `is_current` is false while this member closes the connection.
    Frame { link: u64, peer: PhysAddr, frame: Bytes, is_current: bool },
    /// This is now the table's connection to the peer.
    Accepted { link: u64, peer: PhysAddr },
    /// This member opened the connection.
    Connected { link: u64 },
    /// An attempt failed.
    Failed { link: u64, reason: String },
    /// A connection of the table ended, not by the owner's request.
    Closed { link: u64, peer: PhysAddr, is_graceful: bool, loss: Loss },
}

/// How a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Loss {
    /// The peer's host ended the stream, as it does when a process closes its socket or dies.
    EndOfStream,
    /// An error, such as a reset, which another host can send.
    Reset,
    /// By the table, so the peer may be well.
    EndedHere,
}

pub(crate) type Sink<'a> = &'a mut dyn FnMut(LinkEvent);

pub(crate) struct Links {
    settings: LinkSettings,
    /// It is [`LINKS_MAX`] except in tests.
    links_max: usize,
    /// The listening address as peers know it.
    own: PhysAddr,
    slots: Slots,
    by_peer: HashMap<PhysAddr, u32>,
    failed: HashMap<PhysAddr, Time>,
    /// In the certificates of peers that are configured by name.
    names: HashMap<PhysAddr, Arc<str>>,
    next_reap: Option<Time>,
    /// `None` while some members' addresses are unknown.
    members: Option<HashSet<PhysAddr>>,
    unfinished: Unfinished,
    dirty: Vec<u32>,
    /// Connections that read share this buffer.
    spare: BytesMut,
    pub(crate) warnings: RateLimitedWarnings,
    pub(crate) stats: EdgeStats,
}

impl Links {
    /// Link numbers begin at `first_link`, so that tables can share a range.
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
            links_max: LINKS_MAX,
            own,
            slots: Slots::new(owner, signals, first_link),
            by_peer: HashMap::new(),
            failed: HashMap::new(),
            names: HashMap::new(),
            members: None,
            unfinished: Unfinished::default(),
            dirty: Vec::new(),
            spare: BytesMut::new(),
            warnings: RateLimitedWarnings::default(),
            stats: EdgeStats::default(),
        }
    }

    // --- calls of the owner ---

    /// The rule for simultaneous connections compares it.
    pub(crate) fn set_own(&mut self, own: PhysAddr) {
        self.own = own;
    }

    pub(crate) fn listen(&mut self, listener: TcpListener) {
        self.slots.add(State::Listening(listener), None);
    }

    pub(crate) fn close_listeners(&mut self) {
        let is_listening =
            |(index, slot): (u32, &Slot)| matches!(slot.state, State::Listening(_)).then_some(index);
        for index in self.slots.iter().filter_map(is_listening).collect::<Vec<_>>() {
            drop(self.slots.take(index));
            self.slots.release(index);
        }
    }

    /// The connection is established or being opened.
    pub(crate) fn find(&self, peer: PhysAddr) -> Option<u32> {
        self.by_peer.get(&peer).copied()
    }

    pub(crate) fn slot_of(&self, link: u64) -> Option<u32> {
        self.slots.iter().find_map(|(index, slot)| match slot.state {
            State::Open(_) | State::Connecting(_) if slot.link == link => Some(index),
            _ => None,
        })
    }

    pub(crate) fn link_of(&self, index: u32) -> u64 {
        self.slots.link(index)
    }

    /// Sets the name in the peer's certificate, if the settings have none.
    pub(crate) fn name_peer(&mut self, peer: PhysAddr, name: Arc<str>) {
        if self.names.len() >= NAMES_MAX {
            self.names.clear();
        }
        self.names.insert(peer, name);
    }

    /// A failed attempt is followed by a pause. `None` is too many sockets. Set-up bytes need `own`.
    pub(crate) fn connect(
        &mut self,
        now: Time,
        peer: PhysAddr,
        own: Option<PhysAddr>,
        timeout: Duration,
    ) -> Option<u32> {
        if self.slots.in_use() >= self.links_max {
            self.warnings.count(now, "too_many_links", || format!("no connection to {peer}"));
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
        Stream::connect(peer.socket_addr(), self.settings.options, self.tls_to(peer))
    }

    fn tls_to(&self, peer: PhysAddr) -> Option<Tls> {
        let tls = self.settings.tls.clone()?;
        Some(match self.names.get(&peer) {
            Some(name) => tls.named(name),
            None => tls,
        })
    }

    /// Returns false if a full queue dropped the frame.
    pub(crate) fn push(
        &mut self,
        now: Time,
        index: u32,
        priority: PacketPriority,
        frame: impl Into<OutFrame>,
    ) -> bool {
        let frame = frame.into();
        let limits = self.settings.limits;
        let Some(slot) = self.slots.get_mut(index) else { return false };
        let is_taken = match &mut slot.state {
            State::Connecting(attempt) => attempt.queue.push(priority, frame, limits),
            State::Open(connection) => {
                // The waker of a blocked socket names it.
                if !slot.is_dirty && !connection.framed.is_blocked() {
                    slot.is_dirty = true;
                    self.dirty.push(index);
                }
                connection.framed.queue.push(priority, frame, limits)
            }
            _ => false,
        };
        if !is_taken {
            self.stats.dropped += 1;
            self.warnings
                .count(now, "peer_queue_full", || format!("{priority:?} for a peer that does not read"));
        }
        is_taken
    }

    /// As [`Self::push`]; the limits hold for all connections together, too.
    pub(crate) fn push_in_total(&mut self, now: Time, index: u32, priority: PacketPriority, frame: OutFrame) {
        let limits = self.settings.limits;
        let limit = match priority {
            PacketPriority::Control => limits.control,
            PacketPriority::Data => limits.data,
        };
        let queued = |(_, slot): (u32, &Slot)| match &slot.state {
            State::Open(connection) => connection.framed.queue.queued_bytes(priority),
            _ => 0,
        };
        if self.slots.iter().map(queued).sum::<usize>() > limit {
            self.stats.dropped += 1;
            self.warnings
                .count(now, "router_queues_full", || format!("{priority:?} for routers that do not read"));
            return;
        }
        self.push(now, index, priority, frame);
    }

    /// Whether any peer's queue of data is half full.
    pub(crate) fn is_any_half_full(&self) -> bool {
        let data = |(_, slot): (u32, &Slot)| match &slot.state {
            State::Open(connection) => connection.framed.queue.data_len(),
            _ => 0,
        };
        self.slots.iter().map(data).sum::<usize>() > self.queue_bytes() / 2
    }

    pub(crate) fn is_half_full(&self, peer: PhysAddr) -> bool {
        let slot = self.find(peer).and_then(|index| self.slots.get(index));
        let waiting = slot.map_or(0, |slot| match &slot.state {
            State::Connecting(attempt) => attempt.queue.data_len(),
            State::Open(connection) => connection.framed.queue.data_len(),
            _ => 0,
        });
        waiting > self.queue_bytes() / 2
    }

    /// The bound is per peer.
    pub(crate) fn queue_bytes(&self) -> usize {
        self.settings.limits.data
    }

    /// Also ends an attempt; no event follows.
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

    pub(crate) fn set_members(&mut self, members: Option<&[PhysAddr]>) {
        self.members = members.map(|members| members.iter().copied().collect());
    }

    /// Attempts continue: their peers may be about to join.
    pub(crate) fn retain(&mut self, now: Time, is_member: impl Fn(PhysAddr) -> bool) {
        let is_non_member = |(index, slot): (u32, &Slot)| match &slot.state {
            State::Open(connection) if !is_member(connection.peer) => Some(index),
            _ => None,
        };
        for index in self.slots.iter().filter_map(is_non_member).collect::<Vec<_>>() {
            self.close(now, index, true);
        }
    }

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

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.in_use() == 0
    }

    pub(crate) fn peers(&self) -> impl Iterator<Item = PhysAddr> {
        self.slots.iter().filter_map(|(_, slot)| match &slot.state {
            State::Open(connection) => Some(connection.peer),
            _ => None,
        })
    }

    // --- calls of the driver ---

    #[cfg(test)]
    pub(crate) fn set_links_max(&mut self, links_max: usize) {
        self.links_max = links_max;
    }

    /// Returns whether more input is left.
    pub(crate) fn service_again(&mut self, now: Time, sink: Sink<'_>) -> bool {
        for index in self.slots.take_again() {
            self.service(now, index, sink);
        }
        self.slots.has_again()
    }

    /// A peer costs one system call if its socket takes all.
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

    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        let deadline = self.slots.first_deadline().map(|(at, _)| at);
        [deadline, self.next_reap, self.unfinished.next_poll].into_iter().flatten().min()
    }

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
            Some(State::Handshaking(_) | State::Unidentified(_)) => {
                self.warnings.count(now, "silent_peer", || "no set-up bytes in time".into());
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

    fn drain(&mut self, now: Time, index: u32, mut connection: Connection, within: Duration) {
        self.forget(connection.peer, index);
        connection.framed.end(true);
        self.slots.set_deadline(index, Some(now + within));
        self.slots.put(index, State::Draining(connection));
        self.slots.poll_again(index);
    }

    fn forget(&mut self, peer: PhysAddr, index: u32) {
        if self.by_peer.get(&peer) == Some(&index) {
            self.by_peer.remove(&peer);
        }
    }
}
