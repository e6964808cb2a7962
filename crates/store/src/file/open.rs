//! Opening: reads a store's files.
//!
//! 1. The newest file with an intact header lists the live older ones; its drop records remove files from the
//!    list. Unlisted files are left-overs of a crash and are removed.
//! 2. All records are replayed in their order; the last record of a key counts.
//! 3. A torn write at the end of the newest file is truncated. Any other difference is damage: opening fails
//!    and changes nothing, unless damage is to be skipped.
//!
//! **Torn or damaged?** A kill leaves a prefix of the last write. So in the same run of the machine only a
//! record that extends beyond the end of the file is torn. A power failure may leave any part of unsynced data;
//! then an invalid record is torn unless a later intact record says that it was durable. Damage to the last
//! writes before a power failure looks like a torn write.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::compact::corrupt;
use super::header::{Header, log_name, log_number};
use super::index::{Index, LogFile};
use super::record::{Flaw, Kind, Location, Record};
use super::scan::{Scan, Step};
use super::{FileStoreConfig, Recover};
use crate::disk::{Disk, DiskFile};
use crate::error::StoreError;

/// There is always a next number. At one file per second it lasts 60 years.
const NUMBER_MAX: u32 = 2_000_000_000;

/// The findings of opening a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// The number of entries.
    pub entries: u64,
    /// The number of tombstones.
    pub tombstones: u64,
    /// The number of live log files.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// The truncated torn write, which was not acknowledged, or need not survive a power failure.
    pub torn: Option<Torn>,
    /// Removed left-over files.
    pub left_over: usize,
    /// The skipped damage.
    pub lost: Lost,
}

/// A truncated write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torn {
    /// The newest file.
    pub file: String,
    /// The write's offset.
    pub offset: u64,
    /// The write's bytes in the file.
    pub bytes: u64,
}

/// Skipped damage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Files missing or with a damaged header.
    pub files: usize,
    /// Damaged places.
    pub places: usize,
    /// Bytes between intact records.
    pub bytes: u64,
}

impl Lost {
    /// Whether nothing was lost.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[derive(Debug)]
pub(crate) struct Replay {
    pub(crate) index: Index,
    pub(crate) next_file: u32,
    pub(crate) next_change: u64,
    pub(crate) opened: Opened,
    pub(crate) unsealed: Option<u32>,
    pub(crate) cut: Option<(u32, u32)>,
    pub(crate) left_over: Vec<u32>,
    pub(crate) damaged: Vec<u32>,
}

#[derive(Debug)]
struct Candidate {
    file: Arc<dyn DiskFile>,
    len: u32,
    header: Option<(Header, u32)>,
}

#[derive(Debug, Default)]
struct Newest {
    dropped: BTreeSet<u32>,
    end: u32,
}

pub(crate) fn replay(disk: &dyn Disk, config: &FileStoreConfig) -> Result<Replay, StoreError> {
    let skips = config.recover == Recover::SkipCorrupt;
    let mut candidates = candidates(disk)?;
    let mut replay = Replay {
        index: Index::new(config.segments),
        next_file: candidates.keys().next_back().map_or(1, |last| last.saturating_add(1)),
        next_change: 1,
        opened: Opened::default(),
        unsealed: None,
        cut: None,
        left_over: Vec::new(),
        damaged: Vec::new(),
    };
    replay.discard_unfinished(&mut candidates, skips)?;
    let Some((&newest, _)) = candidates.iter().next_back() else { return Ok(replay) };
    let found = replay.read_newest(&candidates, newest, disk.boot(), skips)?;
    replay.discard_unlisted(&mut candidates, &found.dropped, skips)?;
    for (header, _) in candidates.values().filter_map(|candidate| candidate.header.as_ref()) {
        replay.next_change = replay.next_change.max(header.next_change);
        for &(segment, change) in &header.floors {
            replay.index.raise_floor(segment, change);
        }
    }
    for (number, candidate) in candidates {
        let end = if number == newest { found.end } else { candidate.len };
        replay.read(number, candidate, end, number == newest, skips)?;
    }
    replay.index.forget_spent();
    let (entries, tombstones, _) = replay.index.sizes();
    replay.opened.entries = entries;
    replay.opened.tombstones = tombstones;
    replay.opened.files = replay.index.files.len();
    replay.opened.bytes = replay.index.files.values().map(|file| u64::from(file.len)).sum();
    replay.opened.left_over = replay.left_over.len();
    Ok(replay)
}

fn candidates(disk: &dyn Disk) -> Result<BTreeMap<u32, Candidate>, StoreError> {
    let names = disk.list().map_err(|error| StoreError::io("list", &disk.name(), error))?;
    let mut candidates = BTreeMap::new();
    for (number, name) in names.iter().filter_map(|name| Some((log_number(name)?, name))) {
        if number > NUMBER_MAX {
            return Err(corrupt(number, 0, "the file's number is out of range"));
        }
        let failed = |doing| move |error| StoreError::io(doing, name, error);
        let file = disk.open(name).map_err(failed("open"))?;
        let len = file.len().map_err(failed("measure"))?;
        let len = u32::try_from(len).map_err(|_| corrupt(number, u32::MAX, "the file is too long"))?;
        let mut bytes = vec![0; 16.min(len as usize)];
        let count = file.read_at(&mut bytes, 0).map_err(failed("read"))?;
        if let Some(header_len) = Header::encoded_len(&bytes[..count]).filter(|&header_len| header_len <= len)
        {
            bytes.resize(header_len as usize, 0);
            let count = file.read_at(&mut bytes, 0).map_err(failed("read"))?;
            bytes.truncate(count);
        }
        candidates.insert(number, Candidate { header: Header::decode(&bytes, number), file, len });
    }
    Ok(candidates)
}

impl Candidate {
    fn start(&self) -> u32 {
        self.header.as_ref().map_or(0, |(_, len)| *len)
    }

    fn scan(&self, number: u32, end: u32) -> Scan {
        Scan::new(Arc::clone(&self.file), log_name(number), number, self.start(), end)
    }
}

impl Replay {
    /// Records are written once the header is durable, so a file whose creation was interrupted has none.
    fn discard_unfinished(
        &mut self,
        candidates: &mut BTreeMap<u32, Candidate>,
        skips: bool,
    ) -> Result<(), StoreError> {
        let mut is_newest = true;
        for (number, candidate) in candidates.iter().rev() {
            if candidate.header.is_some() {
                is_newest = false;
                continue;
            }
            if is_newest && !candidate.scan(*number, candidate.len).skip_flaw()? {
                self.left_over.push(*number);
            }
        }
        candidates.retain(|number, _| !self.left_over.contains(number));
        let newest = candidates.iter().next_back();
        if let Some((&number, _)) = newest.filter(|(_, candidate)| candidate.header.is_none() && !skips) {
            return Err(corrupt(number, 0, "the header is damaged"));
        }
        Ok(())
    }

    fn read_newest(
        &mut self,
        candidates: &BTreeMap<u32, Candidate>,
        newest: u32,
        boot: Option<u128>,
        skips: bool,
    ) -> Result<Newest, StoreError> {
        let candidate = &candidates[&newest];
        let mut found = Newest::default();
        let mut scan = candidate.scan(newest, candidate.len);
        loop {
            match scan.next()? {
                Step::Record(_, record) => {
                    if record.kind == Kind::Dropped {
                        found.dropped.extend(u32::try_from(record.change).ok());
                    }
                    found.end = scan.at();
                }
                Step::End => break,
                Step::Flaw(offset, flaw) => {
                    let is_same_boot =
                        candidate.header.as_ref().is_some_and(|(header, _)| boot == Some(header.boot));
                    if skips {
                        // The next intact record is replayed; the rest after the last one is truncated.
                        scan.skip_flaw()?;
                    } else {
                        judge(&mut scan, newest, offset, flaw, is_same_boot)?;
                        found.end = offset;
                        break;
                    }
                }
            }
        }
        found.end = found.end.max(candidate.start());
        if found.end < candidate.len {
            let bytes = u64::from(candidate.len - found.end);
            let torn = Torn { file: log_name(newest), offset: u64::from(found.end), bytes };
            self.opened.torn = Some(torn);
            self.cut = Some((newest, found.end));
        }
        Ok(found)
    }

    fn discard_unlisted(
        &mut self,
        candidates: &mut BTreeMap<u32, Candidate>,
        dropped: &BTreeSet<u32>,
        skips: bool,
    ) -> Result<(), StoreError> {
        let newest = candidates.iter().rev().find_map(|(_, candidate)| candidate.header.as_ref());
        let Some((header, _)) = newest else { return Ok(()) };
        let (number, listed) = (header.number, header.files.clone());
        for &file in listed.iter().filter(|file| !dropped.contains(file)) {
            let what = match candidates.get(&file) {
                Some(Candidate { header: Some(_), .. }) => continue,
                Some(_) => "the header is damaged",
                None => "the file is missing",
            };
            if !skips {
                return Err(corrupt(file, 0, what));
            }
            self.opened.lost.files += 1;
        }
        candidates.retain(|file, _| {
            let counts = *file >= number || (listed.binary_search(file).is_ok() && !dropped.contains(file));
            if !counts {
                self.left_over.push(*file);
            }
            counts
        });
        Ok(())
    }

    fn read(
        &mut self,
        number: u32,
        candidate: Candidate,
        end: u32,
        is_newest: bool,
        skips: bool,
    ) -> Result<(), StoreError> {
        let mut scan = candidate.scan(number, end);
        let mut is_damaged = candidate.header.is_none();
        let log = LogFile::new(Arc::clone(&candidate.file), candidate.start(), end, true);
        self.index.files.insert(number, log);
        let mut is_sealed = false;
        loop {
            let from = scan.at();
            let flaw = match scan.next()? {
                Step::Record(offset, record) if !is_sealed => {
                    is_sealed = record.kind == Kind::Seal;
                    self.take(Location { file: number, offset, len: record.bytes.len() as u32 }, &record);
                    continue;
                }
                Step::Record(..) => "data follow the seal",
                Step::End if is_sealed || is_newest => break,
                Step::End => "the seal is missing",
                Step::Flaw(_, flaw) => flaw.describe(),
            };
            if !skips {
                return Err(corrupt(number, from, flaw));
            }
            is_damaged = true;
            self.opened.lost.places += 1;
            tracing::error!(file = log_name(number), offset = from, "skipped damage: {flaw}");
            if from == end {
                break;
            }
            if scan.at() == from {
                scan.skip_flaw()?;
            }
            is_sealed = false;
            self.opened.lost.bytes += u64::from(scan.at() - from);
        }
        if is_newest && !is_sealed {
            self.unsealed = Some(number);
        }
        if is_damaged {
            self.damaged.push(number);
        }
        Ok(())
    }

    fn take(&mut self, at: Location, record: &Record<'_>) {
        let index = &mut self.index;
        let segment = record.segment;
        if record.kind != Kind::Dropped {
            self.next_change = self.next_change.max(record.change.saturating_add(1));
        }
        if !index.has_segment(segment) {
            return index.mark_dead(at);
        }
        let is_below_floor = index.is_below_floor(segment, record.change);
        match record.kind {
            Kind::Put if is_below_floor => index.put_below_floor(segment, at),
            Kind::Put => index.put(segment, index.print(record.key), at, &record.times),
            Kind::Remove if is_below_floor => index.mark_dead(at),
            Kind::Remove => index.remove(segment, index.print(record.key), at),
            Kind::RemoveSegment => {
                index.mark_dead(at);
                index.remove_segment(segment, record.change);
            }
            Kind::Dropped | Kind::Seal | Kind::Begin => index.mark_dead(at),
        }
    }
}

/// Whether to truncate the newest file at an invalid record.
fn judge(
    scan: &mut Scan,
    number: u32,
    offset: u32,
    flaw: Flaw,
    is_same_boot: bool,
) -> Result<(), StoreError> {
    if is_same_boot && matches!(flaw, Flaw::Bad(_)) {
        return Err(corrupt(number, offset, flaw.describe()));
    }
    while scan.skip_flaw()? {
        let Step::Record(_, record) = scan.next()? else { continue };
        if is_same_boot || record.safe > offset {
            return Err(corrupt(number, offset, flaw.describe()));
        }
    }
    Ok(())
}
