//! Transactions of a cluster in virtual time, from one seed. Members crash and are replaced, or are suspended for a while and
//! counted as lost; operations are delayed, lost, and of unknown result.

mod checks;
mod client;
mod world;

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::Bytes;

use super::limits::{DECISION_TIME_MAX, FINISH_TIME_MAX, REAP_INTERVAL};
use super::protocol::Protocol;
use super::reaper::Members;
use super::storage::Storage;
use client::{BANK, Client, History};
use world::{Rng, SharedWorld, SimulatedStorage, World, lock};

/// Bugs that tests inject into the protocol, to prove that the checkers find them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bug {
    /// A commit locks nothing.
    NothingLocked,
    /// Keys that are only read may be locked by others.
    LocksNotChecked,
    /// Keys that are only read are not validated: write skew.
    ReadsNotValidated,
    /// Changed versions are no conflict.
    VersionsNotChecked,
    /// Writes are made before the decision.
    WrittenBeforeDecision,
    /// The locks of undecided transactions are released, and their records stay.
    RecordIgnored,
    /// A suspended member continues its writes without a new claim.
    ClaimKept,
    /// The writes of a lost member are made again at once, while its own ones may still take effect.
    TakenOverAtOnce,
    /// A completed transaction's keys are unlocked before its record says that its writes are made.
    UnlockedBeforeMark,
    /// Locks without a record stay.
    OrphansKept,
}

const BUGS: [Bug; 10] = [
    Bug::NothingLocked,
    Bug::LocksNotChecked,
    Bug::ReadsNotValidated,
    Bug::VersionsNotChecked,
    Bug::WrittenBeforeDecision,
    Bug::RecordIgnored,
    Bug::ClaimKept,
    Bug::TakenOverAtOnce,
    Bug::UnlockedBeforeMark,
    Bug::OrphansKept,
];

const MEMBERS: usize = 3;
const CLIENTS: usize = 3;
const ATTEMPTS: usize = 15;

type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Task {
    member: String,
    is_client: bool,
    running: Running,
}

struct Simulation {
    world: SharedWorld,
    history: History,
    bug: Option<Bug>,
    tasks: Vec<Task>,
    names: usize,
    lost: Vec<String>,
    /// A suspended member, and the time at which it is removed from the view and at which it continues.
    suspended: Option<(String, Duration, Duration)>,
    /// Crashed members that others still count.
    unnoticed: Vec<(String, Duration)>,
}

async fn reap(protocol: Arc<Protocol<SimulatedStorage>>) {
    loop {
        protocol.storage.pause(REAP_INTERVAL).await;
        let view = lock(&protocol.storage.world).view.clone();
        let is_first = view.first().is_some_and(|first| first == protocol.storage.member());
        // It tries again later.
        let _ = protocol.reap(&Members { all: &view, is_first }, |_| async { Some(true) }).await;
    }
}

impl Simulation {
    fn new(seed: u64, bug: Option<Bug>) -> Self {
        let mut world = World::new(seed);
        for key in 0..client::KEYS as u8 {
            world.put(BANK, Bytes::copy_from_slice(&[key]), client::value(0, 100));
        }
        let world = Arc::new(Mutex::new(world));
        let mut simulation = Self {
            world,
            history: History::default(),
            bug,
            tasks: Vec::new(),
            names: 0,
            lost: Vec::new(),
            suspended: None,
            unnoticed: Vec::new(),
        };
        for _ in 0..MEMBERS {
            simulation.start_member(ATTEMPTS);
        }
        simulation
    }

    fn start_member(&mut self, attempts: usize) {
        self.names += 1;
        let member = format!("M{}", self.names);
        lock(&self.world).view.push(member.clone());
        let storage = SimulatedStorage { world: self.world.clone(), member: member.clone(), number: 0 };
        let mut protocol = Protocol::new(storage);
        protocol.bug = self.bug;
        let protocol = Arc::new(protocol);
        for _ in 0..CLIENTS {
            let client = Client { protocol: protocol.clone(), history: self.history.clone(), attempts };
            self.tasks.push(Task {
                member: member.clone(),
                is_client: true,
                running: Box::pin(client.run()),
            });
        }
        self.tasks.push(Task { member, is_client: false, running: Box::pin(reap(protocol)) });
    }

    fn poll(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        let suspended = self.suspended.as_ref().map(|(member, ..)| member.clone());
        self.tasks.retain_mut(|task| {
            suspended.as_ref() == Some(&task.member) || task.running.as_mut().poll(&mut context).is_pending()
        });
    }

    fn crash(&mut self, rng: &mut Rng) {
        let mut world = lock(&self.world);
        let suspended = self.suspended.as_ref().map(|(member, ..)| member);
        let is_alive = |member: &&String| !self.lost.contains(*member);
        let alive: Vec<String> = world.view.iter().filter(is_alive).cloned().collect();
        let Some(member) = alive.get(rng.below(alive.len().max(1) as u64) as usize) else { return };
        if suspended == Some(member) || alive.len() < 2 {
            return;
        }
        world.crash(member);
        let noticed = world.now + Duration::from_millis(rng.below(4_000));
        drop(world);
        self.unnoticed.push((member.clone(), noticed));
        self.lost.push(member.clone());
        self.tasks.retain(|task| task.member != *member);
        if rng.is_one_in(2) {
            self.start_member(6);
        }
    }

    fn suspend(&mut self, rng: &mut Rng) {
        let mut world = lock(&self.world);
        let member = world.view.get(rng.below(world.view.len().max(1) as u64) as usize).cloned();
        if let Some(member) = member.filter(|member| !self.lost.contains(member))
            && self.suspended.is_none()
        {
            let removed = world.now + Duration::from_millis(rng.below(4_000));
            let until = world.now + Duration::from_millis(1_000 + rng.below(60_000));
            world.wake_at(until);
            self.suspended = Some((member, removed, until));
        }
    }

    fn update_view(&mut self) {
        let mut world = lock(&self.world);
        let now = world.now;
        self.unnoticed.retain(|(member, at)| {
            if *at <= now {
                world.view.retain(|one| one != member);
            }
            *at > now
        });
        if let Some((member, removed, until)) = &self.suspended {
            if *until <= now {
                if !world.view.contains(member) {
                    world.view.push(member.clone());
                }
                self.suspended = None;
            } else if *removed <= now {
                world.view.retain(|one| one != member);
            }
        }
    }

    fn run(mut self, seed: u64) -> Result<(), String> {
        let mut rng = Rng(!seed);
        // Some runs have few faults, so that the others are not all that transactions meet.
        let (crashes, suspensions) = (200 + rng.below(2_000), 200 + rng.below(2_000));
        let mut settled = None;
        loop {
            // First, because a member that continues may have nothing else to wait for.
            self.update_view();
            self.poll();
            if settled.is_none() {
                if rng.is_one_in(crashes) {
                    self.crash(&mut rng);
                }
                if rng.is_one_in(suspensions) {
                    self.suspend(&mut rng);
                }
            }
            let mut world = lock(&self.world);
            if settled.is_none() && !self.tasks.iter().any(|task| task.is_client) {
                world.has_faults = false;
                // Until no live member can be busy with a decided transaction, and all are completed.
                settled = Some(world.now + FINISH_TIME_MAX + DECISION_TIME_MAX);
            }
            if settled.is_some_and(|until| world.now > until && self.suspended.is_none()) {
                break;
            }
            if !world.step() {
                return Err("nothing can happen any more".to_owned());
            }
        }
        self.check()
    }

    fn check(&self) -> Result<(), String> {
        let world = lock(&self.world);
        let history = self.history.lock().expect("no thread has panicked");
        checks::check(&world.log, &history, &self.lost)?;
        let sum: i64 = world.values(BANK).iter().map(|(_, value)| client::amount(value)).sum();
        if sum != 100 * client::KEYS as i64 {
            return Err(format!("the sum of the bank is {sum}"));
        }
        let remains = world.remains();
        if !remains.is_empty() {
            return Err(format!("locks and records remain: {remains:?}"));
        }
        Ok(())
    }
}

fn run(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    Simulation::new(seed, bug).run(seed)
}

/// More with `SEEDS`.
fn seeds() -> u64 {
    std::env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(60)
}

#[test]
fn transactions_are_atomic_and_serializable_whatever_crashes() {
    for seed in 0..seeds() {
        if let Err(error) = run(seed, None) {
            panic!("seed {seed}: {error}");
        }
    }
}

#[test]
fn injected_bugs_of_transactions_are_found() {
    const SEEDS_MAX: u64 = 1_000;
    let is_found = |seed, bug| run(seed, Some(bug)).is_err() && run(seed, None).is_ok();
    // Before it, no seed found the bug in the last run of all seeds.
    let first = |bug| if bug == Bug::ClaimKept { 1_200 } else { 0 };
    let find = |bug| (first(bug)..first(bug) + SEEDS_MAX).find(|seed| is_found(*seed, bug));
    let missed: Vec<Bug> = BUGS
        .into_iter()
        .filter(|bug| {
            let found = find(*bug);
            println!("{bug:?}: {found:?}");
            found.is_none()
        })
        .collect();
    assert!(missed.is_empty(), "{missed:?} are not found with {SEEDS_MAX} seeds");
}
