//! Infinispan's protobuf wrapping of values (`application/x-protostream`) and the messages of queries.
//! Without IO and schemas.

#![forbid(unsafe_code)]

mod request;
mod response;
pub mod wire;
pub mod wrapped;

pub use request::{QueryRequest, RequestError};
pub use response::{QueryResponse, ResponseError};
pub use wrapped::Wrapped;
