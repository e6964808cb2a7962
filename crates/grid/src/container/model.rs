//! Operations on two containers with different seeds, compared with a simple model: all results must be the same.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

const SEGMENTS: u16 = 3;

#[derive(Clone, Debug)]
enum Op {
    /// Keys from..from + count.
    Put {
        segment: u16,
        from: u8,
        count: u8,
        value_len: u16,
        lifetime: Lifetime,
        only_if_newer: bool,
        age: u8,
    },
    Remove {
        segment: u16,
        from: u8,
        count: u8,
        only_if_newer: bool,
        age: u8,
    },
    Get {
        segment: u16,
        key: u8,
    },
    /// Prefetches keys from..from + count, in one of the containers.
    LookAhead {
        segment: u16,
        from: u8,
        count: u8,
    },
    Touch {
        segment: u16,
        key: u8,
    },
    Pass {
        seconds: u8,
    },
    Expire {
        looks_max: usize,
    },
    Receive(u16),
    Own(u16),
    Drop(u16),
    Begin(u16),
    Step {
        which: usize,
        limits: ChunkLimits,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let segment = 0..SEGMENTS;
    let seconds = || prop_oneof![3 => Just(None), 1 => (1..20u64).prop_map(|s| Some(Duration::from_secs(s)))];
    let lifetime =
        (seconds(), seconds()).prop_map(|(lifespan, max_idle)| Lifetime { lifespan, max_idle }).boxed();
    let run = || (0..=255u8, prop_oneof![Just(1u8), 1..100u8]);
    let limits = (1..40usize, prop_oneof![Just(usize::MAX), 0..2_000usize])
        .prop_map(|(entries_max, bytes_max)| ChunkLimits { entries_max, bytes_max });
    prop_oneof![
        8 => (segment.clone(), run(), 0..200u16, lifetime, any::<bool>(), 0..20u8).prop_map(
            |(segment, (from, count), value_len, lifetime, only_if_newer, age)| Op::Put {
                segment, from, count, value_len, lifetime, only_if_newer, age
            }
        ),
        4 => (segment.clone(), run(), any::<bool>(), 0..20u8).prop_map(
            |(segment, (from, count), only_if_newer, age)| Op::Remove { segment, from, count, only_if_newer, age }
        ),
        4 => (segment.clone(), 0..=255u8).prop_map(|(segment, key)| Op::Get { segment, key }),
        2 => (segment.clone(), run()).prop_map(|(segment, (from, count))| Op::LookAhead { segment, from, count }),
        1 => (segment.clone(), 0..=255u8).prop_map(|(segment, key)| Op::Touch { segment, key }),
        2 => (0..5u8).prop_map(|seconds| Op::Pass { seconds }),
        2 => (0..60usize).prop_map(|looks_max| Op::Expire { looks_max }),
        1 => segment.clone().prop_map(Op::Receive),
        1 => segment.clone().prop_map(Op::Own),
        1 => segment.clone().prop_map(Op::Drop),
        2 => segment.prop_map(Op::Begin),
        6 => (0..100usize, limits).prop_map(|(which, limits)| Op::Step { which, limits }),
    ]
}

fn bound() -> impl Strategy<Value = Option<MemoryBound>> {
    let limit = prop_oneof![(1..150u64).prop_map(Limit::Entries), (200..30_000u64).prop_map(Limit::Bytes)];
    let when_full = prop_oneof![Just(WhenFull::Remove), Just(WhenFull::Refuse)];
    proptest::option::of((limit, when_full).prop_map(|(limit, when_full)| MemoryBound { limit, when_full }))
}

type Kept = (Entry, u64);

#[derive(Default)]
struct ModelSegment {
    is_present: bool,
    is_receiving: bool,
    entries: BTreeMap<u8, Kept>,
    removals: BTreeMap<u8, Version>,
    times_dropped: u64,
}

impl ModelSegment {
    fn version_of(&self, key: u8) -> Version {
        let written = self.entries.get(&key).map_or(Version::NONE, |(entry, _)| entry.version);
        written.max(self.removals.get(&key).copied().unwrap_or_default())
    }
}

struct Walker {
    segment: u16,
    cursor: Cursor,
    times_dropped: u64,
    /// The keys present at the beginning.
    at_start: BTreeMap<u8, u64>,
    /// The keys of them that were present throughout.
    throughout: BTreeMap<u8, u64>,
    given: BTreeMap<u8, u64>,
}

struct World {
    containers: [Container; 2],
    bound: Option<MemoryBound>,
    segments: Vec<ModelSegment>,
    walkers: Vec<Walker>,
    now: Time,
    count: u64,
    inserted: u64,
}

impl World {
    fn new(bound: Option<MemoryBound>) -> Self {
        let settings =
            ContainerSettings { segment_count: SEGMENTS, bound, is_backed: false, is_shared: false };
        let containers = [1, 2].map(|seed| Container::new(&settings, seed));
        let segments = (0..SEGMENTS).map(|_| ModelSegment::default()).collect();
        let mut world = Self {
            containers,
            bound,
            segments,
            walkers: Vec::new(),
            now: Time::ZERO,
            count: 100,
            inserted: 0,
        };
        world.apply(&Op::Own(0));
        world.apply(&Op::Receive(1));
        world
    }

    /// The results must be the same.
    fn both<R: PartialEq + std::fmt::Debug>(&self, call: impl Fn(&Container) -> R) -> R {
        let [first, second] = self.containers.each_ref().map(call);
        assert_eq!(first, second, "the seed shows");
        first
    }

    fn segment(&mut self, segment: u16) -> &mut ModelSegment {
        &mut self.segments[usize::from(segment)]
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Put { segment, from, count, value_len, lifetime, only_if_newer, age } => {
                for key in (from..=255).take(count.into()) {
                    self.put(segment, key, value_len, lifetime, only_if_newer, age);
                }
            }
            Op::Remove { segment, from, count, only_if_newer, age } => {
                for key in (from..=255).take(count.into()) {
                    self.remove(segment, key, only_if_newer, age);
                }
            }
            Op::Get { segment, key } => self.get(segment, key),
            Op::LookAhead { segment, from, count } => {
                let keys: Vec<[u8; 1]> = (from..=255).take(count.into()).map(|key| [key]).collect();
                self.containers[0].prefetch(keys.iter().map(|key| (Segment(segment), &key[..])));
            }
            Op::Touch { segment, key } => self.touch(segment, key),
            Op::Pass { seconds } => self.pass(Duration::from_secs(seconds.into())),
            Op::Expire { looks_max } => self.expire(looks_max),
            Op::Receive(segment) => {
                self.both(|container| container.receive(Segment(segment)));
                (self.segment(segment).is_present, self.segment(segment).is_receiving) = (true, true);
            }
            Op::Own(segment) => {
                self.both(|container| container.own(Segment(segment)));
                let model = self.segment(segment);
                (model.is_present, model.is_receiving) = (true, false);
                model.removals.clear();
            }
            Op::Drop(segment) => {
                self.both(|container| container.drop_segment(Segment(segment)));
                let model = self.segment(segment);
                let times_dropped = model.times_dropped + 1;
                *model = ModelSegment { times_dropped, ..ModelSegment::default() };
            }
            Op::Begin(segment) => self.begin(segment),
            Op::Step { which, limits } => {
                if !self.walkers.is_empty() {
                    let which = which % self.walkers.len();
                    let walker = self.walkers.remove(which);
                    self.step(walker, limits);
                }
            }
        }
        self.check_sums();
    }

    fn version(&mut self, age: u8) -> Version {
        self.count += 1;
        Version::new(1, self.count - u64::from(age))
    }

    fn cost(&self, key_len: usize, entry: &Entry) -> u64 {
        let evicts = self.bound.is_some_and(|bound| bound.when_full == WhenFull::Remove);
        item::allocated(key_len, entry.value.len()) as u64
            + ENTRY_OVERHEAD
            + if entry.lifetime.is_forever() { 0 } else { LIFETIME_OVERHEAD }
            + if evicts { BOUND_OVERHEAD } else { 0 }
    }

    fn put(&mut self, at: u16, key: u8, len: u16, lifetime: Lifetime, only_if_newer: bool, age: u8) {
        let version = self.version(age);
        let now = self.now;
        if !self.segments[usize::from(at)].is_present {
            return;
        }
        let entry =
            Entry::new(vec![key; len.into()].into(), version, Time(now.0.saturating_sub(u64::from(age))))
                .with_lifetime(lifetime);
        let known = self.segment(at).version_of(key);
        let (len_before, bytes_before) = (self.containers[0].len(), self.containers[0].bytes());
        let result = self.both(|container| {
            if only_if_newer {
                container.put_if_newer(Segment(at), &[key], entry.clone(), now)
            } else {
                container.put(Segment(at), &[key], entry.clone(), now).map(Some)
            }
        });
        match result {
            Ok(None) => assert!(only_if_newer && known >= version),
            Err(full) => {
                assert!(self.bound.is_some_and(|bound| full.limit == bound.limit));
                assert!(full.needed > full.limit.amount());
                assert_eq!(
                    (len_before, bytes_before),
                    (self.containers[0].len(), self.containers[0].bytes())
                );
            }
            Ok(Some(put)) => {
                assert!(!only_if_newer || known < version);
                for taken in put.evicted {
                    assert!(taken.segment != Segment(at) || taken.key[..] != [key], "evicted for itself");
                    self.take(&taken);
                }
                let number = self.inserted;
                self.inserted += 1;
                let model = self.segment(at);
                model.removals.remove(&key);
                let previous = model.entries.get(&key).cloned();
                let number = previous.as_ref().map_or(number, |&(_, number)| number);
                model.entries.insert(key, (entry.clone(), number));
                let alive = previous.map(|(entry, _)| entry).filter(|entry| !entry.is_expired(now));
                assert_eq!(put.previous, alive);
                if entry.is_expired(now) {
                    self.note_expired();
                }
                if let Some(MemoryBound { limit, when_full: WhenFull::Remove }) = self.bound {
                    let container = &self.containers[0];
                    let used =
                        if matches!(limit, Limit::Bytes(_)) { container.bytes() } else { container.len() };
                    assert!(used <= limit.amount(), "{used} of {limit}");
                }
            }
        }
    }

    fn remove(&mut self, at: u16, key: u8, only_if_newer: bool, age: u8) {
        let version = self.version(age);
        let now = self.now;
        if !self.segments[usize::from(at)].is_present {
            return;
        }
        let removed = self.both(|container| {
            if only_if_newer {
                container.remove_if_newer(Segment(at), &[key], version, now)
            } else {
                Some(container.remove(Segment(at), &[key], version, now))
            }
        });
        let model = self.segment(at);
        let Some(removed) = removed else {
            assert!(only_if_newer && model.version_of(key) >= version);
            return;
        };
        assert!(!only_if_newer || model.version_of(key) < version);
        let previous = model.entries.remove(&key).map(|(entry, _)| entry);
        assert_eq!(removed.previous, previous.filter(|entry| !entry.is_expired(now)));
        if model.is_receiving {
            let known = model.removals.entry(key).or_default();
            *known = version.max(*known);
        }
    }

    fn get(&mut self, at: u16, key: u8) {
        let now = self.now;
        let got = self.both(|container| container.get(Segment(at), &[key], || now));
        let entry = self.segment(at).entries.get_mut(&key).map(|(entry, _)| entry);
        let alive = entry.filter(|entry| !entry.is_expired(now)).map(|entry| {
            if entry.lifetime.max_idle.is_some() {
                entry.last_used = entry.last_used.max(now);
            }
            entry.clone()
        });
        assert_eq!(got, alive);
    }

    fn touch(&mut self, at: u16, key: u8) {
        let now = self.now;
        let is_there = self.both(|container| container.touch(Segment(at), &[key], now));
        let entry = self.segment(at).entries.get_mut(&key).map(|(entry, _)| entry);
        assert_eq!(is_there, entry.is_some());
        if let Some(entry) = entry
            && entry.lifetime.max_idle.is_some()
        {
            entry.last_used = entry.last_used.max(now);
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        self.note_expired();
    }

    /// Iterations may skip expired entries.
    fn note_expired(&mut self) {
        for walker in &mut self.walkers {
            let entries = &self.segments[usize::from(walker.segment)].entries;
            walker
                .throughout
                .retain(|key, _| entries.get(key).is_none_or(|(entry, _)| !entry.is_expired(self.now)));
        }
    }

    fn expire(&mut self, looks_max: usize) {
        let now = self.now;
        let taken = self.both(|container| container.expiry().remove_expired(now, looks_max).taken);
        assert!(taken.len() <= looks_max);
        for taken in taken {
            assert!(taken.entry.is_expired(now));
            self.take(&taken);
            let model = self.segment(taken.segment.0);
            if model.is_receiving {
                let known = model.removals.entry(taken.key[0]).or_default();
                *known = taken.entry.version.max(*known);
            }
        }
        if self.containers[0].expiry().next_deadline().is_none_or(|next| next > now) {
            let mut entries = self.segments.iter().flat_map(|model| model.entries.values());
            assert!(entries.all(|(entry, _)| !entry.is_expired(now)), "an expired entry has no deadline");
        }
    }

    fn take(&mut self, taken: &Taken) {
        let kept = self.segment(taken.segment.0).entries.remove(&taken.key[0]);
        assert_eq!(kept.map(|(entry, _)| entry).as_ref(), Some(&taken.entry));
    }

    fn begin(&mut self, segment: u16) {
        let now = self.now;
        let model = &self.segments[usize::from(segment)];
        let at_start: BTreeMap<u8, u64> =
            model.entries.iter().map(|(&key, &(_, number))| (key, number)).collect();
        let mut throughout = at_start.clone();
        throughout.retain(|key, _| !model.entries[key].0.is_expired(now));
        let walker = Walker {
            segment,
            cursor: Cursor::START,
            times_dropped: model.times_dropped,
            at_start,
            throughout,
            given: BTreeMap::new(),
        };
        self.step(walker, ChunkLimits { entries_max: 1, bytes_max: 0 });
    }

    fn step(&mut self, mut walker: Walker, limits: ChunkLimits) {
        let now = self.now;
        let chunk =
            self.both(|container| container.chunk(Segment(walker.segment), walker.cursor, limits, now));
        let model = &self.segments[usize::from(walker.segment)];
        let Ok(chunk) = chunk else {
            assert!(!model.is_present || model.times_dropped != walker.times_dropped);
            return;
        };
        assert_eq!(model.times_dropped, walker.times_dropped);
        assert!(chunk.entries.len() <= limits.entries_max);
        let bytes: usize = chunk.entries.iter().map(|(key, entry)| key.len() + entry.value.len()).sum();
        assert!(bytes <= limits.bytes_max || chunk.entries.len() == 1);
        for (key, entry) in chunk.entries {
            let (kept, number) = &model.entries[&key[0]];
            assert_eq!(&entry, kept);
            assert!(!entry.is_expired(now));
            assert_eq!(walker.at_start.get(&key[0]), Some(number), "given, but inserted later");
            assert_eq!(walker.given.insert(key[0], *number), None, "given twice");
        }
        match chunk.next {
            Some(cursor) => self.walkers.push(Walker { cursor, ..walker }),
            None => {
                for (key, number) in walker.throughout {
                    let is_there = model.entries.get(&key).is_some_and(|&(_, kept)| kept == number);
                    assert!(!is_there || walker.given.contains_key(&key), "{key} was there and not given");
                }
            }
        }
    }

    fn check_sums(&self) {
        let len: usize = self.segments.iter().map(|model| model.entries.len()).sum();
        let entries = self.segments.iter().flat_map(|model| model.entries.values());
        let removals: u64 = self.segments.iter().map(|model| model.removals.len() as u64).sum();
        let bytes: u64 =
            entries.map(|(entry, _)| self.cost(1, entry)).sum::<u64>() + removals * (1 + REMOVAL_OVERHEAD);
        assert_eq!(self.both(|container| (container.len(), container.bytes())), (len as u64, bytes));
        let next = self.both(|container| container.expiry().next_deadline());
        let ends =
            self.segments.iter().flat_map(|model| model.entries.values()).filter_map(|(e, _)| e.expiry());
        let first = ends.min();
        assert_eq!(next.is_some(), first.is_some());
        assert!(next <= first, "an entry expires at {first:?}, before {next:?}");
    }

    fn check_all(&mut self) {
        for (segment, model) in (0..).map(Segment).zip(&self.segments) {
            assert_eq!(self.both(|container| container.segment_len(segment)), model.entries.len() as u64);
            assert_eq!(self.both(|container| container.removal_count(segment)), model.removals.len() as u64);
            for key in 0..=255u8 {
                let peeked = self.both(|container| container.peek(segment, &[key]));
                assert_eq!(peeked.as_ref(), model.entries.get(&key).map(|(entry, _)| entry));
                let version = self.both(|container| container.version_of(segment, &[key]));
                assert_eq!(version, model.version_of(key));
            }
        }
        let everything = ChunkLimits { entries_max: usize::MAX, bytes_max: usize::MAX };
        for walker in std::mem::take(&mut self.walkers) {
            self.step(walker, everything);
        }
        assert!(self.walkers.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn container_behaves_as_the_model(bound in bound(), ops in proptest::collection::vec(op(), 0..120)) {
        let mut world = World::new(bound);
        ops.iter().for_each(|op| world.apply(op));
        world.check_all();
    }
}
