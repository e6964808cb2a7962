//! Linearizability, for keys that are read at the primary only. One order of the key's operations explains
//! every result, and no operation comes before another that had ended when it began.
//!
//! Versions order the writes, and the returned entry places a read among them. The search places only
//! operations that found nothing, each at the earliest possible place, in one pass. Excused are responses as
//! in [`super::register`].

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use consort_grid::Version;
use consort_group::Time;

use super::super::history::Operation;
use super::OfKey;
use crate::checks::Broken;

enum Place {
    /// The operation is this write.
    At(Version),
    /// The operation saw this write.
    Behind(Version),
    WhereAbsent,
}

pub(super) fn check(of_key: &OfKey<'_>) -> Result<(), Broken> {
    // Operations that have a place, by their ends.
    let mut placed: BinaryHeap<Reverse<(Time, Version)>> = BinaryHeap::new();
    let mut passed = Version::NONE;
    for operation in &of_key.operations {
        while let Some(Reverse((_, place))) =
            placed.peek().filter(|Reverse((ended, _))| *ended < operation.began).copied()
        {
            placed.pop();
            passed = passed.max(place);
        }
        let Some(place) = place(of_key, operation) else { continue };
        let end = operation.ended.unwrap_or(Time(u64::MAX));
        let found = match place {
            Place::At(version) => (version > passed).then_some(version),
            Place::Behind(version) => (version >= passed).then_some(version),
            Place::WhereAbsent => absent_from(of_key, passed, end),
        };
        let Some(found) = found else {
            let what =
                format!("{}\n  comes behind {}", of_key.describe(operation), of_key.tell_version(passed));
            return Err(("primaries are linearizable", what));
        };
        let is_certain = operation.result.as_ref().is_some_and(Result::is_ok);
        if is_certain {
            placed.push(Reverse((end, found)));
        }
    }
    Ok(())
}

fn place(of_key: &OfKey<'_>, operation: &Operation) -> Option<Place> {
    if let Some((version, _)) = operation.acknowledged() {
        return Some(Place::At(version));
    }
    if operation.is_uncertain() {
        let value = operation.value()?;
        let mut seen = of_key.done.iter().filter(|(version, _)| of_key.values.get(version) == Some(&value));
        return seen
            .find(|(_, done)| done.operation.is_some_and(|one| std::ptr::eq(one, operation)))
            .map(|(version, _)| Place::At(*version));
    }
    if operation.is_excused {
        return None;
    }
    let seen = match (operation.read(), operation.written()) {
        (Some((found, _)), _) if operation.is_primary_read() => found.map(|stored| stored.version),
        (_, Some((written, _))) => written.was_present.then_some(written.version),
        _ => return None,
    };
    Some(seen.map_or(Place::WhereAbsent, Place::Behind))
}

/// The first place from `passed` on where the key may have been absent for an operation that ended then.
fn absent_from(of_key: &OfKey<'_>, passed: Version, end: Time) -> Option<Version> {
    let standing = of_key.done.range(..=passed).next_back();
    let is_absent = standing.is_none_or(|(_, done)| done.is_removal || done.may_be_absent(end));
    if is_absent || of_key.may_be_absent(end) {
        return Some(passed);
    }
    let later = of_key.done.range(passed..).filter(|(_, done)| done.may_be_absent(end));
    later.map(|(version, _)| *version).next()
}
