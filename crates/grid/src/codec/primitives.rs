//! Numbers are LEB128, other types the sequence of their fields.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use consort_group::{Address, Member, Uuid};
use smallvec::SmallVec;

use super::error::{FrameError, Result};
use super::number::{put_number, read_number};

pub(crate) trait Wire: Sized {
    fn put(&self, out: &mut BytesMut);
    fn read(from: &mut Bytes) -> Result<Self>;
}

pub(crate) fn need(from: &[u8], what: &'static str, wanted: usize) -> Result<()> {
    let left = from.len();
    if left < wanted { Err(FrameError::Short { what, wanted, left }) } else { Ok(()) }
}

impl Wire for u8 {
    fn put(&self, out: &mut BytesMut) {
        out.put_u8(*self);
    }

    fn read(from: &mut Bytes) -> Result<Self> {
        need(from, "byte", 1)?;
        Ok(from.get_u8())
    }
}

impl Wire for u64 {
    fn put(&self, out: &mut BytesMut) {
        put_number(out, *self);
    }

    fn read(from: &mut Bytes) -> Result<Self> {
        let (value, length) = read_number(from)?;
        from.advance(length);
        Ok(value)
    }
}

macro_rules! narrow {
    ($($int:ty),+) => {$(
        impl Wire for $int {
            fn put(&self, out: &mut BytesMut) {
                (*self as u64).put(out);
            }

            fn read(from: &mut Bytes) -> Result<Self> {
                let value = u64::read(from)?;
                Self::try_from(value).map_err(|_| FrameError::Invalid { what: stringify!($int), value })
            }
        }
    )+};
}

narrow!(u16, u32, usize);

impl Wire for bool {
    fn put(&self, out: &mut BytesMut) {
        out.put_u8(u8::from(*self));
    }

    fn read(from: &mut Bytes) -> Result<Self> {
        match u8::read(from)? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(FrameError::Invalid { what: "yes or no", value: value.into() }),
        }
    }
}

#[inline]
pub(crate) fn put_bytes(out: &mut BytesMut, bytes: &[u8]) {
    bytes.len().put(out);
    out.put_slice(bytes);
}

impl Wire for Bytes {
    fn put(&self, out: &mut BytesMut) {
        put_bytes(out, self);
    }

    fn read(from: &mut Bytes) -> Result<Self> {
        let length = usize::read(from)?;
        need(from, "bytes", length)?;
        Ok(from.split_to(length))
    }
}

impl Wire for Arc<str> {
    fn put(&self, out: &mut BytesMut) {
        put_bytes(out, self.as_bytes());
    }

    fn read(from: &mut Bytes) -> Result<Self> {
        let bytes = Bytes::read(from)?;
        let text = std::str::from_utf8(&bytes);
        text.map(Into::into)
            .map_err(|error| FrameError::Invalid { what: "text", value: bytes[error.valid_up_to()].into() })
    }
}

/// A UUID.
impl Wire for Address {
    fn put(&self, out: &mut BytesMut) {
        let Uuid { most, least } = self.uuid().unwrap_or_default();
        out.put_u64(most);
        out.put_u64(least);
    }

    fn read(from: &mut Bytes) -> Result<Self> {
        need(from, "address", 16)?;
        Ok(Self::Uuid(Uuid { most: from.get_u64(), least: from.get_u64() }))
    }
}

/// Without the name, because every member knows the names.
impl Wire for Member {
    fn put(&self, out: &mut BytesMut) {
        self.address.put(out);
    }

    fn read(from: &mut Bytes) -> Result<Self> {
        Address::read(from).map(Self::from)
    }
}

/// Microseconds.
impl Wire for Duration {
    fn put(&self, out: &mut BytesMut) {
        u64::try_from(self.as_micros()).unwrap_or(u64::MAX).put(out);
    }

    fn read(from: &mut Bytes) -> Result<Self> {
        Ok(Self::from_micros(u64::read(from)?))
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut BytesMut) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn read(from: &mut Bytes) -> Result<Self> {
        Ok(if bool::read(from)? { Some(T::read(from)?) } else { None })
    }
}

/// Each value takes at least one byte, so a wrong number allocates no memory.
fn read_all<T: Wire, C: FromIterator<T>>(from: &mut Bytes) -> Result<C> {
    let count = usize::read(from)?;
    need(from, "list", count)?;
    (0..count).map(|_| T::read(from)).collect()
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, out: &mut BytesMut) {
        self.len().put(out);
        self.iter().for_each(|value| value.put(out));
    }

    fn read(from: &mut Bytes) -> Result<Self> {
        read_all(from)
    }
}

impl<T: Wire> Wire for Arc<[T]> {
    fn put(&self, out: &mut BytesMut) {
        self.len().put(out);
        self.iter().for_each(|value| value.put(out));
    }

    fn read(from: &mut Bytes) -> Result<Self> {
        read_all(from)
    }
}

impl<T: Wire, const N: usize> Wire for SmallVec<[T; N]> {
    fn put(&self, out: &mut BytesMut) {
        self.len().put(out);
        self.iter().for_each(|value| value.put(out));
    }

    fn read(from: &mut Bytes) -> Result<Self> {
        read_all(from)
    }
}

impl<K: Wire + Ord, V: Wire> Wire for BTreeMap<K, V> {
    fn put(&self, out: &mut BytesMut) {
        self.len().put(out);
        for (key, value) in self {
            key.put(out);
            value.put(out);
        }
    }

    fn read(from: &mut Bytes) -> Result<Self> {
        read_all(from)
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn put(&self, out: &mut BytesMut) {
        self.0.put(out);
        self.1.put(out);
    }

    fn read(from: &mut Bytes) -> Result<Self> {
        Ok((A::read(from)?, B::read(from)?))
    }
}

macro_rules! read_fields {
    ($from:ident, $($field:ident),+ $(,)?) => {
        Ok(Self { $($field: $crate::codec::Wire::read($from)?),+ })
    };
}

macro_rules! wire_struct {
    ($name:ident { $($field:ident),+ $(,)? }) => {
        impl $crate::codec::Wire for $name {
            fn put(&self, out: &mut bytes::BytesMut) {
                let Self { $($field),+ } = self;
                $($crate::codec::Wire::put($field, out);)+
            }

            fn read(from: &mut bytes::Bytes) -> $crate::codec::Result<Self> {
                $crate::codec::read_fields!(from, $($field),+)
            }
        }
    };
}

/// A byte for the variant, then its fields.
macro_rules! wire_enum {
    ($name:ident { $($tag:literal = $variant:ident $(($inner:ident))? $({ $($field:ident),+ $(,)? })?),+ $(,)? }) => {
        impl $crate::codec::Wire for $name {
            fn put(&self, out: &mut bytes::BytesMut) {
                match self {
                    $(Self::$variant $(($inner))? $({ $($field),+ })? => {
                        bytes::BufMut::put_u8(out, $tag);
                        $($crate::codec::Wire::put($inner, out);)?
                        $($($crate::codec::Wire::put($field, out);)+)?
                    })+
                }
            }

            fn read(from: &mut bytes::Bytes) -> $crate::codec::Result<Self> {
                match <u8 as $crate::codec::Wire>::read(from)? {
                    $($tag => {
                        $(let $inner = $crate::codec::Wire::read(from)?;)?
                        $($(let $field = $crate::codec::Wire::read(from)?;)+)?
                        Ok(Self::$variant $(($inner))? $({ $($field),+ })?)
                    })+
                    value => Err($crate::codec::FrameError::Invalid {
                        what: stringify!($name),
                        value: value.into(),
                    }),
                }
            }
        }
    };
}

pub(crate) use {read_fields, wire_enum, wire_struct};

#[cfg(test)]
mod tests {
    use super::*;

    fn there_and_back<T: Wire + PartialEq + std::fmt::Debug>(value: T, length: usize) {
        let mut out = BytesMut::new();
        value.put(&mut out);
        assert_eq!(out.len(), length, "{value:?}");
        let mut bytes = out.freeze();
        assert_eq!(T::read(&mut bytes), Ok(value));
        assert!(bytes.is_empty());
    }

    #[test]
    fn values_come_back_as_they_were() {
        there_and_back(127_u64, 1);
        there_and_back(128_u64, 2);
        there_and_back(u64::MAX, 10);
        there_and_back(Some(Bytes::from_static(b"abc")), 5);
        there_and_back(vec![(1_u16, true), (300, false)], 6);
        there_and_back(Arc::<str>::from("grüße"), 8);
        there_and_back(Duration::from_millis(3), 2);
        there_and_back(Address::Uuid(Uuid { most: 1, least: 2 }), 16);
    }

    #[test]
    fn a_lying_length_is_an_error_and_takes_no_memory() {
        let mut lying = Bytes::from_static(&[0xff, 0xff, 0xff, 0xff, 0x0f, 1, 2]);
        assert_eq!(
            Vec::<u64>::read(&mut lying.clone()),
            Err(FrameError::Short { what: "list", wanted: 0xffff_ffff, left: 2 })
        );
        assert!(matches!(Bytes::read(&mut lying), Err(FrameError::Short { what: "bytes", .. })));
        assert!(u16::read(&mut Bytes::from_static(&[0x80, 0x80, 0x04])).is_err());
        assert!(u64::read(&mut Bytes::from_static(&[0x80; 11])).is_err());
    }
}
