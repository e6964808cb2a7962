//! Members that work for each other, and the one that collects the figures.

mod cluster;
pub(crate) mod grid;
mod jgroups;
pub(crate) mod member;
mod menu;
pub(crate) mod mperf;
pub(crate) mod progress;
pub(crate) mod range;
mod report;
mod stop_condition;
pub(crate) mod uperf;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use consort_channel::IgnoringReceiver;
use serde::Serialize;

pub(crate) use self::cluster::{Cluster, Others, member_name};
use self::uperf::{Caller, Uperf};
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

pub(crate) async fn run_uperf(mut test: Uperf) -> anyhow::Result<ExitCode> {
    if test.jgroups {
        return jgroups::run(test).await;
    }
    let cluster =
        Cluster::assemble("uperf", &mut test.common, Arc::<Caller>::default(), IgnoringReceiver).await?;
    let Some(cluster) = cluster else { return Ok(ExitCode::SUCCESS) };
    let is_good =
        if test.menu { menu::serve(&mut test, &cluster).await? } else { test.round(&cluster).await? };
    cluster.close().await;
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

const JOIN_TIME_MAX: Duration = Duration::from_secs(60);

impl Common {
    pub(crate) fn measured(&self) -> Duration {
        Duration::from_secs_f64(self.time)
    }

    pub(crate) fn warmup(&self) -> Duration {
        Duration::from_secs_f64(self.warmup)
    }

    pub(crate) fn limit(&self) -> Duration {
        self.warmup() + self.measured() + Duration::from_secs(60)
    }

    pub(crate) fn show(&self, summary: &impl Serialize, rows: &[Vec<String>]) -> anyhow::Result<()> {
        if self.json {
            println!("{}", serde_json::to_string(summary)?);
        } else {
            print!("{}", crate::table::table(rows));
        }
        Ok(())
    }
}
