//! `consort iterate` (S004-12, S004-22).

use std::process::ExitCode;

use clap::Args;
use consort_procstat::grouped;
use serde::Serialize;

use super::Grid;
use super::iteration_load::{IterationLoad, IterationResult, Take, Way, word};
use super::settings::Settings;
use crate::join::Join;

/// Measure how fast one member iterates over all entries of a cache that several members share.
///
/// The reader drops the entries. Every combination of the options with commas is measured. The last column compares its rate
/// with the rate of the same entries in the first mode, manner and batch size.
#[derive(Args)]
#[command(
    mut_arg("cluster", |cluster| cluster.default_value("default")),
    after_help = "Examples:\n  \
    consort iterate --ways parallel,sequential,at-most-once \\\n    \
    --takes entries,bytes,answers\n  \
    consort iterate --members 6 --readers 4 --entries 10000,100000 \\\n    \
    --sizes 100,1000 --batches 128,512,5120\n\n\
    The exit code is 1 if an entry is missing or comes more than once."
)]
pub(crate) struct Iterate {
    #[command(flatten)]
    join: Join,
    /// Member processes on this host.
    #[arg(long, value_name = "N", default_value_t = 3)]
    members: usize,
    /// Members that have each key.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    owners: u16,
    /// Numbers of entries.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "100000")]
    entries: Vec<u32>,
    /// Bytes of a value.
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',', default_value = "100,1000")]
    sizes: Vec<usize>,
    /// Entries that may be fetched and not yet consumed
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "512,5120")]
    batches: Vec<usize>,
    /// Modes of iteration
    #[arg(long, value_enum, value_name = "WAY,…", value_delimiter = ',', default_value = "parallel")]
    ways: Vec<Way>,
    /// How the reader takes entries
    #[arg(long, value_enum, value_name = "HOW,…", value_delimiter = ',', default_value = "entries")]
    takes: Vec<Take>,
    /// Readers at the same time, all in one member.
    #[arg(long, value_name = "N", default_value_t = 1)]
    readers: usize,
    /// Seconds of each measurement; a pass that has begun is completed
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    time: f64,
    /// Seconds of load before each measurement
    #[arg(long, value_name = "SECONDS", default_value_t = 0.3)]
    warmup: f64,
    /// Print one line of JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// From which percent on a change of the rate is marked (S004-22).
const MARKED: f64 = 5.0;

#[derive(Serialize)]
struct Point {
    entries: u32,
    size: usize,
    batch: usize,
    way: Way,
    take: Take,
    /// Of all readers.
    entries_sec: f64,
    mb_sec: f64,
    cpu_us: f64,
    /// The largest of a member so far.
    rss_mb: f64,
    passes: u64,
    /// Percent against the first combination of the same entries.
    change: f64,
}

#[derive(Serialize)]
struct Summary {
    test: &'static str,
    members: usize,
    owners: u16,
    readers: usize,
    seconds: f64,
    points: Vec<Point>,
    errors: u64,
}

impl Iterate {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let mut numbers = self.entries.clone();
        // Keys are added, never removed.
        numbers.sort_unstable();
        let most = numbers.last().copied().unwrap_or(1);
        let settings = Settings::of(most, self.sizes.first().copied().unwrap_or(0));
        let grid = Grid::start(&self.join, self.members, self.owners, &settings).await?;
        let (mut points, mut errors) = (Vec::<Point>::new(), 0);
        for &entries in &numbers {
            for &size in &self.sizes {
                grid.populate(&Settings::of(entries, size)).await?;
                let before = points.len();
                for load in self.combinations() {
                    let (result, cpu_s, rss_mb) = self.measure(&grid, load).await?;
                    errors += u64::from(result.entries != result.passes * u64::from(entries));
                    let entries_sec = result.entries as f64 / result.seconds;
                    let first = points.get(before).map_or(entries_sec, |first| first.entries_sec);
                    points.push(Point {
                        entries,
                        size,
                        batch: load.batch,
                        way: load.way,
                        take: load.take,
                        entries_sec,
                        mb_sec: result.bytes as f64 / result.seconds / 1e6,
                        cpu_us: cpu_s * 1e6 / result.entries.max(1) as f64,
                        rss_mb,
                        passes: result.passes,
                        change: (entries_sec / first - 1.0) * 100.0,
                    });
                }
            }
        }
        let summary = Summary {
            test: "iterate",
            members: self.members,
            owners: self.owners,
            readers: self.readers,
            seconds: self.time,
            points,
            errors,
        };
        if self.json {
            println!("{}", serde_json::to_string(&summary)?);
        } else {
            print!("{}", crate::table::table(&table(&summary.points)));
        }
        grid.close().await;
        Ok(if errors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn combinations(&self) -> Vec<IterationLoad> {
        let mut all = Vec::new();
        for &way in &self.ways {
            for &take in &self.takes {
                for &batch in &self.batches {
                    all.push(IterationLoad { way, take, batch, readers: self.readers.max(1), time_ms: 0 });
                }
            }
        }
        all
    }

    async fn measure(&self, grid: &Grid, load: IterationLoad) -> anyhow::Result<(IterationResult, f64, f64)> {
        let millis = |seconds: f64| (seconds.max(0.0) * 1e3) as u64;
        grid.iterate(&IterationLoad { time_ms: millis(self.warmup), ..load }).await?;
        let before = grid.used().await?;
        let result = grid.iterate(&IterationLoad { time_ms: millis(self.time), ..load }).await?;
        let after = grid.used().await?;
        Ok((result, after.cpu_s - before.cpu_s, after.rss_mb))
    }
}

fn table(points: &[Point]) -> Vec<Vec<String>> {
    let head =
        ["entries", "bytes", "way", "taken by", "batch", "entries/s", "MB/s", "CPU us", "MB", "change", ""];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for point in points {
        rows.push(vec![
            grouped(point.entries.into()),
            grouped(point.size as f64),
            word(point.way),
            word(point.take),
            grouped(point.batch as f64),
            grouped(point.entries_sec),
            grouped(point.mb_sec),
            format!("{:.3}", point.cpu_us),
            grouped(point.rss_mb),
            format!("{:+.1} %", point.change),
            mark(point.change).to_owned(),
        ]);
    }
    rows
}

/// For a change in percent (S004-22).
fn mark(change: f64) -> &'static str {
    if change >= MARKED {
        "better"
    } else if change <= -MARKED {
        "worse"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        iterate: Iterate,
    }

    /// S004-12
    #[test]
    fn every_combination_is_measured() {
        let line = "iterate --ways=parallel,sequential --takes=entries,answers --batches=1,2,3 --readers=4";
        let iterate = Arguments::parse_from(line.split(' ')).iterate;
        let all = iterate.combinations();
        assert_eq!(all.len(), 12);
        assert!(all.iter().all(|load| load.readers == 4));
        assert_eq!((all[0].way, all[11].way), (Way::Parallel, Way::Sequential));
    }

    /// S004-22
    #[test]
    fn differences_of_five_percent_are_marked() {
        assert_eq!([5.0, 4.9, 0.0, -4.9, -5.0].map(mark), ["better", "", "", "", "worse"]);
    }
}
