//! A member of a performance test: it answers requests, and works when it is told to start.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use consort_channel::rpc::{RequestOptions, Responder, RpcDispatcher, RpcHandler};
use consort_channel::{Address, Channel, Flags, Message, Payload, Receiver};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::SetOnce;

use super::JOIN_TIME_MAX;
use crate::join::Join;

/// The first byte of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Request {
    /// Answer with a value.
    Get = 0,
    /// Take the bytes that follow.
    Put = 1,
    /// Run the test that the JSON describes, and answer with the figures when it is over.
    Start = 2,
    /// Something to ask afterwards; JSON follows.
    Finish = 3,
}

impl Request {
    fn of(byte: u8) -> Option<Self> {
        [Self::Get, Self::Put, Self::Start, Self::Finish].into_iter().find(|kind| *kind as u8 == byte)
    }

    /// A request of this kind with something behind the first byte.
    pub(crate) fn with(self, content: &[u8]) -> Payload {
        Payload::Bytes(Some([&[self as u8], content].concat().into()))
    }
}

/// What a test does with its requests.
pub(crate) trait Work: Send + Sync + 'static {
    /// Carries out a test; the answer goes to whoever asked.
    fn start(
        self: Arc<Self>,
        dispatcher: RpcDispatcher,
        test: Bytes,
    ) -> impl Future<Output = anyhow::Result<Vec<u8>>> + Send;

    /// Answers what is asked afterwards.
    fn finish(
        self: Arc<Self>,
        dispatcher: RpcDispatcher,
        question: Bytes,
    ) -> impl Future<Output = anyhow::Result<Vec<u8>>> + Send;
}

struct Handler<W> {
    work: Arc<W>,
    dispatcher: Arc<SetOnce<RpcDispatcher>>,
    value: Payload,
}

impl<W: Work> RpcHandler for Handler<W> {
    fn handle(&self, request: Message, responder: Option<Responder>) {
        let Some(bytes) = request.payload_bytes() else { return };
        let kind = bytes.first().copied().and_then(Request::of);
        let Some(responder) = responder else { return };
        match kind {
            Some(Request::Get) => responder.reply(Ok(self.value.clone())),
            Some(Request::Put) => responder.reply(Ok(Payload::Empty)),
            Some(kind) => {
                let own = self.dispatcher.clone();
                let (work, content) = (self.work.clone(), bytes.slice(1..));
                tokio::spawn(async move {
                    // Whoever starts the test may see us in the view before we do.
                    let dispatcher = own.wait().await.clone();
                    let answer = match kind {
                        Request::Start => work.start(dispatcher, content).await,
                        _ => work.finish(dispatcher, content).await,
                    };
                    responder.reply(match answer {
                        Ok(json) => Ok(Payload::Bytes(Some(json.into()))),
                        Err(error) => Err(format!("{error:#}")),
                    });
                });
            }
            None => responder.reply(Err("an unknown request".to_owned())),
        }
    }
}

/// Joins the cluster as a member that works.
pub(crate) async fn join<W: Work>(
    options: &Join,
    work: Arc<W>,
    receiver: impl Receiver,
    value_size: usize,
) -> anyhow::Result<RpcDispatcher> {
    let own = Arc::new(SetOnce::new());
    let value = Payload::Bytes(Some(vec![0; value_size].into()));
    let handler = Handler { work, dispatcher: own.clone(), value };
    let builder = options.builder()?.receiver(receiver);
    let dispatcher = RpcDispatcher::connect(builder, &options.cluster, handler)
        .await
        .with_context(|| format!("joining cluster {}", options.cluster))?;
    let _ = own.set(dispatcher.clone());
    Ok(dispatcher)
}

/// Waits until the view has this many members.
pub(crate) async fn wait_for_members(channel: &Channel, wanted: usize) -> anyhow::Result<()> {
    let mut views = channel.watch_view();
    let has_all = views.wait_for(|view| view.as_ref().is_some_and(|view| view.len() >= wanted));
    if tokio::time::timeout(JOIN_TIME_MAX, has_all).await.is_err() {
        bail!(
            "only {} of {wanted} members have come: {}",
            channel.view().map_or(0, |v| v.len()),
            channel.view_text()
        );
    }
    Ok(())
}

/// Works until whoever was coordinator when we joined has gone.
pub(crate) async fn work_until_alone(dispatcher: RpcDispatcher) -> anyhow::Result<()> {
    let channel = dispatcher.channel();
    let starter = channel.view().and_then(|view| view.coordinator().cloned()).context("no view")?;
    let mut views = channel.watch_view();
    let is_gone =
        |view: &Option<consort_channel::View>| view.as_ref().is_none_or(|view| !view.contains(&starter));
    if *channel.address() == starter {
        // We started it ourselves: somebody else may begin the test, and we stay.
        return std::future::pending().await;
    }
    let _ = views.wait_for(is_gone).await;
    channel.clone().close().await;
    Ok(())
}

/// Asks every member at once, ourselves included, and returns the answers by member.
pub(crate) async fn ask_all<A: DeserializeOwned>(
    dispatcher: &RpcDispatcher,
    request: Request,
    content: &impl Serialize,
    timeout: Duration,
) -> anyhow::Result<Vec<(Address, anyhow::Result<A>)>> {
    let options = RequestOptions::all(timeout).with_flags(Flags::OOB);
    let payload = request.with(&serde_json::to_vec(content)?);
    let answers = dispatcher.call_all(payload, &options).await?;
    Ok(answers
        .into_iter()
        .map(|answer| {
            let result = match answer.result {
                Ok(payload) => {
                    let json = payload_bytes(&payload);
                    serde_json::from_slice(&json).context("an answer that is not JSON")
                }
                Err(error) => Err(error.into()),
            };
            (answer.member, result)
        })
        .collect())
}

/// The bytes of an answer.
fn payload_bytes(payload: &Payload) -> Bytes {
    match payload {
        Payload::Bytes(Some(bytes)) => bytes.clone(),
        _ => Bytes::new(),
    }
}
