//! A state transfer chunk's entries, in their wire form: the receiver copies keys and values once, to their
//! final place.
//!
//! A head of fixed size tells where the next entry begins; with numbers of variable length, the CPU would
//! wait for each one. Decoded into pairs of [`Bytes`], entries of 1 KB took a sixth of a receiver's time.

use std::fmt;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use consort_group::Time;

use crate::codec::{FrameError, Result, Wire, need};
use crate::container::Visited;
use crate::operation::EntryMetadata;
use crate::{Lifetime, Stored, Version};

/// The lengths of key and value, the version, the age in nanoseconds, and flags of the lifetime, all big
/// endian.
const HEAD: usize = 4 + 4 + 8 + 8 + 1;

/// With a lifetime: lifespan, max-idle, and time since the last use, which is the age otherwise.
const SPANS: usize = 3 * 8;

const LIFESPAN: u8 = 1;
const MAX_IDLE: u8 = 2;

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

fn put_entry(out: &mut BytesMut, key: &[u8], value: &[u8], stamp: EntryMetadata) {
    let EntryMetadata { version, lifetime: Lifetime { lifespan, max_idle }, age, idle } = stamp;
    let flag = |span: Option<Duration>, flag| if span.is_some() { flag } else { 0 };
    let flags = flag(lifespan, LIFESPAN) | flag(max_idle, MAX_IDLE);
    let mut head = [0; HEAD + SPANS];
    let mut rest = &mut head[..];
    rest.put_u32(key.len() as u32);
    rest.put_u32(value.len() as u32);
    rest.put_u64(version.0);
    rest.put_u64(nanos(age));
    rest.put_u8(flags);
    if flags != 0 {
        for span in [lifespan.unwrap_or_default(), max_idle.unwrap_or_default(), idle] {
            rest.put_u64(nanos(span));
        }
    }
    out.put_slice(&head[..if flags == 0 { HEAD } else { HEAD + SPANS }]);
    out.put_slice(key);
    out.put_slice(value);
}

pub(crate) fn put_copy(out: &mut BytesMut, visited: Visited<'_>, now: Time) {
    let (created, last_used, lifetime) = visited.times();
    let (age, idle) = (now.since(created), now.since(last_used));
    let stamp = EntryMetadata { version: visited.version(), lifetime, age, idle };
    put_entry(out, visited.key(), visited.value(), stamp);
}

#[derive(Clone, Copy)]
pub(crate) struct EntryRef<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
    head: &'a [u8; HEAD],
    spans: &'a [u8],
}

impl<'a> EntryRef<'a> {
    #[inline]
    fn read(rest: &mut &'a [u8]) -> Result<Self> {
        let (head, mut behind) = rest.split_first_chunk().ok_or(FrameError::Short {
            what: "head of an entry",
            wanted: HEAD,
            left: rest.len(),
        })?;
        let mut spans = &behind[..0];
        match head[HEAD - 1] {
            0 => {}
            1..=3 => {
                need(behind, "spans of an entry", SPANS)?;
                (spans, behind) = behind.split_at(SPANS);
            }
            flags => return Err(FrameError::Invalid { what: "lifetime", value: flags.into() }),
        }
        let mut lengths = &head[..];
        let (key_len, value_len) = (lengths.get_u32() as usize, lengths.get_u32() as usize);
        need(behind, "entry", key_len.saturating_add(value_len))?;
        let (key, behind) = behind.split_at(key_len);
        let (value, behind) = behind.split_at(value_len);
        *rest = behind;
        Ok(Self { key, value, head, spans })
    }

    #[inline]
    pub(crate) fn stamp(&self) -> EntryMetadata {
        let mut head = &self.head[8..];
        let (version, age) = (Version(head.get_u64()), Duration::from_nanos(head.get_u64()));
        if self.spans.is_empty() {
            return EntryMetadata { version, lifetime: Lifetime::FOREVER, age, idle: age };
        }
        let (flags, mut spans) = (head.get_u8(), self.spans);
        let [lifespan, max_idle, idle] = std::array::from_fn(|_| Duration::from_nanos(spans.get_u64()));
        let lifetime = Lifetime {
            lifespan: (flags & LIFESPAN != 0).then_some(lifespan),
            max_idle: (flags & MAX_IDLE != 0).then_some(max_idle),
        };
        EntryMetadata { version, lifetime, age, idle }
    }
}

#[derive(Clone, PartialEq, Eq, Default)]
pub(crate) struct EncodedEntries {
    /// Validated on arrival.
    bytes: Bytes,
    count: usize,
    content_bytes: usize,
}

impl EncodedEntries {
    pub(crate) fn content_bytes(&self) -> usize {
        self.content_bytes
    }

    /// Estimates that other entries are as large as these.
    pub(crate) fn count_in(&self, bytes: u64) -> usize {
        let count = u128::from(bytes) * self.count as u128 / self.content_bytes.max(1) as u128;
        usize::try_from(count).unwrap_or(usize::MAX)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = EntryRef<'_>> {
        let mut rest = &self.bytes[..];
        (0..self.count).map_while(move |_| EntryRef::read(&mut rest).ok())
    }

    pub(crate) fn parts(&self) -> impl Iterator<Item = (Bytes, Stored)> {
        let part = |part| self.bytes.slice_ref(part);
        self.iter().map(move |copy| (part(copy.key), Stored::stamped(part(copy.value), copy.stamp())))
    }
}

impl Wire for EncodedEntries {
    fn put(&self, out: &mut BytesMut) {
        self.count.put(out);
        out.put_slice(&self.bytes);
    }

    fn read(from: &mut Bytes) -> Result<Self> {
        let count = usize::read(from)?;
        let mut rest = &from[..];
        let mut content_bytes = 0;
        for _ in 0..count {
            let EntryRef { key, value, .. } = EntryRef::read(&mut rest)?;
            content_bytes += key.len() + value.len();
        }
        let length = from.len() - rest.len();
        Ok(Self { bytes: from.split_to(length), count, content_bytes })
    }
}

impl FromIterator<(Bytes, Stored)> for EncodedEntries {
    fn from_iter<I: IntoIterator<Item = (Bytes, Stored)>>(entries: I) -> Self {
        let (mut out, mut count, mut content_bytes) = (BytesMut::new(), 0, 0);
        for (key, stored) in entries {
            put_entry(&mut out, &key, &stored.value, stored.stamp());
            count += 1;
            content_bytes += key.len() + stored.value.len();
        }
        Self { bytes: out.freeze(), count, content_bytes }
    }
}

impl fmt::Debug for EncodedEntries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.parts()).finish()
    }
}

#[cfg(test)]
mod tests {
    use consort_group::Rng;

    use super::*;

    fn entry(rng: &mut Rng) -> (Bytes, Stored) {
        let span = |rng: &mut Rng| Duration::from_nanos(rng.below(1 << 40));
        let maybe = |rng: &mut Rng| rng.chance(0.3).then(|| Duration::from_nanos(rng.below(1 << 50)));
        let lifetime = Lifetime { lifespan: maybe(rng), max_idle: maybe(rng) };
        let age = span(rng);
        let idle = if lifetime.is_forever() { age } else { span(rng) };
        let mut bytes = |most| Bytes::from(vec![rng.below(256) as u8; rng.below(most) as usize]);
        let (key, value) = (bytes(30), bytes(3_000));
        let version = Version(rng.below(u64::MAX));
        (key, Stored { value, version, lifetime, age, idle })
    }

    #[test]
    fn entries_are_decoded_and_following_bytes_are_left() {
        let mut rng = Rng::new(5);
        for count in 0..60 {
            let entries: Vec<_> = (0..count).map(|_| entry(&mut rng)).collect();
            let copies: EncodedEntries = entries.iter().cloned().collect();
            let mut out = BytesMut::new();
            copies.put(&mut out);
            out.put_slice(b"behind");
            let mut from = out.freeze();
            let came = EncodedEntries::read(&mut from).unwrap();
            assert_eq!((&came, &from[..]), (&copies, &b"behind"[..]));
            assert_eq!(came.parts().collect::<Vec<_>>(), entries);
            let content: usize = entries.iter().map(|(key, stored)| key.len() + stored.value.len()).sum();
            assert_eq!(came.content_bytes(), content);
        }
    }

    #[test]
    fn bytes_that_end_too_soon_are_an_error_wherever_they_end() {
        let mut rng = Rng::new(6);
        let mut out = BytesMut::new();
        (0..5).map(|_| entry(&mut rng)).collect::<EncodedEntries>().put(&mut out);
        let all = out.freeze();
        for length in 0..all.len() {
            let short = EncodedEntries::read(&mut all.slice(..length));
            assert!(matches!(short, Err(FrameError::Short { .. })), "{length} of {}", all.len());
        }
    }

    #[test]
    fn a_lying_number_or_length_is_an_error() {
        let mut out = BytesMut::new();
        u64::MAX.put(&mut out);
        let mut lying = out.split().freeze();
        assert!(matches!(
            EncodedEntries::read(&mut lying),
            Err(FrameError::Short { what: "head of an entry", .. })
        ));
        let none = EntryMetadata {
            version: Version(1),
            lifetime: Lifetime::FOREVER,
            age: Duration::ZERO,
            idle: Duration::ZERO,
        };
        1_usize.put(&mut out);
        put_entry(&mut out, b"key", b"value", none);
        let good = out.clone();
        out[1..9].fill(0xff);
        assert!(matches!(
            EncodedEntries::read(&mut out.freeze()),
            Err(FrameError::Short { what: "entry", .. })
        ));
        let mut flagged = good;
        flagged[HEAD] = 4;
        let invalid = Err(FrameError::Invalid { what: "lifetime", value: 4 });
        assert_eq!(EncodedEntries::read(&mut flagged.freeze()), invalid);
    }
}
