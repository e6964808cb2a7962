//! The asynchronous channel: messages, views, state, remote procedure calls, atomic counters, fork channels and sites.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use consort_channel::{Channel, Message};
//!
//! let channel = Channel::from_file("tcp.xml")?.name("A").connect("cluster").await?;
//! channel.send(Message::bytes(None, "hello")).await?;
//! println!("{}", channel.view_text());
//! channel.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! Features, all off by default: `dns` (SRV records and `dns_address` of DNS_PING), `kubernetes` (KUBE_PING), `jdbc` (JDBC_PING2).

#![forbid(unsafe_code)]

mod builder;
mod catch_panic;
mod channel;
mod delivery;
mod error;
mod gate;
mod key_exchange;
mod key_store;
mod receiver;
mod seed;
mod shared;
mod site_traffic;
mod up_handler;
mod warnings;
mod weak_channel;

pub mod counter;
pub mod fork;
pub mod probe;
pub mod relay;
pub mod rpc;

pub use builder::ChannelBuilder;
pub use channel::Channel;
pub use consort_group::protocols::flow::HOLD_LIMIT;
pub use consort_group::protocols::{DefaultPolicy, MembershipPolicy};
pub use consort_group::{
    Address, Flags, Member, Message, MessageBatch, Object, Payload, PhysAddr, Primitive, StateError,
    Transient, View, ViewId,
};
pub use consort_net::DriverWaker;
pub use delivery::{DeliveryPolicy, UnknownPolicy};
pub use error::{ConnectError, RpcError, SendError};
pub use receiver::{Delivery, IgnoringReceiver, Receiver};
pub use up_handler::{SendCapacity, UpHandler};
pub use weak_channel::WeakChannel;
