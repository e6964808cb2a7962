//! Functions that take long with an entry: they are applied outside the node, in steps.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use consort_grid::{Entry, IterationId, Next, Projection, Publication, Transform};

use crate::cluster::Cluster;
use crate::iteration::{begin, populated};

const NAME: &str = "costly";

/// Registers the function on all members, and counts its calls.
fn register(cluster: &mut Cluster, is_reduction: bool) -> Arc<AtomicUsize> {
    let calls = Arc::new(AtomicUsize::new(0));
    let cache = cluster.cache();
    for n in 0..cluster.members.len() {
        let counted = calls.clone();
        cluster.with(n, |node, _| {
            if is_reduction {
                let reduction = move |made: &mut Vec<u8>, _: &[u8], _: &Entry, _: &[u8]| {
                    counted.fetch_add(1, Ordering::Relaxed);
                    made.push(1);
                };
                node.register_reduction(cache, NAME, Arc::new(reduction));
            } else {
                let transform = move |key: &[u8], _: &Entry, told: &[u8]| {
                    counted.fetch_add(1, Ordering::Relaxed);
                    // Half of the keys.
                    let is_wanted = key.iter().map(|byte| usize::from(*byte)).sum::<usize>() % 2 == 0;
                    is_wanted.then(|| Bytes::copy_from_slice(told))
                };
                node.register_transform(cache, NAME, Arc::new(transform));
            }
            node.register_costly(cache, NAME);
        });
    }
    calls
}

fn publication(projection: Projection) -> Publication {
    let transform = Some(Transform { name: NAME.into(), arguments: Bytes::from_static(b"told") });
    Publication { projection, transform, ..Publication::default() }
}

/// Runs one step of each member that has one, as long as `may_go_on` returns true. Returns the number of steps.
fn run_steps(cluster: &mut Cluster, mut may_go_on: impl FnMut() -> bool) -> usize {
    let mut steps = 0;
    for n in 0..cluster.members.len() {
        let Some(Some(step)) = cluster.with(n, |node, now| node.take_computation(now)) else { continue };
        let computed = step.run(&mut may_go_on);
        cluster.with(n, |node, now| node.finish_computation(now, computed));
        steps += 1;
    }
    steps
}

/// Returns all items by key, and the number of steps.
fn drain(
    cluster: &mut Cluster,
    id: IterationId,
    mut may_go_on: impl FnMut() -> bool,
) -> (BTreeMap<Bytes, Vec<Bytes>>, usize) {
    let (mut found, mut steps) = (BTreeMap::<Bytes, Vec<Bytes>>::new(), 0);
    let cache = cluster.cache();
    for _ in 0..100_000 {
        match cluster.with(0, |node, now| node.take(now, cache, id)).expect("alive").expect("no failure") {
            Next::Items(items) => {
                items.into_iter().for_each(|item| found.entry(item.key).or_default().push(item.value));
            }
            Next::Nothing => {
                steps += run_steps(cluster, &mut may_go_on);
                cluster.run(Duration::from_millis(1));
            }
            Next::End { .. } => return (found, steps),
        }
    }
    panic!("no end:\n{}", cluster.state());
}

#[test]
fn costly_function_is_not_called_within_the_node() {
    let mut cluster = populated(1, 3, 300);
    let calls = register(&mut cluster, false);
    let id = begin(&mut cluster, 0, publication(Projection::Entries));
    let cache = cluster.cache();
    for _ in 0..100 {
        let next =
            cluster.with(0, |node, now| node.take(now, cache, id)).expect("alive").expect("no failure");
        assert_eq!(next, Next::Nothing);
        cluster.run(Duration::from_millis(100));
    }
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    let has_step =
        |n: usize| cluster.members[n].as_ref().is_some_and(|member| member.node.has_computations());
    assert!((0..3).all(has_step), "each member has a step that waits");
}

#[test]
fn walk_with_a_costly_function_gives_each_entry_once_however_short_steps_are() {
    for looks_max in [1, 7, usize::MAX] {
        let mut cluster = populated(2, 3, 300);
        let calls = register(&mut cluster, false);
        let id = begin(&mut cluster, 0, publication(Projection::Entries));
        let mut looks = 0;
        let (found, steps) = drain(&mut cluster, id, || {
            looks += 1;
            looks % looks_max != 0
        });
        assert!(found.values().all(|values| *values == [Bytes::from_static(b"told")]));
        assert_eq!(calls.load(Ordering::Relaxed), 300, "each entry is looked at once");
        assert!(looks_max > 1 || steps >= 300, "{steps} steps");
    }
}

#[test]
fn costly_reduction_looks_at_each_entry_once_however_short_steps_are() {
    for looks_max in [1, usize::MAX] {
        let mut cluster = populated(3, 3, 200);
        let calls = register(&mut cluster, true);
        let id = begin(&mut cluster, 0, publication(Projection::Reduced));
        let mut looks = 0;
        let (found, _) = drain(&mut cluster, id, || {
            looks += 1;
            looks % looks_max != 0
        });
        let made: usize = found.values().flatten().map(Bytes::len).sum();
        assert_eq!((made, calls.load(Ordering::Relaxed)), (200, 200));
    }
}

#[test]
fn request_that_is_repeated_while_its_step_waits_or_runs_waits_once() {
    let mut cluster = populated(4, 1, 50);
    let calls = register(&mut cluster, false);
    let id = begin(&mut cluster, 0, publication(Projection::Entries));
    let cache = cluster.cache();
    let _ = cluster.with(0, |node, now| node.take(now, cache, id));
    let step = cluster.with(0, |node, now| node.take_computation(now)).flatten().expect("a step");
    // The reader repeats the request after 1 s, and again later.
    cluster.run(Duration::from_secs(10));
    assert!(cluster.with(0, |node, now| node.take_computation(now)).flatten().is_none());
    let computed = step.run(|| true);
    cluster.with(0, |node, now| node.finish_computation(now, computed));
    drain(&mut cluster, id, || true);
    assert_eq!(calls.load(Ordering::Relaxed), 50);
}
