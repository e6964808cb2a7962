//! Ballots: the votes that let at most one coordinator make topologies for the same members
//! (`docs/design/2026-11-grid.md`, Coordinator).
//!
//! A member that responds to a status request **promises** its [`Ballot`]: it installs only topologies of
//! this ballot until it promises a higher one. A member with a higher promise responds with that ballot.
//!
//! A removal takes two steps, because a voter may promise another ballot before the first topology. The
//! coordinator first **announces** it ([`crate::Topology::forgone`]) with unchanged owners: no write is
//! acknowledged that the announced members lack. The removal follows when all reachable members have
//! installed the announcement, more than half of the quorum among them. Topologies of a minority change only
//! the availability, and keep the ballot.
//!
//! The quorum changes in two steps, too ([`crate::Topology::quorum_to_be`]), so that successive majorities
//! always share a member.
//!
//! A rebalance changes owners without an announcement: until the last phase all owners, old and new, must
//! acknowledge a write. A coordinator that goes on from the phase before the last must have one of the owners
//! that are read owners in both.

use consort_group::Address;

/// An attempt to make topologies; a higher number replaces a lower one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ballot {
    /// Higher than all that the member has seen.
    pub number: u64,
    /// The coordinator.
    pub by: Address,
}
