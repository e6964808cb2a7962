//! The checkers can fail: every planted bug is found. With `--nocapture` the table of docs/lab/2026-11-planted.md.

use consort_sim::grid::Habits;
use consort_sim::{GridPlanted, InjectedBug, Plan, run};

/// Seeds after which a bug counts as not found: one in 170 finds the rarest, for which a member has to be removed and taken
/// in again with messages in between.
const SEEDS_MAX: u64 = 1_000;

/// Returns a stock stack that has the protocol.
fn stack(bug: InjectedBug) -> &'static str {
    match bug {
        InjectedBug::CoordinatorBypassed
        | InjectedBug::NonMembersServed
        | InjectedBug::OutstandingDropped
        | InjectedBug::OutstandingLoopedBack
        | InjectedBug::OrderedForgotten => "sequencer.xml",
        _ => "tcp.xml",
    }
}

/// Returns the first seed that found the bug when all seeds were run last: earlier seeds would take most of the time.
fn first(bug: InjectedBug) -> u64 {
    match bug {
        InjectedBug::NonMembersNotCounted => 385,
        InjectedBug::DepartedForgotten => 290,
        InjectedBug::StaleDeltaView => 100,
        InjectedBug::CreditsOnRequest => 35,
        _ => 0,
    }
}

#[test]
fn every_planted_bug_is_found() {
    let mut missed = Vec::new();
    println!("| bug | seeds | rule that was broken |\n|---|---:|---|");
    for bug in InjectedBug::ALL {
        let plan = Plan::new(stack(bug), 4).with_planted(bug);
        match (first(bug)..SEEDS_MAX).find_map(|seed| run(&plan, seed).err()) {
            Some(violation) => println!("| {bug:?} | {} | {} |", violation.seed + 1, violation.rule),
            None => missed.push(bug),
        }
    }
    assert_eq!(missed, [], "not found with {SEEDS_MAX} seeds");
}

#[test]
fn every_bug_planted_in_the_grid_is_found() {
    is_found(&GridPlanted::ALL, &grid(Habits::NONE).without_stores());
}

#[test]
fn every_bug_planted_about_stores_is_found() {
    is_found(&GridPlanted::STORES, &grid(Habits::NONE).with_stores());
}

#[test]
fn every_bug_planted_about_habits_of_clients_is_found() {
    is_found(
        &GridPlanted::HABITS,
        &grid(Habits { idle: false, listeners_end: false, narrow: false, ..Habits::ALL }).without_stores(),
    );
}

#[test]
fn every_bug_planted_about_what_lives_as_long_as_it_is_used_is_found() {
    is_found(&GridPlanted::IDLE, &grid(Habits { idle: true, ..Habits::NONE }).without_stores());
}

#[test]
fn every_bug_planted_about_local_caches_is_found() {
    is_found(&GridPlanted::LOCAL, &grid(Habits::NONE).with_mode(consort_grid::CacheMode::Local));
}

fn grid(habits: Habits) -> consort_sim::grid::Plan {
    consort_sim::grid::Plan::new("tcp.xml", 4).with_habits(habits)
}

fn is_found(bugs: &[GridPlanted], sound: &consort_sim::grid::Plan) {
    let mut missed = Vec::new();
    println!("| bug | seeds | rule that was broken |\n|---|---:|---|");
    for &bug in bugs {
        let plan = sound.clone().with_planted(bug);
        // A seed that breaks a rule without the bug does not count.
        let find = |seed| {
            let violation = consort_sim::grid::run(&plan, seed).err()?;
            consort_sim::grid::run(sound, seed).ok().map(|_| violation)
        };
        let first = first_of_grid(bug);
        match (first..first + SEEDS_MAX).find_map(find) {
            Some(violation) => println!("| {bug:?} | {} | {} |", violation.seed + 1, violation.rule),
            None => missed.push(bug),
        }
    }
    assert_eq!(missed, [], "not found with {SEEDS_MAX} seeds");
}

/// Returns the first seed that found a bug of the grid.
fn first_of_grid(bug: GridPlanted) -> u64 {
    match bug {
        GridPlanted::SettledNotAsked => 1_535,
        GridPlanted::PolicyIgnored => 1_965,
        GridPlanted::LateCallTaken => 160,
        GridPlanted::ReadAfterSurrender => 365,
        GridPlanted::PhaseTooEarly => 755,
        GridPlanted::AwayAdopted => 1_345,
        GridPlanted::MarksNotAwaited => 145,
        GridPlanted::BallotsForgotten => 5_075,
        GridPlanted::AbsentCounted => 175,
        GridPlanted::GapForgotten => 295,
        GridPlanted::JoinerNotAwaited => 535,
        GridPlanted::OldEpochTaken => 130,
        GridPlanted::StoreNotAwaited => 170,
        GridPlanted::CallersNotAdopted => 65,
        GridPlanted::MinorityWrites => 50,
        GridPlanted::LongestWins => 60,
        GridPlanted::AwayPassedOver => 100,
        GridPlanted::WrongHistory => 75,
        GridPlanted::RemovalForgotten => 35,
        GridPlanted::HeldForgotten => 25,
        _ => 0,
    }
}
