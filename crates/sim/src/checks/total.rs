//! The guarantees of SEQUENCER (facts 20.2), and their limits.
//!
//! A *reign* begins with a view in which a member begins to lead, or after a merge goes on to, and ends with
//! the next such view. Messages sent and delivered within one reign have the order of the coordinator's
//! broadcasts. Nothing ties two reigns to each other, as in JGroups:
//!
//! * A crashed coordinator's last broadcasts have reached only some members. A sender forwards each message
//!   that it has not received back to the next coordinator, which has its own order; it forwards no message
//!   that it received back but other members did not.
//! * A former coordinator's last broadcasts arrive late among those of the new one, because of flow control
//!   and losses, when groups merge or when a member that founded a group joins another.
//!
//! For members that live to the end:
//!
//! * A sender receives back every message that it has sent.
//! * A message that was sent in the last reign, or came back to its sender in it, reaches every member that
//!   was together with sender and coordinator then. Excepted is the first message that the sender received
//!   back, if sent before: the crashed coordinator may have brought the first of its pieces to some members
//!   only.
//!
//! In every reign, a member that was there when a message was sent, and never leaves, gets no later broadcast
//! without the message.

use std::collections::{BTreeMap, BTreeSet};

use consort_group::{Address, Time, View};

use super::{Broken, before, both_together_since, sent_at};
use crate::node::{Got, Node};

pub(super) fn is_sequenced(nodes: &[Node]) -> bool {
    nodes.first().is_some_and(|node| node.is_sequenced)
}

type Reign = (Address, u64);

pub(super) struct Reigns(BTreeMap<Address, BTreeSet<u64>>);

impl Reigns {
    pub(super) fn of(nodes: &[Node]) -> Self {
        let mut begins: BTreeMap<Address, BTreeSet<u64>> = BTreeMap::new();
        for node in nodes {
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

    fn when_got(&self, node: &Node, got: &Got) -> Option<Reign> {
        let (_, view) = node.log.views.get(got.nth_view.checked_sub(1)?)?;
        self.get(view)
    }

    /// A sender must have got all of its own multicasts. Another receiver must have got those that were sent
    /// in, or came back to the sender in, the reign that both are in now, if receiver, sender and coordinator
    /// were together then.
    pub(super) fn wanted(&self, nodes: &[Node], sender: usize, receiver: &Node) -> BTreeSet<u64> {
        let (index, sender) = (sender, &nodes[sender]);
        let sent = || (1..).zip(sender.log.sent.get(&None).into_iter().flatten().copied());
        if std::ptr::eq(sender, receiver) {
            return sent().map(|(number, _)| number).collect();
        }
        let reign = |node: &Node| node.view().and_then(|view| self.get(view));
        let Some(reign) = reign(sender).filter(|own| reign(receiver).as_ref() == Some(own)) else {
            return BTreeSet::new();
        };
        let leader = nodes.iter().rfind(|node| node.address == reign.0 && node.is_alive());
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
        // A former coordinator may have broadcast the first pieces of one message.
        came_back.pop_first();
        let is_wanted = |number: &u64, at: Time| {
            at > under || (with_leader.is_some_and(|since| at > since) && came_back.contains(number))
        };
        sent().filter(|(number, at)| is_wanted(number, *at)).map(|(number, _)| number).collect()
    }
}

type Id = (usize, u64);

/// When the coordinator of this or a later reign came to a view without a former member, for which no member
/// keeps missed messages from then on.
fn left_out(nodes: &[Node], reigns: &Reigns, node: &Node, reign: &Reign) -> Option<Time> {
    let of_reign = |view: &View| reigns.get(view).as_ref() == Some(reign);
    let (_, first) = node.log.views.iter().find(|(_, view)| of_reign(view))?;
    let lacks = |view: &View| view.id().id > first.id().id && !view.contains(&node.address);
    let all = nodes.iter().flat_map(|one| one.log.views.iter().map(move |(at, view)| (one, *at, view)));
    all.filter(|(one, _, view)| lacks(view) && (of_reign(view) || one.address == reign.0))
        .map(|(_, at, _)| at)
        .min()
}

/// Sent in the reign, and received between the member's entry and its removal from the view.
fn within_reigns(nodes: &[Node], reigns: &Reigns, node: &Node) -> BTreeMap<Reign, Vec<Id>> {
    let mut stays: BTreeMap<Reign, (Time, Option<Time>)> = BTreeMap::new();
    for (at, view) in &node.log.views {
        if let Some(reign) = reigns.get(view)
            && !stays.contains_key(&reign)
        {
            let until = left_out(nodes, reigns, node, &reign);
            stays.insert(reign, (*at, until));
        }
    }
    let mut within: BTreeMap<Reign, Vec<Id>> = BTreeMap::new();
    for got in node.log.got.iter().filter(|got| got.is_multicast) {
        let Some(reign) = reigns.when_got(node, got) else { continue };
        let Some(sent) = sent_at(nodes, got) else { continue };
        // A sender that has another coordinator by then forwards to that one the messages that have not come back.
        let sender = &nodes[got.sender];
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

pub(super) fn order(nodes: &[Node]) -> Result<(), Broken> {
    let reigns = Reigns::of(nodes);
    let all: Vec<_> = nodes.iter().map(|node| (node, within_reigns(nodes, &reigns, node))).collect();
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
                    if let Some(id) = gap(nodes, &reigns, reign, ids, (*lacks, own)) {
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

/// A message that a member never got in a reign although it has a later one of that reign. A leaving member is
/// not judged, because it begins to forget before it is gone.
fn gap(
    nodes: &[Node],
    reigns: &Reigns,
    reign: &Reign,
    all: &[Id],
    (node, own): (&Node, &[Id]),
) -> Option<Id> {
    if node.is_leaving {
        return None;
    }
    let own: BTreeSet<Id> = own.iter().copied().collect();
    let got: BTreeSet<Id> =
        (node.log.got.iter()).filter(|got| got.is_multicast).map(|got| (got.sender, got.number)).collect();
    let was_there = |&(sender, number): &Id| {
        let sent = nodes[sender].log.sent.get(&None).and_then(|sent| sent.get(number as usize - 1));
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

/// Whether a multicast may arrive after later messages of its sender: between sending and arrival groups
/// merged, or the sender came under another coordinator than the receiver's. Late are also broadcasts of a
/// former coordinator, if its group has joined another after its join request had waited, and messages that
/// the coordinator has not taken from a member that its views have not reached.
pub(super) fn is_late(nodes: &[Node], node: &Node, got: &Got) -> bool {
    let Some(sent) = sent_at(nodes, got).filter(|_| got.is_multicast) else { return false };
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
    merges(node) || nodes.get(got.sender).is_some_and(is_late)
}

/// The message may have been broadcast in a later view of the sender that a member of the receiver's view led.
pub(super) fn was_member(nodes: &[Node], node: &Node, got: &Got) -> bool {
    // Time does not decide, because a member that resumes after a pause gets a message and the next view at the same moment.
    let current = got.nth_view.checked_sub(1).and_then(|nth| Some(&node.log.views.get(nth)?.1));
    let (Some(current), Some(sent)) = (current, sent_at(nodes, got)) else { return false };
    let led = |leader: &Node| {
        let views = &leader.log.views;
        views.iter().enumerate().any(|(nth, (at, view))| {
            let is_over = views.get(nth + 1).is_some_and(|(next, _)| *next < sent);
            let leads = view.coordinator() == Some(&leader.address);
            *at <= got.at && !is_over && leads && view.contains(&got.src)
        })
    };
    nodes.iter().filter(|node| current.contains(&node.address)).any(led)
}
