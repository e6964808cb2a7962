mod kills;
mod members;
mod rates;
mod servers;
mod watch;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use consort_procstat::grouped;

use self::servers::Servers;
use self::watch::{HEAD, Watch};
use crate::join::Join;
use crate::perf::grid::{Clients, Figures, Settings, Test, Total, bytes};
use crate::perf::progress::every_second;
use crate::perf::range::within;
use crate::shutdown::Signals;

/// Start three servers on this host, put 100,000 keys, measure through Hot Rod, kill a server under load, and check the data.
/// The servers serve until Ctrl-C or SIGTERM.
#[derive(Args)]
#[command(
    mut_arg("cluster", |cluster| cluster.default_value("demo")),
    after_help = "Examples:\n  \
    consort demo\n  \
    consort demo --config udp.xml --time 2\n  \
    consort demo --grid\n  \
    consort demo --kills 20 --servers 5\n\n\
    Servers listen on 127.0.0.1, ports from 11222 on, or on other ports if these are\n\
    taken. The exit code is 1 if a key is lost, or if an operation fails\n\
    for another reason than the killed server."
)]
pub(crate) struct Demo {
    #[command(flatten)]
    join: Join,
    /// Seconds of the first test, and of the second one before and after the kill
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0, conflicts_with = "kills")]
    time: f64,
    /// Run four members of an embedded grid without servers: show the moved segments after a death, and check every copy of
    /// every key. The members end with the command
    #[arg(long)]
    grid: bool,
    /// Kill a server this many times, at each position of the view in turn, and report how long requests waited. Each starts
    /// again before the next kill
    #[arg(long, value_name = "N", conflicts_with = "grid", value_parser = kills_in_range)]
    kills: Option<usize>,
    /// With --kills: number of servers
    #[arg(long, value_name = "N", requires = "kills", default_value_t = SERVERS, value_parser = servers_in_range)]
    servers: usize,
    /// With --kills: print results as JSON
    #[arg(long, requires = "kills")]
    json: bool,
}

const SERVERS: usize = 3;
/// With --kills: entries move often.
const KEYS_OF_KILLS: u32 = 20_000;
const OWNERS: u16 = 2;
const WARM_UP: Duration = Duration::from_millis(1_000);
const CALM: Duration = Duration::from_millis(1_000);
const MOVING: Duration = Duration::from_millis(50);
const MOVING_MAX: Duration = Duration::from_secs(60);

fn kills_in_range(text: &str) -> Result<usize, String> {
    within(text, 1, 1_000)
}

fn servers_in_range(text: &str) -> Result<usize, String> {
    within(text, SERVERS, 9)
}

impl Demo {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let mut signals = Signals::listen()?;
        if self.grid {
            let settings = self.settings();
            let is_good = tokio::select! {
                is_good = members::run(&self.join, &settings) => is_good?,
                signal = signals.next() => anyhow::bail!("{signal}: the members end"),
            };
            return Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        if let Some(kills) = self.kills {
            let settings = Settings { keys: KEYS_OF_KILLS, ..self.settings() };
            let is_good = tokio::select! {
                is_good = kills::run(&self.join, self.servers, kills, &settings, self.json) => is_good?,
                signal = signals.next() => anyhow::bail!("{signal}: the servers end"),
            };
            return Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        println!("Starting {SERVERS} servers on this host ({}), a process each.", self.join.config);
        let mut servers = tokio::select! {
            started = Servers::start(&self.join, SERVERS) => started?,
            signal = signals.next() => anyhow::bail!("{signal} before the servers have started"),
        };
        let finished = tokio::select! {
            finished = self.run_steps(&mut servers) => Some(finished),
            signal = signals.next() => {
                println!("\n{signal}: the servers end.");
                None
            }
        };
        let is_good = match finished {
            None => true,
            Some(finished) => {
                let is_good = finished?;
                println!("\n{}", invitation(&servers));
                tokio::select! {
                    signal = signals.next() => println!("\n{signal}: the servers and their entries end."),
                    ended = servers.wait_for_any_end() => {
                        let (name, status) = ended?;
                        anyhow::bail!("server {name} has ended by itself: {status}");
                    }
                }
                is_good
            }
        };
        tokio::select! {
            ended = servers.end() => ended?,
            signal = signals.next() => anyhow::bail!("{signal} again: the servers are killed"),
        }
        Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn settings(&self) -> Settings {
        Settings { time: self.time.max(0.5), read_percentage: 0.8, ..Settings::of(100_000, 1_000) }
    }

    async fn run_steps(&self, servers: &mut Servers) -> anyhow::Result<bool> {
        let settings = self.settings();
        let at: Vec<String> = servers.addresses().iter().map(ToString::to_string).collect();
        println!("Hot Rod on {}, cluster {}.", at.join(", "), self.join.cluster);
        let clients = Clients::connect(&at.join(","), 1, 1, OWNERS).await?;
        let begin = Instant::now();
        clients.populate(&Test { settings: settings.clone(), warmup_ms: 0 }).await?;
        println!(
            "They share a cache of {} keys of {}, with {OWNERS} owners of each: put in {:.1} s.",
            grouped(settings.keys.into()),
            bytes(settings.size as f64),
            begin.elapsed().as_secs_f64()
        );
        println!("\nA client with {} invokers, 80 % reads:", settings.threads);
        let calm = measure_without_faults(&clients, &settings).await?;
        println!("\nAgain, and a server is killed meanwhile:");
        let (table, storm) = measure_kill(servers, &clients, &settings).await?;
        let found = clients.count(settings.keys).await?;
        println!("\n{} of {} keys are present.", grouped(found.into()), grouped(settings.keys.into()));
        print!("\n{table}");
        let uncertain: u64 = storm.iter().map(|own| own.uncertain).sum();
        let failed: u64 = calm.iter().chain(&storm).map(Figures::failed).sum();
        println!(
            "\n{} operations have failed. {} writes were under way when their server died: whether it\n\
             applied them is unknown, so the client does not repeat them.",
            grouped(failed as f64),
            grouped(uncertain as f64)
        );
        servers.start_last_again().await?;
        Ok(failed == 0 && found == settings.keys)
    }
}

async fn measure_without_faults(clients: &Clients, settings: &Settings) -> anyhow::Result<Vec<Figures>> {
    let running = clients.start(&Test { settings: settings.clone(), warmup_ms: WARM_UP.as_millis() as u64 });
    // Meanwhile nothing is counted.
    tokio::time::sleep(WARM_UP).await;
    let counter = running.counter();
    let mut second = 0;
    let report = |done| {
        second += 1;
        println!("  second {second}: {:>9} requests/s", grouped(done as f64));
    };
    let figures = every_second(running.figures(), || counter().operations(), report).await?;
    println!();
    figures.iter().for_each(|own| println!("{own}"));
    print!("\n{}{}\n", Total::of(&figures).text(settings, "clients"), clients.text());
    Ok(figures)
}

async fn measure_kill(
    servers: &mut Servers,
    clients: &Clients,
    settings: &Settings,
) -> anyhow::Result<(String, Vec<Figures>)> {
    let own = Duration::from_secs_f64(settings.time);
    // As long as it takes: it is ended.
    let settings =
        Settings { time: settings.time * 2.0 + MOVING_MAX.as_secs_f64() * 2.0, ..settings.clone() };
    let running = clients.start(&Test { settings, warmup_ms: 0 });
    let mut watch = Watch::new(&running);
    let usable = || clients.servers();
    println!("{HEAD}");
    while watch.begin.elapsed() < own {
        watch.row(CALM, usable).await;
    }
    let before = watch.lap();
    let name = servers.kill_last()?;
    let killed = Instant::now();
    println!("  kill -9 of server {name}");
    while watch.row(MOVING, usable).await < before.rate() / 2.0 {
        anyhow::ensure!(
            killed.elapsed() < MOVING_MAX,
            "the other servers do not continue within {MOVING_MAX:?}"
        );
    }
    println!("  the other servers continue, {:.2} s after the kill", killed.elapsed().as_secs_f64());
    let unnoticed = watch.lap();
    let again = Instant::now();
    while again.elapsed() < own {
        watch.row(CALM, usable).await;
    }
    let table = rates::table(&[
        ("before, three servers", before),
        ("killed, not yet noticed", unnoticed),
        ("after, two servers", watch.lap()),
    ]);
    running.end();
    Ok((table, running.figures().await.context("the test")?))
}

fn invitation(servers: &Servers) -> String {
    let first = servers.addresses()[0];
    let at: Vec<String> = servers.addresses().iter().map(ToString::to_string).collect();
    format!(
        "Three servers serve until Ctrl-C: {}\n\n\
         \x20 In a terminal:  consort cache --at {first} size perf\n\
         \x20                 consort perf --hotrod {first} --seconds 10\n\n\
         \x20 In Java, with org.infinispan:infinispan-client-hotrod:\n\n\
         \x20   RemoteCacheManager manager = new RemoteCacheManager(\"hotrod://{first}\");\n\
         \x20   RemoteCache<String, String> cache = manager.administration().getOrCreateCache(\n\
         \x20       \"hello\", new StringConfiguration(\"<distributed-cache/>\"));\n\
         \x20   cache.put(\"key\", \"value\");",
        at.join(", ")
    )
}
