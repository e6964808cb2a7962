//! Local caches.

use std::time::Duration;

use bytes::Bytes;
use consort_grid::{
    Action, CacheConfig, CacheMode, Change, Condition, Lifetime, OperationError, Outcome, ReadFrom, Write,
};

use crate::cluster::Cluster;

const TIMEOUT: Duration = Duration::from_secs(10);
const KEY: Bytes = Bytes::from_static(b"key");

fn value_of(cluster: &mut Cluster, n: usize) -> Result<Option<Bytes>, OperationError> {
    let at = cluster.submit(n, KEY, Action::Read(ReadFrom::Nearest), TIMEOUT);
    cluster.run(Duration::from_millis(20));
    match cluster.history[at].result.clone() {
        Some(Ok(Outcome::Read(found))) => Ok(found.map(|stored| stored.value)),
        Some(Err(error)) => Err(error),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_local_cache_says_nothing_to_others_of_the_same_name() {
    let local = CacheConfig { mode: CacheMode::Local, ..CacheConfig::new("ours") };
    let mut cluster = Cluster::new(1, CacheConfig::new("ours"));
    cluster.start_with(local.clone());
    cluster.start();
    cluster.start();
    cluster.start_with(local);
    cluster.run(Duration::from_secs(3));
    let before = cluster.frames;
    for n in [0, 3] {
        let change = Change::Put { value: Bytes::from(format!("of M{n}")), lifetime: Lifetime::FOREVER };
        let write = Write { condition: Condition::Absent, change, wants_previous: false };
        let at = cluster.submit(n, KEY, Action::Write(write), TIMEOUT);
        assert!(
            matches!(&cluster.history[at].result, Some(Ok(Outcome::Written(written))) if written.is_done)
        );
    }
    assert_eq!(cluster.frames, before, "no member gets a frame");
    assert_eq!(value_of(&mut cluster, 0), Ok(Some(Bytes::from_static(b"of M0"))));
    assert_eq!(value_of(&mut cluster, 3), Ok(Some(Bytes::from_static(b"of M3"))));
    assert_eq!(value_of(&mut cluster, 1), Ok(None));
    assert_eq!(value_of(&mut cluster, 2), Ok(None));
    let cache = cluster.cache();
    let topology = cluster.members[1].as_ref().unwrap().node.topology(cache).unwrap().clone();
    assert_eq!(topology.members.len(), 2, "the two that share it");
    cluster.leave(0);
    assert!(cluster.members[0].as_ref().unwrap().is_left, "nothing is to be handed over");
    assert_eq!(value_of(&mut cluster, 0), Err(OperationError::Closed));
}
