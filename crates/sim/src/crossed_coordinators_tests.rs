//! Subgroups whose coordinators see each other as coordinator, so that no member leads a view of its own.

use std::time::Duration;

use bytes::BytesMut;
use consort_group::wire::{self, ViewForm};
use consort_group::{
    Address, Flags, GmsHeader, GmsKind, HeaderBody, Message, Payload, ProtocolId, Rng, Version, View, ViewId,
};

use crate::after_faults::advance;
use crate::checks;
use crate::messages::Messages;
use crate::stock::{Discovery, stock};
use crate::world::World;

/// Twice MERGE3's `max_interval` in tcp.xml.
const LIMIT: Duration = Duration::from_secs(60);

fn inject(world: &mut World<Messages>, to: usize, from: usize, view: &View) {
    let header = GmsHeader { kind: GmsKind::View, member: None, merge_id: None, merge_rejected: false };
    let payload = wire::encode_view_and_digest(Some(&ViewForm::Full(view.clone())), None);
    let mut message = Message::new(Some(world.nodes[to].address.clone()), Payload::Bytes(Some(payload)))
        .with_flags(Flags::OOB | Flags::NO_RELIABILITY)
        .with_header(ProtocolId::GMS, HeaderBody::Gms(Box::new(header)));
    message.src = Some(world.nodes[from].address.clone());
    let mut packet = BytesMut::new();
    wire::write_single(&mut packet, Version::V5_5_7, &message, &wire::encode_tp("sim"), wire::Bulk::Copied);
    let from = world.nodes[from].phys;
    world.packet(to, from, packet.freeze());
}

/// S000-86: such subgroups merge within two of MERGE3's longest intervals.
#[test]
fn coordinators_that_see_each_other_as_coordinator_merge() {
    for seed in 0..10 {
        let config = stock("tcp.xml", &[], Discovery::Local).unwrap();
        let mut world = World::new(Rng::new(seed), config, Messages::none());
        for _ in 0..4 {
            world.start().unwrap();
        }
        advance(&mut world, Duration::from_secs(100));
        checks::one_view(&world.nodes).unwrap();
        let members: Vec<Address> = world.nodes.iter().map(|node| node.address.clone()).collect();
        let of = |places: [usize; 3]| {
            let members: Vec<Address> = places.iter().map(|&place| members[place].clone()).collect();
            View::new(ViewId { creator: members[0].clone(), id: 50 }, members)
        };
        // M0 and M2 follow M1, which follows M0 itself, with M3.
        let (by_one, by_zero) = (of([1, 0, 2]), of([0, 1, 3]));
        for (to, from, view) in [(0, 1, &by_one), (2, 1, &by_one), (1, 0, &by_zero), (3, 0, &by_zero)] {
            inject(&mut world, to, from, view);
            assert_eq!(world.nodes[to].view(), Some(view), "seed {seed}");
        }
        let until = world.now + LIMIT;
        while !checks::is_one_view(&world.nodes) {
            assert!(world.step(until), "seed {seed}: {:?}", checks::one_view(&world.nodes));
        }
    }
}

#[test]
fn a_leader_does_not_wait_for_members_that_have_left_it() {
    let mut world =
        World::new(Rng::new(3), stock("tcp.xml", &[], Discovery::Local).unwrap(), Messages::none());
    for _ in 0..3 {
        world.start().unwrap();
    }
    advance(&mut world, Duration::from_secs(100));
    let by_address = |node: &usize| world.nodes[*node].address.clone();
    // The smallest of the coordinators leads, and would have to be first in its view.
    let alone = (0..3).max_by_key(by_address).unwrap();
    let apart = View::new(ViewId { creator: by_address(&alone), id: 50 }, vec![by_address(&alone)]);
    let others: Vec<usize> = (0..3).filter(|&node| node != alone).collect();
    let members: Vec<Address> = others.iter().chain([&alone]).map(by_address).collect();
    let shared = View::new(ViewId { creator: by_address(&others[0]), id: 51 }, members);
    inject(&mut world, alone, others[0], &apart);
    for (to, from) in [(0, 1), (1, 0)] {
        inject(&mut world, others[to], others[from], &shared);
        assert_eq!(world.nodes[others[to]].view(), Some(&shared));
    }
    let until = world.now + LIMIT;
    while !checks::is_one_view(&world.nodes) {
        assert!(world.step(until), "{:?}", checks::one_view(&world.nodes));
    }
    advance(&mut world, Duration::from_secs(3));
    for node in &world.nodes {
        let unconfirmed = node.stack.as_ref().and_then(|s| s.attribute("GMS", "num_unconfirmed_views"));
        assert_eq!(unconfirmed.as_deref(), Some("0"), "{}", node.name);
    }
}
