/// A client's use of topologies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Intelligence {
    /// Not at all.
    Basic = 1,
    /// Connects to all servers.
    Topology = 2,
    /// Routes requests to owners.
    Hash = 3,
}

impl Intelligence {
    /// Returns the intelligence.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Basic),
            2 => Some(Self::Topology),
            3 => Some(Self::Hash),
            _ => None,
        }
    }
}
