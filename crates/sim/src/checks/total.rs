//! What SEQUENCER promises (facts 20.2), and what it does not.
//!
//! A *reign* is the time from a view in which a member begins to lead, or after a merge goes on to, until the next
//! such view. What is sent and delivered within one reign comes in one order, that of the coordinator's broadcasts, to
//! everybody who is in its views. Nothing ties two reigns to each other, as in JGroups:
//!
//! * When a coordinator crashes, its last broadcasts have reached some members and not others. Senders give what they
//!   have not seen come back to the next coordinator, in an order of its own, and nobody sends again what came back
//!   to its sender but not to everybody.
//! * When groups merge, or a member that has founded a group of its own is taken in as a joiner, a former coordinator's
//!   last broadcasts come as late as flow control and losses make them, among those of the new one.
//!
//! Nothing of that is excused in general. Of members that live to the end:
//!
//! * A sender gets back all that it has ever sent, whoever led meanwhile.
//! * What was sent in the last reign, and what its sender got back in it of what it had sent before, comes to everybody
//!   who was together with sender and coordinator then; but for the first message that the sender got back, if it was
//!   sent before: the coordinator that crashed may have brought the first of its pieces to some members only.
//!
//! And in every reign, also one that ended with a crash, nobody who was there when a message was sent gets what was
//! broadcast after it and not the message itself, as long as the receiver never leaves.

use std::collections::{BTreeMap, BTreeSet};

use consort_group::{Address, Time, View};

use super::{Broken, before, both_together_since, sent_at};
use crate::node::{Got, Node};
use crate::world::World;

/// Who leads, and the number of the view with which that began.
type Reign = (Address, u64);

/// The views with which members begin to lead.
pub(super) struct Reigns(BTreeMap<Address, BTreeSet<u64>>);

impl Reigns {
    pub(super) fn of(world: &World) -> Self {
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

    /// The reign in which a member got something.
    fn when_got(&self, node: &Node, got: &Got) -> Option<Reign> {
        let (_, view) = node.log.views.get(got.nth_view.checked_sub(1)?)?;
        self.get(view)
    }

    /// What of a sender's multicasts a receiver has to have got, both being alive.
    ///
    /// A sender gets back everything. Everybody else gets what was sent in the reign that both are in now, and what the
    /// sender has got back in it of what it had sent before, if all three, with the coordinator, were together then.
    pub(super) fn wanted(&self, world: &World, sender: usize, receiver: &Node) -> BTreeSet<u64> {
        let (index, sender) = (sender, &world.nodes[sender]);
        let sent = || (1..).zip(sender.log.sent.get(&None).into_iter().flatten().copied());
        if std::ptr::eq(sender, receiver) {
            return sent().map(|(number, _)| number).collect();
        }
        let reign = |node: &Node| node.view().and_then(|view| self.get(view));
        let Some(reign) = reign(sender).filter(|own| reign(receiver).as_ref() == Some(own)) else {
            return BTreeSet::new();
        };
        let leader = world.nodes.iter().rfind(|node| node.address == reign.0 && node.is_alive());
        let Some(together) = both_together_since(receiver, sender) else { return BTreeSet::new() };
        let with_leader = leader.and_then(|leader| {
            Some(
                both_together_since(receiver, leader)?
                    .max(both_together_since(sender, leader)?)
                    .max(together),
            )
        });
        let begin = |node: &Node| {
            let of_reign = |(_, view): &&(Time, View)| self.get(view).as_ref() == Some(&reign);
            node.log.views.iter().find(of_reign).map(|(at, _)| *at)
        };
        let (Some(one), Some(other)) = (begin(sender), begin(receiver)) else { return BTreeSet::new() };
        let under = together.max(one).max(other);
        let mut came_back: BTreeSet<u64> = (sender.log.got.iter())
            .filter(|got| got.is_multicast && got.sender == index)
            .filter(|got| self.when_got(sender, got).as_ref() == Some(&reign))
            .map(|got| got.number)
            .collect();
        // Of one message a former coordinator may have broadcast the first pieces.
        came_back.pop_first();
        let is_wanted = |number: &u64, at: Time| {
            at > under || (with_leader.is_some_and(|since| at > since) && came_back.contains(number))
        };
        sent().filter(|(number, at)| is_wanted(number, *at)).map(|(number, _)| number).collect()
    }
}

/// A multicast's sender and number.
type Id = (usize, u64);

/// When a reign, or its leader after it, came to a view that leaves a member out, if it did after the member's first: from
/// then on the member gets what it happens to hear of. Nobody keeps for it what it has missed.
fn left_out(world: &World, reigns: &Reigns, node: &Node, reign: &Reign) -> Option<Time> {
    let of_reign = |view: &View| reigns.get(view).as_ref() == Some(reign);
    let (_, first) = node.log.views.iter().find(|(_, view)| of_reign(view))?;
    let lacks = |view: &View| view.id().id > first.id().id && !view.contains(&node.address);
    let all = world.nodes.iter().flat_map(|one| one.log.views.iter().map(move |(at, view)| (one, *at, view)));
    all.filter(|(one, _, view)| lacks(view) && (of_reign(view) || one.address == reign.0))
        .map(|(_, at, _)| at)
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
        let Some(reign) = reigns.when_got(node, got) else { continue };
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

/// Two members have what both got within a reign in one order and without gaps.
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
                for (who, ids, lacks, own) in [(one, first, other, second), (other, second, one, first)] {
                    if let Some(id) = gap(world, &reigns, reign, ids, (*lacks, own)) {
                        let what = format!(
                            "{} got {id:?} (node, number) since view {}, and {} later ones only",
                            who.name, reign.1, lacks.name
                        );
                        return Err(("no gaps in a reign", what));
                    }
                }
            }
        }
    }
    Ok(())
}

/// What a member under a reign has never got although it has something that came later within it. Left out is what
/// lacks somebody who leaves: it begins to forget before it is gone.
fn gap(world: &World, reigns: &Reigns, reign: &Reign, all: &[Id], (node, own): (&Node, &[Id])) -> Option<Id> {
    if node.is_leaving {
        return None;
    }
    let own: BTreeSet<Id> = own.iter().copied().collect();
    let got: BTreeSet<Id> =
        (node.log.got.iter()).filter(|got| got.is_multicast).map(|got| (got.sender, got.number)).collect();
    let was_there = |&(sender, number): &Id| {
        let sent = world.nodes[sender].log.sent.get(&None).and_then(|sent| sent.get(number as usize - 1));
        let view = sent.and_then(|sent| before(node, *sent));
        view.and_then(|view| reigns.get(view)).as_ref() == Some(reign)
    };
    let mut missing = None;
    for id in all {
        if !got.contains(id) && was_there(id) {
            missing.get_or_insert(*id);
        } else if missing.is_some() && own.contains(id) {
            return missing;
        }
    }
    None
}

/// Whether a multicast may come after what its sender has sent later: between its sending and its arrival groups merged,
/// or the sender came under another coordinator than the receiver's. As after a merge, what a member has broadcast that led
/// itself comes late when it has been taken in as a joiner, whose request had waited. And so does what the coordinator has not
/// taken from a member that was out of its views, which have not reached that member.
pub(super) fn is_late(world: &World, node: &Node, got: &Got) -> bool {
    let Some(sent) = sent_at(world, got).filter(|_| got.is_multicast) else { return false };
    let merges =
        |node: &Node| node.log.views.iter().any(|(at, view)| view.is_merge() && (sent..=got.at).contains(at));
    let leader = got.nth_view.checked_sub(1).and_then(|nth| node.log.views.get(nth)?.1.coordinator());
    let parts = |sender: &Node| {
        sender.log.views.iter().any(|(at, view)| view.coordinator() != leader && (sent..=got.at).contains(at))
    };
    let led_itself = |sender: &Node| {
        let view = before(sender, sent);
        leader != Some(&sender.address)
            && view.is_some_and(|view| view.coordinator() == Some(&sender.address))
    };
    let misses = |sender: &Node| {
        let jumps = |pair: &[(Time, View)]| pair[1].1.id().id > pair[0].1.id().id + 1;
        sender.log.views.windows(2).any(|pair| jumps(pair) && (sent..=got.at).contains(&pair[1].0))
    };
    let is_late = |sender: &Node| merges(sender) || parts(sender) || led_itself(sender) || misses(sender);
    merges(node) || world.nodes.get(got.sender).is_some_and(is_late)
}

/// Whether somebody in the receiver's view has led a view with the sender when that sent the message, or later: it may
/// have been broadcast then.
pub(super) fn was_member(world: &World, node: &Node, got: &Got) -> bool {
    // Not by the time: who goes on after a pause is told a message and the next view at the same moment.
    let current = got.nth_view.checked_sub(1).and_then(|nth| Some(&node.log.views.get(nth)?.1));
    let (Some(current), Some(sent)) = (current, sent_at(world, got)) else { return false };
    let led = |leader: &Node| {
        let views = &leader.log.views;
        views.iter().enumerate().any(|(nth, (at, view))| {
            let is_over = views.get(nth + 1).is_some_and(|(next, _)| *next < sent);
            let leads = view.coordinator() == Some(&leader.address);
            *at <= got.at && !is_over && leads && view.contains(&got.src)
        })
    };
    world.nodes.iter().filter(|node| current.contains(&node.address)).any(led)
}
