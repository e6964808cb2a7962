use std::process::ExitCode;

use clap::Args;
use consort_sim::sites::{Plan, Report, replay, run};

use super::seeds::{Seeds, sums_text};
use crate::perf::range::within;

#[derive(Args)]
#[command(after_help = "Example:\n  \
    consort sim sites --sites 3 --members 3 --masters 2 --seeds 1000")]
pub(super) struct SitesOf {
    /// Sites: 2 or 3
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = sites)]
    sites: usize,
    /// Members of each site
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = members)]
    members: usize,
    /// Site masters of each site
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = masters)]
    masters: usize,
    /// RELAY3 in place of RELAY2
    #[arg(long)]
    relay3: bool,
    #[command(flatten)]
    of: Seeds,
}

fn sites(text: &str) -> Result<usize, String> {
    within(text, 2, 3)
}

fn members(text: &str) -> Result<usize, String> {
    within(text, 2, 10)
}

fn masters(text: &str) -> Result<usize, String> {
    within(text, 1, 10)
}

impl SitesOf {
    fn plan(&self) -> Plan {
        let plan = Plan::new(self.sites, self.members, self.masters);
        let plan = if self.relay3 { plan.with_relay3() } else { plan };
        if self.of.has_faults() { plan } else { plan.without_faults() }
    }

    pub(super) fn run(&self) -> ExitCode {
        let plan = self.plan();
        let Some(seed) = self.of.seed else {
            return self.of.each(|seed| run(&plan, seed), summary, |seed| self.replay_command(seed));
        };
        self.of.replay(seed, replay(&plan, seed), summary)
    }

    fn replay_command(&self, seed: u64) -> String {
        let Self { sites, members, masters, relay3, of } = self;
        let protocol = if *relay3 { " --relay3" } else { "" };
        let faults = of.faults_option();
        format!(
            "consort sim sites --sites {sites} --members {members} --masters {masters}{protocol}{faults} --seed {seed}"
        )
    }
}

fn summary(reports: &[(u64, Report)], json: bool) -> String {
    let sum = |of: fn(&Report) -> u64| reports.iter().map(|(_, report)| of(report)).sum::<u64>();
    let sums = [
        ("seeds", reports.len() as u64),
        ("delivered", sum(|report| report.delivered)),
        ("relayed", sum(|report| report.relayed)),
        ("unreachable", sum(|report| report.unreachable)),
        ("changed ways", sum(|report| report.failovers as u64)),
    ];
    let trace = if let [(_, report)] = reports { Some(report.trace) } else { None };
    sums_text(&sums, None, trace, json)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        sites: SitesOf,
    }

    #[test]
    fn each_option_reaches_the_plan_and_the_command_that_replays_a_seed() {
        let of = |line: &str| {
            Line::try_parse_from(line.split(' ')).unwrap_or_else(|error| panic!("{error}")).sites
        };
        let all = of("sites --sites 3 --members 4 --masters 2 --relay3 --faults none --seed 7");
        assert_eq!(
            all.replay_command(7),
            "consort sim sites --sites 3 --members 4 --masters 2 --relay3 --faults none --seed 7"
        );
        let plan = |line: &str| format!("{:?}", of(line).plan());
        let default = plan("sites");
        for line in ["--sites 3", "--members 4", "--masters 2", "--relay3", "--faults none"] {
            let line = &format!("sites {line}");
            assert_ne!(plan(line), default, "{line}");
        }
        for wrong in ["sites --sites 4", "sites --members 1", "sites --masters 0", "sites --seed 1 --seeds 2"]
        {
            assert!(Line::try_parse_from(wrong.split(' ')).is_err(), "{wrong}");
        }
    }
}
