//! Clusters of nodes in virtual time.

mod bounds;
mod clear;
mod clients;
mod cluster;
mod cluster_stop;
mod computations;
mod degraded;
mod expiry;
mod faults;
mod faulty_store;
mod flags;
mod invalidation;
mod iteration;
mod listeners;
mod listening;
mod local;
mod memory;
mod merging;
mod persistence;
mod progress;
mod rebalancing;
mod records;
mod repeated_partitions;
mod responses;
mod restart;
#[cfg(feature = "injected-bugs")]
mod scenarios;
mod seeds;
mod silent_owners;
mod silent_writes;
mod sole_owner;
mod split_brain;
mod states;
mod swarm;
mod versions;
