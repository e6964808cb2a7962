//! A key and its value are in one allocation behind their reference count, so that a lookup finds all three
//! in one place.

use bytes::Bytes;

use super::entry::{self, is_passive};

/// Copies of the exact size, which keep no received buffer alive.
#[derive(Clone)]
pub(super) enum Item {
    /// Key and value in one allocation.
    Inline { bytes: Bytes, key_len: u16, number: Number },
    /// The value is only in the store.
    Passive { key: Bytes, number: Number },
    /// The value has an allocation of its own, and is not copied if that has no other user.
    OutOfLine { out_of_line: Box<OutOfLine>, number: Number },
}

/// The number of a key's insertion. The item has room for it: a slot of 64 bytes is one line of the CPU's
/// cache, and a page of 32 slots is a size class of allocators. Beyond 2^40 insertions into a segment all
/// have the last number, and iterations may also return later insertions.
#[derive(Clone, Copy, Default)]
pub(super) struct Number([u8; 5]);

impl Number {
    const MAX: u64 = (1 << 40) - 1;

    pub(super) fn new(number: u64) -> Self {
        let [a, b, c, d, e, ..] = number.min(Self::MAX).to_le_bytes();
        Self([a, b, c, d, e])
    }

    #[inline]
    pub(super) fn get(self) -> u64 {
        let [a, b, c, d, e] = self.0;
        u64::from_le_bytes([a, b, c, d, e, 0, 0, 0])
    }
}

#[derive(Clone)]
pub(super) struct OutOfLine {
    key: Box<[u8]>,
    value: Bytes,
}

/// The reference count's bytes, which [`Bytes::from_owner`] puts in front.
const HEAD: usize = size_of::<usize>();

fn inline<const SIZE: usize>(key: &[u8], value: &[u8]) -> Bytes {
    let mut bytes = [0; SIZE];
    let length = key.len() + value.len();
    bytes[..key.len()].copy_from_slice(key);
    bytes[key.len()..length].copy_from_slice(value);
    let mut bytes = Bytes::from_owner(bytes);
    bytes.truncate(length);
    bytes
}

/// The sizes of allocations: four to a doubling, as the size classes of allocators, so that at most an eighth
/// is lost.
macro_rules! sizes {
    ($($size:literal)+) => {
        const SIZES: &[usize] = &[$($size),+];

        /// Uses the smallest sufficient allocation; none if key and value are too large for all.
        fn contiguous_copy(key: &[u8], value: &[u8]) -> Option<Bytes> {
            let length = key.len() + value.len() + HEAD;
            $(if length <= $size {
                return Some(inline::<{ $size - HEAD }>(key, value));
            })+
            None
        }
    };
}

sizes!(32 48 64 80 96 112 128 160 192 224 256 320 384 448 512 640 768 896 1024 1280 1536 1792 2048 2560 3072 3584 4096);

/// The smallest allocation for a key and a value; none if they are too large for all.
pub(super) fn size_together(key_len: usize, value_len: usize) -> Option<usize> {
    SIZES.iter().find(|&&size| key_len + value_len + HEAD <= size).copied()
}

pub(super) fn allocated(key_len: usize, value_len: usize) -> usize {
    size_together(key_len, value_len)
        .unwrap_or_else(|| key_len + block_size(value_len) + size_of::<OutOfLine>() + SHARED)
}

/// The largest block for which allocators have four sizes to a doubling. Larger blocks consist of whole pages.
const BLOCK_MAX: usize = 512 * 1024;

const PAGE: usize = 4 * 1024;

/// The allocator's block for more bytes than the last of [`SIZES`]; smaller sizes are requested as size
/// classes. A value counts its whole block, because it occupies it.
fn block_size(length: usize) -> usize {
    let step = if length <= BLOCK_MAX { 1 << (length.max(16).ilog2() - 2) } else { PAGE };
    length.next_multiple_of(step)
}

/// Bytes that `bytes` allocates for the reference count of bytes in another allocation.
const SHARED: usize = 24;

impl Item {
    pub(super) fn new(key: &[u8], value: Bytes) -> Self {
        if is_passive(&value) {
            return Self::passive(key);
        }
        Self::inline(key, &value).unwrap_or_else(|| Self::out_of_line(key, value))
    }

    /// For a value that is copied anyway.
    pub(super) fn copied(key: &[u8], value: &[u8]) -> Self {
        Self::inline(key, value).unwrap_or_else(|| Self::out_of_line(key, Bytes::copy_from_slice(value)))
    }

    #[inline]
    fn inline(key: &[u8], value: &[u8]) -> Option<Self> {
        let (key_len, number) = (key.len() as u16, Number::default());
        contiguous_copy(key, value).map(|bytes| Self::Inline { bytes, key_len, number })
    }

    fn out_of_line(key: &[u8], value: Bytes) -> Self {
        let out_of_line = Box::new(OutOfLine { key: key.into(), value: right_sized(value) });
        Self::OutOfLine { out_of_line, number: Number::default() }
    }

    pub(super) fn passive(key: &[u8]) -> Self {
        let key = contiguous_copy(key, &[]).unwrap_or_else(|| Bytes::copy_from_slice(key));
        Self::Passive { key, number: Number::default() }
    }

    #[must_use]
    pub(super) fn numbered(mut self, of_key: Number) -> Self {
        let (Self::Inline { number, .. } | Self::Passive { number, .. } | Self::OutOfLine { number, .. }) =
            &mut self;
        *number = of_key;
        self
    }

    #[inline]
    pub(super) fn number(&self) -> Number {
        match self {
            Self::Inline { number, .. } | Self::Passive { number, .. } | Self::OutOfLine { number, .. } => {
                *number
            }
        }
    }

    #[inline]
    pub(super) fn is_passive(&self) -> bool {
        matches!(self, Self::Passive { .. })
    }

    #[inline]
    pub(super) fn key(&self) -> &[u8] {
        match self {
            Self::Inline { bytes, key_len, .. } => &bytes[..usize::from(*key_len)],
            Self::Passive { key, .. } => key,
            Self::OutOfLine { out_of_line, .. } => &out_of_line.key,
        }
    }

    /// The bytes that a lookup reads first; does not read them.
    #[inline]
    pub(super) fn first_bytes(&self) -> &[u8] {
        match self {
            Self::Inline { bytes, .. } | Self::Passive { key: bytes, .. } => bytes,
            Self::OutOfLine { out_of_line, .. } => &out_of_line.value,
        }
    }

    /// The value keeps the item's memory alive.
    #[inline]
    pub(super) fn value(&self) -> Bytes {
        match self {
            Self::Inline { bytes, key_len, .. } => bytes.slice(usize::from(*key_len)..),
            Self::Passive { .. } => entry::passive(),
            Self::OutOfLine { out_of_line, .. } => out_of_line.value.clone(),
        }
    }

    /// The result keeps the item's memory alive.
    #[inline]
    pub(super) fn contiguous_bytes(&self) -> Option<Bytes> {
        if let Self::Inline { bytes, .. } = self { Some(bytes.clone()) } else { None }
    }

    /// Empty if the value is only in the store.
    pub(super) fn value_bytes(&self) -> &[u8] {
        match self {
            Self::Inline { bytes, key_len, .. } => &bytes[usize::from(*key_len)..],
            Self::Passive { .. } => &[],
            Self::OutOfLine { out_of_line, .. } => &out_of_line.value,
        }
    }

    pub(super) fn value_len(&self) -> usize {
        match self {
            Self::Inline { bytes, key_len, .. } => bytes.len() - usize::from(*key_len),
            Self::Passive { .. } => 0,
            Self::OutOfLine { out_of_line, .. } => out_of_line.value.len(),
        }
    }
}

/// The received allocation is reused if it has no other user and the right size; else the bytes are copied.
fn right_sized(value: Bytes) -> Bytes {
    let value = Bytes::from(Vec::from(value).into_boxed_slice());
    // The first clone of such bytes allocates their reference count. This happens here rather than under the lock of
    // a read.
    drop(value.clone());
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_and_value_come_back_whatever_their_size() {
        for length in (0..300).chain([1_000, 4_000, 4_088, 4_089, 5_000]) {
            for key_len in [0, 1, 9, length / 2] {
                let (key, value) = (vec![1; key_len.min(length)], vec![2; length - key_len.min(length)]);
                let item = Item::new(&key, value.clone().into());
                assert_eq!(
                    (item.key(), item.value(), item.value_len()),
                    (&key[..], value.clone().into(), value.len())
                );
            }
        }
    }

    #[test]
    fn allocation_has_the_stated_size_at_most_an_eighth_above_the_needed_one() {
        for length in (0..300).chain([1_000, 1_016, 1_017, 4_088]) {
            let value = vec![2; length - length / 3];
            let key = vec![1; length / 3];
            let mut kept = None;
            let used = allocation_counter::measure(|| {
                kept = Some(Item::new(&key, Bytes::from_static(Box::leak(value.clone().into_boxed_slice()))));
            });
            let leaked = if value.is_empty() { 0 } else { value.len() as i64 };
            assert_eq!(used.bytes_current - leaked, allocated(key.len(), value.len()) as i64, "{length}");
            assert!(used.bytes_current - leaked <= (length + HEAD).max(64) as i64 * 5 / 4);
        }
    }

    #[test]
    fn large_value_counts_the_block_that_an_allocator_gives_for_it() {
        for (length, block) in [
            (4_096, 4_096),
            (4_097, 5_120),
            (9_000, 10_240),
            (524_288, 524_288),
            (524_289, 528_384),
            (1_000_000, 1_003_520),
        ] {
            assert_eq!(allocated(1, length), 1 + block + size_of::<OutOfLine>() + SHARED, "{length}");
        }
    }

    #[test]
    fn clone_of_a_value_allocates_nothing() {
        for length in [100, 10_000] {
            let item = Item::new(b"key", vec![7; length].into());
            let used = allocation_counter::measure(|| drop(std::hint::black_box(item.value())));
            assert_eq!(used.count_total, 0);
        }
    }

    #[test]
    fn value_does_not_keep_the_buffer_that_it_came_in() {
        for length in [100, 10_000] {
            let buffer = Bytes::from(vec![7; 100_000]);
            for value in [buffer.slice(100..100 + length), buffer.slice(..length)] {
                let mut kept = None;
                let used = allocation_counter::measure(|| kept = Some(Item::new(b"k", value)));
                assert!(used.bytes_current < length as i64 + 100, "{used:?}");
            }
            // The last slice of a buffer that is otherwise dropped is its only user, and still must not keep the
            // buffer alive.
            let last = buffer.slice(100_000 - length..);
            drop(buffer);
            let mut kept = None;
            let used = allocation_counter::measure(|| kept = Some(Item::new(b"k", last)));
            assert!(used.bytes_current <= length as i64 + 100 - 100_000, "{used:?}");
            drop(kept);
        }
    }

    #[test]
    fn unshared_large_value_is_not_copied() {
        let value = Bytes::from(vec![7; 100_000]);
        let place = value.as_ptr();
        assert_eq!(Item::new(b"k", value).value().as_ptr(), place);
    }

    #[test]
    fn number_of_an_insertion_stays_with_the_item_and_ends_at_its_last() {
        for (number, kept) in [(0, 0), (7, 7), (Number::MAX, Number::MAX), (u64::MAX, Number::MAX)] {
            for item in
                [Item::new(b"k", Bytes::from(vec![1; 5_000])), Item::copied(b"k", b"v"), Item::passive(b"k")]
            {
                assert_eq!(item.numbered(Number::new(number)).number().get(), kept);
            }
        }
    }

    #[test]
    fn item_is_no_larger_than_its_bytes_and_a_word() {
        assert_eq!(size_of::<Item>(), size_of::<Bytes>() + size_of::<usize>());
    }
}
