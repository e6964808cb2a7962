//! `consort chaos`. Every member is a process in a network namespace. Its clients write their own keys, read
//! all, and judge every response by a ledger. After each event every member reads every key.

mod clients;
mod cluster;
mod document;
mod events;
mod history;
mod ledger;
mod member;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use consort_cache::{CacheManager, Channel};
use consort_group::config::StackConfig;
use consort_procstat::grouped;

use self::clients::Load;
use self::cluster::Cluster;
use self::events::{Event, Times};
use self::member::Order;
use crate::join::Join;

/// Kill, stop, disconnect and restart members of a cache under load, and count lost writes and stale reads.
///
/// Every member is a process in a network namespace of its own, with clients that write keys of their own and read all. The
/// last acknowledged value of each key is known, whatever happens to the member: a lower value is a lost write or a stale read.
#[derive(Args)]
#[command(
    mut_arg("cluster", |cluster| cluster.default_value("chaos")),
    after_help = "It needs unshare and nsenter (util-linux), ip (iproute2), and root, for example\n\
    by `unshare -rn consort chaos`.\n\n\
    Examples:\n  \
    consort chaos\n  \
    consort chaos --events kill,restart --members 3\n  \
    consort chaos --events pause,cut --detect 4\n\n\
    \"there\" in the table is the member with the fault. A removed member returns old\n\
    values until it learns of its removal, and a member in a minority refuses\n\
    writes. The exit code is 1 if an acknowledged write is lost, a call hangs, or a\n\
    read returns an invalid value."
)]
pub(crate) struct Chaos {
    #[command(flatten)]
    join: Join,
    /// Events, in this order
    #[arg(
        long,
        value_name = "EVENT",
        value_delimiter = ',',
        default_value = "kill,kill-coordinator,pause,cut,restart"
    )]
    events: Vec<Event>,
    /// Members, each a process with a network namespace of its own. At least three, because one of two is no majority
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(3..=50))]
    members: u16,
    /// Keys that each member's clients write
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    keys: u32,
    /// Bytes of a value.
    #[arg(long, value_name = "BYTES", default_value_t = 1_000)]
    size: usize,
    /// Clients of each member, with one call under way at a time each.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    clients: u32,
    /// Fraction of the calls that are reads
    #[arg(long, value_name = "FRACTION", default_value_t = 0.5)]
    reads: f64,
    /// Timeout of a call, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    timeout: f64,
    /// Load before and after each event, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    calm: f64,
    /// Pause of a stopped member, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 20.0)]
    pause: f64,
    /// Duration of cut links, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 15.0)]
    cut: f64,
    /// Suspect a silent member after this many seconds, and look for lost members as often; without it, as the stack has it
    #[arg(long, value_name = "SECONDS")]
    detect: Option<f64>,
    /// Write the table to a Markdown file, in place of the earlier table of the same command
    #[arg(long, value_name = "FILE")]
    document: Option<PathBuf>,
    /// Record every operation of clients that share a few keys, for a linearizability checker (docs/histories.md). The events
    /// repeat until the time is over
    #[arg(long, value_name = "FILE", conflicts_with_all = ["document", "keys", "size", "reads"])]
    history: Option<PathBuf>,
    /// With --history: duration of the clients' work, in seconds
    #[arg(
        long = "time",
        alias = "seconds",
        value_name = "SECONDS",
        default_value_t = 60.0,
        requires = "history"
    )]
    seconds: f64,
    /// With --history: each member is a server, and clients use the cache through Hot Rod.
    #[arg(long, requires = "history")]
    hotrod: bool,
    /// Where a member's process records operations.
    #[arg(long, hide = true, requires = "place")]
    operations: Option<PathBuf>,
    /// The number of this member; the parent process knows the rest.
    #[arg(long, hide = true, requires = "directory")]
    place: Option<usize>,
    #[arg(long, hide = true)]
    directory: Option<PathBuf>,
    /// The addresses of all servers, with --hotrod.
    #[arg(long, hide = true, value_delimiter = ',')]
    servers: Vec<String>,
}

const WHOLE_TIME_MAX: Duration = Duration::from_secs(180);

impl Chaos {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        match (self.place, &self.directory) {
            (Some(place), Some(directory)) => {
                let directory = directory.clone();
                tokio::task::LocalSet::new().run_until(self.serve(place, directory)).await?;
                Ok(ExitCode::SUCCESS)
            }
            _ => match self.history.clone() {
                Some(file) => self.record(&file).await,
                None => self.drive().await,
            },
        }
    }

    fn load(&self) -> Load {
        Load {
            clients: self.clients,
            size: self.size,
            reads: self.reads.clamp(0.0, 1.0),
            timeout: Duration::from_secs_f64(self.timeout.max(0.1)),
        }
    }

    async fn serve(self, place: usize, directory: PathBuf) -> anyhow::Result<()> {
        let mut stack = consort_conf::load_stack(&self.join.config, &self.join.variables()?)?.config;
        if let Some(detect) = self.detect {
            detect_after(&mut stack, detect);
        }
        let mut builder = Channel::from_config(stack);
        if let Some(name) = &self.join.name {
            builder = builder.name(name);
        }
        let manager = CacheManager::from_channel(builder)
            .connect(&self.join.cluster)
            .await
            .with_context(|| format!("joining cluster {}", self.join.cluster))?;
        if let Some(operations) = self.operations {
            let bind = self.join.bind.clone().unwrap_or_else(|| "127.0.0.1".to_owned());
            let servers = self.hotrod.then_some(history::Servers { bind, all: self.servers });
            return history::serve(history::Setting { manager, operations, servers, clients: self.clients })
                .await;
        }
        let load = self.load();
        let places = usize::from(self.members);
        member::serve(member::Setting { manager, place, places, keys_each: self.keys, directory, load }).await
    }

    fn times(&self) -> Times {
        Times {
            calm: Duration::from_secs_f64(self.calm.max(0.1)),
            pause: Duration::from_secs_f64(self.pause.max(0.1)),
            cut: Duration::from_secs_f64(self.cut.max(0.1)),
            whole_max: WHOLE_TIME_MAX,
        }
    }

    async fn start_cluster(&self, more: impl IntoIterator<Item = String>) -> anyhow::Result<Cluster> {
        let members = usize::from(self.members);
        println!("Starting {members} members ({}), a process on a host of its own each.", self.join.config);
        let mut arguments = self.arguments();
        arguments.extend(more);
        let mut cluster = Cluster::new(members, arguments)?;
        for place in 0..members {
            cluster.start(place).await?;
        }
        cluster.wait_until_complete(members, WHOLE_TIME_MAX).await?;
        Ok(cluster)
    }

    async fn record(self, file: &std::path::Path) -> anyhow::Result<ExitCode> {
        let directory = history::OperationsDirectory::create()?;
        let mut more = vec![format!("--operations={}", directory.path().display())];
        if self.hotrod {
            more.push("--hotrod".to_owned());
            let hosts: Vec<String> = (1..=self.members).map(|nth| format!("10.0.0.{nth}")).collect();
            more.push(format!("--servers={}", hosts.join(",")));
        }
        let mut cluster = self.start_cluster(more).await?;
        let times = self.times();
        let length = Duration::from_secs_f64(self.seconds.max(1.0));
        let faults = history::work(&mut cluster, &self.events, &times, length).await?;
        let access = if self.hotrod { "hotrod" } else { "embedded" };
        let summary = history::collect(directory.path(), access, &faults, file)?;
        println!("{}", summary.text(file, faults.len()));
        Ok(ExitCode::SUCCESS)
    }

    async fn drive(self) -> anyhow::Result<ExitCode> {
        let members = usize::from(self.members);
        let times = self.times();
        let mut cluster = self.start_cluster([]).await?;
        cluster.order_all(Order::Populate).await?;
        let keys = f64::from(self.keys) * members as f64;
        println!(
            "They share {} keys of {} bytes, two owners of each, and have {} clients each. Ledgers: {}\n",
            grouped(keys),
            self.size,
            self.clients,
            cluster.directory().display()
        );
        let mut rows = Vec::new();
        for event in &self.events {
            let row = event.run(&mut cluster, &times).await?;
            println!("{}", table::text(&row));
            rows.push(row);
        }
        if let Some(file) = &self.document {
            document::put(file, &command(std::env::args().skip(1)), &table::markdown(&rows))?;
        }
        let good = rows.iter().filter(|row| row.is_good()).count();
        println!("{good} of {} events without loss.", rows.len());
        Ok(if good == rows.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            format!("--config={}", self.join.config),
            format!("--cluster={}", self.join.cluster),
            format!("--members={}", self.members),
            format!("--keys={}", self.keys),
            format!("--size={}", self.size),
            format!("--clients={}", self.clients),
            format!("--reads={}", self.reads),
            format!("--timeout={}", self.timeout),
        ];
        arguments.extend(self.join.define.iter().map(|definition| format!("-D{definition}")));
        arguments.extend(self.detect.map(|detect| format!("--detect={detect}")));
        arguments
    }
}

/// Without the document that its table goes to.
fn command(mut arguments: impl Iterator<Item = String>) -> String {
    let mut command = "consort".to_owned();
    while let Some(argument) = arguments.next() {
        if argument == "--document" {
            arguments.next();
        } else if !argument.starts_with("--document=") {
            command += " ";
            command += &argument;
        }
    }
    command
}

fn detect_after(stack: &mut StackConfig, seconds: f64) {
    let ms = |part: f64| format!("{:.0}", (seconds * part * 1e3).max(1.0));
    for protocol in &mut stack.protocols {
        let new: &[(&str, f64)] = match protocol.short_name() {
            "FD_ALL3" => &[("timeout", 1.0), ("interval", 0.2)],
            "MERGE3" => &[("min_interval", 0.5), ("max_interval", 1.0)],
            _ => continue,
        };
        for &(name, part) in new {
            protocol.attributes.retain(|(own, ..)| own != name);
            protocol.attributes.push((name.to_owned(), ms(part), protocol.position));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_command_omits_the_document() {
        let of = |line: &str| command(line.split(' ').map(str::to_owned));
        assert_eq!(of("chaos --document a.md --detect 4"), "consort chaos --detect 4");
        assert_eq!(of("chaos --document=b.md --detect 4"), "consort chaos --detect 4");
    }

    #[test]
    fn detection_is_set_in_any_stock_stack() {
        for name in ["tcp.xml", "udp.xml"] {
            let mut stack = consort_conf::load_stack(name, &consort_conf::Variables::new()).unwrap().config;
            detect_after(&mut stack, 4.0);
            let find = |protocol: &str, attribute: &str| {
                let mut all = stack.protocols.iter();
                all.find(|own| own.short_name() == protocol)
                    .and_then(|own| own.get(attribute))
                    .map(str::to_owned)
            };
            assert_eq!(find("FD_ALL3", "timeout").as_deref(), Some("4000"), "{name}");
            assert_eq!(find("MERGE3", "max_interval").as_deref(), Some("4000"), "{name}");
        }
    }
}
