use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

use super::queue::{ByteSize, Delivery, Queue};
use crate::error::ClientError;

/// The readers of a listener, each with its queue, so that none delays another.
pub(super) struct FanOut<T>(Mutex<Readers<T>>);

struct Readers<T> {
    queues: Vec<Arc<Queue<T>>>,
    /// A new reader may miss the first events.
    is_lost: bool,
    end: Option<ClientError>,
}

struct WakeAll(Vec<Waker>);

impl Wake for WakeAll {
    fn wake(self: Arc<Self>) {
        self.0.iter().for_each(Waker::wake_by_ref);
    }
}

fn wake_all(mut wakers: Vec<Waker>) -> Option<Waker> {
    if wakers.len() > 1 { Some(Waker::from(Arc::new(WakeAll(wakers)))) } else { wakers.pop() }
}

impl<T> FanOut<T> {
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

impl<T: ByteSize + Clone> FanOut<T> {
    pub(super) fn add(&self, queue_len_max: usize) -> Arc<Queue<T>> {
        let queue = Arc::new(Queue::new(queue_len_max));
        let mut readers = self.lock();
        if readers.is_lost {
            queue.push(Delivery::Gap);
        }
        if let Some(error) = &readers.end {
            queue.end(error.clone());
        }
        readers.queues.push(queue.clone());
        queue
    }

    pub(super) fn mark_registered(&self) {
        self.lock().is_lost = false;
    }

    pub(super) fn mark_lost(&self) -> Option<Waker> {
        self.lock().is_lost = true;
        self.push(Delivery::Gap)
    }

    pub(super) fn push(&self, delivery: Delivery<T>) -> Option<Waker> {
        let readers = self.lock();
        // Most listeners have one reader, and need no copy.
        match &readers.queues[..] {
            [only] => only.push(delivery),
            queues => wake_all(queues.iter().filter_map(|queue| queue.push(delivery.clone())).collect()),
        }
    }

    pub(super) fn end(&self, error: &ClientError) -> Option<Waker> {
        let mut readers = self.lock();
        readers.end = Some(error.clone());
        wake_all(readers.queues.iter().filter_map(|queue| queue.end(error.clone())).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll};

    use bytes::Bytes;

    use super::*;

    #[derive(Default)]
    struct CountingWaker(AtomicUsize);

    impl Wake for CountingWaker {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    type Polled = Poll<Option<Result<Delivery<Bytes>, ClientError>>>;

    fn poll(queue: &Queue<Bytes>) -> Polled {
        queue.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn event(polled: &Polled) -> &Delivery<Bytes> {
        let Poll::Ready(Some(Ok(delivery))) = polled else { panic!("no delivery") };
        delivery
    }

    #[test]
    fn every_reader_gets_the_event_and_is_woken() {
        let fan = FanOut::new();
        let queues = [fan.add(4), fan.add(4), fan.add(4)];
        let woken = Arc::new(CountingWaker::default());
        let waker = Waker::from(woken.clone());
        for queue in &queues[..2] {
            assert!(queue.poll(&mut Context::from_waker(&waker)).is_pending());
        }
        fan.remove(&queues[2]);
        fan.push(Delivery::Event(Bytes::from("a"))).expect("two tasks wait").wake();
        assert_eq!(woken.0.load(Ordering::Relaxed), 2);
        for queue in &queues[..2] {
            assert_eq!(*event(&poll(queue)), Delivery::Event(Bytes::from("a")));
        }
        assert!(poll(&queues[2]).is_pending());
    }

    #[test]
    fn a_reader_added_while_the_listener_is_lost_has_a_gap_and_after_the_end_the_error() {
        let fan: FanOut<Bytes> = FanOut::new();
        let early = fan.add(4);
        fan.mark_lost();
        let late = fan.add(4);
        for queue in [&early, &late] {
            assert_eq!(*event(&poll(queue)), Delivery::Gap);
        }
        fan.mark_registered();
        assert!(poll(&fan.add(4)).is_pending() && !fan.has_ended());
        fan.end(&ClientError::Closed);
        assert!(fan.has_ended());
        for queue in [early, late, fan.add(4)] {
            assert!(matches!(poll(&queue), Poll::Ready(Some(Err(ClientError::Closed)))));
        }
    }
}
