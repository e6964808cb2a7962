//! A waker for the driver's task.

use std::sync::Arc;

use crate::signals::Signals;

/// Wakes a driver's task. It is cheap to clone. Until the driver runs, every wake-up but the first costs one atomic
/// operation. It does not keep the driver running, and has no effect after the driver has ended.
#[derive(Clone)]
pub struct DriverWaker {
    signals: Arc<Signals>,
}

impl DriverWaker {
    pub(crate) fn new(signals: &Arc<Signals>) -> Self {
        Self { signals: signals.clone() }
    }

    /// Requests a cycle that begins after this call and sees the caller's earlier writes. In it the driver asks the
    /// application for messages ([`crate::Application::poll_message`]) and for its deadline.
    pub fn wake(&self) {
        self.signals.wake();
    }
}

impl std::fmt::Debug for DriverWaker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DriverWaker")
    }
}
