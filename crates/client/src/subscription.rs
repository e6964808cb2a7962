//! Subscriptions: a listener kept registered at a server, with a bounded queue per reader.

mod fan_out;
mod queue;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use consort_hotrod::RequestBody;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::backoff::Backoff;
use crate::client_state::ClientState;
use crate::connection::sinks::{ServerEvent, Sink};
use crate::error::ClientError;
use crate::limits::{PAUSE_MAX, STATE_TIME_MAX};
use crate::registration::{ListenedCache, ListenerRegistration};
use fan_out::FanOut;
use queue::Queue;
pub(crate) use queue::{ByteSize, Delivery};

pub(crate) struct SubscriptionSpec<T> {
    pub(crate) listened: ListenedCache,
    /// Longest pause between two signs of life while registering.
    pub(crate) timeout: Duration,
    /// Existing entries come first.
    pub(crate) with_state: bool,
    pub(crate) request: Box<dyn Fn(Bytes) -> RequestBody + Send + Sync>,
    /// `None` if the event is not wanted.
    pub(crate) to_event: Box<dyn Fn(ServerEvent) -> Option<T> + Send + Sync>,
}

pub(crate) struct SharedListener<T> {
    fan: Arc<FanOut<T>>,
    started: watch::Receiver<Option<Result<(), ClientError>>>,
    start_timeout: Duration,
    task: JoinHandle<()>,
}

impl<T> Drop for SharedListener<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<T: ByteSize + Clone + Send + 'static> SharedListener<T> {
    pub(crate) fn begin(spec: SubscriptionSpec<T>) -> Arc<Self> {
        Self::for_readers(Arc::new(FanOut::new()), spec)
    }

    /// Readers of initial events must exist already: the server may be faster than the caller.
    fn for_readers(fan: Arc<FanOut<T>>, spec: SubscriptionSpec<T>) -> Arc<Self> {
        let (begins, started) = watch::channel(None);
        let (client, start_timeout) = (spec.listened.client.clone(), spec.timeout);
        let listener_task =
            ListenerTask { spec: Arc::new(spec), fan: fan.clone(), started: Arc::new(begins) };
        let task = client.spawn(listener_task.run());
        Arc::new(Self { fan, started, start_timeout, task })
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.fan.has_ended()
    }
}

/// A reader of a listener, which ends with its last reader.
pub(crate) struct Subscription<T> {
    #[expect(dead_code, reason = "keeps the connections open")]
    client: Arc<ClientState>,
    queue: Arc<Queue<T>>,
    listener: Arc<SharedListener<T>>,
}

impl<T> Drop for Subscription<T> {
    fn drop(&mut self) {
        self.listener.fan.remove(&self.queue);
    }
}

impl<T: ByteSize + Clone + Send + 'static> Subscription<T> {
    /// Misses no change that begins after this returns, without a gap.
    pub(crate) async fn begin(spec: SubscriptionSpec<T>, queue_len_max: usize) -> Result<Self, ClientError> {
        let client = spec.listened.client.clone();
        let fan = Arc::new(FanOut::new());
        let queue = fan.add(queue_len_max);
        Self { client, queue, listener: SharedListener::for_readers(fan, spec) }.started().await
    }

    pub(crate) async fn of(
        client: Arc<ClientState>,
        listener: Arc<SharedListener<T>>,
        queue_len_max: usize,
    ) -> Result<Self, ClientError> {
        let queue = listener.fan.add(queue_len_max);
        Self { client, queue, listener }.started().await
    }

    async fn started(self) -> Result<Self, ClientError> {
        let (mut started, start_timeout) = (self.listener.started.clone(), self.listener.start_timeout);
        let outcome = match timeout(start_timeout, started.wait_for(Option::is_some)).await {
            Ok(Ok(outcome)) => outcome.clone(),
            Ok(Err(_)) => Some(Err(ClientError::Closed)),
            Err(_) => None,
        };
        match outcome {
            Some(Ok(())) => Ok(self),
            Some(Err(error)) => Err(error),
            None => Err(ClientError::TimedOut { after: start_timeout, is_outcome_unknown: false }),
        }
    }

    /// `None` after a server's error.
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Delivery<T>, ClientError>>> {
        self.queue.poll(cx)
    }
}

type StartOutcome = watch::Sender<Option<Result<(), ClientError>>>;

fn note_started(started: &StartOutcome, outcome: Result<(), ClientError>) {
    started.send_if_modified(|known| {
        let is_news = known.is_none();
        if is_news {
            *known = Some(outcome);
        }
        is_news
    });
}

struct ListenerSink<T> {
    spec: Arc<SubscriptionSpec<T>>,
    fan: Arc<FanOut<T>>,
    started: Arc<StartOutcome>,
    delivery: Arc<Notify>,
    lost: Arc<Notify>,
}

impl<T: ByteSize + Clone + Send> Sink for ListenerSink<T> {
    fn on_event(&self, event: ServerEvent) -> Option<Waker> {
        if let ServerEvent::Entry(entry) = &event
            && entry.id != 0
        {
            // A server that sends state sends changes, too.
            note_started(&self.started, Ok(()));
            self.delivery.notify_one();
        }
        self.fan.push(Delivery::Event((self.spec.to_event)(event)?))
    }

    fn on_disconnect(&self) -> Option<Waker> {
        self.lost.notify_one();
        // Before the start there is nothing to miss.
        let has_begun = self.started.borrow().is_some();
        if has_begun { self.fan.mark_lost() } else { None }
    }
}

/// Whether a later attempt would fail alike.
const fn is_final(error: &ClientError) -> bool {
    matches!(
        error,
        ClientError::Closed
            | ClientError::NoSuchCache(_)
            | ClientError::NoSuchCounter(_)
            | ClientError::Denied { .. }
            | ClientError::Unsupported { .. }
    )
}

struct ListenerTask<T> {
    spec: Arc<SubscriptionSpec<T>>,
    fan: Arc<FanOut<T>>,
    started: Arc<StartOutcome>,
}

impl<T: ByteSize + Clone + Send + 'static> ListenerTask<T> {
    /// The timeout restarts with each part of the initial state.
    async fn add(&self) -> Result<ListenerRegistration, ClientError> {
        let SubscriptionSpec { listened, timeout: start_timeout, with_state, request, .. } = &*self.spec;
        let timeout = if *with_state { STATE_TIME_MAX.max(*start_timeout) } else { *start_timeout };
        let delivery = Arc::new(Notify::new());
        let sink = |lost| -> Arc<dyn Sink> {
            let (spec, fan, started) = (self.spec.clone(), self.fan.clone(), self.started.clone());
            Arc::new(ListenerSink { spec, fan, started, delivery: delivery.clone(), lost })
        };
        let mut adding = pin!(listened.add(request, timeout, |_, lost| sink(lost)));
        loop {
            tokio::select! {
                added = &mut adding => return added,
                () = delivery.notified() => {}
                () = tokio::time::sleep(*start_timeout) => {
                    return Err(ClientError::TimedOut { after: *start_timeout, is_outcome_unknown: false });
                }
            }
        }
    }

    async fn run(self) {
        let client = &self.spec.listened.client;
        let mut backoff = Backoff::new(RandomState::new().build_hasher().finish());
        loop {
            let added = self.add().await;
            match added {
                Ok(registration) => {
                    self.fan.mark_registered();
                    note_started(&self.started, Ok(()));
                    if self.spec.with_state {
                        wake(self.fan.push(Delivery::Complete));
                    }
                    let since = client.clock.now();
                    registration.lost().await;
                    if client.clock.now() - since >= PAUSE_MAX {
                        backoff.reset();
                        continue;
                    }
                }
                Err(error) if self.started.borrow().is_some() && !is_final(&error) => {
                    tracing::debug!(%error, "cannot register a listener");
                    // Some of the state may have come.
                    wake(self.fan.push(Delivery::Gap));
                }
                Err(error) => {
                    wake(self.fan.end(&error));
                    note_started(&self.started, Err(error));
                    return;
                }
            }
            tokio::time::sleep(backoff.next()).await;
        }
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}
