//! The queue between threads, small enough for Miri (`cargo xtask miri`), which detects races, leaks and
//! reads of empty slots.

use std::sync::Arc;

// Included, because the module is private, and as a unit test it would be in one program with the crate's other tests: Miri
// cannot open their sockets and files.
#[path = "../src/spsc/queue.rs"]
#[allow(dead_code)]
mod queue;
#[path = "../src/spsc/sync.rs"]
mod sync;

use queue::channel;

const VALUES: usize = 200;

#[test]
fn values_pass_between_threads_once_and_in_order() {
    let (mut producer, mut consumer) = channel(8);
    let pushing = std::thread::spawn(move || {
        for nth in 0..VALUES {
            let mut value = nth.to_string();
            while let Err(returned) = producer.push(value) {
                value = returned;
                std::thread::yield_now();
            }
        }
        producer
    });
    for nth in 0..VALUES {
        let value = loop {
            match consumer.pop() {
                Some(value) => break value,
                None => std::thread::yield_now(),
            }
        };
        assert_eq!(value, nth.to_string());
        consumer.ack_silently();
    }
    assert_eq!(pushing.join().unwrap().poll_acks(), VALUES);
    assert_eq!(consumer.pop(), None);
}

#[test]
fn values_left_in_the_queue_are_dropped_once_after_the_slots_were_used_again() {
    let value = Arc::new(());
    for is_producer_dropped_first in [true, false] {
        let (mut producer, mut consumer) = channel(4);
        for _ in 0..10 {
            producer.push(value.clone()).unwrap();
            assert!(consumer.pop().is_some());
        }
        (0..3).for_each(|_| producer.push(value.clone()).unwrap());
        assert_eq!(Arc::strong_count(&value), 4);
        if is_producer_dropped_first {
            drop(producer);
            drop(consumer);
        } else {
            drop(consumer);
            drop(producer);
        }
        assert_eq!(Arc::strong_count(&value), 1);
    }
}

#[test]
fn values_that_find_no_room_are_returned() {
    let (mut producer, mut consumer) = channel(2);
    producer.push("a").unwrap();
    producer.push("b").unwrap();
    assert_eq!(producer.push("c"), Err("c"));
    assert_eq!(consumer.pop(), Some("a"));
    producer.push("c").unwrap();
    assert_eq!((consumer.pop(), consumer.pop(), consumer.pop()), (Some("b"), Some("c"), None));
}
