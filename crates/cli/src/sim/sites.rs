use std::process::ExitCode;

use clap::Args;
use consort_sim::sites::{Plan, Report, replay, run};

use super::seeds::Seeds;
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
    pub(super) fn run(&self) -> ExitCode {
        let plan = Plan::new(self.sites, self.members, self.masters);
        let plan = if self.of.has_faults() { plan } else { plan.without_faults() };
        let Some(seed) = self.of.seed else {
            return self.of.each(|seed| run(&plan, seed), summary, |seed| self.replay_command(seed));
        };
        let (result, story) = replay(&plan, seed);
        if !self.of.json {
            story.iter().for_each(|line| println!("{line}"));
            println!();
        }
        match result {
            Ok(report) => {
                print!("{}", summary(&[(seed, report)], self.of.json));
                ExitCode::SUCCESS
            }
            Err(violation) => {
                println!("{violation}");
                ExitCode::FAILURE
            }
        }
    }

    fn replay_command(&self, seed: u64) -> String {
        let Self { sites, members, masters, of } = self;
        let faults = of.faults_option();
        format!(
            "consort sim sites --sites {sites} --members {members} --masters {masters}{faults} --seed {seed}"
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
    let trace = match reports {
        [(_, report)] => Some(format!("{:016x}", report.trace)),
        _ => None,
    };
    if json {
        let named = |name: &str| name.replace(' ', "_");
        let mut fields: serde_json::Map<String, serde_json::Value> =
            sums.iter().map(|(name, value)| (named(name), (*value).into())).collect();
        fields.extend(trace.map(|trace| ("trace".to_owned(), trace.into())));
        return serde_json::Value::from(fields).to_string() + "\n";
    }
    let mut text: String = sums.iter().map(|(name, value)| format!("{name:<24}{value:>16}\n")).collect();
    text += &trace.map(|trace| format!("trace {trace}\n")).unwrap_or_default();
    text
}
