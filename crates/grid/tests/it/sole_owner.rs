//! Writes of a sole owner, compared with the same writes on the usual path.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use consort_grid::{
    Action, CacheConfig, CacheMode, Change, Condition, Lifetime, ListenOptions, OperationError, Outcome,
    ReadFrom, Segment, Stored, Version, Write, Written,
};
use proptest::prelude::*;

use crate::cluster::{Cluster, entries};
use crate::listening::Reader;

const TIMEOUT: Duration = Duration::from_secs(10);
const SEGMENTS: u16 = 4;

fn config(mode: CacheMode) -> CacheConfig {
    CacheConfig { mode, segments: SEGMENTS, ..CacheConfig::new("alone") }
}

fn put(value: impl Into<Bytes>) -> Write {
    let change = Change::Put { value: value.into(), lifetime: Lifetime::FOREVER };
    Write { condition: Condition::Always, change, wants_previous: false }
}

/// One step of a client: a write of a key, and a pause afterwards.
#[derive(Clone, Debug)]
struct Step {
    key: Bytes,
    write: Write,
    /// Whether the write's condition is the last version that the client has seen.
    wants_version: bool,
    pause: Duration,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let value = prop_oneof![Just(8_usize), Just(5_000)]
        .prop_flat_map(|len| any::<u8>().prop_map(move |byte| Bytes::from(vec![byte % 3; len])));
    let condition = prop_oneof![
        4 => Just(Condition::Always),
        1 => Just(Condition::Absent),
        1 => Just(Condition::Present),
        1 => value.clone().prop_map(Condition::Value),
    ];
    let lifespan = proptest::option::weighted(0.3, (1_u64..300).prop_map(Duration::from_millis));
    let change = prop_oneof![
        3 => (value, lifespan).prop_map(|(value, lifespan)| Change::Put {
            value,
            lifetime: Lifetime { lifespan, max_idle: None },
        }),
        1 => Just(Change::Remove),
    ];
    let step = (0_u8..4, condition, change, any::<(bool, bool)>(), 0_u64..100).prop_map(
        |(key, condition, change, (wants_previous, wants_version), pause)| Step {
            key: Bytes::from(vec![b'k', key]),
            write: Write { condition, change, wants_previous },
            wants_version,
            pause: Duration::from_millis(pause),
        },
    );
    proptest::collection::vec(step, 1..60)
}

/// The only member of a cluster, with the client that writes there.
struct Writer {
    cluster: Cluster,
    /// The last versions seen of the keys.
    seen: BTreeMap<Bytes, Version>,
}

impl Writer {
    fn new() -> Self {
        let config = config(CacheMode::Distributed { owners: 2 });
        Self { cluster: Cluster::settled(1, config, 1), seen: BTreeMap::new() }
    }

    /// Writes, on the fast path if possible, and returns whether it was.
    fn write(&mut self, step: &Step) -> (Result<Written, OperationError>, bool) {
        let (Step { key, write, wants_version, pause }, cluster) = (step.clone(), &mut self.cluster);
        let version = self.seen.get(&key).copied().unwrap_or(Version::NONE);
        let condition = if wants_version { Condition::Version(version) } else { write.condition };
        let (write, cache) = (Write { condition, ..write }, cluster.cache());
        let here = cluster.with(0, |node, now| node.write_here(now, cache, &key, write)).expect("alive");
        let was_here = here.is_ok();
        let result = here.unwrap_or_else(|write| {
            let at = cluster.submit(0, key.clone(), Action::Write(write), TIMEOUT);
            match cluster.history[at].result.clone().expect("no other member is needed")? {
                Outcome::Written(written) => Ok(written),
                read @ Outcome::Read(_) => panic!("{read:?}"),
            }
        });
        if let Ok(written) = &result {
            self.seen.insert(key, written.version);
        }
        cluster.run(pause);
        (result.map(unversioned), was_here)
    }

    fn contents(&self) -> Vec<(Bytes, Option<Bytes>)> {
        let container = &self.cluster.members[0].as_ref().expect("alive").container;
        let all = (0..SEGMENTS).flat_map(|n| entries(container, Segment(n), self.cluster.now));
        all.map(|(key, (value, _))| (key, value)).collect()
    }
}

/// Returns the result without versions, because listeners cause new topologies, and expired entries are removed by
/// writes for them.
fn unversioned(written: Written) -> Written {
    let previous = written.previous.map(|stored| Stored { version: Version::NONE, ..stored });
    Written { version: Version::NONE, previous, ..written }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    /// A listener needs events, so that writes take the usual path: their effects are the same.
    #[test]
    fn writes_of_a_sole_owner_have_the_effects_of_other_writes(steps in steps()) {
        let (mut short, mut long) = (Writer::new(), Writer::new());
        let mut reader = Reader::begin(&mut long.cluster, 0, ListenOptions::default());
        for writer in [&mut short, &mut long] {
            writer.cluster.run(Duration::from_secs(1));
        }
        for step in steps {
            let (done, was_here) = short.write(&step);
            let (expected, was_told) = long.write(&step);
            reader.poll(&mut long.cluster);
            prop_assert!(!was_told, "its listener has to be told");
            let is_change = expected.as_ref().is_ok_and(|written| {
                written.is_done && (written.was_present || step.write.change != Change::Remove)
            });
            prop_assert_eq!(was_here, is_change);
            prop_assert_eq!(done, expected);
        }
        prop_assert_eq!(short.contents(), long.contents());
    }
}

#[test]
fn shared_segments_are_not_written_as_sole_owner() {
    let mut cluster = Cluster::settled(2, config(CacheMode::Distributed { owners: 2 }), 2);
    let cache = cluster.cache();
    for n in 0..2 {
        let refused = cluster.with(n, |node, now| node.write_here(now, cache, b"key", put("value"))).unwrap();
        assert_eq!(refused, Err(put("value")));
    }
    assert!(cluster.with(0, |node, now| node.write_here(now, cache, b"key", put("value"))).unwrap().is_err());
    cluster.check_agreement();
}

#[test]
fn the_only_owner_writes_at_once_and_others_find_it() {
    let mut cluster = Cluster::settled(3, config(CacheMode::Distributed { owners: 1 }), 2);
    let cache = cluster.cache();
    for key in (0..20).map(|n| Bytes::from(format!("k{n}"))) {
        let mut write =
            |n| cluster.with(n, |node, now| node.write_here(now, cache, &key, put("value"))).unwrap();
        let done = [write(0).is_ok(), write(1).is_ok()];
        assert!(done[0] != done[1], "{key:?}: {done:?}");
    }
    let at = cluster.submit(0, Bytes::from_static(b"k1"), Action::Read(ReadFrom::Primary), TIMEOUT);
    let at_other = cluster.submit(1, Bytes::from_static(b"k1"), Action::Read(ReadFrom::Primary), TIMEOUT);
    cluster.run(Duration::from_secs(1));
    for at in [at, at_other] {
        let result = &cluster.history[at].result;
        assert!(
            matches!(result, Some(Ok(Outcome::Read(Some(stored)))) if stored.value == "value"),
            "{result:?}"
        );
    }
    cluster.check_agreement();
}
