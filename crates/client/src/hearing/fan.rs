//! The readers of what one listener is told.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

use super::queue::{Heard, Queue, Weighed};
use crate::error::ClientError;

/// Each has a queue of its own, so that none waits for another.
pub(super) struct Fan<T>(Mutex<Readers<T>>);

struct Readers<T> {
    queues: Vec<Arc<Queue<T>>>,
    /// The listener was at a server, and is at none. Who comes now may miss something from the beginning.
    is_lost: bool,
    /// Nothing more comes, for this reason.
    end: Option<ClientError>,
}

/// Several that are woken as one.
struct Together(Vec<Waker>);

impl Wake for Together {
    fn wake(self: Arc<Self>) {
        self.0.iter().for_each(Waker::wake_by_ref);
    }
}

fn together(mut wakers: Vec<Waker>) -> Option<Waker> {
    if wakers.len() > 1 { Some(Waker::from(Arc::new(Together(wakers)))) } else { wakers.pop() }
}

impl<T> Fan<T> {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Readers { queues: Vec::new(), is_lost: false, end: None }))
    }

    fn lock(&self) -> MutexGuard<'_, Readers<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.lock().end.is_some()
    }

    pub(super) fn remove(&self, queue: &Arc<Queue<T>>) {
        self.lock().queues.retain(|one| !Arc::ptr_eq(one, queue));
    }
}

impl<T: Weighed + Clone> Fan<T> {
    /// One more reader, for whom so many events may wait.
    pub(super) fn add(&self, events_max: usize) -> Arc<Queue<T>> {
        let queue = Arc::new(Queue::new(events_max));
        let mut readers = self.lock();
        if readers.is_lost {
            queue.push(Heard::Gap);
        }
        if let Some(error) = &readers.end {
            queue.end(error.clone());
        }
        readers.queues.push(queue.clone());
        queue
    }

    /// The listener is at a server.
    pub(super) fn stand(&self) {
        self.lock().is_lost = false;
    }

    /// The listener is at no server any more. Who is to be woken.
    pub(super) fn lose(&self) -> Option<Waker> {
        self.lock().is_lost = true;
        self.push(Heard::Gap)
    }

    /// Takes an event for all readers. Who is to be woken.
    pub(super) fn push(&self, heard: Heard<T>) -> Option<Waker> {
        let readers = self.lock();
        // Most listeners have one, and what it is told is not copied.
        match &readers.queues[..] {
            [only] => only.push(heard),
            queues => together(queues.iter().filter_map(|queue| queue.push(heard.clone())).collect()),
        }
    }

    /// Nothing more comes. Who is to be woken.
    pub(super) fn end(&self, error: &ClientError) -> Option<Waker> {
        let mut readers = self.lock();
        readers.end = Some(error.clone());
        together(readers.queues.iter().filter_map(|queue| queue.end(error.clone())).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll};

    use bytes::Bytes;

    use super::*;

    #[derive(Default)]
    struct Counted(AtomicUsize);

    impl Wake for Counted {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    type Polled = Poll<Option<Result<Heard<Bytes>, ClientError>>>;

    fn poll(queue: &Queue<Bytes>) -> Polled {
        queue.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn event(polled: &Polled) -> &Heard<Bytes> {
        let Poll::Ready(Some(Ok(heard))) = polled else { panic!("nothing is told") };
        heard
    }

    #[test]
    fn every_reader_is_told_and_woken() {
        let fan = Fan::new();
        let queues = [fan.add(4), fan.add(4), fan.add(4)];
        let woken = Arc::new(Counted::default());
        let waker = Waker::from(woken.clone());
        for queue in &queues[..2] {
            assert!(queue.poll(&mut Context::from_waker(&waker)).is_pending());
        }
        fan.remove(&queues[2]);
        fan.push(Heard::Event(Bytes::from("a"))).expect("somebody waits").wake();
        assert_eq!(woken.0.load(Ordering::Relaxed), 2);
        for queue in &queues[..2] {
            assert_eq!(*event(&poll(queue)), Heard::Event(Bytes::from("a")));
        }
        assert!(poll(&queues[2]).is_pending());
    }

    #[test]
    fn who_comes_while_the_listener_is_lost_has_a_gap_and_after_the_end_the_end() {
        let fan: Fan<Bytes> = Fan::new();
        let early = fan.add(4);
        fan.lose();
        let late = fan.add(4);
        for queue in [&early, &late] {
            assert_eq!(*event(&poll(queue)), Heard::Gap);
        }
        fan.stand();
        assert!(poll(&fan.add(4)).is_pending() && !fan.has_ended());
        fan.end(&ClientError::Closed);
        assert!(fan.has_ended());
        for queue in [early, late, fan.add(4)] {
            assert!(matches!(poll(&queue), Poll::Ready(Some(Err(ClientError::Closed)))));
        }
    }
}
