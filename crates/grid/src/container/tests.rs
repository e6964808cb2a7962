//! Tests of the container as a whole.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::*;

const SEG: Segment = Segment(0);
const NOW: Time = Time::ZERO;
const S: Duration = Duration::from_secs(1);
const ALL: ChunkLimits = ChunkLimits { entries_max: usize::MAX, bytes_max: usize::MAX };

fn container(segment_count: u16) -> Container {
    bounded(segment_count, None)
}

fn bounded(segment_count: u16, bound: Option<MemoryBound>) -> Container {
    let container =
        Container::new(&ContainerSettings { segment_count, bound, is_backed: false, is_shared: false }, 7);
    (0..segment_count).for_each(|segment| container.own(Segment(segment)));
    container
}

fn entry(value: &str, count: u64) -> Entry {
    Entry::new(Bytes::copy_from_slice(value.as_bytes()), Version::new(1, count), NOW)
}

fn put(container: &Container, key: &[u8], entry: Entry) -> Option<Entry> {
    container.put(SEG, key, entry, NOW).unwrap().previous
}

fn put_if_newer(container: &Container, key: &[u8], entry: Entry) -> bool {
    container.put_if_newer(SEG, key, entry, NOW).unwrap().is_some()
}

fn value_of(container: &Container, key: &str) -> Option<String> {
    let value = container.get_value(SEG, key.as_bytes(), || NOW)?;
    Some(String::from_utf8(value.to_vec()).unwrap())
}

fn keys(chunk: &Chunk) -> Vec<String> {
    chunk.entries.iter().map(|(key, _)| String::from_utf8(key.to_vec()).unwrap()).collect()
}

#[test]
fn put_replaces_and_gives_the_entry_before() {
    let container = container(1);
    assert_eq!(put(&container, b"k", entry("one", 1)), None);
    assert_eq!(put(&container, b"k", entry("two", 2)), Some(entry("one", 1)));
    assert_eq!(container.get(SEG, b"k", || NOW), Some(entry("two", 2)));
    assert_eq!(container.remove(SEG, b"k", Version::new(1, 3), NOW).previous, Some(entry("two", 2)));
    assert_eq!(container.get(SEG, b"k", || NOW), None);
    assert_eq!((container.len(), container.bytes()), (0, 0));
}

#[test]
fn clock_is_not_asked_for_an_entry_that_lives_for_ever() {
    let container = container(1);
    put(&container, b"k", entry("one", 1));
    assert!(container.get(SEG, b"k", || unreachable!()).is_some());
    assert!(container.get(SEG, b"other", || unreachable!()).is_none());
}

#[test]
fn older_write_does_not_replace_a_newer_one() {
    let container = container(1);
    put(&container, b"k", entry("two", 2));
    assert!(!put_if_newer(&container, b"k", entry("one", 1)));
    assert!(!put_if_newer(&container, b"k", entry("same", 2)));
    assert_eq!(container.remove_if_newer(SEG, b"k", Version::new(1, 2), NOW), None);
    assert_eq!(value_of(&container, "k").as_deref(), Some("two"));
    assert!(put_if_newer(&container, b"k", entry("three", 3)));
    assert!(container.remove_if_newer(SEG, b"k", Version::new(1, 4), NOW).is_some());
    assert!(container.is_empty());
}

#[test]
fn removal_is_remembered_while_the_segment_is_received() {
    let container = container(1);
    container.drop_segment(SEG);
    container.receive(SEG);
    container.remove(SEG, b"k", Version::new(1, 5), NOW);
    assert_eq!(container.version_of(SEG, b"k"), Version::new(1, 5));
    assert!(!put_if_newer(&container, b"k", entry("older", 4)));
    assert_eq!(container.removal_count(SEG), 1);
    assert!(put_if_newer(&container, b"k", entry("newer", 6)));
    assert_eq!(container.removal_count(SEG), 0);
    container.remove(SEG, b"k", Version::new(1, 7), NOW);
    container.own(SEG);
    assert_eq!((container.removal_count(SEG), container.bytes()), (0, 0));
    assert_eq!(container.version_of(SEG, b"k"), Version::NONE);
}

#[test]
fn dropped_segment_is_empty_and_counts_nothing() {
    let container = container(2);
    put(&container, b"k", entry("one", 1));
    container.put(Segment(1), b"other", entry("two", 1), NOW).unwrap();
    container.drop_segment(SEG);
    assert_eq!(container.state(SEG), SegmentState::Absent);
    assert_eq!(container.get(SEG, b"k", || NOW), None);
    assert_eq!((container.len(), container.segment_len(Segment(1))), (1, 1));
    assert_eq!(container.bytes(), container.segment_bytes(Segment(1)));
}

#[test]
fn segment_that_is_not_readable_here_differs_from_a_missing_key() {
    let container = container(1);
    put(&container, b"k", entry("one", 1));
    let look_up = |key: &[u8]| {
        let found = container.look_up(SEG, key, || NOW);
        let value = container.look_up_value(SEG, key, || NOW);
        match (&found, &value) {
            (Lookup::Hit(entry), Lookup::Hit(value)) => assert_eq!(entry.value, value),
            (Lookup::Miss, Lookup::Miss) | (Lookup::NotLocal, Lookup::NotLocal) => {}
            other => panic!("{other:?}"),
        }
        found
    };
    assert_eq!(look_up(b"k"), Lookup::NotLocal, "who owns it need not be one of those who are read");
    container.set_readable(SEG, true);
    assert_eq!([look_up(b"k"), look_up(b"other")], [Lookup::Hit(entry("one", 1)), Lookup::Miss]);
    container.set_readable(SEG, false);
    assert_eq!(look_up(b"k"), Lookup::NotLocal);
    container.set_readable(SEG, true);
    container.drop_segment(SEG);
    assert_eq!(look_up(b"k"), Lookup::NotLocal);
    container.receive(SEG);
    assert_eq!(look_up(b"k"), Lookup::NotLocal);
}

#[test]
#[should_panic(expected = "a write in segment 0, which is not here")]
fn write_in_an_absent_segment_is_a_mistake_of_the_writer() {
    let container = container(1);
    container.drop_segment(SEG);
    put(&container, b"k", entry("one", 1));
}

#[test]
fn chunk_stops_at_its_limits_and_goes_on_there() {
    let container = container(1);
    for key in 0..10 {
        put(&container, format!("k{key}").as_bytes(), entry("0123456789", 1));
    }
    let limits = ChunkLimits { entries_max: 100, bytes_max: 40 };
    let mut cursor = Some(Cursor::START);
    let mut sizes = Vec::new();
    while let Some(from) = cursor {
        let chunk = container.chunk(SEG, from, limits, NOW).unwrap();
        sizes.push(chunk.entries.len());
        cursor = chunk.next;
    }
    assert_eq!(sizes, [3, 3, 3, 1]);
    let large = ChunkLimits { entries_max: 1, bytes_max: 0 };
    assert_eq!(container.chunk(SEG, Cursor::START, large, NOW).unwrap().entries.len(), 1);
}

#[test]
fn key_that_is_removed_and_comes_back_is_not_given_twice() {
    let container = container(1);
    for key in ["a", "b", "c"] {
        put(&container, key.as_bytes(), entry("1", 1));
    }
    let one = ChunkLimits { entries_max: 1, ..ALL };
    let first = container.chunk(SEG, Cursor::START, one, NOW).unwrap();
    assert_eq!(keys(&first), ["a"]);
    // The key leaves the first slot and returns in the last.
    container.remove(SEG, b"c", Version::new(1, 2), NOW);
    container.remove(SEG, b"a", Version::new(1, 3), NOW);
    put(&container, b"other", entry("4", 4));
    put(&container, b"a", entry("5", 5));
    put(&container, b"b", entry("6", 6));
    let rest = container.chunk(SEG, first.next.unwrap(), ALL, NOW).unwrap();
    assert_eq!(keys(&rest), ["b"]);
    assert_eq!(rest.entries[0].1, entry("6", 6));
    assert_eq!(rest.next, None);
}

#[test]
fn cursor_from_before_a_segment_was_dropped_is_void() {
    let container = container(1);
    put(&container, b"a", entry("1", 1));
    put(&container, b"b", entry("1", 1));
    let one = ChunkLimits { entries_max: 1, ..ALL };
    let cursor = container.chunk(SEG, Cursor::START, one, NOW).unwrap().next.unwrap();
    container.drop_segment(SEG);
    assert_eq!(container.chunk(SEG, cursor, ALL, NOW), Err(SegmentGone(SEG)));
    assert_eq!(container.chunk(SEG, Cursor::START, ALL, NOW), Err(SegmentGone(SEG)));
    container.own(SEG);
    put(&container, b"b", entry("1", 1));
    assert_eq!(container.chunk(SEG, cursor, ALL, NOW), Err(SegmentGone(SEG)));
    assert_eq!(keys(&container.chunk(SEG, Cursor::START, ALL, NOW).unwrap()), ["b"]);
}

#[test]
fn iteration_of_a_growing_table_returns_each_entry_once() {
    let container = container(1);
    let put_one = |key: u32| put(&container, &key.to_be_bytes(), entry("1", 1));
    (0..100).for_each(|key| drop(put_one(key)));
    let mut given: BTreeMap<Bytes, u32> = BTreeMap::new();
    let (mut cursor, mut more) = (Some(Cursor::START), 100);
    while let Some(from) = cursor {
        let chunk = container.chunk(SEG, from, ChunkLimits { entries_max: 3, ..ALL }, NOW).unwrap();
        chunk.entries.iter().for_each(|(key, _)| *given.entry(key.clone()).or_default() += 1);
        cursor = chunk.next;
        (more..more + 500).for_each(|key| drop(put_one(key)));
        more += 500;
    }
    assert_eq!(given.len(), 100);
    assert!(given.values().all(|&times| times == 1));
}

#[test]
fn mass_removal_gives_the_memory_back() {
    let container = container(1);
    let kept = allocation_counter::measure(|| {
        (0..50_000u32).for_each(|key| drop(put(&container, &key.to_be_bytes(), entry("1", 1))));
        (0..50_000u32).for_each(|key| {
            container.remove(SEG, &key.to_be_bytes(), Version::new(1, 2), NOW);
        });
    });
    assert!(kept.bytes_max > 5_000_000 && kept.bytes_current < 10_000, "{kept:?}");
}

fn mortal(lifespan: Option<Duration>, max_idle: Option<Duration>) -> Entry {
    entry("mortal", 1).with_lifetime(Lifetime { lifespan, max_idle })
}

#[test]
fn expired_entry_is_absent_for_reads_before_it_is_taken_out() {
    let container = container(1);
    put(&container, b"k", mortal(Some(10 * S), None));
    assert!(container.get(SEG, b"k", || NOW + 9 * S).is_some());
    assert!(container.get(SEG, b"k", || NOW + 10 * S).is_none());
    assert!(container.peek(SEG, b"k").unwrap().is_expired(NOW + 10 * S));
    assert!(container.chunk(SEG, Cursor::START, ALL, NOW + 10 * S).unwrap().entries.is_empty());
    assert_eq!(container.put(SEG, b"k", entry("next", 2), NOW + 10 * S).unwrap().previous, None);
}

#[test]
fn expiry_removes_only_entries_that_are_due() {
    let container = container(3);
    for (index, seconds) in [30, 10, 20].into_iter().enumerate() {
        let entry = mortal(Some(seconds * S), None);
        container.put(Segment(index as u16), &[index as u8], entry, NOW).unwrap();
    }
    put(&container, b"for ever", entry("1", 1));
    assert_eq!(container.expiry().next_deadline(), Some(NOW + 10 * S));
    assert_eq!(container.expiry().remove_expired(NOW + 9 * S, 100).taken, []);
    assert_eq!(container.statistics().expirations(), 0);
    let taken = container.expiry().remove_expired(NOW + 20 * S, 100).taken;
    assert_eq!(container.statistics().expirations(), 2);
    assert_eq!(taken.iter().map(|taken| &taken.key[..]).collect::<Vec<_>>(), [[1], [2]]);
    assert_eq!(taken[0].entry, mortal(Some(10 * S), None));
    assert_eq!(container.expiry().next_deadline(), Some(NOW + 30 * S));
    assert_eq!(container.len(), 2);
}

#[test]
fn last_of_the_most_segments_that_there_may_be_expires() {
    let container = container(u16::MAX);
    assert_eq!(container.expiry().next_deadline(), None);
    let last = Segment(u16::MAX - 1);
    container.put(last, b"k", mortal(Some(S), None), NOW).unwrap();
    assert_eq!(container.expiry().next_deadline(), Some(NOW + S));
    assert_eq!(container.expiry().remove_expired(NOW + S, 100).taken.len(), 1);
}

#[test]
fn expiry_goes_on_where_its_bound_stopped_it() {
    let container = container(4);
    for key in 0..40u8 {
        container.put(Segment(u16::from(key) % 4), &[key], mortal(Some(S), None), NOW).unwrap();
    }
    let counts: Vec<usize> =
        (0..5).map(|_| container.expiry().remove_expired(NOW + S, 15).taken.len()).collect();
    assert_eq!(counts, [15, 15, 10, 0, 0]);
    assert_eq!((container.expiry().next_deadline(), container.bytes()), (None, 0));
}

#[test]
fn expiry_leaves_segments_that_are_not_wanted() {
    let container = container(2);
    for segment in 0..2 {
        container.put(Segment(segment), b"k", mortal(Some(S), None), NOW).unwrap();
    }
    let expired = container.expiry().remove_expired_in(|segment| segment == Segment(1), NOW + S, 100);
    assert_eq!(expired.taken.iter().map(|taken| taken.segment).collect::<Vec<_>>(), [Segment(1)]);
    assert_eq!(container.expiry().next_deadline_in(|segment| segment == Segment(1)), None);
    assert_eq!(container.expiry().next_deadline(), Some(NOW + S));
}

#[test]
fn used_entry_outlives_its_idle_deadline() {
    let container = container(1);
    put(&container, b"read", mortal(None, Some(10 * S)));
    put(&container, b"touched", mortal(None, Some(10 * S)));
    put(&container, b"idle", mortal(None, Some(10 * S)));
    assert_eq!(container.get(SEG, b"read", || NOW + 5 * S).unwrap().last_used, NOW + 5 * S);
    assert!(container.touch(SEG, b"touched", NOW + 6 * S));
    let taken = container.expiry().remove_expired(NOW + 10 * S, 100).taken;
    assert_eq!(taken.iter().map(|taken| &taken.key[..]).collect::<Vec<_>>(), [b"idle"]);
    assert_eq!(container.expiry().next_deadline(), Some(NOW + 15 * S));
    assert_eq!(container.expiry().remove_expired(NOW + 15 * S, 100).taken.len(), 1);
    assert_eq!(container.expiry().next_deadline(), Some(NOW + 16 * S));
}

#[test]
fn writing_a_key_over_and_over_keeps_one_deadline() {
    let container = container(1);
    let kept = allocation_counter::measure(|| {
        for second in 1..10_000 {
            put(&container, b"k", mortal(Some(second * S), None));
        }
    });
    assert!(kept.bytes_current < 2_000, "{kept:?}");
    put(&container, b"k", entry("for ever", 2));
    assert_eq!(container.expiry().next_deadline(), None);
}

/// Returns the bytes that the container requests from the allocator per entry, on average over sizes of a segment
/// within one doubling of its index.
fn measured_overhead(bound: Option<MemoryBound>, make: impl Fn(u32) -> Entry) -> f64 {
    let lens: Vec<u32> = (0..8).map(|step| 10_000 + step * 1_250).collect();
    let sum: f64 = lens
        .iter()
        .map(|&len| {
            let container = bounded(1, bound);
            let used = allocation_counter::measure(|| {
                (0..len).for_each(|key| drop(put(&container, &key.to_be_bytes(), make(key))));
            });
            let data = container.len() * item::allocated(4, 100) as u64;
            (used.bytes_current as u64 - data) as f64 / container.len() as f64
        })
        .sum();
    sum / lens.len() as f64
}

fn hundred_bytes() -> Entry {
    Entry::new(Bytes::from(vec![1; 100]), Version::new(1, 1), NOW)
}

#[test]
fn stated_overhead_equals_the_allocated_bytes() {
    let plain = measured_overhead(None, |_| hundred_bytes());
    let lifetime = Lifetime { lifespan: Some(S), max_idle: None };
    let mortal = measured_overhead(None, |key| Entry {
        created: NOW + Duration::from_millis(u64::from(key) * 7919 % 10_000),
        ..hundred_bytes().with_lifetime(lifetime)
    });
    // Full at once, so that there are as many fingerprints as entries for most sizes.
    let evicting = measured_overhead(Some(at_most(Limit::Entries(5_000))), |_| hundred_bytes());
    println!(
        "{plain:.1} bytes an entry, {:.1} more with a lifetime, {:.1} more under a bound",
        mortal - plain,
        evicting - plain
    );
    assert!((plain / ENTRY_OVERHEAD as f64 - 1.0).abs() < 0.05, "{plain}");
    assert!(((mortal - plain) / LIFETIME_OVERHEAD as f64 - 1.0).abs() < 0.1, "{}", mortal - plain);
    assert!(((evicting - plain) / BOUND_OVERHEAD as f64 - 1.0).abs() < 0.2, "{}", evicting - plain);
}

#[test]
fn stated_overhead_of_a_removal_equals_the_allocated_bytes() {
    let container = container(1);
    container.receive(SEG);
    let used = allocation_counter::measure(|| {
        for key in 0..10_000u32 {
            container.remove(SEG, &(key.wrapping_mul(2_654_435_761)).to_be_bytes(), Version::new(1, 1), NOW);
        }
    });
    let ratio = used.bytes_current as f64 / container.bytes() as f64;
    assert!((ratio - 1.0).abs() < 0.1, "{used:?} for {} bytes", container.bytes());
}

fn at_most(limit: Limit) -> MemoryBound {
    MemoryBound { limit, when_full: WhenFull::Remove }
}

fn refusing(limit: Limit) -> MemoryBound {
    MemoryBound { limit, when_full: WhenFull::Refuse }
}

#[test]
fn full_container_evicts_one_for_each_new_entry() {
    let container = bounded(8, Some(at_most(Limit::Entries(100))));
    for key in 0..1000u32 {
        let put = container.put(Segment(key as u16 % 8), &key.to_be_bytes(), entry("1", 1), NOW).unwrap();
        assert_eq!(put.evicted.len(), usize::from(key >= 100));
        for taken in put.evicted {
            assert_eq!(taken.entry, entry("1", 1));
            assert!(container.peek(taken.segment, &taken.key).is_none());
        }
        assert_eq!(container.len(), u64::from(key + 1).min(100));
    }
}

#[test]
fn bytes_never_exceed_the_limit() {
    let limit = 20_000;
    let container = bounded(4, Some(at_most(Limit::Bytes(limit))));
    for key in 0..2_000u32 {
        let value = Bytes::from(vec![0; key as usize * 37 % 2_000]);
        let new = Entry::new(value, Version::new(1, 1), NOW);
        container.put(Segment(key as u16 % 4), &(key % 300).to_be_bytes(), new, NOW).unwrap();
        assert!(container.bytes() <= limit);
    }
    assert!(container.bytes() > limit - 2_500, "{}", container.bytes());
}

#[test]
fn segment_without_entries_takes_its_room_from_others() {
    let container = bounded(3, Some(at_most(Limit::Entries(4))));
    for key in 0..4u8 {
        container.put(Segment(u16::from(key) % 2), &[key], entry("1", 1), NOW).unwrap();
    }
    let victim = |key| container.put(Segment(2), &[key], entry("1", 1), NOW).unwrap().evicted[0].segment;
    assert_eq!(victim(10), Segment(0));
    // From now on the segment has a victim of its own.
    assert_eq!(victim(11), Segment(2));
}

#[test]
fn entry_that_is_read_survives_a_scan() {
    let container = bounded(1, Some(at_most(Limit::Entries(200))));
    for key in 0..100u32 {
        put(&container, &key.to_be_bytes(), entry("1", 1));
        (0..2).for_each(|_| drop(container.get(SEG, &key.to_be_bytes(), || NOW)));
    }
    (1000..5000u32).for_each(|key| drop(put(&container, &key.to_be_bytes(), entry("1", 1))));
    assert!((0..100u32).all(|key| container.peek(SEG, &key.to_be_bytes()).is_some()));
}

#[test]
fn entry_larger_than_the_container_is_refused_and_nothing_evicted() {
    let container = bounded(1, Some(at_most(Limit::Bytes(1_000))));
    put(&container, b"k", entry("1", 1));
    let large = Entry::new(Bytes::from(vec![0; 1_000]), Version::new(1, 2), NOW);
    let limit = Limit::Bytes(1_000);
    let error = container.put(SEG, b"k", large.clone(), NOW).unwrap_err();
    assert_eq!(error, Full { limit, needed: 1_024 + ENTRY_OVERHEAD + BOUND_OVERHEAD });
    assert_eq!(container.peek(SEG, b"k"), Some(entry("1", 1)));
    assert_eq!(error.to_string(), "the container is full: 1000 bytes are allowed, and the write needs 1142");
}

#[test]
fn replaced_entry_is_not_evicted_by_its_own_growth() {
    let container = bounded(2, Some(at_most(Limit::Bytes(2_000))));
    for key in 0..10u8 {
        container.put(Segment(u16::from(key) % 2), &[key], entry("1", 1), NOW).unwrap();
    }
    let large = Entry::new(Bytes::from(vec![0; 1_500]), Version::new(1, 2), NOW);
    let put = container.put(SEG, &[0], large.clone(), NOW).unwrap();
    assert_eq!(put.previous, Some(entry("1", 1)));
    assert_eq!((put.evicted.len(), container.peek(SEG, &[0])), (7, Some(large)));
    assert!(container.bytes() <= 2_000);
}

#[test]
fn container_that_refuses_changes_nothing_when_full() {
    let container = bounded(1, Some(refusing(Limit::Entries(2))));
    put(&container, b"a", entry("1", 1));
    put(&container, b"b", entry("1", 1));
    let full = Full { limit: Limit::Entries(2), needed: 3 };
    assert_eq!(container.put(SEG, b"c", entry("1", 1), NOW), Err(full));
    assert_eq!(container.put_if_newer(SEG, b"c", entry("1", 1), NOW), Err(full));
    assert_eq!(container.put_if_newer(SEG, b"b", entry("1", 1), NOW), Ok(None));
    assert_eq!(put(&container, b"b", entry("2", 2)), Some(entry("1", 1)));
    container.remove(SEG, b"a", Version::new(1, 3), NOW);
    assert_eq!(put(&container, b"c", entry("1", 1)), None);
}

fn counted_entry(key: u32, count: u64) -> Entry {
    Entry::new(Bytes::from(format!("{key} {count}")), Version::new(1, count), NOW)
}

#[test]
fn readers_beside_the_writer_see_whole_entries_in_order() {
    const KEYS: u32 = 64;
    const WRITES: u64 = 60_000;
    let container = bounded(4, Some(at_most(Limit::Entries(100))));
    let segment = |key: u32| Segment((key % 4) as u16);
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for start in 0..2 {
            let (container, is_over) = (&container, &is_over);
            scope.spawn(move || {
                let mut newest = [Version::NONE; KEYS as usize];
                let mut seen = 0u64;
                for key in (start..KEYS).cycle() {
                    if is_over.load(Ordering::Acquire) && seen > 0 {
                        break;
                    }
                    let Some(entry) = container.get(segment(key), &key.to_be_bytes(), || NOW) else {
                        continue;
                    };
                    seen += 1;
                    assert_eq!(entry, counted_entry(key, entry.version.count()));
                    assert!(entry.version >= newest[key as usize], "{key} went back");
                    newest[key as usize] = entry.version;
                }
            });
        }
        for count in 1..=WRITES {
            let key = (count.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as u32 % KEYS;
            if count % 7 == 0 {
                container.remove(segment(key), &key.to_be_bytes(), Version::new(1, count), NOW);
            } else {
                container.put(segment(key), &key.to_be_bytes(), counted_entry(key, count), NOW).unwrap();
            }
        }
        // The first writes, so that no reader waits for ever.
        (0..KEYS).for_each(|key| {
            container.put(segment(key), &key.to_be_bytes(), counted_entry(key, WRITES + 1), NOW).unwrap();
        });
        is_over.store(true, Ordering::Release);
    });
    assert_eq!(container.len(), u64::from(KEYS));
}

#[test]
fn iterations_beside_a_writer_return_each_permanent_entry_once() {
    const STEADY: u32 = 2_000;
    let container = container(1);
    (0..STEADY).for_each(|key| drop(put(&container, &key.to_be_bytes(), counted_entry(key, 1))));
    let walks_left = AtomicU64::new(20);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while walks_left.load(Ordering::Acquire) > 0 {
                let (mut next, mut given) = (Some(Cursor::START), BTreeMap::<Bytes, u32>::new());
                while let Some(cursor) = next {
                    let limits = ChunkLimits { entries_max: 50, ..ALL };
                    let chunk = container.chunk(SEG, cursor, limits, NOW).unwrap();
                    chunk.entries.into_iter().for_each(|(key, _)| *given.entry(key).or_default() += 1);
                    next = chunk.next;
                }
                assert!(given.values().all(|&times| times == 1));
                assert!((0..STEADY).all(|key| given.contains_key(&key.to_be_bytes()[..])));
                walks_left.fetch_sub(1, Ordering::Release);
            }
        });
        let mut count = 2;
        while walks_left.load(Ordering::Acquire) > 0 {
            let passing = STEADY + (count % 5_000) as u32;
            put(&container, &passing.to_be_bytes(), counted_entry(passing, count));
            container.remove(SEG, &(passing / 2 + STEADY / 2).to_be_bytes(), Version::new(1, count), NOW);
            let steady = (count % u64::from(STEADY)) as u32;
            put(&container, &steady.to_be_bytes(), counted_entry(steady, count));
            count += 1;
        }
    });
}

#[test]
fn entry_that_expires_while_its_segment_is_received_hides_its_previous_value() {
    let container = container(1);
    container.drop_segment(SEG);
    container.receive(SEG);
    let lifetime = Lifetime { lifespan: Some(S), max_idle: None };
    put(&container, b"k", entry("new", 2).with_lifetime(lifetime));
    assert_eq!(container.expiry().remove_expired(NOW + S, usize::MAX).taken.len(), 1);
    assert!(!put_if_newer(&container, b"k", entry("old", 1)));
    assert!(put_if_newer(&container, b"k", entry("newest", 3)));
}
