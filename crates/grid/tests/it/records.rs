//! Records of writes, which owners keep until the callers have said that they are finished.

use std::time::Duration;

use bytes::Bytes;
use consort_grid::{Action, CacheConfig, Capacity, ReadFrom};

use crate::cluster::Cluster;
use crate::persistence::{TIMEOUT, put};

/// The primary knows that it is, and so has nothing to send when the caller has gone.
#[test]
fn what_a_caller_has_finished_is_forgotten_by_who_has_not_heard_it_when_the_caller_has_gone() {
    let mut cluster = Cluster::settled(1, CacheConfig::new("grid"), 2);
    let config = cluster.config.clone();
    let caller = cluster.start_as(config, Capacity::ZERO);
    cluster.run(Duration::from_secs(2));
    let key = Bytes::from_static(b"key");
    for action in [put(1), Action::Read(ReadFrom::Primary)] {
        let at = cluster.submit(caller, key.clone(), action, TIMEOUT);
        cluster.run(Duration::from_millis(100));
        assert!(matches!(cluster.history[at].result, Some(Ok(_))), "{:?}", cluster.history[at]);
    }
    let records = |cluster: &Cluster| {
        let cache = cluster.cache();
        cluster.members.iter().flatten().map(|member| member.node.load(cache).records).sum::<usize>()
    };
    assert_eq!(records(&cluster), 1, "of the owner that is not asked");
    cluster.crash(caller);
    cluster.announce(false);
    cluster.run(Duration::from_secs(4));
    assert!(cluster.is_settled(), "{}", cluster.state());
    assert_eq!(records(&cluster), 0);
}
