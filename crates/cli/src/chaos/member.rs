//! A member of the cluster: it has the cache open, clients that use it, and takes orders by lines of JSON on its input. It
//! ends gracefully by a signal.

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

/// The cache.
pub(super) const CACHE: &str = "chaos";

/// Keys that are put together when a place's keys are put first.
const CHUNK: usize = 500;

/// Reads that are looked at before others may run.
const TURN: u32 = 500;

/// An order to a member.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Put the keys of this place for the first time. Answer: nothing.
    Populate,
    /// Let clients work. Answer: nothing.
    Work,
    /// End them. Answer: [`Tally`].
    Stop,
    /// How far are you? Answer: [`State`].
    Look,
    /// Read every key. Answer: [`Found`].
    Read,
}

/// A member's message.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// It has the cache open.
    Ready,
    Done,
    Tally(Tally),
    State(State),
    Found(Found),
    /// The results of its clients, after a signal has ended it.
    Last(Tally),
    Failed(String),
}

/// A line of a member's output.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Line {
    /// Of the order that this answers; 0 if it was not asked.
    pub(crate) number: u64,
    pub(crate) reply: Reply,
}

/// How far a member is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    /// The name of the view's first member.
    pub(crate) coordinator: String,
    /// Members of the cache.
    pub(crate) members: usize,
    /// Whether nothing moves.
    pub(crate) is_stable: bool,
    /// Segments that are to come.
    pub(crate) segments_left: usize,
}

/// The values of all keys.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub(crate) struct Found {
    /// Keys that have less than was acknowledged.
    pub(crate) lost: u64,
    /// Keys with a value without a put.
    pub(crate) wrong: u64,
    /// Keys that could not be read.
    pub(crate) failed: u64,
    /// The first that is not as it should be.
    pub(crate) example: Option<String>,
}

/// The settings of a member.
pub(crate) struct Setting {
    pub(crate) manager: CacheManager,
    pub(crate) place: usize,
    pub(crate) places: usize,
    pub(crate) keys_each: u32,
    pub(crate) directory: PathBuf,
    pub(crate) load: Load,
}

/// Takes part until its input ends or a signal comes.
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

/// Sends a message, unless the reader has gone.
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

/// Reads every key while there are no writes.
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
