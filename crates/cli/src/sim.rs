mod seeds;
mod sites;

use std::process::ExitCode;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use consort_sim::{Growth, Mix, Plan, Report, grid, grow, replay, run, simulated_stacks};

use self::seeds::{Seeds, sums_text};
use self::sites::SitesOf;
use crate::perf::range::{self, MEMBERS_MAX};

/// Simulates clusters with faults drawn from seeds, and checks that they keep their promises.
#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  \
    consort sim --stack udp.xml --members 5 --seeds 1000\n  \
    consort sim --stack udp.xml --members 5 --seed 417\n  \
    consort sim growth --members 4,16,64\n  \
    consort sim --grid --seeds 1000\n  \
    consort sim --grid --seed 417 --trace\n  \
    consort sim --grid --parted --members 6 --seeds 1000\n  \
    consort sim sites --sites 3 --members 3 --masters 2 --seeds 1000\n\n\
    The exit code is 1 if a cluster violates a rule; the command to replay its seed\n\
    is printed."
)]
pub(crate) struct Sim {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    swarm: Swarm,
}

#[derive(Subcommand)]
enum Command {
    /// Messages, bytes and time of joins, crashes, leaves and merges, and the steady load, by cluster size
    Growth(GrowthOf),
    /// Messages per cache operation and entries moved when a member joins, by cluster size
    GridGrowth(GridGrowthOf),
    /// Sites with RELAY2 or RELAY3: bridges are cut and site masters crash while members of all sites send
    Sites(SitesOf),
}

#[derive(Args)]
struct Swarm {
    /// Stock stack
    #[arg(long, value_name = "FILE", default_value = "tcp.xml", value_parser = stacks())]
    stack: String,
    /// Members at the start
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = members)]
    members: usize,
    #[command(flatten)]
    of: Seeds,
    /// Give members a cache and clients. Half of the seeds also have iterations, two of five a listener, and two of five stores
    /// with which the whole cluster stops and restarts
    #[arg(long)]
    grid: bool,
    /// With --grid: the cluster splits again and again, also while it is split, and all partitions continue (AllowReadWrites)
    #[arg(long, requires = "grid")]
    parted: bool,
    /// With --grid: no listeners, whatever the seed draws
    #[arg(long, requires = "grid")]
    without_listeners: bool,
    /// With --grid: no stores, whatever the seed draws
    #[arg(long, requires = "grid")]
    without_stores: bool,
    /// With --grid: clients only read and write entries without a lifespan, whatever the seed draws
    #[arg(long, alias = "without-habits", requires = "grid")]
    plain_workload: bool,
    /// With --grid and --seed: print every operation, too
    #[arg(long, requires = "grid", requires = "seed")]
    trace: bool,
}

#[derive(Args)]
#[command(after_help = "Example:\n  \
    consort sim growth --stack udp.xml --members 4,16,64,256,1000")]
struct GrowthOf {
    /// Stock stack
    #[arg(long, value_name = "FILE", default_value = "tcp.xml", value_parser = stacks())]
    stack: String,
    /// Members of each cluster, from 4 on.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "4,16,64,256", value_parser = size)]
    members: Vec<usize>,
    /// Seed of every cluster
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// Print results as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[command(after_help = "Example:\n  \
    consort sim grid-growth --members 2,8,64 --plot")]
struct GridGrowthOf {
    /// Stock stack
    #[arg(long, value_name = "FILE", default_value = "tcp.xml", value_parser = stacks())]
    stack: String,
    /// Members of each cluster.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "2,4,8,16,32,64")]
    members: Vec<usize>,
    /// Seed of every cluster
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// Print plots in Mermaid, too
    #[arg(long)]
    plot: bool,
}

impl GridGrowthOf {
    fn run(&self) -> anyhow::Result<ExitCode> {
        println!(
            "| members | per put | per read | per primary read | held by a walk | moved by a join | ideal | messages of a join | s |"
        );
        println!("|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
        let mut all = Vec::new();
        for &members in &self.members {
            let growth = grid::grow(&self.stack, members, self.seed).map_err(anyhow::Error::msg)?;
            println!(
                "| {members} | {:.2} | {:.2} | {:.2} | {} | {:.3} | {:.3} | {} | {:.3} |",
                growth.per_put,
                growth.per_read,
                growth.per_primary_read,
                growth.iteration_held,
                growth.moved,
                ideal(&growth),
                growth.per_join,
                growth.joined_after.as_secs_f64()
            );
            all.push(growth);
        }
        if self.plot {
            print!("{}", plots(&all));
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn ideal(growth: &grid::Growth) -> f64 {
    1.0 / (growth.members + 1) as f64
}

type Line = (&'static str, fn(&grid::Growth) -> f64);

fn plots(all: &[grid::Growth]) -> String {
    let plot = |title: &str, (axis, most): (&str, f64), lines: &[Line]| {
        let numbers =
            |of: &dyn Fn(&grid::Growth) -> String| all.iter().map(of).collect::<Vec<_>>().join(", ");
        let mut text = format!(
            "\n```mermaid\nxychart-beta\n    title \"{title}\"\n    x-axis \"members\" [{}]\n    y-axis \"{axis}\" 0 --> {most}\n",
            numbers(&|growth| growth.members.to_string())
        );
        for (name, of) in lines {
            text += &format!("    line \"{name}\" [{}]\n", numbers(&|growth| format!("{:.3}", of(growth))));
        }
        text + "```\n"
    };
    let operations: [Line; 3] = [
        ("put", |growth| growth.per_put),
        ("read", |growth| growth.per_read),
        ("read from the primary", |growth| growth.per_primary_read),
    ];
    let joins: [Line; 2] = [("moved", |growth| growth.moved), ("ideal", ideal)];
    let walks: [Line; 1] = [("held", |growth| growth.iteration_held as f64)];
    plot("messages per operation, by members", ("messages", 4.0), &operations)
        + &plot("part of all copies that moves when one more joins, by members", ("part", 0.4), &joins)
        + &plot(
            "entries asked for or held by the reader of everything, by members",
            ("entries", 100.0),
            &walks,
        )
}

fn stacks() -> PossibleValuesParser {
    PossibleValuesParser::new(simulated_stacks())
}

/// Faults need at least two members.
fn members(text: &str) -> Result<usize, String> {
    range::within(text, 2, MEMBERS_MAX)
}

/// Each half of a cluster that is split has two members.
fn size(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&size| size >= 4).ok_or_else(|| "a number from 4 on".to_owned())
}

impl Sim {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Some(Command::Growth(growth)) => growth.run(),
            Some(Command::GridGrowth(growth)) => growth.run(),
            Some(Command::Sites(sites)) => Ok(sites.run()),
            None if self.swarm.grid => Ok(self.swarm.run_grid()),
            None => Ok(self.swarm.run()),
        }
    }
}

impl Swarm {
    fn plan(&self) -> Plan {
        let mix = if self.of.has_faults() { Mix::ALL } else { Mix::NONE };
        Plan::new(&self.stack, self.members).with_faults(mix)
    }

    fn run(&self) -> ExitCode {
        match self.of.seed {
            Some(seed) => self.of.replay(seed, replay(&self.plan(), seed), channel_summary),
            None => self.swarm(),
        }
    }

    fn run_grid(&self) -> ExitCode {
        let mix = if self.of.has_faults() { Mix::ALL } else { Mix::NONE };
        let mut plan = grid::Plan::new(&self.stack, self.members).with_faults(mix);
        plan.with_operations = self.trace;
        if self.parted {
            plan = plan.parted();
        }
        if self.without_listeners {
            plan = plan.without_listeners();
        }
        if self.without_stores {
            plan = plan.without_stores();
        }
        if self.plain_workload {
            plan = plan.with_workload(grid::WorkloadMix::NONE);
        }
        match self.of.seed {
            Some(seed) => self.of.replay(seed, grid::replay(&plan, seed), grid_summary),
            None => {
                self.of.each(|seed| grid::run(&plan, seed), grid_summary, |seed| self.replay_command(seed))
            }
        }
    }

    fn swarm(&self) -> ExitCode {
        let plan = self.plan();
        self.of.each(|seed| run(&plan, seed), channel_summary, |seed| self.replay_command(seed))
    }

    fn replay_command(&self, seed: u64) -> String {
        let faults = self.of.faults_option();
        let options = [
            (self.grid, " --grid"),
            (self.parted, " --parted"),
            (self.without_listeners, " --without-listeners"),
            (self.without_stores, " --without-stores"),
            (self.plain_workload, " --plain-workload"),
        ];
        let grid: String =
            options.into_iter().filter_map(|(is_set, option)| is_set.then_some(option)).collect();
        format!("consort sim{grid} --stack {} --members {}{faults} --seed {seed}", self.stack, self.members)
    }
}

fn grid_summary(reports: &[(u64, grid::Report)], json: bool) -> String {
    let sum = |of: &dyn Fn(&grid::Report) -> u64| reports.iter().map(|(_, report)| of(report)).sum::<u64>();
    let longest = reports.iter().map(|(_, report)| report.settled_after).max().unwrap_or_default();
    let sums = [
        ("seeds", reports.len() as u64),
        ("members", sum(&|report| report.members as u64)),
        ("packets", sum(&|report| report.packets)),
        ("operations", sum(&|report| report.operations as u64)),
        ("succeeded", sum(&|report| report.succeeded as u64)),
        ("uncertain", sum(&|report| report.uncertain as u64)),
        ("excused", sum(&|report| report.excused as u64)),
        ("walks", sum(&|report| report.iterations as u64)),
        ("refused_walks", sum(&|report| report.refused_iterations as u64)),
        ("events", sum(&|report| report.events as u64)),
        ("gaps", sum(&|report| report.gaps as u64)),
        ("loads", sum(&|report| report.loads)),
        ("refusals", sum(&|report| report.refusals)),
        ("beginnings", sum(&|report| report.beginnings)),
    ];
    let trace = if let [(_, report)] = reports { Some(report.trace) } else { None };
    sums_text(&sums, Some(longest), trace, json)
}

/// One run has its trace, too.
fn channel_summary(reports: &[(u64, Report)], is_json: bool) -> String {
    if is_json {
        return json(reports) + "\n";
    }
    match reports {
        [(_, report)] => table(reports) + &format!("trace {:016x}\n", report.trace),
        _ => table(reports),
    }
}

struct Summary {
    seeds: usize,
    members: usize,
    packets: u64,
    bytes: u64,
    delivered: u64,
    merges: u64,
    proven: u64,
    /// Sorted.
    healed: Vec<Duration>,
    /// Sorted.
    met: Vec<Duration>,
}

impl Summary {
    fn of(reports: &[(u64, Report)]) -> Self {
        let sum = |of: fn(&Report) -> u64| reports.iter().map(|(_, report)| of(report)).sum();
        let mut healed: Vec<Duration> = reports.iter().map(|(_, report)| report.healed_after).collect();
        healed.sort_unstable();
        let mut met: Vec<Duration> = reports.iter().map(|(_, report)| report.met_after).collect();
        met.sort_unstable();
        Self {
            seeds: reports.len(),
            members: reports.iter().map(|(_, report)| report.members).sum(),
            packets: sum(|report| report.packets),
            bytes: sum(|report| report.bytes),
            delivered: sum(|report| report.delivered),
            merges: sum(|report| report.merges as u64),
            proven: sum(|report| report.proven as u64),
            healed,
            met,
        }
    }

    fn healed(&self, part: f64) -> f64 {
        quantile(&self.healed, part)
    }

    fn met(&self, part: f64) -> f64 {
        quantile(&self.met, part)
    }
}

fn quantile(sorted: &[Duration], part: f64) -> f64 {
    let at = (sorted.len() as f64 * part).ceil() as usize;
    sorted.get(at.saturating_sub(1)).map_or(0.0, Duration::as_secs_f64)
}

fn table(reports: &[(u64, Report)]) -> String {
    let all = Summary::of(reports);
    let row = |name: &str, value: String| format!("{name:<24}{value:>16}\n");
    [
        row("seeds", all.seeds.to_string()),
        row("members", all.members.to_string()),
        row("packets", all.packets.to_string()),
        row("bytes", all.bytes.to_string()),
        row("messages delivered", all.delivered.to_string()),
        row("crashes proven", all.proven.to_string()),
        row("merges", all.merges.to_string()),
        row("one view, median", format!("{:.2} s", all.met(0.5))),
        row("one view, 90 %", format!("{:.2} s", all.met(0.9))),
        row("one view, 99 %", format!("{:.2} s", all.met(0.99))),
        row("one view, longest", format!("{:.2} s", all.met(1.0))),
        row("healing time, median", format!("{:.2} s", all.healed(0.5))),
        row("healing time, 90 %", format!("{:.2} s", all.healed(0.9))),
        row("healing time, 99 %", format!("{:.2} s", all.healed(0.99))),
        row("healing time, longest", format!("{:.2} s", all.healed(1.0))),
    ]
    .concat()
}

fn json(reports: &[(u64, Report)]) -> String {
    let all = Summary::of(reports);
    let mut value = serde_json::json!({
        "seeds": all.seeds,
        "members": all.members,
        "packets": all.packets,
        "bytes": all.bytes,
        "delivered": all.delivered,
        "proven_crashes": all.proven,
        "merges": all.merges,
        "one_view_seconds": {
            "p50": all.met(0.5), "p90": all.met(0.9), "p99": all.met(0.99), "max": all.met(1.0),
        },
        "healed_seconds": {
            "p50": all.healed(0.5), "p90": all.healed(0.9), "p99": all.healed(0.99), "max": all.healed(1.0),
        },
    });
    if let ([(seed, report)], Some(fields)) = (reports, value.as_object_mut()) {
        fields.insert("seed".to_owned(), (*seed).into());
        fields.insert("trace".to_owned(), format!("{:016x}", report.trace).into());
    }
    value.to_string()
}

impl GrowthOf {
    fn run(&self) -> anyhow::Result<ExitCode> {
        if !self.json {
            println!("{} with its stock timeouts, a quiet network, no application traffic\n", self.stack);
            println!(
                "{:>7}  {:<24}{:>10}{:>12}{:>12}{:>16}",
                "members", "event", "time s", "packets", "beyond load", "bytes"
            );
        }
        let mut all = Vec::new();
        for &members in &self.members {
            let growth = grow(&self.stack, members, self.seed).map_err(anyhow::Error::msg)?;
            if !self.json {
                print!("{}", growth_rows(&growth));
            }
            all.push(growth);
        }
        if self.json {
            println!("{}", growth_json(&all));
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn growth_rows(growth: &Growth) -> String {
    let mut text = String::new();
    for phase in &growth.phases {
        text += &format!(
            "{:>7}  {:<24}{:>10.3}{:>12}{:>12}{:>16}\n",
            growth.members,
            phase.name,
            phase.took.as_secs_f64(),
            phase.packets,
            phase.extra,
            phase.bytes
        );
    }
    let (packets, bytes) = (growth.steady_packets, growth.steady_bytes);
    text += &format!(
        "{:>7}  {:<24}{:>10}{packets:>12.1}{:>12}{bytes:>16.0}\n",
        growth.members, "load per second", "", ""
    );
    text
}

fn growth_json(all: &[Growth]) -> serde_json::Value {
    let one = |growth: &Growth| {
        let phases: Vec<_> = growth
            .phases
            .iter()
            .map(|phase| {
                serde_json::json!({
                    "event": phase.name,
                    "seconds": phase.took.as_secs_f64(),
                    "packets": phase.packets,
                    "beyond_load": phase.extra,
                    "bytes": phase.bytes,
                })
            })
            .collect();
        serde_json::json!({
            "members": growth.members,
            "events": phases,
            "load_packets_per_second": growth.steady_packets,
            "load_bytes_per_second": growth.steady_bytes,
        })
    };
    all.iter().map(one).collect()
}
