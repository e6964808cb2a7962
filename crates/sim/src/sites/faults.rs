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

impl World<Sites> {
    pub(super) fn plan_fault(&mut self, end: Time) {
        self.app.cuts.end = end;
        self.plan_next();
    }

    fn plan_next(&mut self) {
        let after = self.rng.duration(Duration::from_millis(200), Duration::from_secs(4));
        if self.now + after < self.app.cuts.end {
            self.schedule(self.now + after, SiteEvent::Fault);
        }
    }

    pub(super) fn strike(&mut self) {
        self.plan_next();
        let sites = self.app.sites.len() as u64;
        let site = self.rng.below(sites) as usize;
        let members: Vec<usize> =
            self.members().into_iter().filter(|&node| self.app.site_of(node) == site).collect();
        match self.rng.below(6) {
            0 | 1 => {
                let other = (site + 1 + self.rng.below(sites - 1) as usize) % sites as usize;
                self.cut_or_heal(site, other);
            }
            2 if members.len() > 1 => {
                let master = members.iter().copied().find(|&node| self.bridge_of(node).is_some());
                master.into_iter().for_each(|node| self.crash(node));
            }
            3 if members.len() > 1 => {
                let node = members[self.rng.below(members.len() as u64) as usize];
                self.crash(node);
            }
            4 | 5 if members.len() < 6 && self.nodes.len() < 100 => {
                // The configuration has been read before.
                let _ = self.start_member(site);
            }
            _ => {}
        }
    }

    fn cut_or_heal(&mut self, a: usize, b: usize) {
        let names = format!("{} and {}", self.app.sites[a].name, self.app.sites[b].name);
        if self.app.cuts.is_cut(a, b) {
            self.note_story(format!("the bridge between {names} works again"));
            let now = self.now;
            let pair = (a.min(b), a.max(b));
            for cut in self.app.cuts.all.iter_mut().filter(|cut| cut.sites == pair) {
                cut.until.get_or_insert(now);
            }
        } else {
            self.note_story(format!("the bridge between {names} is cut"));
            self.app.cuts.all.push(Cut { sites: (a.min(b), a.max(b)), from: self.now, until: None });
        }
        self.apply_cuts();
    }

    fn apply_cuts(&mut self) {
        self.network.cuts.clear();
        for a in 0..self.app.sites.len() {
            for b in (0..self.app.sites.len()).filter(|&b| a != b && self.app.cuts.is_cut(a, b)) {
                for one in self.bridges_of(a) {
                    for other in self.bridges_of(b) {
                        self.network.cuts.insert((self.nodes[one].place, self.nodes[other].place));
                    }
                }
            }
        }
    }

    /// A new bridge starts while others are cut.
    pub(super) fn cut_new(&mut self, node: usize) {
        if !self.app.is_member(node) {
            self.apply_cuts();
        }
    }

    pub(super) fn end_faults(&mut self) {
        self.note_story("the faults end".to_owned());
        let now = self.now;
        self.app.cuts.all.iter_mut().for_each(|cut| {
            cut.until.get_or_insert(now);
        });
        self.apply_cuts();
        self.network.weather = Weather::fair();
    }
}
