//! A way to wake the driver for those who have put something where its application will look.

use std::sync::Arc;

use crate::signals::Signals;

/// Wakes a driver. Cheap to clone and to ring: until the driver looks, all but the first ring cost one atomic
/// operation. It does not keep the driver running, and rings in vain when that has ended.
#[derive(Clone)]
pub struct Bell {
    signals: Arc<Signals>,
}

impl Bell {
    pub(crate) fn new(signals: &Arc<Signals>) -> Self {
        Self { signals: signals.clone() }
    }

    /// Asks for a cycle. One begins after this, and sees what the caller has written before: it asks the application
    /// for messages ([`crate::Application::poll_message`]) and for its deadline.
    pub fn ring(&self) {
        self.signals.ring();
    }
}

impl std::fmt::Debug for Bell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Bell")
    }
}
