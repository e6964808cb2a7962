//! Writes that end on the member where they begin. A key with one owner needs no record: no other member
//! receives the write and its caller never repeats it.

use crate::cx::Cx;
use crate::operation::{Change, Condition, OperationError, Write, Written};
use crate::replica::CacheReplica;
use crate::topology::Phase;
use crate::{Flags, Segment};

impl CacheReplica {
    fn is_sole_owner(&self, cx: &Cx, segment: Segment) -> bool {
        let Some(installed) = &self.shared.installed else { return false };
        let mut owners = installed.writes.owners(segment);
        let is_only_owner = owners.next() == Some(&cx.local) && owners.next().is_none();
        is_only_owner
            && installed.topology.phase == Phase::Stable
            && installed.topology.away().is_empty()
            && self.shared.segments[usize::from(segment.0)].is_open()
            && !self.store.is_backed()
            && !self.shared.is_invalidation()
            && !self.listeners.is_listened(&self.shared)
            && !self.shared.has_max_idle
    }

    /// Returns the write if it needs messages or would change nothing: the write that it saw may have to
    /// reach other members before the result is reported.
    pub(crate) fn write_as_sole_owner(
        &mut self,
        cx: &mut Cx,
        segment: Segment,
        key: &[u8],
        write: Write,
        flags: Flags,
    ) -> Result<Result<Written, OperationError>, Write> {
        let is_plain = !flags.has_any(Flags::LOCAL | Flags::ASYNC) && write.change != Change::Clear;
        if !is_plain || !self.is_sole_owner(cx, segment) {
            return Err(write);
        }
        // An unconditional put that returns no previous value needs no read before it.
        let is_blind =
            write.condition == Condition::Always && write.change != Change::Remove && !write.wants_previous;
        let before = match is_blind {
            true => None,
            false => match self.sees(cx.now, segment, key, &write) {
                (seen, true) => Some(seen),
                (_, false) => return Err(write),
            },
        };
        if let Some(error) = self.shared.memory_refusal(cx, segment, key, &write.change) {
            return Ok(Err(error));
        }
        let version = self.shared.next_version(segment);
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
