//! The ways that messages take over bridges.

use std::collections::BTreeMap;

use consort_group::{Address, BridgeSend};

use super::Sites;
use super::members::Role;
use super::traffic::{Id, Stream};
use crate::checks::Broken;
use crate::world::World;

/// The site master that sent a message over a bridge, and the one that got it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Path {
    from: usize,
    to: Address,
}

/// A sender's messages of a kind to a site.
type Way = (usize, bool, usize);

/// The ways of all messages, and their changes.
#[derive(Default)]
pub(super) struct Paths {
    current: BTreeMap<Way, Path>,
    /// The numbers of the first messages on a new path, by stream and destination site.
    changed: BTreeMap<(usize, Stream, usize), Vec<u64>>,
    broken: Option<Broken>,
    changes: usize,
}

impl Paths {
    pub(super) const fn changes(&self) -> usize {
        self.changes
    }

    pub(super) fn broken(&self) -> Option<Broken> {
        self.broken.clone()
    }

    /// Returns whether the sender's way to the site changed between two of its messages.
    pub(super) fn has_changed(&self, id: Id, site: usize, latest: u64) -> bool {
        let changed = self.changed.get(&(id.sender, id.stream, site));
        changed.is_some_and(|all| all.iter().any(|&at| (id.number..=latest).contains(&at)))
    }
}

pub(super) fn relay_over_bridge(world: &mut World<Sites>, node: usize, mut send: BridgeSend) {
    if let Some(credit) = send.credit.take() {
        world.consume(node, credit.src, credit.is_multicast, credit.bytes as u32, false);
    }
    let Some(bridge) = super::members::bridge_of(world, node) else { return };
    world.app.relayed += 1;
    note_path(world, node, bridge, &send);
    let own = world.nodes[bridge].clock(world.now);
    if let Some(stack) = &mut world.nodes[bridge].stack {
        stack.handle_send(own, send.message);
        world.work(bridge);
    }
}

fn note_path(world: &mut World<Sites>, from: usize, bridge: usize, send: &BridgeSend) {
    let (Some(id), Some(to)) = (Id::decode(&send.message), send.message.dest.clone()) else { return };
    let Some(site) = world.app.sites.iter().position(|site| Some(site.name) == to.site()) else { return };
    let way = (id.sender, id.stream == Stream::Multicasts, site);
    let path = Path { from, to };
    let Some(before) = world.app.paths.current.insert(way, path.clone()) else { return };
    if before == path {
        return;
    }
    world.app.paths.changes += 1;
    let is_allowed = if before.from == from {
        let view = world.nodes[bridge].view();
        view.is_none_or(|view| !view.contains(&before.to))
    } else {
        // The former site master's routes were its own.
        !is_master_of(world, before.from, id, from)
    };
    if is_allowed {
        // Streams of unicasts to the site share the way.
        let sent: Vec<(Stream, u64)> = world
            .app
            .traffic
            .streams()
            .filter(|(sender, stream, _)| *sender == id.sender && (*stream == Stream::Multicasts) == way.1)
            .map(|(_, stream, number)| (stream, number))
            .collect();
        for (stream, number) in sent {
            let number = if stream == id.stream { id.number } else { number };
            world.app.paths.changed.entry((id.sender, stream, site)).or_default().push(number);
        }
    } else if world.app.paths.broken.is_none() {
        let what = format!(
            "{id:?} goes from {} to {}, the message before it from {} to {}, which is still there",
            world.nodes[from].name, path.to, world.nodes[before.from].name, before.to
        );
        world.app.paths.broken = Some(("a sender keeps its site master", what));
    }
}

/// Returns whether a message may still go over this site master: one of those that its sender knows, or the first one
/// that the relaying node knows for multicasts. A merge may give a site another first member.
fn is_master_of(world: &World<Sites>, master: usize, id: Id, node: usize) -> bool {
    let is_multicast = id.stream == Stream::Multicasts;
    let of = if is_multicast { [node, node] } else { [id.sender, node] };
    let stack = of.into_iter().find_map(|node| world.nodes[node].stack.as_ref());
    let masters = stack.and_then(|stack| stack.attribute("RELAY2", "site_masters")).unwrap_or_default();
    let count = if is_multicast { 1 } else { usize::MAX };
    let address = world.nodes[master].address.to_string();
    world.nodes[master].is_alive() && masters.split(", ").take(count).any(|known| known == address)
}

/// The bridges of a site that are alive.
pub(super) fn bridges_of(world: &World<Sites>, site: usize) -> Vec<usize> {
    let is_bridge = |&node: &usize| {
        matches!(world.app.roles[node], Role::Bridge { site: own, .. } if own == site)
            && world.nodes[node].is_alive()
    };
    (0..world.nodes.len()).filter(is_bridge).collect()
}
