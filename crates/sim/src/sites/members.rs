//! Members of sites, and their bridges, which are members of another cluster.

use consort_group::config::StackConfig;
use consort_group::{Address, BridgeInput, Event, Rng, Uuid};

use super::{BRIDGE, Sites};
use crate::world::World;

pub(super) struct Site {
    pub(super) name: &'static str,
    pub(super) config: StackConfig,
}

/// A node is a member or its bridge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// A member of a site, with its bridge if it is site master.
    Member { site: usize, bridge: Option<usize> },
    /// The bridge of a member.
    Bridge { site: usize, owner: usize },
}

impl Sites {
    pub(super) fn site_of(&self, node: usize) -> usize {
        match self.roles[node] {
            Role::Member { site, .. } | Role::Bridge { site, .. } => site,
        }
    }

    pub(super) fn is_member(&self, node: usize) -> bool {
        matches!(self.roles.get(node), Some(Role::Member { .. }))
    }
}

pub(super) fn start_member(world: &mut World<Sites>, site: usize) -> Result<usize, String> {
    world.app.roles.push(Role::Member { site, bridge: None });
    let config = world.app.sites[site].config.clone();
    let name = world.app.sites[site].name;
    let address = (world.app.protocol == "RELAY3").then(|| {
        let uuid = Uuid::random(&mut Rng::new(world.rng.next_u64()));
        Address::of_site(uuid, name, &format!("M{}", world.nodes.len()), true)
    });
    world.start_in(name, &config, address)
}

/// The live members of all sites.
pub(super) fn members(world: &World<Sites>) -> Vec<usize> {
    (0..world.nodes.len()).filter(|&node| world.app.is_member(node) && world.nodes[node].is_alive()).collect()
}

/// The address of a member for members of other sites.
pub(super) fn site_address(world: &World<Sites>, node: usize) -> Address {
    let site = world.app.sites[world.app.site_of(node)].name;
    world.nodes[node].address.in_site(site, Some(&world.nodes[node].name))
}

/// Members of each site have one view, and its first site master has routes to all other sites.
pub(super) fn is_connected(world: &World<Sites>) -> bool {
    missing_routes(world).is_empty()
}

pub(super) fn missing_routes(world: &World<Sites>) -> String {
    let mut missing = String::new();
    let members = members(world);
    for &node in &members {
        let own = world.app.site_of(node);
        let site: Vec<usize> =
            members.iter().copied().filter(|&other| world.app.site_of(other) == own).collect();
        if !has_view_of(world, node, &site) {
            missing += &format!("{} is not in a view of {} members; ", world.nodes[node].name, site.len());
        }
        let known =
            world.nodes[node].stack.as_ref().and_then(|stack| stack.attribute(world.app.protocol, "sites"));
        let known = known.unwrap_or_default();
        for (_, other) in world.app.sites.iter().enumerate().filter(|(site, _)| *site != own) {
            if !known.split(", ").any(|known| known == other.name) {
                missing += &format!("{} does not know {}; ", world.nodes[node].name, other.name);
            }
        }
    }
    // Also each bridge has all bridges in its view.
    let is_bridge = |&node: &usize| world.nodes[node].cluster == BRIDGE && world.nodes[node].is_alive();
    let bridges: Vec<usize> = (0..world.nodes.len()).filter(is_bridge).collect();
    for &bridge in &bridges {
        if !has_view_of(world, bridge, &bridges) {
            let name = &world.nodes[bridge].name;
            missing += &format!("bridge {name} is not in a view of {}; ", bridges.len());
        }
    }
    missing
}

/// Returns whether a node's view has exactly these nodes.
fn has_view_of(world: &World<Sites>, node: usize, nodes: &[usize]) -> bool {
    world.nodes[node].view().is_some_and(|view| {
        view.len() == nodes.len() && nodes.iter().all(|&other| view.contains(&world.nodes[other].address))
    })
}

pub(super) fn open_bridge(world: &mut World<Sites>, owner: usize) {
    let site = world.app.site_of(owner);
    let name = format!("_{}", world.nodes[owner].name);
    let address = Address::random(&mut Rng::new(world.rng.next_u64()));
    let address = address.in_site(world.app.sites[site].name, Some(&name));
    let config = world.app.bridge.clone();
    let bridge = world.nodes.len();
    world.app.roles.push(Role::Bridge { site, owner });
    if let Role::Member { bridge: own, .. } = &mut world.app.roles[owner] {
        *own = Some(bridge);
    }
    // The configuration has been read before.
    let _ = world.start_in(BRIDGE, &config, Some(address));
}

pub(super) fn bridge_of(world: &World<Sites>, owner: usize) -> Option<usize> {
    match world.app.roles[owner] {
        Role::Member { bridge, .. } => bridge,
        Role::Bridge { .. } => None,
    }
}

/// The bridge's owner gets an input.
pub(super) fn input(world: &mut World<Sites>, owner: usize, input: BridgeInput) {
    let own = world.nodes[owner].clock(world.now);
    if let Some(stack) = &mut world.nodes[owner].stack {
        stack.handle_event(own, Event::FromBridge(Box::new(input)));
        world.work(owner);
    }
}

/// A member's next message, or a fault.
pub(crate) enum SiteEvent {
    Send { node: usize },
    Fault,
}
