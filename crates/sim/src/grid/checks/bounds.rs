use std::time::Duration;

use consort_group::Time;

use crate::checks::Broken;
use crate::grid::GridWorld;
use crate::grid::fault_preconditions::grid_state;
use crate::grid::history::Operation;
use crate::grid::member::alive;
use crate::grid::operations::TIMEOUT;
use crate::node::Node;

/// For slow clocks, and for the interval at which members check.
const LATE: Duration = Duration::from_secs(1);

/// Includes calls that no caller waits for and those taken over. Clients have three; the others end when
/// their owners have agreed.
const CALLS_MAX: usize = 1_000;

/// Clients have three each, and a topology is one round trip away; a member that was paused finds more.
const DEFERRED_MAX: usize = 5_000;

/// Records of its callers' operations, and finished ones above an unfinished one.
const RECORDS_MAX: usize = 5_000;

pub(super) fn deadlines(world: &GridWorld, history: &[Operation]) -> Result<(), Broken> {
    for operation in history {
        let node = &world.nodes[operation.node];
        let end = operation.ended.or(node.ended).unwrap_or(world.now);
        let took = end.since(operation.began).saturating_sub(paused(node, operation.began, end));
        if took > TIMEOUT.mul_f64(1.04) + LATE {
            let what = format!("{} of {}: {operation:?}", took.as_secs_f64(), node.name);
            return Err(("no operation hangs", what));
        }
    }
    Ok(())
}

fn paused(node: &Node, from: Time, to: Time) -> Duration {
    let overlap = |(begin, end): &(Time, Option<Time>)| {
        let end = end.unwrap_or(to).min(to);
        end.since((*begin).max(from))
    };
    node.pauses.iter().map(overlap).sum()
}

pub(crate) fn load(world: &GridWorld) -> Result<(), Broken> {
    for (node, member) in alive(world) {
        let load = member.node.stats().load(member.cache);
        if load.calls > CALLS_MAX || load.deferred + load.parked > DEFERRED_MAX || load.records > RECORDS_MAX
        {
            return Err(("memory is bounded", format!("{}: {load:?}", node.name)));
        }
    }
    responses(world)
}

/// A member requests at most the limit, or one larger value.
fn responses(world: &GridWorld) -> Result<(), Broken> {
    let Some(backpressure) = &world.app.backpressure else { return Ok(()) };
    // A call whose value's size changes meanwhile requests twice as much.
    let bound = backpressure.limits.owner_bytes.max(2 * backpressure.largest);
    if backpressure.most > bound {
        let what = format!("{} bytes of values at a time, not {bound}", backpressure.most);
        return Err(("responses are bounded", what));
    }
    Ok(())
}

/// A member may have its last write in every segment recorded, and a node that is no member has no records.
pub(crate) fn nothing_left(world: &GridWorld) -> Result<(), Broken> {
    let count = alive(world).count();
    for (node, member) in alive(world) {
        let Some(topology) = member.topology() else { continue };
        let load = member.node.stats().load(member.cache);
        if load.calls + load.deferred + load.parked > 0 {
            return Err(("nothing waits after faults", format!("{}: {load:?}", node.name)));
        }
        let responses = member.node.stats().response_load();
        if responses.waiting > 0 || responses.reserved_bytes > 0 || responses.held_bytes > 0 {
            return Err(("nothing waits after faults", format!("{}: {responses:?}", node.name)));
        }
        let segments = topology.current.segments_of(&node.address).count();
        if load.orphans > 0 || load.records > count * segments {
            let state = grid_state(world);
            let what = format!("{}: {load:?} in {segments} segments{state}", node.name);
            return Err(("records are forgotten", what));
        }
    }
    Ok(())
}
