//! The Hot Rod client: caches on servers, with the operations of the embedded cache.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use consort_client::Client;
//!
//! let client = Client::connect("hotrod://127.0.0.1:11222").await?;
//! let stock = client.cache::<String, u32>("stock");
//! stock.put("apples", &3).await?;
//! assert_eq!(stock.get("apples").await?, Some(3));
//! # Ok(())
//! # }
//! ```
//!
//! The client negotiates the newest protocol version that both sides know, from 3.0 to 4.1. The feature `legacy` adds 2.0 to 2.9,
//! each tried on a new connection. An operation that the negotiated version lacks fails with [`ClientError::Unsupported`], which
//! names the needed version.
//!
//! # Embedded or remote
//!
//! A handle of `consort-cache` has the same operations. A function over [`BasicCache`] works with either:
//!
//! ```no_run
//! use consort_client::{BasicCache, Client};
//!
//! async fn deliver<C: BasicCache<str, u32>>(stock: &C) -> Result<Option<u32>, C::Error> {
//!     stock.put_if_absent("apples", &3).await?;
//!     stock.merge("apples", &10, |old, new| Some(old + new)).await
//! }
//!
//! # async fn example(manager: consort_cache::CacheManager) -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect("hotrod://127.0.0.1:11222").await?;
//! deliver(&client.cache::<String, u32>("stock")).await?;
//! // An embedded cache: `manager` is a `consort_cache::CacheManager`.
//! deliver(&manager.cache::<String, u32>("stock").await?).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Connections
//!
//! All tasks share one connection per server. Requests are written together; responses come in any order. The client learns
//! servers and owners of keys from responses, and routes requests to the owners. State machines without IO decide (`connection`,
//! `routing`, `backoff`); a task per server does the IO.
//!
//! Without room on a connection, callers wait in order, which counts towards the deadline.
//!
//! # Authentication
//!
//! `hotrods://` uses TLS. Each connection is authenticated before any other request, by the strongest mechanism of both sides
//! ([`ClientBuilder`]). Without TLS the client sends no password or token in clear text unless that mechanism is forced, because
//! an impostor could read it. With SCRAM the server must prove that it knows the user.
//!
//! # Failures of servers
//!
//! A lost connection is made again after delays that double from 50 ms to 5 s. Meanwhile other servers get the requests, and safe
//! repeats of those in flight: reads, and writes of which no byte was sent. Other writes fail with [`ClientError::Uncertain`].
//! [`ClientError::is_outcome_unknown`] classifies any error.
//!
//! # Failover clusters
//!
//! A client can fail over to other clusters when no server of the current one is reachable, or by hand. Each cluster has its own
//! caches, replicated or not.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use consort_client::Client;
//!
//! let client = Client::connect("hotrod://lon1,lon2?cluster.NYC=nyc1;nyc2").await?;
//! client.switch_to_cluster("NYC")?;
//! assert_eq!(client.cluster(), "NYC");
//! client.switch_to_default_cluster();
//! # Ok(())
//! # }
//! ```
//!
//! # Events and near caches
//!
//! [`Cache::listen`] and [`Counter::listen`] return streams of changes. [`Cache::near`] returns a handle that caches reads and
//! invalidates them on changes. After a possible loss of events (a lost server, a slow reader), a listener gets a gap event, and
//! a near cache is emptied.
//!
//! # Memory
//!
//! Values as [`bytes::Bytes`] are slices of receive buffers of up to 64 KB (or their own size if larger), which they keep in
//! memory: copy values that you keep for long.
//!
//! A [`ValueReader`] holds at most nine chunks of [`PIECE_BYTES`] of a large value, a [`ValueWriter`] seven; other requests go
//! between them.
//!
//! ```no_run
//! # async fn example(client: consort_client::Client) -> Result<(), Box<dyn std::error::Error>> {
//! let films = client.raw("films");
//! let mut writer = films.writer(&b"night"[..])?;
//! for scene in [&b"one"[..], &b"two"[..]] {
//!     writer.write(scene).await?;
//! }
//! writer.finish().await?;
//! if let Some(mut reader) = films.reader(&b"night"[..]).await? {
//!     while let Some(piece) = reader.next().await? {
//!         println!("{} bytes", piece.len());
//!     }
//! }
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod admin;
mod backoff;
mod bulk;
mod cache;
mod chunked_values;
mod client;
mod client_state;
mod clock;
mod cluster_switch;
mod compute;
mod connection;
mod counter;
mod counter_events;
mod counter_listeners;
mod error;
mod failover_clusters;
mod filter;
mod iteration;
mod limits;
mod listeners;
mod multimap;
mod near;
mod near_listener;
mod near_reads;
mod operation;
mod operator;
mod options;
mod query;
mod registration;
mod routing;
mod server;
mod subscription;
mod uri;
mod value_reader;
mod value_writer;

pub use admin::{Administration, CacheLoss};
pub use cache::{Cache, Entry, RawCache, Version};
pub use client::{Client, ClientBuilder, ServerState};
pub use connection::state_machine::Traffic;
pub use connection::stream::Tls;
#[cfg(feature = "json")]
pub use consort_encoding::Json;
pub use consort_encoding::{
    BasicCache, Contention, Decode, Encode, EncodeBorrowed, Encoded, Encoding, EncodingError, EventKind,
    Exchange, Lifetime, Postcard, Raw, VersionedValue,
};
pub use consort_hotrod::ops::counter::{CounterConfig, CounterKind};
pub use consort_hotrod::ops::event::CounterState;
pub use consort_hotrod::{Flags, Intelligence, ProtocolVersion, ServerAddress, Status};
pub use consort_protostream::Wrapped;
pub use consort_sasl::{Mechanism, scram::Hash, scram::ScramError};
pub use consort_tls::{Identity, Roots, TlsError};
pub use counter::Counter;
pub use counter_events::{CounterEvent, CounterEvents, CounterListenBuilder};
pub use counter_listeners::CounterValue;
pub use error::{ClientError, ConnectError, ConnectionError, KeysError, LoginError};
pub use failover_clusters::DEFAULT_CLUSTER;
pub use filter::{EncodePrefix, Filter};
pub use iteration::EntryStream;
pub use limits::{EVENTS_MAX, KEY_BYTES_MAX, PIECE_BYTES, TIMEOUT, VALUE_BYTES_MAX};
pub use listeners::{EntryEvent, Event, Events, ListenBuilder};
pub use multimap::Multimap;
pub use near::{NearCacheConfig, NearStats};
pub use operator::ConfigFormat;
pub use options::CacheOptions;
pub use query::{Query, QueryResult};
pub use uri::DEFAULT_PORT;
pub use value_reader::ValueReader;
pub use value_writer::ValueWriter;
