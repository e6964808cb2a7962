//! `consort backup` and `consort restore`: caches, counters and schemas in an archive that Infinispan reads and writes, too.

mod archive;
mod definition;
mod restore;
mod save;
mod stored_bytes;
#[cfg(test)]
mod tests;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use consort_procstat::grouped;

pub(crate) use self::restore::Restore;
pub(crate) use self::save::Backup;
use crate::broken_pipe::print_error;

/// The cache in which servers keep schemas, by name.
const SCHEMAS: &str = "___protobuf_metadata";
/// The end of the name of a schema's errors. Servers generate such entries when they compile the schema.
const ERRORS: &str = ".errors";

/// The time between two lines of progress.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);

/// The entries of one cache, and lines of progress on standard error.
#[derive(Debug)]
struct CacheTally {
    cache: String,
    reported: Instant,
    entries: u64,
    /// Of keys and values.
    bytes: u64,
}

impl CacheTally {
    fn new(cache: &str) -> Self {
        Self { cache: cache.to_owned(), reported: Instant::now(), entries: 0, bytes: 0 }
    }

    fn add(&mut self, bytes: usize) {
        self.entries += 1;
        self.bytes += bytes as u64;
        if self.reported.elapsed() >= REPORT_INTERVAL {
            self.reported = Instant::now();
            eprintln!("{}: {} entries so far", self.cache, grouped(self.entries as f64));
        }
    }

    fn json(&self) -> serde_json::Value {
        serde_json::json!({"name": self.cache, "entries": self.entries, "bytes": self.bytes})
    }
}

/// The errors of single parts, after which a command continues. Each is printed at once.
#[derive(Default, Debug)]
struct Failures(Vec<String>);

impl Failures {
    fn add(&mut self, failure: String, error: anyhow::Error) {
        let error = error.context(failure);
        self.0.push(format!("{error:#}"));
        print_error(&error, ExitCode::from(2));
    }

    fn exit_code(&self) -> ExitCode {
        if self.0.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(2) }
    }
}
