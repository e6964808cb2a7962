//! The connection between a stack and the member of the grid above it: views and frames up, frames and outcomes down.

use std::collections::BTreeSet;

use bytes::Bytes;
use consort_grid::{
    Action, Availability, CacheMode, CapacityFactor, Change, NodeEvent, Outcome, PartitionHandling, Topology,
};
use consort_group::{Address, Message};

use super::history::Operation;
use super::member::BEGINNING;
use super::{Member, checks};
use crate::node::{InstalledTopology, Node};
use crate::world::World;

/// Formats the owners of each segment for a report.
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

impl World {
    /// Adds a grid member to a node that has started.
    pub(crate) fn add_grid_member(&mut self, node: usize) {
        let Some(grid) = &mut self.grid else { return };
        let is_first = node == 0;
        let address = self.nodes[node].address.clone();
        let capacity = match self.rng.below(6) {
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
            self.nodes[node].beginning = BEGINNING;
        }
        let place = self.nodes[node].place;
        let capacity = match &mut grid.stores {
            Some(stores) => stores.capacity(place, capacity),
            None => capacity,
        };
        let hash_seed = self.rng.next_u64();
        let opened = self.open_store(node, hash_seed);
        let Some(grid) = &mut self.grid else { return };
        let mut member = Box::new(Member::new(address.clone(), &grid.config, capacity, hash_seed, opened));
        member.node.set_chunk_bytes(grid.chunk_bytes);
        if let Some(backpressure) = &grid.backpressure {
            member.node.set_response_limits(backpressure.limits);
        }
        #[cfg(feature = "injected-bugs")]
        if let Some(bug) = grid.injected_bug {
            member.node.inject_bug(bug);
        }
        grid.indices.insert(address, node);
        self.nodes[node].member = Some(member);
        let opens = is_first || self.opens_alone(node);
        let own = self.nodes[node].member_clock(self.now);
        if let (Some(grid), Some(member)) = (&self.grid, &mut self.nodes[node].member)
            && opens
        {
            member.open(own, &grid.config);
        }
    }

    /// Passes the stack's new view to the member.
    pub(crate) fn deliver_view(&mut self, node: usize) {
        let own = self.nodes[node].member_clock(self.now);
        let Some(view) = self.nodes[node].view().cloned() else { return };
        let knows = |address: &Address| {
            let other = self.grid.as_ref().and_then(|grid| grid.indices.get(address));
            other.is_some_and(|&other| {
                self.nodes[other].member.as_ref().is_some_and(|member| member.is_usable())
            })
        };
        let may_open = view.members().iter().any(knows);
        let (Some(grid), Some(member)) = (&self.grid, &mut self.nodes[node].member) else { return };
        member.node.handle_view(own, &view);
        if may_open && !member.is_open {
            member.open(own, &grid.config);
        }
    }

    /// Passes a received message to the member.
    pub(crate) fn deliver_frame(&mut self, node: usize, src: &Address, payload: Option<Bytes>) {
        let own = self.nodes[node].member_clock(self.now);
        self.note(&[self.now.0, node as u64, payload.as_ref().map_or(0, Bytes::len) as u64]);
        let now = self.now;
        if let (Some(frame), Some(transit)) =
            (&payload, self.grid.as_mut().and_then(|grid| grid.transit.as_mut()))
        {
            transit.note_arrived(src, &self.nodes[node].address, frame, now);
        }
        let Some(member) = &mut self.nodes[node].member else { return };
        let result = payload.map(|payload| member.node.handle_frame(own, src, payload));
        if !matches!(result, Some(Ok(())))
            && let Some(grid) = &mut self.grid
        {
            grid.malformed += 1;
        }
    }

    /// Returns whether [`World::work`] would act although no event has happened: channels without room get some after a
    /// while, and waiting calls are counted then.
    pub(crate) fn has_pending_output(&self, node: usize) -> bool {
        let Some(member) = &self.nodes[node].member else { return false };
        let backpressure = self.grid.as_ref().and_then(|grid| grid.backpressure.as_ref());
        member.node.has_frames()
            || backpressure.is_some_and(|backpressure| backpressure.has_waiting(node, &member.node))
    }

    /// Passes on the member's output. Returns whether there was any for the stack.
    pub(crate) fn drain_outputs(&mut self, node: usize) -> bool {
        let (own, member_now) = (self.nodes[node].clock(self.now), self.nodes[node].member_clock(self.now));
        let has_stored = self.work_store(node);
        let one = &mut self.nodes[node];
        let (Some(stack), Some(member)) = (&mut one.stack, &mut one.member) else { return false };
        // A write-behind write is done at once, and then there may be more output.
        let mut has_sent = has_stored;
        let mut sent = BTreeSet::new();
        while let Some(frame) = member.node.poll_frame() {
            has_sent = true;
            sent.insert(frame.dest.clone());
            if let Some(grid) = &mut self.grid {
                grid.frames += 1;
                if let Some(transit) = &mut grid.transit {
                    transit.note_sent(&one.address, &frame.dest, &frame.bytes, self.now);
                }
            }
            stack.handle_send(own, Message::bytes(Some(frame.dest), frame.bytes));
        }
        if let Some(backpressure) = self.grid.as_mut().and_then(|grid| grid.backpressure.as_mut()) {
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
            self.finish(at, result);
        }
        for event in events {
            has_sent |= self.event(node, event);
        }
        has_sent |= self.work_store(node);
        has_sent
    }

    /// Handles an event of the member. Returns whether the stack has work to do.
    fn event(&mut self, node: usize, event: NodeEvent) -> bool {
        let name = self.nodes[node].name.clone();
        match event {
            NodeEvent::Installed { .. } => {
                self.installed(node);
                false
            }
            NodeEvent::Left { .. } => {
                if let Some(member) = &mut self.nodes[node].member {
                    member.is_left = true;
                }
                self.note_story(format!("{name} has left the cache"));
                self.close_store(node);
                let own = self.nodes[node].clock(self.now);
                self.nodes[node].is_leaving = true;
                if let Some(stack) = &mut self.nodes[node].stack {
                    stack.handle_disconnect(own);
                }
                true
            }
            NodeEvent::Fetched { iteration, .. } => {
                self.fetched(node, iteration);
                self.fetched_for_clear(node, iteration);
                false
            }
            NodeEvent::Told { listener, .. } => {
                self.wake_listener_client(node, listener);
                false
            }
            // The simulation has no sleeping threads.
            NodeEvent::Expecting => false,
            NodeEvent::Refused { error, .. } => {
                let what = format!("{name} is refused: {error}");
                if let Some(stores) = self.grid.as_mut().and_then(|grid| grid.stores.as_mut()) {
                    stores.refuse(what.clone());
                }
                self.note_story(what);
                false
            }
        }
    }

    fn installed(&mut self, node: usize) {
        let now = self.now;
        self.note_topology(node);
        let (Some(grid), Some(member)) = (&mut self.grid, &self.nodes[node].member) else { return };
        let Some(topology) = member.topology() else { return };
        let rank = |topology: &Topology| (topology.available, topology.id);
        let is_available = topology.availability == Availability::Available;
        let newest = grid.newest.iter().map(rank).max();
        if is_available && newest.is_none_or(|newest| newest < rank(topology)) {
            grid.newest.clear();
        }
        if is_available
            && newest.is_none_or(|newest| newest <= rank(topology))
            && !grid.newest.contains(topology)
        {
            grid.newest.push(topology.clone());
        }
        let one_side = grid.config.partitions != PartitionHandling::AllowReadWrites;
        let vote = |topology: &Topology| (topology.ballot.clone(), topology.id);
        if is_available
            && one_side
            && grid.elected.as_ref().is_none_or(|elected| vote(elected) < vote(topology))
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
            self.nodes[node].name,
            topology.id,
            topology.phase,
            topology.members.len(),
            if is_available { "available" } else { "degraded" }
        );
        let text =
            if grid.with_operations { format!("{text}{}", owners(&self.nodes, topology)) } else { text };
        let id = topology.id;
        grid.story.push((now, text));
        self.note(&[now.0, node as u64, id.into()]);
        self.note_left_out();
        self.judge_running();
        self.judge_iterations();
        self.judge_clears();
        if is_first {
            self.add_clients(node);
            self.add_iterating_clients(node);
            self.add_listener_clients(node);
        }
    }

    /// Returns whether other members may write a key without a member that reads it and does not know: a newer topology is
    /// without it, or has taken it in anew. A member that knows that writers are unreachable, and must not read then, is not
    /// excused.
    fn is_left_out(&self, node: usize, key: &[u8]) -> bool {
        let (Some(grid), Some(member)) = (&self.grid, &self.nodes[node].member) else { return false };
        let Some(own) = member.topology() else { return false };
        let writers = own.write_owners();
        let refuses = grid.config.partitions == PartitionHandling::DenyReadWrites
            && writers.owners(writers.segment_of(key)).any(|owner| own.away().contains(owner));
        !refuses && self.does_not_know(node)
    }

    /// Returns whether a newer topology is without a member, or has taken it in anew, and the member does not know it.
    pub(super) fn does_not_know(&self, node: usize) -> bool {
        let member = self.nodes[node].member.as_ref();
        let (Some(grid), Some(own)) = (&self.grid, member.and_then(|member| member.topology())) else {
            return false;
        };
        let is_degraded = own.availability != Availability::Available;
        let elected = grid.elected.as_ref().filter(|elected| elected.ballot > own.ballot);
        let is_taken_in = |elected: &Topology| {
            elected.membership(&self.nodes[node].address).is_some_and(|one| one.since <= own.id)
        };
        if elected.is_some_and(|elected| !is_taken_in(elected)) {
            return true;
        }
        grid.newest.iter().any(|newest| match newest.membership(&self.nodes[node].address) {
            // Two topologies have one id if the member's own coordinator and another one, which do not know of each other,
            // went on from the same topology. The member also does not know if it has counted on alone since its cache is
            // degraded.
            None => newest.id >= own.id || newest.available > own.available || is_degraded,
            Some(membership) => membership.since > own.id,
        })
    }

    /// Returns whether a member has another cache than the one that goes on.
    fn is_by_itself(&self, node: usize) -> bool {
        let member = self.nodes[node].member.as_ref();
        let (Some(grid), Some(own)) = (&self.grid, member.and_then(|member| member.topology())) else {
            return false;
        };
        grid.newest.iter().any(|newest| newest.origin != own.origin)
    }

    /// Returns the members that may answer a read of a member.
    pub(super) fn readers(&self, node: usize, key: &[u8]) -> BTreeSet<usize> {
        let member = self.nodes[node].member.as_ref();
        let topology = member.and_then(|member| member.topology());
        let own = &self.nodes[node].address;
        let is_owner =
            |topology: &&Topology| topology.read_owners().members().iter().any(|one| one.address == *own);
        // If every member has its own entries, no other member is asked.
        let mode = self.grid.as_ref().map(|grid| grid.config.mode);
        if mode == Some(CacheMode::Invalidation) && topology.as_ref().is_some_and(is_owner) {
            return BTreeSet::from([node]);
        }
        let owners = topology.into_iter().flat_map(|topology| {
            let owners = topology.read_owners();
            owners.owners(owners.segment_of(key))
        });
        let grid = self.grid.as_ref();
        let indices = owners.filter_map(|owner| grid?.indices.get(owner).copied());
        indices.chain([node]).collect()
    }

    fn note_left_out(&mut self) {
        let is_left_out: Vec<bool> = (0..self.nodes.len()).map(|node| self.does_not_know(node)).collect();
        let Some(grid) = &mut self.grid else { return };
        for (node, is_left_out) in is_left_out.into_iter().enumerate() {
            if is_left_out {
                grid.left_out.entry(node).or_insert_with(|| {
                    grid.lost.push((node, self.now));
                    self.now
                });
            } else {
                grid.left_out.remove(&node);
            }
        }
    }

    /// Returns the members from which an iteration of a member may have entries.
    pub(super) fn iteration_sources(&self, node: usize) -> BTreeSet<usize> {
        let topology = self.nodes[node].member.as_ref().and_then(|member| member.topology());
        let owners = topology.into_iter().flat_map(|topology| topology.read_owners().members());
        let grid = self.grid.as_ref();
        owners.filter_map(|owner| grid?.indices.get(&owner.address).copied()).chain([node]).collect()
    }

    fn note_topology(&mut self, node: usize) {
        let Node { member: Some(member), log, .. } = &mut self.nodes[node] else { return };
        let Some(topology) = member.topology() else { return };
        let installed = InstalledTopology {
            id: topology.id,
            members: topology.members.clone(),
            is_degraded: !topology.away().is_empty(),
        };
        if log.topologies.last().is_none_or(|(_, last)| *last != installed) {
            log.topologies.push((self.now, installed));
        }
    }

    /// Marks the running operations that a removed member may answer.
    fn judge_running(&mut self) {
        let running = self.grid.as_ref().map(|grid| grid.running.clone()).unwrap_or_default();
        for at in running {
            self.judge(at);
        }
    }

    pub(super) fn judge(&mut self, at: usize) {
        let Some(operation) = self.grid.as_ref().and_then(|grid| grid.history.get(at)) else { return };
        let more = self.readers(operation.node, &operation.key);
        let is_excused =
            operation.readers.iter().chain(&more).any(|&node| self.is_left_out(node, &operation.key));
        let is_degraded = operation.readers.iter().chain(&more).any(|&node| {
            let topology = self.nodes[node].member.as_ref().and_then(|member| member.topology());
            topology.is_some_and(|topology| !topology.away().is_empty())
        });
        let is_by_itself = self.is_by_itself(operation.node);
        if let Some(operation) = self.grid.as_mut().and_then(|grid| grid.history.get_mut(at)) {
            operation.readers.extend(more);
            operation.is_excused |= is_excused;
            operation.is_degraded |= is_degraded;
            operation.is_by_itself |= is_by_itself;
        }
    }

    /// Begins to leave the cache; the channel follows. Returns false if there is no cache to leave.
    pub(crate) fn leave_cache(&mut self, node: usize) -> bool {
        let own = self.nodes[node].member_clock(self.now);
        let name = self.nodes[node].name.clone();
        let Some(member) =
            self.nodes[node].member.as_mut().filter(|member| member.is_open && !member.is_left)
        else {
            return false;
        };
        if !member.is_leaving {
            member.is_leaving = true;
            let cache = member.cache;
            member.node.leave(own, cache);
            self.nodes[node].is_leaving = true;
            self.note_story(format!("{name} leaves the cache"));
            self.work(node);
        }
        true
    }

    /// Begins an operation. Returns its index in the history.
    pub(crate) fn submit(&mut self, node: usize, client: Option<usize>, key: Bytes, action: Action) -> usize {
        let now = self.now;
        let own = self.nodes[node].member_clock(now);
        let (Some(grid), Some(member)) = (&mut self.grid, &mut self.nodes[node].member) else {
            return usize::MAX;
        };
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
            None => match member.node.submit(own, cache, key, action, super::client::TIMEOUT) {
                Ok(number) => {
                    member.running.insert(number, at);
                    None
                }
                Err(error) => Some(Err(error)),
            },
        };
        self.judge(at);
        if let Some(result) = at_once {
            self.finish(at, result);
        }
        self.work(node);
        at
    }

    fn finish(&mut self, at: usize, result: Result<Outcome, consort_grid::OperationError>) {
        self.judge(at);
        let now = self.now;
        let Some(grid) = &mut self.grid else { return };
        grid.running.remove(&at);
        let operation = &mut grid.history[at];
        let topology = self.nodes[operation.node].member.as_ref().and_then(|member| member.topology());
        let after = topology.map(|topology| &topology.split_points);
        operation.split_points = operation.split_points.take().filter(|before| after == Some(before));
        operation.ended = Some(now);
        if let (Some(stores), Err(error)) = (&mut grid.stores, &result) {
            stores.note(error);
        }
        operation.result = Some(result);
        if grid.with_operations {
            let text = format!(
                "{}: {:?} {:?} since {:?}: {:?}{}",
                self.nodes[operation.node].name,
                operation.key,
                operation.action,
                operation.began,
                operation.result,
                if operation.is_excused { " (removed)" } else { "" }
            );
            grid.story.push((now, text));
        }
        let client = operation.client;
        self.note(&[now.0, at as u64]);
        match client {
            Some(client) => self.turn_over(client, at),
            None => self.note_bulk_end(at),
        }
    }
}
