//! `consort demo`: what a newcomer sees first.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use consort_channel::rpc::RpcDispatcher;

use crate::join::Join;
use crate::perf::{member, member_name, start_others, uperf};

/// Starts four members on this host, lets them call each other, kills one, and goes on.
#[derive(Args)]
#[command(after_help = "Examples:\n  consort demo\n  consort demo --config udp.xml --time 2\n\n\
    The exit code is 1 if a call has failed.")]
pub(crate) struct Demo {
    #[command(flatten)]
    join: Join,
    /// Seconds per round.
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    time: f64,
}

const MEMBERS: usize = 4;
const FIRST_PORT: u16 = 18_800;

impl Demo {
    pub(crate) async fn run(mut self) -> anyhow::Result<ExitCode> {
        self.join.on_this_host(FIRST_PORT, MEMBERS)?;
        let own = self.join.name.get_or_insert_with(|| member_name(0)).clone();
        println!(
            "Starting {MEMBERS} members of cluster `{}` on this host ({}).",
            self.join.cluster, self.join.config
        );
        let dispatcher = uperf::answering_member(&self.join).await?;
        let mut others = start_others("uperf", &self.join, (1..MEMBERS).map(member_name))?;
        member::wait_for_members(dispatcher.channel(), MEMBERS).await?;
        println!("They have found each other: {}\n", dispatcher.channel().view_text());
        println!(
            "Member {own} calls the others: 25 callers, 80 % reads of 1 KB, 20 % writes of 1 KB to two members."
        );
        let before = self.round(&dispatcher).await?;

        let mut last = others.0.pop().context("a member to kill")?;
        println!("\nKilling member {} (kill -9) …", member_name(MEMBERS - 1));
        let killed = std::time::Instant::now();
        last.kill()?;
        last.wait()?;
        let mut views = dispatcher.channel().watch_view();
        let has_one_less =
            |view: &Option<consort_channel::View>| view.as_ref().is_some_and(|v| v.len() < MEMBERS);
        tokio::time::timeout(Duration::from_secs(60), views.wait_for(has_one_less))
            .await
            .context("the others did not notice")??;
        println!(
            "After {:.2} s the others agree: {}\n",
            killed.elapsed().as_secs_f64(),
            dispatcher.channel().view_text()
        );
        println!("The calls go on.");
        let after = self.round(&dispatcher).await?;
        dispatcher.channel().clone().close().await;
        drop(others);
        println!();
        print!("{}", table(&before, &after));
        let is_good = before.errors + after.errors == 0 && after.requests > 0;
        Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    async fn round(&self, dispatcher: &RpcDispatcher) -> anyhow::Result<uperf::Round> {
        let time = Duration::from_secs_f64(self.time);
        let mut second = 0;
        let round = uperf::round(dispatcher, 25, time, |requests| {
            second += 1;
            print!("\r  second {second}: {requests:>7} calls");
            let _ = std::io::stdout().flush();
        })
        .await?;
        let line = format!("{} calls in {:.1} s, {} failed", round.requests, round.seconds, round.errors);
        println!("\r  {line:<40}");
        Ok(round)
    }
}

fn table(before: &uperf::Round, after: &uperf::Round) -> String {
    let mut text =
        format!("{:<16}{:>12}{:>12}{:>12}{:>12}\n", "", "calls/s", "mean us", "p99 us", "p99.9 us");
    for (name, round) in [("four members", before), ("three members", after)] {
        text += &format!(
            "{name:<16}{:>12.0}{:>12.0}{:>12.0}{:>12.0}\n",
            round.requests as f64 / round.seconds,
            round.latency.mean,
            round.latency.p99,
            round.latency.p999
        );
    }
    text
}
