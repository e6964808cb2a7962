use std::fmt;

/// A JGroups version as its 16 bits: major in 5, minor in 5, micro in 6.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u16);

impl Version {
    /// The version sent by default.
    pub const V5_5_7: Self = Self::new(5, 5, 7);

    /// Packs the numbers, without excess bits.
    pub const fn new(major: u16, minor: u16, micro: u16) -> Self {
        Self(((major & 0x1f) << 11) | ((minor & 0x1f) << 6) | (micro & 0x3f))
    }

    /// Returns the first number.
    pub const fn major(self) -> u16 {
        self.0 >> 11
    }

    /// Returns the second number.
    pub const fn minor(self) -> u16 {
        (self.0 >> 6) & 0x1f
    }

    /// Returns the third number.
    pub const fn micro(self) -> u16 {
        self.0 & 0x3f
    }

    /// Returns whether major and minor are equal, as communication requires.
    pub const fn is_compatible(self, other: Self) -> bool {
        self.0 >> 6 == other.0 >> 6
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major(), self.minor(), self.micro())
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_pack_as_in_jgroups() {
        assert_eq!(Version::V5_5_7.0, 0x2947);
        assert_eq!(Version::new(5, 4, 12).0, 0x290c);
        assert!(Version::V5_5_7.is_compatible(Version::new(5, 5, 0)));
        assert!(!Version::V5_5_7.is_compatible(Version::new(5, 6, 0)));
        assert_eq!(Version::V5_5_7.to_string(), "5.5.7");
    }
}
