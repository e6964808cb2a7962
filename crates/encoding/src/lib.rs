//! How keys and values become bytes, in embedded caches and in the client alike. Members that have a cache open must do it
//! in the same way: the media types go into the cache's settings, and who has others is refused.

#![forbid(unsafe_code)]

use std::borrow::Cow;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use smallvec::SmallVec;

/// Bytes of a key or a small value that need no allocation.
const INLINE: usize = 64;

/// Something that could not be encoded, or bytes that are not what they should be. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{media_type}: {reason}")]
pub struct EncodingError {
    /// Which encoding it is.
    pub media_type: Cow<'static, str>,
    /// What is wrong, for people.
    pub reason: String,
}

/// A value as bytes, which are copied only if somebody keeps them.
#[derive(Clone, Debug)]
pub enum Encoded<'a> {
    /// The value is its bytes.
    Borrowed(&'a [u8]),
    /// The value is its bytes, and they are shared.
    Shared(&'a Bytes),
    /// Bytes made for it.
    Owned(SmallVec<[u8; INLINE]>),
}

impl Encoded<'_> {
    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Shared(bytes) => bytes,
            Self::Owned(bytes) => bytes,
        }
    }

    /// The bytes, to keep.
    pub fn into_bytes(self) -> Bytes {
        match self {
            Self::Borrowed(bytes) => Bytes::copy_from_slice(bytes),
            Self::Shared(bytes) => bytes.clone(),
            Self::Owned(bytes) if bytes.spilled() => Bytes::from(bytes.into_vec()),
            Self::Owned(bytes) => Bytes::copy_from_slice(&bytes),
        }
    }
}

/// A way to write values as bytes.
pub trait Encoding: Clone + Send + Sync + 'static {
    /// What the bytes are, as a media type.
    fn media_type(&self) -> &str;
}

/// An encoding that takes values of this type. Equal keys must have equal bytes.
pub trait Encode<T: ?Sized>: Encoding {
    /// The value's bytes.
    ///
    /// # Errors
    ///
    /// If there are none for it.
    fn encode<'a>(&self, value: &'a T) -> Result<Encoded<'a>, EncodingError>;
}

/// An encoding that gives values of this type.
pub trait Decode<T>: Encoding {
    /// The value with these bytes, which may be a part of something larger that was received: a value that keeps them
    /// keeps that.
    ///
    /// # Errors
    ///
    /// If there is none.
    fn decode(&self, bytes: Bytes) -> Result<T, EncodingError>;
}

/// Bytes as they are: `application/octet-stream`.
///
/// Values as [`Bytes`] are not copied on the way to their reader. One that was read from another member is a part of
/// the message that it came in (60 KB unless it is larger itself) and keeps that in memory: copy what is kept for long.
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

/// The default: values of serde's as [postcard](https://postcard.jamesmunns.com/wire-format) writes them,
/// `application/x-postcard`. Its form is stable, small and quickly read.
///
/// It says nothing of types: a struct is its fields in their order, a variant its place. A type may therefore not change
/// as long as a cache has values of it, except by further variants at the end of an enum; what is to grow is best an enum
/// of versions. Equal keys have equal bytes as long as their serde implementation is a function of what is equal: maps
/// and sets without order are no keys.
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

/// Where postcard writes.
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
