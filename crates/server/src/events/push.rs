//! Server push: events of entries and of counters on a client's connection.
//!
//! The protocol has no event for missing events. If events may be missing, or the client does not read its events, the server
//! closes the connection; then the client clears its near caches and adds its listeners again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use consort_cache::{CacheError, EntryEvent, Event, Events};
use consort_hotrod::Output;
use consort_hotrod::ops::event::{self, EventData};
use consort_memory::{Budget, Reservation};
use consort_query::Exceeded;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::limits::{UNREAD_EVENT_TIMEOUT, UNSENT_BYTES_MAX, UNSENT_EVENTS_MAX};

/// An unsolicited message.
pub(crate) enum Push {
    /// The event holds its bytes until it is written.
    Entry(event::Event, ListenerFlag, BytePermit),
    /// The sender signals that the event is written.
    Counter(event::CounterEvent, ListenerFlag, watch::Sender<()>),
    /// All messages before it are written.
    Written(oneshot::Sender<()>),
}

#[derive(Default)]
pub(crate) struct BytePermit {
    _of_connection: Option<OwnedSemaphorePermit>,
    /// The part beyond the connection's own bytes.
    _reserved: Option<Reservation>,
}

/// No event may follow the response to a listener's removal.
#[derive(Clone)]
pub(crate) struct ListenerFlag(Arc<AtomicBool>);

impl ListenerFlag {
    fn holds(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Push {
    pub(crate) fn encode(self, output: &mut Output) {
        match self {
            Self::Entry(event, flag, _) if flag.holds() => event.encode(output),
            Self::Counter(event, flag, written) if flag.holds() => {
                event.encode(output);
                written.send_replace(());
            }
            Self::Entry(..) | Self::Counter(..) => {}
            Self::Written(waiter) => {
                // The task that waits for it may be gone.
                let _ = waiter.send(());
            }
        }
    }
}

#[derive(Clone)]
pub(crate) struct EventSender {
    to: mpsc::Sender<Push>,
    bytes: Arc<Semaphore>,
    large: Budget,
    /// Events may be missing, or the connection has to be closed.
    close: Arc<Notify>,
}

impl EventSender {
    /// `large` is the budget for the part of events beyond [`UNSENT_BYTES_MAX`].
    pub(crate) fn new(large: Budget) -> (Self, mpsc::Receiver<Push>) {
        let (to, pushes) = mpsc::channel(UNSENT_EVENTS_MAX);
        let bytes = Arc::new(Semaphore::new(UNSENT_BYTES_MAX));
        (Self { to, bytes, large, close: Arc::new(Notify::new()) }, pushes)
    }

    /// Waits for capacity; fails for an event larger than the budget of large ones.
    async fn send(&self, mut push: Push) -> Result<(), consort_memory::Exceeded> {
        if let Push::Entry(event, _, permit) = &mut push {
            let (EventData::Custom(content) | EventData::Raw(content) | EventData::Key(content, _)) =
                &event.data;
            let own_bytes = content.len().min(UNSENT_BYTES_MAX);
            permit._of_connection = self.bytes.clone().acquire_many_owned(own_bytes as u32).await.ok();
            if content.len() > own_bytes {
                permit._reserved = Some(self.large.reserve((content.len() - own_bytes) as u64).await?);
            }
        }
        // Events of a closed connection are dropped.
        let _ = self.to.send(push).await;
        Ok(())
    }

    pub(crate) fn close_handle(&self) -> Arc<Notify> {
        self.close.clone()
    }

    pub(crate) async fn close_requested(&self) {
        self.close.notified().await;
    }
}

pub(crate) struct EventTask {
    pub(crate) flag: ListenerFlag,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for EventTask {
    fn drop(&mut self) {
        self.flag.0.store(false, Ordering::Release);
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl EventTask {
    pub(crate) fn new() -> Self {
        Self { flag: ListenerFlag(Arc::new(AtomicBool::new(true))), tasks: Vec::new() }
    }

    pub(crate) fn is(&self, flag: &ListenerFlag) -> bool {
        Arc::ptr_eq(&self.flag.0, &flag.0)
    }

    /// Sends these events, too; if `after` is set, once its sender is dropped. `state` is signalled when the initial state has
    /// been written.
    pub(crate) fn begin(
        &mut self,
        events: Events<Bytes, Bytes>,
        events_out: &EventSender,
        after: Option<watch::Receiver<()>>,
        state: oneshot::Sender<()>,
        to_push: impl FnMut(EntryEvent<Bytes, Bytes>) -> Result<Option<Push>, Exceeded> + Send + 'static,
    ) {
        let task = forward_events(events, events_out.clone(), state, to_push);
        self.tasks.push(tokio::spawn(async move {
            if let Some(mut after) = after {
                while after.changed().await.is_ok() {}
            }
            task.await;
        }));
    }
}

async fn forward_events(
    mut events: Events<Bytes, Bytes>,
    events_out: EventSender,
    state: oneshot::Sender<()>,
    mut to_push: impl FnMut(EntryEvent<Bytes, Bytes>) -> Result<Option<Push>, Exceeded>,
) {
    let mut state = Some(state);
    let why = loop {
        let push = match events.next().await {
            Some(Ok(Event::Entry(event))) => match to_push(event) {
                Ok(push) => push,
                Err(Exceeded) => {
                    break "the query of a listener needs more steps for a value than are allowed";
                }
            },
            Some(Ok(Event::Complete)) => state.take().map(Push::Written),
            Some(Ok(Event::Gap)) => break "changes may be missing",
            // The cache is closed and has no more events.
            Some(Err(CacheError::Closed)) | None => return,
            Some(Err(_)) => break "the present entries cannot be read",
        };
        let Some(push) = push else { continue };
        match timeout(UNREAD_EVENT_TIMEOUT, events_out.send(push)).await {
            Ok(Ok(())) => {}
            Ok(Err(exceeded)) => {
                tracing::warn!(%exceeded, "an event is too large");
                break "an event is too large";
            }
            Err(_) => break "it does not read its events",
        }
    };
    tracing::warn!(why, "closing a client's connection: events may be missing");
    events_out.close.notify_one();
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use consort_hotrod::ops::event::EventKind;

    use super::*;

    fn event(bytes: usize) -> Push {
        let data = EventData::Custom(vec![7; bytes].into());
        let event = event::Event {
            id: 0,
            kind: EventKind::Modified,
            listener: Bytes::from_static(b"listener"),
            is_retried: false,
            data,
        };
        Push::Entry(event, EventTask::new().flag.clone(), BytePermit::default())
    }

    #[tokio::test]
    async fn large_events_of_all_connections_wait_for_one_budget() {
        let all = Budget::new("events", 100_000);
        let (first, mut of_first) = EventSender::new(all.clone());
        first.send(event(UNSENT_BYTES_MAX + 90_000)).await.unwrap();
        assert_eq!(all.used(), 90_000);
        let (second, mut of_second) = EventSender::new(all.clone());
        second.send(event(UNSENT_BYTES_MAX / 2)).await.unwrap();
        assert_eq!(all.used(), 90_000, "a connection has room of its own");
        drop(of_second.recv().await);
        let mut waiting = Box::pin(second.send(event(UNSENT_BYTES_MAX + 20_000)));
        assert!(timeout(Duration::ZERO, &mut waiting).await.is_err(), "110,000 bytes are too many");
        drop(of_first.recv().await);
        waiting.await.unwrap();
        assert_eq!(all.used(), 20_000);
        drop(of_second.recv().await);
        assert_eq!(all.used(), 0, "it was written");
        let exceeded = second.send(event(UNSENT_BYTES_MAX + 100_001)).await.unwrap_err();
        assert_eq!((exceeded.name, all.used()), ("events", 0));
    }
}
