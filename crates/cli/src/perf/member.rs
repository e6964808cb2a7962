use std::sync::{Arc, Mutex, PoisonError};
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

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Request {
    /// Respond with a value of this size, four bytes big-endian.
    Get = 0,
    Put = 1,
    /// The test follows as JSON.
    Start = 2,
    Finish = 3,
}

impl Request {
    fn of(byte: u8) -> Option<Self> {
        [Self::Get, Self::Put, Self::Start, Self::Finish].into_iter().find(|kind| *kind as u8 == byte)
    }

    pub(crate) fn get(size: usize) -> Payload {
        Self::Get.with(&u32::try_from(size).unwrap_or(u32::MAX).to_be_bytes())
    }

    pub(crate) fn with(self, content: &[u8]) -> Payload {
        Payload::Bytes(Some([&[self as u8], content].concat().into()))
    }
}

pub(crate) trait Work: Send + Sync + 'static {
    const COUNTED: &'static str;

    fn counted(&self) -> u64;

    fn start(
        self: Arc<Self>,
        dispatcher: RpcDispatcher,
        test: Bytes,
    ) -> impl Future<Output = anyhow::Result<Vec<u8>>> + Send;

    fn finish(
        self: Arc<Self>,
        dispatcher: RpcDispatcher,
        question: Bytes,
    ) -> impl Future<Output = anyhow::Result<Vec<u8>>> + Send;
}

/// Bounds the memory that a request can take.
pub(super) const VALUE_LEN_MAX: usize = 64 * 1024 * 1024;

/// Values are parts of one buffer: the test measures messages, not storage.
#[derive(Default)]
struct Values(Mutex<Bytes>);

impl Values {
    fn of(&self, request: &[u8]) -> Result<Payload, String> {
        let size = request.first_chunk().map_or(0, |size| u32::from_be_bytes(*size)) as usize;
        if size > VALUE_LEN_MAX {
            return Err(format!("a value of {size} bytes is more than {VALUE_LEN_MAX}"));
        }
        let mut longest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if longest.len() < size {
            *longest = vec![0; size].into();
        }
        Ok(Payload::Bytes(Some(longest.slice(..size))))
    }
}

struct Handler<W> {
    work: Arc<W>,
    dispatcher: Arc<SetOnce<RpcDispatcher>>,
    values: Values,
}

impl<W: Work> RpcHandler for Handler<W> {
    fn handle(&self, request: Message, responder: Option<Responder>) {
        let Some(bytes) = request.payload_bytes() else { return };
        let kind = bytes.first().copied().and_then(Request::of);
        let Some(responder) = responder else { return };
        match kind {
            Some(Request::Get) => responder.reply(self.values.of(&bytes[1..])),
            Some(Request::Put) => responder.reply(Ok(Payload::Empty)),
            Some(kind) => {
                let own = self.dispatcher.clone();
                let (work, content) = (self.work.clone(), bytes.slice(1..));
                tokio::spawn(async move {
                    // The member that starts the test may see this member in the view before this member does.
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

pub(crate) async fn join<W: Work>(
    options: &Join,
    work: Arc<W>,
    receiver: impl Receiver,
) -> anyhow::Result<RpcDispatcher> {
    let own = Arc::new(SetOnce::new());
    let handler = Handler { work, dispatcher: own.clone(), values: Values::default() };
    let builder = options.builder()?.receiver(receiver);
    let dispatcher = RpcDispatcher::connect(builder, &options.cluster, handler)
        .await
        .with_context(|| format!("joining cluster {}", options.cluster))?;
    let _ = own.set(dispatcher.clone());
    Ok(dispatcher)
}

pub(crate) async fn wait_for_members(channel: &Channel, wanted: usize) -> anyhow::Result<()> {
    let mut views = channel.watch_view();
    let has_all = views.wait_for(|view| view.as_ref().is_some_and(|view| view.len() >= wanted));
    if tokio::time::timeout(JOIN_TIME_MAX, has_all).await.is_err() {
        bail!(
            "only {} of {wanted} members have joined: {}",
            channel.view().map_or(0, |v| v.len()),
            channel.view_text()
        );
    }
    Ok(())
}

/// Until the coordinator at the time of joining has left.
pub(crate) async fn work_until_alone(dispatcher: RpcDispatcher) -> anyhow::Result<()> {
    let channel = dispatcher.channel();
    let starter = channel.view().and_then(|view| view.coordinator().cloned()).context("no view")?;
    let mut views = channel.watch_view();
    let is_gone =
        |view: &Option<consort_channel::View>| view.as_ref().is_none_or(|view| !view.contains(&starter));
    if *channel.address() == starter {
        // This member started the test itself: others may start the next one, so it stays.
        return std::future::pending().await;
    }
    let _ = views.wait_for(is_gone).await;
    channel.clone().close().await;
    Ok(())
}

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

fn payload_bytes(payload: &Payload) -> Bytes {
    match payload {
        Payload::Bytes(Some(bytes)) => bytes.clone(),
        _ => Bytes::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_has_the_requested_size() {
        let values = Values::default();
        for size in [0, 5_000, 1_000, 6_000] {
            let request = Request::get(size);
            let Payload::Bytes(Some(bytes)) = &request else { panic!("{request:?}") };
            assert_eq!(Request::of(bytes[0]), Some(Request::Get));
            assert_eq!(payload_bytes(&values.of(&bytes[1..]).unwrap()).len(), size);
        }
        assert!(values.of(&u32::MAX.to_be_bytes()).is_err());
    }
}
