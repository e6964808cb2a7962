use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;

use super::super::cluster::Cluster;
use super::super::events::{Event, Times};
use super::super::member::Order;
use super::record::{Fault, monotonic_ns};
use crate::perf::member_name;

pub(in crate::chaos) struct OperationsDirectory(PathBuf);

impl OperationsDirectory {
    pub(in crate::chaos) fn create() -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("consort-history-{}", std::process::id()));
        std::fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        Ok(Self(path))
    }

    pub(in crate::chaos) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for OperationsDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Repeats the events until `length` is over; one that has begun is completed.
pub(in crate::chaos) async fn work(
    cluster: &mut Cluster,
    events: &[Event],
    times: &Times,
    length: Duration,
) -> anyhow::Result<Vec<Fault>> {
    let begin = Instant::now();
    let mut faults = Vec::new();
    cluster.order_all(Order::Work).await?;
    let mut next = events.iter().cycle();
    loop {
        tokio::time::sleep(times.calm.min(length.saturating_sub(begin.elapsed()))).await;
        let event = next.next().filter(|_| begin.elapsed() < length);
        let Some(event) = event else { break };
        println!("{:>6.1} s  {}", begin.elapsed().as_secs_f64(), event.text(times));
        let from_ns = monotonic_ns();
        let done = event.cause(cluster, times).await?;
        faults.push(Fault {
            fault: event.text(times),
            members: done.faulty.iter().map(|&place| member_name(place)).collect(),
            excuses_reads: event.allows_stale_reads(),
            from_ns,
            to_ns: monotonic_ns(),
        });
        // A member that was started anew has no clients yet.
        cluster.order_all(Order::Work).await?;
    }
    cluster.order_all(Order::Stop).await?;
    Ok(faults)
}
