use std::sync::Arc;

use crate::signals::Signals;

/// Wakes a driver's task, cheap to clone. Before the driver runs, only the first wake-up is more than one atomic operation. It
/// does not keep the driver running.
#[derive(Clone)]
pub struct DriverWaker {
    signals: Arc<Signals>,
}

impl DriverWaker {
    pub(crate) fn new(signals: &Arc<Signals>) -> Self {
        Self { signals: signals.clone() }
    }

    /// Requests a cycle after this call, which sees the caller's writes and asks for messages
    /// ([`crate::Application::poll_message`]) and the deadline.
    pub fn wake(&self) {
        self.signals.wake();
    }
}

impl std::fmt::Debug for DriverWaker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DriverWaker")
    }
}
