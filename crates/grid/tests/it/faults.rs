//! The faults of a simulated cluster, drawn from its seed: members crash, join and leave, and are partitioned for a
//! while. The faults are never so many at once that the loss of entries is allowed.

use std::time::Duration;

use consort_group::Time;

use crate::cluster::Cluster;

pub(crate) struct Faults {
    left: u64,
    next_at: Time,
    heal_at: Option<Time>,
    has_cuts: bool,
    has_joiners: bool,
}

impl Faults {
    pub(crate) fn new(cluster: &Cluster, count: u64, has_cuts: bool) -> Self {
        let next_at = cluster.now + Duration::from_millis(300);
        Self { left: count, next_at, heal_at: None, has_cuts, has_joiners: true }
    }

    /// Returns the same faults without joining members.
    pub(crate) fn without_joiners(self) -> Self {
        Self { has_joiners: false, ..self }
    }

    /// Runs the faults that are due. Returns the member that has joined, if one has.
    pub(crate) fn strike(&mut self, cluster: &mut Cluster) -> Option<usize> {
        let mut joined = None;
        if cluster.now >= self.next_at && self.left > 0 && self.heal_at.is_none() {
            self.next_at =
                cluster.now + cluster.rng.duration(Duration::from_millis(1), Duration::from_millis(900));
            self.left -= 1;
            joined = self.next(cluster);
        }
        if self.heal_at.is_some_and(|at| at <= cluster.now) {
            self.end(cluster);
        }
        joined
    }

    fn next(&mut self, cluster: &mut Cluster) -> Option<usize> {
        let alive = cluster.live_members();
        match cluster.rng.below(4) {
            // A crash during a rebalance may hit the only owner of an entry.
            0 if cluster.staying_count() > 2 && cluster.is_settled() => {
                let victim = alive[cluster.rng.below(alive.len() as u64) as usize];
                cluster.crash(victim);
                cluster.deliver_views(false);
            }
            1 if self.has_joiners => return Some(cluster.start()),
            // The last member would take the cache with it, and the next one would begin another.
            2 if cluster.staying_count() > 1 && cluster.all_have_topology() => {
                let leaver = alive[cluster.rng.below(alive.len() as u64) as usize];
                cluster.leave(leaver);
            }
            // A member without the cache's topology would begin a cache of its own in its partition.
            3 if self.has_cuts
                && cluster.staying_count() == alive.len()
                && alive.len() > 2
                && cluster.all_have_topology() =>
            {
                let mut sides = cluster.sides.clone();
                for n in alive {
                    sides[n] = u8::from(cluster.rng.chance(0.4));
                }
                cluster.cut(sides);
                let span = cluster.rng.duration(Duration::from_millis(100), Duration::from_secs(2));
                self.heal_at = Some(cluster.now + span);
            }
            _ => {}
        }
        None
    }

    /// Reunites all partitions.
    pub(crate) fn end(&mut self, cluster: &mut Cluster) {
        if self.heal_at.take().is_some() {
            cluster.heal();
        }
    }
}
