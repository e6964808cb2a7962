//! No operation hangs, and nothing grows that should not.

use std::time::Duration;

use consort_group::Time;

use crate::checks::Broken;
use crate::grid::client::TIMEOUT;
use crate::grid::history::Operation;
use crate::node::Node;
use crate::world::World;

/// How much longer than its time an operation may take: slow clocks, and how often members look.
const LATE: Duration = Duration::from_secs(1);

/// Operations of a member that may be under way at once, with those that nobody waits for and those taken over. Clients
/// have three; the others end when their owners have agreed.
const CALLS_MAX: usize = 1_000;

/// Commands that may wait for a topology. Clients have three each, and a topology is a round trip away; what a member finds
/// that was paused is more.
const DEFERRED_MAX: usize = 5_000;

/// Records that may be unfinished on a member: what callers have under way, and what is finished above it.
const RECORDS_MAX: usize = 5_000;

/// Every operation ends in its time, if its member goes on.
pub(super) fn deadlines(world: &World, history: &[Operation]) -> Result<(), Broken> {
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

/// How long a node was stopped between the two.
fn paused(node: &Node, from: Time, to: Time) -> Duration {
    let overlap = |(begin, end): &(Time, Option<Time>)| {
        let end = end.unwrap_or(to).min(to);
        end.since((*begin).max(from))
    };
    node.pauses.iter().map(overlap).sum()
}

/// At any time.
pub(crate) fn load(world: &World) -> Result<(), Broken> {
    for node in world.nodes.iter().filter(|node| node.is_alive()) {
        let Some(member) = &node.member else { continue };
        let load = member.node.load(member.cache);
        if load.calls > CALLS_MAX || load.deferred + load.parked > DEFERRED_MAX || load.records > RECORDS_MAX
        {
            return Err(("memory is bounded", format!("{}: {load:?}", node.name)));
        }
    }
    responses(world)
}

/// No member was asked for more bytes of values at a time than another one takes, or for one value that is larger.
fn responses(world: &World) -> Result<(), Broken> {
    let Some(narrow) = world.grid.as_ref().and_then(|grid| grid.narrow.as_ref()) else { return Ok(()) };
    // A call whose value's size changes meanwhile asks for twice as much.
    let bound = narrow.limits.owner_bytes.max(2 * narrow.largest);
    if narrow.most > bound {
        let what = format!("{} bytes of values at a time, not {bound}", narrow.most);
        return Err(("responses are bounded", what));
    }
    Ok(())
}

/// Once everybody has spoken again with everybody: of each member there may be the last write in every segment,
/// and of who is no member nothing.
pub(crate) fn nothing_left(world: &World) -> Result<(), Broken> {
    let alive: Vec<&Node> = world.nodes.iter().filter(|node| node.is_alive()).collect();
    for node in &alive {
        let Some(member) = &node.member else { continue };
        let Some(topology) = member.topology() else { continue };
        let load = member.node.load(member.cache);
        if load.calls + load.deferred + load.parked > 0 {
            return Err(("nothing waits after faults", format!("{}: {load:?}", node.name)));
        }
        let responses = member.node.response_load();
        if responses.waiting > 0 || responses.reserved_bytes > 0 || responses.held_bytes > 0 {
            return Err(("nothing waits after faults", format!("{}: {responses:?}", node.name)));
        }
        let segments = topology.current.segments_of(&node.address).count();
        if load.orphans > 0 || load.records > alive.len() * segments {
            let state = world.grid_state();
            let what = format!("{}: {load:?} in {segments} segments{state}", node.name);
            return Err(("records are forgotten", what));
        }
    }
    Ok(())
}
