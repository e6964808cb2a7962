//! The grid's member on its channel: one [`Node`] behind one lock, which the driver's task and the application's threads hold
//! briefly. Wakers are woken without the lock.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use consort_channel::{
    Address, DriverWaker, Member, Message, MessageBatch, SendCapacity, UpHandler, View, WeakChannel,
};
use consort_grid::{
    Availability, CacheId, Computation, Computed, IterationId, ListenError, ListenerId, NamesMembers, Next,
    Node, NodeEvent, OperationError, Progress, Publication, TakenEvents, Topology, is_frame,
};
use consort_group::Time;
use consort_memory::ProcessMemory;
use consort_net::Clock;

use crate::adaptive_spin::ResponderSpin;
use crate::backpressure::Backpressure;
use crate::iterations::{Came, ConsumedQueue, Iterations, Reader, iterations};
use crate::manager_events::{ManagerEvent, ManagerListeners};
use crate::open_cache::{CachePhase, OpenCache};
use crate::store_driver::{Completions, Stores};
use crate::waiters::{self, Waiters};
use crate::workers::{Computing, Workers};

/// How often waiting operations check their timeout, as in the grid.
const LOOK_AFTER: Duration = Duration::from_millis(250);

/// The clock's first value: entries may be older than their member's process.
const BEGINNING: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 100);

const NEVER: u64 = u64::MAX;

/// A cache that has ended stays until its store is closed, so that opening it meanwhile fails.
type OpenCaches = BTreeMap<CacheId, Arc<OpenCache>>;

/// The traffic with other members.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Traffic {
    /// Messages to others: the frames of one driver cycle for one member.
    pub messages_sent: u64,
    /// Bytes sent.
    pub bytes_sent: u64,
    /// Messages from others.
    pub messages_received: u64,
    /// Bytes received.
    pub bytes_received: u64,
}

pub(crate) struct State {
    /// `None` before the channel has opened and after it has closed.
    pub(crate) node: Option<Node>,
    pub(crate) backpressure: Backpressure,
    pub(crate) traffic: Traffic,
    pub(crate) stores: Stores,
    iterations: Iterations,
}

pub(crate) struct GridHandler {
    clock: Clock,
    transfer_budget: u32,
    pub(crate) memory: Option<ProcessMemory>,
    bell: OnceLock<DriverWaker>,
    /// For the names of members.
    channel: OnceLock<WeakChannel>,
    state: Mutex<State>,
    /// Locked after `state`, if both are.
    waiters: Mutex<Waiters>,
    consumed: ConsumedQueue,
    /// Locked after `state`, if both are.
    readers: Mutex<BTreeMap<ListenerId, Waker>>,
    pub(crate) manager_listeners: ManagerListeners,
    pub(crate) silent: Mutex<Vec<Address>>,
    caches: Arc<Mutex<OpenCaches>>,
    pub(crate) completions: Arc<Completions>,
    /// Written under `state`'s lock.
    has_frames: AtomicBool,
    /// Written under `state`'s lock.
    deadline: AtomicU64,
    /// Written under `state`'s lock.
    wants_refresh: AtomicBool,
    responder_spin: Arc<ResponderSpin>,
    pub(crate) workers: Workers<Self>,
}

#[derive(Default)]
pub(crate) struct DeferredEffects {
    finished: Vec<(u64, waiters::Result)>,
    events: Vec<(NodeEvent, Option<(Topology, Progress)>)>,
    wakers: BTreeMap<u64, Waker>,
    readers: Vec<Waker>,
    has_frames: bool,
    has_computations: bool,
    rings: bool,
}

impl DeferredEffects {
    pub(crate) fn has_frames(&self) -> bool {
        self.has_frames
    }
}

impl GridHandler {
    pub(crate) fn new(transfer_budget: u32, memory: Option<ProcessMemory>) -> Self {
        let (iterations, consumed) = iterations();
        let state = State {
            node: None,
            backpressure: Backpressure::default(),
            traffic: Traffic::default(),
            stores: Stores::default(),
            iterations,
        };
        Self {
            clock: Clock::start(),
            transfer_budget,
            memory,
            bell: OnceLock::new(),
            channel: OnceLock::new(),
            state: Mutex::new(state),
            waiters: Mutex::default(),
            consumed,
            readers: Mutex::default(),
            manager_listeners: ManagerListeners::default(),
            silent: Mutex::default(),
            caches: Arc::default(),
            completions: Arc::default(),
            has_frames: AtomicBool::new(false),
            deadline: AtomicU64::new(NEVER),
            wants_refresh: AtomicBool::new(false),
            responder_spin: Arc::default(),
            workers: Workers::default(),
        }
    }

    pub(crate) fn now(&self) -> Time {
        self.clock.now() + BEGINNING
    }

    pub(crate) fn clock(&self) -> impl Fn() -> Time + Send + Sync + use<> {
        let clock = self.clock;
        move || clock.now() + BEGINNING
    }

    // A panic under a lock ends the driver, which calls `closed`; other callers then get that result.

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn waiters(&self) -> MutexGuard<'_, Waiters> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn caches(&self) -> MutexGuard<'_, OpenCaches> {
        self.caches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn poll_next(
        &self,
        cache: CacheId,
        iteration: &mut Option<Reader>,
        publication: &Publication,
        cx: &mut Context<'_>,
    ) -> Poll<Came> {
        if let Some((came, rings)) = iteration.as_mut().and_then(|reader| reader.take(&self.consumed)) {
            if rings {
                self.ring();
            }
            return Poll::Ready(came.map_err(|error| self.named(error)));
        }
        let mut state = self.state();
        let State { node: Some(node), iterations, .. } = &mut *state else {
            return Poll::Ready(Err(OperationError::Closed.into()));
        };
        let reader = match iteration {
            Some(reader) => reader,
            None => match iterations.begin(node, self.now(), cache, publication) {
                Ok(reader) => iteration.insert(reader),
                Err(error) => return Poll::Ready(Err(error)),
            },
        };
        let came = iterations.take(node, self.now(), reader, cx.waker());
        let effects = self.drain(&mut state, |_, _| true);
        drop(state);
        self.deliver_effects(effects);
        match came {
            Ok(Next::Nothing) => Poll::Pending,
            came => Poll::Ready(came.map_err(|error| self.named(error))),
        }
    }

    pub(crate) fn cancel(&self, id: IterationId) {
        let State { node, iterations, .. } = &mut *self.state();
        if let (Some(cache), Some(node)) = (iterations.cancel(id), node) {
            node.cancel(cache, id);
        }
    }

    fn readers(&self) -> MutexGuard<'_, BTreeMap<ListenerId, Waker>> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn poll_listening(
        &self,
        cache: CacheId,
        id: ListenerId,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), ListenError>> {
        let state = self.state();
        let Some(node) = &state.node else { return Poll::Ready(Err(OperationError::Closed.into())) };
        match node.is_listening(cache, id) {
            Err(error) => Poll::Ready(Err(self.named(error))),
            Ok(true) => Poll::Ready(Ok(())),
            Ok(false) => {
                self.readers().insert(id, cx.waker().clone());
                Poll::Pending
            }
        }
    }

    pub(crate) fn poll_events(
        &self,
        cache: CacheId,
        id: ListenerId,
        cx: &mut Context<'_>,
    ) -> Poll<Result<TakenEvents, ListenError>> {
        let mut state = self.state();
        let Some(node) = &mut state.node else {
            return Poll::Ready(Err(OperationError::Closed.into()));
        };
        let events = node.take_events(self.now(), cache, id);
        let is_pending = events.as_ref().is_ok_and(TakenEvents::is_empty);
        if is_pending {
            self.readers().insert(id, cx.waker().clone());
        }
        let effects = self.drain(&mut state, |_, _| true);
        drop(state);
        self.deliver_effects(effects);
        if is_pending { Poll::Pending } else { Poll::Ready(events.map_err(|error| self.named(error))) }
    }

    pub(crate) fn end_listener(&self, cache: CacheId, id: ListenerId) {
        self.readers().remove(&id);
        self.with_node(|node, now| node.end_listener(now, cache, id));
    }

    pub(crate) fn with_node<R>(&self, act: impl FnOnce(&mut Node, Time) -> R) -> Option<R> {
        let mut state = self.state();
        let node = state.node.as_mut()?;
        let result = act(node, self.now());
        let effects = self.drain(&mut state, |_, _| true);
        drop(state);
        self.deliver_effects(effects);
        Some(result)
    }

    /// Collects the node's output. `is_news` gets each finished operation; false means that it keeps the
    /// result because no other task needs it.
    pub(crate) fn drain(
        &self,
        state: &mut State,
        mut is_news: impl FnMut(u64, &mut waiters::Result) -> bool,
    ) -> DeferredEffects {
        let mut effects = DeferredEffects::default();
        let State { node: Some(node), stores, iterations, .. } = state else { return effects };
        if !stores.is_empty() {
            stores.serve(node, &self.completions, self.now());
        }
        // Every operation runs this: the clock is read only if there is work.
        if self.consumed.has_any() {
            effects.readers = iterations.process_consumed(node, self.now(), &self.consumed);
        }
        while let Some((number, mut result)) = node.poll_finished() {
            if is_news(number, &mut result) {
                effects.finished.push((number, result));
            }
        }
        while let Some(event) = node.poll_event() {
            if let NodeEvent::Fetched { iteration, .. } = event {
                effects.readers.extend(iterations.bring(node, self.now(), iteration));
                continue;
            }
            let topology = match &event {
                NodeEvent::Installed { cache, .. } => {
                    node.topology(*cache).map(|topology| (topology.clone(), node.stats().progress(*cache)))
                }
                _ => None,
            };
            effects.events.push((event, topology));
        }
        let has_frames = node.has_frames();
        self.has_frames.store(has_frames, Ordering::Release);
        if !effects.finished.is_empty() && state.backpressure.has_parked() && !node.is_busy() {
            // Our operations have room again. An operation that waits for another kind of room checks in vain.
            effects.wakers = state.backpressure.take_parked();
        }
        let node_wakes = node.poll_timeout().map_or(NEVER, |at| at.0);
        let known = self.deadline.load(Ordering::Relaxed);
        let parked =
            if state.backpressure.has_parked() { (self.now() + LOOK_AFTER).0.min(known) } else { NEVER };
        let deadline = node_wakes.min(parked);
        self.deadline.store(deadline, Ordering::Release);
        self.wants_refresh.store(state.backpressure.wants_refresh(), Ordering::Release);
        effects.has_frames = has_frames;
        effects.has_computations = node.has_computations();
        effects.rings = has_frames || deadline < known;
        effects
    }

    pub(crate) fn ring(&self) {
        if let Some(bell) = self.bell.get() {
            bell.wake();
        }
    }

    pub(crate) fn address(&self) -> Option<Address> {
        self.channel.get().map(|channel| channel.address().clone())
    }

    fn member(&self, address: &Address) -> Member {
        self.channel.get().map_or_else(|| address.clone().into(), |channel| channel.member(address))
    }

    pub(crate) fn named<E: NamesMembers>(&self, mut error: E) -> E {
        error.each_member(&mut |member| *member = self.member(&member.address));
        error
    }

    pub(crate) fn deliver_effects(&self, effects: DeferredEffects) {
        if effects.rings {
            self.ring();
        }
        self.deliver_effects_quietly(effects);
    }

    /// From the driver's task, which polls for frames anyway.
    fn deliver_effects_quietly(&self, effects: DeferredEffects) {
        if effects.has_computations {
            self.workers.start();
        }
        if !effects.finished.is_empty() {
            let mut wakers: Vec<Waker> = Vec::with_capacity(effects.finished.len());
            let mut waiters = self.waiters();
            for (number, result) in effects.finished {
                wakers.extend(waiters.finish(number, result));
            }
            drop(waiters);
            wakers.into_iter().for_each(Waker::wake);
        }
        effects.wakers.into_values().chain(effects.readers).for_each(Waker::wake);
        for (event, topology) in effects.events {
            self.publish_event(event, topology);
        }
    }

    fn publish_event(&self, event: NodeEvent, topology: Option<(Topology, Progress)>) {
        let (id, phase) = match event {
            NodeEvent::Installed { cache, .. } => {
                let cache = self.caches().get(&cache).cloned();
                if let (Some(cache), Some((topology, progress))) = (cache, topology) {
                    self.publish_topology(&cache, &topology, progress);
                    cache.installed(topology);
                }
                return;
            }
            // The driver has put the items into the reader's queue.
            NodeEvent::Fetched { .. } => return,
            NodeEvent::Expecting => return self.responder_spin.expect(),
            NodeEvent::Told { listener, .. } => {
                let waker = self.readers().remove(&listener);
                if let Some(waker) = waker {
                    waker.wake();
                }
                return;
            }
            NodeEvent::Refused { cache, error } => (cache, CachePhase::Refused(self.named(error))),
            NodeEvent::Left { cache } => (cache, CachePhase::Closed),
        };
        let Some(cache) = self.caches().get(&id).cloned() else { return };
        self.manager_listeners.publish(&ManagerEvent::Closed { cache: cache.config.name.clone() });
        self.end(cache, phase);
    }

    /// Its store is closed.
    fn end(&self, cache: Arc<OpenCache>, phase: CachePhase) {
        if !cache.begin_ending() {
            return;
        }
        let id = cache.id;
        let store = self.state().stores.remove(id);
        let caches = self.caches.clone();
        let then = move || {
            caches.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
            cache.ended(phase);
        };
        match store {
            Some(store) => store.close(then),
            None => then(),
        }
    }

    fn publish_topology(&self, opened: &OpenCache, topology: &Topology, progress: Progress) {
        let before = opened.topology.borrow().as_ref().map(|known| known.availability.clone());
        let availability = topology.availability.clone();
        let cache = opened.config.name.clone();
        let told =
            ManagerEvent::Topology { cache: cache.clone(), topology: Box::new(topology.clone()), progress };
        self.manager_listeners.publish(&told);
        if before.unwrap_or(Availability::Available) != availability {
            self.manager_listeners.publish(&ManagerEvent::Availability { cache, availability });
        }
    }

    fn driven(&self, act: impl FnOnce(&mut Node, &mut Traffic, Time)) {
        let mut state = self.state();
        let State { node, traffic, .. } = &mut *state;
        let Some(node) = node else { return };
        act(node, traffic, self.now());
        let effects = self.drain(&mut state, |_, _| true);
        drop(state);
        self.deliver_effects_quietly(effects);
    }
}

impl Computing for GridHandler {
    fn workers(&self) -> &Workers<Self> {
        &self.workers
    }

    fn take_computation(&self, end: impl FnOnce()) -> Option<Computation> {
        let mut state = self.state();
        let now = self.now();
        let computation = state.node.as_mut().and_then(|node| node.take_computation(now));
        if computation.is_none() {
            end();
        }
        let effects = self.drain(&mut state, |_, _| true);
        drop(state);
        self.deliver_effects(effects);
        computation
    }

    fn finish_computation(&self, computed: Computed) {
        self.with_node(|node, now| node.finish_computation(now, computed));
    }
}

impl UpHandler for GridHandler {
    fn opened(&self, channel: WeakChannel) {
        let mut node = Node::new(channel.address().clone());
        node.set_transfer_budget(self.transfer_budget);
        self.memory.iter().for_each(|memory| node.set_memory(memory.clone()));
        self.state().node = Some(node);
        let _ = self.bell.set(channel.waker());
        self.completions.set_bell(channel.waker());
        let _ = self.channel.set(channel);
    }

    fn takes(&self, message: &Message) -> bool {
        message.payload_bytes().is_some_and(|bytes| is_frame(bytes))
    }

    fn handle_batch(&self, batch: MessageBatch) {
        let Some(from) = batch.src().cloned() else { return };
        self.responder_spin.reset();
        self.driven(|node, traffic, now| {
            for message in &batch.messages {
                let Some(bytes) = message.payload_bytes() else { continue };
                traffic.messages_received += 1;
                traffic.bytes_received += bytes.len() as u64;
                if let Err(error) = node.handle_frame(now, &from, bytes.clone()) {
                    let from = self.member(&from);
                    tracing::warn!(%from, %error, "a frame that cannot be read");
                }
            }
        });
    }

    fn view(&self, view: &View) {
        let mut state = self.state();
        state.backpressure.keep(|member| view.contains(member));
        let parked = state.backpressure.take_parked();
        drop(state);
        self.manager_listeners.publish(&ManagerEvent::View(view.clone()));
        self.driven(|node, _, now| node.handle_view(now, view));
        parked.into_values().for_each(Waker::wake);
    }

    fn silent(&self, members: &[Address]) {
        *self.silent.lock().unwrap_or_else(PoisonError::into_inner) = members.to_vec();
        self.driven(|node, _, now| node.handle_silence(now, members));
        self.manager_listeners.publish(&ManagerEvent::Silent(members.to_vec()));
    }

    fn poll_send(&self) -> Option<Message> {
        if self.completions.has_any() || self.consumed.has_any() {
            self.driven(|_, _, _| {});
        }
        if !self.has_frames.load(Ordering::Acquire) {
            return None;
        }
        let mut state = self.state();
        let frame = state.node.as_mut().and_then(Node::poll_frame);
        match &frame {
            Some(frame) => {
                state.backpressure.note_sent(&frame.dest);
                state.traffic.messages_sent += 1;
                state.traffic.bytes_sent += frame.bytes.len() as u64;
                self.wants_refresh.store(true, Ordering::Release);
            }
            None => self.has_frames.store(false, Ordering::Release),
        }
        drop(state);
        // The protocol relies on order between two members: no OOB.
        frame.map(|frame| Message::bytes(Some(frame.dest), frame.bytes))
    }

    fn after_cycle(&self, room: &SendCapacity<'_>) {
        if !self.wants_refresh.load(Ordering::Acquire) {
            return;
        }
        let mut state = self.state();
        let State { node, backpressure, .. } = &mut *state;
        let burst = room.burst_bytes();
        let mut has_answered = false;
        let woken = backpressure.refresh(room, |member, is_open| {
            if let Some(node) = node {
                has_answered |= node.handle_room(|| self.now(), member, is_open, burst);
            }
        });
        self.wants_refresh.store(backpressure.wants_refresh(), Ordering::Release);
        // Every cycle runs this: the driver is woken for another cycle only if there is work for it.
        let effects = has_answered.then(|| self.drain(&mut state, |_, _| true));
        drop(state);
        if let Some(effects) = effects {
            self.deliver_effects(effects);
        }
        woken.into_values().for_each(Waker::wake);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        match self.deadline.load(Ordering::Acquire) {
            NEVER => None,
            at => Some(self.clock.instant(Time(at.saturating_sub(BEGINNING.as_nanos() as u64)))),
        }
    }

    fn handle_timeout(&self, _now: Instant) {
        let parked = self.state().backpressure.take_parked();
        self.driven(|node, _, now| node.handle_timeout(now));
        parked.into_values().for_each(Waker::wake);
    }

    /// A cache's messages are its calls; their contents are not measured.
    fn probe(&self, key: &str) -> Option<String> {
        match key {
            "rpcs" | "stats" => {
                let Traffic { messages_sent, bytes_sent, messages_received, bytes_received } =
                    self.state().traffic;
                Some(format!(
                    "messages_sent={messages_sent}, bytes_sent={bytes_sent}, \
                     messages_received={messages_received}, bytes_received={bytes_received}"
                ))
            }
            "requests" | "reqtable-info" => Some(self.waiters().len().to_string()),
            "rpcs-reset" | "rtt-reset" => Some("caches' counters only grow".to_owned()),
            "rpcs-details" | "rtt" => Some("round trips of caches are not measured".to_owned()),
            "rpcs-enable-details" | "rpcs-disable-details" | "enable-rpcstats" | "disable-rpcstats" => {
                Some("there are no details of caches".to_owned())
            }
            _ => None,
        }
    }

    fn closed(&self) {
        let mut state = self.state();
        let node = state.node.take();
        let parked = state.backpressure.take_parked();
        let waiting = self.waiters().end();
        let iterations = state.iterations.end();
        drop(state);
        drop(node);
        let readers = std::mem::take(&mut *self.readers());
        let waiting = waiting.into_iter().chain(iterations).chain(readers.into_values());
        parked.into_values().chain(waiting).for_each(Waker::wake);
        self.manager_listeners.end();
        let caches: Vec<Arc<OpenCache>> = self.caches().values().cloned().collect();
        caches.into_iter().for_each(|cache| self.end(cache, CachePhase::Closed));
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use consort_grid::{
        Action, CacheConfig, Change, Condition, Container, ContainerSettings, Event, Lifetime, ListenOptions,
        Write,
    };
    use consort_group::{Address, Uuid, ViewId};

    use super::*;

    /// An entry that expired before a listener requests the present entries is not among them.
    #[test]
    fn state_of_a_listener_has_no_expired_entries() {
        let member = Address::Uuid(Uuid { most: 1, least: 1 });
        let config = CacheConfig::new("c");
        let id = config.id();
        let settings = ContainerSettings {
            segment_count: config.segments,
            bound: None,
            is_backed: false,
            is_shared: true,
        };
        let mut node = Node::new(member.clone());
        let before = Time::ZERO + BEGINNING / 2;
        node.handle_view(before, &View::new(ViewId { creator: member.clone(), id: 1 }, vec![member.clone()]));
        let container = Arc::new(Container::new(&settings, 1));
        node.open(before, config, member.into(), container).expect("a good configuration");
        for (key, lifespan) in [("for a while", Some(BEGINNING / 4)), ("for ever", None)] {
            let lifetime = Lifetime { lifespan, max_idle: None };
            let change = Change::Put { value: Bytes::from_static(b"v"), lifetime };
            let write = Write { condition: Condition::Always, change, wants_previous: false };
            let put = node.submit(before, id, Bytes::from(key), Action::Write(write), Duration::from_secs(1));
            put.expect("alone");
        }
        let options = ListenOptions { with_state: true, ..ListenOptions::default() };
        let listener = node.listen(before, id, options).expect("a listener");
        let handler = GridHandler::new(1, None);
        handler.state().node = Some(node);
        let mut keys = Vec::new();
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            let Poll::Ready(Ok(events)) = handler.poll_events(id, listener, &mut cx) else {
                panic!("{keys:?}")
            };
            for event in events {
                match event {
                    Event::Entry(event) => keys.push(event.key),
                    Event::Complete => return assert_eq!(keys, [&b"for ever"[..]]),
                    Event::Gap => panic!("{keys:?}"),
                }
            }
        }
    }

    #[test]
    fn a_member_with_caches_answers_probes_keys_for_calls() {
        let handler = GridHandler::new(1, None);
        let told = handler.probe("rpcs").expect("an answer");
        assert_eq!(told, "messages_sent=0, bytes_sent=0, messages_received=0, bytes_received=0");
        assert_eq!(handler.probe("requests").as_deref(), Some("0"));
        for key in
            ["rpcs-reset", "rpcs-details", "rpcs-enable-details", "rpcs-disable-details", "stats", "rtt"]
        {
            assert!(handler.probe(key).is_some(), "{key}");
        }
        assert_eq!(handler.probe("jmx"), None, "that is the stack's");
    }
}
