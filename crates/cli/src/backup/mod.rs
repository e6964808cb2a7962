//! `consort backup` and `consort restore`: caches, counters and schemas in an archive that Infinispan reads and writes, too.

mod archive;
mod definition;
mod restore;
mod save;
mod stored_bytes;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use consort_procstat::grouped;

pub(crate) use self::restore::Restore;
pub(crate) use self::save::Backup;
use crate::broken_pipe::print_error;
use crate::operator::{Target, print_text};
use crate::terminal::Escaped;

/// The cache in which servers keep schemas, by name.
const SCHEMAS: &str = "___protobuf_metadata";
/// The end of the name of a schema's errors. Servers generate such entries when they compile the schema.
const ERRORS: &str = ".errors";

/// The time between two lines of progress.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);

/// The options of both commands.
#[derive(Args)]
struct Options {
    /// Name of the archive; `consort backup` replaces no file
    file: PathBuf,
    #[command(flatten)]
    target: Target,
    /// Only this cache, without counters and schemas; repeat it for several caches
    #[arg(long = "cache", value_name = "NAME")]
    caches: Vec<String>,
    /// Print the numbers of entries and the bytes of their keys and values as JSON
    #[arg(long)]
    json: bool,
}

impl Options {
    /// Whether the archive's part is that of the whole cluster, with counters and schemas.
    const fn is_whole(&self) -> bool {
        self.caches.is_empty()
    }

    fn print(&self, totals: &Totals, json: &serde_json::Value) -> anyhow::Result<()> {
        if self.json {
            return print_text(&format!("{json}\n"));
        }
        if self.is_whole() {
            println!("counters: {}\nschemas: {}", totals.counters, totals.schemas);
        }
        Ok(())
    }
}

/// The numbers of parts beside caches, and the parts that are missing.
#[derive(Default, Debug)]
struct Totals {
    counters: usize,
    schemas: usize,
    failures: Failures,
}

impl Totals {
    fn json(&self, caches: Vec<serde_json::Value>) -> serde_json::Value {
        serde_json::json!({"caches": caches, "counters": self.counters, "schemas": self.schemas})
    }
}

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
            eprintln!("{} so far", self.line());
        }
    }

    fn line(&self) -> String {
        format!("{}: {} entries", Escaped(&self.cache), grouped(self.entries as f64))
    }

    fn json(&self) -> serde_json::Value {
        serde_json::json!({"name": self.cache, "entries": self.entries, "bytes": self.bytes})
    }
}

/// The errors of single parts, after which a command continues. Each is printed at once.
#[derive(Default, Debug)]
struct Failures {
    count: u64,
    /// The texts of the first ones.
    #[cfg(test)]
    first: Vec<String>,
}

impl Failures {
    fn add(&mut self, failure: String, error: anyhow::Error) {
        let error = error.context(failure);
        self.count += 1;
        #[cfg(test)]
        self.first.push(format!("{error:#}"));
        print_error(&error, ExitCode::from(2));
    }

    const fn exit_code(&self) -> u8 {
        if self.count == 0 { 0 } else { 2 }
    }
}
