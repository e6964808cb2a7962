//! The Hot Rod server over a [`consort_cache::CacheManager`]: what unmodified Hot Rod clients of 2.0 to 4.1 ask of caches.
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
//! That is: operations on one key with all their conditions, flags and previous values, bulk operations, sizes and
//! statistics, walks over the entries, queries, listeners and near caches, counters, multimaps, values in pieces, transactions,
//! caches that are made and removed by administration, schemas of protobuf, and topologies for clients that go to the owners
//! themselves. What is not there is answered with an error that says so, and PING does not name it.
//!
//! A cache whose definition names media types converts what its clients take keys and values for. What is to outlive all
//! servers is kept in a directory ([`ServerBuilder::data`]).
//!
//! With users every client has to show who it is ([`ServerBuilder::users`]), and is held to what its roles permit; with
//! certificates everything is within TLS ([`ServerBuilder::tls`]).
//!
//! What begins with a word in capitals is HTTP: on the same port a server tells of its health, and its metrics in the form that
//! Prometheus reads ([`ServerBuilder::open_metrics`]).
//!
//! Each connection is one task. It reads what has come, begins every request at once, in their order, and writes what has
//! been answered together, in the order in which it was. A read of a key that this member owns ends where it begins;
//! what has to wait for other members waits beside the connection. A client that does not read is not read from. Until a
//! client is known, it is served by threads that step back behind the others.

#![forbid(unsafe_code)]

pub mod bounds;

mod addresses;
mod admin;
mod admin_error;
mod ahead;
mod aliases;
mod answer;
mod answering;
mod arrival;
mod availability;
mod bucket;
mod bulk;
mod caches;
mod changes;
mod compute;
mod computing;
mod connection;
mod converter;
mod counter;
mod counter_listeners;
mod counters;
mod data;
mod definition;
mod departure;
mod descriptors;
mod door;
mod failed_caches;
mod filter;
#[doc(hidden)]
pub mod foreign;
mod gathering;
mod health_port;
mod http;
mod iteration;
mod latency;
mod listeners;
mod map;
mod media;
mod memory;
mod multimap;
mod of_key;
mod pieces;
mod places;
mod predefined;
mod query;
mod receiving;
mod register;
mod room;
mod schemas;
mod security;
mod served;
mod server;
mod session;
mod shutdown;
mod stats;
mod strangers;
mod stream;
mod streams;
mod telemetry;
mod templates;
mod topology;
mod transactions;
mod transfer;
mod turn;
mod unasked;
mod waiting;

pub use data::DataError;
pub use definition::{CacheDefinitions, CacheDefinitionsError, DefinitionError, amount_of_bytes};
pub use filter::{KEY_PREFIX, VALUE_PREFIX};
pub use predefined::{CachesHandle, PredefinedError};
pub use security::{
    LineError, Permission, Role, SecurityError, TlsHandle, TokenKeyError, Tokens, TokensHandle, Users,
    UsersError, UsersHandle, VERIFIER_ITERATIONS, line_for,
};
pub use server::{Server, ServerBuilder, ServerError};

pub use consort_memory::Budget;
pub use consort_sasl::{Mechanism, scram::Hash};
pub use consort_tls::{ClientCertificates, Identity, Roots, TlsError};
