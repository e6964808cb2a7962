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
//! [`run`] draws everything from the seed: delays, losses, cuts, crashes, pauses, slow applications, and the members'
//! messages. Afterwards the faults end, and within [`Plan::heal_limit`] there has to be one view again, with all guaranteed
//! messages delivered. The same seed gives the same run, down to its trace hash.

#![forbid(unsafe_code)]

mod backlog;
mod beside;
mod calm;
mod checks;
#[cfg(test)]
mod crossed;
mod faults;
pub mod grid;
mod growth;
mod network;
mod node;
#[cfg(test)]
mod restarted;
mod schedule;
mod side;
mod stock;
mod swarm;
mod wakes;
mod world;

pub use beside::{BeginError, Beside, Clocks, Keeping, Trouble, begin};
pub use checks::Violation;
#[cfg(feature = "planted")]
pub use consort_grid::InjectedBug as GridPlanted;
#[cfg(feature = "planted")]
pub use consort_group::InjectedBug;
pub use faults::Mix;
pub use growth::{Growth, Phase, grow};
pub use schedule::Schedule;
pub use stock::simulated_stacks;
pub use swarm::{Plan, Report, replay, run};
pub use world::Traffic;
