//! Sites: clusters whose members send each other messages over bridges, as with JGroups' RELAY2 and RELAY3.
//!
//! The stack of all members has RELAY2 or RELAY3, whose `config` names a file with the sites and their bridges. A member that becomes
//! site master opens the bridges of its site, and closes them when it is one no longer.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use consort_channel::{Address, Channel, Message};
//!
//! // The stack contains <relay.RELAY2 site="lon" config="relay.xml"/>.
//! let channel = Channel::from_file("lon.xml")?.connect("lon").await?;
//! let sites = channel.sites().expect("the stack has RELAY2");
//! sites.wait_for("nyc").await?;
//! // To a site master of the other site; multicasts go to all sites.
//! channel.send(Message::bytes(Some(Address::site_master("nyc")), "hello")).await?;
//! channel.send(Message::bytes(None, "hello, all")).await?;
//! # Ok(())
//! # }
//! ```
//!
//! A message of another site has a sender that is an address of that site, and the response goes there. A site without a route
//! is unreachable: messages for it are discarded, and the [`SiteListener`] of their sender is called.

mod bridge;
mod handler;
mod limits;
mod listener;
mod listener_queue;
mod outbound;
mod setup;
mod sites;

pub(crate) use handler::RelayHandler;
pub(crate) use setup::RelaySetup;

pub use limits::{LISTENER_BYTES_MAX, LISTENER_EVENTS_MAX, OUTBOUND_BYTES_MAX, OUTBOUND_WAIT_BYTES};
pub use listener::{SiteListener, SiteStatus};
pub use sites::Sites;
