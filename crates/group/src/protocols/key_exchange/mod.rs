//! Exchanges of the group's key for ASYM_ENCRYPT: layers below it that fetch the key and serve it to others (facts section 22.4).

mod ssl;

pub use ssl::{SslKeyExchange, SslKeyExchangeConfig};
