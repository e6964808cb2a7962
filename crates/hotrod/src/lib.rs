//! The Hot Rod protocol, versions 2.0 to 4.1, without any IO: what clients and servers write to each other and read from
//! each other, and what they have to agree on besides.
//!
//! [`Request`]s are read by a [`RequestDecoder`] and written by [`Request::encode`]; [`Response`]s and events by a
//! [`ResponseDecoder`] and [`Response::encode`]. Decoders take bytes as they come, in whatever pieces, look at each once,
//! and hold every length against [`Limits`] before they wait for what is to follow. Keys and values are parts of what was
//! received, and large ones are written without being copied.
//!
//! Every request has a version of its own, and its response is written for it: [`RequestContext`] is what a response must know of
//! its request. Where Infinispan's documents and its code differ, this follows the code (facts section 13).

#![forbid(unsafe_code)]

pub mod bloom;
pub mod hash;
pub mod ops;

mod bit_set;
mod error;
mod expiration;
mod header;
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
pub use header::{CLOSE_NOTICE_PARAM, Flags, Intelligence, REQUEST_MAGIC, RequestHeader};
pub use layout::Asked;
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
