//! The Hot Rod client: caches of servers, with the verbs of the embedded cache.
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
//! Versions 3.0 to 4.1 are spoken, the newest that both sides know. With the feature `legacy` also 2.0 to 2.9: servers that do
//! not understand 3.0 are spoken to in the newest of them that they do understand, each tried on a connection of its own. What
//! the spoken version does not have fails with [`ClientError::Unsupported`], which names the version that has it.
//!
//! # Connections
//!
//! A client has one connection to each server, however many tasks use it: what they ask is written together, answers come
//! in any order and are found by their ids. From the answers it learns which servers a cluster has, and which of them own
//! which keys, and sends requests there. Of all that, decisions are made in parts without IO (`connection`, `slots`,
//! `routing`, `pause`); around them is a task per server.
//!
//! Who asks for more than a connection has room for waits, in order. Every operation has a deadline, which includes that.
//!
//! # Who one is
//!
//! With `hotrods://` all connections are within TLS. A user and its password in the address, or another way to show who one
//! is ([`ClientBuilder`]), are shown on every new connection before anything else is asked, in the strongest way that both
//! sides can. Without TLS no password or token is sent as it is unless that mechanism is asked for by name: who only claims
//! to be the server could have it. With SCRAM the server has to know the user, too, or it is not believed.
//!
//! # When servers fail
//!
//! A connection that is lost is made again, after pauses that double from 50 ms to 5 s. Meanwhile requests go to other
//! servers. Those that were under way are repeated there if that makes no difference: reads, and writes of which nothing
//! was sent. Other writes fail with [`ClientError::Uncertain`]: nobody can know whether they were done.
//! [`ClientError::may_be_done`] tells it of any error.
//!
//! # Sites
//!
//! A client can be given other clusters to go on with: when none of the servers of the one can be reached any more, or by
//! hand. Each has its own caches, whether their servers copy what is written to each other or not.
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
//! [`Cache::listen`] gives a stream of what changes, [`Counter::listen`] one of how a counter changes, and [`Cache::near`] a
//! handle that keeps what it has read and forgets it when it has changed. All are told on the connection that everybody
//! shares. Where changes may be missing, because a server was lost or a reader was too slow, a listener is told of a gap, and
//! a near cache is emptied.
//!
//! # Memory
//!
//! Values as [`bytes::Bytes`] are not copied: they are parts of what was received, up to 64 KB unless they are larger
//! themselves, and keep that in memory. Copy what is kept for long.
//!
//! A large value need not be in memory at once: a [`ValueReader`] and a [`ValueWriter`] have nine and seven pieces of it at most,
//! of [`PIECE_BYTES`], and what others ask goes between them.
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
mod bounds;
mod bulk;
mod cache;
mod client;
mod clock;
mod compute;
mod connection;
mod counter;
mod counter_events;
mod credentials;
mod driver;
mod error;
mod filter;
mod hearing;
mod iteration;
mod link;
mod listeners;
mod login;
mod multimap;
mod near;
mod older;
mod operation;
mod options;
mod pause;
mod pieces;
mod query;
mod reader;
mod routing;
mod security;
mod server;
mod sinks;
mod sites;
mod slots;
mod standing;
mod stream;
mod uri;
mod writer;

pub use admin::{Administration, CacheLoss};
pub use bounds::{EVENTS_MAX, KEY_BYTES_MAX, PIECE_BYTES, TIMEOUT, VALUE_BYTES_MAX};
pub use cache::{Cache, Entry, RawCache, Version};
pub use client::{Client, ClientBuilder, ServerState};
pub use connection::Traffic;
pub use consort_encoding::{Decode, Encode, Encoded, Encoding, EncodingError, Postcard, Raw};
pub use consort_hotrod::ops::counter::{CounterConfig, CounterKind};
pub use consort_hotrod::ops::event::CounterState;
pub use consort_hotrod::{Flags, Intelligence, ProtocolVersion, ServerAddress, Status};
pub use consort_protostream::Wrapped;
pub use consort_sasl::{Mechanism, scram::Hash, scram::ScramError};
pub use consort_tls::{Identity, Roots, TlsError};
pub use counter::Counter;
pub use counter_events::{CounterEvent, CounterEvents, CounterListenBuilder, CounterValue};
pub use error::{ClientError, ConnectError, ConnectionError, KeysError};
pub use filter::Filter;
pub use iteration::Walk;
pub use listeners::{EntryEvent, Event, EventKind, Events, ListenBuilder};
pub use login::LoginError;
pub use multimap::Multimap;
pub use near::{Near, NearStats};
pub use options::{CacheOptions, Lifetime};
pub use query::{Found, Query};
pub use reader::ValueReader;
pub use sites::DEFAULT_CLUSTER;
pub use stream::Tls;
pub use uri::DEFAULT_PORT;
pub use writer::ValueWriter;

/// The programs in the README are compiled, too.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// So are those in the book's first steps.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/book/src/first-steps.md")]
struct FirstSteps;
