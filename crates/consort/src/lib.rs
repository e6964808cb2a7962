#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

#[cfg(feature = "cache")]
pub use consort_cache as cache;
#[cfg(feature = "channel")]
pub use consort_channel as channel;
#[cfg(feature = "client")]
pub use consort_client as client;
/// Stack files and their variables.
#[cfg(feature = "channel")]
pub use consort_conf as config;
/// The protocol stack, for layers of a program's own.
#[cfg(feature = "channel")]
pub use consort_group as stack;
#[cfg(feature = "server")]
pub use consort_server as server;
/// Certificates and keys.
#[cfg(any(feature = "client", feature = "server"))]
pub use consort_tls as tls;

#[cfg(feature = "cache")]
pub use cache::{Cache, CacheConfig, CacheManager};
#[cfg(feature = "channel")]
pub use channel::Channel;
#[cfg(feature = "client")]
pub use client::Client;
#[cfg(feature = "server")]
pub use server::Server;
