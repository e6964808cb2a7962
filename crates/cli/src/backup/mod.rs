//! `consort backup` and `consort restore`: caches, counters and schemas in an archive that Infinispan reads and writes, too.

mod archive;
mod restore;
mod save;
mod stored;

pub(crate) use self::restore::Restore;
pub(crate) use self::save::Backup;

/// Where servers keep schemas.
const SCHEMAS: &str = "___protobuf_metadata";
/// Errors of schemas, which servers make anew.
const ERRORS: &str = ".errors";

use std::time::{Duration, Instant};

use consort_procstat::grouped;

/// How often a cache with many entries is reported on.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);

/// The entries of one cache, and lines of progress on standard error.
struct Count {
    cache: String,
    reported: Instant,
    entries: u64,
    bytes: u64,
}

impl Count {
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
