//! The log of a test.

use std::io;
use std::sync::{Arc, Mutex};

use tracing::subscriber::{DefaultGuard, set_default};

/// The logged lines.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Captures this thread's lines that pass the filter, until the guard is dropped. A test's members run on
    /// its thread unless they have a runtime of their own.
    pub fn begin(filter: &str) -> (Self, DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        (log, set_default(subscriber))
    }

    /// Takes the lines since the last call.
    ///
    /// # Panics
    ///
    /// If a thread has panicked while it logged, or a line is not UTF-8.
    pub fn take(&self) -> String {
        String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
