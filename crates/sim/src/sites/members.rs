//! Members of sites, and their bridges, which are members of another cluster.

use consort_group::config::StackConfig;
use consort_group::{Address, BridgeInput, Event, Message, RelayEvent, Rng};

use super::{BRIDGE, Sites};
use crate::node::Node;
use crate::world::{Application, World};

pub(super) struct Site {
    pub(super) name: &'static str,
    pub(super) config: StackConfig,
}

/// What a node is.
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

impl World<Sites> {
    pub(super) fn start_member(&mut self, site: usize) -> Result<usize, String> {
        self.app.roles.push(Role::Member { site, bridge: None });
        let config = self.app.sites[site].config.clone();
        self.start_in(self.app.sites[site].name, &config, None)
    }

    /// The live members of all sites.
    pub(super) fn members(&self) -> Vec<usize> {
        (0..self.nodes.len())
            .filter(|&node| self.app.is_member(node) && self.nodes[node].is_alive())
            .collect()
    }

    /// The address of a member for members of other sites.
    pub(super) fn site_address(&self, node: usize) -> Address {
        let site = self.app.sites[self.app.site_of(node)].name;
        self.nodes[node].address.in_site(site, Some(&self.nodes[node].name))
    }

    /// Members of each site have one view, and its first site master has routes to all other sites.
    pub(super) fn is_connected(&self) -> bool {
        self.missing_routes().is_empty()
    }

    pub(super) fn missing_routes(&self) -> String {
        let mut missing = String::new();
        let members = self.members();
        for &node in &members {
            let own = self.app.site_of(node);
            let site: Vec<usize> =
                members.iter().copied().filter(|&other| self.app.site_of(other) == own).collect();
            let view = self.nodes[node].view();
            if view.is_none_or(|view| view.len() != site.len()) {
                missing += &format!("{} is not in a view of {} members; ", self.nodes[node].name, site.len());
            }
            let known = self.nodes[node].stack.as_ref().and_then(|stack| stack.attribute("RELAY2", "sites"));
            let known = known.unwrap_or_default();
            for (_, other) in self.app.sites.iter().enumerate().filter(|(site, _)| *site != own) {
                if !known.split(", ").any(|known| known == other.name) {
                    missing += &format!("{} does not know {}; ", self.nodes[node].name, other.name);
                }
            }
        }
        // Also each bridge has all bridges in its view.
        let is_bridge = |node: &&Node| node.cluster == BRIDGE && node.is_alive();
        let bridges = self.nodes.iter().filter(is_bridge).count();
        for bridge in self.nodes.iter().filter(is_bridge) {
            if bridge.view().is_none_or(|view| view.len() != bridges) {
                missing += &format!("bridge {} is not in a view of {bridges}; ", bridge.name);
            }
        }
        missing
    }

    fn open_bridge(&mut self, owner: usize) {
        let site = self.app.site_of(owner);
        let name = format!("_{}", self.nodes[owner].name);
        let address = Address::random(&mut Rng::new(self.rng.next_u64()));
        let address = address.in_site(self.app.sites[site].name, Some(&name));
        let config = self.app.bridge.clone();
        let bridge = self.nodes.len();
        self.app.roles.push(Role::Bridge { site, owner });
        if let Role::Member { bridge: own, .. } = &mut self.app.roles[owner] {
            *own = Some(bridge);
        }
        // The configuration has been read before.
        let _ = self.start_in(BRIDGE, &config, Some(address));
    }

    pub(super) fn bridge_of(&self, owner: usize) -> Option<usize> {
        match self.app.roles[owner] {
            Role::Member { bridge, .. } => bridge,
            Role::Bridge { .. } => None,
        }
    }

    /// The bridge's owner gets an input.
    pub(super) fn input(&mut self, owner: usize, input: BridgeInput) {
        let own = self.nodes[owner].clock(self.now);
        if let Some(stack) = &mut self.nodes[owner].stack {
            stack.handle_event(own, Event::FromBridge(Box::new(input)));
            self.work(owner);
        }
    }
}

/// A member's next message, or a fault.
pub(crate) enum SiteEvent {
    Send { node: usize },
    Fault,
}

impl Application for Sites {
    type Event = SiteEvent;

    const SLOWNESS_MAX_MICROS: u64 = 0;

    fn handle_event(world: &mut World<Self>, event: SiteEvent) {
        match event {
            SiteEvent::Send { node } => world.send_next(node),
            SiteEvent::Fault => world.strike(),
        }
    }

    fn node_added(world: &mut World<Self>, node: usize) {
        world.cut_new(node);
    }

    fn node_started(world: &mut World<Self>, node: usize) {
        world.plan_send(node);
    }

    fn deliver(world: &mut World<Self>, node: usize, src: Address, message: &Message) {
        let is_multicast = message.is_multicast();
        match world.app.roles[node] {
            Role::Bridge { owner, .. } => {
                world.consume(node, src, is_multicast, message.credit, false);
                world.input(owner, BridgeInput::Message { bridge: 0, message: message.clone() });
            }
            Role::Member { .. } => {
                world.note_delivery(node, &src, message);
                world.consume(node, src, is_multicast, message.credit, false);
            }
        }
    }

    fn deliver_view(world: &mut World<Self>, node: usize) {
        if let Role::Bridge { owner, .. } = world.app.roles[node] {
            let members = world.nodes[node].view().map(|view| view.members().to_vec()).unwrap_or_default();
            world.input(owner, BridgeInput::View { bridge: 0, members });
        }
    }

    fn relay(world: &mut World<Self>, node: usize, event: RelayEvent) {
        match event {
            RelayEvent::OpenBridges => world.open_bridge(node),
            RelayEvent::CloseBridges => {
                if let Some(bridge) = world.bridge_of(node) {
                    world.leave(bridge);
                }
            }
            RelayEvent::Send(send) => world.relay_over_bridge(node, send),
            RelayEvent::SiteUnreachable(_) => world.app.unreachable += 1,
            RelayEvent::SitesUp(_) | RelayEvent::SitesDown(_) => {}
        }
    }

    fn node_crashed(world: &mut World<Self>, node: usize) {
        if let Some(bridge) = world.bridge_of(node).filter(|&bridge| world.nodes[bridge].is_alive()) {
            world.crash(bridge);
        }
    }
}
