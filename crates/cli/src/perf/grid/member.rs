//! A member has the grid's cache open, and carries out orders (S000-24 to S000-26).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::{Context, bail};
use bytes::Bytes;
use consort_cache::{CacheConfig, CacheManager, CacheMode, Phase, RawCache};
use consort_channel::rpc::{Responder, RpcDispatcher, RpcHandler};
use consort_channel::{Message, Payload};
use consort_procstat::{grouped, process};
use tokio::sync::{Mutex as AsyncMutex, SetOnce};

use super::channels::{banner, control, control_cluster};
use super::control::{
    self, ORDER_TIME_MAX, Order, REBALANCE_TIME_MAX, Rebalanced, SETTLE_TIME_MAX, State, Used, answer,
    no_answer,
};
use super::copies;
use super::figures::Figures;
use super::load::{self, Run, Test};
use super::settings::Settings;
use crate::join::Join;
use crate::shutdown::{Signals, leave_gracefully};
use crate::terminal::Escaped;

const CACHE: &str = "perf";

pub(crate) struct Member {
    pub(crate) manager: CacheManager,
    pub(crate) cache: RawCache,
    settings: Mutex<Settings>,
    /// The running or last test, and whether it runs.
    run: Mutex<(Arc<Run>, bool)>,
    quit: SetOnce<()>,
    signals: AsyncMutex<Signals>,
}

pub(crate) enum End {
    /// Other members first get its entries.
    Alone,
    Together,
}

/// A member, once it has joined, or a process without a cache.
struct Orders {
    member: Option<Arc<SetOnce<Arc<Member>>>>,
}

impl RpcHandler for Orders {
    fn handle(&self, request: Message, responder: Option<Responder>) {
        let Some(responder) = responder else { return };
        let order =
            request.payload_bytes().map_or_else(|| Err("no order".to_owned()), |json| Order::of(json));
        match (order, &self.member) {
            (Err(why), _) => responder.reply(Err(why)),
            (Ok(_), None) => responder.reply(Ok(Payload::Bytes(Some(no_answer())))),
            (Ok(order), Some(member)) => {
                let member = member.clone();
                tokio::spawn(async move {
                    // Others may see us before we are ready.
                    let member = member.wait().await.clone();
                    let result = member.execute(order).await.map_err(|error| format!("{error:#}"));
                    responder.reply(result.map(|json| Payload::Bytes(Some(json))));
                });
            }
        }
    }
}

pub(crate) async fn join_control(join: &Join, config: Option<&str>) -> anyhow::Result<RpcDispatcher> {
    let cluster = control_cluster(&join.cluster);
    let orders = Orders { member: None };
    RpcDispatcher::connect(control(join, config)?, &cluster, orders)
        .await
        .with_context(|| format!("joining cluster {cluster}"))
}

impl Member {
    /// Settings of an existing cluster override `settings`.
    pub(crate) async fn join(
        join: &Join,
        config: Option<&str>,
        owners: u16,
        settings: Settings,
    ) -> anyhow::Result<(Arc<Self>, RpcDispatcher)> {
        let manager = CacheManager::from_channel(join.builder()?)
            .connect(&join.cluster)
            .await
            .with_context(|| format!("joining cluster {}", join.cluster))?;
        println!("{}", banner(manager.name(), &join.cluster, &manager.physical_address().to_string()));
        tokio::spawn(print_views(manager.clone()));
        let cache_config = CacheConfig { mode: CacheMode::Distributed { owners }, ..CacheConfig::new(CACHE) };
        let cache = manager.open(cache_config).raw().await?;
        let ready = Arc::new(SetOnce::new());
        let cluster = control_cluster(&join.cluster);
        let orders = Orders { member: Some(ready.clone()) };
        let dispatcher = RpcDispatcher::connect(control(join, config)?, &cluster, orders)
            .await
            .with_context(|| format!("joining cluster {cluster}"))?;
        let channel = dispatcher.channel();
        println!("{}", banner(channel.name(), &cluster, &channel.physical_address().to_string()));
        let settings = other_settings(&dispatcher).await.unwrap_or(settings);
        println!("{}", created(settings.keys));
        let member = Arc::new(Self {
            manager,
            cache,
            settings: Mutex::new(settings),
            run: Mutex::default(),
            quit: SetOnce::new(),
            signals: AsyncMutex::new(Signals::listen()?),
        });
        let _ = ready.set(member.clone());
        Ok((member, dispatcher))
    }

    pub(crate) fn settings(&self) -> Settings {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn run(&self) -> MutexGuard<'_, (Arc<Run>, bool)> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wanted_copies(&self) -> usize {
        let members = self.cache.topology().map_or(0, |topology| topology.current.members().len());
        usize::from(self.cache.config().owner_count()).min(members)
    }

    async fn execute(self: Arc<Self>, order: Order) -> anyhow::Result<Bytes> {
        match order {
            Order::Settings => answer(&self.settings()),
            Order::Set(settings) => {
                let keys = settings.keys;
                let before = std::mem::replace(
                    &mut *self.settings.lock().unwrap_or_else(PoisonError::into_inner),
                    settings,
                );
                if before.keys != keys {
                    println!("{}", created(keys));
                }
                answer(&())
            }
            Order::Start(test) => answer(&self.start(&test).await?),
            Order::EndRun => {
                self.run().0.end();
                answer(&())
            }
            Order::Iterate(load) => answer(&load.run(&self.cache).await?),
            Order::Rebalance(members) => answer(&self.rebalanced(members).await?),
            Order::Look => answer(&self.state()),
            Order::Settle(members) => {
                self.settle(members).await?;
                answer(&self.state())
            }
            Order::Populate { first, last, size } => {
                load::populate(&self.cache, first..=last, size, |_| ()).await?;
                answer(&())
            }
            Order::Copies(keys) => answer(&copies::own(&self.manager, &self.cache, keys).await?),
            Order::Quit => {
                let _ = self.quit.set(());
                answer(&())
            }
        }
    }

    async fn start(&self, test: &Test) -> anyhow::Result<Figures> {
        let run = Arc::<Run>::default();
        {
            let mut current = self.run();
            if current.1 {
                bail!("a test is running");
            }
            *current = (run.clone(), true);
        }
        let name = self.manager.name();
        let figures = run.carry_out(|_| self.cache.clone(), test, name, |line| println!("{line}")).await;
        self.run().1 = false;
        figures
    }

    fn state(&self) -> State {
        let progress = self.manager.rebalance_progress(CACHE);
        let topology = self.cache.topology();
        State {
            name: self.manager.name().to_owned(),
            copies: self.cache.local_len(),
            bytes: self.cache.local_bytes(),
            wanted: self.wanted_copies(),
            done: self.run().0.done(),
            members: topology.as_ref().map_or(0, |topology| topology.members.len()),
            is_stable: topology.is_some_and(|topology| topology.phase == Phase::Stable),
            segments_left: progress.segments_left,
            bytes_left: progress.bytes_left,
            bytes_pulled: progress.bytes_pulled,
            used: Used { cpu_s: process::cpu().as_secs_f64(), rss_mb: process::peak_memory_mb() },
        }
    }

    async fn settle(&self, members: usize) -> anyhow::Result<()> {
        let mut topologies = self.manager.watch_topology(CACHE).context("the cache is closed")?;
        let settled = topologies.wait_for(|topology| {
            topology.as_ref().is_some_and(|topology| {
                topology.phase == Phase::Stable
                    && topology.members.len() == members
                    && topology.current.members().len() == members
            })
        });
        match tokio::time::timeout(SETTLE_TIME_MAX, settled).await {
            Ok(settled) => settled.map(drop).context("the cache is closed"),
            Err(_) => bail!("no {members} members have settled within {SETTLE_TIME_MAX:?}"),
        }
    }

    async fn rebalanced(&self, members: usize) -> anyhow::Result<Rebalanced> {
        let mut topologies = self.manager.watch_topology(CACHE).context("the cache is closed")?;
        let begun = topologies
            .wait_for(|topology| topology.as_ref().is_some_and(|topology| topology.members.len() == members));
        match tokio::time::timeout(REBALANCE_TIME_MAX, begun).await {
            Ok(begun) => begun.map(drop).context("the cache is closed")?,
            Err(_) => bail!("no {members} members within {REBALANCE_TIME_MAX:?}"),
        }
        let begin = Instant::now();
        self.settle(members).await?;
        Ok(Rebalanced { seconds: begin.elapsed().as_secs_f64() })
    }

    pub(crate) async fn wait_for_end(&self) -> End {
        tokio::select! {
            () = async { let _ = self.quit.wait().await; } => End::Together,
            name = self.signalled() => {
                println!("-- {name}");
                End::Alone
            }
        }
    }

    async fn signalled(&self) -> &'static str {
        self.signals.lock().await.next().await
    }

    /// `at_once` completes with a reason to abandon the handover, such as a signal.
    ///
    /// # Errors
    ///
    /// If other members do not have all entries that only this member had.
    pub(crate) async fn end(
        &self,
        dispatcher: RpcDispatcher,
        end: End,
        at_once: impl Future<Output = &'static str>,
    ) -> anyhow::Result<()> {
        let handed_over = match end {
            End::Alone => {
                let at_once = async {
                    tokio::select! {
                        name = self.signalled() => name,
                        why = at_once => why,
                    }
                };
                leave_gracefully(self.manager.clone(), at_once, |line| println!("{line}")).await
            }
            End::Together => {
                self.manager.clone().abort().await;
                Ok(())
            }
        };
        dispatcher.channel().clone().close().await;
        handed_over
    }
}

async fn other_settings(dispatcher: &RpcDispatcher) -> Option<Settings> {
    let channel = dispatcher.channel();
    let view = channel.view()?;
    for member in view.members().iter().filter(|member| *member != channel.address()) {
        let answer = control::order_one(dispatcher, member, &Order::Settings, ORDER_TIME_MAX).await;
        if let Ok(Some(settings)) = answer {
            println!("-- settings are those of {}", Escaped(channel.name_of(member)));
            return Some(settings);
        }
    }
    None
}

async fn print_views(manager: CacheManager) {
    let mut views = manager.watch_view();
    while views.wait_for(Option::is_some).await.is_ok() {
        println!("** view: {}", Escaped(manager.view_text()));
        if views.changed().await.is_err() {
            return;
        }
    }
}

/// S000-26
fn created(keys: u32) -> String {
    let keys = grouped(keys.into());
    format!("created {keys} keys: [1-{keys}]")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S000-26
    #[test]
    fn created_keys_are_printed_as_in_ispn_perf_test() {
        assert_eq!(created(100_000), "created 100,000 keys: [1-100,000]");
    }
}
