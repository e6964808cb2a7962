//! Performance tests: members that work for each other, and the one that starts them and collects the figures.

mod cluster;
mod extent;
pub(crate) mod grid;
pub(crate) mod member;
mod menu;
pub(crate) mod mperf;
pub(crate) mod progress;
pub(crate) mod range;
mod report;
pub(crate) mod uperf;

use std::time::Duration;

use clap::Args;
use serde::Serialize;

pub(crate) use self::cluster::{Cluster, Others, member_name};
use crate::join::Join;

/// The options of both tests.
#[derive(Args, Clone)]
pub(crate) struct Common {
    #[command(flatten)]
    pub(crate) join: Join,
    /// Number of members, started on this host unless --start-none is set
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = range::members)]
    pub(crate) members: usize,
    /// Concurrent senders per member.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = range::threads)]
    pub(crate) threads: usize,
    /// Duration of the measurement, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = range::seconds)]
    pub(crate) time: f64,
    /// Duration of the load before the measurement, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = range::warmup)]
    pub(crate) warmup: f64,
    /// Bytes per message.
    #[arg(long, value_name = "BYTES", default_value_t = 1_000, value_parser = range::size)]
    pub(crate) size: usize,
    /// Print one line of JSON instead of tables
    #[arg(long)]
    pub(crate) json: bool,
    /// Only take part: work for the member that starts the test, until that member leaves
    #[arg(long)]
    pub(crate) join_only: bool,
    /// End when standard input ends
    #[arg(long, hide = true, requires = "join_only")]
    pub(crate) with_parent: bool,
    /// Start no members: wait for --members that are started elsewhere
    #[arg(long, conflicts_with = "join_only")]
    pub(crate) start_none: bool,
}

/// How long members may take to find each other.
const JOIN_TIME_MAX: Duration = Duration::from_secs(60);

impl Common {
    pub(crate) fn measured(&self) -> Duration {
        Duration::from_secs_f64(self.time)
    }

    pub(crate) fn warmup(&self) -> Duration {
        Duration::from_secs_f64(self.warmup)
    }

    /// How long members may take to answer that a run by time is over.
    pub(crate) fn limit(&self) -> Duration {
        self.warmup() + self.measured() + Duration::from_secs(60)
    }

    /// Prints the results of a test: the summary as JSON, or the rows as a table.
    pub(crate) fn show(&self, summary: &impl Serialize, rows: &[Vec<String>]) -> anyhow::Result<()> {
        if self.json {
            println!("{}", serde_json::to_string(summary)?);
        } else {
            print!("{}", crate::table::table(rows));
        }
        Ok(())
    }
}
