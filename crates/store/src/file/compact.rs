//! Compaction: copies live records out of mostly dead files and removes these.
//!
//! It handles one file at a time, in steps of [`STEP`] bytes, between which other writes run. A first pass
//! reads the file to its end; a damaged file stays, because part of its records is no substitute for all. A
//! second pass handles the records:
//!
//! * A live put is copied to the newest file with its change number.
//! * A dead put is subtracted from its key's count of older records ([`index`](super::index)).
//! * A tombstone that still hides older records is copied.
//! * Other records are dropped: the newest file's header has segment removals and files.
//!
//! Once a drop record is durable, the file is removed. A crash before that leaves redundant copies. Files go
//! one after the other, so no tombstone is removed before the records it hides.

use std::collections::HashMap;

use super::append_state::Append;
use super::compact_cursor::{Cursor, Pass};
use super::header::log_name;
use super::index::{Index, Print};
use super::position::Position;
use super::record::{HEAD, Kind, Location, Record};
use super::reserve_account::Reserve;
use super::scan::{Scan, Step};
use super::{FileStore, lock, read, write};
use crate::entry::Segment;
use crate::error::StoreError;
use crate::store::Counters;

/// A quarter of a millisecond at 1 GB/s.
const STEP: usize = 256 * 1024;

/// Below a quarter of the full size. Each start creates one.
const SMALL_FILES_MAX: usize = 8;

/// Sealing for less would free little.
const SEALED_DEAD_MIN: u32 = 2048;

#[derive(Debug, Default)]
struct Plan {
    bytes: Vec<u8>,
    copies: Vec<Copy>,
    forgotten: Vec<(Segment, Print, u64)>,
}

#[derive(Debug)]
struct Copy {
    segment: Segment,
    print: Print,
    from: Location,
}

impl FileStore {
    pub(crate) fn compact(&self, budget_bytes: u64) -> Result<bool, StoreError> {
        let mut spent = 0;
        loop {
            let mut append = self.appending()?;
            if append.cursor.is_none() {
                let Some(number) = self.choose_victim(append.reserve) else { return Ok(false) };
                append.cursor = self.cursor(number, false);
            }
            if spent >= budget_bytes {
                return Ok(true);
            }
            let (bytes, dropped) = self.compact_step(&mut append)?;
            drop(append);
            self.write_out()?;
            spent += bytes;
            Counters::add(&self.counters.maintained_bytes, bytes);
            if let Some((number, at)) = dropped {
                let freed = self.finish_drop(number, at)?;
                lock(&self.append).reserve.gain(freed);
            }
        }
    }

    pub(crate) fn copy_intact(&self, number: u32) -> Result<(), StoreError> {
        let mut append = self.appending()?;
        append.cursor = self.cursor(number, true);
        while append.cursor.is_some() {
            if let (_, Some((number, at))) = self.compact_step(&mut append)? {
                drop(append);
                return self.finish_drop(number, at).map(|_| ());
            }
        }
        Ok(())
    }

    fn cursor(&self, number: u32, skips_flaws: bool) -> Option<Cursor> {
        let index = read(&self.index);
        let file = index.files.get(&number)?;
        let scan = Scan::new(file.file.clone(), log_name(number), number, file.start, file.len);
        Some(Cursor { number, start: file.start, scan, pass: Pass::Check, skips_flaws })
    }

    /// The file with the greatest dead share; else the smallest, if there are too many and the disk has space.
    fn choose_victim(&self, reserve: Reserve) -> Option<u32> {
        let index = read(&self.index);
        let candidates = || index.files.iter().filter(|(_, f)| f.is_sealed && !f.is_dropped && !f.is_damaged);
        let share = |dead: u64, len: u32| dead as f64 / f64::from(len.max(1));
        let (number, file) =
            candidates().max_by(|a, b| share(a.1.dead, a.1.len).total_cmp(&share(b.1.dead, b.1.len)))?;
        if reserve.is_worth_compacting(u64::from(file.len), file.dead, self.config.dead_share_max) {
            return Some(*number);
        }
        if reserve.is_short {
            return None;
        }
        let small = || candidates().filter(|(_, file)| file.len < self.config.file_bytes_max / 4);
        (small().count() > SMALL_FILES_MAX)
            .then(|| small().min_by_key(|(_, file)| file.len))?
            .map(|(number, _)| *number)
    }

    /// Acts on a full disk: only sealed files are compacted, and this one would never grow to its end. Returns
    /// whether there is a file to compact.
    pub(crate) fn seal_if_dead(&self, append: &mut Append) -> Result<bool, StoreError> {
        let is_wanted = append.reserve.is_short || append.reserve.is_full;
        let Some(active) = append.active.as_ref().filter(|_| is_wanted) else { return Ok(false) };
        let is_dead = read(&self.index).files.get(&active.number).is_some_and(|file| {
            // The next file needs a header, too.
            let (len, dead) = (file.len - file.start, file.dead.saturating_sub(file.start.into()));
            len >= SEALED_DEAD_MIN
                && append.reserve.is_worth_compacting(len.into(), dead, self.config.dead_share_max)
        });
        if is_dead {
            self.freeing(append, |append| self.seal(append))?;
        }
        Ok(is_dead)
    }

    /// Returns the bytes read and written and, at the end, the dropped file with the position that must be
    /// durable before.
    fn compact_step(&self, append: &mut Append) -> Result<(u64, Option<(u32, Position)>), StoreError> {
        let Some(mut cursor) = append.cursor.take() else { return Ok((0, None)) };
        let from = cursor.scan.at();
        if cursor.pass == Pass::Check {
            if self.check_step(&mut cursor)? {
                cursor.pass = Pass::Copy;
                cursor.scan.seek(cursor.start);
                append.cursor = Some(cursor);
                return Ok((STEP as u64, None));
            }
            let bytes = u64::from(cursor.scan.at() - from);
            append.cursor = Some(cursor);
            return Ok((bytes, None));
        }
        let plan = match self.plan_step(&mut cursor) {
            Ok(plan) => plan,
            Err(error) => {
                // The counts are half updated, and the file stays.
                self.stop(&error);
                return Err(error);
            }
        };
        let bytes = u64::from(cursor.scan.at() - from) + plan.bytes.len() as u64;
        let is_done = plan.copies.is_empty() && cursor.scan.at() == from;
        let number = cursor.number;
        if !is_done {
            let done = self.freeing(append, |append| self.carry_out(append, &plan));
            if done.is_err() {
                cursor.scan.seek(from);
            }
            append.cursor = Some(cursor);
            return done.map(|()| (bytes, None));
        }
        match self.freeing(append, |append| self.mark_dropped(append, number)) {
            Ok(at) => Ok((bytes, Some((number, at)))),
            Err(error) => {
                append.cursor = Some(cursor);
                Err(error)
            }
        }
    }

    fn check_step(&self, cursor: &mut Cursor) -> Result<bool, StoreError> {
        let from = cursor.scan.at();
        while ((cursor.scan.at() - from) as usize) < STEP {
            match cursor.scan.next()? {
                Step::Record(..) => {}
                Step::End => return Ok(true),
                Step::Flaw(offset, flaw) => {
                    if cursor.skips_flaws {
                        cursor.scan.skip_flaw()?;
                        continue;
                    }
                    if let Some(file) = write(&self.index).files.get_mut(&cursor.number) {
                        file.is_damaged = true;
                    }
                    return Err(corrupt(cursor.number, offset, flaw.describe()));
                }
            }
        }
        Ok(false)
    }

    fn plan_step(&self, cursor: &mut Cursor) -> Result<Plan, StoreError> {
        let index = read(&self.index);
        let mut plan = Plan::default();
        let mut forgotten: HashMap<(Segment, Print), u32> = HashMap::new();
        let from = cursor.scan.at();
        let number = cursor.number;
        while ((cursor.scan.at() - from) as usize) < STEP {
            match cursor.scan.next()? {
                Step::Record(offset, record) => {
                    let at = Location { file: number, offset, len: record.bytes.len() as u32 };
                    plan.add(&index, &mut forgotten, at, &record);
                }
                Step::End => break,
                Step::Flaw(..) if cursor.skips_flaws => drop(cursor.scan.skip_flaw()?),
                Step::Flaw(offset, flaw) => return Err(corrupt(number, offset, flaw.describe())),
            }
        }
        Ok(plan)
    }

    fn carry_out(&self, append: &mut Append, plan: &Plan) -> Result<(), StoreError> {
        let mut copied = Vec::new();
        if !plan.copies.is_empty() {
            self.make_room(append, plan.bytes.len() as u64)?;
            copied = self.append(append, |encoder, _| {
                let mut rest = &plan.bytes[..];
                let mut copy = |copy: &Copy| {
                    let (record, more) = rest.split_at(copy.from.len as usize);
                    rest = more;
                    encoder.copy(record)
                };
                plan.copies.iter().map(&mut copy).collect()
            })?;
        }
        let mut index = write(&self.index);
        for (copy, at) in plan.copies.iter().zip(copied) {
            index.copied(copy.segment, &copy.print, at);
        }
        for (segment, print, change) in &plan.forgotten {
            index.forget_put(*segment, print, *change);
        }
        Ok(())
    }

    fn mark_dropped(&self, append: &mut Append, number: u32) -> Result<Position, StoreError> {
        self.make_room(append, HEAD as u64)?;
        let at = self.append(append, |encoder, _| encoder.mark(Kind::Dropped, u64::from(number), 0))?;
        let mut index = write(&self.index);
        index.mark_dead(at);
        if let Some(file) = index.files.get_mut(&number) {
            file.is_dropped = true;
        }
        Ok(lock(&self.tail).written)
    }

    /// The copies and the drop record must be durable. Returns the file's length.
    fn finish_drop(&self, number: u32, at: Position) -> Result<u64, StoreError> {
        self.sync_to(at)?;
        let dropped = {
            let mut index = write(&self.index);
            index.forget_spent_floors();
            index.files.remove(&number)
        };
        // A clear has removed the file meanwhile.
        self.remove_files(dropped.is_some().then_some(number).into_iter());
        Ok(dropped.map_or(0, |file| u64::from(file.len)))
    }
}

impl Plan {
    fn add(
        &mut self,
        index: &Index,
        forgotten: &mut HashMap<(Segment, Print), u32>,
        at: Location,
        record: &Record<'_>,
    ) {
        if !matches!(record.kind, Kind::Put | Kind::Remove) || !index.has_segment(record.segment) {
            return;
        }
        let segment = record.segment;
        let print = index.print(record.key);
        let is_below_floor = index.is_below_floor(segment, record.change);
        let current = index.slot(segment, &print).filter(|slot| !is_below_floor && slot.location() == at);
        let counts = match record.kind {
            // A tombstone is needed while it hides records outside the processed part of this file.
            Kind::Remove => current
                .is_some_and(|slot| slot.older() > forgotten.get(&(segment, print)).copied().unwrap_or(0)),
            _ => current.is_some(),
        };
        if counts {
            self.bytes.extend_from_slice(record.bytes);
            self.copies.push(Copy { segment, print, from: at });
        } else if record.kind == Kind::Put {
            self.forgotten.push((segment, print, record.change));
            *forgotten.entry((segment, print)).or_default() += u32::from(!is_below_floor);
        }
    }
}

pub(crate) fn corrupt(number: u32, offset: u32, what: &'static str) -> StoreError {
    StoreError::Corrupt { file: log_name(number), offset: u64::from(offset), what }
}
