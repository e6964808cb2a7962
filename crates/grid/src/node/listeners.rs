//! The listeners of a cache on this member: when they are told of everything, what they have been told already, and their
//! readers' side.
//!
//! A member with listeners of the whole cluster's changes says so to the coordinator; the topology then names it, and from
//! that topology on a write is not acknowledged before this member has heard of it (`telling`). A listener is *ready* when
//! every primary has said that it has that topology: no write that begins later passes it by.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use consort_group::{Address, Time};

use super::NodeEvent;
use super::cache::{Cache, Installed};
use super::cx::Cx;
use super::listener::{Listener, Walk};
use super::listener_table::ListenerTable;
use super::waiting_events::TakenEvents;
use crate::command::{Tell, ToCoordinator};
use crate::event::{EntryEvent, Listen, ListenError, ListenerId, Scope};
use crate::operation::{OperationError, ReadFrom};
use crate::planted::Planted;
use crate::publication::{IterationId, Next, Publication, TransformFn, What};
use crate::topology::{Interest, Listening, Topology};
use crate::{Segment, Version};

/// Listeners that a member may have in a cache: each keeps what waits for its reader.
pub(crate) const LISTENERS_MAX: usize = 65_536;

/// How long a member goes on being told after its last listener has ended: clients that come and go must not make a
/// topology each.
const LINGER: Duration = Duration::from_secs(30);

/// Runs of versions that are remembered of a segment: there is one for each topology since its owners last changed. What is
/// older then counts as told.
const RUNS_MAX: usize = 64;

/// How long a listener waits after a topology until it reads what is there although not all primaries have said that they have
/// told everything: what one has said may have been lost with a link.
const STATE_WAITS_MAX: Duration = Duration::from_secs(3);

/// Entries that are read at a time of what is there.
const STATE_BATCH: usize = 256;

/// All listeners of a cache here.
#[derive(Default)]
pub(crate) struct Listeners {
    all: ListenerTable,
    /// What the topology says of us.
    known: Option<Listening>,
    /// Per segment the last topology under which its primary has said that it has told everything before.
    marked: Vec<u32>,
    /// Per segment who has what was told.
    holders: Vec<Option<Holders>>,
    told: BTreeMap<Segment, ToldOf>,
    /// Since when there is nobody to be told.
    idle_since: Option<Time>,
}

/// Versions of a segment that were told, of those that may come again.
#[derive(Default)]
struct ToldOf {
    /// All below it were told, or never will be.
    floor: Version,
    /// First and last of each run above it, in order.
    runs: Vec<(Version, Version)>,
}

enum News {
    /// It follows what was told.
    Fresh,
    /// The same primary has ordered others between what was told and this, and they have not come.
    Ahead,
    /// It was told.
    Known,
    /// It was not, and later ones were.
    Late,
}

impl ToldOf {
    /// The newest that was told.
    fn newest(&self) -> Version {
        self.runs.last().map_or(self.floor, |run| run.1)
    }

    /// A version has come, of a segment whose primary is the same since this topology.
    fn take(&mut self, version: Version, reign: u32) -> News {
        let is_next = |last: &Version| last.topology() < reign || version.count() <= last.count() + 1;
        let is_ahead =
            version.topology() >= reign && self.runs.last().is_some_and(|(_, last)| !is_next(last));
        match self.runs.last_mut() {
            _ if version < self.floor => return News::Known,
            Some((_, last)) if version.0 == last.0 + 1 => *last = version,
            Some((_, last)) if version <= *last => {
                let is_in = |&(first, last): &(Version, Version)| first <= version && version <= last;
                return if self.runs.iter().any(is_in) { News::Known } else { News::Late };
            }
            _ => self.runs.push((version, version)),
        }
        if self.runs.len() > RUNS_MAX {
            let (_, last) = self.runs.remove(0);
            self.floor = Version(last.0 + 1);
        }
        if is_ahead { News::Ahead } else { News::Fresh }
    }

    /// All below this were told, or never will be.
    fn raise(&mut self, floor: Version) {
        self.floor = floor.max(self.floor);
        self.runs.retain(|(_, last)| *last >= floor);
    }
}

impl Listeners {
    /// Whether nobody here is told of anything: all that a write asks.
    pub(crate) fn is_idle(&self) -> bool {
        self.all.is_empty() && self.known.is_none()
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = ListenerId> {
        self.all.ids()
    }

    /// Whether somebody here is told what was there before.
    pub(crate) fn want_previous(&self) -> bool {
        self.all.want_previous()
    }

    /// Whether this member notes the versions of the changes that it hears of. While it does not, versions pass without a note,
    /// so what was noted before says nothing of what comes next.
    fn notes_versions(&self) -> bool {
        self.known.is_some() || self.has_clustered()
    }

    pub(crate) fn has_clustered(&self) -> bool {
        self.all.has_clustered()
    }

    /// Whose state a walk reads.
    pub(crate) fn of_walk(&self, walk: IterationId) -> Option<ListenerId> {
        self.all.of_iteration(walk)
    }

    /// Whether this member is told what it has to be told, and no more.
    pub(crate) fn is_settled(&self) -> bool {
        !self.all.has_waiting() && (self.has_clustered() || self.known.is_none())
    }

    /// Remembers who has what was told, and says whether some of it may be undone with them.
    fn note_holders(&mut self, cx: &Cx, before: &Installed, now: &Installed) -> bool {
        let forgets = cx.has(Planted::UndoneUntold);
        let segments = before.writes.segments();
        self.holders.resize_with(segments.len(), || None);
        let mut is_undone = false;
        for segment in segments {
            let at = usize::from(segment.0);
            let marked = self.marked.get(at).copied().unwrap_or(0);
            // Until the primary has told everything again, those before it may be the only ones.
            if marked >= before.topology.epoch(segment) || self.holders[at].is_none() || forgets {
                self.holders[at] = Some(Holders::of(before, segment, &cx.local));
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

impl Cache {
    /// Begins to listen.
    pub(crate) fn listen(&mut self, cx: &mut Cx, id: ListenerId, options: Listen) -> Result<(), ListenError> {
        if options.scope == Scope::Cluster && self.is_invalidation() {
            let what = "a listener of the whole cluster";
            return Err(OperationError::Unsupported { what, mode: self.config.mode }.into());
        }
        if self.listeners.all.len() >= LISTENERS_MAX {
            return Err(ListenError::TooMany(LISTENERS_MAX));
        }
        let function: Option<Arc<TransformFn>> = match &options.transform {
            None => None,
            Some(transform) => match self.transforms.get(&transform.name) {
                Some(function) => Some(function.clone()),
                None => return Err(ListenError::UnknownTransform(transform.name.clone())),
            },
        };
        self.listeners.all.insert(id, Listener::new(options, function, cx.waiting_events.part()));
        self.settle(cx, &[id]);
        self.announce_interest(cx);
        Ok(())
    }

    /// A listener ends.
    pub(crate) fn end_listener(&mut self, cx: &Cx, id: ListenerId) {
        let ended = self.listeners.all.remove(id);
        if !self.listeners.notes_versions() && !cx.has(Planted::ToldKept) {
            self.listeners.told.clear();
            self.listeners.holders.clear();
        }
        if let Some(Listener { walk: Walk::Under(walk), .. }) = ended {
            self.cancel(walk);
        }
    }

    /// Whether a listener is told of everything.
    pub(crate) fn is_listening(&self, id: ListenerId) -> Result<bool, OperationError> {
        let listener = self.listeners.all.get(id).ok_or(OperationError::Closed)?;
        match self.missing_primary() {
            Some((segment, away)) if !listener.is_ready => {
                Err(OperationError::Degraded { segment, away: vec![away.clone().into()] })
            }
            _ => Ok(listener.is_ready),
        }
    }

    /// A primary that is away: of its segment nobody can say that everything was told.
    fn missing_primary(&self) -> Option<(Segment, &Address)> {
        let away = self.topology()?.away();
        let is_away = |segment| Some((segment, self.primary(segment).filter(|one| away.contains(one))?));
        if away.is_empty() { None } else { self.config.all_segments().find_map(is_away) }
    }

    /// What a listener has been told since it was asked last, or what is there. Nothing: the reader will be woken.
    pub(crate) fn take_events(
        &mut self,
        cx: &mut Cx,
        id: ListenerId,
        next_walk: &mut u64,
    ) -> Result<TakenEvents, ListenError> {
        let Some(mut listener) = self.listeners.all.remove(id) else {
            return Err(OperationError::Closed.into());
        };
        while !listener.has_events() && listener.is_ready {
            match listener.walk {
                Walk::Over => break,
                Walk::Wanted if !self.may_read_state(cx, &listener) => break,
                Walk::Wanted => {
                    *next_walk += 1;
                    let walk = IterationId(*next_walk);
                    self.iterate(walk, self.state_of(cx, &listener.options))?;
                    listener.walk = Walk::Under(walk);
                }
                Walk::Under(walk) => match self.take(cx, walk) {
                    Err(error) => return Err(error.into()),
                    Ok(Next::Nothing) => break,
                    Ok(Next::End { .. }) => listener.complete(),
                    Ok(Next::Items(items)) => {
                        for item in items {
                            let segment = self.config.segment_of(&item.key);
                            let told =
                                self.listeners.told.get(&segment).map_or(Version::NONE, ToldOf::newest);
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
        self.listeners.all.insert(id, listener);
        Ok(events)
    }

    /// What is there is what primaries have, who tell what becomes of it: another owner may lack what was told, or have for a moment
    /// longer what its primary has told nobody any more.
    fn state_of(&self, cx: &Cx, options: &Listen) -> Publication {
        let own = || {
            let segments = (0..self.config.segments).map(Segment);
            segments.filter(|segment| self.is_primary(&cx.local, *segment)).collect()
        };
        Publication {
            what: if options.with_values { What::Entries } else { What::Keys },
            transform: options.transform.clone(),
            segments: (options.scope == Scope::Local).then(own),
            batch: STATE_BATCH,
            from: if options.scope == Scope::Cluster { ReadFrom::Primary } else { ReadFrom::Nearest },
            ..Publication::default()
        }
    }

    /// Tells the listeners of the cluster's changes of one, unless they know it.
    pub(super) fn tell_here(&mut self, cx: &mut Cx, tell: Tell) {
        if !self.listeners.notes_versions() {
            return;
        }
        let reign = self.topology().map_or(0, |topology| topology.reign(tell.segment));
        match self.listeners.told.entry(tell.segment).or_default().take(tell.version, reign) {
            News::Known if !cx.has(Planted::ToldAgain) => {}
            // What was lost with a link may never be sent again: its primary may be lost as well.
            News::Ahead => {
                self.interrupt_listeners(cx, false);
                if !tell.is_silent {
                    self.offer(cx, Scope::Cluster, &tell.event());
                }
            }
            // It counts, so that what comes again is recognised.
            _ if tell.is_silent => {}
            News::Fresh | News::Known => self.offer(cx, Scope::Cluster, &tell.event()),
            // Somebody was cut off or full for a moment, and it has been sent again. Of its key a newer one may have been
            // told.
            News::Late => self.interrupt_listeners(cx, false),
        }
    }

    /// Tells all listeners of this kind.
    pub(super) fn offer(&mut self, cx: &mut Cx, scope: Scope, event: &EntryEvent) {
        let cache = self.config.id();
        let mut given_up = Vec::new();
        self.listeners.all.update_all(|id, listener| {
            // What began before it was ready is not its matter, and is there if what is there is read.
            if listener.options.scope == scope && listener.is_ready {
                given_up.extend(listener.offer(cx.now, event));
                wake(cx, cache, id, listener);
            }
        });
        given_up.into_iter().for_each(|walk| self.cancel(walk));
    }

    /// Listeners may miss something. `is_over`: they are not told of everything any more.
    pub(super) fn interrupt_listeners(&mut self, cx: &mut Cx, is_over: bool) {
        let cache = self.config.id();
        let mut given_up = Vec::new();
        self.listeners.all.update_all(|id, listener| {
            if listener.is_ready {
                given_up.extend(listener.interrupt());
                wake(cx, cache, id, listener);
            }
            if is_over && listener.is_clustered() {
                listener.is_interrupted |= std::mem::take(&mut listener.is_ready);
            }
        });
        given_up.into_iter().for_each(|walk| self.cancel(walk));
    }

    /// This member was left out.
    pub(super) fn begin_listening_anew(&mut self, cx: &mut Cx) {
        self.listeners.known = None;
        self.listeners.marked.clear();
        self.listeners.holders.clear();
        self.listeners.told.clear();
        if !cx.has(Planted::GapForgotten) {
            self.interrupt_listeners(cx, true);
        }
    }

    /// A topology is installed after this one.
    pub(super) fn note_listening(&mut self, cx: &mut Cx, before: Option<&Installed>) {
        let Some(installed) = &self.installed else { return };
        let mine = installed.topology.membership(&cx.local).and_then(|membership| membership.listening);
        let known = std::mem::replace(&mut self.listeners.known, mine);
        if self.listeners.is_idle() {
            self.listeners.told.clear();
            self.listeners.holders.clear();
            return;
        }
        let since = |listening: Option<Listening>| listening.map(|listening| listening.since);
        if known.is_some() && since(known) != since(mine) {
            self.listeners.told.clear();
            self.interrupt_listeners(cx, true);
        } else if let Some(before) = before {
            let is_undone = self.listeners.note_holders(cx, before, installed);
            let is_gap = has_lost(before, installed) || is_undone;
            if is_gap {
                self.interrupt_listeners(cx, false);
            }
        }
        self.settle_listeners(cx);
        self.look_after_listeners(cx);
        self.wake_for_state(cx);
    }

    /// The primaries of these segments have told everything that came before this topology.
    pub(super) fn mark(&mut self, cx: &mut Cx, topology: u32, segments: &[Segment]) {
        let Some(installed) = self.installed.as_ref().filter(|_| !self.listeners.is_idle()) else { return };
        self.listeners.marked.resize(self.config.segments.into(), 0);
        for &segment in segments {
            let marked = &mut self.listeners.marked[usize::from(segment.0)];
            *marked = topology.max(*marked);
            let floor = Version::new(installed.topology.epoch(segment), 0);
            self.listeners.told.entry(segment).or_default().raise(floor);
        }
        self.settle_listeners(cx);
        self.wake_for_state(cx);
    }

    /// Listeners that are told of everything from now on are ready.
    fn settle_listeners(&mut self, cx: &mut Cx) {
        let unready: Vec<ListenerId> = self.listeners.all.unready().collect();
        self.settle(cx, &unready);
    }

    /// The same for some of those that are not ready.
    fn settle(&mut self, cx: &mut Cx, unready: &[ListenerId]) {
        if unready.is_empty() {
            return;
        }
        let is_local = self.is_local();
        let known = self.listeners.known;
        let interest = known.map_or(Interest::Nothing, |known| known.interest);
        let marked = &self.listeners.marked;
        let is_marked = |segment: Segment| {
            let marked = marked.get(usize::from(segment.0)).copied().unwrap_or(0);
            known.is_some_and(|known| marked >= known.changed)
        };
        let segments = (0..self.config.segments).map(Segment);
        let is_all = || segments.clone().all(|one| self.primary(one).is_none() || is_marked(one));
        let is_told = is_local || known.is_some() && (is_all() || cx.has(Planted::MarksNotAwaited));
        let is_hopeless = self.missing_primary().is_some();
        let cache = self.config.id();
        for &id in unready {
            self.listeners.all.update(id, |listener| {
                let is_ready =
                    is_local || !listener.is_clustered() || is_told && listener.interest() <= interest;
                if is_ready && !std::mem::replace(&mut listener.is_ready, true) {
                    if std::mem::take(&mut listener.is_interrupted) {
                        // The walk was given up when it was interrupted.
                        let _ = listener.interrupt();
                    }
                    listener.is_awaited = true;
                    wake(cx, cache, id, listener);
                } else if !listener.is_ready && is_hopeless {
                    // Who has just begun does not wait for a partition's end.
                    listener.is_awaited = true;
                    wake(cx, cache, id, listener);
                }
            });
        }
    }

    /// Says what is to be told to us, until the topology says the same, and wakes readers that may go on.
    pub(crate) fn look_after_listeners(&mut self, cx: &mut Cx) {
        self.announce_interest(cx);
        self.wake_for_state(cx);
    }

    /// Says what is to be told to us, unless the topology says the same.
    fn announce_interest(&mut self, cx: &mut Cx) {
        let interest = self.listeners.interest(cx.now);
        let mine = self.topology().map(|topology| topology.interest(&cx.local));
        if mine.is_some_and(|mine| mine != interest) {
            self.tell_coordinator(cx, ToCoordinator::Listen(interest));
        }
    }

    /// Whether a listener may read what is there.
    fn may_read_state(&self, cx: &Cx, listener: &Listener) -> bool {
        !listener.is_clustered() || self.may_read_cluster_state(cx)
    }

    /// Whether listeners of the whole cluster's changes may read what is there. A primary that has not heard all owners yet may
    /// lack what was told before: it is told again when that comes, and would be left out here as known.
    fn may_read_cluster_state(&self, cx: &Cx) -> bool {
        let Some(installed) = &self.installed else { return true };
        if self.is_local() || cx.now.since(installed.at) >= STATE_WAITS_MAX {
            return true;
        }
        let is_marked = |segment: Segment| {
            let marked = self.listeners.marked.get(usize::from(segment.0)).copied().unwrap_or(0);
            marked >= installed.topology.epoch(segment)
        };
        let away = installed.topology.away();
        let waits = |segment: &Segment| self.primary(*segment).is_some_and(|one| !away.contains(one));
        (0..self.config.segments).map(Segment).filter(waits).all(is_marked)
    }

    /// Those that have waited to read what is there go on, if they may.
    fn wake_for_state(&mut self, cx: &mut Cx) {
        let mut waiting = self.listeners.all.waiting_for_state().peekable();
        if waiting.peek().is_none() {
            return;
        }
        let is_open = self.may_read_cluster_state(cx);
        let may_read = |listener: &Listener| is_open || !listener.is_clustered();
        let ids: Vec<ListenerId> =
            waiting.filter(|(_, listener)| may_read(listener)).map(|(id, _)| id).collect();
        let cache = self.config.id();
        for id in ids {
            self.listeners.all.update(id, |listener| wake(cx, cache, id, listener));
        }
    }
}

/// Whether a segment has lost all owners, and what was in it.
fn has_lost(before: &Installed, now: &Installed) -> bool {
    let owners = |topology: &Topology, segment| topology.read_owners().owners(segment).len();
    now.writes.segments().any(|segment| {
        owners(&before.topology, segment) > 0
            && !now.writes.owners(segment).any(|owner| before.writes.owners(segment).any(|old| old == owner))
    })
}

/// A member as it was, and since when it was one.
type Holder = (Address, u32);

/// Those two who have at least what the listeners here were told of a segment, since everything had been told again last: its
/// primary and who has told them, which is an owner itself, or another one to who is none.
#[derive(Clone, Debug)]
struct Holders([Option<Holder>; 2]);

impl Holders {
    fn of(installed: &Installed, segment: Segment, local: &Address) -> Self {
        let holder = |member: Option<&Address>| {
            let since = installed.topology.membership(member?)?.since;
            Some((member?.clone(), since))
        };
        let own = installed.writes.owners(segment).find(|owner| *owner == local);
        Self([holder(installed.writes.primary(segment)), holder(own.or_else(|| installed.teller(segment)))])
    }

    /// Whether both own the segment no more, and one of them because it is lost: who owns it now may lack what was told.
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

fn wake(cx: &mut Cx, cache: crate::CacheId, id: ListenerId, listener: &mut Listener) {
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

    /// A member that is alone, with these caches.
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

    /// A look at each of them for each one that begins would take minutes.
    #[test]
    fn listener_beyond_the_bound_of_a_cache_is_refused_until_another_one_ends() {
        for options in [Listen::default(), Listen { with_state: true, ..Listen::default() }] {
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
