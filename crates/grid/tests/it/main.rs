//! Clusters of nodes in virtual time.

mod cluster;
mod iteration;
mod swarm;
