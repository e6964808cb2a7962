//! Checks all interleavings of producer and consumer with loom: the queue's source with loom's atomics.

// Included, because the same source has to be compiled once more, with loom's atomics as its module `sync`.
#[path = "../src/spsc/queue.rs"]
#[allow(dead_code)]
mod queue;

mod sync {
    pub(crate) use loom::cell::UnsafeCell;
    pub(crate) use loom::sync::Arc;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    #[derive(Default)]
    pub(crate) struct TaskWaker(loom::future::AtomicWaker);

    impl TaskWaker {
        pub(crate) fn register(&self, waker: &std::task::Waker) {
            self.0.register_by_ref(waker);
        }

        pub(crate) fn take(&self) -> Option<std::task::Waker> {
            self.0.take_waker()
        }
    }
}

use std::future::poll_fn;
use std::task::{Context, Poll};

use loom::future::block_on;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use queue::{Consumer, channel};

async fn next<T>(consumer: &mut Consumer<T>) -> T {
    poll_fn(|cx: &mut Context<'_>| {
        if let Some(value) = consumer.pop() {
            return Poll::Ready(value);
        }
        consumer.register(cx.waker());
        consumer.pop().map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

#[test]
fn s004_10_values_arrive_once_and_in_order_and_a_waiting_consumer_is_woken() {
    loom::model(|| {
        let (mut producer, mut consumer) = channel(2);
        let giving = thread::spawn(move || {
            for n in 1..=2 {
                producer.push(n).unwrap();
                if let Some(waker) = producer.take_waker() {
                    waker.wake();
                }
            }
        });
        assert_eq!(block_on(next(&mut consumer)), 1);
        assert_eq!(block_on(next(&mut consumer)), 2);
        assert!(consumer.pop().is_none());
        giving.join().unwrap();
    });
}

#[test]
fn s004_10_a_slot_is_used_again_only_when_it_is_empty() {
    loom::model(|| {
        let (mut producer, mut consumer) = channel(1);
        producer.push(1).unwrap();
        let giving = thread::spawn(move || [producer.push(2), producer.push(3)]);
        let mut popped: Vec<u32> = consumer.pop().into_iter().collect();
        popped.extend(consumer.pop());
        let results = giving.join().unwrap();
        popped.extend(consumer.pop());
        let pushed: Vec<u32> = [Ok(1)]
            .into_iter()
            .chain((2..).zip(results).map(|(n, gave)| gave.map(|()| n)))
            .flatten()
            .collect();
        assert_eq!(popped, pushed, "refused values were not pushed");
        assert!(consumer.pop().is_none());
    });
}

/// As a member and its reader use it: the member reads acknowledgements after each notification and receives
/// all of them.
#[test]
fn s004_10_the_producer_receives_all_acks_after_a_notification() {
    loom::model(|| {
        let (mut producer, mut consumer) = channel(2);
        for n in 0..2 {
            producer.push(n).unwrap();
        }
        let notified = Arc::new(AtomicUsize::new(0));
        let popping = thread::spawn({
            let notified = notified.clone();
            move || {
                for n in 0..2 {
                    assert_eq!(consumer.pop(), Some(n));
                    if consumer.ack() {
                        notified.fetch_add(1, Ordering::AcqRel);
                    }
                }
            }
        });
        let (mut acked, mut notifications) = (0, 0);
        let mut listen = |count: usize| {
            while notifications < count {
                notifications += 1;
                acked += producer.take_acks();
            }
        };
        listen(notified.load(Ordering::Acquire));
        popping.join().unwrap();
        listen(notified.load(Ordering::Acquire));
        assert_eq!(acked, 2);
    });
}

/// Loom reports values that are never dropped.
#[test]
fn s004_10_values_left_in_the_queue_are_dropped_with_it() {
    loom::model(|| {
        let (mut producer, mut consumer) = channel(2);
        let giving = thread::spawn(move || {
            producer.push(Arc::new(1)).unwrap();
            producer.push(Arc::new(2)).unwrap();
        });
        drop(consumer.pop());
        drop(consumer);
        giving.join().unwrap();
    });
}
