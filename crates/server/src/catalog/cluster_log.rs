//! The log of cluster events: one line for an event of many caches.

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use consort_cache::{Availability, CacheManager, ManagerEvent, Phase, Topology, View};
use futures_core::Stream;
use tokio::time::Instant;

use crate::catalog::caches::Caches;
use crate::names::is_internal;

/// There may be a thousand caches.
const NAMES_MAX: usize = 8;

#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct State {
    away: BTreeSet<String>,
    is_moving: bool,
}

impl State {
    fn of(topology: &Topology, manager: &CacheManager) -> Self {
        let away = match &topology.availability {
            Availability::Available => BTreeSet::new(),
            Availability::Degraded { away } => {
                away.iter().map(|one| manager.member(one).to_string()).collect()
            }
        };
        let is_moving = matches!(topology.phase, Phase::ReadOldWriteAll | Phase::ReadNewWriteAll);
        Self { away, is_moving }
    }
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Change {
    Degraded(BTreeSet<String>),
    Available,
    Moves,
    HasMoved,
}

#[derive(Default)]
struct CacheHistory {
    state: State,
    moves_since: Option<Instant>,
}

#[derive(Default)]
struct PendingLines {
    caches: BTreeMap<String, CacheHistory>,
    unlogged: BTreeMap<Change, (BTreeSet<String>, Duration)>,
}

impl PendingLines {
    fn record(&mut self, cache: &str, state: State, now: Instant) {
        let known = self.caches.entry(cache.to_owned()).or_default();
        let mut add = |change, took: Duration| {
            let (names, longest): &mut (BTreeSet<String>, Duration) =
                self.unlogged.entry(change).or_default();
            names.insert(cache.to_owned());
            *longest = took.max(*longest);
        };
        if state.away != known.state.away {
            let is_back = state.away.is_empty();
            let change = if is_back { Change::Available } else { Change::Degraded(state.away.clone()) };
            add(change, Duration::ZERO);
        }
        // Internal caches are small.
        if state.is_moving != known.state.is_moving && !is_internal(cache) {
            if state.is_moving {
                known.moves_since = Some(now);
                add(Change::Moves, Duration::ZERO);
            } else {
                let since = known.moves_since.take().unwrap_or(now);
                add(Change::HasMoved, now.saturating_duration_since(since));
            }
        }
        known.state = state;
    }

    fn forget(&mut self, cache: &str) {
        self.caches.remove(cache);
    }

    /// The worst first, each with whether it is a warning.
    fn take_lines(&mut self) -> Vec<(bool, String)> {
        let unlogged = std::mem::take(&mut self.unlogged);
        unlogged.into_iter().map(|(change, (caches, took))| line(&change, &caches, took)).collect()
    }
}

fn line(change: &Change, caches: &BTreeSet<String>, took: Duration) -> (bool, String) {
    let caches = cache_names(caches);
    match change {
        Change::Degraded(away) => {
            let are = if away.len() == 1 { "is" } else { "are" };
            let away: Vec<&str> = away.iter().map(String::as_str).collect();
            let away = away.join(", ");
            let text = format!(
                "{caches}: degraded, because {away} {are} unreachable: keys that they own cannot be written, nor read unless the \
                 cache allows it. Continue them if they are stopped, or repair the network. If they have crashed for good, run \
                 consort cache make-available, which prints the losses first"
            );
            (true, text)
        }
        Change::Available => (false, format!("{caches}: available again")),
        Change::Moves => (false, format!("{caches}: entries begin to move to new owners")),
        Change::HasMoved => {
            (false, format!("{caches}: all entries are with their owners, after {:.1} s", took.as_secs_f64()))
        }
    }
}

fn cache_names(caches: &BTreeSet<String>) -> String {
    let (ours, theirs): (Vec<&String>, Vec<&String>) = caches.iter().partition(|cache| is_internal(cache));
    let mut parts: Vec<String> = theirs.iter().take(NAMES_MAX).map(|cache| cache.to_string()).collect();
    if let more @ 1.. = theirs.len().saturating_sub(NAMES_MAX) {
        parts.push(format!("{more} more"));
    }
    if !ours.is_empty() {
        parts.push("the servers' own (definitions, schemas, counters)".to_owned());
    }
    let is_one = parts.len() == 1 && ours.is_empty();
    format!("{} {}", if is_one { "cache" } else { "caches" }, parts.join(", "))
}

fn difference(before: &[String], after: &[String]) -> String {
    let of = |what: &str, some: &[String], without: &[String]| {
        let names: Vec<&str> = some.iter().filter(|one| !without.contains(one)).map(String::as_str).collect();
        if names.is_empty() { String::new() } else { format!("; {what}: {}", names.join(", ")) }
    };
    of("joined", after, before) + &of("left", before, after)
}

fn log_silence(before: &mut BTreeSet<String>, silent: BTreeSet<String>) {
    let names = |of: &BTreeSet<String>, without: &BTreeSet<String>| {
        of.difference(without).cloned().collect::<Vec<_>>().join(", ")
    };
    let (newly, over) = (names(&silent, before), names(before, &silent));
    if !newly.is_empty() {
        tracing::warn!(
            "silent: {newly}: no heartbeat came for two intervals. Reads go to other owners, writes of keys of which it is an \
             owner wait; a member that stays silent is removed from the cluster"
        );
    }
    if !over.is_empty() {
        tracing::info!("no longer silent, or no longer a member: {over}");
    }
    *before = silent;
}

pub(crate) async fn log_changes(caches: &Caches) {
    let manager = caches.manager();
    let mut events = manager.events();
    let members = |view: &View| view.members().iter().map(|one| manager.name_of(one)).collect();
    let (mut pending, mut here) =
        (PendingLines::default(), manager.view().as_ref().map_or_else(Vec::new, members));
    let look = |pending: &mut PendingLines| {
        let now = Instant::now();
        for (name, served) in caches.all() {
            if let Some(state) = served.with_topology(|topology| State::of(topology, manager)) {
                pending.record(&name, state, now);
            }
        }
    };
    look(&mut pending);
    let mut silent = BTreeSet::new();
    log_silence(&mut silent, manager.silent().iter().map(|one| manager.name_of(one)).collect());
    loop {
        for (is_bad, line) in pending.take_lines() {
            if is_bad {
                tracing::warn!("{line}");
            } else {
                tracing::info!("{line}");
            }
        }
        // All events until now are logged together.
        let mut come = Vec::new();
        let continues = poll_fn(|cx| {
            loop {
                match Pin::new(&mut events).poll_next(cx) {
                    Poll::Ready(Some(event)) => come.push(event),
                    Poll::Ready(None) => return Poll::Ready(false),
                    Poll::Pending if come.is_empty() => return Poll::Pending,
                    Poll::Pending => return Poll::Ready(true),
                }
            }
        });
        if !continues.await {
            return;
        }
        for event in come {
            match event {
                ManagerEvent::View(view) => {
                    let next = members(&view);
                    tracing::info!("members {}{}", manager.view_text(), difference(&here, &next));
                    here = next;
                }
                ManagerEvent::Topology { cache, topology, .. } => {
                    pending.record(&cache, State::of(&topology, manager), Instant::now());
                }
                ManagerEvent::Silent(members) => {
                    let next = members.iter().map(|one| manager.name_of(one)).collect();
                    log_silence(&mut silent, next);
                }
                ManagerEvent::Closed { cache } => pending.forget(&cache),
                ManagerEvent::Gap => look(&mut pending),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(away: &[&str], is_moving: bool) -> State {
        State { away: away.iter().map(|one| (*one).to_owned()).collect(), is_moving }
    }

    fn lines(pending: &mut PendingLines) -> Vec<String> {
        pending.take_lines().into_iter().map(|(is_bad, line)| format!("{is_bad} {line}")).collect()
    }

    #[test]
    fn degraded_cache_is_logged_with_its_unreachable_owners_and_when_available_again() {
        let (mut pending, now) = (PendingLines::default(), Instant::now());
        for cache in ["stock", "orders", "___counters"] {
            pending.record(cache, state(&[], false), now);
        }
        assert!(lines(&mut pending).is_empty(), "as it should be");
        for cache in ["stock", "orders", "___counters"] {
            pending.record(cache, state(&["B", "A"], false), now);
        }
        let text = lines(&mut pending);
        assert_eq!(text.len(), 1, "{text:?}");
        let begin = "true caches orders, stock, the servers' own (definitions, schemas, counters): degraded, because A, B are \
                     unreachable: keys that they own cannot be written";
        assert!(text[0].starts_with(begin), "{}", text[0]);
        pending.record("stock", state(&["B"], false), now);
        assert!(lines(&mut pending)[0].starts_with("true cache stock: degraded, because B is unreachable"));
        pending.record("stock", state(&["B"], false), now);
        assert!(lines(&mut pending).is_empty(), "nothing new");
        pending.record("stock", state(&[], false), now);
        assert_eq!(lines(&mut pending), ["false cache stock: available again"]);
    }

    #[test]
    fn rebalance_is_logged_at_its_beginning_and_end() {
        let (mut pending, now) = (PendingLines::default(), Instant::now());
        pending.record("___counters", state(&[], true), now);
        assert!(lines(&mut pending).is_empty(), "small ones of the servers' own");
        pending.record("stock", state(&[], true), now);
        pending.record("stock", state(&[], true), now + Duration::from_secs(1));
        assert_eq!(lines(&mut pending), ["false cache stock: entries begin to move to new owners"]);
        pending.record("stock", state(&[], false), now + Duration::from_millis(2_500));
        let over = "false cache stock: all entries are with their owners, after 2.5 s";
        assert_eq!(lines(&mut pending), [over]);
        // A removed and recreated cache has a new history.
        pending.record("stock", state(&["A"], false), now);
        pending.take_lines();
        pending.forget("stock");
        pending.record("stock", state(&[], false), now);
        assert!(lines(&mut pending).is_empty());
    }

    #[test]
    fn changes_of_many_caches_are_logged_in_one_line() {
        let (mut pending, now) = (PendingLines::default(), Instant::now());
        for n in 10..30 {
            pending.record(&format!("c{n}"), state(&[], true), now);
        }
        let line = "false caches c10, c11, c12, c13, c14, c15, c16, c17, 12 more: entries begin to move to new owners";
        assert_eq!(lines(&mut pending), [line]);
    }

    #[test]
    fn joined_and_left_members_are_named() {
        let names = |names: &[&str]| -> Vec<String> { names.iter().map(|one| (*one).to_owned()).collect() };
        assert_eq!(difference(&names(&["A", "B"]), &names(&["B", "C", "D"])), "; joined: C, D; left: A");
        assert_eq!(difference(&names(&["A", "B"]), &names(&["B", "A"])), "");
    }
}
