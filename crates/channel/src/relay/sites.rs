use std::sync::Arc;

use tokio::sync::watch;

use super::handler::RelayHandler;
use super::listener::SiteStatus;
use crate::channel::Channel;
use crate::error::SendError;

/// The sites that a channel can reach.
#[derive(Clone)]
pub struct Sites {
    handler: Arc<RelayHandler>,
}

impl Channel {
    /// Returns the sites, if the stack has RELAY2 or RELAY3.
    pub fn sites(&self) -> Option<Sites> {
        Some(Sites { handler: self.extension::<RelayHandler>()? })
    }
}

impl Sites {
    /// Returns the own site's name.
    pub fn own(&self) -> &str {
        self.handler.site()
    }

    /// Returns what this member knows now.
    pub fn status(&self) -> SiteStatus {
        self.handler.status().borrow().clone()
    }

    /// Returns a receiver of changes.
    pub fn watch(&self) -> watch::Receiver<SiteStatus> {
        self.handler.status().subscribe()
    }

    /// Waits until a site can be reached.
    ///
    /// # Errors
    ///
    /// [`SendError::Closed`]: the channel is closed.
    pub async fn wait_for(&self, site: &str) -> Result<(), SendError> {
        let mut status = self.watch();
        let found = status.wait_for(|status| status.reachable.iter().any(|known| **known == *site)).await;
        found.map(|_| ()).map_err(|_| SendError::Closed)
    }

    /// Returns how many messages for other sites have been dropped because too many waited for a bridge.
    pub fn dropped(&self) -> u64 {
        self.handler.dropped()
    }

    /// Returns how many events the listener has missed, because too many waited for it ([`LISTENER_EVENTS_MAX`] and
    /// [`LISTENER_BYTES_MAX`]). [`Sites::status`] has the sites that can be reached all the same.
    ///
    /// [`LISTENER_EVENTS_MAX`]: super::LISTENER_EVENTS_MAX
    /// [`LISTENER_BYTES_MAX`]: super::LISTENER_BYTES_MAX
    pub fn dropped_events(&self) -> u64 {
        self.handler.dropped_events()
    }
}

impl std::fmt::Debug for Sites {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "sites of a member of {}: {:?}", self.own(), self.status())
    }
}
