use std::fmt;

/// The byte on the wire: ten times the major plus the minor number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProtocolVersion(u8);

impl ProtocolVersion {
    /// The oldest.
    pub const V2_0: Self = Self(20);
    /// Tasks, PUT_ALL and GET_ALL, raw events.
    pub const V2_1: Self = Self(21);
    /// Units of time.
    pub const V2_2: Self = Self(22);
    /// Iteration.
    pub const V2_3: Self = Self(23);
    /// Iteration with metadata and projections.
    pub const V2_4: Self = Self(24);
    /// Metadata per entry of an iteration.
    pub const V2_5: Self = Self(25);
    /// Listeners' interests, streams.
    pub const V2_6: Self = Self(26);
    /// Counters, multimaps, transactions.
    pub const V2_7: Self = Self(27);
    /// Media types in requests.
    pub const V2_8: Self = Self(28);
    /// Media types in the response to PING.
    pub const V2_9: Self = Self(29);
    /// Literal durations; PING's version and opcodes.
    pub const V3_0: Self = Self(30);
    /// Bloom filters.
    pub const V3_1: Self = Self(31);
    /// Parameters in requests; previous values with metadata.
    pub const V4_0: Self = Self(40);
    /// Streams in chunks that can be interleaved.
    pub const V4_1: Self = Self(41);

    /// All, oldest first.
    pub const ALL: [Self; 14] = [
        Self::V2_0,
        Self::V2_1,
        Self::V2_2,
        Self::V2_3,
        Self::V2_4,
        Self::V2_5,
        Self::V2_6,
        Self::V2_7,
        Self::V2_8,
        Self::V2_9,
        Self::V3_0,
        Self::V3_1,
        Self::V4_0,
        Self::V4_1,
    ];

    /// The newest.
    pub const NEWEST: Self = Self::V4_1;

    /// Returns the version, if it is supported.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            20..=31 | 40 | 41 => Some(Self(byte)),
            _ => None,
        }
    }

    /// Returns the version as which a server reads and answers a request with this byte. As in Infinispan, a client of a later
    /// version is answered in the last version before it: its PING then says which one the server has.
    pub const fn of_request(byte: u8) -> Option<Self> {
        match byte {
            32..=39 => Some(Self::V3_1),
            42..=127 => Some(Self::NEWEST),
            _ => Self::from_byte(byte),
        }
    }

    /// Returns the byte.
    pub const fn byte(self) -> u8 {
        self.0
    }
}

impl fmt::Display for ProtocolVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 10, self.0 % 10)
    }
}

impl fmt::Debug for ProtocolVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_identified_by_their_byte() {
        let known: Vec<_> = (0..=u8::MAX).filter_map(ProtocolVersion::from_byte).collect();
        assert_eq!(known[..10], ProtocolVersion::ALL[..10]);
        assert!(ProtocolVersion::ALL.iter().all(|version| known.contains(version)));
        assert_eq!(known.len(), ProtocolVersion::ALL.len());
        assert_eq!(ProtocolVersion::V3_1.to_string(), "3.1");
    }

    #[test]
    fn requests_of_later_versions_are_read_as_the_last_one_before() {
        for version in ProtocolVersion::ALL {
            assert_eq!(ProtocolVersion::of_request(version.byte()), Some(version));
        }
        let [v3_1, newest] = [ProtocolVersion::V3_1, ProtocolVersion::NEWEST].map(Some);
        for (byte, version) in [
            (13, None),
            (19, None),
            (32, v3_1),
            (39, v3_1),
            (42, newest),
            (50, newest),
            (127, newest),
            (128, None),
        ] {
            assert_eq!(ProtocolVersion::of_request(byte), version, "{byte}");
        }
    }
}
