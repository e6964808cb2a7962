//! Every order in which giver and taker can meet in the queue, tried by loom: the queue's own source, on loom's atomics.

#[path = "../src/queue.rs"]
#[allow(unreachable_pub, missing_docs)]
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
use queue::{Taker, handoff};

async fn next<T>(taker: &mut Taker<T>) -> T {
    poll_fn(|cx: &mut Context<'_>| {
        if let Some(value) = taker.take() {
            return Poll::Ready(value);
        }
        taker.register(cx.waker());
        taker.take().map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

#[test]
fn s004_10_what_is_given_comes_once_and_in_order_and_who_waits_is_woken() {
    loom::model(|| {
        let (mut giver, mut taker) = handoff(2);
        let giving = thread::spawn(move || {
            for n in 1..=2 {
                giver.give(n).unwrap();
                if let Some(waker) = giver.take_waker() {
                    waker.wake();
                }
            }
        });
        assert_eq!(block_on(next(&mut taker)), 1);
        assert_eq!(block_on(next(&mut taker)), 2);
        assert!(taker.take().is_none());
        giving.join().unwrap();
    });
}

#[test]
fn s004_10_a_slot_is_used_again_only_when_it_is_empty() {
    loom::model(|| {
        let (mut giver, mut taker) = handoff(1);
        giver.give(1).unwrap();
        let giving = thread::spawn(move || [giver.give(2), giver.give(3)]);
        let mut taken: Vec<u32> = taker.take().into_iter().collect();
        taken.extend(taker.take());
        let results = giving.join().unwrap();
        taken.extend(taker.take());
        let given: Vec<u32> = [Ok(1)]
            .into_iter()
            .chain((2..).zip(results).map(|(n, gave)| gave.map(|()| n)))
            .flatten()
            .collect();
        assert_eq!(taken, given, "what was handed back was not put in");
        assert!(taker.take().is_none());
    });
}

/// As a member and its reader use it: the member listens as often as it is told, and has heard of all in the end.
#[test]
fn s004_10_with_what_the_taker_is_done_the_giver_hears_once_it_is_told() {
    loom::model(|| {
        let (mut giver, mut taker) = handoff(2);
        for n in 0..2 {
            giver.give(n).unwrap();
        }
        let told = Arc::new(AtomicUsize::new(0));
        let taking = thread::spawn({
            let told = told.clone();
            move || {
                for n in 0..2 {
                    assert_eq!(taker.take(), Some(n));
                    if taker.done() {
                        told.fetch_add(1, Ordering::AcqRel);
                    }
                }
            }
        });
        let (mut heard, mut listened) = (0, 0);
        let mut listen = |told: usize| {
            while listened < told {
                listened += 1;
                heard += giver.hear();
            }
        };
        listen(told.load(Ordering::Acquire));
        taking.join().unwrap();
        listen(told.load(Ordering::Acquire));
        assert_eq!(heard, 2);
    });
}

/// Loom itself complains of what is never dropped.
#[test]
fn s004_10_what_nobody_takes_is_dropped_with_the_queue() {
    loom::model(|| {
        let (mut giver, mut taker) = handoff(2);
        let giving = thread::spawn(move || {
            giver.give(Arc::new(1)).unwrap();
            giver.give(Arc::new(2)).unwrap();
        });
        drop(taker.take());
        drop(taker);
        giving.join().unwrap();
    });
}
