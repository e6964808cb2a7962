//! Ballots: the votes that let at most one coordinator make topologies for the same members.
//!
//! A coordinator that begins sends a status request to every member of its view under a [`Ballot`] of its own. A
//! member that responds **promises** the ballot. From then on it installs topologies made under this ballot and no
//! others, until it promises a higher one. A member that has promised a higher ballot responds with that ballot
//! instead. So a response is a vote for one coordinator at a time, however views overlap.
//!
//! A coordinator changes the membership in two steps, because a voter may promise another ballot between its response
//! and the first topology. To remove members, the coordinator **announces** the removal first
//! ([`crate::Topology::forgone`]). The owners stay the same, so no write is acknowledged that the announced members
//! do not have. The members are removed only when all reachable members have installed the announcement, more than
//! half of the quorum among them. Any other coordinator needs more than half as well. So either one of its voters has
//! installed the announcement, or too few members have, and the removal is never carried out. A coordinator goes on
//! from the topology with the highest ballot, under which a majority was present when it was made. Topologies of a
//! minority change only the availability, and keep the ballot of the topology that they follow.
//!
//! The quorum changes in two steps, too ([`crate::Topology::quorum_to_be`]). In the first, more than half of the old
//! **and** of the new members must be present. The second begins when all members have that topology. So the
//! majorities of two successive topologies always have a member in common.
//!
//! A rebalance changes a segment's owners without an announcement. Until the last phase all owners, old and new, must
//! acknowledge a write. A coordinator that goes on from the phase before the last must have one of the owners that
//! are read owners in both.

use consort_group::Address;

/// An attempt of a member to make topologies. Of two ballots the one with the higher number replaces the other.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ballot {
    /// A number higher than all that its member has seen.
    pub number: u64,
    /// The member that begins to coordinate.
    pub by: Address,
}
