//! The events that wait for the application's listener of sites.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use consort_group::RelayEvent;
use consort_group::wire::encode_address;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::limits::{LISTENER_BYTES_MAX, LISTENER_EVENTS_MAX};
use super::listener::SiteListener;
use crate::catch_panic::catch_panic;
use crate::warnings::Warnings;

/// The queue of a listener that may be slower than the changes of sites. Events beyond [`LISTENER_EVENTS_MAX`] and
/// [`LISTENER_BYTES_MAX`] are dropped and counted.
pub(super) struct ListenerQueue {
    /// `None`: there is no listener.
    events: Option<mpsc::Sender<(RelayEvent, usize)>>,
    /// Of all waiting events.
    bytes: Arc<AtomicUsize>,
    dropped: AtomicU64,
    warnings: Mutex<Warnings>,
}

/// The bytes of names and addresses.
fn bytes_of(event: &RelayEvent) -> usize {
    match event {
        RelayEvent::SitesUp(sites) | RelayEvent::SitesDown(sites) => {
            sites.iter().map(|site| site.len()).sum()
        }
        RelayEvent::SiteUnreachable(site) => site.len(),
        RelayEvent::MemberUnreachable(member) => encode_address(member).len(),
        RelayEvent::OpenBridges | RelayEvent::CloseBridges | RelayEvent::Send(_) => 0,
    }
}

impl ListenerQueue {
    pub(super) fn new(listener: Option<Arc<dyn SiteListener>>, runtime: &Handle) -> Self {
        let bytes = Arc::new(AtomicUsize::new(0));
        let events = listener.map(|listener| {
            let (events, received) = mpsc::channel(LISTENER_EVENTS_MAX);
            runtime.spawn(notify(listener, received, bytes.clone()));
            events
        });
        Self { events, bytes, dropped: AtomicU64::new(0), warnings: Mutex::new(Warnings::new()) }
    }

    /// Called by the driver's task only: it must not wait.
    pub(super) fn push(&self, event: RelayEvent) {
        let Some(events) = &self.events else { return };
        let bytes = bytes_of(&event);
        let has_room = self.bytes.load(Ordering::Relaxed) + bytes <= LISTENER_BYTES_MAX;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if has_room && events.try_send((event, bytes)).is_ok() {
            return;
        }
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.dropped.fetch_add(1, Ordering::Relaxed);
        let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        warnings.count(Instant::now(), "slow listener of sites", || {
            format!("{LISTENER_EVENTS_MAX} events or {LISTENER_BYTES_MAX} bytes of names wait: one event is dropped")
        });
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

async fn notify(
    listener: Arc<dyn SiteListener>,
    mut events: mpsc::Receiver<(RelayEvent, usize)>,
    queued: Arc<AtomicUsize>,
) {
    while let Some((event, bytes)) = events.recv().await {
        let _ = catch_panic("site listener", None, || match event {
            RelayEvent::SitesUp(sites) => listener.sites_up(&sites),
            RelayEvent::SitesDown(sites) => listener.sites_down(&sites),
            RelayEvent::SiteUnreachable(site) => listener.site_unreachable(&site),
            RelayEvent::MemberUnreachable(member) => listener.member_unreachable(&member),
            RelayEvent::OpenBridges | RelayEvent::CloseBridges | RelayEvent::Send(_) => {}
        });
        queued.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Counter(mpsc::UnboundedSender<usize>);

    impl SiteListener for Counter {
        fn sites_up(&self, sites: &[Arc<str>]) {
            self.0.send(sites.len()).unwrap();
        }
    }

    fn up(sites: usize, bytes: usize) -> RelayEvent {
        RelayEvent::SitesUp((0..sites).map(|n| format!("{n:0bytes$}").into()).collect())
    }

    #[tokio::test]
    async fn events_beyond_their_number_or_bytes_are_dropped_and_counted() {
        let (seen, mut received) = mpsc::unbounded_channel();
        let queue = ListenerQueue::new(Some(Arc::new(Counter(seen))), &Handle::current());
        for (event, fit) in [(up(1, 4), LISTENER_EVENTS_MAX), (up(64, 1_024), LISTENER_BYTES_MAX >> 16)] {
            let before = queue.dropped();
            for _ in 0..fit + 3 {
                queue.push(event.clone());
            }
            assert_eq!(queue.dropped() - before, 3);
            for _ in 0..fit {
                received.recv().await.unwrap();
            }
            assert_eq!(queue.bytes.load(Ordering::Relaxed), 0);
        }
        assert_eq!(queue.warnings.lock().unwrap().counts(), [("slow listener of sites", 6)]);
    }

    #[tokio::test]
    async fn events_without_a_listener_are_not_kept() {
        let queue = ListenerQueue::new(None, &Handle::current());
        (0..=LISTENER_EVENTS_MAX).for_each(|_| queue.push(up(1, 4)));
        assert_eq!((queue.dropped(), queue.bytes.load(Ordering::Relaxed)), (0, 0));
    }
}
