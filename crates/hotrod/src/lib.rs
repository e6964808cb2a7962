//! The Hot Rod protocol, versions 2.0 to 4.1, without IO: codecs of clients and servers, and the hash
//! functions that both must share.
//!
//! ```
//! use consort_hotrod::{ProtocolVersion, hash};
//!
//! // Clients and servers compute the same segment of a key.
//! assert_eq!(hash::segment_of(b"apples", 256), hash::segment_of(b"apples", 256));
//! assert!(hash::segment_of(b"apples", 256) < 256);
//! assert_eq!(ProtocolVersion::NEWEST, ProtocolVersion::V4_1);
//! ```
//!
//! [`RequestDecoder`] and [`ResponseDecoder`] accept any fragmentation, inspect each byte once, and check every length
//! against [`Limits`] before waiting for data. Keys and values are slices of the received buffers; large ones are written
//! without a copy.
//!
//! A response is encoded for the version of its request ([`RequestContext`]). Where Infinispan's documentation and code
//! differ, this crate follows the code (facts section 13).

#![forbid(unsafe_code)]

pub mod bloom;
pub mod hash;
pub mod ops;

mod bit_set;
mod error;
mod expiration;
mod header;
mod intelligence;
mod layout;
mod limits;
mod media_type;
mod metadata;
mod opcode;
mod output;
mod reader;
mod request;
mod response;
mod status;
mod text;
mod topology;
mod version;

pub use bit_set::BitSet;
pub use error::{DecodeError, Reason, RequestError};
pub use expiration::{Expiration, Span, TimeUnit};
pub use header::{CLOSE_NOTICE_PARAM, Flags, REQUEST_MAGIC, RequestHeader};
pub use intelligence::Intelligence;
pub use layout::RequestContext;
pub use limits::Limits;
pub use media_type::{MediaType, Params};
pub use metadata::{Metadata, Previous, Timed};
pub use opcode::{Family, Opcode};
pub use output::Output;
pub use request::{Request, RequestBody, RequestDecoder, RequestHead};
pub use response::{Incoming, RESPONSE_MAGIC, Response, ResponseBody, ResponseDecoder};
pub use status::Status;
pub use text::Text;
pub use topology::{CacheTopology, Owners, ServerAddress};
pub use version::ProtocolVersion;
