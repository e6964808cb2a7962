//! Members that start again at the place of their predecessor.

use std::time::Duration;

use consort_group::Rng;

use crate::after_faults::advance;
use crate::checks;
use crate::messages::{Messages, Traffic};
use crate::stock::{Discovery, stock};
use crate::world::World;

fn pair(stack: &str, seed: u64) -> World<Messages> {
    let traffic = Traffic { interval: Duration::from_millis(20), unicasts: 0.5, size_max: 100 };
    let mut world =
        World::new(Rng::new(seed), stock(stack, &[], Discovery::Local).unwrap(), Messages::new(traffic));
    world.start().unwrap();
    advance(&mut world, Duration::from_secs(3));
    world.start().unwrap();
    world
}

fn has_one_view_and_everything(mut world: World<Messages>) {
    advance(&mut world, Duration::from_secs(10));
    world.stop_traffic();
    advance(&mut world, Duration::from_secs(10));
    let well = checks::one_view(&world.nodes).and_then(|()| checks::all(&world.nodes));
    well.unwrap_or_else(|(rule, what)| panic!("{rule}: {what}\n{}", world.story().join("\n")));
}

#[test]
fn a_member_that_is_started_again_at_once_replaces_its_predecessor() {
    for stack in ["tcp.xml", "tcp-new.xml", "udp.xml"] {
        let mut world = pair(stack, 7);
        advance(&mut world, Duration::from_secs(3));
        world.crash(1);
        world.restart(1, false).unwrap();
        assert_eq!(world.nodes[2].phys, world.nodes[1].phys);
        has_one_view_and_everything(world);
    }
}

/// The predecessor was alone: no member can take messages from the address for later ones of the predecessor.
#[test]
fn address_that_no_member_has_seen_in_a_view_can_be_used_again() {
    for stack in ["tcp.xml", "tcp-new.xml", "udp.xml"] {
        let mut world = pair(stack, 7);
        world.network.cuts.extend([(0, 1), (1, 0)]);
        advance(&mut world, Duration::from_secs(20));
        assert_eq!(world.nodes[1].view().map(consort_group::View::len), Some(1));
        assert!(world.nodes[1].log.got.len() > 100);
        world.crash(1);
        world.network.cuts.clear();
        advance(&mut world, Duration::from_secs(2));
        assert!(world.is_unknown(1));
        world.restart(1, true).unwrap();
        assert_eq!(world.nodes[2].address, world.nodes[1].address);
        has_one_view_and_everything(world);
    }
}

fn with_files(attributes: &[(&str, &str)], seed: u64) -> World<Messages> {
    let mut config = stock("tcp.xml", &[], Discovery::Own).unwrap();
    let discovery = config.protocols.iter_mut().find(|protocol| protocol.short_name() == "TCPPING");
    let discovery = discovery.expect("a discovery");
    discovery.name = "FILE_PING".to_owned();
    let position = discovery.position;
    let attributes = attributes.iter();
    discovery.attributes =
        attributes.map(|&(name, value)| (name.to_owned(), value.to_owned(), position)).collect();
    World::new(Rng::new(seed), config, Messages::none())
}

/// The file of the killed coordinator names its physical address, which is the new process's own.
#[test]
fn coordinator_found_through_files_that_is_started_again_at_once_joins_the_others_within_5_s() {
    let attributes: [&[(&str, &str)]; 3] = [
        &[],
        &[("remove_all_data_on_view_change", "true"), ("write_data_on_find", "true")],
        &[("remove_old_coords_on_view_change", "true")],
    ];
    for seed in 0..20 {
        for attributes in attributes {
            let mut world = with_files(attributes, seed);
            for _ in 0..3 {
                world.start().unwrap();
                advance(&mut world, Duration::from_secs(3));
            }
            checks::one_view(&world.nodes).unwrap();
            world.crash(0);
            advance(&mut world, Duration::from_millis(100));
            world.restart(0, false).unwrap();
            assert_eq!(world.nodes[3].phys, world.nodes[0].phys);
            advance(&mut world, Duration::from_secs(5));
            let outcome = checks::one_view(&world.nodes);
            outcome.unwrap_or_else(|(rule, what)| {
                panic!("{seed}: {rule}: {what}\n{}", world.story().join("\n"))
            });
        }
    }
}

/// No member is there when the others start, so that each would become the first.
#[test]
fn members_that_start_at_once_through_files_form_one_view_without_a_merge() {
    for seed in 0..20 {
        let mut world = with_files(&[], seed);
        for _ in 0..8 {
            world.start().unwrap();
        }
        advance(&mut world, Duration::from_secs(8));
        let outcome = checks::one_view(&world.nodes);
        outcome.unwrap_or_else(|(rule, what)| panic!("{seed}: {rule}: {what}\n{}", world.story().join("\n")));
        let is_first =
            |node: &&crate::node::Node| node.log.views.first().is_some_and(|(_, view)| view.len() == 1);
        assert_eq!(world.nodes.iter().filter(is_first).count(), 1);
    }
}
