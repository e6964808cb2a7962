//! Entries that live for a while.

use std::time::Duration;

use bytes::Bytes;
use consort_grid::{Action, CacheConfig, Change, Condition, Lifetime, Outcome, ReadFrom, Write};

use crate::cluster::Cluster;

const TIMEOUT: Duration = Duration::from_secs(10);

#[test]
fn what_has_expired_is_not_read_and_takes_no_memory_on_any_owner() {
    let mut cluster = Cluster::new(1, CacheConfig::new("mortal"));
    (0..3).for_each(|_| {
        cluster.start();
    });
    cluster.run(Duration::from_secs(2));
    let lifetime = Lifetime { lifespan: Some(Duration::from_secs(5)), max_idle: None };
    for n in 0..100 {
        let change = Change::Put { value: Bytes::from_static(b"for a while"), lifetime };
        let write = Write { condition: Condition::Always, change, wants_previous: false };
        cluster.submit(n % 3, Bytes::from(format!("k{n}")), Action::Write(write), TIMEOUT);
    }
    cluster.run(Duration::from_secs(3));
    let held =
        |cluster: &Cluster| cluster.members.iter().flatten().map(|one| one.container.len()).sum::<u64>();
    assert_eq!(held(&cluster), 200, "two owners each");
    let joined = cluster.start();
    cluster.run(Duration::from_secs(1));
    assert!(
        !cluster.members[joined].as_ref().unwrap().container.is_empty(),
        "the rest of a life travels, too"
    );
    cluster.run(Duration::from_secs(2));
    let read = |cluster: &mut Cluster, n: usize| {
        let at = cluster.submit(n, Bytes::from_static(b"k7"), Action::Read(ReadFrom::Nearest), TIMEOUT);
        cluster.run(Duration::from_millis(20));
        cluster.history[at].result.clone()
    };
    for n in 0..4 {
        assert_eq!(read(&mut cluster, n), Some(Ok(Outcome::Read(None))));
    }
    cluster.run(Duration::from_secs(3));
    assert_eq!(held(&cluster), 0);
    cluster.run(Duration::from_secs(3));
    let wakes = cluster.members.iter().flatten().filter(|one| one.node.poll_timeout().is_some()).count();
    assert_eq!(wakes, 0, "nothing is left to wait for");
}
