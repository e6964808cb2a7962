//! The layers, one file each.

pub mod transport;

pub use transport::{BundlerKind, Transport, TransportKind, TransportLayerConfig};
