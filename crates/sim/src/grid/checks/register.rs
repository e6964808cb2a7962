//! Regular registers.
//!
//! Excused are reads by a member that a newer topology has removed and that did not know it yet: it has not
//! detected the partition, or its cache allows reads in a minority. Their values were written all the same.

use super::super::history::Operation;
use super::OfKey;
use crate::checks::Broken;

pub(super) fn check(of_key: &OfKey<'_>) -> Result<(), Broken> {
    for read in &of_key.operations {
        let Some((found, ended)) = read.read() else { continue };
        if let Some(stored) = found {
            let is_written = of_key
                .operations
                .iter()
                .any(|write| write.value() == Some(&stored.value) && write.began <= ended);
            if !is_written {
                return Err(("a read value was written", of_key.describe(read)));
            }
            // Several writers of a counter may have one value.
            let writers = || of_key.operations.iter().filter(|write| write.value() == Some(&stored.value));
            if writers().all(|write| write.is_undone()) {
                return Err(("a failed write was not done", of_key.describe(read)));
            }
        }
        if read.is_excused {
            continue;
        }
        let last = of_key.acknowledged_before(read.began);
        let is_fresh = match found {
            Some(stored) => stored.version >= last,
            None => {
                let standing = of_key.done.get(&last);
                let mut later = of_key.done.range(last..).map(|(_, done)| done);
                // A concurrent write may have been done at a primary, and undone with it, whatever its result is in the end.
                let is_under_way = |other: &&&Operation| {
                    other.may_be_absent(ended) && other.ended.is_none_or(|at| at >= read.began)
                };
                standing.is_none_or(|done| done.is_removal)
                    || later.any(|done| done.may_be_absent(ended))
                    || of_key.operations.iter().find(is_under_way).is_some()
                    || of_key.may_be_absent(ended)
            }
        };
        if !is_fresh {
            let what = format!("{}\n  misses {}", of_key.describe(read), of_key.tell_version(last));
            return Err(("reads give the last acknowledged write", what));
        }
    }
    Ok(())
}
