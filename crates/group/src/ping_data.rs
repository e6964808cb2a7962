use std::sync::Arc;

use crate::{Address, PhysAddr};

/// A member's data in discovery.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PingData {
    /// The member.
    pub sender: Address,
    /// Whether it has joined a group.
    pub is_server: bool,
    /// Whether it is first in its view, and thus a server.
    pub is_coordinator: bool,
    /// Its logical name.
    pub name: Option<Arc<str>>,
    /// Its physical address.
    pub phys: Option<PhysAddr>,
    /// Members whose addresses are requested; `None`: all.
    pub wanted: Option<Vec<Address>>,
}
