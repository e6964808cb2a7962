//! Nanoseconds per read of a key that this member holds, compared to a plain sharded hash map.
//!
//! `cargo run --release -p consort-grid --example local_reads [keys] [value bytes] [threads]`
//!
//! All variants read keys in the same random order. A round is shorter than a time slice of the scheduler, and the
//! variants take turns, so that other load on the machine affects all of them alike. The figures are the best round and
//! the median.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bytes::Bytes;
use consort_grid::{
    Container, ContainerSettings, Entry, Lifetime, Limit, Lookup, MemoryBound, Segment, Version, WhenFull,
};
use consort_group::Time;
use consort_hotrod::hash;
use foldhash::fast::FixedState;

const SEGMENTS: u16 = 256;
const READS: usize = 1 << 13;
const ROUNDS: usize = 401;

type Shard<S> = Mutex<HashMap<Bytes, Bytes, S>>;

fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse().expect("a number"));
    let key_count: usize = args.next().unwrap_or(100_000);
    let value_len: usize = args.next().unwrap_or(1_000);
    let threads: usize = args.next().unwrap_or(1);

    let keys: Vec<Bytes> = (0..key_count).map(|key| Bytes::from(format!("key-{key:08}"))).collect();
    let segments: Vec<Segment> = keys.iter().map(|key| segment_of(key)).collect();
    let mut random = 0x9E37_79B9_7F4A_7C15u64;
    let order: Vec<u32> =
        (0..READS * ROUNDS).map(|_| (next(&mut random) % key_count as u64) as u32).collect();

    let fold = sharded::<FixedState>(&keys, &segments, value_len);
    let sip = sharded::<std::hash::RandomState>(&keys, &segments, value_len);
    let plain = container(&keys, &segments, value_len, None, Lifetime::FOREVER);
    let large = MemoryBound { limit: Limit::Entries(u64::MAX), when_full: WhenFull::Remove };
    let evicting = container(&keys, &segments, value_len, Some(large), Lifetime::FOREVER);
    let hour = Lifetime { lifespan: Some(Duration::from_secs(3600)), max_idle: None };
    let mortal = container(&keys, &segments, value_len, None, hour);

    let at = |read: &u32| (segments[*read as usize], &keys[*read as usize]);
    let now = || Time(black_box(1));
    let bare = |read: &u32| {
        let (segment, key) = at(read);
        fold[usize::from(segment.0)].lock().unwrap().get(key).cloned()
    };
    let bare_sip = |read: &u32| {
        let (segment, key) = at(read);
        sip[usize::from(segment.0)].lock().unwrap().get(key).cloned()
    };
    let value = |read: &u32| plain.get_value(at(read).0, at(read).1, now);
    let hashed = |read: &u32| plain.get_value(segment_of(at(read).1), at(read).1, now);
    for segment in 0..plain.segment_count() {
        plain.set_readable(Segment(segment), true);
    }
    let looked_up = |read: &u32| match plain.look_up_value(at(read).0, at(read).1, now) {
        Lookup::Hit(value) => Some(value),
        Lookup::Miss | Lookup::NotLocal => None,
    };
    let bounded = |read: &u32| evicting.get_value(at(read).0, at(read).1, now);
    let timed = |read: &u32| mortal.get_value(at(read).0, at(read).1, now);
    type Read<'a> = &'a (dyn Fn(&u32) -> Option<Bytes> + Sync);
    let ways: [(&str, Read<'_>); 7] = [
        ("bare sharded map, foldhash", &bare),
        ("bare sharded map, std's hash", &bare_sip),
        ("get_value", &value),
        ("get_value, and the segment's hash", &hashed),
        ("look_up_value", &looked_up),
        ("get_value in one that evicts", &bounded),
        ("get_value of an entry with a lifetime", &timed),
    ];
    let mut rounds: [Vec<f64>; 7] = Default::default();
    for order in order.chunks_exact(READS) {
        for (rounds, (_, read)) in rounds.iter_mut().zip(ways) {
            rounds.push(nanos(order, threads, read));
        }
    }
    let figures = rounds.map(|mut rounds| {
        rounds.sort_by(f64::total_cmp);
        (rounds[0], rounds[ROUNDS / 2])
    });
    println!(
        "{key_count} keys, {value_len} bytes, {SEGMENTS} segments, {threads} threads; ns best, ns median, ratios"
    );
    for ((name, _), (best, median)) in ways.iter().zip(figures) {
        let (best_ratio, median_ratio) = (best / figures[0].0, median / figures[0].1);
        println!("{name:<40} {best:7.1} {median:7.1} {best_ratio:6.2} {median_ratio:6.2}");
    }
}

fn segment_of(key: &[u8]) -> Segment {
    Segment(hash::segment_of(key, SEGMENTS.into()) as u16)
}

fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn sharded<S: std::hash::BuildHasher + Default>(
    keys: &[Bytes],
    segments: &[Segment],
    value_len: usize,
) -> Vec<Shard<S>> {
    let shards: Vec<Shard<S>> = (0..SEGMENTS).map(|_| Mutex::default()).collect();
    for (key, segment) in keys.iter().zip(segments) {
        let value = Bytes::from(vec![1; value_len]);
        shards[usize::from(segment.0)].lock().unwrap().insert(Bytes::copy_from_slice(key), value);
    }
    shards
}

fn container(
    keys: &[Bytes],
    segments: &[Segment],
    value_len: usize,
    bound: Option<MemoryBound>,
    lifetime: Lifetime,
) -> Container {
    let container = Container::new(
        &ContainerSettings { segment_count: SEGMENTS, bound, is_backed: false, is_shared: false },
        7,
    );
    (0..SEGMENTS).for_each(|segment| container.own(Segment(segment)));
    for (key, &segment) in keys.iter().zip(segments) {
        let entry = Entry::new(Bytes::from(vec![1; value_len]), Version::new(1, 1), Time::ZERO);
        container.put(segment, key, entry.with_lifetime(lifetime), Time::ZERO).expect("room");
    }
    container
}

/// Per read of one thread.
fn nanos(order: &[u32], threads: usize, read: &(dyn Fn(&u32) -> Option<Bytes> + Sync)) -> f64 {
    let start = Instant::now();
    if threads == 1 {
        order.iter().for_each(|index| assert!(black_box(read(index)).is_some()));
        return start.elapsed().as_nanos() as f64 / order.len() as f64;
    }
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                let (before, after) = order.split_at(order.len() / threads * thread);
                after.iter().chain(before).for_each(|index| assert!(black_box(read(index)).is_some()));
            });
        }
    });
    start.elapsed().as_nanos() as f64 / order.len() as f64
}
