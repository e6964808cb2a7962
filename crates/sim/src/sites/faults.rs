//! Faults of sites: cut bridges, crashes of site masters and of other members, and members that join.

use std::time::Duration;

use consort_group::Time;

use super::Sites;
use super::members::SiteEvent;
use crate::network::Weather;
use crate::world::World;

/// A cut between two sites.
struct Cut {
    sites: (usize, usize),
    from: Time,
    until: Option<Time>,
}

/// All cuts so far.
#[derive(Default)]
pub(super) struct Cuts {
    all: Vec<Cut>,
    end: Time,
}

impl Cuts {
    fn is_cut(&self, a: usize, b: usize) -> bool {
        let pair = (a.min(b), a.max(b));
        self.all.iter().any(|cut| cut.sites == pair && cut.until.is_none())
    }

    /// Returns whether the sites were cut within this time.
    pub(super) fn has_cut(&self, a: usize, b: usize, from: Time, until: Time) -> bool {
        let pair = (a.min(b), a.max(b));
        let overlaps = |cut: &Cut| cut.from <= until && cut.until.is_none_or(|end| end >= from);
        self.all.iter().any(|cut| cut.sites == pair && overlaps(cut))
    }
}

pub(super) fn plan_fault(world: &mut World<Sites>, end: Time) {
    world.app.cuts.end = end;
    plan_next(world);
}

fn plan_next(world: &mut World<Sites>) {
    let after = world.rng.duration(Duration::from_millis(200), Duration::from_secs(4));
    if world.now + after < world.app.cuts.end {
        world.schedule(world.now + after, SiteEvent::Fault);
    }
}

pub(super) fn strike(world: &mut World<Sites>) {
    plan_next(world);
    let sites = world.app.sites.len() as u64;
    let site = world.rng.below(sites) as usize;
    let members: Vec<usize> =
        super::members::members(world).into_iter().filter(|&node| world.app.site_of(node) == site).collect();
    match world.rng.below(6) {
        0 | 1 => {
            let other = (site + 1 + world.rng.below(sites - 1) as usize) % sites as usize;
            cut_or_heal(world, site, other);
        }
        2 if members.len() > 1 => {
            let master =
                members.iter().copied().find(|&node| super::members::bridge_of(world, node).is_some());
            master.into_iter().for_each(|node| world.crash(node));
        }
        3 if members.len() > 1 => {
            let node = members[world.rng.below(members.len() as u64) as usize];
            world.crash(node);
        }
        4 | 5 if members.len() < 6 && world.nodes.len() < 100 => {
            // The configuration has been read before.
            let _ = super::members::start_member(world, site);
        }
        _ => {}
    }
}

fn cut_or_heal(world: &mut World<Sites>, a: usize, b: usize) {
    let names = format!("{} and {}", world.app.sites[a].name, world.app.sites[b].name);
    if world.app.cuts.is_cut(a, b) {
        world.note_story(format!("the bridge between {names} works again"));
        let now = world.now;
        let pair = (a.min(b), a.max(b));
        for cut in world.app.cuts.all.iter_mut().filter(|cut| cut.sites == pair) {
            cut.until.get_or_insert(now);
        }
    } else {
        world.note_story(format!("the bridge between {names} is cut"));
        world.app.cuts.all.push(Cut { sites: (a.min(b), a.max(b)), from: world.now, until: None });
    }
    apply_cuts(world);
}

fn apply_cuts(world: &mut World<Sites>) {
    world.network.cuts.clear();
    for a in 0..world.app.sites.len() {
        for b in (0..world.app.sites.len()).filter(|&b| a != b && world.app.cuts.is_cut(a, b)) {
            for one in super::relaying::bridges_of(world, a) {
                for other in super::relaying::bridges_of(world, b) {
                    world.network.cuts.insert((world.nodes[one].place, world.nodes[other].place));
                }
            }
        }
    }
}

/// A new bridge starts while others are cut.
pub(super) fn cut_new(world: &mut World<Sites>, node: usize) {
    if !world.app.is_member(node) {
        apply_cuts(world);
    }
}

pub(super) fn end_faults(world: &mut World<Sites>) {
    world.note_story("the faults end".to_owned());
    let now = world.now;
    world.app.cuts.all.iter_mut().for_each(|cut| {
        cut.until.get_or_insert(now);
    });
    apply_cuts(world);
    world.network.weather = Weather::fair();
}
