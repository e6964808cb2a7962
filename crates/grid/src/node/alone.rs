//! Writes that end where they begin: what a member owns alone needs no record, since nobody is sent it and its caller never
//! asks for it again.

use consort_group::Time;

use super::Node;
use super::cache::Cache;
use super::cx::Cx;
use crate::command::CacheId;
use crate::operation::{Change, Condition, OperationError, Write, Written};
use crate::topology::Phase;
use crate::{Flags, Segment};

impl Node {
    /// Carries a write out at once, if this member owns the key alone, nobody is told of it, and it changes something.
    /// The key and the value are copied, or the value is kept if it is large.
    ///
    /// # Errors
    ///
    /// The write itself, if it is not so simple or the cache does not allow it: nothing was done, and [`Node::submit`]
    /// does it or says what is wrong.
    pub fn write_here(
        &mut self,
        now: Time,
        cache: CacheId,
        key: &[u8],
        write: Write,
    ) -> Result<Result<Written, OperationError>, Write> {
        self.cx.now = now;
        let Some(cache) = self.caches.get_mut(&cache) else { return Err(write) };
        let segment = cache.config.segment_of(key);
        let result = cache.write_alone(&mut self.cx, segment, key, write, Flags::NONE)?;
        self.note_mortals();
        Ok(result)
    }
}

impl Cache {
    /// Whether this member is all that has to do with writes in a segment, and has everything that it needs for them.
    fn is_alone(&self, cx: &Cx, segment: Segment) -> bool {
        let Some(installed) = &self.installed else { return false };
        let mut owners = installed.writes.owners(segment);
        let is_only_owner = owners.next() == Some(&cx.local) && owners.next().is_none();
        is_only_owner
            && installed.topology.phase == Phase::Stable
            && installed.topology.away().is_empty()
            && self.segments[usize::from(segment.0)].is_open()
            && !self.is_backed()
            && !self.is_invalidation()
            && !self.is_listened()
            && !self.questions.may_arise
    }

    /// Like [`Cache::carry_out`], with nobody to be told. Gives the write back if that is not so, or if it would change
    /// nothing: what it saw may have to arrive elsewhere before that is told.
    pub(super) fn write_alone(
        &mut self,
        cx: &mut Cx,
        segment: Segment,
        key: &[u8],
        write: Write,
        flags: Flags,
    ) -> Result<Result<Written, OperationError>, Write> {
        let is_plain = !flags.has_any(Flags::LOCAL | Flags::ASYNC) && write.change != Change::Clear;
        if !is_plain || !self.is_alone(cx, segment) {
            return Err(write);
        }
        // What is put whatever there is needs no look at it before.
        let is_blind =
            write.condition == Condition::Always && write.change != Change::Remove && !write.wants_previous;
        let before = match is_blind {
            true => None,
            false => match self.sees(cx.now, segment, key, &write) {
                (seen, true) => Some(seen),
                (_, false) => return Err(write),
            },
        };
        if let Some(error) = self.memory_refusal(cx, segment, key, &write.change) {
            return Ok(Err(error));
        }
        let version = self.next_version(segment);
        let previous = match self.change(cx, segment, key, write.change, version) {
            Ok((_, previous)) => previous,
            Err(full) => return Ok(Err(OperationError::full(&cx.local, full))),
        };
        let seen = before.unwrap_or(Written {
            is_done: true,
            was_present: previous.is_some(),
            version,
            previous: None,
        });
        Ok(Ok(Written { version, ..seen }))
    }
}
