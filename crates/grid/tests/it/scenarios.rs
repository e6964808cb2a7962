//! Injected bugs that a scenario of their own finds.

use std::panic::catch_unwind;

use consort_grid::InjectedBug;

use crate::cluster::INJECTED_BUG;
use crate::{cluster_stop, faulty_store, listeners, merging, rebalancing, records};

/// Seeds after which a bug counts as not found.
const SEEDS_MAX: u64 = 2_000;

fn judge(bug: InjectedBug, seed: u64) {
    match bug {
        InjectedBug::RefusedIsFinished | InjectedBug::WritingForgotten => {
            faulty_store::check(seed, false);
        }
        InjectedBug::RecordsNotGiven => records::lose_backups(seed, false),
        InjectedBug::SeenForgotten => merging::replace_before_a_merge(seed, "there", Some("new")),
        InjectedBug::CopiedAnew => merging::replace_copied_entry(seed, "there", Some("old")),
        InjectedBug::GivenUpIsFinished => records::lose_the_primary_of_a_leaver(seed, false),
        InjectedBug::MovedWhileStopping => cluster_stop::check(seed, false),
        InjectedBug::SegmentsLeftBehind => rebalancing::check(seed, false),
        _ => drop(listeners::lose_two(seed, false)),
    }
}

/// Returns a seed before which no seed found the bug in the last run of all seeds.
fn first(bug: InjectedBug) -> u64 {
    match bug {
        InjectedBug::WritingForgotten => 3_880,
        InjectedBug::UndoneUntold => 255,
        _ => 0,
    }
}

fn find(bug: InjectedBug) -> Option<u64> {
    let fails = |seed, bug_of_all| {
        INJECTED_BUG.set(bug_of_all);
        let result = catch_unwind(|| judge(bug, seed));
        INJECTED_BUG.set(None);
        result.is_err()
    };
    let first = first(bug);
    (first..first + SEEDS_MAX).find(|&seed| fails(seed, Some(bug)) && !fails(seed, None))
}

#[test]
fn injected_bugs_of_scenarios_are_found() {
    println!("| bug | seeds |\n|---|---:|");
    let mut missed = Vec::new();
    for bug in InjectedBug::SCENARIOS {
        match find(bug) {
            Some(seed) => println!("| {bug:?} | {} |", seed + 1),
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "{missed:?} are not found with {SEEDS_MAX} seeds");
}
