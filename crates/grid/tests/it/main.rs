//! Clusters of nodes in virtual time.

mod cluster;
mod expiry;
mod iteration;
mod local;
mod swarm;
