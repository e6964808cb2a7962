use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use consort_channel::{Address, View};
use consort_grid::{Availability, Progress, Topology};
use futures_core::Stream;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

/// Views and topologies of hours.
const EVENTS_MAX: usize = 1_024;

/// An event of a manager.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ManagerEvent {
    /// A new view.
    View(View),
    /// A cache has a new topology here.
    Topology {
        /// The cache.
        cache: Arc<str>,
        /// Phase, owners and availability.
        topology: Box<Topology>,
        /// The rebalance's progress.
        progress: Progress,
    },
    /// A cache's availability has changed, after a [`ManagerEvent::Topology`].
    Availability {
        /// The cache.
        cache: Arc<str>,
        /// The new availability.
        availability: Availability,
    },
    /// Exactly these members have missed heartbeats: they may hang, or be cut off. Reads go to other owners if possible. Empty
    /// when all are heard again, or have left the view.
    Silent(Vec<Address>),
    /// A cache was closed here.
    Closed {
        /// The cache.
        cache: Arc<str>,
    },
    /// The reader was too slow; events are missing.
    Gap,
}

/// A manager's events since the subscription, until the manager ends.
#[derive(Debug)]
pub struct ManagerEvents {
    receiver: mpsc::Receiver<ManagerEvent>,
}

impl Stream for ManagerEvents {
    type Item = ManagerEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ManagerEvent>> {
        self.receiver.poll_recv(cx)
    }
}

impl ManagerEvents {
    /// Returns the next event.
    pub async fn next(&mut self) -> Option<ManagerEvent> {
        self.receiver.recv().await
    }
}

#[derive(Default)]
pub(crate) struct ManagerListeners {
    all: Mutex<Vec<(mpsc::Sender<ManagerEvent>, bool)>>,
}

impl ManagerListeners {
    pub(crate) fn add(&self) -> ManagerEvents {
        let (sender, receiver) = mpsc::channel(EVENTS_MAX);
        self.all.lock().unwrap_or_else(PoisonError::into_inner).push((sender, false));
        ManagerEvents { receiver }
    }

    pub(crate) fn publish(&self, event: &ManagerEvent) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain_mut(|(sender, has_gap)| {
            if *has_gap {
                *has_gap = sender.try_send(ManagerEvent::Gap).is_err();
            }
            match if *has_gap { Ok(()) } else { sender.try_send(event.clone()) } {
                Ok(()) => !sender.is_closed(),
                Err(TrySendError::Full(_)) => {
                    *has_gap = true;
                    true
                }
                Err(TrySendError::Closed(_)) => false,
            }
        });
    }

    pub(crate) fn end(&self) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn slow_reader_gets_an_event_for_missing_events() {
        let listeners = ManagerListeners::default();
        let mut events = listeners.add();
        let closed = |n: usize| ManagerEvent::Closed { cache: n.to_string().into() };
        (0..EVENTS_MAX + 5).for_each(|n| listeners.publish(&closed(n)));
        for n in 0..EVENTS_MAX {
            assert_eq!(events.next().await, Some(closed(n)));
        }
        listeners.publish(&closed(9));
        listeners.end();
        let rest = [events.next().await, events.next().await, events.next().await];
        assert_eq!(rest, [Some(ManagerEvent::Gap), Some(closed(9)), None]);
    }
}
