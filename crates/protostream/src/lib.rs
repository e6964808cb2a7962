//! Infinispan's protobuf wrapping of values (`application/x-protostream`), the messages of queries, and the entries of backups.
//! Without IO and schemas.
//!
//! ```
//! use consort_protostream::Wrapped;
//!
//! let bytes = Wrapped::Text("apples".to_owned()).write();
//! assert_eq!(Wrapped::read(bytes), Some(Wrapped::Text("apples".to_owned())));
//! ```

#![forbid(unsafe_code)]

pub mod backup;
mod request;
mod response;
pub mod wire;
pub mod wrapped;

pub use request::{QueryRequest, RequestError};
pub use response::{QueryResponse, ResponseError};
pub use wrapped::Wrapped;
