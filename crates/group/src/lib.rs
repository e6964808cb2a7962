//! The group communication stack as sans-IO state machines that speak the JGroups 5.5 wire format.
//!
//! ```
//! use std::time::Duration;
//!
//! use consort_group::config::Properties;
//! use consort_group::protocols::FdAll3Config;
//!
//! let mut config = FdAll3Config::default();
//! assert_eq!(config.set("timeout", "10s"), Some(Ok(())));
//! assert_eq!(config.timeout, Duration::from_secs(10));
//! assert_eq!(config.set("timeuot", "10s"), None);
//! ```
//!
//! Nothing here reads a clock, opens a socket, starts a thread or draws ambient randomness. Time, packets and outcomes enter
//! through `handle_*`; `poll_*` return packets, indications and effects (see [`Stack`]). A seed replays a whole cluster.

#![forbid(unsafe_code)]

mod address;
mod batch;
mod consumption;
mod context;
mod count_per_second;
mod credit;
mod digest;
mod event;
mod external_address;
mod forward_rule;
#[cfg(test)]
mod harness;
mod header;
#[cfg(feature = "injected-bugs")]
mod injected_bug;
mod kubernetes;
mod member;
mod message;
mod ping_data;
mod protocol;
mod queues;
mod relay_event;
mod retransmission;
mod rng;
mod secret_key;
mod site_address;
mod stack;
mod stack_count;
mod time;
mod timers;
mod version;
mod view;
mod window;

pub mod config;
pub mod database;
pub mod ids;
pub mod protocols;
pub mod trace;
pub mod wire;

#[cfg(test)]
use consort_testbed::vectors;

pub use address::{Address, AddressBook, ExtAddress, ExtKind, IpAddress, PhysAddr, Uuid};
pub use batch::{HeaderIds, MessageBatch};
pub use context::{DropReason, Drops, Severity, Shared};
pub use count_per_second::CountPerSecond;
pub use credit::OwedCredits;
pub use digest::{Digest, DigestEntry, SeqnoList};
pub use event::{
    Answer, ConnId, Control, DnsRecord, Effect, Event, Indication, Outcome, PacketPriority, Pass, PortState,
    Query, StateError, StreamOptions, StreamSecurity, Token, Transmit, TransmitDest,
};
pub use external_address::ExternalAddress;
pub use forward_rule::{FORWARDS_MAX, ForwardRule};
pub use header::*;
pub use ids::{MagicId, ProtocolId};
#[cfg(feature = "injected-bugs")]
pub use injected_bug::InjectedBug;
pub use kubernetes::{KubernetesQuery, PodInfo, PodList, PodSelector};
pub use member::Member;
pub use message::{EarlyBatch, Flags, Headers, Message, Object, Payload, Primitive, Transient};
pub use ping_data::PingData;
pub use protocol::{Cx, ProbeOut, Protocol};
pub use relay_event::{BridgeInput, BridgeSend, HeldCredit, RelayEvent};
pub use rng::Rng;
pub use secret_key::{KeyRequest, SecretKey};
pub use site_address::CAN_BECOME_SITE_MASTER;
pub use stack::{Stack, StackSetup};
pub use stack_count::StackCount;
pub use time::Time;
pub use timers::{TimerKey, Timers};
pub use version::Version;
pub use view::{DeltaView, MergeId, View, ViewId};
