//! Faults, drawn from the seed: their kinds, times and durations.

use std::time::Duration;

use consort_group::Time;

use crate::connection_faults;
use crate::network::Weather;
use crate::world::{Application, World};

/// The rates of the slowest clock and of the fastest.
pub(crate) const SLOWEST: f64 = 0.97;
pub(crate) const FASTEST: f64 = 1.03;

/// The faults that a run may have; the seed draws each or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mix {
    /// Packets are lost, repeated, reordered.
    pub weather: bool,
    /// Links between members or groups are cut, one way or both.
    pub cuts: bool,
    /// Members crash, and others start.
    pub crashes: bool,
    /// Members that ended start again; with a new address, as in JGroups, or with the old one if no member has
    /// seen it in a view.
    pub restarts: bool,
    /// Members leave.
    pub leaves: bool,
    /// Members stop and resume.
    pub pauses: bool,
    /// Applications are slow.
    pub slowness: bool,
    /// Clocks run fast or slow.
    pub clocks: bool,
    /// Connections are reset, firewalls reject, queues of connections are full, and other processes take the ports of
    /// members that ended.
    pub connections: bool,
}

impl Mix {
    /// All faults.
    pub const ALL: Self = Self {
        weather: true,
        cuts: true,
        crashes: true,
        restarts: true,
        leaves: true,
        pauses: true,
        slowness: true,
        clocks: true,
        connections: true,
    };

    /// No faults.
    pub const NONE: Self = Self {
        weather: false,
        cuts: false,
        crashes: false,
        restarts: false,
        leaves: false,
        pauses: false,
        slowness: false,
        clocks: false,
        connections: false,
    };
}

pub(crate) struct Faults {
    mix: Mix,
    members: usize,
    until: Time,
    /// Links are also cut while others are cut.
    is_parting: bool,
}

impl Faults {
    pub(crate) fn begin<A: Application>(
        world: &mut World<A>,
        allowed: Mix,
        members: usize,
        until: Time,
    ) -> Self {
        let mut connections = connection_faults::generator(&world.rng);
        let has_connections = connections.chance(0.5) && allowed.connections;
        world.connection_rng = has_connections.then_some(connections);
        let rng = &mut world.rng;
        let mut draw = |allowed: bool, chance: f64| rng.chance(chance) && allowed;
        let mix = Mix {
            weather: draw(allowed.weather, 0.7),
            cuts: draw(allowed.cuts, 0.5),
            crashes: draw(allowed.crashes, 0.5),
            restarts: draw(allowed.restarts, 0.5),
            leaves: draw(allowed.leaves, 0.5),
            pauses: draw(allowed.pauses, 0.4),
            slowness: draw(allowed.slowness, 0.4),
            clocks: draw(allowed.clocks, 0.5),
            connections: has_connections,
        };
        if mix.weather {
            let rng = &mut world.rng;
            world.network.weather = Weather {
                delay_min: Duration::from_micros(20),
                delay_max: Duration::from_micros(rng.between(100, 20_000)),
                loss: rng.below(15) as f64 / 100.0,
                duplication: rng.below(10) as f64 / 100.0,
            };
            world.note_story(format!("{:?}", world.network.weather));
        }
        let faults = Self { mix, members, until, is_parting: false };
        if mix != Mix::NONE {
            faults.plan(world);
        }
        faults
    }

    /// Half of the faults are cuts, also before members have come together.
    pub(crate) fn parting(self) -> Self {
        Self { mix: Mix { cuts: true, ..self.mix }, is_parting: true, ..self }
    }

    pub(crate) fn begin_again<A: Application>(&mut self, world: &mut World<A>, until: Time) {
        self.until = until;
        world.is_fault_due = false;
        if self.mix != Mix::NONE {
            self.plan(world);
        }
    }

    fn plan<A: Application>(&self, world: &mut World<A>) {
        let after = world.rng.duration(Duration::from_millis(50), Duration::from_secs(3));
        if world.now + after < self.until {
            world.schedule_fault(world.now + after);
        }
    }

    fn some_node<A: Application>(world: &mut World<A>) -> Option<usize> {
        let alive: Vec<usize> = (0..world.nodes.len()).filter(|&node| world.nodes[node].is_alive()).collect();
        (!alive.is_empty()).then(|| alive[world.rng.below(alive.len() as u64) as usize])
    }

    fn alive<A: Application>(world: &World<A>) -> usize {
        world.nodes.iter().filter(|node| node.is_alive() && !node.is_leaving).count()
    }

    pub(crate) fn strike<A: Application>(&self, world: &mut World<A>) {
        self.plan(world);
        connection_faults::strike(world);
        let Some(node) = Self::some_node(world) else { return };
        let is_cut = self.is_parting && world.rng.chance(0.5);
        match if is_cut { 0 } else { world.rng.below(8) } {
            0 if self.mix.cuts => {
                if world.network.cuts.is_empty() || self.is_parting && world.rng.chance(0.6) {
                    if A::may_part(world) {
                        self.cut(world);
                    }
                } else {
                    world.note_story("all links work again".to_owned());
                    world.network.cuts.clear();
                    world.network.rejecting.clear();
                }
            }
            1 if self.mix.crashes && Self::alive(world) > 1 && A::may_crash(world) => world.crash(node),
            2 if self.mix.leaves && Self::alive(world) > 1 && A::may_leave(world, node) => world.leave(node),
            3 if (self.mix.crashes || self.mix.leaves)
                && Self::alive(world) < self.members + 2
                && world.nodes.len() < 100
                && A::may_start(world) =>
            {
                // The configuration has been read before, and can create any number of members.
                let _ = world.start();
            }
            4 if self.mix.pauses => {
                if world.nodes[node].is_paused {
                    world.resume(node);
                } else if A::may_part(world) {
                    world.pause(node);
                }
            }
            5 if self.mix.slowness => {
                let slowness = Duration::from_micros(world.rng.below(A::SLOWNESS_MAX_MICROS));
                world.nodes[node].slowness = slowness;
                world.note_story(format!("{} takes {slowness:?} for a message", world.nodes[node].name));
            }
            6 if self.mix.cuts => {
                if world.network.clogs.is_empty() {
                    world.note_story(format!("packets of {} take a second longer", world.nodes[node].name));
                    let (place, all) = (world.nodes[node].place, 0..world.places());
                    world.network.clogs.extend(all.map(|other| (place, other)));
                } else {
                    world.note_story("no link is clogged".to_owned());
                    world.network.clogs.clear();
                }
            }
            7 if self.mix.restarts => self.restart(world, node),
            _ => {}
        }
    }

    fn restart<A: Application>(&self, world: &mut World<A>, node: usize) {
        let ended: Vec<usize> = (0..world.nodes.len()).filter(|&node| world.may_restart(node)).collect();
        let has_room =
            Self::alive(world) < self.members + 2 && world.nodes.len() < 100 && A::may_start(world);
        let node = if has_room && !ended.is_empty() && world.rng.chance(0.7) {
            ended[world.rng.below(ended.len() as u64) as usize]
        } else if self.mix.crashes && world.nodes.len() < 100 && A::may_crash(world) {
            world.crash(node);
            node
        } else {
            return;
        };
        let keeps_address = world.rng.chance(0.8) && world.is_unknown(node);
        // As above: the configuration is known to be valid.
        let _ = world.restart(node, keeps_address);
    }

    pub(crate) fn clock_rate<A: Application>(&self, world: &mut World<A>) -> f64 {
        if self.mix.clocks { SLOWEST + world.rng.below(60) as f64 / 1_000.0 } else { 1.0 }
    }

    fn cut<A: Application>(&self, world: &mut World<A>) {
        let is_one_way = world.rng.chance(0.3);
        let inside: Vec<bool> = (0..world.places()).map(|_| world.rng.chance(0.5)).collect();
        let names: Vec<String> = (inside.iter().enumerate())
            .filter(|&(_, &is_inside)| is_inside)
            .map(|(place, _)| format!("M{place}"))
            .collect();
        let ways = if is_one_way { "their packets" } else { "both ways" };
        world.note_story(format!("cut: {} from the others, {ways}", names.join(" ")));
        for (a, &a_inside) in inside.iter().enumerate() {
            for (b, &b_inside) in inside.iter().enumerate() {
                if a_inside && !b_inside {
                    world.network.cuts.insert((a, b));
                    if !is_one_way {
                        world.network.cuts.insert((b, a));
                    }
                }
            }
        }
    }

    pub(crate) fn end<A: Application>(world: &mut World<A>) {
        world.note_story("the faults end".to_owned());
        connection_faults::end(world);
        world.network.cuts.clear();
        world.network.clogs.clear();
        world.network.weather = Weather::fair();
        for node in 0..world.nodes.len() {
            world.nodes[node].slowness = Duration::ZERO;
            if world.nodes[node].is_paused && world.nodes[node].is_alive() {
                world.resume(node);
            }
        }
    }
}
