//! `consort perf`, after IspnPerfTest.

mod channels;
mod control;
mod copies;
mod figures;
mod hotrod;
mod iterate;
mod iteration_load;
mod load;
mod member;
mod menu;
mod rebalance;
mod server_usage;
mod settings;
mod spawn;
mod target;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use consort_procstat::grouped;

pub(crate) use self::control::State;

pub(crate) use self::figures::{Figures, Total};
pub(crate) use self::hotrod::{Clients, Running};
pub(crate) use self::iterate::Iterate;
pub(crate) use self::load::{Done, Test};
use self::member::{End, Member};
use self::menu::Menu;
pub(crate) use self::rebalance::Rebalance;
use self::server_usage::ServerProcesses;
pub(crate) use self::settings::{Settings, bytes};
use self::spawn::POLL_INTERVAL;
pub(crate) use self::spawn::{Grid, free_ports};
pub(crate) use self::target::key;
use crate::allocator::Reserve;
use crate::join::Join;
use crate::perf::progress::with_counter;
use crate::shutdown::end_of_input;

/// Measure a distributed cache: every member reads and writes keys that all of them share.
///
/// A member has two channels, one of the grid and one for control, and a menu. Settings apply to all members, and a test runs
/// on all of them at once.
#[derive(Args)]
#[command(
    mut_arg("cluster", |cluster| cluster.default_value("default")),
    mut_arg("reserve", |reserve| reserve.conflicts_with("measured")),
    after_help = "Threads, or invokers, are tasks with one operation in flight each. With four\n\
    members and two owners, a member owns half of the keys, and reads them without\n\
    the network.\n\n\
    Example, by hand, in as many terminals or on as many hosts as you like:\n  \
    consort perf\n  \
    consort perf --nohup -D jgroups.tcpping.initial_hosts=10.0.0.1[7800]\n\n\
    Example, on one host, for scripts:\n  \
    consort perf --members 4 --time 10 --reads 0.8 --threads 100 --json\n\n\
    Example, through the servers of a cluster:\n  \
    consort perf --hotrod 127.0.0.1:11222 --clients 1 --threads 22 --reads 0.8 \\\n    \
    --time 10 --json\n\n  \
    With a connection for each invoker:\n  \
    consort perf --hotrod 127.0.0.1:11222 --pooled --threads 22 --reads 0.8 \\\n    \
    --time 10 --json\n\n\
    The control channel uses the grid's ports plus 50, unless --control-config is\n\
    set. At SIGTERM and Ctrl-C a member hands its entries over and ends; a second\n\
    signal ends it at once. The exit code is 1 if an operation has failed, and with\n\
    --members also if a key lacks a copy or has different copies."
)]
pub(crate) struct Perf {
    #[command(flatten)]
    join: Join,
    /// Stack of the control channel; without it, the grid's stack on other ports
    #[arg(long, value_name = "FILE")]
    control_config: Option<String>,
    #[command(flatten)]
    settings: Settings,
    /// Members that have each key.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    owners: u16,
    #[command(flatten)]
    pub(crate) reserve: Reserve,
    /// Open no menu: wait for tests that other members start
    #[arg(long, conflicts_with = "spawn")]
    nohup: bool,
    /// End when standard input ends
    #[arg(long, hide = true, requires = "nohup")]
    with_parent: bool,
    /// Start this many member processes on this host, put all keys, measure, check all copies, and end
    #[arg(long = "members", alias = "spawn", value_name = "N", group = "measured")]
    spawn: Option<usize>,
    /// Join no cluster: read and write through the Hot Rod servers at this address, measure, and end
    #[arg(long, value_name = "HOST:PORT", group = "measured", conflicts_with = "nohup")]
    hotrod: Option<String>,
    /// Clients, each with a connection to each server.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "hotrod")]
    clients: usize,
    /// Each invoker has a connection of its own to each server, like threads of a client with a pool
    #[arg(long, requires = "hotrod")]
    pooled: bool,
    /// Also print the CPU time per request and the peak memory of these server processes on this host
    #[arg(long, value_name = "PID,…", value_delimiter = ',', requires = "hotrod")]
    server_pids: Vec<u32>,
    /// Duration of the load before the measurement, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, requires = "measured")]
    warmup: f64,
    /// Print one line of JSON instead of text
    #[arg(long, requires = "measured")]
    json: bool,
}

impl Perf {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let is_good = match (self.spawn, self.hotrod.clone()) {
            (Some(members), _) => self.measure(members).await?,
            (None, Some(servers)) => self.measure_servers(&servers).await?,
            (None, None) => self.take_part().await?,
        };
        Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    async fn take_part(self) -> anyhow::Result<bool> {
        let (member, dispatcher) =
            Member::join(&self.join, self.control_config.as_deref(), self.owners, self.settings).await?;
        let (end, is_good) = if self.nohup {
            let end = tokio::select! {
                end = member.wait_for_end() => end,
                () = end_of_input(), if self.with_parent => End::Together,
            };
            (end, true)
        } else {
            Menu::new(member.clone(), dispatcher.clone()).serve().await?
        };
        let parent_gone = async {
            if !self.with_parent {
                std::future::pending::<()>().await;
            }
            end_of_input().await;
            "its parent has ended"
        };
        member.end(dispatcher, end, parent_gone).await?;
        Ok(is_good)
    }

    fn test(&self) -> Test {
        Test { settings: self.settings.clone(), warmup_ms: (self.warmup.max(0.0) * 1e3) as u64 }
    }

    async fn measure_servers(self, servers: &str) -> anyhow::Result<bool> {
        let (settings, test) = (&self.settings, self.test());
        let watched = ServerProcesses::new(&self.server_pids)?;
        let each = if self.pooled { settings.threads } else { 1 };
        let clients = Clients::connect(servers, self.clients, each, self.owners).await?;
        let begin = Instant::now();
        clients.populate(&test).await?;
        print_keys(settings, begin);
        print_plan(settings, self.warmup);
        let running = clients.start(&test);
        let done = running.counter();
        let figures = with_counter(running.figures(), || done().operations(), "requests");
        let (figures, served) = tokio::join!(figures, watched.during(&test));
        let figures = figures?;
        let total = Total::of(&figures);
        if self.json {
            let mut summary = total.summary(settings, self.owners);
            summary.server_cpu_s_per_mreq = served.as_ref().map(|served| total.each_us(served.cpu_s));
            summary.server_rss_mb = served.map(|served| served.rss_mb);
            println!("{}", serde_json::to_string(&summary)?);
        } else {
            figures.iter().for_each(|own| println!("{own}"));
            println!("\n{}{}", total.text(settings, "clients"), clients.text());
            if let Some(served) = served {
                println!("{}", served.text(&total));
            }
        }
        Ok(total.requests > 0 && total.errors + total.missing == 0)
    }

    async fn measure(self, members: usize) -> anyhow::Result<bool> {
        let settings = &self.settings;
        let grid = Grid::start(&self.join, members, self.owners, settings).await?;
        eprintln!("{members} members have the cache, with {} owners of each key", grid.wanted(self.owners));
        let begin = Instant::now();
        grid.populate(settings).await?;
        print_keys(settings, begin);
        print_plan(settings, self.warmup);
        let test = self.test();
        let figures = with_progress(&grid, grid.run(&test)).await?;
        let total = Total::of(&figures);
        let verdict = grid.validate(settings.keys, self.owners).await?;
        eprintln!("{}", verdict.text(grid.wanted(self.owners)));
        if self.json {
            let mut summary = total.summary(settings, self.owners);
            summary.copies = Some(verdict);
            println!("{}", serde_json::to_string(&summary)?);
        } else {
            figures.iter().for_each(|own| println!("{own}"));
            print!("\n{}", total.text(settings, "members"));
        }
        let is_good = figures.len() == members
            && total.requests > 0
            && total.errors + total.missing == 0
            && verdict.is_good();
        grid.close().await;
        Ok(is_good)
    }
}

fn print_keys(settings: &Settings, begin: Instant) {
    let (keys, size) = (grouped(settings.keys.into()), bytes(settings.size as f64));
    eprintln!("{keys} keys of {size} put in {} ms", begin.elapsed().as_millis());
}

fn print_plan(settings: &Settings, warmup: f64) {
    eprintln!(
        "{} invokers each, {:.0} % reads, {} s after {warmup} s of warm-up",
        settings.threads,
        settings.read_percentage * 100.0,
        settings.time
    );
}

async fn with_progress<T>(grid: &Grid, work: impl Future<Output = T>) -> T {
    if !std::io::stderr().is_terminal() {
        return work.await;
    }
    tokio::pin!(work);
    let mut ticks = tokio::time::interval(POLL_INTERVAL);
    let mut before = None;
    loop {
        tokio::select! {
            result = &mut work => {
                eprintln!();
                return result;
            }
            _ = ticks.tick() => {
                let states = grid.look().await.unwrap_or_default();
                let now: u64 = states.iter().map(State::operations).sum();
                if let Some(before) = before.replace(now) {
                    let line = format!("{} requests in the last second", grouped(now.saturating_sub(before) as f64));
                    eprint!("\r  {line:<60}");
                    let _ = std::io::stderr().flush();
                }
            }
        }
    }
}
