//! The queue between real threads, small enough for Miri (`cargo xtask miri`), which sees races, leaks and reads of empty slots.

use std::sync::Arc;

use consort_handoff::handoff;

const VALUES: usize = 200;

#[test]
fn values_pass_between_threads_once_and_in_order() {
    let (mut giver, mut taker) = handoff(8);
    let gives = std::thread::spawn(move || {
        for nth in 0..VALUES {
            let mut value = nth.to_string();
            while let Err(returned) = giver.give(value) {
                value = returned;
                std::thread::yield_now();
            }
        }
        giver
    });
    for nth in 0..VALUES {
        let value = loop {
            match taker.take() {
                Some(value) => break value,
                None => std::thread::yield_now(),
            }
        };
        assert_eq!(value, nth.to_string());
        taker.note_done();
    }
    assert_eq!(gives.join().unwrap().look(), VALUES);
    assert_eq!(taker.take(), None);
}

#[test]
fn values_left_in_the_queue_are_dropped_once_after_the_slots_were_used_again() {
    let value = Arc::new(());
    for is_giver_dropped_first in [true, false] {
        let (mut giver, mut taker) = handoff(4);
        for _ in 0..10 {
            giver.give(value.clone()).unwrap();
            assert!(taker.take().is_some());
        }
        (0..3).for_each(|_| giver.give(value.clone()).unwrap());
        assert_eq!(Arc::strong_count(&value), 4);
        if is_giver_dropped_first {
            drop(giver);
            drop(taker);
        } else {
            drop(taker);
            drop(giver);
        }
        assert_eq!(Arc::strong_count(&value), 1);
    }
}

#[test]
fn values_that_find_no_room_are_returned() {
    let (mut giver, mut taker) = handoff(2);
    giver.give("a").unwrap();
    giver.give("b").unwrap();
    assert_eq!(giver.give("c"), Err("c"));
    assert_eq!(taker.take(), Some("a"));
    giver.give("c").unwrap();
    assert_eq!((taker.take(), taker.take(), taker.take()), (Some("b"), Some("c"), None));
}
