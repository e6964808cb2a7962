//! The part of a cache's API that embedded caches and the client share: the basic operations ([`BasicCache`]), encodings
//! of keys and values, lifetimes, and kinds of events.
//!
//! ```
//! use consort_encoding::{Decode, Encode, Encoding, Postcard};
//!
//! let encoded = Postcard.encode(&("apples", 3_u32))?.into_bytes();
//! let decoded: (String, u32) = Postcard.decode(encoded)?;
//! assert_eq!(decoded, ("apples".to_owned(), 3));
//! assert_eq!(Postcard.media_type(), "application/x-postcard");
//! # Ok::<(), consort_encoding::EncodingError>(())
//! ```
//!
//! All members must use the same encodings of a cache: the media types are part of its configuration, and a member with
//! others is refused.

#![forbid(unsafe_code)]

mod basic_cache;
mod codec;
mod encoding;
mod event;
#[cfg(feature = "json")]
mod json;
mod lifetime;
pub mod optimistic_update;

pub use basic_cache::{BasicCache, Exchange, VersionedValue};
pub use codec::Codec;
pub use encoding::{Decode, Encode, EncodeBorrowed, Encoded, Encoding, EncodingError, Postcard, Raw};
pub use event::EventKind;
#[cfg(feature = "json")]
pub use json::Json;
pub use lifetime::Lifetime;
pub use optimistic_update::Contention;
