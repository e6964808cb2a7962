//! Writes without events for listeners.

use std::time::Duration;

use bytes::Bytes;
use consort_grid::{Action, EventKind, Flags, ListenOptions, Scope};

use crate::clients::TIMEOUT;
use crate::cluster::Cluster;
use crate::listeners::{key, kinds, listen, settled, write};
use crate::listening::{Reader, put, remove};
use crate::seeds::every_seed;

/// A write with the flag causes no event, neither on owners nor on other members; the events of later writes have the
/// right kind.
#[test]
fn silent_write_sends_no_event_and_the_next_write_does() {
    for owners in [1, 2, 3] {
        let mut cluster = settled(11, 4, owners);
        let mut readers: Vec<Reader> =
            (0..4).map(|n| listen(&mut cluster, n, ListenOptions::default())).collect();
        let local = ListenOptions { scope: Scope::Local, ..ListenOptions::default() };
        readers.extend((0..4).map(|n| Reader::begin(&mut cluster, n, local.clone())));
        for n in 0..20 {
            for action in [put("silent", None), put("again", None)] {
                silently(&mut cluster, n as usize % 4, n, action);
            }
        }
        for n in 0..10 {
            write(&mut cluster, n as usize % 4, n, put("loud", None));
            silently(&mut cluster, n as usize % 3, n, remove());
        }
        for n in 0..10 {
            write(&mut cluster, n as usize % 4, n, put("loud", None));
        }
        let wanted = [[EventKind::Modified; 10], [EventKind::Created; 10]].concat();
        let mut at_one = Vec::new();
        for reader in &mut readers {
            reader.poll(&mut cluster);
            assert_eq!(reader.gaps(), 0);
            match reader.options.scope {
                Scope::Cluster => assert_eq!(kinds(reader), wanted, "owners {owners}"),
                Scope::Local => at_one.extend(kinds(reader)),
            }
        }
        assert_eq!(at_one.len(), wanted.len(), "each change at one member");
    }
}

fn silently(cluster: &mut Cluster, member: usize, n: u64, action: Action) {
    let at = cluster.submit_with(member, key(n), action, Flags::SKIP_LISTENERS, TIMEOUT);
    cluster.run(Duration::from_millis(100));
    assert!(matches!(cluster.history[at].result, Some(Ok(_))), "{:?}", cluster.history[at]);
}

/// Writes are repeated when members are lost or join: also by members that did not get the flag from the caller.
#[test]
fn a_silent_write_stays_silent_when_it_is_sent_again() {
    let resent = every_seed(20, |seed, _| {
        let mut cluster = settled(seed, 4, 2);
        let mut reader = listen(&mut cluster, 3, ListenOptions::default());
        let crashed = 1 + seed as usize % 2;
        let flags = |n: u64| if n.is_multiple_of(2) { Flags::SKIP_LISTENERS } else { Flags::NONE };
        for n in 0..200 {
            cluster.submit_with(0, key(n), put("one", None), flags(n), TIMEOUT);
            cluster.run(Duration::from_micros(100));
            if n == 100 {
                cluster.crash(crashed);
            }
            if n == 150 {
                cluster.deliver_views(false);
            }
        }
        cluster.run(Duration::from_secs(5));
        reader.poll(&mut cluster);
        reader.check_order();
        let told: Vec<&Bytes> = reader.entries().map(|event| &event.key).collect();
        let is_told = |n: u64| told.contains(&&key(n));
        assert_eq!(
            (0..200_u64).filter(|n| n.is_multiple_of(2) && is_told(*n)).count(),
            0,
            "{}",
            cluster.state()
        );
        let loud = (0..200_u64).filter(|n| !n.is_multiple_of(2));
        let is_done = |n: &u64| {
            cluster
                .history
                .iter()
                .any(|done| done.key == key(*n) && done.result.as_ref().is_some_and(Result::is_ok))
        };
        let (done, missed) = loud.fold((0, 0), |(done, missed), n| {
            let is_done = is_done(&n);
            (done + u64::from(is_done), missed + u64::from(is_done && !is_told(n)))
        });
        assert!(missed == 0 || reader.gaps() > 0, "{missed} of {done} were not told");
        done
    });
    assert!(resent.iter().all(|done| *done > 50), "{resent:?}");
}
