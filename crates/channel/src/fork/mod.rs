//! Fork channels: several channels that share the member of one, as JGroups' ForkChannel; the stack of all members needs FORK.
//!
//! A message of a fork channel has the ids of its fork stack and fork channel, and reaches the fork channels with the same ids
//! at its destination. A member without such a fork channel discards it with a warning. Views are those of the channel, which all
//! fork channels outlive or leave together with. Fork stacks have no protocols of their own, and fork channels no state.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use consort_channel::{Channel, IgnoringReceiver, Message};
//!
//! // The stack contains <FORK/>.
//! let channel = Channel::from_file("forks.xml")?.connect("cluster").await?;
//! let orders = channel.fork("shop", "orders", IgnoringReceiver)?;
//! orders.send(Message::bytes(None, "an order")).await?;
//! # Ok(())
//! # }
//! ```

mod error;
mod fork_channel;
mod handler;
mod limits;

pub(crate) use handler::ForkHandler;

pub use error::ForkError;
pub use fork_channel::ForkChannel;
pub use limits::{FORK_CHANNELS_MAX, FORK_ID_BYTES_MAX};
