//! The Hot Rod server over a [`consort_cache::CacheManager`]. It serves unmodified clients of the protocol versions 2.0 to 4.1.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use consort_cache::CacheManager;
//! use consort_server::Server;
//!
//! let manager = CacheManager::from_file("tcp.xml")?.name("A").connect("shop").await?;
//! let server = Server::builder().port(11222).start(manager).await?;
//! println!("Hot Rod on {}", server.address());
//! server.serve_until(std::future::pending()).await?;
//! # Ok(())
//! # }
//! ```
//!
//! It executes operations on one key with all their conditions, flags and previous values, bulk operations, statistics,
//! iterations, queries, listeners and near caches, counters, multimaps, values in pieces, transactions, the administration of
//! caches, and protobuf schemas. Clients get topologies, and send requests to the owners themselves. An operation that the server
//! lacks gets an error response and is not in the response to PING.
//!
//! If a cache's definition names media types, the server converts between the clients' types and the cache's. Data that outlive
//! all servers are in a directory ([`ServerBuilder::data`]). With users every client has to authenticate, and has its roles'
//! permissions ([`ServerBuilder::users`]). With a certificate the server accepts TLS only ([`ServerBuilder::tls`]). The same port
//! serves the health and the metrics in HTTP ([`ServerBuilder::public_metrics`]).
//!
//! Each connection is one task. It starts requests in the order of arrival, and writes responses in that of completion. A read of
//! a key that this member owns completes in this task; a request that waits for other members has its own. The server stops
//! reading from a client that does not read. Until a client is authenticated, low-priority threads serve it.

#![forbid(unsafe_code)]

pub mod limits;

#[doc(hidden)]
pub mod fuzzing;

mod catalog;
mod compute_pool;
mod connection;
mod events;
mod http;
mod media;
mod memory;
mod metrics;
mod names;
mod ops;
mod query_plans;
mod reply;
mod security;
mod server;
mod server_file;
mod shutdown;
#[cfg(test)]
mod single_member;
mod transactions;
mod transport;

pub use catalog::data_directory::DataError;
pub use catalog::definition::{CacheDefinitions, CacheDefinitionsError, DefinitionError, amount_of_bytes};
pub use catalog::predefined::{CachesHandle, PredefinedError};
pub use catalog::predefined_schemas::{SchemaFile, SchemaFileError};
pub use ops::filter::{KEY_PREFIX, VALUE_PREFIX};
pub use security::{
    LineError, Permission, Role, SecurityError, TlsHandle, TokenKeyError, Tokens, TokensHandle, Users,
    UsersError, UsersHandle, VERIFIER_ITERATIONS, line_for,
};
pub use server::{Server, ServerBuilder, ServerError};
pub use server_file::{
    ClusterSettings, Effective, FileRoles, OptionsBeside, Place, Problem, RealmFiles, ServerFile, Severity,
    is_server_file,
};

pub use consort_memory::Budget;
pub use consort_sasl::{Mechanism, scram::Hash};
pub use consort_tls::{
    ClientCertificates, Identity, IdentityFiles, ListenerFiles, ProtocolSettings, Roots, TlsError, TrustFile,
};
