//! Last uses at a change of owners: who stops giving the entries of a segment tells those who give them from now on when it
//! gave them last. All of them, so that its primary is not the only one that knows.
//!
//! Only entries with a `max_idle` have a last use, and only who gave one knows it. The primary judges no entry of the segment
//! before it has heard all who have stopped (`idle`), so nothing is idle because an owner has changed. They say it once, as
//! they install the topology in which others are read: in that order it comes, behind the uses themselves.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use consort_group::{Address, Time};

use super::cache::{Cache, Installed};
use super::cx::Cx;
use crate::command::{Body, Used};
use crate::container::{ChunkLimits, Cursor};
use crate::planted::Planted;
use crate::{Container, Segment, Version};

/// Uses that a member tells at one change of owners, about as many as it tells one of them in 16 MB. Later ones are not told: their entries
/// are idle from the last use that the new owners know of.
const USES_MAX: usize = 262_144;

/// How long a primary waits for who has stopped: what a link has lost that broke and came back is not said again.
const AWAITED_FOR: Duration = Duration::from_secs(5);

/// Owners that have stopped giving a segment's entries, and have not said when they gave them last.
#[derive(Default)]
pub(crate) struct Awaited {
    owners: Vec<Address>,
    since: Time,
}

impl Awaited {
    /// Whether nobody knows more who may still say so.
    pub(super) fn is_over(&self, now: Time) -> bool {
        self.owners.is_empty() || now.since(self.since) >= AWAITED_FOR
    }
}

/// A use of an entry: its key, which write it is of, and how long ago.
type Use = (Bytes, Version, Duration);

impl Cache {
    /// With a new topology, while what is given up is still here: tells what only this member knows, and begins to wait for
    /// what others do.
    pub(super) fn hand_uses(&mut self, cx: &mut Cx, before: Option<&Installed>) {
        // Who has never had an entry with a `max_idle` has nothing to tell and nothing to judge. What was loaded from a store did
        // not come as a write.
        let may_have = self.is_shared() && (self.questions.may_arise || self.is_backed());
        let is_told = may_have && !cx.has(Planted::UsesKept);
        let Some(installed) = self.installed.as_ref().filter(|_| is_told) else { return };
        let topology = &installed.topology;
        let mut room = USES_MAX;
        let mut told: BTreeMap<Address, Vec<Segment>> = BTreeMap::new();
        let mut uses: Vec<(Address, Segment, Use)> = Vec::new();
        for segment in installed.writes.segments() {
            let awaited = &mut self.segments[usize::from(segment.0)].uses_awaited;
            let is_primary = installed.writes.primary(segment) == Some(&cx.local);
            let is_here = |one: &Address| topology.contains(one) && !topology.away().contains(one);
            awaited.owners.retain(|owner| is_primary && is_here(owner));
            let Some(before) = before else { continue };
            let is_read = |owner: &Address| topology.read_owners().owners(segment).any(|one| one == owner);
            for owner in before.topology.read_owners().owners(segment).filter(|owner| !is_read(owner)) {
                match installed.writes.primary(segment) {
                    Some(primary) if *owner == cx.local => {
                        told.entry(primary.clone()).or_default().push(segment);
                        for one in uses_in(&self.container, segment, cx.now, &mut room) {
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
            let used = Used { segment, key, version, number: 0, idle: Some(idle) };
            self.send(cx, &reader, Body::Used(used));
        }
        for (primary, segments) in told {
            self.send(cx, &primary, Body::UsesTold(segments));
        }
    }

    /// Somebody has told all uses of these segments that it knew of.
    pub(super) fn handle_uses_told(&mut self, cx: &mut Cx, from: &Address, segments: &[Segment]) {
        let mut is_heard = false;
        for segment in segments {
            let awaited = &mut self.state(*segment).uses_awaited;
            let count = awaited.owners.len();
            awaited.owners.retain(|owner| owner != from);
            is_heard |= awaited.owners.len() < count && awaited.owners.is_empty();
        }
        if is_heard {
            self.ask_anew(cx);
        }
    }
}

/// When entries of a segment were last used here that still live, as far as they were used since they were written.
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
