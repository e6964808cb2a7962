//! A container with an index, compared with a scan after each operation.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use consort_group::Time;
use proptest::prelude::*;

use super::*;
use crate::container::{
    ChunkLimits, Container, ContainerSettings, Cursor, Entry, Lifetime, Limit, MemoryBound, SegmentState,
    WhenFull,
};
use crate::{Segment, Version};

const SEGMENT: Segment = Segment(0);
const BYTE: u16 = 1;
const LENGTH: u16 = 2;

/// Each byte of a value, and its length. A value that begins with 255 has unknown ones; 254 is a panic.
struct BytesAndLength;

impl IndexedFields for BytesAndLength {
    fn read(&self, _: &[u8], value: &[u8], values: &mut FieldValues) -> Option<()> {
        match value.first() {
            Some(255) => return None,
            Some(254) => panic!("a value that the function does not expect"),
            _ => {}
        }
        value.iter().for_each(|byte| values.add(BYTE, &[*byte]));
        values.add(LENGTH, &(value.len() as u32).to_be_bytes());
        Some(())
    }

    fn lookup(&self, function: &str, arguments: &[u8]) -> Option<FieldLookup> {
        (function == "has byte").then(|| FieldLookup::equal(BYTE, arguments))
    }
}

fn is_odd(value: &[u8]) -> bool {
    matches!(value.first(), Some(254 | 255))
}

type Expected = Box<dyn Fn(&[u8]) -> bool>;

/// Lookups, and which values they have to find.
fn lookups(from: u8, to: u8) -> Vec<(FieldLookup, Expected)> {
    let has = move |value: &[u8]| value.iter().any(|byte| (from..=to).contains(byte));
    let long = move |value: &[u8]| value.len() >= usize::from(from % 8);
    let lengths = || FieldLookup::between(LENGTH, &u32::from(from % 8).to_be_bytes(), &[255; 4]);
    vec![
        (FieldLookup::equal(BYTE, &[from]), Box::new(move |value| value.contains(&from))),
        (FieldLookup::between(BYTE, &[from], &[to]), Box::new(has)),
        (lengths(), Box::new(long)),
        (
            FieldLookup::all(vec![lengths(), FieldLookup::equal(BYTE, &[from])]),
            Box::new(move |value| long(value) && value.contains(&from)),
        ),
        (
            FieldLookup::any(vec![FieldLookup::equal(BYTE, &[from]), FieldLookup::equal(BYTE, &[to])]),
            Box::new(move |value| value.contains(&from) || value.contains(&to)),
        ),
    ]
}

#[derive(Clone, Debug)]
enum Op {
    Put { key: u8, value: Vec<u8>, lifespan: Option<u8>, is_passive: bool },
    Remove(u8),
    Activate { key: u8, value: Vec<u8> },
    Pass(u8),
    Expire,
    Receive,
    Own,
    Drop,
    Clear,
    Set(bool),
    Build,
}

fn op() -> impl Strategy<Value = Op> {
    let value = || {
        let byte = prop_oneof![9 => 0..6_u8, 1 => 250..=255_u8];
        prop::collection::vec(byte, 0..6)
    };
    let key = || 0..40_u8;
    prop_oneof![
        12 => (key(), value(), prop::option::of(1..20_u8), prop::bool::weighted(0.1))
            .prop_map(|(key, value, lifespan, is_passive)| Op::Put { key, value, lifespan, is_passive }),
        4 => key().prop_map(Op::Remove),
        2 => (key(), value()).prop_map(|(key, value)| Op::Activate { key, value }),
        2 => (1..5_u8).prop_map(Op::Pass),
        2 => Just(Op::Expire),
        1 => Just(Op::Receive),
        1 => Just(Op::Own),
        1 => Just(Op::Drop),
        1 => Just(Op::Clear),
        1 => prop::bool::weighted(0.8).prop_map(Op::Set),
        3 => Just(Op::Build),
    ]
}

struct Tested {
    container: Container,
    now: Time,
    written: u64,
}

impl Tested {
    fn new(bound: Option<MemoryBound>, is_backed: bool) -> Self {
        let settings = ContainerSettings { segment_count: 1, bound, is_backed, is_shared: false };
        let container = Container::new(&settings, 1);
        container.own(SEGMENT);
        container.indexes().set(Some(Arc::new(BytesAndLength)));
        Self { container, now: Time::ZERO, written: 0 }
    }

    fn apply(&mut self, op: Op) {
        let Self { container, now, written } = self;
        *written += 1;
        let is_here = container.state(SEGMENT) != SegmentState::Absent;
        match op {
            Op::Put { key, value, lifespan, is_passive } if is_here => {
                let lifespan = lifespan.map(|seconds| Duration::from_secs(seconds.into()));
                let entry = Entry::new(value.into(), Version::new(1, *written), *now)
                    .with_lifetime(Lifetime { lifespan, max_idle: None });
                let entry = if is_passive { entry.passivated() } else { entry };
                container.put(SEGMENT, &[key], entry, *now).unwrap();
            }
            Op::Remove(key) if is_here => {
                container.remove(SEGMENT, &[key], Version::new(1, *written), *now);
            }
            Op::Activate { key, value } if is_here => {
                let version = container.version_of(SEGMENT, &[key]);
                container.activate(SEGMENT, &[key], version, value.into()).unwrap();
            }
            Op::Pass(seconds) => *now = *now + Duration::from_secs(seconds.into()),
            Op::Expire => drop(container.expiry().remove_expired(*now, 10)),
            Op::Receive => container.receive(SEGMENT),
            Op::Own => container.own(SEGMENT),
            Op::Drop => container.drop_segment(SEGMENT),
            Op::Clear if is_here => container.clear_segment(SEGMENT),
            Op::Set(is_indexed) => {
                let fields = is_indexed.then(|| Arc::new(BytesAndLength) as Arc<dyn IndexedFields>);
                container.indexes().set(fields);
            }
            Op::Build => while container.indexes().build() {},
            Op::Put { .. } | Op::Remove(_) | Op::Activate { .. } | Op::Clear => {}
        }
    }

    fn check(&self, from: u8, to: u8) {
        let Self { container, now, .. } = self;
        let all = ChunkLimits { entries_max: usize::MAX, bytes_max: usize::MAX };
        let entries = container.chunk(SEGMENT, Cursor::START, all, *now).map(|chunk| chunk.entries);
        let entries = entries.unwrap_or_default();
        for (lookup, expected) in lookups(from.min(to), from.max(to)) {
            let wanted: BTreeSet<Bytes> = entries
                .iter()
                .filter(|(_, entry)| entry.is_passive() || is_odd(&entry.value) || expected(&entry.value))
                .map(|(key, _)| key.clone())
                .collect();
            let (found, is_indexed) = self.find(&lookup);
            // Of a conjunction only one condition is looked up.
            if is_indexed && !lookup.is_conjunction() {
                assert_eq!(found, wanted, "{lookup:?}");
            } else {
                assert!(found.is_superset(&wanted), "{lookup:?}");
            }
        }
        let statistics = container.statistics();
        assert!(statistics.index_entries() * INDEX_ENTRY_BYTES == statistics.index_bytes());
    }

    /// Also returns whether the index was used.
    fn find(&self, lookup: &FieldLookup) -> (BTreeSet<Bytes>, bool) {
        let indexes = self.container.indexes();
        let lookup = indexes.fields().map(|fields| IndexLookup::new(fields, lookup.clone()));
        let mut found = BTreeSet::new();
        let before = self.container.statistics().indexed_walks();
        let _ = indexes.visit(SEGMENT, lookup.as_ref(), self.now, |visited| {
            assert!(found.insert(Bytes::copy_from_slice(visited.key())), "no entry is found twice");
        });
        (found, self.container.statistics().indexed_walks() > before)
    }
}

fn quietly<R>(run: impl FnOnce() -> R) -> R {
    // The panics of the function are expected; those of the test are the test's result.
    std::panic::set_hook(Box::new(|info| {
        if !info.to_string().contains("does not expect") {
            eprintln!("{info}");
        }
    }));
    run()
}

proptest! {
    #[test]
    fn index_finds_the_same_entries_as_a_scan_whatever_happens(
        bound in 0..3_usize,
        ops in prop::collection::vec((op(), 0..6_u8, 0..6_u8), 0..80),
    ) {
        let limited = (bound > 0).then_some(MemoryBound { limit: Limit::Entries(12), when_full: WhenFull::Remove });
        let mut tested = Tested::new(limited, bound == 2);
        quietly(|| {
            for (op, from, to) in ops {
                tested.apply(op);
                tested.check(from, to);
            }
        });
    }
}

fn put(tested: &mut Tested, key: u8, value: &[u8]) {
    let value = value.to_vec();
    tested.apply(Op::Put { key, value, lifespan: None, is_passive: false });
}

#[test]
fn index_of_fields_that_come_after_the_entries_is_built_in_steps_and_used_once_it_is_complete() {
    let mut tested = Tested::new(None, false);
    tested.container.indexes().set(None);
    let settings = ContainerSettings { segment_count: 1, bound: None, is_backed: false, is_shared: false };
    tested.container = Container::new(&settings, 1);
    tested.container.own(SEGMENT);
    for n in 0..1_000_u32 {
        let entry = Entry::new(vec![(n % 250) as u8].into(), Version::new(1, n.into()), Time::ZERO);
        tested.container.put(SEGMENT, &n.to_be_bytes(), entry, Time::ZERO).unwrap();
    }
    assert_eq!(tested.container.statistics().index_entries(), 0);
    tested.container.indexes().set(Some(Arc::new(BytesAndLength)));
    let lookup = FieldLookup::equal(BYTE, &[7]);
    assert_eq!(tested.find(&lookup).0.len(), 1_000, "all are visited before the index is complete");
    let mut steps = 0;
    while tested.container.indexes().build() {
        steps += 1;
    }
    assert!(steps > 3, "{steps} steps");
    assert_eq!(tested.find(&lookup).0.len(), 4);
    assert_eq!(tested.container.statistics().index_entries(), 2_000);
}

#[test]
fn parts_of_an_iteration_by_index_and_by_scan_continue_each_other() {
    let mut tested = Tested::new(None, false);
    (0..100).for_each(|key| put(&mut tested, key, &[key % 2]));
    let container = &tested.container;
    let lookup = container.indexes().lookup("has byte", &[1]).unwrap();
    let (mut cursor, mut found) = (Cursor::START, BTreeSet::new());
    for nth in 0.. {
        let lookup = (nth % 2 == 0).then_some(&lookup);
        let mut walk = container.begin_walk(SEGMENT, &mut cursor, lookup).unwrap();
        let mut next = Some(cursor);
        for _ in 0..7 {
            let Some(at) = next else { break };
            next = container
                .walk_on(SEGMENT, at, &mut walk, Time::ZERO, |visited| {
                    if visited.value() == [1] {
                        assert!(found.insert(visited.key()[0]), "twice");
                    }
                })
                .unwrap();
        }
        match next {
            Some(next) => cursor = next,
            None => break,
        }
    }
    assert!(found.iter().copied().eq((1..100).step_by(2)));
}

#[test]
fn a_lookup_with_too_many_candidates_scans() {
    let mut tested = Tested::new(None, false);
    for n in 0..=CANDIDATES_MAX as u32 {
        let entry = Entry::new(vec![1].into(), Version::new(1, n.into()), Time::ZERO);
        tested.container.put(SEGMENT, &n.to_be_bytes(), entry, Time::ZERO).unwrap();
    }
    let (found, is_indexed) = tested.find(&FieldLookup::equal(BYTE, &[1]));
    assert_eq!((found.len(), is_indexed), (CANDIDATES_MAX + 1, false));
    // The most selective search of a conjunction is used.
    let both = FieldLookup::all(vec![FieldLookup::equal(BYTE, &[1]), FieldLookup::equal(BYTE, &[9])]);
    put(&mut tested, 0, &[1, 9]);
    let (found, is_indexed) = tested.find(&both);
    assert_eq!((found.len(), is_indexed), (1, true));
}

#[test]
fn a_lookup_with_too_many_parts_scans() {
    let mut tested = Tested::new(None, false);
    put(&mut tested, 1, &[1]);
    let any = |count: usize| FieldLookup::any(vec![FieldLookup::equal(BYTE, &[1]); count]);
    assert!(tested.find(&any(3_000)).1);
    let (found, is_indexed) = tested.find(&any(10_000));
    assert_eq!((found.len(), is_indexed), (1, false));
}

#[test]
fn bytes_of_the_index_are_counted_and_freed_with_the_entries() {
    let mut tested = Tested::new(None, false);
    put(&mut tested, 1, &[1, 2, 3]);
    let with_index = tested.container.bytes();
    assert_eq!(tested.container.statistics().index_bytes(), 4 * INDEX_ENTRY_BYTES);
    tested.container.indexes().set(None);
    assert_eq!(tested.container.bytes(), with_index - 4 * INDEX_ENTRY_BYTES);
    tested.container.drop_segment(SEGMENT);
    assert_eq!(tested.container.bytes(), 0);
}

#[test]
fn an_index_with_unique_values_takes_the_announced_bytes() {
    let used = allocation_counter::measure(|| {
        let mut index = FieldIndex::new(Arc::new(BytesAndLength), true);
        for slot in 0..10_000_u32 {
            let value = Bytes::from(vec![(slot % 200) as u8]);
            index.change(slot, None, Some(&Item::new(&slot.to_be_bytes(), value)));
        }
        std::mem::forget(index);
    });
    let each = used.bytes_current as u64 / 20_000;
    assert!((INDEX_ENTRY_BYTES / 2..=INDEX_ENTRY_BYTES * 3 / 2).contains(&each), "{each} bytes");
}
