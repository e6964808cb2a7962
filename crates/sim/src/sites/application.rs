//! The program above the stacks: it passes messages between members and bridges.

use consort_group::{Address, BridgeInput, Message, RelayEvent};

use super::Sites;
use super::members::{Role, SiteEvent};
use crate::world::{Application, World};

impl Application for Sites {
    type Event = SiteEvent;

    const SLOWNESS_MAX_MICROS: u64 = 0;

    fn handle_event(world: &mut World<Self>, event: SiteEvent) {
        match event {
            SiteEvent::Send { node } => super::traffic::send_next(world, node),
            SiteEvent::Fault => super::faults::strike(world),
        }
    }

    fn node_added(world: &mut World<Self>, node: usize) {
        super::faults::cut_new(world, node);
    }

    fn node_started(world: &mut World<Self>, node: usize) {
        super::traffic::plan_send(world, node);
    }

    fn deliver(world: &mut World<Self>, node: usize, src: Address, message: &Message) {
        let is_multicast = message.is_multicast();
        match world.app.roles[node] {
            Role::Bridge { owner, .. } => {
                world.consume(node, src, is_multicast, message.credit, false);
                super::members::input(
                    world,
                    owner,
                    BridgeInput::Message { bridge: 0, message: message.clone() },
                );
            }
            Role::Member { .. } => {
                super::checks::note_delivery(world, node, &src, message);
                world.consume(node, src, is_multicast, message.credit, false);
            }
        }
    }

    fn deliver_view(world: &mut World<Self>, node: usize) {
        if let Role::Bridge { owner, .. } = world.app.roles[node] {
            let members = world.nodes[node].view().map(|view| view.members().to_vec()).unwrap_or_default();
            super::members::input(world, owner, BridgeInput::View { bridge: 0, members });
        }
    }

    fn relay(world: &mut World<Self>, node: usize, event: RelayEvent) {
        match event {
            RelayEvent::OpenBridges => super::members::open_bridge(world, node),
            RelayEvent::CloseBridges => {
                if let Some(bridge) = super::members::bridge_of(world, node) {
                    world.leave(bridge);
                }
            }
            RelayEvent::Send(send) => super::relaying::relay_over_bridge(world, node, send),
            RelayEvent::SiteUnreachable(_) | RelayEvent::MemberUnreachable(_) => world.app.unreachable += 1,
            RelayEvent::SitesUp(_) | RelayEvent::SitesDown(_) => {}
        }
    }

    fn node_crashed(world: &mut World<Self>, node: usize) {
        if let Some(bridge) =
            super::members::bridge_of(world, node).filter(|&bridge| world.nodes[bridge].is_alive())
        {
            world.crash(bridge);
        }
    }
}
