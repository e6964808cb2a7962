//! Whole clusters in virtual time from one seed, with faults and checkers that always run.
//!
//! ```
//! use consort_sim::{Plan, run};
//!
//! let plan = Plan::new("tcp.xml", 3).without_faults();
//! let report = run(&plan, 7).unwrap_or_else(|violation| panic!("{violation}"));
//! assert_eq!(report.trace, run(&plan, 7).unwrap().trace);
//! ```
//!
//! [`run`] draws everything from the seed: delays, losses, cuts, crashes, pauses, resets and refusals of connections, slow
//! applications, and the members' messages. Afterwards the faults end, and within [`Plan::heal_limit`] there has to be one view again, with all guaranteed
//! messages delivered. The same seed gives the same run, down to its trace hash.

#![forbid(unsafe_code)]

#[cfg(test)]
mod address_reuse_tests;
mod after_faults;
mod backlog;
mod checks;
mod connection_faults;
#[cfg(test)]
mod crossed_coordinators_tests;
#[cfg(test)]
mod discovery_tests;
mod effects;
mod faults;
pub mod grid;
mod growth;
mod message_body;
mod messages;
mod network;
mod node;
mod runner;
mod schedule;
mod simulated_store;
pub mod sites;
mod stock;
mod swarm;
mod wakes;
mod world;

pub use checks::Violation;
#[cfg(feature = "injected-bugs")]
pub use consort_grid::InjectedBug as GridInjectedBug;
#[cfg(feature = "injected-bugs")]
pub use consort_group::InjectedBug;
pub use faults::Mix;
pub use growth::{Growth, Phase, grow};
pub use messages::Traffic;
pub use schedule::Schedule;
pub use simulated_store::{Clocks, RestoreError, SimStore, StorageSettings, StoreFaults, restore_container};
pub use stock::simulated_stacks;
pub use swarm::{Plan, Report, replay, run};
