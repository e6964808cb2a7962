use std::future::Future;
use std::pin::Pin;

use consort_group::{Address, RelayEvent};

pub(crate) type Pending<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// The bridges as a channel with RELAY2 or RELAY3 uses them. They are channels themselves.
pub(crate) trait SiteTraffic: Send + Sync {
    /// Handles an event of the layer, on the driver's task.
    fn handle(&self, event: RelayEvent);

    /// Returns whether the application may send a message to a destination (`None`: to all). It may not while too much of a site
    /// master waits for bridges.
    fn has_room(&self, dest: Option<&Address>) -> bool;

    /// Waits until there is room.
    fn wait_for_room(&self) -> Pending<'_>;

    /// Closes the bridges, and waits for it.
    fn shut_down(&self) -> Pending<'_>;
}
