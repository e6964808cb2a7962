//! The handover of last uses at a change of owners, so that no entry becomes idle by the change.
//!
//! Only the owner that has returned an entry with a `max_idle` knows its last use. An owner that is no longer
//! read sends its last uses once, to all owners read from now on, as it installs that topology; the final
//! command follows in order. The primary judges no entry of the segment before it has those of all former
//! read owners.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use consort_group::{Address, Time};

use crate::command::{Body, LastUse};
use crate::container::{ChunkLimits, Cursor};
use crate::cx::Cx;
use crate::injected_bugs::InjectedBug;
use crate::replica::store::Store;
use crate::replica::{Installed, Shared};
use crate::{Container, Segment, Version};

/// The limit of last uses sent at one change of owners, about 16 MB to one member. Entries of later ones are
/// idle from the last use that the new owners know.
const USES_MAX: usize = 262_144;

/// The wait of a primary for former read owners: last uses lost with a link are not sent again.
const LAST_USE_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(crate) struct PendingLastUses {
    owners: Vec<Address>,
    since: Time,
}

impl PendingLastUses {
    pub(crate) fn is_over(&self, now: Time) -> bool {
        self.owners.is_empty() || now.since(self.since) >= LAST_USE_TIMEOUT
    }
}

/// With the time since the last use.
type Use = (Bytes, Version, Duration);

impl Shared {
    pub(crate) fn handle_last_uses(&mut self, from: &Address, segments: &[Segment]) -> bool {
        let mut is_heard = false;
        for segment in segments {
            let awaited = &mut self.state(*segment).pending_last_uses;
            let count = awaited.owners.len();
            awaited.owners.retain(|owner| owner != from);
            is_heard |= awaited.owners.len() < count && awaited.owners.is_empty();
        }
        is_heard
    }
}

/// The dropped segments are still here.
pub(crate) fn send_last_uses(shared: &mut Shared, store: &Store, cx: &mut Cx, before: Option<&Installed>) {
    // A member that never had an entry with a `max_idle` has no last uses to send or to judge. Entries loaded from a store
    // did not arrive as writes.
    let may_have = shared.is_shared() && (shared.has_max_idle || store.is_backed());
    let is_told = may_have && !cx.has(InjectedBug::UsesKept);
    let Some(installed) = shared.installed.as_ref().filter(|_| is_told) else { return };
    let topology = &installed.topology;
    let mut room = USES_MAX;
    let mut told: BTreeMap<Address, Vec<Segment>> = BTreeMap::new();
    let mut uses: Vec<(Address, Segment, Use)> = Vec::new();
    for segment in installed.writes.segments() {
        let awaited = &mut shared.segments[usize::from(segment.0)].pending_last_uses;
        let is_primary = installed.writes.primary(segment) == Some(&cx.local);
        let is_here = |one: &Address| topology.contains(one) && !topology.away().contains(one);
        awaited.owners.retain(|owner| is_primary && is_here(owner));
        let Some(before) = before else { continue };
        let is_read = |owner: &Address| topology.read_owners().owners(segment).any(|one| one == owner);
        for owner in before.topology.read_owners().owners(segment).filter(|owner| !is_read(owner)) {
            match installed.writes.primary(segment) {
                Some(primary) if *owner == cx.local => {
                    told.entry(primary.clone()).or_default().push(segment);
                    for one in uses_in(&shared.container, segment, cx.now, &mut room) {
                        let readers = topology.read_owners().owners(segment);
                        uses.extend(readers.map(|reader| (reader.clone(), segment, one.clone())));
                    }
                }
                Some(_) if is_primary && is_here(owner) && !awaited.owners.contains(owner) => {
                    awaited.owners.push(owner.clone());
                    awaited.since = cx.now;
                }
                _ => {}
            }
        }
    }
    for (reader, segment, (key, version, idle)) in uses {
        let used = LastUse { segment, key, version, number: 0, idle: Some(idle) };
        shared.send(cx, &reader, Body::LastUse(used));
    }
    for (primary, segments) in told {
        shared.send(cx, &primary, Body::LastUsesSent(segments));
    }
}

fn uses_in(container: &Container, segment: Segment, now: Time, room: &mut usize) -> Vec<Use> {
    let mut uses = Vec::new();
    let mut cursor = Some(Cursor::START).filter(|_| *room > 0);
    while let Some(at) = cursor {
        let limits = ChunkLimits { entries_max: usize::MAX, bytes_max: usize::MAX };
        let walked = container.visit(segment, at, limits, now, |visited| {
            if let Some(used) = visited.used(now).filter(|_| *room > 0) {
                uses.push((Bytes::copy_from_slice(visited.key()), visited.version(), now.since(used)));
                *room -= 1;
            }
        });
        cursor = walked.ok().flatten();
    }
    uses
}
