//! Exchanges of the group's key for ASYM_ENCRYPT: layers below it that fetch the key and serve it to others (facts section 22.4).

mod dh;
mod ssl;

pub use dh::{DhKeyExchange, DhKeyExchangeConfig};
pub use ssl::{SslKeyExchange, SslKeyExchangeConfig};
