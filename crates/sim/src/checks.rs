//! The rules of every run.

mod total;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use consort_group::{Address, Time, View};

use crate::node::{Got, Node};

/// A run that broke a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The seed.
    pub seed: u64,
    /// The rule.
    pub rule: &'static str,
    /// The members, the event and its time.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}: {}: {}", self.seed, self.rule, self.what)
    }
}

impl std::error::Error for Violation {}

pub(crate) type Broken = (&'static str, String);

/// No packet of an encrypted stack shows a payload.
fn secrecy(nodes: &[Node]) -> Result<(), Broken> {
    match nodes.iter().find(|node| node.readable_packets > 0) {
        Some(node) => {
            Err(("secrecy", format!("{} has sent {} readable packets", node.name, node.readable_packets)))
        }
        None => Ok(()),
    }
}

/// No live member is declared dead by a proof. Timeouts may err.
pub(crate) fn proofs(nodes: &[Node]) -> Result<(), Broken> {
    for node in nodes {
        if let Some(wrong) = node.log.proofs.iter().find(|proof| proof.is_wrong) {
            let what = format!("{} at {:?}: {} lives", node.name, wrong.at, wrong.name);
            return Err(("members proven to have crashed are dead", what));
        }
    }
    Ok(())
}

pub(crate) fn all(nodes: &[Node]) -> Result<(), Broken> {
    proofs(nodes)?;
    order(nodes)?;
    content(nodes)?;
    memory(nodes)?;
    secrecy(nodes)?;
    views(nodes)?;
    membership(nodes)?;
    if total::is_sequenced(nodes) {
        total::order(nodes)?;
    }
    completeness(nodes)
}

pub(crate) fn content(nodes: &[Node]) -> Result<(), Broken> {
    for node in nodes {
        if let Some(got) = node.log.got.iter().find(|got| !got.is_whole) {
            return Err(("messages arrive whole", format!("{} got {got:?}", node.name)));
        }
    }
    Ok(())
}

/// A slow application does not change the bound of a sender's backlog.
fn memory(nodes: &[Node]) -> Result<(), Broken> {
    for node in nodes {
        if let Some(what) = node.backlog.excess() {
            return Err(("memory is bounded", format!("{}: {what}", node.name)));
        }
    }
    Ok(())
}

pub(crate) fn order(nodes: &[Node]) -> Result<(), Broken> {
    for node in nodes {
        let mut known = BTreeSet::new();
        let mut highest: BTreeMap<(usize, bool), u64> = BTreeMap::new();
        for got in &node.log.got {
            let highest = highest.entry((got.sender, got.is_multicast)).or_default();
            let before = std::mem::replace(highest, got.number.max(*highest));
            let rule = if !known.insert((got.sender, got.is_multicast, got.number)) {
                "no duplicates"
            } else if got.number < before && !(total::is_sequenced(nodes) && total::is_late(nodes, node, got))
            {
                "order of a sender"
            } else {
                continue;
            };
            let kind = if got.is_multicast { "multicast" } else { "unicast" };
            let sender = nodes.get(got.sender);
            let (name, views) = sender.map_or(("?", String::new()), |sender| (&sender.name, history(sender)));
            let what = format!(
                "{} got {kind} {} after {before} of {name} at {:?}\n  views of {}: {}\n  views of {name}: {views}",
                node.name,
                got.number,
                got.at,
                node.name,
                history(node)
            );
            return Err((rule, what));
        }
    }
    Ok(())
}

/// A creator's view number means the same members to all, numbers rise, and every member is in its own views.
pub(crate) fn views(nodes: &[Node]) -> Result<(), Broken> {
    let mut known: BTreeMap<(u64, &Address), Vec<&View>> = BTreeMap::new();
    for node in nodes {
        let mut before = None;
        for (at, view) in &node.log.views {
            let id = view.id();
            if before.is_some_and(|before| id.id <= before) {
                return Err((
                    "view numbers rise",
                    format!("{} at {at:?}: {} after {before:?}", node.name, id.id),
                ));
            }
            before = Some(id.id);
            if !view.contains(&node.address) {
                return Err(("members are in their views", format!("{} at {at:?}: {view:?}", node.name)));
            }
            let all = known.entry((id.id, &id.creator)).or_default();
            if all.iter().all(|known| known.members() != view.members()) {
                all.push(view);
            }
            // A creator that starts again under its old address counts again from the first.
            let creators = nodes.iter().filter(|node| node.address == id.creator).count();
            if all.len() > creators {
                return Err(("views agree", format!("{} has {view:?}, others {all:?}", node.name)));
            }
        }
    }
    Ok(())
}

pub(crate) fn membership(nodes: &[Node]) -> Result<(), Broken> {
    for node in nodes {
        let mut views = node.log.views.iter().peekable();
        let mut current: Option<&View> = None;
        for got in node.log.got.iter().filter(|got| got.is_multicast) {
            while let Some((at, view)) = views.peek()
                && *at <= got.at
            {
                current = Some(view);
                views.next();
            }
            // At the very moment of a view, messages before it in the same cycle belong to the previous view.
            let is_member = current.is_some_and(|view| view.contains(&got.src))
                || node.log.views.iter().any(|(at, view)| *at == got.at && view.contains(&got.src))
                || before(node, got.at).is_some_and(|view| view.contains(&got.src))
                || (total::is_sequenced(nodes) && total::was_member(nodes, node, got));
            if !is_member {
                return Err((
                    "messages of members only",
                    format!("{} got {got:?} in {current:?}", node.name),
                ));
            }
        }
    }
    Ok(())
}

fn sent_at(nodes: &[Node], got: &Got) -> Option<Time> {
    let sender = nodes.get(got.sender)?;
    sender.log.sent.get(&None)?.get((got.number as usize).checked_sub(1)?).copied()
}

fn before(node: &Node, at: Time) -> Option<&View> {
    node.log.views.iter().rev().find(|(when, _)| *when < at).map(|(_, view)| view)
}

fn history(node: &Node) -> String {
    let views = node.log.views.iter().map(|(at, view)| {
        let kind = if view.is_merge() { "merge " } else { "" };
        format!("{at:?} {kind}{} ({})", view.id().id, view.len())
    });
    views.collect::<Vec<_>>().join(", ")
}

/// Since when a member has had another in every view, without a merge between.
fn together_since(node: &Node, other: &Address) -> Option<Time> {
    let mut since = None;
    for (at, view) in &node.log.views {
        if !view.contains(other) || view.is_merge() {
            since = None;
        }
        if view.contains(other) && since.is_none() {
            since = Some(*at);
        }
    }
    since
}

fn both_together_since(one: &Node, other: &Node) -> Option<Time> {
    Some(together_since(one, &other.address)?.max(together_since(other, &one.address)?))
}

/// Every message arrived that was sent while sender and receiver were together until the end; multicasts in
/// total order as [`total::Reigns::wanted`] defines.
pub(crate) fn completeness(nodes: &[Node]) -> Result<(), Broken> {
    let reigns = total::is_sequenced(nodes).then(|| total::Reigns::of(nodes));
    for receiver in nodes.iter().filter(|node| node.is_alive()) {
        for (index, sender) in nodes.iter().enumerate().filter(|(_, node)| node.is_alive()) {
            for dest in [None, Some(receiver.address.clone())] {
                let is_multicast = dest.is_none();
                let Some(sent) = sender.log.sent.get(&dest) else { continue };
                let together = both_together_since(receiver, sender);
                let wanted: BTreeSet<u64> = match &reigns {
                    Some(reigns) if is_multicast => reigns.wanted(nodes, index, receiver),
                    _ => (1..)
                        .zip(sent)
                        .filter(|(_, at)| together.is_some_and(|since| **at > since))
                        .map(|(number, _)| number)
                        .collect(),
                };
                let got: BTreeSet<u64> = receiver
                    .log
                    .got
                    .iter()
                    .filter(|got| got.sender == index && got.is_multicast == is_multicast)
                    .map(|got| got.number)
                    .collect();
                if let Some(missing) = wanted.difference(&got).next() {
                    let kind = if is_multicast { "multicast" } else { "unicast" };
                    return Err((
                        "everything arrives",
                        format!(
                            "{} lacks {kind} {missing} of {} (sent at {:?}, together since {together:?}; has up to \
                             {:?})\n  views of {}: {}\n  views of {}: {}",
                            receiver.name,
                            sender.name,
                            sent[*missing as usize - 1],
                            got.last(),
                            receiver.name,
                            history(receiver),
                            sender.name,
                            history(sender),
                        ),
                    ));
                }
            }
        }
    }
    Ok(())
}

pub(crate) fn is_one_view(nodes: &[Node]) -> bool {
    let alive: Vec<&Node> = nodes.iter().filter(|node| node.is_alive()).collect();
    let Some(first) = alive.first().and_then(|node| node.view()) else { return alive.is_empty() };
    first.len() == alive.len()
        && alive.iter().all(|node| {
            node.view().is_some_and(|view| view.id() == first.id()) && first.contains(&node.address)
        })
}

/// In a quiet cluster, joiners get only messages that follow their start.
pub(crate) fn no_past(nodes: &[Node], joiners: &[usize]) -> Result<(), Broken> {
    for node in joiners.iter().map(|&joiner| &nodes[joiner]) {
        for got in node.log.got.iter().filter(|got| got.is_multicast) {
            if sent_at(nodes, got).is_some_and(|at| at < node.born) {
                return Err(("joiners get the following messages", format!("{} got {got:?}", node.name)));
            }
        }
    }
    Ok(())
}

/// Layer, attribute, and its value once no member sends.
const EMPTY: &[(&str, &str, &str)] = &[
    ("UNICAST3", "num_unacked_messages", "0"),
    ("UNICAST3", "window_messages", "0"),
    ("UNICAST4", "num_unacked_messages", "0"),
    ("UNICAST4", "window_messages", "0"),
    ("NAKACK2", "size_of_all_messages_sent", "0"),
    ("NAKACK2", "window_messages", "0"),
    ("NAKACK4", "window_messages", "0"),
    ("NAKACK4", "waiting", "0"),
    ("MFC", "queued_bytes", "0"),
    ("UFC", "queued_bytes", "0"),
    ("VERIFY_SUSPECT2", "suspects", "0"),
    ("FD_ALL3", "suspected_members", "{}"),
    ("FD_SOCK", "suspects", "{}"),
    ("FD_SOCK2", "suspects", "{}"),
    ("GMS", "merge_in_progress", "false"),
    ("GMS", "pending_requests", "0"),
];

/// No message waits in any stack, every window is empty, and no member suspects a live one.
pub(crate) fn leftovers(nodes: &[Node]) -> Result<(), Broken> {
    for node in nodes.iter().filter(|node| node.is_alive()) {
        let Some(stack) = &node.stack else { continue };
        let members = node.view().map(|view| view.members().to_vec()).unwrap_or_default();
        let held = stack.queued_bytes(None)
            + members.iter().map(|member| stack.queued_bytes(Some(member))).sum::<u64>();
        if held > 0 {
            return Err(("nothing waits after faults", format!("{} holds {held} bytes", node.name)));
        }
        for (layer, name, nothing) in EMPTY {
            if let Some(value) = stack.attribute(layer, name).filter(|value| value != nothing) {
                let what = format!("{}: {layer}.{name} is {value}", node.name);
                return Err(("empty windows after faults", what));
            }
        }
    }
    Ok(())
}

/// The receiver knows of every credit that its sender has used: the bytes were consumed or wait before the
/// application, or the sender knows of the difference and would ask at once. Otherwise the sender would wait
/// for `max_block_time`.
pub(crate) fn credits(nodes: &[Node]) -> Result<(), Broken> {
    let alive: Vec<&Node> = nodes.iter().filter(|node| node.is_alive()).collect();
    for layer in ["UFC", "MFC"] {
        let of = |name: &str| -> Vec<BTreeMap<String, (u64, u64)>> {
            let text = |node: &&Node| node.stack.as_ref().and_then(|stack| stack.attribute(layer, name));
            alive.iter().map(|node| numbers(&text(node).unwrap_or_default())).collect()
        };
        let (senders, doubtful, receivers) =
            (of("credits"), of("doubtful_credits"), of("credits_of_senders"));
        for ((sender, left), doubtful) in alive.iter().zip(&senders).zip(&doubtful) {
            for (receiver, counted) in alive.iter().zip(&receivers) {
                let name = receiver.address.to_string();
                let left = left.get(&name).filter(|_| !doubtful.contains_key(&name));
                let counted = counted.get(&sender.address.to_string());
                if let (Some((left, _)), Some((counted, outstanding))) = (left, counted)
                    && left + outstanding < *counted
                {
                    let (sender, receiver) = (&sender.name, &receiver.name);
                    let what = format!(
                        "{layer}: {sender} has {left} left for {receiver}, which thinks of {counted} with \
                         {outstanding} outstanding"
                    );
                    return Err(("credits come back", what));
                }
            }
        }
    }
    Ok(())
}

fn numbers(text: &str) -> BTreeMap<String, (u64, u64)> {
    let pair = |line: &str| {
        let (name, numbers) = line.split_once(": ")?;
        let mut numbers = numbers.split(' ').map(str::parse);
        let (Some(Ok(one)), other) = (numbers.next(), numbers.next()) else { return None };
        Some((name.to_owned(), (one, other.and_then(Result::ok).unwrap_or_default())))
    };
    text.lines().filter_map(pair).collect()
}

pub(crate) fn one_view(nodes: &[Node]) -> Result<(), Broken> {
    if is_one_view(nodes) {
        return Ok(());
    }
    let views: Vec<String> = nodes
        .iter()
        .filter(|node| node.is_alive())
        .map(|node| format!("{}: {:?}", node.name, node.view().map(|view| (view.id().id, view.len()))))
        .collect();
    Err(("one view after faults", views.join(", ")))
}
