//! Messages and events between RELAY2 or RELAY3 and the bridges, clusters of site masters that the channel opens.

use std::sync::Arc;

use crate::{Address, ForwardRule, Message};

/// An event of RELAY2 or RELAY3 for the channel.
#[derive(Clone, PartialEq, Debug)]
pub enum RelayEvent {
    /// The member became site master: its bridges have to be opened.
    OpenBridges,
    /// The member ceased to be site master: its bridges have to be closed.
    CloseBridges,
    /// A message for a bridge.
    Send(BridgeSend),
    /// Sites that are reachable now.
    SitesUp(Vec<Arc<str>>),
    /// Sites that are no longer reachable.
    SitesDown(Vec<Arc<str>>),
    /// A message of this member has not reached its site.
    SiteUnreachable(Arc<str>),
    /// The view of the destination's site does not have the destination of a message (RELAY3).
    MemberUnreachable(Address),
}

/// A message for a bridge.
#[derive(Clone, PartialEq, Debug)]
pub struct BridgeSend {
    /// The bridge's number in the site's configuration.
    pub bridge: usize,
    /// The message to a site master.
    pub message: Message,
    /// The local sender's credit. It returns when the bridge has taken the message, so that a slow bridge slows senders.
    pub credit: Option<HeldCredit>,
}

/// A sender's credit that a bridge holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeldCredit {
    /// The sender.
    pub src: Address,
    /// Whether the message was multicast.
    pub is_multicast: bool,
    /// Bytes.
    pub bytes: u64,
}

/// An input of RELAY2 or RELAY3 from a bridge.
#[derive(Clone, PartialEq, Debug)]
pub enum BridgeInput {
    /// The bridge's members; none if it is closed.
    View {
        /// The bridge's number.
        bridge: usize,
        /// The members' addresses, which have their sites.
        members: Vec<Address>,
    },
    /// The ways over other sites, for RELAY3. They replace earlier ones.
    Forwards(Vec<ForwardRule>),
    /// A message from another site master.
    Message {
        /// The bridge's number.
        bridge: usize,
        /// The message.
        message: Message,
    },
}
