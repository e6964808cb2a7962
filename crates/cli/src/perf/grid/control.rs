//! The control channel: orders to all members, and their responses.
//!
//! It is idle while a test runs: an order is sent, and each member responds when it is done.

use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use consort_channel::rpc::{RequestOptions, Response, RpcDispatcher};
use consort_channel::{Address, Flags, Payload};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::iteration_load::IterationLoad;
use super::load::{Done, Test};
use super::settings::Settings;

/// How long an order may take that only looks or sets.
pub(crate) const ORDER_TIME_MAX: Duration = Duration::from_secs(30);
/// How long a change of owners may take.
pub(crate) const SETTLE_TIME_MAX: Duration = Duration::from_secs(120);
/// How long members may take to begin and to end a rebalance.
pub(crate) const REBALANCE_TIME_MAX: Duration = Duration::from_secs(300);
/// The time that members may take beyond the time of the test.
pub(crate) const OVERTIME_MAX: Duration = Duration::from_secs(60);
/// How long it may take to put or remove all keys.
pub(crate) const POPULATE_TIME_MAX: Duration = Duration::from_secs(3_600);

/// Orders to members, as JSON.
#[derive(Serialize, Deserialize)]
pub(crate) enum Order {
    /// Return the settings of the next test. Response: [`Settings`].
    Settings,
    /// These are the settings of the next test. Answer: nothing.
    Set(Settings),
    /// Run this test. Answer: figures, when it is over.
    Start(Test),
    /// End the test that runs, with the figures so far. Answer: nothing.
    EndRun,
    /// Iterate over all entries. Answer: [`super::iteration_load::IterationResult`].
    Iterate(IterationLoad),
    /// Wait until there are so many members, and then until nothing moves. Answer: [`Rebalanced`].
    Rebalance(usize),
    /// How far are you? Answer: [`State`].
    Look,
    /// Wait until the cache has so many members and nothing moves. Answer: [`State`].
    Settle(usize),
    /// Put these keys with values of so many bytes. Answer: nothing.
    Populate { first: u32, last: u32, size: usize },
    /// Return the local copies of keys 1 to this number. Response: copies.
    Copies(u32),
    /// End.
    Quit,
}

/// How far a member is.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct State {
    /// Its name in the grid.
    pub(crate) name: String,
    /// Copies that it has.
    pub(crate) copies: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// How many copies a key is to have now.
    pub(crate) wanted: usize,
    /// Of the test that runs or ran last.
    pub(crate) done: Done,
    /// Members of the cache.
    pub(crate) members: usize,
    /// Whether nothing moves.
    pub(crate) is_stable: bool,
    /// Segments that are to come.
    pub(crate) segments_left: usize,
    /// Bytes that are to come, about.
    pub(crate) bytes_left: u64,
    /// Bytes that have come in this rebalance.
    pub(crate) bytes_pulled: u64,
    /// The CPU and memory of its process so far.
    pub(crate) used: Used,
}

/// A member's measurement of a rebalance.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Rebalanced {
    /// From the topology with the new member to the stable one.
    pub(crate) seconds: f64,
}

/// The CPU and memory of a process so far, or of several together.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Used {
    /// CPU time in seconds.
    pub(crate) cpu_s: f64,
    /// The most memory of one of them.
    pub(crate) rss_mb: f64,
}

impl Used {
    /// All of them together.
    pub(crate) fn of(states: &[State]) -> Self {
        states.iter().fold(Self::default(), |sum, state| Self {
            cpu_s: sum.cpu_s + state.used.cpu_s,
            rss_mb: sum.rss_mb.max(state.used.rss_mb),
        })
    }
}

impl State {
    /// Of the test that runs or ran last.
    pub(crate) fn operations(&self) -> u64 {
        self.done.gets + self.done.puts
    }
}

impl Order {
    pub(crate) fn of(bytes: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(bytes).map_err(|error| format!("an unknown order: {error}"))
    }
}

fn request(order: &Order) -> anyhow::Result<Payload> {
    Ok(Payload::Bytes(Some(serde_json::to_vec(order)?.into())))
}

/// Encodes a response. A process without a cache sends an empty one.
pub(crate) fn answer<A: Serialize>(content: &A) -> anyhow::Result<Bytes> {
    Ok(serde_json::to_vec(&Some(content))?.into())
}

/// The response of a process without a cache.
pub(crate) fn no_answer() -> Bytes {
    Bytes::from_static(b"null")
}

fn read<A: DeserializeOwned>(response: Response) -> anyhow::Result<Option<A>> {
    match response.result? {
        Payload::Bytes(Some(json)) => serde_json::from_slice(&json).context("an answer that is not JSON"),
        _ => bail!("an empty answer"),
    }
}

fn options(limit: Duration) -> RequestOptions {
    RequestOptions::all(limit).with_flags(Flags::OOB)
}

/// Sends an order to all members, this one included. Returns the results in the order of the view, without processes that have
/// no cache.
///
/// # Errors
///
/// If no member could be reached.
pub(crate) async fn order_each<A: DeserializeOwned>(
    dispatcher: &RpcDispatcher,
    order: &Order,
    limit: Duration,
) -> anyhow::Result<Vec<(Address, anyhow::Result<A>)>> {
    let view = dispatcher.channel().view();
    let mut responses = dispatcher.call_all(request(order)?, &options(limit)).await?;
    responses.sort_by_key(|response| view.as_ref().and_then(|view| view.rank(&response.member)));
    let answers = responses.into_iter().filter_map(|response| {
        let member = response.member.clone();
        read(response).transpose().map(|answer| (member, answer))
    });
    Ok(answers.collect())
}

/// The same where everybody has to answer.
///
/// # Errors
///
/// The first of a member.
pub(crate) async fn order_all<A: DeserializeOwned>(
    dispatcher: &RpcDispatcher,
    order: &Order,
    limit: Duration,
) -> anyhow::Result<Vec<A>> {
    let answers = order_each(dispatcher, order, limit).await?;
    let name = |member: &Address| dispatcher.channel().name_of(member);
    answers
        .into_iter()
        .map(|(member, answer)| answer.with_context(|| format!("member {}", name(&member))))
        .collect()
}

/// Gives one member an order.
///
/// # Errors
///
/// If it does not answer, or that it could not.
pub(crate) async fn order_one<A: DeserializeOwned>(
    dispatcher: &RpcDispatcher,
    member: &Address,
    order: &Order,
    limit: Duration,
) -> anyhow::Result<Option<A>> {
    let result = dispatcher.call(member, request(order)?, &options(limit)).await;
    read(Response { member: member.clone(), result })
}
