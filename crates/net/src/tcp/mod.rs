pub(crate) mod framed;
#[cfg(feature = "tls")]
pub(crate) mod key_exchange_tls;
pub(crate) mod links;
pub(crate) mod listen;
pub(crate) mod queue;
mod retransmit_limits;
pub(crate) mod setup;
pub(crate) mod stream;
pub(crate) mod tls;

mod edge;

pub(crate) use edge::{BoundTcp, link_settings};
