//! Performance tests: members that work for each other, and the one that starts them and collects the figures.

pub(crate) mod member;
pub(crate) mod mperf;
mod process;
mod report;
pub(crate) mod uperf;

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context;
use clap::Args;

use crate::join::Join;

/// What both tests can be told.
#[derive(Args, Clone)]
pub(crate) struct Common {
    #[command(flatten)]
    pub(crate) join: Join,
    /// Members; all are started on this host unless --join.
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) members: usize,
    /// Concurrent senders per member.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) threads: usize,
    /// How long to measure, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    pub(crate) time: f64,
    /// How long to run before measuring, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    pub(crate) warmup: f64,
    /// Bytes per message.
    #[arg(long, value_name = "BYTES", default_value_t = 1_000)]
    pub(crate) size: usize,
    /// Prints one line of JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
    /// Only takes part: joins the cluster and works for whoever starts the test, until that member leaves.
    #[arg(long)]
    pub(crate) join_only: bool,
    /// Starts no other members on this host: waits for --members of them to join from elsewhere.
    #[arg(long, conflicts_with = "join_only")]
    pub(crate) start_none: bool,
}

/// The first port of members on this host: apart from JGroups' 7800, so that a test disturbs nobody.
const FIRST_PORT: u16 = 17_800;

/// How long members may take to find each other.
const JOIN_TIME_MAX: Duration = Duration::from_secs(60);

impl Common {
    pub(crate) fn measured(&self) -> Duration {
        Duration::from_secs_f64(self.time.max(0.1))
    }

    pub(crate) fn warmup(&self) -> Duration {
        Duration::from_secs_f64(self.warmup.max(0.0))
    }
}

/// Processes that were started; killed when dropped.
pub(crate) struct Others(pub(crate) Vec<Child>);

impl Drop for Others {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Starts the other members as processes of this very program.
pub(crate) fn start_others(
    test: &str,
    join: &Join,
    names: impl Iterator<Item = String>,
) -> anyhow::Result<Others> {
    let program = std::env::current_exe().context("where is this program?")?;
    let mut others = Others(Vec::new());
    for name in names {
        let child = Command::new(&program)
            .arg(test)
            .arg("--join-only")
            .args(join.arguments(&name))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("starting member {name}"))?;
        others.0.push(child);
    }
    Ok(others)
}

/// The names of members on this host: A, B, …, Z, M26, …
pub(crate) fn member_name(nth: usize) -> String {
    match u8::try_from(nth) {
        Ok(nth @ 0..26) => char::from(b'A' + nth).to_string(),
        _ => format!("M{nth}"),
    }
}
