use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use consort_grid::{Action, Change, OperationError, Outcome};

use super::GridWorld;
use super::history::Operation;
use super::outdated_members::{is_by_itself, is_left_out, readers};

pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

/// No client waits for it by itself.
pub(super) fn submit(world: &mut GridWorld, node: usize, key: Bytes, action: Action) -> usize {
    let (at, _) = begin(world, node, None, key, action);
    world.work(node);
    at
}

/// Returns the index in the history, and whether the operation has ended at once. The stack has not sent its
/// messages yet.
pub(super) fn begin(
    world: &mut GridWorld,
    node: usize,
    client: Option<usize>,
    key: Bytes,
    action: Action,
) -> (usize, bool) {
    let now = world.now;
    let own = world.nodes[node].application_clock(now);
    let grid = &mut world.app;
    let member = &mut grid.members[node];
    let at = grid.history.len();
    if let (Some(backpressure), Action::Write(write)) = (&mut grid.backpressure, &action)
        && let Change::Put { value, .. } = &write.change
    {
        backpressure.largest = backpressure.largest.max(value.len() as u64);
    }
    let split_points = member.topology().map(|topology| topology.split_points.clone());
    grid.history.push(Operation {
        node,
        client,
        is_of_bulk: false,
        key: key.clone(),
        action: action.clone(),
        began: now,
        ended: None,
        result: None,
        readers: BTreeSet::new(),
        split_points,
        is_degraded: false,
        is_by_itself: false,
        is_excused: false,
    });
    grid.running.insert(at);
    let cache = member.cache;
    let at_once = match member.look_up(own, &key, &action) {
        Some(outcome) => Some(Ok(outcome)),
        None => match member.node.submit(own, cache, key, action, TIMEOUT) {
            Ok(number) => {
                member.running.insert(number, at);
                None
            }
            Err(error) => Some(Err(error)),
        },
    };
    judge(world, at);
    let is_ended = at_once.is_some();
    if let Some(result) = at_once {
        finish(world, at, result);
    }
    (at, is_ended)
}

pub(super) fn finish(world: &mut GridWorld, at: usize, result: Result<Outcome, OperationError>) {
    judge(world, at);
    let now = world.now;
    let grid = &mut world.app;
    grid.running.remove(&at);
    let operation = &mut grid.history[at];
    let after = grid.members[operation.node].topology().map(|topology| &topology.split_points);
    operation.split_points = operation.split_points.take().filter(|before| after == Some(before));
    operation.ended = Some(now);
    if let (Some(stores), Err(error)) = (&mut grid.stores, &result) {
        stores.note(error);
    }
    operation.result = Some(result);
    if grid.with_operations {
        let text = format!(
            "{}: {:?} {:?} since {:?}: {:?}{}",
            world.nodes[operation.node].name,
            operation.key,
            operation.action,
            operation.began,
            operation.result,
            if operation.is_excused { " (left out)" } else { "" }
        );
        grid.story.push((now, text));
    }
    world.note(&[now.0, at as u64]);
}

pub(super) fn judge_running(world: &mut GridWorld) {
    for at in world.app.running.clone() {
        judge(world, at);
    }
}

fn judge(world: &mut GridWorld, at: usize) {
    let Some(operation) = world.app.history.get(at) else { return };
    let more = readers(world, operation.node, &operation.key);
    let all = || operation.readers.iter().chain(&more).copied();
    let is_excused = all().any(|node| is_left_out(world, node, &operation.key));
    let is_degraded = all().any(|node| {
        let topology = world.app.members[node].topology();
        topology.is_some_and(|topology| !topology.away().is_empty())
    });
    let is_by_itself = is_by_itself(world, operation.node);
    let operation = &mut world.app.history[at];
    operation.readers.extend(more);
    operation.is_excused |= is_excused;
    operation.is_degraded |= is_degraded;
    operation.is_by_itself |= is_by_itself;
}
