//! A model of a store, and random operations.

use std::collections::BTreeMap;

use bytes::Bytes;
use consort_store::{Change, Entry, Part, Store, StoreError, Times};

/// Number of segments: few, so that operations collide.
pub(crate) const SEGMENTS: u16 = 4;

/// Keys per segment.
const KEYS: u64 = 12;

/// splitmix64: a seed reproduces its run.
#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// The contents of a store.
pub(crate) type Model = BTreeMap<(u16, Bytes), Entry>;

#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Store(Vec<Change>),
    RemoveSegment(u16),
    Clear,
    Purge(u64),
    Maintain(u64),
    Flush,
}

impl Operation {
    /// A random operation. Values are unique by `stamp`.
    pub(crate) fn random(random: &mut Random, stamp: &mut u64) -> Self {
        match random.below(100) {
            0..70 => {
                let count = if random.below(4) == 0 { 1 + random.below(20) } else { 1 };
                Self::Store((0..count).map(|_| change(random, stamp)).collect())
            }
            70..73 => Self::RemoveSegment(random.below(SEGMENTS.into()) as u16),
            73 => Self::Clear,
            74..80 => Self::Purge(random.below(20) * 1000),
            80..95 => Self::Maintain(1 << random.below(20)),
            _ => Self::Flush,
        }
    }

    pub(crate) fn run(&self, store: &dyn Store) -> Result<(), StoreError> {
        match self {
            Self::Store(changes) => store.store(changes),
            Self::RemoveSegment(segment) => store.remove_segment(*segment),
            Self::Clear => store.clear(),
            Self::Purge(now) => store.purge(*now, usize::MAX, &mut |_| {}).map(drop),
            Self::Maintain(budget) => store.maintain(*budget).map(drop),
            Self::Flush => store.flush(),
        }
    }

    /// The states through which the operation passes; the last one is its result.
    pub(crate) fn steps(&self, model: &Model) -> Vec<Model> {
        let mut steps = Vec::new();
        let mut now = model.clone();
        match self {
            Self::Store(changes) => {
                for (at, change) in changes.iter().enumerate() {
                    let key = (change.segment(), change.key().clone());
                    // Only the last change of a key is applied.
                    let is_last = !changes[at + 1..]
                        .iter()
                        .any(|later| (later.segment(), later.key()) == (change.segment(), change.key()));
                    if !is_last {
                        continue;
                    }
                    match change {
                        Change::Put(entry) => drop(now.insert(key, entry.clone())),
                        Change::Remove { .. } => drop(now.remove(&key)),
                    }
                    steps.push(now.clone());
                }
            }
            Self::RemoveSegment(segment) => {
                now.retain(|key, _| key.0 != *segment);
                steps.push(now);
            }
            Self::Clear => steps.push(Model::new()),
            Self::Purge(at) => {
                // Ordered by expiry, which is not key order within a second: see `Purge` in the checks.
                now.retain(|_, entry| entry.times.expires_at().is_none_or(|expires| expires > *at));
                steps.push(now);
            }
            Self::Maintain(_) | Self::Flush => steps.push(now),
        }
        steps
    }
}

fn change(random: &mut Random, stamp: &mut u64) -> Change {
    let segment = random.below(SEGMENTS.into()) as u16;
    let key = Bytes::from(format!("key-{}", random.below(KEYS)));
    if random.below(3) == 0 {
        return Change::Remove { segment, key };
    }
    *stamp += 1;
    let mut value = format!("{stamp}-").into_bytes();
    // Some values are larger than a sector.
    let len = if random.below(10) == 0 { random.below(3000) } else { random.below(60) };
    value.resize(value.len() + len as usize, *stamp as u8);
    let lifespan = (random.below(4) == 0).then(|| random.below(20) * 1000);
    let times = Times { created: 0, used: 0, lifespan, max_idle: None };
    Change::Put(Entry { segment, key, value: value.into(), version: *stamp, times })
}

/// Returns the contents of a store; panics if counts, entries, keys and loads disagree.
pub(crate) fn contents(store: &dyn Store) -> Model {
    let mut model = Model::new();
    for segment in 0..store.segments() {
        let entries: Result<Vec<Entry>, StoreError> = store.entries(segment, Part::Whole).unwrap().collect();
        let entries = entries.unwrap();
        assert_eq!(store.count(segment).unwrap(), entries.len() as u64);
        let keys = store.entries(segment, Part::Keys).unwrap().map(|entry| entry.unwrap().key);
        assert!(keys.eq(entries.iter().map(|entry| entry.key.clone())));
        for entry in entries {
            assert_eq!(entry.segment, segment);
            assert_eq!(store.load(segment, &entry.key).unwrap().as_ref(), Some(&entry));
            let before = model.insert((segment, entry.key.clone()), entry);
            assert!(before.is_none(), "delivered twice");
        }
    }
    model
}
