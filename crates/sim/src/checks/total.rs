//! What SEQUENCER promises (facts 20.2), and what it does not.
//!
//! A *reign* is the time from a view in which a member begins to lead, or after a merge goes on to, until the next
//! such view. What is sent and delivered within one reign comes in one order, that of the coordinator's broadcasts, to
//! everybody who is in its views. Nothing ties two reigns to each other, as in JGroups:
//!
//! * When a coordinator crashes, its last broadcasts have reached some members and not others. Senders give what they
//!   have not seen come back to the next coordinator, in an order of its own, and nobody sends again what came back
//!   to its sender but not to everybody.
//! * When groups merge, a former coordinator's last broadcasts come as late as flow control and losses make them,
//!   among those of the new one.
//! * What a member has sent before it goes may wait for credits at the coordinator until a view without it is there.

use std::collections::{BTreeMap, BTreeSet};

use consort_group::{Address, Time, View};

use super::{Broken, before, sent_at};
use crate::node::{Got, Node};
use crate::world::World;

/// Who leads, and the number of the view with which that began.
type Reign = (Address, u64);

/// The views with which members begin to lead.
struct Reigns(BTreeMap<Address, BTreeSet<u64>>);

impl Reigns {
    fn of(world: &World) -> Self {
        let mut begins: BTreeMap<Address, BTreeSet<u64>> = BTreeMap::new();
        for node in &world.nodes {
            for pair in node.log.views.windows(2) {
                let (previous, view) = (&pair[0].1, &pair[1].1);
                if let Some(leader) = view.coordinator()
                    && (view.is_merge() || previous.coordinator() != Some(leader))
                {
                    begins.entry(leader.clone()).or_default().insert(view.id().id);
                }
            }
        }
        Self(begins)
    }

    fn get(&self, view: &View) -> Option<Reign> {
        let leader = view.coordinator()?;
        let begins = self.0.get(leader).and_then(|begins| begins.range(..=view.id().id).next_back());
        Some((leader.clone(), begins.copied().unwrap_or_default()))
    }
}

/// A multicast's sender and number.
type Id = (usize, u64);

/// When a reign came to a view that leaves a member out, if it did after the member's first: from then on the member
/// gets what it happens to hear of.
fn left_out(world: &World, reigns: &Reigns, node: &Node, reign: &Reign) -> Option<Time> {
    let of_reign = |view: &View| reigns.get(view).as_ref() == Some(reign);
    let (_, first) = node.log.views.iter().find(|(_, view)| of_reign(view))?;
    let views = world.nodes.iter().flat_map(|node| &node.log.views);
    views
        .filter(|(_, view)| of_reign(view) && view.id().id > first.id().id && !view.contains(&node.address))
        .map(|(at, _)| *at)
        .min()
}

/// What a member has got in each reign of what was sent in it, from the member's coming into it until it was left out.
fn within_reigns(world: &World, reigns: &Reigns, node: &Node) -> BTreeMap<Reign, Vec<Id>> {
    let mut stays: BTreeMap<Reign, (Time, Option<Time>)> = BTreeMap::new();
    for (at, view) in &node.log.views {
        if let Some(reign) = reigns.get(view)
            && !stays.contains_key(&reign)
        {
            let until = left_out(world, reigns, node, &reign);
            stays.insert(reign, (*at, until));
        }
    }
    let mut within: BTreeMap<Reign, Vec<Id>> = BTreeMap::new();
    for got in node.log.got.iter().filter(|got| got.is_multicast) {
        let view = got.nth_view.checked_sub(1).and_then(|nth| node.log.views.get(nth));
        let Some(reign) = view.and_then(|(_, view)| reigns.get(view)) else { continue };
        let Some(sent) = sent_at(world, got) else { continue };
        // A sender that has another coordinator by then gives it what has not come back.
        let sender = &world.nodes[got.sender];
        let is_with_us = [before(sender, sent), before(sender, got.at)]
            .iter()
            .all(|view| view.and_then(|view| reigns.get(view)).as_ref() == Some(&reign));
        let is_within = stays
            .get(&reign)
            .is_some_and(|(since, until)| *since < sent && until.is_none_or(|until| got.at < until));
        if is_with_us && is_within {
            within.entry(reign).or_default().push((got.sender, got.number));
        }
    }
    within
}

/// Two members have what both got within a reign in one order.
pub(super) fn order(world: &World) -> Result<(), Broken> {
    let reigns = Reigns::of(world);
    let all: Vec<_> = world.nodes.iter().map(|node| (node, within_reigns(world, &reigns, node))).collect();
    for (nth, (one, ones)) in all.iter().enumerate() {
        for (other, others) in &all[nth + 1..] {
            for (reign, first) in ones {
                let Some(second) = others.get(reign) else { continue };
                let places: BTreeMap<Id, usize> =
                    first.iter().enumerate().map(|(place, id)| (*id, place)).collect();
                let common: Vec<(usize, Id)> =
                    second.iter().filter_map(|id| Some((*places.get(id)?, *id))).collect();
                if let Some(pair) = common.windows(2).find(|pair| pair[0].0 > pair[1].0) {
                    let what = format!(
                        "{} got {:?} before {:?} (node, number) and {} after it, since view {}",
                        other.name, pair[0].1, pair[1].1, one.name, reign.1
                    );
                    return Err(("one order", what));
                }
            }
        }
    }
    Ok(())
}

/// Whether a multicast may come after what its sender has sent later: between its sending and its arrival groups merged,
/// or the sender came under another coordinator than the receiver's.
pub(super) fn is_late(world: &World, node: &Node, got: &Got) -> bool {
    let Some(sent) = sent_at(world, got).filter(|_| got.is_multicast) else { return false };
    let merges =
        |node: &Node| node.log.views.iter().any(|(at, view)| view.is_merge() && (sent..=got.at).contains(at));
    let leader = got.nth_view.checked_sub(1).and_then(|nth| node.log.views.get(nth)?.1.coordinator());
    let parts = |sender: &Node| {
        sender.log.views.iter().any(|(at, view)| view.coordinator() != leader && (sent..=got.at).contains(at))
    };
    merges(node) || world.nodes.get(got.sender).is_some_and(|sender| merges(sender) || parts(sender))
}

/// Whether the sender has been in a view of somebody who is in the receiver's.
pub(super) fn was_member(world: &World, node: &Node, got: &Got) -> bool {
    let Some(current) = node.log.views.iter().rev().find(|(at, _)| *at <= got.at).map(|(_, view)| view)
    else {
        return false;
    };
    let had = |node: &Node| node.log.views.iter().any(|(at, view)| *at <= got.at && view.contains(&got.src));
    world.nodes.iter().filter(|node| current.contains(&node.address)).any(had)
}
