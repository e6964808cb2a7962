//! Faults of connections, as hosts and firewalls cause them: resets, rejected and unanswered connections, and other processes
//! at the ports of members that ended. A member that lives must not be taken for dead.
//!
//! They have a generator of their own, so that they do not change the other draws of a seed.

use std::time::Duration;

use consort_group::{Outcome, PhysAddr, PortState, Rng, Token};

use crate::effects::Backlog;
use crate::node::place_of;
use crate::world::{Application, SimEvent, World};

/// The chance that a fault of connections accompanies another one.
const CHANCE: f64 = 0.4;

/// Begins a generator that the seed determines, without a draw of it.
pub(crate) fn generator(seeded: &Rng) -> Rng {
    Rng::new(seeded.clone().next_u64() ^ 0xc0_44ec_7104)
}

pub(crate) fn strike<A: Application>(world: &mut World<A>) {
    let Some(mut rng) = world.connection_rng.take() else { return };
    if rng.chance(CHANCE) {
        match rng.below(4) {
            0 => reset(world, &mut rng),
            1 => toggle_firewall(world, &mut rng),
            2 => toggle_backlog(world, &mut rng),
            _ => reuse_port(world, &mut rng),
        }
    }
    world.connection_rng = Some(rng);
}

pub(crate) fn end<A: Application>(world: &mut World<A>) {
    world.network.rejecting.clear();
    world.effects.backlogs.clear();
    world.connection_rng = None;
}

fn sides<A: Application>(world: &World<A>, rng: &mut Rng) -> Vec<bool> {
    (0..world.places()).map(|_| rng.chance(0.5)).collect()
}

/// A host between two groups resets all connections between them.
fn reset<A: Application>(world: &mut World<A>, rng: &mut Rng) {
    let inside = sides(world, rng);
    reset_between(world, &inside);
}

fn reset_between<A: Application>(world: &mut World<A>, inside: &[bool]) {
    world.note_story("connections are reset".to_owned());
    let nodes = &world.nodes;
    let is_between = |a: usize, b: usize| inside[nodes[a].place] != inside[nodes[b].place];
    let outcomes = world.effects.reset(is_between);
    world.schedule_outcomes(outcomes);
}

/// No packet passes a firewall between two groups. It answers each new connection with a refusal, and perhaps resets the old
/// ones.
fn toggle_firewall<A: Application>(world: &mut World<A>, rng: &mut Rng) {
    if !world.network.cuts.is_empty() {
        if !world.network.rejecting.is_empty() {
            world.note_story("the firewall is gone".to_owned());
            world.network.cuts.clear();
            world.network.rejecting.clear();
        }
        return;
    }
    if !A::may_part(world) {
        return;
    }
    let inside = sides(world, rng);
    world.note_story("a firewall rejects".to_owned());
    for a in 0..inside.len() {
        for b in (0..inside.len()).filter(|&b| inside[a] != inside[b]) {
            world.network.cuts.insert((a, b));
            world.network.rejecting.insert((a, b));
        }
    }
    if rng.chance(0.7) {
        reset_between(world, &inside);
    }
}

/// A live member takes no further connections: their queue is full.
fn toggle_backlog<A: Application>(world: &mut World<A>, rng: &mut Rng) {
    if !world.effects.backlogs.is_empty() {
        world.note_story("connections are accepted again".to_owned());
        return world.effects.backlogs.clear();
    }
    let alive: Vec<usize> = (0..world.nodes.len()).filter(|&node| world.nodes[node].is_alive()).collect();
    if alive.is_empty() {
        return;
    }
    let node = alive[rng.below(alive.len() as u64) as usize];
    let backlog = if rng.chance(0.5) { Backlog::Refusing } else { Backlog::Silent };
    world.note_story(format!("the queue of connections of {} is full: {backlog:?}", world.nodes[node].name));
    world.effects.backlogs.insert(node, backlog);
    if rng.chance(0.5) {
        let inside: Vec<bool> = (0..world.places()).map(|place| place == world.nodes[node].place).collect();
        reset_between(world, &inside);
    }
}

/// A process of another program listens at the port of a member that ended.
fn reuse_port<A: Application>(world: &mut World<A>, rng: &mut Rng) {
    let ended: Vec<usize> = (0..world.nodes.len()).filter(|&node| world.may_restart(node)).collect();
    if ended.is_empty() {
        return;
    }
    let node = ended[rng.below(ended.len() as u64) as usize];
    let phys = world.nodes[node].phys;
    if world.effects.strangers.insert(phys) {
        world.note_story(format!("another process takes the port of {}", world.nodes[node].name));
    }
}

impl<A: Application> World<A> {
    pub(crate) fn probe_port(&mut self, node: usize, token: Token, to: PhysAddr, timeout: Duration) {
        let own = self.nodes[node].place;
        let state = match place_of(to).filter(|place| *place < self.places()) {
            Some(place) if self.network.rejecting.contains(&(own, place)) => PortState::Refused,
            Some(place) if !self.network.connects(own, place) => PortState::Unknown,
            Some(place) => self.port_state(place, to),
            None => PortState::Unknown,
        };
        let after = if state == PortState::Unknown { timeout } else { self.network.weather.delay_max };
        self.at(self.now + after, SimEvent::Outcome { node, token, outcome: Outcome::Port(state) });
    }

    fn port_state(&self, place: usize, to: PhysAddr) -> PortState {
        if self.effects.strangers.contains(&to) {
            return PortState::Open;
        }
        let there = self.node_at(place);
        match self.effects.backlogs.get(&there) {
            Some(Backlog::Refusing) => PortState::Refused,
            Some(Backlog::Silent) => PortState::Unknown,
            None if self.effects.listens(to) => PortState::Open,
            None if self.nodes[there].is_alive() && self.nodes[there].phys == to => PortState::Open,
            None => PortState::Refused,
        }
    }
}
