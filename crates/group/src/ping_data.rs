//! What discovery says of a member (facts 11.2).

use std::sync::Arc;

use crate::{Address, PhysAddr};

/// A member as discovery describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PingData {
    /// The member.
    pub sender: Address,
    /// Whether it has joined a group.
    pub is_server: bool,
    /// Whether it is first in its view. A coordinator is always a server as well.
    pub is_coordinator: bool,
    /// Its logical name.
    pub name: Option<Arc<str>>,
    /// Where it is reached.
    pub phys: Option<PhysAddr>,
    /// Members whose physical addresses are wanted; `None` = everybody's.
    pub wanted: Option<Vec<Address>>,
}
