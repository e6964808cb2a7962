//! Ballots: the votes that let at most one coordinator make topologies for the same members.
//!
//! A coordinator begins with a status request to its view under its own [`Ballot`]. A member that responds
//! **promises** the ballot: it installs only topologies of this ballot until it promises a higher one. A
//! member with a higher promise responds with that ballot. So a response is a vote for one coordinator at a
//! time, however views overlap.
//!
//! A voter may promise another ballot before the first topology, so the membership changes in two steps. The
//! coordinator first **announces** a removal ([`crate::Topology::forgone`]) with unchanged owners: no write
//! is acknowledged that the announced members lack. The removal follows when all reachable members have
//! installed the announcement, more than half of the quorum among them. Any other coordinator needs more than
//! half as well, so one of its voters has installed the announcement, or the removal is never carried out. A
//! coordinator goes on from the topology with the highest ballot, made while a majority was present.
//! Topologies of a minority change only the availability, and keep the ballot.
//!
//! The quorum changes in two steps, too ([`crate::Topology::quorum_to_be`]). In the first, more than half of
//! the old **and** of the new members must be present. The second begins when all members have that topology,
//! so that successive majorities always share a member.
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
