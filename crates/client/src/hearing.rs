//! Listeners with readers, one as a rule: each is kept at some server, and what it is told waits in a bounded queue for each
//! reader.

mod fan;
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

use crate::bounds::{PAUSE_MAX, STATE_TIME_MAX};
use crate::client::Inner;
use crate::error::ClientError;
use crate::pause::Pauses;
use crate::sinks::{Sink, Told};
use crate::standing::{Listened, Standing};
use fan::Fan;
use queue::Queue;
pub(crate) use queue::{Heard, Weighed};

/// What is to be heard, and how servers are asked for it.
pub(crate) struct Wish<T> {
    pub(crate) listened: Listened,
    /// How long a server may take to say something of it.
    pub(crate) timeout: Duration,
    /// What is there comes first.
    pub(crate) with_state: bool,
    /// Adds a listener of this id.
    pub(crate) request: Box<dyn Fn(Bytes) -> RequestBody + Send + Sync>,
    /// What is heard of what is told, if it is wanted.
    pub(crate) hears: Box<dyn Fn(Told) -> Option<T> + Send + Sync>,
}

/// A listener that is kept at some server. When it is dropped, it ends.
pub(crate) struct Kept<T> {
    fan: Arc<Fan<T>>,
    begun: watch::Receiver<Option<Result<(), ClientError>>>,
    /// How long it may take to begin.
    patience: Duration,
    task: JoinHandle<()>,
}

impl<T> Drop for Kept<T> {
    /// With the task goes the listener.
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<T: Weighed + Clone + Send + 'static> Kept<T> {
    /// One that begins, and that nobody reads yet.
    pub(crate) fn begin(wish: Wish<T>) -> Arc<Self> {
        Self::for_readers(Arc::new(Fan::new()), wish)
    }

    /// One that begins. Those who are to hear what servers tell at once are readers already: servers may be quicker than
    /// whoever begins it.
    fn for_readers(fan: Arc<Fan<T>>, wish: Wish<T>) -> Arc<Self> {
        let (begins, begun) = watch::channel(None);
        let (client, patience) = (wish.listened.client.clone(), wish.timeout);
        let keeper = Keeper { wish: Arc::new(wish), fan: fan.clone(), begun: Arc::new(begins) };
        let task = client.spawn(keeper.keep());
        Arc::new(Self { fan, begun, patience, task })
    }

    /// Whether nothing more comes.
    pub(crate) fn has_ended(&self) -> bool {
        self.fan.has_ended()
    }
}

/// A listener's reader. With the last one the listener ends.
pub(crate) struct Hearing<T> {
    /// The connections go on as long as somebody listens.
    #[expect(dead_code, reason = "it is kept, not used")]
    client: Arc<Inner>,
    queue: Arc<Queue<T>>,
    kept: Arc<Kept<T>>,
}

impl<T> Drop for Hearing<T> {
    fn drop(&mut self) {
        self.kept.fan.remove(&self.queue);
    }
}

impl<T: Weighed + Clone + Send + 'static> Hearing<T> {
    /// Begins, with a listener of its own. When this returns, nothing that happens later is missed without a gap.
    pub(crate) async fn begin(wish: Wish<T>, events_max: usize) -> Result<Self, ClientError> {
        let client = wish.listened.client.clone();
        let fan = Arc::new(Fan::new());
        let queue = fan.add(events_max);
        Self { client, queue, kept: Kept::for_readers(fan, wish) }.begun().await
    }

    /// The same with a listener that others may have, too.
    pub(crate) async fn of(
        client: Arc<Inner>,
        kept: Arc<Kept<T>>,
        events_max: usize,
    ) -> Result<Self, ClientError> {
        let queue = kept.fan.add(events_max);
        Self { client, queue, kept }.begun().await
    }

    /// This one, once its listener is at some server.
    async fn begun(self) -> Result<Self, ClientError> {
        let (mut begun, patience) = (self.kept.begun.clone(), self.kept.patience);
        let outcome = match timeout(patience, begun.wait_for(Option::is_some)).await {
            Ok(Ok(outcome)) => outcome.clone(),
            Ok(Err(_)) => Some(Err(ClientError::Closed)),
            Err(_) => None,
        };
        match outcome {
            Some(Ok(())) => Ok(self),
            Some(Err(error)) => Err(error),
            None => Err(ClientError::TimedOut { after: patience, may_be_done: false }),
        }
    }

    /// What comes next; nothing after an error of the servers'.
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Heard<T>, ClientError>>> {
        self.queue.poll(cx)
    }
}

/// What becomes of a listener's beginning, once that is known.
type Begun = watch::Sender<Option<Result<(), ClientError>>>;

fn note_begun(begun: &Begun, outcome: Result<(), ClientError>) {
    begun.send_if_modified(|known| {
        let is_news = known.is_none();
        if is_news {
            *known = Some(outcome);
        }
        is_news
    });
}

/// Where one server's events go.
struct Ear<T> {
    wish: Arc<Wish<T>>,
    fan: Arc<Fan<T>>,
    begun: Arc<Begun>,
    /// Told when something comes of what is there.
    heard: Arc<Notify>,
    lost: Arc<Notify>,
}

impl<T: Weighed + Clone + Send> Sink for Ear<T> {
    fn tell(&self, told: Told) -> Option<Waker> {
        if let Told::Entry(event) = &told
            && event.id != 0
        {
            // Who tells what was there tells changes, too.
            note_begun(&self.begun, Ok(()));
            self.heard.notify_one();
        }
        self.fan.push(Heard::Event((self.wish.hears)(told)?))
    }

    fn lose(&self) -> Option<Waker> {
        self.lost.notify_one();
        // Before it has begun nothing was promised.
        let has_begun = self.begun.borrow().is_some();
        if has_begun { self.fan.lose() } else { None }
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
struct Keeper<T> {
    wish: Arc<Wish<T>>,
    fan: Arc<Fan<T>>,
    begun: Arc<Begun>,
}

impl<T: Weighed + Clone + Send + 'static> Keeper<T> {
    /// Adds the listener somewhere. A server that tells what is there may take as long as it goes on telling.
    async fn add(&self) -> Result<Standing, ClientError> {
        let Wish { listened, timeout: patience, with_state, request, .. } = &*self.wish;
        let timeout = if *with_state { STATE_TIME_MAX.max(*patience) } else { *patience };
        let heard = Arc::new(Notify::new());
        let ear = |lost| -> Arc<dyn Sink> {
            let (wish, fan, begun) = (self.wish.clone(), self.fan.clone(), self.begun.clone());
            Arc::new(Ear { wish, fan, begun, heard: heard.clone(), lost })
        };
        let mut adding = pin!(listened.add(request, timeout, |_, lost| ear(lost)));
        loop {
            tokio::select! {
                added = &mut adding => return added,
                () = heard.notified() => {}
                () = tokio::time::sleep(*patience) => {
                    return Err(ClientError::TimedOut { after: *patience, may_be_done: false });
                }
            }
        }
    }

    async fn keep(self) {
        let client = &self.wish.listened.client;
        let mut pauses = Pauses::new(RandomState::new().build_hasher().finish());
        loop {
            let added = self.add().await;
            match added {
                Ok(standing) => {
                    self.fan.stand();
                    note_begun(&self.begun, Ok(()));
                    if self.wish.with_state {
                        wake(self.fan.push(Heard::Complete));
                    }
                    let since = client.clock.now();
                    standing.lost().await;
                    if client.clock.now() - since >= PAUSE_MAX {
                        pauses.reset();
                        continue;
                    }
                }
                Err(error) if self.begun.borrow().is_some() && !is_final(&error) => {
                    tracing::debug!(%error, "a listener has no server");
                    // Some of the state may have come.
                    wake(self.fan.push(Heard::Gap));
                }
                Err(error) => {
                    wake(self.fan.end(&error));
                    note_begun(&self.begun, Err(error));
                    return;
                }
            }
            tokio::time::sleep(pauses.next()).await;
        }
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}
