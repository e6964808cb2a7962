//! Bounds of incomplete frames: their bytes together, and the time for one.
//!
//! A connection whose next read would exceed them pauses, so that its peer waits as for a slow application, and no frame is lost.
//! One connection is always read, so that frames are completed one by one.

use std::collections::HashSet;
use std::time::Duration;

use consort_group::{PhysAddr, Time};
use consort_memory::{Budget, Exceeded};

use super::slots::State;
use super::{Links, Loss, Sink};
use crate::tcp::framed::{Framed, READ_LEN_MAX};

/// The bound of buffers beyond an ordinary read per connection; one frame of the greatest length may exceed it.
const UNFINISHED_BYTES_MAX: u64 = 256 * 1024 * 1024;

const NON_MEMBER_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// Joining and merging members send less.
const NON_MEMBER_FRAME_LEN_MAX: usize = 1024 * 1024;

/// A frame has this time, and its length divided by the rate below.
const FRAME_TIME_MAX: Duration = Duration::from_secs(30);
const FRAME_BYTES_PER_SECOND: usize = 64 * 1024;

/// Searches run while a frame is incomplete.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// A connection beyond the bound is tried again after this time.
pub(super) const CAPACITY_PAUSE: Duration = Duration::from_millis(20);

pub(super) struct Unfinished {
    all: Budget,
    /// A part of `all`.
    non_members: Budget,
    /// The connection is read despite the bound, until its frame is complete.
    favoured: Option<u64>,
    pub(super) next_poll: Option<Time>,
}

impl Default for Unfinished {
    fn default() -> Self {
        Self::within(UNFINISHED_BYTES_MAX)
    }
}

impl Unfinished {
    fn within(limit: u64) -> Self {
        let all = Budget::new("incomplete frames of members", limit);
        let non_members = all.child("incomplete frames of other peers", NON_MEMBER_BYTES_MAX);
        Self { all, non_members, favoured: None, next_poll: None }
    }

    pub(super) fn admit(
        &mut self,
        now: Time,
        link: u64,
        peer: PhysAddr,
        framed: &mut Framed,
        members: Option<&HashSet<PhysAddr>>,
    ) -> bool {
        framed.unfinished_since.get_or_insert(now);
        self.next_poll.get_or_insert(now + POLL_INTERVAL);
        let is_member = framed.is_ours || members.is_none_or(|members| members.contains(&peer));
        let Some(capacity) = framed.capacity_needed() else { return true };
        let is_long = framed.unfinished_len() > NON_MEMBER_FRAME_LEN_MAX;
        if !is_member && is_long && capacity > NON_MEMBER_FRAME_LEN_MAX {
            return false;
        }
        let held = framed.held.as_ref().map_or(0, |held| held.bytes());
        let more = (capacity.saturating_sub(READ_LEN_MAX) as u64).saturating_sub(held);
        if more == 0 {
            return true;
        }
        let budget = if is_member { &self.all } else { &self.non_members };
        let grown = match &mut framed.held {
            Some(held) => held.try_grow(more),
            None => budget.try_reserve(more).map(|held| framed.held = Some(held)),
        };
        match grown {
            Ok(()) => true,
            Err(Exceeded { .. }) => is_member && self.favour(link, more, framed),
        }
    }

    fn favour(&mut self, link: u64, more: u64, framed: &mut Framed) -> bool {
        if *self.favoured.get_or_insert(link) != link {
            return false;
        }
        let held = framed.held.take().map_or(0, |held| held.bytes());
        framed.held = Some(self.all.reserve_forced(held + more));
        true
    }

    /// Another connection may now be read despite the bound.
    pub(super) fn note_finished(&mut self, link: u64) {
        if self.favoured == Some(link) {
            self.favoured = None;
        }
    }
}

fn frame_timeout(framed: &Framed) -> Duration {
    FRAME_TIME_MAX + Duration::from_secs((framed.unfinished_len() / FRAME_BYTES_PER_SECOND) as u64)
}

impl Links {
    pub(super) fn end_slow_frames(&mut self, now: Time, sink: Sink<'_>) {
        if self.unfinished.next_poll.is_none_or(|at| at > now) {
            return;
        }
        let (mut slow, mut is_any, mut is_favoured_there) = (Vec::new(), false, false);
        for (index, slot) in self.slots.iter() {
            let State::Open(connection) = &slot.state else { continue };
            let Some(since) = connection.framed.unfinished_since else { continue };
            let takes = now.since(since);
            if takes > frame_timeout(&connection.framed) {
                slow.push((index, takes));
            } else {
                is_any = true;
                is_favoured_there |= self.unfinished.favoured == Some(slot.link);
            }
        }
        self.unfinished.next_poll = is_any.then_some(now + POLL_INTERVAL);
        if !is_favoured_there {
            self.unfinished.favoured = None;
        }
        for (index, takes) in slow {
            let Some(State::Open(connection)) = self.slots.take(index) else { continue };
            self.warnings.count(now, "slow_frame", || {
                let (peer, length) = (connection.peer, connection.framed.unfinished_len());
                let received = connection.framed.input.len();
                format!("{peer}: {received} of {length} bytes of a frame received in {} s", takes.as_secs())
            });
            self.close_lost(index, connection, Loss::EndedHere, sink);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;

    use bytes::BytesMut;
    use consort_group::Version;
    use consort_memory::Reservation;
    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::config::TransportConfig;
    use crate::signals::{Owner, Signals};
    use crate::tcp::edge::link_settings;
    use crate::tcp::links::LinkEvent;
    use crate::tcp::setup;

    const MIB: usize = 1024 * 1024;

    /// Each peer has sent the beginning of a frame.
    struct Table {
        links: Links,
        peers: Vec<PhysAddr>,
        clients: Vec<TcpStream>,
        outputs: Vec<BytesMut>,
        frames: usize,
        losses: Vec<Loss>,
    }

    impl Table {
        async fn with(count: u16, limit: u64, are_members: bool) -> Self {
            let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
            let at = listener.local_addr().unwrap();
            let peers: Vec<PhysAddr> =
                (0..count).map(|nth| PhysAddr { port: 10_000 + nth, ..PhysAddr::from(at) }).collect();
            let settings = link_settings(&TransportConfig::tcp(), Version::V5_5_7, None);
            let own = PhysAddr { port: 1, ..PhysAddr::from(at) };
            let mut links = Links::new(Owner::Edge, Arc::new(Signals::default()), settings, own, 0);
            links.unfinished = Unfinished::within(limit);
            links.set_members(Some(if are_members { &peers } else { &[] }));
            links.listen(listener);
            let mut clients = Vec::new();
            for peer in &peers {
                let mut client = TcpStream::connect(at).await.unwrap();
                client.write_all(&setup::encode(Version::V5_5_7, *peer)).await.unwrap();
                clients.push(client);
            }
            let outputs = vec![BytesMut::new(); peers.len()];
            Self { links, peers, clients, outputs, frames: 0, losses: Vec::new() }
        }

        fn serve(&mut self, now: Time) {
            let mut events = Vec::new();
            for index in 0..=self.peers.len() as u32 {
                self.links.service(now, index, &mut |event| events.push(event));
            }
            self.links.handle_timeout(now, &mut |event| events.push(event));
            self.losses.extend(events.iter().filter_map(|event| match event {
                LinkEvent::Closed { loss, .. } => Some(*loss),
                _ => None,
            }));
            self.frames += events.iter().filter(|event| matches!(event, LinkEvent::Frame { .. })).count();
        }

        fn connections(&self) -> impl Iterator<Item = &Framed> {
            self.links.slots.iter().filter_map(|(_, slot)| match &slot.state {
                State::Open(connection) => Some(&*connection.framed),
                _ => None,
            })
        }

        fn input_bytes(&self) -> usize {
            self.connections().map(|framed| framed.input.capacity()).sum()
        }

        fn check_reservations(&self) {
            for framed in self.connections() {
                let reserved = framed.held.as_ref().map_or(0, Reservation::bytes);
                let beyond = framed.input.capacity().saturating_sub(READ_LEN_MAX);
                assert_eq!(beyond as u64, reserved, "of a frame of {} bytes", framed.unfinished_len());
            }
        }

        fn queue(&mut self, length: usize, bytes: usize) {
            for output in &mut self.outputs {
                output.extend_from_slice(&(length as i32).to_be_bytes());
                output.resize(output.len() + bytes, 7);
            }
        }

        async fn step(&mut self, now: Time) {
            for (client, output) in self.clients.iter().zip(&mut self.outputs) {
                if let Ok(count) = client.try_write(output) {
                    let _ = output.split_to(count);
                }
            }
            tokio::task::yield_now().await;
            self.serve(now);
            self.check_reservations();
        }
    }

    #[tokio::test]
    async fn frames_of_members_hold_no_more_than_the_limit_and_one_frame_and_all_arrive() {
        const PEERS: u16 = 8;
        const LIMIT: usize = 8 * MIB;
        const LENGTH: usize = 4 * MIB;
        let mut table = Table::with(PEERS, LIMIT as u64, true).await;
        table.queue(LENGTH, LENGTH);
        let (mut now, mut most) = (Time::ZERO, 0);
        while table.frames < PEERS.into() {
            // Those that had to wait are tried again.
            now = now + CAPACITY_PAUSE;
            table.step(now).await;
            most = most.max(table.input_bytes());
        }
        let peak = table.links.unfinished.all.usage().peak as usize;
        assert!(peak <= LIMIT + LENGTH + MIB, "{peak} bytes reserved");
        assert!(most <= peak + usize::from(PEERS) * READ_LEN_MAX, "{most} bytes held");
        assert_eq!(table.links.unfinished.all.used(), 0);
    }

    #[tokio::test]
    async fn long_frame_of_a_peer_that_is_no_member_is_read_once_it_is_one() {
        let mut table = Table::with(1, UNFINISHED_BYTES_MAX, false).await;
        table.queue(4 * MIB, 4 * MIB);
        let mut now = Time::ZERO;
        for _ in 0..400 {
            now = now + CAPACITY_PAUSE;
            table.step(now).await;
        }
        assert_eq!(table.frames, 0);
        assert!(
            table.input_bytes() <= NON_MEMBER_FRAME_LEN_MAX + READ_LEN_MAX,
            "{} bytes",
            table.input_bytes()
        );
        let peers = table.peers.clone();
        table.links.set_members(Some(&peers));
        while table.frames == 0 {
            now = now + CAPACITY_PAUSE;
            table.step(now).await;
        }
    }

    #[tokio::test]
    async fn frames_of_peers_that_are_no_members_hold_no_more_than_their_limit_together() {
        const PEERS: u16 = 128;
        let mut table = Table::with(PEERS, UNFINISHED_BYTES_MAX, false).await;
        // Each of them has as much as one non-member may have, and never the last byte.
        table.queue(NON_MEMBER_FRAME_LEN_MAX, NON_MEMBER_FRAME_LEN_MAX - 1);
        let mut now = Time::ZERO;
        while table.links.unfinished.non_members.used() + MIB as u64 <= NON_MEMBER_BYTES_MAX {
            now = now + CAPACITY_PAUSE;
            table.step(now).await;
        }
        for _ in 0..50 {
            now = now + CAPACITY_PAUSE;
            table.step(now).await;
        }
        assert!(table.links.unfinished.non_members.usage().peak <= NON_MEMBER_BYTES_MAX);
        let most = NON_MEMBER_BYTES_MAX + u64::from(PEERS) * READ_LEN_MAX as u64;
        assert!(table.input_bytes() as u64 <= most, "{} bytes", table.input_bytes());
        assert_eq!(table.links.peers().count(), usize::from(PEERS), "the others wait");
        // Members do not wait for them.
        let members = table.peers[..1].to_vec();
        table.links.set_members(Some(&members));
        table.outputs[0].extend_from_slice(&[7]);
        while table.frames == 0 {
            now = now + CAPACITY_PAUSE;
            table.step(now).await;
        }
    }

    #[tokio::test]
    async fn frame_that_takes_too_long_ends_its_connection() {
        let mut table = Table::with(1, UNFINISHED_BYTES_MAX, true).await;
        table.queue(MIB, 100);
        while table.links.unfinished.next_poll.is_none() {
            table.step(Time::ZERO).await;
        }
        assert_eq!(table.links.peers().count(), 1);
        let in_time = Time::ZERO + FRAME_TIME_MAX;
        table.serve(in_time);
        assert_eq!(table.links.peers().count(), 1, "a frame of 1 MiB has 16 s more");
        table.serve(in_time + Duration::from_secs(17) + POLL_INTERVAL);
        assert_eq!(table.links.peers().count(), 0);
        assert_eq!(table.links.warnings.iter().collect::<Vec<_>>(), [("slow_frame", 1)]);
        assert_eq!(table.losses, [Loss::EndedHere], "no reason to suspect the peer");
    }
}
