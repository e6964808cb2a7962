use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use serde::Serialize;

/// A part of the bench.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Part {
    /// Remote procedure calls, Consort and JGroups.
    Uperf,
    /// Multicasts, Consort and JGroups.
    Mperf,
    /// Multicasts, Consort and bare sockets.
    Sockets,
    /// Single steps in nanoseconds: reading and writing messages (JGroups, too), an open BARRIER, a trace point.
    Micro,
    /// Calls and multicasts of Consort with each bundler.
    Bundlers,
    /// One to eight threads that send to one member, Consort alone.
    Senders,
    /// Remote procedure calls, Consort alone, in clusters of three to nine members.
    Members,
    /// Multicasts of Consort between hosts whose network carries 1 Gbit/s.
    Gigabit,
    /// Reads and writes of the grid, beside Infinispan and Hazelcast.
    Grid,
    /// Iterating over all entries of the grid, beside Infinispan.
    Iterate,
    /// A rebalance of the grid, beside one TCP stream.
    Rebalance,
    /// The server and the client, beside Infinispan's, a bare socket and redis-server.
    Server,
    /// Idle connections, and an active one.
    Idle,
    /// Values in pieces, and small requests beside them.
    Streams,
    /// Thousands of unauthenticated connections and wrong passwords, beside a legitimate client.
    Hostile,
    /// One connection for all callers, beside one for each.
    Pool,
    /// Servers that are killed under load, one after the other, beside Infinispan and Hazelcast.
    Failover,
    /// Every operation against two servers with 512 MiB, as fast as one client can and without reading responses.
    Overload,
}

const HOT_ROD: [Part; 5] = [Part::Server, Part::Idle, Part::Streams, Part::Hostile, Part::Pool];

const GRID: [Part; 3] = [Part::Grid, Part::Iterate, Part::Rebalance];

const USUAL: [Part; 3] = [Part::Uperf, Part::Mperf, Part::Sockets];

/// Threads that make the calls in a JVM.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Threads {
    /// A thread of the operating system each.
    Platform,
    /// Virtual threads (JDK 21 and later).
    Virtual,
}

/// Measures Consort beside JGroups, and beside bare sockets, in one run.
#[derive(Parser)]
#[command(
    name = "cargo xtask bench",
    after_help = "Examples:\n  cargo xtask bench\n  cargo xtask bench --only uperf --callers 25 --runs 5\n  \
    cargo xtask bench --only sockets --without-java --json figures.json\n  \
    cargo xtask bench --only micro --previous figures.json\n  \
    cargo xtask bench --grid --json figures.json\n  \
    cargo xtask bench --hotrod --java-warmup 25 --json figures.json\n\n\
    redis-server and redis-benchmark are measured, too, where they are installed.\n\
    JVMs run on the JDK in JAVA_HOME, else on the newest beside the `java` of PATH."
)]
pub(crate) struct Options {
    /// Runs these parts instead of uperf, mperf and sockets.
    #[arg(long, value_enum, value_name = "PART,…", value_delimiter = ',')]
    pub(crate) only: Vec<Part>,
    /// Runs every part.
    #[arg(long, conflicts_with = "only")]
    pub(crate) all: bool,
    /// Runs the parts of the grid: grid, iterate and rebalance.
    #[arg(long, conflicts_with_all = ["only", "all"])]
    pub(crate) grid: bool,
    /// Runs the parts of server and client: server, idle, streams, hostile and pool.
    #[arg(long, conflicts_with_all = ["only", "all", "grid"])]
    pub(crate) hotrod: bool,
    /// Samples of each; the median counts.
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) runs: usize,
    /// Seconds of a sample.
    #[arg(long, value_name = "S", default_value_t = 3.0)]
    pub(crate) seconds: f64,
    /// One short run of each on cold JVMs: shows that everything works, but no figure worth keeping.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Members of each cluster; the parts members and senders have their own.
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) members: usize,
    /// Callers per member in uperf; bundlers and members take the first number.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "25,100")]
    pub(crate) callers: Vec<usize>,
    /// Threads that make the calls in a JVM, in uperf.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "platform,virtual")]
    pub(crate) java_threads: Vec<Threads>,
    /// Sends the calls of uperf, bundlers and members out of band; JGroups' own UPerf does not.
    #[arg(long)]
    pub(crate) oob: bool,
    /// Senders per member in mperf, bundlers and gigabit; the part senders has its own.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) senders: usize,
    /// Bytes per message in mperf and over bare sockets; bundlers and gigabit take the first number.
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',', default_value = "1000,5000,20000")]
    pub(crate) sizes: Vec<usize>,
    /// Stacks in mperf, over bare sockets and with each bundler; gigabit has udp.xml.
    #[arg(long, value_name = "FILE,…", value_delimiter = ',', default_value = "tcp.xml,udp.xml")]
    pub(crate) configs: Vec<String>,
    /// Bytes of a packet in the network of 1 Gbit/s.
    #[arg(long, value_name = "BYTES", default_value_t = 1_500)]
    pub(crate) mtu: u32,
    /// Members of the grids that are read and written; two only read.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "4,3,2")]
    pub(crate) grid_members: Vec<usize>,
    /// The part of the grid's operations that are reads.
    #[arg(long, value_name = "FRACTION,…", value_delimiter = ',', default_value = "1.0,0.8")]
    pub(crate) reads: Vec<f64>,
    /// Invokers per member of the grid.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) invokers: usize,
    /// Keys of the grid, each with a value of 1 KB for reads and writes.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub(crate) keys: u32,
    /// Bytes of the values over which is iterated.
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',', default_value = "100,1000")]
    pub(crate) entry_sizes: Vec<usize>,
    /// Entries that may be fetched and not consumed.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "512,5120")]
    pub(crate) batches: Vec<usize>,
    /// Megabytes that a joining member gets.
    #[arg(long, value_name = "MB", default_value_t = 1_000)]
    pub(crate) moved_mb: u64,
    /// Callers of a Hot Rod client, Java's and ours.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,22,100")]
    pub(crate) hotrod_callers: Vec<usize>,
    /// Idle connections.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub(crate) idle: usize,
    /// Connections that unauthenticated clients open at once.
    #[arg(long, alias = "strangers", value_name = "N", default_value_t = 5_000)]
    pub(crate) handshakes: usize,
    /// Megabytes that go each way in pieces.
    #[arg(long, value_name = "MB", default_value_t = 1_000)]
    pub(crate) streamed_mb: u64,
    /// Servers of the clusters whose servers are killed. One of two is no majority, and would not go on without the other.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "3,5", value_parser = majority)]
    pub(crate) failover_servers: Vec<usize>,
    /// Kills in each of these clusters.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) kills: usize,
    /// Leaves JGroups and other data grids out.
    #[arg(long)]
    pub(crate) without_java: bool,
    /// The JVMs' heap.
    #[arg(long, value_name = "SIZE", default_value = "1g")]
    pub(crate) java_heap: String,
    /// Longest warm-up of JVMs for one load, in seconds; it ends before when three slices bring no new best.
    #[arg(long, value_name = "S", default_value_t = 60.0)]
    pub(crate) java_warmup: f64,
    /// Writes all measurements to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// The --json file of an earlier release: it is shown beside, and the command fails if Consort has become slower.
    #[arg(long, value_name = "FILE")]
    pub(crate) previous: Option<PathBuf>,
    /// How many percent more CPU per operation than before are no failure.
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    pub(crate) tolerance: f64,
    /// Fails if a target is missed.
    #[arg(long)]
    pub(crate) check: bool,
}

/// As of `consort demo --servers`.
fn majority(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(servers @ 3..=9) => Ok(servers),
        _ => Err(format!("`{text}` is not from 3 to 9")),
    }
}

impl Options {
    pub(crate) fn has(&self, part: Part) -> bool {
        if self.grid {
            return GRID.contains(&part);
        }
        if self.hotrod {
            return HOT_ROD.contains(&part);
        }
        self.all || if self.only.is_empty() { USUAL.contains(&part) } else { self.only.contains(&part) }
    }

    pub(crate) fn has_session(&self) -> bool {
        USUAL.into_iter().any(|part| self.has(part))
    }

    pub(crate) fn needs_java(&self) -> bool {
        !self.without_java && [Part::Uperf, Part::Mperf, Part::Micro].into_iter().any(|part| self.has(part))
    }

    pub(crate) fn needs_java_grids(&self) -> bool {
        !self.without_java
            && [Part::Grid, Part::Iterate, Part::Failover].into_iter().any(|part| self.has(part))
    }

    pub(crate) fn needs_java_servers(&self) -> bool {
        !self.without_java && (self.has(Part::Server) || self.has(Part::Failover))
    }

    pub(crate) fn needs_virtual_threads(&self) -> bool {
        !self.without_java
            && [Part::Uperf, Part::Grid].into_iter().any(|part| self.has(part))
            && self.java_threads.contains(&Threads::Virtual)
    }

    pub(crate) fn first_callers(&self) -> usize {
        self.callers.first().copied().unwrap_or(25)
    }

    pub(crate) fn first_size(&self) -> usize {
        self.sizes.first().copied().unwrap_or(1_000)
    }

    pub(crate) fn moved_mb(&self) -> u64 {
        if self.quick { 20 } else { self.moved_mb }
    }

    pub(crate) fn idle(&self) -> usize {
        if self.quick { self.idle.min(200) } else { self.idle }
    }

    pub(crate) fn handshakes(&self) -> usize {
        if self.quick { self.handshakes.min(200) } else { self.handshakes }
    }

    pub(crate) fn streamed_mb(&self) -> u64 {
        if self.quick { 20 } else { self.streamed_mb }
    }

    pub(crate) fn failover_servers(&self) -> &[usize] {
        if self.quick {
            &self.failover_servers[..self.failover_servers.len().min(1)]
        } else {
            &self.failover_servers
        }
    }

    pub(crate) fn kills(&self) -> usize {
        if self.quick { self.kills.min(2) } else { self.kills }
    }

    pub(crate) fn runs(&self) -> usize {
        if self.quick { 1 } else { self.runs.max(1) }
    }

    pub(crate) fn time(&self) -> Duration {
        // A sample over UDP may begin with a loss: JGroups waits 500 ms before it requests the lost message.
        Duration::from_secs_f64(if self.quick { 1.0 } else { self.seconds.max(0.5) })
    }

    pub(crate) fn lead(&self) -> Duration {
        Duration::from_millis(if self.quick { 300 } else { 1_000 })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn servers_are_killed_only_where_the_others_are_a_majority() {
        let options = |line: &[&str]| Options::try_parse_from([&["bench"], line].concat());
        for wrong in ["2", "10", "x"] {
            let error =
                options(&[&format!("--failover-servers={wrong}")]).err().expect("refused").to_string();
            assert!(error.contains(&format!("`{wrong}` is not from 3 to 9")), "{error}");
        }
        let usual = options(&[]).unwrap();
        assert_eq!((usual.failover_servers(), usual.kills()), (&[3, 5][..], 20));
        let own = options(&["--failover-servers=4,7", "--kills=3"]).unwrap();
        assert_eq!((own.failover_servers(), own.kills()), (&[4, 7][..], 3));
        let quick = options(&["--failover-servers=4,7", "--kills=3", "--quick"]).unwrap();
        assert_eq!((quick.failover_servers(), quick.kills()), (&[4][..], 2));
    }
}
