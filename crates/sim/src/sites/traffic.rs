//! The members' numbered messages: multicasts to all sites, and unicasts to site masters and to members of other sites.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use consort_group::{Address, Message, Time};

use super::Sites;
use super::members::SiteEvent;
use crate::node::Node;
use crate::world::World;

/// The mean time between two messages of a member.
const INTERVAL: Duration = Duration::from_millis(20);

/// Messages of one sender that keep their order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Stream {
    Multicasts,
    /// To the masters of a site.
    SiteMaster(usize),
    /// To a node.
    Member(usize),
}

/// A message's sender, stream and number from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Id {
    pub(super) sender: usize,
    pub(super) stream: Stream,
    pub(super) number: u64,
}

impl Id {
    fn encode(self) -> Bytes {
        let (kind, of) = match self.stream {
            Stream::Multicasts => (0, 0),
            Stream::SiteMaster(site) => (1, site),
            Stream::Member(node) => (2, node),
        };
        let mut bytes = BytesMut::with_capacity(32);
        [self.sender as u64, kind, of as u64, self.number].iter().for_each(|word| bytes.put_u64(*word));
        bytes.freeze()
    }

    pub(super) fn decode(message: &Message) -> Option<Self> {
        let bytes = message.payload_bytes()?;
        let word = |nth: usize| Some(u64::from_be_bytes(bytes.get(nth * 8..nth * 8 + 8)?.try_into().ok()?));
        let of = word(2)? as usize;
        let stream = match word(1)? {
            0 => Stream::Multicasts,
            1 => Stream::SiteMaster(of),
            _ => Stream::Member(of),
        };
        Some(Self { sender: word(0)? as usize, stream, number: word(3)? })
    }
}

#[derive(Default)]
pub(super) struct Traffic {
    is_on: bool,
    /// By sender and stream.
    sent: BTreeMap<(usize, Stream), Vec<Sent>>,
}

struct Sent {
    at: Time,
    /// The site master to which the sender's layer passed a unicast.
    master: Option<Address>,
}

impl Traffic {
    pub(super) fn sent_at(&self, id: Id) -> Option<Time> {
        self.sent_one(id).map(|sent| sent.at)
    }

    fn sent_one(&self, id: Id) -> Option<&Sent> {
        self.sent.get(&(id.sender, id.stream))?.get(id.number.checked_sub(1)? as usize)
    }

    /// Returns the sender's site master when it sent a unicast.
    pub(super) fn master_of(&self, id: Id) -> Option<&Address> {
        self.sent_one(id)?.master.as_ref()
    }

    /// Senders and streams, with the number of their messages.
    pub(super) fn streams(&self) -> impl Iterator<Item = (usize, Stream, u64)> {
        self.sent.iter().map(|(&(sender, stream), sent)| (sender, stream, sent.len() as u64))
    }
}

pub(super) fn start_traffic(world: &mut World<Sites>) {
    world.app.traffic.is_on = true;
    (0..world.nodes.len()).for_each(|node| plan_send(world, node));
}

pub(super) fn stop_traffic(world: &mut World<Sites>) {
    world.app.traffic.is_on = false;
}

pub(super) fn plan_send(world: &mut World<Sites>, node: usize) {
    if world.app.traffic.is_on && world.app.is_member(node) {
        let after = world.rng.duration(Duration::ZERO, INTERVAL * 2);
        world.schedule(world.now + after, SiteEvent::Send { node });
    }
}

pub(super) fn send_next(world: &mut World<Sites>, node: usize) {
    if !world.app.traffic.is_on || !world.nodes[node].is_alive() {
        return;
    }
    plan_send(world, node);
    let own = world.app.site_of(node);
    let others: Vec<usize> = (0..world.app.sites.len()).filter(|&site| site != own).collect();
    let site = others[world.rng.below(others.len() as u64) as usize];
    let members: Vec<usize> = super::members::members(world)
        .into_iter()
        .filter(|&other| world.app.site_of(other) == site)
        .collect();
    let stream = match world.rng.below(4) {
        0 => Stream::SiteMaster(site),
        1 if !members.is_empty() => Stream::Member(members[world.rng.below(members.len() as u64) as usize]),
        _ => Stream::Multicasts,
    };
    send(world, node, stream);
}

/// Returns the message's id if it was sent.
pub(super) fn send(world: &mut World<Sites>, node: usize, stream: Stream) -> Option<Id> {
    world.nodes[node].view()?;
    let dest = match stream {
        Stream::Multicasts => None,
        Stream::SiteMaster(site) => Some(Address::site_master(world.app.sites[site].name)),
        Stream::Member(node) => Some(super::members::site_address(world, node)),
    };
    let (now, own) = (world.now, world.nodes[node].clock(world.now));
    let master = (stream != Stream::Multicasts).then(|| own_master(world, node)).flatten();
    let stack = world.nodes[node].stack.as_mut()?;
    // An application waits when too much is queued, as the channel makes it wait.
    if stack.queued_bytes(dest.as_ref()) > 1_000_000 {
        return None;
    }
    let sent = world.app.traffic.sent.entry((node, stream)).or_default();
    sent.push(Sent { at: now, master });
    let id = Id { sender: node, stream, number: sent.len() as u64 };
    stack.handle_send(own, Message::bytes(dest, id.encode()));
    world.work(node);
    Some(id)
}

fn own_master(world: &World<Sites>, node: usize) -> Option<Address> {
    let name = world.nodes[node].stack.as_ref()?.attribute(world.app.protocol, "own_site_master")?;
    let is_named = |node: &&Node| node.address.to_string() == name;
    world.nodes.iter().find(is_named).map(|node| node.address.clone())
}

/// Each member sends to all sites, to each other site's masters and to each member there.
pub(super) fn send_to_all(world: &mut World<Sites>) -> Vec<Id> {
    let members = super::members::members(world);
    let mut ids = Vec::new();
    for &node in &members {
        let own = world.app.site_of(node);
        ids.extend(send(world, node, Stream::Multicasts));
        for site in (0..world.app.sites.len()).filter(|&site| site != own) {
            ids.extend(send(world, node, Stream::SiteMaster(site)));
        }
        let is_remote = |&other: &usize| world.app.site_of(other) != own;
        let others: Vec<usize> = members.iter().copied().filter(is_remote).collect();
        for other in others {
            ids.extend(send(world, node, Stream::Member(other)));
        }
    }
    ids
}
