//! The listeners of a cache on this member, and their events (`docs/design/2026-11-grid.md`, Listeners).
//!
//! A member reports its interest to the coordinator, and the next topology names it. A listener is *ready*,
//! and receives the event of every later write, when every primary has reported that topology.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use consort_group::{Address, Time};

use crate::command::{Notify, ToCoordinator};
use crate::config::CacheId;
use crate::cx::Cx;
use crate::cx::NodeEvent;
use crate::cx::waiting_events::TakenEvents;
use crate::event::{EntryEvent, ListenError, ListenOptions, ListenerId, Scope};
use crate::injected_bugs::InjectedBug;
use crate::operation::{OperationError, ReadFrom};
use crate::publication::{IterationId, Next, Projection, Publication, TransformFn};
use crate::replica::events::listener::{Listener, Walk};
use crate::replica::events::listener_table::ListenerTable;
use crate::replica::iterate::Iterations;
use crate::replica::store::Store;
use crate::replica::{Installed, Shared};
use crate::topology::{Interest, Listening, Topology};
use crate::{Segment, Version};

/// Bounded because each listener keeps events that its reader has not taken.
pub(crate) const LISTENERS_MAX: usize = 65_536;

/// Clients that come and go do not cause a topology each, because a member receives events for this time
/// after its last listener.
const LINGER: Duration = Duration::from_secs(30);

/// There is one run of versions for each topology since the segment's owners last changed. Older versions
/// count as delivered.
const RUNS_MAX: usize = 64;

/// Then a listener reads the present entries without the marks of all primaries, which may be lost with a
/// link.
const STATE_WAITS_MAX: Duration = Duration::from_secs(3);

const STATE_BATCH: usize = 256;

#[derive(Default)]
pub(crate) struct Listeners {
    all: ListenerTable,
    known: Option<Listening>,
    /// For each segment, the last topology whose primary has reported all earlier events as sent.
    marked: Vec<u32>,
    holders: Vec<Option<EventHolders>>,
    told: BTreeMap<Segment, DeliveredVersions>,
    /// When the last listener of the cluster's changes ended.
    idle_since: Option<Time>,
}

#[derive(Default)]
struct DeliveredVersions {
    /// Each lower version was delivered, or never will be.
    floor: Version,
    /// The first and the last version of each run above the floor.
    runs: Vec<(Version, Version)>,
}

enum EventSource {
    Fresh,
    /// Earlier versions of the same primary have not arrived.
    Ahead,
    Known,
    Late,
}

impl DeliveredVersions {
    fn newest(&self) -> Version {
        self.runs.last().map_or(self.floor, |run| run.1)
    }

    /// `primary_term` is the topology since which the segment's primary is the same.
    fn take(&mut self, version: Version, primary_term: u32) -> EventSource {
        let is_next = |last: &Version| last.topology() < primary_term || version.count() <= last.count() + 1;
        let is_ahead =
            version.topology() >= primary_term && self.runs.last().is_some_and(|(_, last)| !is_next(last));
        match self.runs.last_mut() {
            _ if version < self.floor => return EventSource::Known,
            Some((_, last)) if version.0 == last.0 + 1 => *last = version,
            Some((_, last)) if version <= *last => {
                let is_in = |&(first, last): &(Version, Version)| first <= version && version <= last;
                return if self.runs.iter().any(is_in) { EventSource::Known } else { EventSource::Late };
            }
            _ => self.runs.push((version, version)),
        }
        if self.runs.len() > RUNS_MAX {
            let (_, last) = self.runs.remove(0);
            self.floor = Version(last.0 + 1);
        }
        if is_ahead { EventSource::Ahead } else { EventSource::Fresh }
    }

    fn raise(&mut self, floor: Version) {
        self.floor = floor.max(self.floor);
        self.runs.retain(|(_, last)| *last >= floor);
    }
}

impl Listeners {
    pub(crate) fn is_idle(&self) -> bool {
        self.all.is_empty() && self.known.is_none()
    }

    /// The readers' next call returns that the cache is closed.
    pub(crate) fn wake_readers(&self, cache: CacheId, cx: &mut Cx) {
        for listener in self.all.ids() {
            cx.events.push_back(NodeEvent::Told { cache, listener });
        }
    }

    pub(crate) fn want_previous(&self) -> bool {
        self.all.want_previous()
    }

    /// Whether this member notes the versions of received events. Versions that pass without a note void
    /// earlier notes.
    fn notes_versions(&self) -> bool {
        self.known.is_some() || self.has_clustered()
    }

    pub(crate) fn has_clustered(&self) -> bool {
        self.all.has_clustered()
    }

    pub(crate) fn of_walk(&self, walk: IterationId) -> Option<ListenerId> {
        self.all.of_iteration(walk)
    }

    pub(crate) fn is_settled(&self) -> bool {
        !self.all.has_waiting() && (self.has_clustered() || self.known.is_none())
    }

    fn note_holders(&mut self, cx: &Cx, before: &Installed, now: &Installed) -> bool {
        let forgets = cx.has(InjectedBug::UndoneUntold);
        let segments = before.writes.segments();
        self.holders.resize_with(segments.len(), || None);
        let mut is_undone = false;
        for segment in segments {
            let at = usize::from(segment.0);
            let marked = self.marked.get(at).copied().unwrap_or(0);
            // Until the primary has sent every event again, only the earlier holders may have the delivered writes.
            if marked >= before.topology.epoch(segment) || self.holders[at].is_none() || forgets {
                self.holders[at] = Some(EventHolders::of(before, segment, &cx.local));
            }
            is_undone |= self.holders[at].as_ref().is_some_and(|holders| holders.are_lost(now, segment));
        }
        is_undone
    }

    fn interest(&mut self, now: Time) -> Interest {
        let before = self.known.map_or(Interest::Nothing, |known| known.interest);
        match self.all.cluster_interest() {
            Some(interest) => {
                self.idle_since = None;
                interest.max(before)
            }
            None => {
                let idle = now.since(*self.idle_since.get_or_insert(now));
                if idle < LINGER { before } else { Interest::Nothing }
            }
        }
    }
}

impl Listeners {
    pub(crate) fn listen(
        &mut self,
        shared: &Shared,
        iterations: &Iterations,
        cx: &mut Cx,
        id: ListenerId,
        options: ListenOptions,
    ) -> Result<(), ListenError> {
        if options.scope == Scope::Cluster && shared.is_invalidation() {
            let what = "a listener of the whole cluster";
            return Err(OperationError::Unsupported { what, mode: shared.config.mode }.into());
        }
        if self.all.len() >= LISTENERS_MAX {
            return Err(ListenError::TooMany(LISTENERS_MAX));
        }
        let function: Option<Arc<TransformFn>> = match &options.transform {
            None => None,
            Some(transform) => match iterations.transforms.get(&transform.name) {
                Some(function) => Some(function.clone()),
                None => return Err(ListenError::UnknownTransform(transform.name.clone())),
            },
        };
        self.all.insert(id, Listener::new(options, function, cx.waiting_events.part()));
        self.settle(shared, cx, &[id]);
        self.announce_interest(shared, cx);
        Ok(())
    }

    pub(crate) fn end_listener(&mut self, iterations: &mut Iterations, cx: &Cx, id: ListenerId) {
        let ended = self.all.remove(id);
        if !self.notes_versions() && !cx.has(InjectedBug::ToldKept) {
            self.told.clear();
            self.holders.clear();
        }
        if let Some(Listener { walk: Walk::Under(walk), .. }) = ended {
            iterations.cancel(walk);
        }
    }

    pub(crate) fn is_listening(&self, shared: &Shared, id: ListenerId) -> Result<bool, OperationError> {
        let listener = self.all.get(id).ok_or(OperationError::Closed)?;
        match shared.missing_primary() {
            Some((segment, away)) if !listener.is_ready => {
                Err(OperationError::Degraded { segment, away: vec![away.clone().into()] })
            }
            _ => Ok(listener.is_ready),
        }
    }

    /// An empty result promises a later wake-up of the reader.
    pub(crate) fn take_events(
        &mut self,
        shared: &Shared,
        store: &Store,
        iterations: &mut Iterations,
        cx: &mut Cx,
        id: ListenerId,
        next_walk: &mut u64,
    ) -> Result<TakenEvents, ListenError> {
        let Some(mut listener) = self.all.remove(id) else {
            return Err(OperationError::Closed.into());
        };
        while !listener.has_events() && listener.is_ready {
            match listener.walk {
                Walk::Over => break,
                Walk::Wanted if !self.may_read_state(shared, cx, &listener) => break,
                Walk::Wanted => {
                    *next_walk += 1;
                    let walk = IterationId(*next_walk);
                    iterations.iterate(shared, walk, state_of(shared, cx, &listener.options))?;
                    listener.walk = Walk::Under(walk);
                }
                Walk::Under(walk) => match iterations.take(shared, store, cx, walk) {
                    Err(error) => return Err(error.into()),
                    Ok(Next::Nothing) => break,
                    Ok(Next::End { .. }) => listener.complete(),
                    Ok(Next::Items(items)) => {
                        for item in items {
                            let segment = shared.config.segment_of(&item.key);
                            let told =
                                self.told.get(&segment).map_or(Version::NONE, DeliveredVersions::newest);
                            let [key, value] =
                                [item.key, item.value].map(|part| bytes::Bytes::copy_from_slice(&part));
                            listener.offer_existing(key, value, item.version, told);
                        }
                    }
                },
            }
        }
        let events = listener.drain();
        listener.is_awaited = events.is_empty();
        self.all.insert(id, listener);
        Ok(events)
    }

    pub(crate) fn notify_local_listeners(
        &mut self,
        shared: &Shared,
        iterations: &mut Iterations,
        cx: &mut Cx,
        tell: Notify,
    ) {
        if !self.notes_versions() {
            return;
        }
        let primary_term = shared.topology().map_or(0, |topology| topology.primary_term(tell.segment));
        match self.told.entry(tell.segment).or_default().take(tell.version, primary_term) {
            EventSource::Known if !cx.has(InjectedBug::ToldAgain) => {}
            // An event that was lost with a link may never be sent again, because its primary may be lost as well.
            EventSource::Ahead => {
                self.interrupt_listeners(shared, iterations, cx, false);
                if !tell.skips_listeners {
                    self.offer(shared, iterations, cx, Scope::Cluster, &tell.event());
                }
            }
            // A silent event is noted, so that a repetition is recognised.
            _ if tell.skips_listeners => {}
            EventSource::Fresh | EventSource::Known => {
                self.offer(shared, iterations, cx, Scope::Cluster, &tell.event());
            }
            // A link was interrupted or full for a short time, and the event has been sent again. A newer event of its key may
            // have been delivered.
            EventSource::Late => self.interrupt_listeners(shared, iterations, cx, false),
        }
    }

    pub(crate) fn offer(
        &mut self,
        shared: &Shared,
        iterations: &mut Iterations,
        cx: &mut Cx,
        scope: Scope,
        event: &EntryEvent,
    ) {
        let cache = shared.id;
        let mut given_up = Vec::new();
        self.all.update_all(|id, listener| {
            // A listener does not receive writes that began before it was ready. A listener with state reads them as present
            // entries.
            if listener.options.scope == scope && listener.is_ready {
                given_up.extend(listener.offer(cx.now, event));
                wake(cx, cache, id, listener);
            }
        });
        given_up.into_iter().for_each(|walk| iterations.cancel(walk));
    }

    pub(crate) fn interrupt_listeners(
        &mut self,
        shared: &Shared,
        iterations: &mut Iterations,
        cx: &mut Cx,
        is_over: bool,
    ) {
        let cache = shared.id;
        let mut given_up = Vec::new();
        self.all.update_all(|id, listener| {
            if listener.is_ready {
                given_up.extend(listener.interrupt());
                wake(cx, cache, id, listener);
            }
            if is_over && listener.is_clustered() {
                listener.is_interrupted |= std::mem::take(&mut listener.is_ready);
            }
        });
        given_up.into_iter().for_each(|walk| iterations.cancel(walk));
    }

    pub(crate) fn begin_listening_anew(&mut self, shared: &Shared, iterations: &mut Iterations, cx: &mut Cx) {
        self.known = None;
        self.marked.clear();
        self.holders.clear();
        self.told.clear();
        if !cx.has(InjectedBug::GapForgotten) {
            self.interrupt_listeners(shared, iterations, cx, true);
        }
    }

    pub(crate) fn note_listening(
        &mut self,
        shared: &Shared,
        iterations: &mut Iterations,
        cx: &mut Cx,
        before: Option<&Installed>,
    ) {
        let Some(installed) = &shared.installed else { return };
        let mine = installed.topology.membership(&cx.local).and_then(|membership| membership.listening);
        let known = std::mem::replace(&mut self.known, mine);
        if self.is_idle() {
            self.told.clear();
            self.holders.clear();
            return;
        }
        let since = |listening: Option<Listening>| listening.map(|listening| listening.since);
        if known.is_some() && since(known) != since(mine) {
            self.told.clear();
            self.interrupt_listeners(shared, iterations, cx, true);
        } else if let Some(before) = before {
            let is_undone = self.note_holders(cx, before, installed);
            let is_gap = has_lost(before, installed) || is_undone;
            if is_gap {
                self.interrupt_listeners(shared, iterations, cx, false);
            }
        }
        self.settle_listeners(shared, cx);
        self.tick_listeners(shared, cx);
        self.wake_for_state(shared, cx);
    }

    pub(crate) fn mark(&mut self, shared: &Shared, cx: &mut Cx, topology: u32, segments: &[Segment]) {
        let Some(installed) = shared.installed.as_ref().filter(|_| !self.is_idle()) else {
            return;
        };
        self.marked.resize(shared.config.segments.into(), 0);
        for &segment in segments {
            let marked = &mut self.marked[usize::from(segment.0)];
            *marked = topology.max(*marked);
            let floor = Version::new(installed.topology.epoch(segment), 0);
            self.told.entry(segment).or_default().raise(floor);
        }
        self.settle_listeners(shared, cx);
        self.wake_for_state(shared, cx);
    }

    fn settle_listeners(&mut self, shared: &Shared, cx: &mut Cx) {
        let unready: Vec<ListenerId> = self.all.unready().collect();
        self.settle(shared, cx, &unready);
    }

    fn settle(&mut self, shared: &Shared, cx: &mut Cx, unready: &[ListenerId]) {
        if unready.is_empty() {
            return;
        }
        let is_local = shared.is_local();
        let known = self.known;
        let interest = known.map_or(Interest::Nothing, |known| known.interest);
        let marked = &self.marked;
        let is_marked = |segment: Segment| {
            let marked = marked.get(usize::from(segment.0)).copied().unwrap_or(0);
            known.is_some_and(|known| marked >= known.changed)
        };
        let segments = (0..shared.config.segments).map(Segment);
        let is_told_by = |is_awaited: &dyn Fn(&Address) -> bool| {
            let mut waits = segments.clone().filter(|one| shared.primary(*one).is_some_and(is_awaited));
            is_local || known.is_some() && (waits.all(is_marked) || cx.has(InjectedBug::MarksNotAwaited))
        };
        let away = shared.topology().map_or(&[][..], Topology::away);
        let is_told = is_told_by(&|_| true);
        // An interrupted listener goes on with the segments that are written: their primaries are reachable. It gets another gap
        // when the others are back.
        let is_told_again = is_told_by(&|primary| !away.contains(primary));
        let is_hopeless = shared.missing_primary().is_some();
        let cache = shared.id;
        for &id in unready {
            self.all.update(id, |listener| {
                let is_told = if listener.is_interrupted { is_told_again } else { is_told };
                let is_ready =
                    is_local || !listener.is_clustered() || is_told && listener.interest() <= interest;
                if is_ready && !std::mem::replace(&mut listener.is_ready, true) {
                    if std::mem::take(&mut listener.is_interrupted) {
                        // The iteration was cancelled when the listener was interrupted.
                        let _ = listener.interrupt();
                    }
                    listener.is_awaited = true;
                    wake(cx, cache, id, listener);
                } else if !listener.is_ready && is_hopeless {
                    // A new listener does not wait for the end of a partition.
                    listener.is_awaited = true;
                    wake(cx, cache, id, listener);
                }
            });
        }
    }

    pub(crate) fn tick_listeners(&mut self, shared: &Shared, cx: &mut Cx) {
        self.announce_interest(shared, cx);
        self.wake_for_state(shared, cx);
    }

    fn announce_interest(&mut self, shared: &Shared, cx: &mut Cx) {
        let interest = self.interest(cx.now);
        let mine = shared.topology().map(|topology| topology.interest(&cx.local));
        if mine.is_some_and(|mine| mine != interest) {
            shared.tell_coordinator(cx, ToCoordinator::Listen(interest));
        }
    }

    fn may_read_state(&self, shared: &Shared, cx: &Cx, listener: &Listener) -> bool {
        !listener.is_clustered() || self.may_read_cluster_state(shared, cx)
    }

    /// A primary that still misses other owners' records may lack a delivered write, whose event is sent
    /// again when it arrives and would be dropped here as delivered.
    fn may_read_cluster_state(&self, shared: &Shared, cx: &Cx) -> bool {
        let Some(installed) = &shared.installed else { return true };
        if shared.is_local() || cx.now.since(installed.at) >= STATE_WAITS_MAX {
            return true;
        }
        let is_marked = |segment: Segment| {
            let marked = self.marked.get(usize::from(segment.0)).copied().unwrap_or(0);
            marked >= installed.topology.epoch(segment)
        };
        let away = installed.topology.away();
        let waits = |segment: &Segment| shared.primary(*segment).is_some_and(|one| !away.contains(one));
        (0..shared.config.segments).map(Segment).filter(waits).all(is_marked)
    }

    fn wake_for_state(&mut self, shared: &Shared, cx: &mut Cx) {
        let mut waiting = self.all.waiting_for_state().peekable();
        if waiting.peek().is_none() {
            return;
        }
        let is_open = self.may_read_cluster_state(shared, cx);
        let may_read = |listener: &Listener| is_open || !listener.is_clustered();
        let ids: Vec<ListenerId> =
            waiting.filter(|(_, listener)| may_read(listener)).map(|(id, _)| id).collect();
        let cache = shared.id;
        for id in ids {
            self.all.update(id, |listener| wake(cx, cache, id, listener));
        }
    }
}

impl Shared {
    /// Returns a segment whose primary is unreachable: no other member can report its events as sent.
    fn missing_primary(&self) -> Option<(Segment, &Address)> {
        let away = self.topology()?.away();
        let is_away = |segment| Some((segment, self.primary(segment).filter(|one| away.contains(one))?));
        if away.is_empty() { None } else { self.config.all_segments().find_map(is_away) }
    }
}

/// Primaries send the events. Another owner may lack a delivered write, or still have an entry whose removal
/// the primary no longer reports.
fn state_of(shared: &Shared, cx: &Cx, options: &ListenOptions) -> Publication {
    let own = || {
        let segments = (0..shared.config.segments).map(Segment);
        segments.filter(|segment| shared.is_primary(&cx.local, *segment)).collect()
    };
    Publication {
        projection: if options.with_values { Projection::Entries } else { Projection::Keys },
        transform: options.transform.clone(),
        segments: (options.scope == Scope::Local).then(own),
        batch: STATE_BATCH,
        from: if options.scope == Scope::Cluster { ReadFrom::Primary } else { ReadFrom::Nearest },
        ..Publication::default()
    }
}

fn has_lost(before: &Installed, now: &Installed) -> bool {
    let owners = |topology: &Topology, segment| topology.read_owners().owners(segment).len();
    now.writes.segments().any(|segment| {
        owners(&before.topology, segment) > 0
            && !now.writes.owners(segment).any(|owner| before.writes.owners(segment).any(|old| old == owner))
    })
}

type Holder = (Address, u32);

/// The two owners with every write of a segment delivered here since the last full resend: the primary, and
/// the sender of the events or, if it is an owner, this member.
#[derive(Clone, Debug)]
struct EventHolders([Option<Holder>; 2]);

impl EventHolders {
    fn of(installed: &Installed, segment: Segment, local: &Address) -> Self {
        let holder = |member: Option<&Address>| {
            let since = installed.topology.membership(member?)?.since;
            Some((member?.clone(), since))
        };
        let own = installed.writes.owners(segment).find(|owner| *owner == local);
        Self([holder(installed.writes.primary(segment)), holder(own.or_else(|| installed.notifier(segment)))])
    }

    /// Whether neither owns the segment any more, at least one because it is lost.
    fn are_lost(&self, now: &Installed, segment: Segment) -> bool {
        let is_there =
            |(member, since): &Holder| now.topology.membership(member).is_some_and(|one| one.since == *since);
        let owns =
            |holder: &Holder| is_there(holder) && now.writes.owners(segment).any(|owner| *owner == holder.0);
        let Self(both) = self;
        let mut holders = both.iter().flatten();
        holders.clone().next().is_some() && !holders.clone().any(owns) && !holders.all(is_there)
    }
}

fn wake(cx: &mut Cx, cache: CacheId, id: ListenerId, listener: &mut Listener) {
    if std::mem::take(&mut listener.is_awaited) {
        cx.events.push_back(NodeEvent::Told { cache, listener: id });
    }
}

#[cfg(test)]
mod tests {
    use consort_group::{Uuid, View, ViewId};

    use super::*;
    use crate::{CacheConfig, CacheId, Container, ContainerSettings, Node};

    const NOW: Time = Time(1_000_000);

    fn alone(names: &[&str]) -> (Node, Vec<CacheId>) {
        let member = Address::Uuid(Uuid { most: 1, least: 1 });
        let mut node = Node::new(member.clone());
        let id = ViewId { creator: member.clone(), id: 1 };
        node.handle_view(NOW, &View::new(id, vec![member.clone()]));
        let open = |name: &&str| {
            let config = CacheConfig::new(name);
            let id = config.id();
            let segment_count = config.segments;
            let settings =
                ContainerSettings { segment_count, bound: None, is_backed: false, is_shared: false };
            let container = Arc::new(Container::new(&settings, 1));
            node.open(NOW, config, member.clone().into(), container).expect("a good configuration");
            id
        };
        let caches = names.iter().map(open).collect();
        (node, caches)
    }

    /// A scan of all listeners for each registration would take minutes.
    #[test]
    fn listener_beyond_the_bound_of_a_cache_is_refused_until_another_one_ends() {
        for options in
            [ListenOptions::default(), ListenOptions { with_state: true, ..ListenOptions::default() }]
        {
            let (mut node, caches) = alone(&["first", "second"]);
            let listen = |node: &mut Node, cache| node.listen(NOW, cache, options.clone());
            let all: Vec<ListenerId> =
                (0..LISTENERS_MAX).map(|_| listen(&mut node, caches[0]).expect("a place")).collect();
            let refused = Err(ListenError::TooMany(LISTENERS_MAX));
            assert_eq!(listen(&mut node, caches[0]), refused);
            assert!(listen(&mut node, caches[1]).is_ok(), "another cache has places of its own");
            node.end_listener(NOW, caches[0], all[7]);
            let last = listen(&mut node, caches[0]).expect("the place of the one that has ended");
            assert_eq!(listen(&mut node, caches[0]), refused);
            for id in all {
                node.end_listener(NOW, caches[0], id);
            }
            assert_eq!(node.is_listening(caches[0], last), Ok(true));
            assert!(listen(&mut node, caches[0]).is_ok());
        }
    }
}
