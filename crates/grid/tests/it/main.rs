//! Clusters of nodes in virtual time.

mod ailing;
mod alone;
mod bounds;
mod clearing;
mod clients;
mod cluster;
mod computations;
mod degraded;
mod expiry;
mod faults;
mod flags;
mod invalidation;
mod iteration;
mod listeners;
mod listening;
mod local;
mod memory;
mod merging;
mod parted_again;
mod persistence;
mod progress;
mod records;
mod responses;
mod restart;
#[cfg(feature = "injected-bugs")]
mod scenarios;
mod seeds;
mod silent_owners;
mod silent_writes;
mod states;
mod swarm;
mod versions;
mod votes;
