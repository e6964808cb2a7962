//! The cluster of a test, seen from the member that starts it.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use consort_channel::rpc::RpcDispatcher;
use consort_channel::{Address, Receiver};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::member::{self, Request, Work};
use super::{Common, progress};
use crate::join::{Join, introduction};
use crate::shutdown::end_of_input;

/// Other than JGroups' 7800, so that a test does not disturb other clusters.
pub(super) const FIRST_PORT: u16 = 17_800;

/// Dropping it ends the members that were started.
pub(crate) struct Cluster<W> {
    dispatcher: RpcDispatcher,
    work: Arc<W>,
    others: Option<Others>,
}

pub(crate) struct Answer<A> {
    pub(crate) member: Address,
    pub(crate) name: String,
    pub(crate) content: A,
}

impl<W: Work> Cluster<W> {
    /// With `--join-only` it works for the member that starts the test, and returns `None` when the test is over.
    pub(crate) async fn assemble(
        test: &str,
        common: &mut Common,
        work: Arc<W>,
        receiver: impl Receiver,
    ) -> anyhow::Result<Option<Self>> {
        let is_local = !common.join_only && !common.start_none;
        if is_local {
            common.join.on_this_host(FIRST_PORT, common.members)?;
            common.join.name.get_or_insert_with(|| member_name(0));
        }
        let dispatcher = member::join(&common.join, work.clone(), receiver).await?;
        if common.join_only {
            tokio::select! {
                over = member::work_until_alone(dispatcher) => over?,
                () = end_of_input(), if common.with_parent => {}
            }
            return Ok(None);
        }
        let names = (1..common.members).map(member_name);
        let others = if is_local { Some(start_others(test, &common.join, names)?) } else { None };
        member::wait_for_members(dispatcher.channel(), common.members).await?;
        Ok(Some(Self { dispatcher, work, others }))
    }

    pub(crate) fn introduction(&self) -> String {
        introduction(self.dispatcher.channel())
    }

    pub(crate) fn view_text(&self) -> String {
        self.dispatcher.channel().view_text()
    }

    /// Members may have been started elsewhere.
    pub(crate) fn members(&self) -> usize {
        self.dispatcher.channel().view().map_or(0, |view| view.len())
    }

    pub(crate) async fn start<A: DeserializeOwned>(
        &self,
        test: &impl Serialize,
        limit: Duration,
    ) -> anyhow::Result<Vec<Answer<A>>> {
        let answers = self.ask(Request::Start, test, limit);
        progress::with_counter(answers, || self.work.counted(), W::COUNTED).await
    }

    pub(crate) async fn ask<A: DeserializeOwned>(
        &self,
        request: Request,
        content: &impl Serialize,
        limit: Duration,
    ) -> anyhow::Result<Vec<Answer<A>>> {
        let mut answers = member::ask_all(&self.dispatcher, request, content, limit).await?;
        // In the order of the view and not of the responses, so that tables can be compared.
        let view = self.dispatcher.channel().view();
        answers.sort_by_key(|(member, _)| view.as_ref().and_then(|view| view.rank(member)));
        answers
            .into_iter()
            .map(|(member, content)| {
                let name = self.dispatcher.channel().name_of(&member);
                let content = content.with_context(|| format!("member {name}"))?;
                Ok(Answer { member, name, content })
            })
            .collect()
    }

    pub(crate) async fn close(self) {
        self.dispatcher.channel().clone().close().await;
        drop(self.others);
    }
}

pub(crate) struct Others(pub(crate) Vec<Child>);

impl Drop for Others {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub(crate) fn start_others(
    test: &str,
    join: &Join,
    names: impl Iterator<Item = String>,
) -> anyhow::Result<Others> {
    start_others_with(test, &[], join, names)
}

pub(super) fn start_others_with(
    test: &str,
    options: &[&str],
    join: &Join,
    names: impl Iterator<Item = String>,
) -> anyhow::Result<Others> {
    let program = std::env::current_exe().context("where is this program?")?;
    let mut others = Others(Vec::new());
    for name in names {
        let child = Command::new(&program)
            .arg(test)
            .args(["--join-only", "--with-parent"])
            .args(options)
            .args(join.arguments(&name))
            // With us it ends, and with it the member, also before it has met us.
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("starting member {name}"))?;
        others.0.push(child);
    }
    Ok(others)
}

/// A, B, …, Z, M26, …
pub(crate) fn member_name(nth: usize) -> String {
    match u8::try_from(nth) {
        Ok(nth @ 0..26) => char::from(b'A' + nth).to_string(),
        _ => format!("M{nth}"),
    }
}
