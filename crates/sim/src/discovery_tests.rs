//! Members whose initial hosts lead to a part of the cluster.

use std::time::Duration;

use consort_group::Rng;

use crate::after_faults::advance;
use crate::checks;
use crate::messages::Messages;
use crate::node;
use crate::stock::{Change, Discovery, stock};
use crate::world::World;

/// The third member has the only address among the initial hosts.
const THIRD: &[Change] = &[("TCPPING", "initial_hosts", "10.0.0.3[7800]"), ("TCPPING", "port_range", "0")];

/// Four intervals of MERGE3: one for the first merges, and one in which the groups learn of each other's coordinator.
const LIMIT: Duration = Duration::from_secs(200);

/// None of the others knows another one before the third member starts, and then each only the third.
#[test]
fn coordinators_that_know_only_a_member_in_common_merge() {
    for (seed, count) in (0..20).flat_map(|seed| [3, 4, 6].map(|count| (seed, count))) {
        let config = stock("tcp.xml", THIRD, Discovery::Own).unwrap();
        let mut world = World::new(Rng::new(seed), config, Messages::none());
        for _ in 0..2 {
            world.start().unwrap();
        }
        advance(&mut world, Duration::from_secs(10));
        for _ in 2..count {
            world.start().unwrap();
        }
        assert_eq!(world.nodes[2].phys, node::phys(2));
        advance(&mut world, LIMIT);
        let outcome = checks::one_view(&world.nodes);
        outcome.unwrap_or_else(|(rule, what)| {
            panic!("{count} members, seed {seed}: {rule}: {what}\n{}", world.story().join("\n"))
        });
    }
}
