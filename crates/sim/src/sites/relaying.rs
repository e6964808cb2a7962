//! The ways that messages take over bridges.

use std::collections::{BTreeMap, BTreeSet};

use consort_group::{Address, BridgeSend, Time, View};

use super::Sites;
use super::members::Role;
use super::traffic::{Id, Stream};
use crate::checks::Broken;
use crate::node::Node;
use crate::world::World;

/// The site masters on a message's way: the one of its sender if it is a unicast, the one that sent it over a bridge, and the
/// one that got it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Path {
    of_sender: Option<Address>,
    from: usize,
    to: Address,
}

/// The latest message on a way.
struct Latest {
    path: Path,
    sent_at: Time,
    relayed_at: Time,
    /// The number of changes of the way before it that the views explain.
    changes: usize,
}

/// A sender's messages of a kind to a site.
type Way = (usize, bool, usize);

/// The ways of all messages, and their changes.
#[derive(Default)]
pub(super) struct Paths {
    latest: BTreeMap<Way, Latest>,
    /// The paths that messages took to a site, each by the number of the way's explained changes before it.
    taken: BTreeMap<(Id, usize), BTreeSet<usize>>,
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

    /// Returns whether these messages of a sender to the site took more than one path.
    pub(super) fn differ(&self, ids: [Id; 2], site: usize) -> bool {
        let taken: BTreeSet<usize> =
            ids.iter().filter_map(|&id| self.taken.get(&(id, site))).flatten().copied().collect();
        taken.len() > 1
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
    let path = Path { of_sender: world.app.traffic.master_of(id).cloned(), from, to };
    let sent_at = world.app.traffic.sent_at(id).unwrap_or_default();
    let before = world.app.paths.latest.get(&way);
    let mut changes = before.map_or(0, |before| before.changes);
    let broken = before.filter(|before| before.path != path).and_then(|before| {
        let is_allowed = may_change(world, id, before, &path, bridge);
        changes += usize::from(is_allowed);
        (!is_allowed).then(|| format!("{id:?} takes {path:?}, the message before it took {:?}", before.path))
    });
    let paths = &mut world.app.paths;
    paths.changes += changes - paths.latest.get(&way).map_or(0, |before| before.changes);
    paths.taken.entry((id, site)).or_default().insert(changes);
    paths.latest.insert(way, Latest { path, sent_at, relayed_at: world.now, changes });
    if let Some(what) = broken.filter(|_| paths.broken.is_none()) {
        paths.broken = Some(("a sender keeps its site master", what));
    }
}

/// A way changes with the views of those that choose it: the sender, the site master to which the sender passed the message
/// (which may be one no longer), and the one that sends it over the bridge.
fn may_change(world: &World<Sites>, id: Id, before: &Latest, path: &Path, bridge: usize) -> bool {
    let Latest { path: old, relayed_at, .. } = before;
    let now = world.now;
    let sender = &world.nodes[id.sender];
    let sent_at = world.app.traffic.sent_at(id).unwrap_or_default().min(before.sent_at);
    let lacked_master = |node: &Node, master: &Address| {
        let masters =
            |view: &View| view.members().iter().take(world.app.max_site_masters).any(|one| one == master);
        node.views_between(sent_at, now).any(|view| !masters(view))
    };
    let lacked = |node: &Node, member: &Address| {
        node.views_between(*relayed_at, now).any(|view| !view.contains(member))
    };
    let own = world.app.site_of(id.sender);
    if [old.from, path.from].iter().any(|&node| world.app.site_of(node) != own) {
        // RELAY3's multicasts go over another site while the own one has no route.
        let is_own =
            |node: &usize| matches!(world.app.roles[*node], Role::Bridge { site, .. } if site == own);
        let has_lacked = |node: usize, member: &Address| {
            world.nodes[node].views_between(sent_at, now).any(|view| !view.contains(member))
        };
        return (0..world.nodes.len())
            .filter(is_own)
            .any(|node| has_lacked(node, &old.to) || has_lacked(node, &path.to));
    }
    match (&old.of_sender, &path.of_sender) {
        (Some(former), Some(master)) if former != master => {
            lacked_master(sender, former) || lacked_master(sender, master)
        }
        (Some(master), Some(_)) if old.from != path.from => {
            let node = world.nodes.iter().find(|node| node.address == *master);
            node.is_none_or(|node| !node.is_alive() || lacked_master(node, master))
        }
        // The first site master of a view relays all multicasts.
        _ if old.from != path.from => [old.from, path.from].iter().any(|&node| {
            let node = &world.nodes[node];
            let was_first = |view: &View| view.members().first() == Some(&node.address);
            !node.is_alive() || node.views_between(*relayed_at, now).any(|view| !was_first(view))
        }),
        // A site master that was none meanwhile has a new bridge and chooses anew.
        _ => {
            let from = &world.nodes[path.from];
            lacked(&world.nodes[bridge], &old.to)
                || lacked(from, &sender.address)
                || lacked_master(from, &from.address)
        }
    }
}

/// The bridges of a site that are alive.
pub(super) fn bridges_of(world: &World<Sites>, site: usize) -> Vec<usize> {
    let is_bridge = |&node: &usize| {
        matches!(world.app.roles[node], Role::Bridge { site: own, .. } if own == site)
            && world.nodes[node].is_alive()
    };
    (0..world.nodes.len()).filter(is_bridge).collect()
}
