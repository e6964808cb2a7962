//! What the sockets of layers take from the transport.

use super::streams::StreamSettings;
use crate::tcp::links::LinkSettings;

/// Settings of the sockets that layers open.
pub(crate) struct EffectSettings {
    /// Of connections to members.
    pub(crate) links: LinkSettings,
    /// Of connections to routers.
    pub(crate) router_links: LinkSettings,
    /// Of streams of bytes.
    pub(crate) streams: StreamSettings,
    /// Whether the transport's packets go through connections that its layer opens.
    pub(crate) is_tunnel: bool,
}
