//! Encodings of keys and values as bytes.

use std::borrow::{Borrow, Cow};

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use smallvec::SmallVec;

/// Size of encoded data without an allocation.
const INLINE: usize = 64;

/// A value cannot be encoded, or bytes cannot be decoded. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{media_type}: {reason}")]
pub struct EncodingError {
    /// The media type.
    pub media_type: Cow<'static, str>,
    /// The reason.
    pub reason: String,
}

/// An encoded value, copied only if it is kept.
#[derive(Clone, Debug)]
pub enum Encoded<'a> {
    /// Borrowed from the value.
    Borrowed(&'a [u8]),
    /// Shared with the value.
    Shared(&'a Bytes),
    /// Encoded bytes.
    Owned(SmallVec<[u8; INLINE]>),
}

impl Encoded<'_> {
    /// Returns the bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Shared(bytes) => bytes,
            Self::Owned(bytes) => bytes,
        }
    }

    /// Returns the bytes for keeping.
    pub fn into_bytes(self) -> Bytes {
        match self {
            Self::Borrowed(bytes) => Bytes::copy_from_slice(bytes),
            Self::Shared(bytes) => bytes.clone(),
            Self::Owned(bytes) if bytes.spilled() => Bytes::from(bytes.into_vec()),
            Self::Owned(bytes) => Bytes::copy_from_slice(&bytes),
        }
    }
}

/// An encoding of values as bytes.
pub trait Encoding: Clone + Send + Sync + 'static {
    /// Returns the media type.
    fn media_type(&self) -> &str;
}

/// An encoding of values of this type. Equal keys must have equal bytes.
pub trait Encode<T: ?Sized>: Encoding {
    /// Encodes a value.
    ///
    /// # Errors
    ///
    /// If the value cannot be encoded.
    fn encode<'a>(&self, value: &'a T) -> Result<Encoded<'a>, EncodingError>;
}

/// A decoding to values of this type.
pub trait Decode<T>: Encoding {
    /// Decodes a value. The bytes may be a slice of a larger buffer, which a value that keeps them keeps in
    /// memory.
    ///
    /// # Errors
    ///
    /// If the bytes are invalid.
    fn decode(&self, bytes: Bytes) -> Result<T, EncodingError>;
}

/// An encoding of values of type `T` that a caller passes in the borrowed form `Q`, as std's maps take keys: bytes as
/// slices, strings as `&str`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot encode `{Q}` as a borrowed form of `{T}`",
    note = "`{T}` must implement `Borrow<{Q}>`, and `{Self}` must implement `Encode<{Q}>`"
)]
pub trait EncodeBorrowed<T, Q: ?Sized>: Encode<Q> {}

impl<E, T, Q> EncodeBorrowed<T, Q> for E
where
    E: Encode<Q>,
    T: Borrow<Q>,
    Q: ?Sized,
{
}

/// Plain bytes: `application/octet-stream`.
///
/// Values as [`Bytes`] are not copied. A value read from another member is a slice of its message (60 KB, or
/// its own size if larger) and keeps that in memory; copy values before keeping them for long.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Raw;

impl Encoding for Raw {
    fn media_type(&self) -> &str {
        "application/octet-stream"
    }
}

impl Encode<Bytes> for Raw {
    #[inline]
    fn encode<'a>(&self, value: &'a Bytes) -> Result<Encoded<'a>, EncodingError> {
        Ok(Encoded::Shared(value))
    }
}

macro_rules! slices {
    ($($type:ty),+) => {$(
        impl Encode<$type> for Raw {
            #[inline]
            fn encode<'a>(&self, value: &'a $type) -> Result<Encoded<'a>, EncodingError> {
                Ok(Encoded::Borrowed(value.as_ref()))
            }
        }
    )+};
}

slices!([u8], Vec<u8>, str, String);

impl Decode<Bytes> for Raw {
    #[inline]
    fn decode(&self, bytes: Bytes) -> Result<Bytes, EncodingError> {
        Ok(bytes)
    }
}

impl Decode<Vec<u8>> for Raw {
    fn decode(&self, bytes: Bytes) -> Result<Vec<u8>, EncodingError> {
        Ok(bytes.into())
    }
}

impl Decode<String> for Raw {
    fn decode(&self, bytes: Bytes) -> Result<String, EncodingError> {
        String::from_utf8(bytes.into()).map_err(|error| EncodingError {
            media_type: self.media_type().to_owned().into(),
            reason: error.to_string(),
        })
    }
}

/// The default: serde values in [postcard](https://postcard.jamesmunns.com/wire-format) format,
/// `application/x-postcard`. The format is stable, compact and fast.
///
/// It does not describe types: a struct is the sequence of its fields, a variant its index. While a cache has
/// values of a type, the type can only get variants at the end of an enum; use an enum of versions for types
/// that will change. Equal keys have equal bytes if their serde output depends only on equality; unordered
/// maps and sets are unsuitable as keys.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Postcard;

impl Postcard {
    fn failed(self, error: &postcard::Error) -> EncodingError {
        EncodingError { media_type: self.media_type().to_owned().into(), reason: error.to_string() }
    }
}

impl Encoding for Postcard {
    fn media_type(&self) -> &str {
        "application/x-postcard"
    }
}

/// The output of postcard.
struct Buffer(SmallVec<[u8; INLINE]>);

impl postcard::ser_flavors::Flavor for Buffer {
    type Output = SmallVec<[u8; INLINE]>;

    #[inline]
    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    #[inline]
    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<Self::Output> {
        Ok(self.0)
    }
}

impl<T: Serialize + ?Sized> Encode<T> for Postcard {
    #[inline]
    fn encode<'a>(&self, value: &'a T) -> Result<Encoded<'a>, EncodingError> {
        let written = postcard::serialize_with_flavor(value, Buffer(SmallVec::new()));
        written.map(Encoded::Owned).map_err(|error| self.failed(&error))
    }
}

impl<T: DeserializeOwned> Decode<T> for Postcard {
    #[inline]
    fn decode(&self, bytes: Bytes) -> Result<T, EncodingError> {
        match postcard::take_from_bytes(&bytes) {
            Ok((value, [])) => Ok(value),
            Ok((_, rest)) => Err(EncodingError {
                media_type: self.media_type().to_owned().into(),
                reason: format!("{} bytes follow the value", rest.len()),
            }),
            Err(error) => Err(self.failed(&error)),
        }
    }
}
