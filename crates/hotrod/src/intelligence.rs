//! The intelligence of a client.

/// How a client uses topologies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Intelligence {
    /// Not at all.
    Basic = 1,
    /// It connects to all servers.
    Topology = 2,
    /// It routes requests to owners.
    Hash = 3,
}

impl Intelligence {
    /// Returns the intelligence of this byte.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Basic),
            2 => Some(Self::Topology),
            3 => Some(Self::Hash),
            _ => None,
        }
    }
}
