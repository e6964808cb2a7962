//! Connects a stack and the grid member above it.

use std::collections::BTreeSet;

use bytes::Bytes;
use consort_grid::{
    Availability, CapacityFactor, IterationId, NodeEvent, OperationError, Outcome, PartitionHandling,
    Topology,
};
use consort_group::{Address, Message, Time};

use super::member::{BEGINNING, InstalledTopology};
use super::turns::Turn;
use super::{
    Grid, GridWorld, Member, bulk_client, checks, client, fault_preconditions, iterating_client,
    listener_client, operations, outdated_members, stores,
};
use crate::node::Node;
use crate::world::Application;

fn owners(nodes: &[Node], topology: &Topology) -> String {
    let name = |owner: &Address| {
        let node = nodes.iter().rev().find(|node| node.address == *owner);
        node.map_or("?", |node| &node.name).to_owned()
    };
    let of = |hash: &consort_grid::ConsistentHash| {
        let all = hash.segments().map(|segment| hash.owners(segment).map(name).collect::<Vec<_>>().join("+"));
        all.collect::<Vec<_>>().join(" ")
    };
    let pending = topology.pending.as_ref().map(|pending| format!(" -> {}", of(pending)));
    format!(": {}{}", of(&topology.current), pending.unwrap_or_default())
}

impl Application for Grid {
    type Event = Turn;

    /// A tenth of the limit of members without a cache.
    const SLOWNESS_MAX_MICROS: u64 = 3_000;

    fn handle_event(world: &mut GridWorld, turn: Turn) {
        match turn {
            Turn::Client(client) => client::turn(world, client),
            Turn::Iteration(reader) => iterating_client::run(world, reader),
            Turn::Listener(listener) => listener_client::run(world, listener),
            Turn::Store(node) => stores::carry_out(world, node),
            Turn::Clear(bulk) => bulk_client::clear(world, bulk),
        }
    }

    fn node_added(world: &mut GridWorld, node: usize) {
        let grid = &mut world.app;
        let is_first = node == 0;
        let address = world.nodes[node].address.clone();
        let capacity = match world.rng.below(6) {
            _ if !grid.is_weighted => CapacityFactor::default(),
            // A partition without a member of a positive capacity factor has no entries to go on with.
            0 if !is_first && grid.config.partitions != PartitionHandling::AllowReadWrites => {
                CapacityFactor::ZERO
            }
            0 | 1 => CapacityFactor::from_thousandths(500),
            2 => CapacityFactor::from_thousandths(2_000),
            _ => CapacityFactor::default(),
        };
        if grid.workload.has_expiry() {
            world.nodes[node].beginning = BEGINNING;
        }
        let place = world.nodes[node].place;
        let capacity = match &mut grid.stores {
            Some(stores) => stores.capacity(place, capacity),
            None => capacity,
        };
        let hash_seed = world.rng.next_u64();
        let opened = stores::open(world, node, hash_seed);
        let grid = &mut world.app;
        let mut member = Member::new(address.clone(), &grid.config, capacity, hash_seed, opened);
        member.node.set_chunk_bytes(grid.chunk_bytes);
        if let Some(backpressure) = &grid.backpressure {
            member.node.set_response_limits(backpressure.limits);
        }
        #[cfg(feature = "injected-bugs")]
        if let Some(bug) = grid.injected_bug {
            member.node.inject_bug(bug);
            member.container.indexes().inject_bug(bug);
        }
        grid.indices.insert(address, node);
        grid.members.push(member);
        if is_first || stores::opens_alone(world, node) {
            let own = world.nodes[node].application_clock(world.now);
            world.app.members[node].open(own, &world.app.config);
        }
    }

    fn deliver(world: &mut GridWorld, node: usize, src: Address, message: &Message) {
        let is_multicast = message.is_multicast();
        let payload = message.payload_bytes().cloned().filter(|_| !is_multicast);
        deliver_frame(world, node, &src, payload);
        // The messages of a grid do not contain their send times.
        world.consume(node, src, is_multicast, message.credit, false);
    }

    fn deliver_view(world: &mut GridWorld, node: usize) {
        let own = world.nodes[node].application_clock(world.now);
        let Some(view) = world.nodes[node].view().cloned() else { return };
        let grid = &mut world.app;
        let knows = |address: &Address| {
            grid.indices.get(address).is_some_and(|&other| grid.members[other].is_usable())
        };
        let may_open = view.members().iter().any(knows);
        let member = &mut grid.members[node];
        member.node.handle_view(own, &view);
        if may_open && !member.is_open {
            member.open(own, &grid.config);
        }
    }

    fn poll_timeout(world: &GridWorld, node: usize) -> Option<Time> {
        let at = world.app.members[node].node.poll_timeout()?;
        Some(Time::ZERO + at.since(Time::ZERO + world.nodes[node].beginning))
    }

    fn handle_timeout(world: &mut GridWorld, node: usize) -> bool {
        let own = world.nodes[node].application_clock(world.now);
        let member = &mut world.app.members[node];
        let is_due = member.node.poll_timeout().is_some_and(|at| at <= own);
        member.node.handle_timeout(own);
        is_due
    }

    /// Channels without room get some after a while, and waiting calls are counted then.
    fn has_pending_output(world: &GridWorld, node: usize) -> bool {
        let member = &world.app.members[node];
        let backpressure = world.app.backpressure.as_ref();
        member.node.has_frames()
            || backpressure.is_some_and(|backpressure| backpressure.has_waiting(node, &member.node))
    }

    fn drain_outputs(world: &mut GridWorld, node: usize) -> bool {
        let one = &world.nodes[node];
        let (own, member_now) = (one.clock(world.now), one.application_clock(world.now));
        let has_stored = stores::take_requests(world, node);
        let (one, grid) = (&mut world.nodes[node], &mut world.app);
        let member = &mut grid.members[node];
        let Some(stack) = &mut one.stack else { return false };
        // A write-behind write is done at once, and then there may be more output.
        let mut has_sent = has_stored;
        let mut sent = BTreeSet::new();
        while let Some(frame) = member.node.poll_frame() {
            has_sent = true;
            sent.insert(frame.dest.clone());
            grid.frames += 1;
            if let Some(transit) = &mut grid.transit {
                transit.note_sent(&one.address, &frame.dest, &frame.bytes, world.now);
            }
            stack.handle_send(own, Message::bytes(Some(frame.dest), frame.bytes));
        }
        if let Some(backpressure) = &mut grid.backpressure {
            backpressure.update(node, &mut member.node, member_now, sent);
            has_sent |= member.node.has_frames();
        }
        let mut finished = Vec::new();
        while let Some((number, result)) = member.node.poll_finished() {
            if let Some(at) = member.running.remove(&number) {
                finished.push((at, result));
            }
        }
        let mut events = Vec::new();
        while let Some(event) = member.node.poll_event() {
            events.push(event);
        }
        for (at, result) in finished {
            finish(world, at, result);
        }
        for event in events {
            has_sent |= handle_event(world, node, event);
        }
        has_sent |= stores::take_requests(world, node);
        has_sent
    }

    fn leave(world: &mut GridWorld, node: usize) -> bool {
        let own = world.nodes[node].application_clock(world.now);
        let member = &mut world.app.members[node];
        if !member.is_open || member.is_left {
            return false;
        }
        if !member.is_leaving {
            member.is_leaving = true;
            let cache = member.cache;
            member.node.leave(own, cache);
            world.nodes[node].is_leaving = true;
            world.note_story(format!("{} leaves the cache", world.nodes[node].name));
            world.work(node);
        }
        true
    }

    fn node_crashed(world: &mut GridWorld, node: usize) {
        world.app.lost.push((node, world.now));
        stores::interrupt(world, node);
    }

    fn node_left(world: &mut GridWorld, node: usize) {
        stores::close(world, node);
    }

    fn may_crash(world: &GridWorld) -> bool {
        fault_preconditions::may_crash(world)
    }

    fn may_part(world: &GridWorld) -> bool {
        fault_preconditions::may_part(world)
    }

    fn may_leave(world: &GridWorld, node: usize) -> bool {
        fault_preconditions::may_leave(world, node)
    }

    fn may_start(world: &GridWorld) -> bool {
        fault_preconditions::may_start(world)
    }

    fn story(&self) -> Vec<(Time, String)> {
        self.story.clone()
    }
}

fn deliver_frame(world: &mut GridWorld, node: usize, src: &Address, payload: Option<Bytes>) {
    let own = world.nodes[node].application_clock(world.now);
    world.note(&[world.now.0, node as u64, payload.as_ref().map_or(0, Bytes::len) as u64]);
    let (now, grid) = (world.now, &mut world.app);
    if let (Some(frame), Some(transit)) = (&payload, &mut grid.transit) {
        transit.note_arrived(src, &world.nodes[node].address, frame, now);
    }
    let result = payload.map(|payload| grid.members[node].node.handle_frame(own, src, payload));
    if !matches!(result, Some(Ok(()))) {
        grid.malformed += 1;
    }
}

fn finish(world: &mut GridWorld, at: usize, result: Result<Outcome, OperationError>) {
    operations::finish(world, at, result);
    match world.app.history[at].client {
        Some(client) => client::turn_over(world, client, at),
        None => bulk_client::note_end(world, at),
    }
}

fn handle_event(world: &mut GridWorld, node: usize, event: NodeEvent) -> bool {
    match event {
        NodeEvent::Installed { .. } => {
            handle_topology(world, node);
            false
        }
        NodeEvent::Left { .. } => {
            world.app.members[node].is_left = true;
            world.note_story(format!("{} has left the cache", world.nodes[node].name));
            stores::close(world, node);
            let own = world.nodes[node].clock(world.now);
            world.nodes[node].is_leaving = true;
            if let Some(stack) = &mut world.nodes[node].stack {
                stack.handle_disconnect(own);
            }
            true
        }
        NodeEvent::Fetched { iteration, .. } => {
            handle_fetched(world, node, iteration);
            false
        }
        NodeEvent::Told { listener, .. } => {
            listener_client::wake(world, node, listener);
            false
        }
        // The simulation has no sleeping threads.
        NodeEvent::Expecting => false,
        NodeEvent::Refused { error, .. } => {
            let what = format!("{} is refused: {error}", world.nodes[node].name);
            if let Some(stores) = &mut world.app.stores {
                stores.refuse(what.clone());
            }
            world.note_story(what);
            false
        }
    }
}

fn handle_fetched(world: &mut GridWorld, node: usize, iteration: IterationId) {
    iterating_client::wake(world, node, iteration);
    bulk_client::wake_clear(world, node, iteration);
}

fn handle_topology(world: &mut GridWorld, node: usize) {
    let now = world.now;
    log_topology(world, node);
    let grid = &mut world.app;
    let Some(topology) = grid.members[node].topology() else { return };
    let rank = |topology: &Topology| (topology.available, topology.id);
    let is_available = topology.availability == Availability::Available;
    let newest = grid.newest.iter().map(rank).max();
    if is_available && newest.is_none_or(|newest| newest < rank(topology)) {
        grid.newest.clear();
    }
    if is_available && newest.is_none_or(|newest| newest <= rank(topology)) && !grid.newest.contains(topology)
    {
        grid.newest.push(topology.clone());
    }
    let one_side = grid.config.partitions != PartitionHandling::AllowReadWrites;
    let vote = |topology: &Topology| (topology.ballot.clone(), topology.id);
    if is_available && one_side && grid.elected.as_ref().is_none_or(|elected| vote(elected) < vote(topology))
    {
        grid.elected = Some(topology.clone());
    }
    for parting in topology.split_points.iter().skip(1) {
        grid.parted.entry((parting.id, parting.by.clone())).or_insert(now);
    }
    checks::merges::note_sides(&mut grid.sides, topology);
    let is_merged = |since: u32| topology.merging.iter().any(|side| side.since == since);
    grid.has_forsaken |= topology.members.iter().all(|one| is_merged(one.since));
    let is_first = !grid.clients.iter().any(|client| client.node == node);
    let text = format!(
        "{}: topology {} {:?}, {} members, {}",
        world.nodes[node].name,
        topology.id,
        topology.phase,
        topology.members.len(),
        if is_available { "available" } else { "degraded" }
    );
    let text = if grid.with_operations { format!("{text}{}", owners(&world.nodes, topology)) } else { text };
    let id = topology.id;
    grid.story.push((now, text));
    world.note(&[now.0, node as u64, id.into()]);
    outdated_members::note_left_out(world);
    operations::judge_running(world);
    iterating_client::judge_running(world);
    bulk_client::judge_clears(world);
    if is_first {
        client::add(world, node);
        iterating_client::add(world, node);
        listener_client::add(world, node);
    }
}

fn log_topology(world: &mut GridWorld, node: usize) {
    let member = &mut world.app.members[node];
    let Some(topology) = member.topology() else { return };
    let installed = InstalledTopology {
        id: topology.id,
        members: topology.members.clone(),
        is_degraded: !topology.away().is_empty(),
    };
    if member.topologies.last().is_none_or(|(_, last)| *last != installed) {
        member.topologies.push((world.now, installed));
    }
}
