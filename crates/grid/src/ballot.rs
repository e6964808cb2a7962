//! Whose turn it is to make topologies: why no two coordinators can both go on with the same members.
//!
//! A coordinator that begins asks everybody in its view under a [`Ballot`] of its own. Who answers **promises** it: from
//! then on it installs what was made under this ballot and nothing else, until it promises a higher one; who has promised
//! a higher one already does not answer but says which. So an answer is a vote that counts for one coordinator at a time,
//! however views overlap.
//!
//! What a coordinator does with its votes takes effect in two steps, because a vote may go on to somebody else between the
//! answer and the first topology. To leave members out it **announces** it first ([`crate::Topology::forgone`]): owners
//! stay as they are, so nothing is acknowledged that those members do not have. Only when all who are there have
//! installed that, more than half of the quorum among them, they are taken out. Any other coordinator needs more than half
//! as well, so one of its voters has installed the announcement, or none of those that would have to has: then it is never
//! carried out. Which topology to go on from is told by the ballot under which a majority was there when it was made; those
//! that a minority makes, which change nothing but what may be used, keep the ballot of the one that they go on from.
//!
//! Whose votes are needed changes in two steps, too ([`crate::Topology::quorum_to_be`]): in the first, more than half of the
//! old **and** of the new members have to be there, and the next begins when all have that. Members with neighbouring
//! topologies so always need somebody whom the others need.
//!
//! What a segment's owners change in a rebalance needs no announcement. Until the last phase all owners, old and new, have
//! to acknowledge; and who goes on from the phase before that has to have one of those that are read in both.

use consort_group::Address;

/// An attempt of a member to make topologies. Of two the one with the higher number replaces the other.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ballot {
    /// Higher than all that its maker has heard of.
    pub number: u64,
    /// Its maker.
    pub by: Address,
}
