//! Listeners with readers, one as a rule: each is kept at some server, and what it is told waits in a bounded queue for each
//! reader.

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

use crate::limits::{PAUSE_MAX, STATE_TIME_MAX};
use crate::client::Inner;
use crate::error::ClientError;
use crate::backoff::Backoff;
use crate::sinks::{Sink, ServerEvent};
use crate::registration::{ListenedCache, ListenerRegistration};
use fan_out::FanOut;
use queue::Queue;
pub(crate) use queue::{Delivery, ByteSize};

/// What is to be heard, and how servers are asked for it.
pub(crate) struct SubscriptionSpec<T> {
    pub(crate) listened: ListenedCache,
    /// How long a server may take to say something of it.
    pub(crate) timeout: Duration,
    /// What is there comes first.
    pub(crate) with_state: bool,
    /// Adds a listener of this id.
    pub(crate) request: Box<dyn Fn(Bytes) -> RequestBody + Send + Sync>,
    /// What is heard of what is told, if it is wanted.
    pub(crate) to_event: Box<dyn Fn(ServerEvent) -> Option<T> + Send + Sync>,
}

/// A listener that is kept at some server. When it is dropped, it ends.
pub(crate) struct SharedListener<T> {
    fan: Arc<FanOut<T>>,
    started: watch::Receiver<Option<Result<(), ClientError>>>,
    /// How long it may take to begin.
    start_timeout: Duration,
    task: JoinHandle<()>,
}

impl<T> Drop for SharedListener<T> {
    /// With the task goes the listener.
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<T: ByteSize + Clone + Send + 'static> SharedListener<T> {
    /// One that begins, and that nobody reads yet.
    pub(crate) fn begin(spec: SubscriptionSpec<T>) -> Arc<Self> {
        Self::for_readers(Arc::new(FanOut::new()), spec)
    }

    /// One that begins. Those who are to hear what servers tell at once are readers already: servers may be quicker than
    /// whoever begins it.
    fn for_readers(fan: Arc<FanOut<T>>, spec: SubscriptionSpec<T>) -> Arc<Self> {
        let (begins, started) = watch::channel(None);
        let (client, start_timeout) = (spec.listened.client.clone(), spec.timeout);
        let listener_task = ListenerTask { spec: Arc::new(spec), fan: fan.clone(), started: Arc::new(begins) };
        let task = client.spawn(listener_task.run());
        Arc::new(Self { fan, started, start_timeout, task })
    }

    /// Whether nothing more comes.
    pub(crate) fn has_ended(&self) -> bool {
        self.fan.has_ended()
    }
}

/// A listener's reader. With the last one the listener ends.
pub(crate) struct Subscription<T> {
    /// The connections go on as long as somebody listens.
    #[expect(dead_code, reason = "it is kept, not used")]
    client: Arc<Inner>,
    queue: Arc<Queue<T>>,
    listener: Arc<SharedListener<T>>,
}

impl<T> Drop for Subscription<T> {
    fn drop(&mut self) {
        self.listener.fan.remove(&self.queue);
    }
}

impl<T: ByteSize + Clone + Send + 'static> Subscription<T> {
    /// Begins, with a listener of its own. When this returns, nothing that happens later is missed without a gap.
    pub(crate) async fn begin(spec: SubscriptionSpec<T>, queue_len_max: usize) -> Result<Self, ClientError> {
        let client = spec.listened.client.clone();
        let fan = Arc::new(FanOut::new());
        let queue = fan.add(queue_len_max);
        Self { client, queue, listener: SharedListener::for_readers(fan, spec) }.started().await
    }

    /// The same with a listener that others may have, too.
    pub(crate) async fn of(
        client: Arc<Inner>,
        listener: Arc<SharedListener<T>>,
        queue_len_max: usize,
    ) -> Result<Self, ClientError> {
        let queue = listener.fan.add(queue_len_max);
        Self { client, queue, listener }.started().await
    }

    /// This one, once its listener is at some server.
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

    /// What comes next; nothing after an error of the servers'.
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Delivery<T>, ClientError>>> {
        self.queue.poll(cx)
    }
}

/// What becomes of a listener's beginning, once that is known.
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

/// Where one server's events go.
struct ListenerSink<T> {
    spec: Arc<SubscriptionSpec<T>>,
    fan: Arc<FanOut<T>>,
    started: Arc<StartOutcome>,
    /// Told when something comes of what is there.
    delivery: Arc<Notify>,
    lost: Arc<Notify>,
}

impl<T: ByteSize + Clone + Send> Sink for ListenerSink<T> {
    fn on_event(&self, event: ServerEvent) -> Option<Waker> {
        if let ServerEvent::Entry(entry) = &event
            && entry.id != 0
        {
            // Who tells what was there tells changes, too.
            note_started(&self.started, Ok(()));
            self.delivery.notify_one();
        }
        self.fan.push(Delivery::Event((self.spec.to_event)(event)?))
    }

    fn on_disconnect(&self) -> Option<Waker> {
        self.lost.notify_one();
        // Before it has begun nothing was promised.
        let has_begun = self.started.borrow().is_some();
        if has_begun { self.fan.mark_lost() } else { None }
    }
}

/// Whether other attempts would have the same outcome, once there has been another.
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

/// What keeps a listener at some server.
struct ListenerTask<T> {
    spec: Arc<SubscriptionSpec<T>>,
    fan: Arc<FanOut<T>>,
    started: Arc<StartOutcome>,
}

impl<T: ByteSize + Clone + Send + 'static> ListenerTask<T> {
    /// Adds the listener somewhere. A server that tells what is there may take as long as it goes on telling.
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
                Ok(standing) => {
                    self.fan.mark_registered();
                    note_started(&self.started, Ok(()));
                    if self.spec.with_state {
                        wake(self.fan.push(Delivery::Complete));
                    }
                    let since = client.clock.now();
                    standing.lost().await;
                    if client.clock.now() - since >= PAUSE_MAX {
                        backoff.reset();
                        continue;
                    }
                }
                Err(error) if self.started.borrow().is_some() && !is_final(&error) => {
                    tracing::debug!(%error, "a listener has no server");
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
