/// The hash of a key, by the container's seed. It has 32 bits, so that the table can store it beside the
/// slot, grows without reading a key, and compares only keys of equal hash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct KeyHash(pub(super) u32);

impl KeyHash {
    /// `hashbrown`'s tables take places from the lower bits and tags from the upper ones.
    #[inline]
    pub(super) fn spread(self) -> u64 {
        u64::from(self.0) << 32 | u64::from(self.0)
    }
}
