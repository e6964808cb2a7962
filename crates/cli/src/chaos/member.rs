//! A member with clients. It takes orders by lines of JSON on its input, and ends gracefully by a signal.

use std::io::Write;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context;
use consort_cache::{CacheConfig, CacheManager, CacheMode, Phase, RawCache};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader};

use super::clients::{Clients, Load, Tally, count_of, kind, value};
use super::ledger::Ledger;
use crate::perf::grid::key;
use crate::shutdown::{Signals, leave_gracefully};

pub(super) const CACHE: &str = "chaos";

const CHUNK: usize = 500;

const TURN: u32 = 500;

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    Populate,
    Work,
    Stop,
    Look,
    Read,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    Ready,
    Done,
    Tally(Tally),
    State(State),
    Found(Found),
    Last(Tally),
    Failed(String),
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Line {
    /// The answered order; 0 without one.
    pub(crate) number: u64,
    pub(crate) reply: Reply,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) coordinator: String,
    pub(crate) members: usize,
    pub(crate) is_stable: bool,
    pub(crate) segments_left: usize,
}

#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub(crate) struct Found {
    /// Keys with an older value than the acknowledged one.
    pub(crate) lost: u64,
    /// Keys with a value of no client.
    pub(crate) wrong: u64,
    pub(crate) failed: u64,
    pub(crate) example: Option<String>,
}

pub(crate) struct Setting {
    pub(crate) manager: CacheManager,
    pub(crate) place: usize,
    pub(crate) places: usize,
    pub(crate) keys_each: u32,
    pub(crate) directory: PathBuf,
    pub(crate) load: Load,
}

pub(crate) async fn serve(setting: Setting) -> anyhow::Result<()> {
    let mut signals = Signals::listen()?;
    let config = CacheConfig { mode: CacheMode::Distributed { owners: 2 }, ..CacheConfig::new(CACHE) };
    let cache = setting.manager.open(config).raw().await?;
    let ledger = Rc::new(Ledger::open(&setting.directory, setting.places, setting.keys_each)?);
    send_reply(0, Reply::Ready);
    let mut clients: Option<Clients> = None;
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    loop {
        let line = tokio::select! {
            line = lines.next_line() => line.context("the input")?,
            _ = signals.next() => {
                if let Some(clients) = clients.take() {
                    send_reply(0, Reply::Last(clients.stop().await));
                }
                return leave_gracefully(setting.manager, signals.next(), |_| ()).await;
            }
        };
        let Some(line) = line else {
            setting.manager.abort().await;
            return Ok(());
        };
        let (number, order): (u64, Order) = serde_json::from_str(&line).context("an order")?;
        let reply = match order {
            Order::Populate => match populate(&cache, &ledger, &setting).await {
                Ok(()) => Reply::Done,
                Err(error) => Reply::Failed(format!("{error:#}")),
            },
            Order::Work => {
                clients.get_or_insert_with(|| Clients::start(&cache, &ledger, setting.place, setting.load));
                Reply::Done
            }
            Order::Stop => {
                let stopping = clients.take();
                tokio::task::spawn_local(async move {
                    let tally = match stopping {
                        Some(clients) => clients.stop().await,
                        None => Tally::default(),
                    };
                    send_reply(number, Reply::Tally(tally));
                });
                continue;
            }
            Order::Look => Reply::State(member_state(&setting.manager)),
            Order::Read => match read(&cache, &ledger, setting.load).await {
                Ok(found) => Reply::Found(found),
                Err(error) => Reply::Failed(format!("{error:#}")),
            },
        };
        send_reply(number, reply);
    }
}

pub(super) fn send_reply(number: u64, reply: Reply) {
    if let Ok(line) = serde_json::to_string(&Line { number, reply }) {
        let _ = writeln!(std::io::stdout(), "{line}");
    }
}

pub(super) fn member_state(manager: &CacheManager) -> State {
    let topology = manager.watch_topology(CACHE).and_then(|topology| topology.borrow().clone());
    let view = manager.view();
    let coordinator = view.as_ref().and_then(|view| view.coordinator());
    State {
        coordinator: coordinator.map_or_else(String::new, |coordinator| manager.name_of(coordinator)),
        members: topology.as_ref().map_or(0, |topology| topology.current.members().len()),
        is_stable: topology.is_some_and(|topology| {
            topology.phase == Phase::Stable && topology.members.len() == topology.current.members().len()
        }),
        segments_left: manager.rebalance_progress(CACHE).segments_left,
    }
}

async fn populate(cache: &RawCache, ledger: &Ledger, setting: &Setting) -> anyhow::Result<()> {
    let keys: Vec<u32> = ledger.keys_of(setting.place).collect();
    for chunk in keys.chunks(CHUNK) {
        let entries: Vec<([u8; 4], bytes::Bytes)> =
            chunk.iter().map(|&number| (key(number), value(number, 1, setting.load.size))).collect();
        for &number in chunk {
            ledger.note_tried(number, 1)?;
        }
        cache.put_all(entries.iter().map(|(key, value)| (&key[..], value))).await?;
        for &number in chunk {
            ledger.note_acknowledged(number, 1)?;
        }
    }
    Ok(())
}

async fn read(cache: &RawCache, ledger: &Ledger, load: Load) -> anyhow::Result<Found> {
    let mut all = Found::default();
    let cache = cache.with_timeout(Duration::from_secs(10));
    for number in 0..ledger.keys() {
        let (least, most) = (ledger.acknowledged(number)?, ledger.tried(number)?);
        let finding = match cache.get(&key(number)[..]).await {
            Ok(found) => match count_of(number, found.as_deref(), load.size) {
                Some(count) if count < least => {
                    all.lost += 1;
                    format!("has value {count}")
                }
                Some(count) if count <= most => continue,
                other => {
                    all.wrong += 1;
                    format!("has {other:?}")
                }
            },
            Err(error) => {
                all.failed += 1;
                format!("{}: {error}", kind(&error))
            }
        };
        all.example
            .get_or_insert_with(|| format!("key {number} {finding}; acknowledged {least}, tried {most}"));
        if number % TURN == 0 {
            tokio::task::yield_now().await;
        }
    }
    Ok(all)
}
