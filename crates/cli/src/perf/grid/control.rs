//! The control channel is idle while a test runs.

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

pub(crate) const ORDER_TIME_MAX: Duration = Duration::from_secs(30);
pub(crate) const SETTLE_TIME_MAX: Duration = Duration::from_secs(120);
pub(crate) const REBALANCE_TIME_MAX: Duration = Duration::from_secs(300);
pub(crate) const OVERTIME_MAX: Duration = Duration::from_secs(60);
pub(crate) const POPULATE_TIME_MAX: Duration = Duration::from_secs(3_600);

#[derive(Serialize, Deserialize)]
pub(crate) enum Order {
    /// Response: [`Settings`].
    Settings,
    /// Set the settings of the next test.
    Set(Settings),
    /// Response: figures, when the test is over.
    Start(Test),
    /// End the test early.
    EndRun,
    /// Response: [`super::iteration_load::IterationResult`].
    Iterate(IterationLoad),
    /// Wait for this number of members, and until no segment moves. Response: [`Rebalanced`].
    Rebalance(usize),
    /// Response: [`State`].
    Look,
    /// Wait until the cache has this number of members and no segment moves. Response: [`State`].
    Settle(usize),
    /// Put these keys with values of `size` bytes.
    Populate { first: u32, last: u32, size: usize },
    /// The local copies of keys 1 to this number.
    Copies(u32),
    /// End the member.
    Quit,
}

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) name: String,
    pub(crate) copies: u64,
    pub(crate) bytes: u64,
    pub(crate) wanted: usize,
    pub(crate) done: Done,
    pub(crate) members: usize,
    pub(crate) is_stable: bool,
    pub(crate) segments_left: usize,
    /// Still to receive, about.
    pub(crate) bytes_left: u64,
    pub(crate) bytes_pulled: u64,
    pub(crate) used: Used,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Rebalanced {
    /// From the topology with the new member to the stable one.
    pub(crate) seconds: f64,
}

#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Used {
    pub(crate) cpu_s: f64,
    pub(crate) rss_mb: f64,
}

impl Used {
    pub(crate) fn of(states: &[State]) -> Self {
        states.iter().fold(Self::default(), |sum, state| Self {
            cpu_s: sum.cpu_s + state.used.cpu_s,
            rss_mb: sum.rss_mb.max(state.used.rss_mb),
        })
    }
}

impl State {
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

pub(crate) fn answer<A: Serialize>(content: &A) -> anyhow::Result<Bytes> {
    Ok(serde_json::to_vec(&Some(content))?.into())
}

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

/// In the order of the view, without processes that have no cache.
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

/// # Errors
///
/// If the member does not respond, or reports a failure.
pub(crate) async fn order_one<A: DeserializeOwned>(
    dispatcher: &RpcDispatcher,
    member: &Address,
    order: &Order,
    limit: Duration,
) -> anyhow::Result<Option<A>> {
    let result = dispatcher.call(member, request(order)?, &options(limit)).await;
    read(Response { member: member.clone(), result })
}
