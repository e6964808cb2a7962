//! A cluster of nodes in virtual time: a channel that keeps the order of frames between two members, views that
//! arrive at each member at a different time, and clients that run one operation after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use consort_grid::{
    Action, Availability, CacheConfig, CacheId, CacheMember, CapacityFactor, Container, ContainerSettings,
    Flags, ListenerId, MemoryBound, MergeFn, Node, NodeEvent, OperationError, Outcome, PartitionHandling,
    Rebalancing, Segment, StoreSettings, SubmitOptions,
};
use consort_group::{Address, Rng, Time, Uuid, View, ViewId};
use consort_memory::ProcessMemory;
use consort_sim::{Clocks, SimStore};

/// An operation in the history of its client.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    pub(crate) member: usize,
    pub(crate) key: Bytes,
    pub(crate) action: Action,
    pub(crate) began: Time,
    /// `None` = its member has ended before.
    pub(crate) ended: Option<Time>,
    pub(crate) result: Option<Result<Outcome, OperationError>>,
    /// Whether its member was cut off without knowing it, or reads in a minority: it may miss writes of other
    /// members.
    pub(crate) is_apart: bool,
}

enum Event {
    Frame { from: usize, to: usize, bytes: Bytes },
    View { to: usize, view: View },
    Wake { node: usize },
    Store { node: usize },
}

pub(crate) struct Member {
    pub(crate) node: Node,
    pub(crate) container: Arc<Container>,
    pub(crate) view: Option<View>,
    pub(crate) is_leaving: bool,
    pub(crate) is_left: bool,
    pub(crate) refused: bool,
    /// Number of times that a reader was woken.
    pub(crate) woken: usize,
    /// Number of responses after which the member expects the next request at once.
    pub(crate) expecting: usize,
    /// Whether the member is cut off from the majority, and does not know it or may read all the same.
    pub(crate) is_apart: bool,
    pub(crate) beside: Option<SimStore>,
    /// Listeners whose readers were woken.
    pub(crate) told: BTreeSet<ListenerId>,
    running: BTreeMap<u64, usize>,
    wakes_at: Option<Time>,
}

#[cfg(feature = "injected-bugs")]
thread_local! {
    /// The injected bug of all clusters that this thread creates.
    pub(crate) static INJECTED_BUG: std::cell::Cell<Option<consort_grid::InjectedBug>> = const { std::cell::Cell::new(None) };
}

/// Returns an empty container for a cache, without a bound and without a store.
pub(crate) fn container_of(config: &CacheConfig) -> Arc<Container> {
    Arc::new(container_with(config, None))
}

/// Returns an empty container with a bound.
pub(crate) fn container_with(config: &CacheConfig, bound: Option<MemoryBound>) -> Container {
    let settings = ContainerSettings {
        segment_count: config.segments,
        bound,
        is_backed: false,
        is_shared: config.mode.is_shared(),
    };
    Container::new(&settings, 1)
}

pub(crate) struct Cluster {
    pub(crate) now: Time,
    pub(crate) rng: Rng,
    pub(crate) config: CacheConfig,
    /// Merge policies that all members have registered.
    pub(crate) merges: Vec<(&'static str, Arc<MergeFn>)>,
    pub(crate) members: Vec<Option<Member>>,
    /// The partition of each member.
    pub(crate) sides: Vec<u8>,
    pub(crate) history: Vec<Done>,
    /// The operations that have ended since the last step.
    pub(crate) ended: Vec<usize>,
    /// Maximum delay of a view to each member.
    pub(crate) view_delay_max: Duration,
    /// Maximum delay of a frame.
    pub(crate) delay_max: Duration,
    /// Links on which all frames are lost, in one direction.
    pub(crate) mute: BTreeSet<(usize, usize)>,
    /// Minimum additional delay of frames on a link.
    pub(crate) slow: BTreeMap<(usize, usize), Duration>,
    /// Another cache of all members. Tests ignore the results of its operations.
    pub(crate) aside: Option<CacheConfig>,
    /// The memory of members with limited memory, including members that are not started yet.
    pub(crate) memory: BTreeMap<usize, ProcessMemory>,
    /// The fraction of members that miss a view that is not a merge.
    pub(crate) missed: f64,
    /// The caches that all members balance.
    pub(crate) rebalancing: Rebalancing,
    /// The injected bug of all members.
    #[cfg(feature = "injected-bugs")]
    pub(crate) injected_bug: Option<consort_grid::InjectedBug>,
    queue: BTreeMap<(Time, u64), Event>,
    tie: u64,
    last: BTreeMap<(usize, usize), Time>,
    last_view: BTreeMap<usize, Time>,
    next_view: u64,
    /// The last view at the time of the last cut.
    cut_view: u64,
    pub(crate) story: Vec<String>,
    pub(crate) frames: u64,
}

pub(crate) fn address(n: usize) -> Address {
    Address::Uuid(Uuid { most: 7, least: n as u64 + 1 })
}

pub(crate) fn number(address: &Address) -> usize {
    address.uuid().map_or(0, |uuid| uuid.least as usize - 1)
}

/// Default maximum delay of a frame.
const DELAY_MAX: Duration = Duration::from_millis(3);

impl Cluster {
    pub(crate) fn new(seed: u64, config: CacheConfig) -> Self {
        Self {
            now: Time::ZERO + Duration::from_secs(1),
            rng: Rng::new(seed),
            config,
            merges: Vec::new(),
            members: Vec::new(),
            sides: Vec::new(),
            history: Vec::new(),
            ended: Vec::new(),
            view_delay_max: Duration::from_millis(20),
            delay_max: DELAY_MAX,
            mute: BTreeSet::new(),
            slow: BTreeMap::new(),
            aside: None,
            memory: BTreeMap::new(),
            missed: 0.0,
            rebalancing: Rebalancing::default(),
            #[cfg(feature = "injected-bugs")]
            injected_bug: INJECTED_BUG.get(),
            queue: BTreeMap::new(),
            tie: 0,
            last: BTreeMap::new(),
            last_view: BTreeMap::new(),
            next_view: 0,
            cut_view: 0,
            story: Vec::new(),
            frames: 0,
        }
    }

    /// Returns a settled cluster of this many members, which have joined one after the other.
    pub(crate) fn settled(seed: u64, config: CacheConfig, members: usize) -> Self {
        let mut cluster = Self::new(seed, config);
        for _ in 0..members {
            cluster.start();
            cluster.run(Duration::from_millis(50));
        }
        cluster.run(Duration::from_secs(2));
        assert!(cluster.is_settled(), "{}", cluster.state());
        cluster
    }

    pub(crate) fn cache(&self) -> CacheId {
        self.config.id()
    }

    pub(crate) fn live_members(&self) -> Vec<usize> {
        (0..self.members.len()).filter(|&n| self.members[n].is_some()).collect()
    }

    pub(crate) fn log(&mut self, what: String) {
        self.story.push(format!("{:?} {what}", self.now));
    }

    fn at(&mut self, at: Time, event: Event) {
        self.tie += 1;
        self.queue.insert((at, self.tie), event);
    }

    /// Starts a member; a view with it follows.
    pub(crate) fn start(&mut self) -> usize {
        let config = self.config.clone();
        self.start_with(config)
    }

    pub(crate) fn start_with(&mut self, config: CacheConfig) -> usize {
        self.start_as(config, CapacityFactor::default())
    }

    /// Starts a member with this configuration and capacity.
    pub(crate) fn start_as(&mut self, config: CacheConfig, capacity: CapacityFactor) -> usize {
        let container = match self.memory.get(&self.members.len()) {
            Some(memory) => Arc::new(container_with(&config, None).within(memory.clone())),
            None => container_of(&config),
        };
        self.start_on(config, capacity, container, None)
    }

    /// Starts a member with a container that may have entries, and with an optional store.
    pub(crate) fn start_on(
        &mut self,
        config: CacheConfig,
        capacity: CapacityFactor,
        container: Arc<Container>,
        beside: Option<(SimStore, StoreSettings)>,
    ) -> usize {
        let n = self.members.len();
        let member = CacheMember { capacity, ..address(n).into() };
        let mut node = Node::new(address(n));
        if let Some(memory) = self.memory.get(&n) {
            node.set_memory(memory.clone());
        }
        #[cfg(feature = "injected-bugs")]
        self.injected_bug.into_iter().for_each(|bug| node.inject_bug(bug));
        node.set_rebalancing(self.now, self.rebalancing.clone());
        for (name, merge) in &self.merges {
            node.register_merge(name, merge.clone());
        }
        let (beside, backing) = beside.unzip();
        node.open_backed(self.now, config, member, container.clone(), backing).expect("a good configuration");
        if let Some(config) = self.aside.clone() {
            let container = container_of(&config);
            node.open(self.now, config, address(n).into(), container).expect("a good configuration");
        }
        self.members.push(Some(Member {
            node,
            container,
            view: None,
            is_leaving: false,
            is_left: false,
            refused: false,
            woken: 0,
            expecting: 0,
            is_apart: false,
            beside,
            told: BTreeSet::new(),
            running: BTreeMap::new(),
            wakes_at: None,
        }));
        self.sides.push(0);
        self.log(format!("M{n} starts"));
        self.deliver_views(false);
        n
    }

    /// Sends a view to all live members of each partition, each with a different delay.
    pub(crate) fn deliver_views(&mut self, is_merge: bool) {
        let sides: BTreeSet<u8> = self.live_members().iter().map(|&n| self.sides[n]).collect();
        for side in sides {
            let members: Vec<usize> =
                self.live_members().into_iter().filter(|&n| self.sides[n] == side).collect();
            self.next_view += 1;
            let id = ViewId { creator: address(members[0]), id: self.next_view };
            let addresses: Vec<Address> = members.iter().map(|&n| address(n)).collect();
            let view = if is_merge {
                let all: Vec<View> = Vec::new();
                View::merged(id, addresses, all)
            } else {
                View::new(id, addresses)
            };
            self.log(format!("view {} {members:?}{}", view.id().id, if is_merge { " merged" } else { "" }));
            for to in members {
                let after = self.rng.duration(Duration::ZERO, self.view_delay_max);
                if !is_merge && self.missed > 0.0 && self.rng.chance(self.missed) {
                    continue;
                }
                // Each member gets them in order.
                let last = self.last_view.entry(to).or_default();
                let at = (self.now + after).max(*last);
                *last = at;
                self.at(at, Event::View { to, view: view.clone() });
            }
        }
    }

    pub(crate) fn leave(&mut self, n: usize) {
        self.log(format!("M{n} leaves"));
        let cache = self.cache();
        self.with(n, |node, now| node.leave(now, cache));
        if let Some(member) = &mut self.members[n] {
            member.is_leaving = true;
        }
    }

    /// Enables or disables the rebalancing of all caches, one member after the other.
    pub(crate) fn set_rebalancing(&mut self, is_enabled: bool) {
        self.log(format!("rebalancing {is_enabled}"));
        self.rebalancing.is_disabled = !is_enabled;
        let rebalancing = self.rebalancing.clone();
        for n in self.live_members() {
            self.with(n, |node, now| node.set_rebalancing(now, rebalancing.clone()));
        }
    }

    /// Returns the number of members that are not leaving.
    pub(crate) fn staying_count(&self) -> usize {
        self.members.iter().flatten().filter(|member| !member.is_leaving).count()
    }

    /// Moves members to these partitions; views follow.
    pub(crate) fn cut(&mut self, sides: Vec<u8>) {
        let alive = self.live_members();
        for &n in &alive {
            let beside = alive.iter().filter(|&&other| sides[other] == sides[n]).count();
            if let Some(member) = self.members[n].as_mut().filter(|_| 2 * beside <= alive.len()) {
                member.is_apart = true;
            }
        }
        self.log(format!("partition {sides:?}"));
        self.sides = sides;
        self.deliver_views(false);
        self.cut_view = self.next_view;
    }

    /// Reunites all partitions.
    pub(crate) fn heal(&mut self) {
        self.log("heals".to_owned());
        self.sides.iter_mut().for_each(|side| *side = 0);
        self.deliver_views(true);
    }

    /// Crashes a member, which may be the last that is not leaving if the others are cut off.
    pub(crate) fn crash(&mut self, n: usize) {
        self.log(format!("M{n} crashes"));
        self.members[n] = None;
    }

    /// Submits an operation of a client. Returns its index in the history.
    pub(crate) fn submit(&mut self, n: usize, key: Bytes, action: Action, timeout: Duration) -> usize {
        self.submit_with(n, key, action, Flags::NONE, timeout)
    }

    pub(crate) fn submit_with(
        &mut self,
        n: usize,
        key: Bytes,
        action: Action,
        flags: Flags,
        timeout: Duration,
    ) -> usize {
        let at = self.history.len();
        self.history.push(Done {
            member: n,
            key: key.clone(),
            action: action.clone(),
            began: self.now,
            ended: None,
            result: None,
            is_apart: self.members[n].as_ref().is_some_and(|member| member.is_apart),
        });
        let (now, cache) = (self.now, self.cache());
        let Some(member) = &mut self.members[n] else { return at };
        let options = SubmitOptions { flags, timeout, ..SubmitOptions::default() };
        match member.node.submit_with(now, cache, key, action, options) {
            Ok(number) => {
                member.running.insert(number, at);
            }
            Err(error) => {
                self.history[at].ended = Some(now);
                self.history[at].result = Some(Err(error));
                self.ended.push(at);
            }
        }
        self.drain(n);
        at
    }

    pub(crate) fn with<R>(&mut self, n: usize, act: impl FnOnce(&mut Node, Time) -> R) -> Option<R> {
        let now = self.now;
        let result = act(&mut self.members[n].as_mut()?.node, now);
        self.drain(n);
        Some(result)
    }

    fn drain(&mut self, n: usize) {
        let now = self.now;
        let Some(member) = &mut self.members[n] else { return };
        let mut frames = Vec::new();
        while let Some(frame) = member.node.poll_frame() {
            frames.push(frame);
        }
        while let Some((number, result)) = member.node.poll_finished() {
            let Some(at) = member.running.remove(&number) else {
                assert!(self.aside.is_some(), "an operation ends once");
                continue;
            };
            self.history[at].ended = Some(now);
            self.history[at].result = Some(result);
            self.history[at].is_apart |= member.is_apart;
            self.ended.push(at);
        }
        while let Some(event) = member.node.poll_event() {
            match event {
                NodeEvent::Left { cache } => member.is_left |= cache == self.config.id(),
                NodeEvent::Fetched { .. } => member.woken += 1,
                NodeEvent::Expecting => member.expecting += 1,
                NodeEvent::Told { listener, .. } => {
                    member.told.insert(listener);
                }
                NodeEvent::Refused { .. } => member.refused = true,
                NodeEvent::Installed { topology, .. } => {
                    let installed = member.node.topology(self.config.id());
                    let is_degraded = installed.is_some_and(|t| t.availability != Availability::Available);
                    let is_denied = self.config.partitions == PartitionHandling::DenyReadWrites;
                    let is_whole = member.view.as_ref().is_some_and(|view| view.id().id > self.cut_view);
                    if is_whole && !is_degraded && self.sides.iter().all(|side| *side == 0)
                        || is_denied && is_degraded
                    {
                        member.is_apart = false;
                    }
                    let text = member
                        .node
                        .topology(self.config.id())
                        .map(|t| format!("{:?} {:?}", t.phase, t.availability));
                    self.story.push(format!("{now:?} M{n} installs {topology} {text:?}"));
                }
            }
        }
        if let Some(beside) = &mut member.beside {
            for at in beside.take(&mut member.node, Clocks::same(now), &mut self.rng) {
                self.tie += 1;
                self.queue.insert((at, self.tie), Event::Store { node: n });
            }
        } else {
            assert_eq!(member.node.poll_store(), None, "without a store nothing is asked of it");
        }
        let wake = member.node.poll_timeout();
        if let Some(at) = wake.filter(|at| member.wakes_at.is_none_or(|planned| *at < planned)) {
            member.wakes_at = Some(at);
            self.at(at, Event::Wake { node: n });
        }
        for frame in frames {
            let to = number(&frame.dest);
            let after = self.rng.duration(Duration::from_micros(50), self.delay_max);
            let after = after + self.slow.get(&(n, to)).copied().unwrap_or_default();
            let at = (now + after).max(self.last.get(&(n, to)).copied().unwrap_or_default());
            self.last.insert((n, to), at);
            self.frames += 1;
            self.at(at, Event::Frame { from: n, to, bytes: frame.bytes });
        }
    }

    /// Runs the next event, if it is before `until`.
    pub(crate) fn step(&mut self, until: Time) -> bool {
        let Some(entry) = self.queue.first_entry().filter(|entry| entry.key().0 <= until) else {
            self.now = until;
            return false;
        };
        let ((at, _), event) = entry.remove_entry();
        self.now = at;
        match event {
            Event::Frame { from, to, bytes } => {
                // Frames across a cut are lost, as when the channel's members have excluded each other.
                if self.sides.get(from) != self.sides.get(to) || self.mute.contains(&(from, to)) {
                    return true;
                }
                let Some(member) = self.members.get_mut(to).and_then(Option::as_mut) else { return true };
                member.node.handle_frame(at, &address(from), bytes).expect("a good frame");
                self.drain(to);
            }
            Event::View { to, view } => {
                let Some(member) = &mut self.members[to] else { return true };
                if member.view.as_ref().is_some_and(|own| own.id() >= view.id()) {
                    return true;
                }
                member.view = Some(view.clone());
                member.node.handle_view(at, &view);
                self.drain(to);
            }
            Event::Store { node: n } => {
                let Some(member) = &mut self.members[n] else { return true };
                let Some(beside) = &mut member.beside else { return true };
                beside.carry_out(&mut member.node, Clocks::same(at));
                self.drain(n);
            }
            Event::Wake { node } => {
                if let Some(member) = &mut self.members[node] {
                    member.wakes_at = None;
                    member.node.handle_timeout(at);
                    self.drain(node);
                }
            }
        }
        true
    }

    pub(crate) fn run(&mut self, time: Duration) {
        let until = self.now + time;
        while self.step(until) {}
    }

    /// Whether every member has a topology.
    pub(crate) fn all_have_topology(&self) -> bool {
        let cache = self.cache();
        self.members.iter().flatten().all(|member| member.is_left || member.node.topology(cache).is_some())
    }

    /// Whether all members have the same stable topology with exactly these members, and all segments have all owners.
    pub(crate) fn is_settled(&self) -> bool {
        // Until the owners of a crashed member are replaced, another crash may hit the last one.
        let alive = self.members.iter().flatten().filter(|member| !member.is_left).count();
        self.has_owners(usize::from(self.config.owner_count()).min(alive))
    }

    /// Whether all members have the same stable topology with exactly these members and at least so many owners.
    pub(crate) fn has_owners(&self, owners: usize) -> bool {
        let alive: Vec<&Member> = self.members.iter().flatten().filter(|member| !member.is_left).collect();
        let cache = self.cache();
        let first = alive.first().and_then(|member| member.node.topology(cache));
        first.is_none_or(|first| {
            first.members.len() == alive.len()
                && first.current.segments().all(|segment| first.current.owners(segment).len() >= owners)
                && first.phase == consort_grid::Phase::Stable
                && first.availability == Availability::Available
                && alive.iter().all(|member| member.node.topology(cache) == Some(first))
        })
    }

    /// Checks that all owners of each segment have the same entries.
    pub(crate) fn check_agreement(&self) {
        let cache = self.cache();
        let Some(first) = self.members.iter().flatten().find(|member| !member.is_left) else { return };
        let Some(topology) = first.node.topology(cache) else { return };
        for segment in topology.current.segments() {
            let mut contents = Vec::new();
            for owner in topology.current.owners(segment) {
                let n = number(owner);
                let member = self.members[n].as_ref().expect("an owner is there");
                contents.push((n, entries(&member.container, segment, self.now)));
            }
            for pair in contents.windows(2) {
                let [(one, left), (other, right)] = pair else { continue };
                let is_same = left.len() == right.len()
                    && left.iter().zip(right).all(
                        |((key, (value, version)), (other, (theirs, their_version)))| {
                            // Where only a store has the value, equal versions suffice.
                            let is_known = value.is_some() && theirs.is_some();
                            key == other && version == their_version && (value == theirs || !is_known)
                        },
                    );
                assert!(is_same, "M{one} and M{other} in segment {segment}: {left:?} and {right:?}");
            }
        }
    }
}

/// Values and versions by key; `None` where only the store has the value.
type Contents = BTreeMap<Bytes, (Option<Bytes>, u64)>;

pub(crate) fn entries(container: &Container, segment: Segment, now: Time) -> Contents {
    use consort_grid::{ChunkLimits, Cursor};
    let limits = ChunkLimits { entries_max: usize::MAX, bytes_max: usize::MAX };
    let chunk = container.chunk(segment, Cursor::START, limits, now).expect("an owner has it");
    let value = |entry: consort_grid::Entry| ((!entry.is_passive()).then_some(entry.value), entry.version.0);
    chunk.entries.into_iter().map(|(key, entry)| (key, value(entry))).collect()
}

impl Cluster {
    /// Returns the state of each member as text.
    pub(crate) fn state(&self) -> String {
        let cache = self.cache();
        let mut text = String::new();
        for (n, member) in self.members.iter().enumerate() {
            let Some(member) = member else { continue };
            let topology = member.node.topology(cache);
            text += &format!(
                "M{n} left={} refused={} view={:?} topology={:?} progress={:?} counters={:?} wakes={:?}\n  {}\n",
                member.is_left,
                member.refused,
                member.view.as_ref().map(|view| view.id().id),
                topology.map(|t| (t.id, t.phase, t.members.len(), t.availability.clone(), t.rebalance)),
                member.node.stats().progress(cache),
                member.node.stats().counters(),
                member.wakes_at,
                member.node.stats().describe(),
            );
        }
        text
    }
}
