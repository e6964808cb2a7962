//! The application of a run without a cache: members send each other numbered messages.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use consort_group::{Address, Message};

use crate::message_body::{PERIOD, period};
use crate::node::Got;
use crate::world::{Application, World};

/// The members' messages while traffic is on.
#[derive(Clone, Copy, Debug)]
pub struct Traffic {
    /// The mean time between two sends of a member; zero: no member sends.
    pub interval: Duration,
    /// The part of sends that go to one member.
    pub unicasts: f64,
    /// The largest payload.
    pub size_max: usize,
}

pub(crate) struct Messages {
    traffic: Traffic,
}

pub(crate) struct NextSend {
    node: usize,
}

const HEAD: usize = 24;

fn content(sender: usize, number: u64, size: usize) -> Bytes {
    let mut bytes = BytesMut::with_capacity(size.max(HEAD));
    bytes.put_u64(number);
    bytes.put_u64(sender as u64);
    bytes.put_u64(size as u64);
    while bytes.len() < size {
        let rest = size - bytes.len();
        bytes.extend_from_slice(&period(number)[..rest.min(PERIOD)]);
    }
    bytes.freeze()
}

fn is_content(sender: usize, number: u64, bytes: &[u8]) -> bool {
    let Some((mut head, body)) = bytes.split_at_checked(HEAD) else { return false };
    let is_head = head.get_u64() == number
        && head.get_u64() == sender as u64
        && head.get_u64() == bytes.len().max(HEAD) as u64;
    is_head && body.chunks(PERIOD).all(|chunk| *chunk == period(number)[..chunk.len()])
}

impl Messages {
    pub(crate) fn new(traffic: Traffic) -> Self {
        Self { traffic }
    }

    pub(crate) fn none() -> Self {
        Self::new(Traffic { interval: Duration::ZERO, unicasts: 0.0, size_max: 0 })
    }
}

impl World<Messages> {
    pub(crate) fn stop_traffic(&mut self) -> Traffic {
        let traffic = self.app.traffic;
        self.app.traffic.interval = Duration::ZERO;
        traffic
    }

    pub(crate) fn start_traffic(&mut self, traffic: Traffic) {
        self.app.traffic = traffic;
        (0..self.nodes.len()).for_each(|node| self.plan_send(node));
    }

    fn plan_send(&mut self, node: usize) {
        if !self.app.traffic.interval.is_zero() {
            let after = self.rng.duration(Duration::ZERO, self.app.traffic.interval * 2);
            self.schedule(self.now + after, NextSend { node });
        }
    }

    fn send(&mut self, node: usize) {
        if self.app.traffic.interval.is_zero() || self.nodes[node].ended.is_some() {
            return;
        }
        self.plan_send(node);
        let one = &self.nodes[node];
        if one.is_paused || one.is_leaving || one.view().is_none() {
            return;
        }
        let members = one.view().map(|view| view.members().to_vec()).unwrap_or_default();
        let dest = if self.rng.chance(self.app.traffic.unicasts) {
            Some(members[self.rng.below(members.len() as u64) as usize].clone())
        } else {
            None
        };
        let size = HEAD + self.rng.below(self.app.traffic.size_max as u64 + 1) as usize;
        let own = self.nodes[node].clock(self.now);
        let now = self.now;
        let one = &mut self.nodes[node];
        let Some(stack) = &mut one.stack else { return };
        // An application waits when too much is queued, as the channel makes it wait.
        if stack.queued_bytes(dest.as_ref()) > 1_000_000 {
            return;
        }
        let numbers = one.log.sent.entry(dest.clone()).or_default();
        numbers.push(now);
        let bytes = content(node, numbers.len() as u64, size);
        stack.handle_send(own, Message::bytes(dest, bytes));
        self.work(node);
    }

    /// Flow control does not know members outside the sender's view, which its multicasts still reach over UDP
    /// or after a merge; messages that wait for a member that leaves the view are sent.
    fn has_counted(&self, sender: usize, receiver: usize, is_multicast: bool, number: u64) -> bool {
        let (Some(sender), receiver) = (self.nodes.get(sender), &self.nodes[receiver].address) else {
            return false;
        };
        let dest = (!is_multicast).then(|| receiver.clone());
        let sent = sender.log.sent.get(&dest).zip(usize::try_from(number).ok());
        let Some(&sent) = sent.and_then(|(sent, number)| sent.get(number.checked_sub(1)?)) else {
            return false;
        };
        sender.views_between(sent, self.now).all(|view| view.contains(receiver))
    }
}

impl Application for Messages {
    type Event = NextSend;

    /// A rate that keeps up easily, to a sixth of the rate at which all members send.
    const SLOWNESS_MAX_MICROS: u64 = 30_000;

    fn handle_event(world: &mut World<Self>, NextSend { node }: NextSend) {
        world.send(node);
    }

    fn node_started(world: &mut World<Self>, node: usize) {
        world.plan_send(node);
    }

    fn deliver(world: &mut World<Self>, node: usize, src: Address, message: &Message) {
        let (now, is_multicast) = (world.now, message.is_multicast());
        let bytes = message.payload_bytes().cloned().unwrap_or_default();
        let word = |at: usize| {
            bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_be_bytes)
        };
        let (number, sender) = (word(0), word(8) as usize);
        let is_theirs = world.nodes.get(sender).is_some_and(|sender| sender.address == src);
        let is_whole = is_theirs && is_content(sender, number, &bytes);
        world.note(&[now.0, node as u64, number, u64::from(is_multicast)]);
        let one = &mut world.nodes[node];
        let nth_view = one.log.views.len();
        let got = Got { src: src.clone(), sender, is_multicast, number, is_whole, at: now, nth_view };
        one.log.got.push(got);
        let is_counted = world.has_counted(sender, node, is_multicast, number);
        world.consume(node, src, is_multicast, message.credit, is_counted);
    }
}
