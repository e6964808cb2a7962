//! Values as Infinispan's clients wrap them in protobuf (`application/x-protostream`), and what clients and servers exchange in
//! queries. No IO, and no schemas.

#![forbid(unsafe_code)]

mod request;
mod response;
pub mod wire;
pub mod wrapped;

pub use request::{QueryRequest, RequestError};
pub use response::{QueryResponse, ResponseError};
pub use wrapped::Wrapped;
