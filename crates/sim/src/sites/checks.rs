//! The rules of runs with sites.

use std::collections::{BTreeMap, BTreeSet};

use consort_group::{Address, Message, Time};

use super::Sites;
use super::traffic::{Id, Stream};
use crate::checks::Broken;
use crate::world::World;

struct Delivery {
    id: Id,
    at: Time,
    is_under_its_sender: bool,
}

/// The deliveries of each node's application.
#[derive(Default)]
pub(super) struct Deliveries(BTreeMap<usize, Vec<Delivery>>);

pub(super) fn note_delivery(world: &mut World<Sites>, node: usize, src: &Address, message: &Message) {
    let Some(id) = Id::decode(message) else { return };
    let is_remote = world.app.site_of(id.sender) != world.app.site_of(node);
    let expected = if is_remote {
        super::members::site_address(world, id.sender)
    } else {
        world.nodes[id.sender].address.clone()
    };
    let is_under_its_sender = *src == expected;
    world.note(&[world.now.0, node as u64, id.sender as u64, id.number]);
    let at = world.now;
    world.app.deliveries.0.entry(node).or_default().push(Delivery { id, at, is_under_its_sender });
}

/// Messages of a sender to a receiver keep their order and come once, unless they took different paths over the bridge,
/// because a site master was lost, or the bridge was cut.
pub(super) fn order(world: &World<Sites>) -> Result<(), Broken> {
    for (&node, all) in &world.app.deliveries.0 {
        let site = world.app.site_of(node);
        let mut highest: BTreeMap<(usize, Stream), u64> = BTreeMap::new();
        let mut known = BTreeSet::new();
        for delivery in all {
            let id = delivery.id;
            let name = &world.nodes[node].name;
            if !delivery.is_under_its_sender {
                return Err(("messages have their sender", format!("{name} got {id:?} of another one")));
            }
            let highest = highest.entry((id.sender, id.stream)).or_default();
            let latest = std::mem::replace(highest, id.number.max(*highest));
            let is_new = known.insert(id);
            if is_new && id.number > latest {
                continue;
            }
            let sent = world.app.traffic.sent_at(id).unwrap_or(Time::ZERO);
            let own = world.app.site_of(id.sender);
            if world.app.paths.differ([id, Id { number: latest, ..id }], site)
                || world.app.cuts.has_cut(own, site, sent, delivery.at)
            {
                continue;
            }
            let rule = if is_new { "order across sites" } else { "no duplicates across sites" };
            return Err((rule, format!("{name} got {id:?} after {latest} at {:?}", delivery.at)));
        }
    }
    Ok(())
}

fn has(world: &World<Sites>, node: usize, id: Id) -> bool {
    let of = world.app.deliveries.0.get(&node);
    of.is_some_and(|all| all.iter().any(|delivery| delivery.id == id))
}

/// These messages have reached all their receivers.
pub(super) fn completeness(world: &World<Sites>, ids: &[Id]) -> Result<(), Broken> {
    let members = super::members::members(world);
    for &id in ids {
        let missing: Vec<usize> = match id.stream {
            Stream::Multicasts => members.iter().copied().filter(|&node| !has(world, node, id)).collect(),
            Stream::Member(node) if has(world, node, id) => Vec::new(),
            Stream::Member(node) => vec![node],
            Stream::SiteMaster(site) => {
                let of: Vec<usize> =
                    members.iter().copied().filter(|&node| world.app.site_of(node) == site).collect();
                if of.iter().any(|&node| has(world, node, id)) { Vec::new() } else { of }
            }
        };
        if let Some(&node) = missing.first() {
            let what = format!("{} did not get {id:?}", world.nodes[node].name);
            return Err(("messages reach all sites", what));
        }
    }
    Ok(())
}

/// Without faults all messages have arrived.
pub(super) fn nothing_lost(world: &World<Sites>) -> Result<(), Broken> {
    let all: Vec<Id> = world
        .app
        .traffic
        .streams()
        .flat_map(|(sender, stream, count)| (1..=count).map(move |number| Id { sender, stream, number }))
        .collect();
    completeness(world, &all)
}
