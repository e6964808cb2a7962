//! Clusters of nodes in virtual time.

mod cluster;
mod expiry;
mod iteration;
mod swarm;
