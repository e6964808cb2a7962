//! Member processes on this host, and one process without a cache that controls them.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use consort_channel::Address;
use consort_channel::rpc::RpcDispatcher;
use tokio::task::{JoinHandle, JoinSet};

use super::channels::CONTROL_PORTS;
use super::control::{
    ORDER_TIME_MAX, OVERTIME_MAX, Order, POPULATE_TIME_MAX, REBALANCE_TIME_MAX, Rebalanced, SETTLE_TIME_MAX,
    State, Used, order_all, order_each, order_one,
};
use super::copies::{Copies, Verdict};
use super::figures::Figures;
use super::iteration_load::{IterationLoad, IterationResult};
use super::load::Test;
use super::member::join_control;
use super::settings::Settings;
use crate::join::Join;
use crate::perf::cluster::{Others, member_name};
use crate::perf::member::wait_for_members;

/// The members' ports lie between those of the two channels.
pub(crate) const MEMBERS_MAX: usize = CONTROL_PORTS as usize - 3;

pub(crate) const POLL_INTERVAL: Duration = Duration::from_secs(1);
const STATE_TIMEOUT: Duration = Duration::from_millis(250);

/// Below the ports that the system gives out itself.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

pub(crate) struct Grid {
    join: Join,
    control: RpcDispatcher,
    others: Others,
    /// In the order of their start.
    names: Vec<String>,
}

/// The ports are free at all addresses of members.
pub(crate) fn free_ports(members: usize) -> anyhow::Result<u16> {
    let block = 4 * CONTROL_PORTS;
    let blocks = (PORTS.end - PORTS.start) / block;
    // Two that start at once do not look at the same place first.
    let first = std::process::id() % u32::from(blocks);
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let bases = (0..blocks).map(|nth| PORTS.start + ((first as u16 + nth) % blocks) * block);
    let is_whole = |base: &u16| {
        (0..4).all(|part| (0..=members as u16).all(|nth| is_free(base + part * CONTROL_PORTS + nth)))
    };
    bases.into_iter().find(is_whole).context("no free ports on 127.0.0.1")
}

impl Grid {
    /// Reserves ports for one more member.
    pub(crate) async fn start(
        join: &Join,
        members: usize,
        owners: u16,
        settings: &Settings,
    ) -> anyhow::Result<Self> {
        if !(1..=MEMBERS_MAX).contains(&members) {
            bail!("{members} members: 1 to {MEMBERS_MAX} fit one host");
        }
        let mut join = join.clone();
        join.on_this_host(free_ports(members + 1)?, members + 1)?;
        join.name = Some("starter".to_owned());
        let control = join_control(&join, None).await?;
        let names = (0..members).map(member_name).collect();
        let mut grid = Self { join, control, others: Others(Vec::new()), names };
        // The first one begins the cluster, so that the rest need not merge.
        for (from, to) in [(0, 1), (1, members)] {
            for nth in from..to {
                grid.others.0.push(start_member(&grid.join, &member_name(nth), owners, settings, None)?);
            }
            wait_for_members(grid.control.channel(), 1 + to).await?;
            grid.settle(to).await?;
        }
        Ok(grid)
    }

    pub(crate) fn members(&self) -> usize {
        self.names.len()
    }

    pub(crate) fn wanted(&self, owners: u16) -> usize {
        usize::from(owners).min(self.members())
    }

    async fn settle(&self, members: usize) -> anyhow::Result<()> {
        let limit = SETTLE_TIME_MAX + ORDER_TIME_MAX;
        order_all::<State>(&self.control, &Order::Settle(members), limit).await.map(drop)
    }

    pub(crate) async fn look(&self) -> anyhow::Result<Vec<State>> {
        let mut looking = JoinSet::new();
        for member in self.addresses()? {
            let control = self.control.clone();
            looking.spawn(
                async move { order_one::<State>(&control, &member, &Order::Look, STATE_TIMEOUT).await },
            );
        }
        let mut states: Vec<State> =
            looking.join_all().await.into_iter().filter_map(|state| state.ok().flatten()).collect();
        states.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(states)
    }

    fn first(&self) -> anyhow::Result<Address> {
        self.addresses()?.into_iter().next().context("no member")
    }

    fn addresses(&self) -> anyhow::Result<Vec<Address>> {
        let view = self.control.channel().view().context("no view")?;
        let own = self.control.channel().address();
        Ok(view.members().iter().filter(|member| *member != own).cloned().collect())
    }

    pub(crate) async fn populate(&self, settings: &Settings) -> anyhow::Result<()> {
        let members = self.addresses()?;
        let share = u64::from(settings.keys).div_ceil(members.len().max(1) as u64);
        let mut putting = JoinSet::new();
        for (nth, member) in members.into_iter().enumerate() {
            let first = 1 + nth as u64 * share;
            let last = (first + share - 1).min(settings.keys.into());
            if first > last {
                continue;
            }
            let control = self.control.clone();
            let order = Order::Populate { first: first as u32, last: last as u32, size: settings.size };
            putting.spawn(async move { order_one::<()>(&control, &member, &order, POPULATE_TIME_MAX).await });
        }
        while let Some(done) = putting.join_next().await {
            done.context("an order")?.context("putting the keys")?;
        }
        Ok(())
    }

    /// Skips a member that dies meanwhile.
    pub(crate) fn run(&self, test: &Test) -> impl Future<Output = anyhow::Result<Vec<Figures>>> + use<> {
        run(self.control.clone(), test.clone())
    }

    pub(crate) async fn end_run(&self) -> anyhow::Result<()> {
        order_all::<()>(&self.control, &Order::EndRun, ORDER_TIME_MAX).await.map(drop)
    }

    pub(crate) async fn iterate(&self, load: &IterationLoad) -> anyhow::Result<IterationResult> {
        let limit = Duration::from_millis(load.time_ms) + OVERTIME_MAX;
        order_one(&self.control, &self.first()?, &Order::Iterate(*load), limit).await?.context("no answer")
    }

    /// A new member may have segments before it takes orders.
    pub(crate) async fn meet(&self) -> anyhow::Result<()> {
        wait_for_members(self.control.channel(), 1 + self.members()).await
    }

    pub(crate) async fn states(&self) -> anyhow::Result<Vec<State>> {
        order_all(&self.control, &Order::Look, ORDER_TIME_MAX).await
    }

    pub(crate) async fn used(&self) -> anyhow::Result<Used> {
        Ok(Used::of(&self.states().await?))
    }

    /// The rebalance is still to begin.
    pub(crate) fn rebalanced(
        &self,
        members: usize,
    ) -> anyhow::Result<JoinHandle<anyhow::Result<Rebalanced>>> {
        let (control, first) = (self.control.clone(), self.first()?);
        Ok(tokio::spawn(async move {
            let limit = REBALANCE_TIME_MAX + SETTLE_TIME_MAX;
            order_one(&control, &first, &Order::Rebalance(members), limit).await?.context("no answer")
        }))
    }

    /// The member may reserve memory first, and has not joined yet.
    pub(crate) fn add(
        &mut self,
        owners: u16,
        settings: &Settings,
        reserve: Option<u64>,
    ) -> anyhow::Result<String> {
        let name = member_name(self.names.len());
        self.others.0.push(start_member(&self.join, &name, owners, settings, reserve)?);
        self.names.push(name.clone());
        Ok(name)
    }

    pub(crate) fn kill_last(&mut self) -> anyhow::Result<String> {
        let mut last = self.others.0.pop().context("a member to kill")?;
        last.kill()?;
        last.wait()?;
        self.names.pop().context("its name")
    }

    pub(crate) async fn settled(&self) -> anyhow::Result<()> {
        self.settle(self.members()).await
    }

    pub(crate) async fn validate(&self, keys: u32, owners: u16) -> anyhow::Result<Verdict> {
        let all: Vec<Copies> = order_all(&self.control, &Order::Copies(keys), POPULATE_TIME_MAX).await?;
        Ok(Verdict::of(keys, self.wanted(owners), &all))
    }

    pub(crate) async fn close(self) {
        drop(self.others);
        self.control.channel().clone().abort().await;
    }
}

async fn run(control: RpcDispatcher, test: Test) -> anyhow::Result<Vec<Figures>> {
    let limit = test.takes() + OVERTIME_MAX;
    let mut figures = Vec::new();
    for (member, answer) in order_each::<Figures>(&control, &Order::Start(test), limit).await? {
        match answer {
            Ok(own) => figures.push(own),
            Err(error) if control.channel().has_member(&member) => {
                return Err(error.context(format!("member {}", control.channel().name_of(&member))));
            }
            Err(_) => {}
        }
    }
    Ok(figures)
}

/// The process ends when its input does, and so with its parent.
fn start_member(
    join: &Join,
    name: &str,
    owners: u16,
    settings: &Settings,
    reserve: Option<u64>,
) -> anyhow::Result<Child> {
    let program = std::env::current_exe().context("where is this program?")?;
    Command::new(program)
        .args(["perf", "--nohup", "--with-parent"])
        .arg(format!("--owners={owners}"))
        .arg(format!("--keys={}", settings.keys))
        .args(reserve.map(|bytes| format!("--reserve={bytes}")))
        .args(join.arguments(name))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .with_context(|| format!("starting member {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_that_are_taken_are_not_free() {
        let base = free_ports(3).unwrap();
        let taken = TcpListener::bind(("127.0.0.1", base + CONTROL_PORTS + 2)).unwrap();
        assert_ne!(free_ports(3).unwrap(), base);
        drop(taken);
    }
}
