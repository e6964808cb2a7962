use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::error::ClientError;
use crate::limits::EVENT_BYTES_MAX;

pub(crate) trait ByteSize {
    /// Bytes whose number a server determines.
    fn bytes(&self) -> usize;
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Delivery<T> {
    Event(T),
    Complete,
    Gap,
}

impl<T: ByteSize> Delivery<T> {
    fn bytes(&self) -> usize {
        match self {
            Self::Event(event) => event.bytes(),
            Self::Complete | Self::Gap => 0,
        }
    }
}

/// A bounded queue from a connection to a reader. On overflow a gap replaces all events, because the newest help a slow reader
/// most.
pub(super) struct Queue<T> {
    waiting: Mutex<Waiting<T>>,
    queue_len_max: usize,
}

struct Waiting<T> {
    events: VecDeque<Delivery<T>>,
    bytes: usize,
    reader: Option<Waker>,
    /// Why no more events come, reported once.
    end: Option<Option<ClientError>>,
}

impl<T: ByteSize> Waiting<T> {
    fn push(&mut self, delivery: Delivery<T>) {
        self.bytes += delivery.bytes();
        self.events.push_back(delivery);
    }
}

impl<T: ByteSize> Queue<T> {
    pub(super) fn new(queue_len_max: usize) -> Self {
        let waiting = Waiting { events: VecDeque::new(), bytes: 0, reader: None, end: None };
        Self { waiting: Mutex::new(waiting), queue_len_max: queue_len_max.max(1) }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting<T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, delivery: Delivery<T>) -> Option<Waker> {
        let mut waiting = self.lock();
        // An event larger than the limit is queued alone; else it would cause a gap every time.
        let has_room = waiting.events.len() < self.queue_len_max
            && (waiting.bytes + delivery.bytes() <= EVENT_BYTES_MAX || waiting.events.is_empty());
        if !has_room {
            // The completion of the state must not be lost.
            let completes = waiting.events.iter().any(|delivery| matches!(delivery, Delivery::Complete));
            waiting.events.clear();
            waiting.bytes = 0;
            waiting.push(Delivery::Gap);
            if completes {
                waiting.push(Delivery::Complete);
            }
        }
        if !matches!((&delivery, waiting.events.back()), (Delivery::Gap, Some(Delivery::Gap))) {
            waiting.push(delivery);
        }
        waiting.reader.take()
    }

    pub(super) fn end(&self, error: ClientError) -> Option<Waker> {
        let mut waiting = self.lock();
        waiting.end = Some(Some(error));
        waiting.reader.take()
    }

    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Delivery<T>, ClientError>>> {
        let mut waiting = self.lock();
        if let Some(delivery) = waiting.events.pop_front() {
            waiting.bytes -= delivery.bytes();
            return Poll::Ready(Some(Ok(delivery)));
        }
        match &mut waiting.end {
            Some(reason) => Poll::Ready(reason.take().map(Err)),
            None => {
                match &mut waiting.reader {
                    Some(reader) => reader.clone_from(cx.waker()),
                    None => waiting.reader = Some(cx.waker().clone()),
                }
                Poll::Pending
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    impl ByteSize for Bytes {
        fn bytes(&self) -> usize {
            self.len()
        }
    }

    fn key(n: usize) -> Delivery<Bytes> {
        Delivery::Event(n.to_string().into())
    }

    fn all(queue: &Queue<Bytes>) -> Vec<Delivery<Bytes>> {
        let mut cx = Context::from_waker(Waker::noop());
        std::iter::from_fn(|| match queue.poll(&mut cx) {
            Poll::Ready(Some(delivery)) => Some(delivery.unwrap()),
            _ => None,
        })
        .collect()
    }

    #[test]
    fn a_slow_reader_has_a_gap_and_what_is_newest() {
        let queue = Queue::new(4);
        for n in 0..6 {
            queue.push(key(n));
        }
        assert_eq!(all(&queue), [Delivery::Gap, key(4), key(5)]);
        queue.push(key(6));
        assert_eq!(all(&queue), [key(6)]);
    }

    #[test]
    fn completion_of_the_state_is_delivered_also_after_a_gap() {
        let queue = Queue::new(2);
        queue.push(key(0));
        queue.push(Delivery::Complete);
        queue.push(key(1));
        assert_eq!(all(&queue), [Delivery::Gap, Delivery::Complete, key(1)]);
    }

    #[test]
    fn bytes_are_bounded_and_successive_gaps_are_merged() {
        let queue = Queue::new(1_000);
        let large = Delivery::Event(Bytes::from(vec![0; EVENT_BYTES_MAX]));
        queue.push(large.clone());
        queue.push(key(0));
        queue.push(Delivery::Gap);
        queue.push(Delivery::Gap);
        assert_eq!(all(&queue), [Delivery::Gap, key(0), Delivery::Gap]);
        queue.push(large.clone());
        assert_eq!(all(&queue), [large]);
        assert_eq!(queue.lock().bytes, 0);
    }

    #[test]
    fn the_end_comes_last_and_once() {
        let queue = Queue::new(4);
        queue.push(key(0));
        queue.end(ClientError::Closed);
        let mut cx = Context::from_waker(Waker::noop());
        assert!(matches!(queue.poll(&mut cx), Poll::Ready(Some(Ok(Delivery::Event(_))))));
        assert!(matches!(queue.poll(&mut cx), Poll::Ready(Some(Err(ClientError::Closed)))));
        assert!(matches!(queue.poll(&mut cx), Poll::Ready(None)));
    }
}
