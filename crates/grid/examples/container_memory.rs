//! What an entry costs in a container, in memory and in time: fills one with entries that have keys of 16 and values of 100
//! bytes, and reads them in another order.
//!
//! `cargo run --profile quick -p consort-grid --example container_memory -- [ENTRIES] [READS]`

use std::time::Instant;

use bytes::Bytes;
use consort_grid::{Container, ContainerSettings, ENTRY_OVERHEAD, Entry, Segment, SegmentState, Version};
use consort_group::Time;

/// The allocator of `consort server`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const SEGMENTS: u16 = 256;

const VALUE_BYTES: usize = 100;

fn key(number: u64) -> [u8; 16] {
    let mut key = *b"key:000000000000";
    let mut rest = number;
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

fn segment(number: u64) -> Segment {
    Segment((number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u16 % SEGMENTS)
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("the process's memory");
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number");
    pages * 4_096
}

fn main() {
    let mut numbers = std::env::args().skip(1).map(|number| number.parse::<u64>().expect("a number"));
    let (entries, reads) = (numbers.next().unwrap_or(1_000_000), numbers.next().unwrap_or(5_000_000));
    let settings =
        ContainerSettings { segment_count: SEGMENTS, bound: None, is_backed: false, is_shared: false };
    let container = Container::new(&settings, 7);
    for index in 0..SEGMENTS {
        container.receive(Segment(index));
        container.own(Segment(index));
        assert_eq!(container.state(Segment(index)), SegmentState::Owned);
    }
    let before = resident_bytes();
    let begin = Instant::now();
    let value = Bytes::from(vec![7; VALUE_BYTES]);
    for number in 0..entries {
        let entry = Entry::new(value.clone(), Version::new(1, number), Time::ZERO);
        container.put(segment(number), &key(number), entry, Time::ZERO).expect("there is no bound");
    }
    let write = begin.elapsed().as_secs_f64() / entries as f64;
    let resident = (resident_bytes() - before) as f64 / entries as f64;
    let counted = container.bytes() as f64 / entries as f64;
    let begin = Instant::now();
    let mut sum = 0;
    for read in 0..reads {
        let number = read.wrapping_mul(0xd134_2543_de82_ef95) % entries;
        let value = container.get_value(segment(number), &key(number), || Time::ZERO).expect("it was put");
        sum += u64::from(value[0]);
    }
    assert_eq!(sum, 7 * reads);
    let read = begin.elapsed().as_secs_f64() / reads as f64;
    println!(
        "{entries} entries: {resident:.1} bytes resident each, {counted:.1} counted ({ENTRY_OVERHEAD} beside key and value), \
         {:.0} ns per write, {:.0} ns per read",
        write * 1e9,
        read * 1e9
    );
}
