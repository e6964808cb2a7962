//! Clears. A concurrent write may stay.
//!
//! Excused are, as in [`super::iterations`], clears with keys from a member that was removed from the
//! topology and did not know it, and reads as in [`super::register`].

use super::super::GridWorld;
use super::super::bulk_client::BulkOperation;
use super::super::history::Operation;
use super::{describe, merges};
use crate::checks::Broken;

pub(super) fn check(world: &GridWorld, key: &[u8], operations: &[&Operation]) -> Result<(), Broken> {
    let bulk = world.app.bulk.iter();
    let clears: Vec<&BulkOperation> = bulk.filter(|one| one.is_clear && !one.is_excused).collect();
    if clears.is_empty() || merges::has_parted(world) {
        return Ok(());
    }
    for read in operations.iter().filter(|read| !read.is_excused) {
        let Some((Some(stored), _)) = read.read() else { continue };
        // Counters come to the same value again.
        let mut writers = operations.iter().filter(|write| write.value() == Some(&stored.value));
        let (Some(writer), None) = (writers.next(), writers.next()) else { continue };
        let Some((_, written)) = writer.acknowledged() else { continue };
        let is_over = |clear: &&&BulkOperation| {
            // An entry that has expired by one owner's clock is not removed from the other owners.
            let is_cleared = |ended| ended < read.began && !writer.may_be_absent(ended);
            written < clear.began && clear.ended.is_some_and(is_cleared)
        };
        if let Some(clear) = clears.iter().find(is_over) {
            let what = format!(
                "{}\n  cleared by {} from {:?} to {:?}",
                describe(world, key, read),
                world.nodes[clear.node].name,
                clear.began,
                clear.ended
            );
            return Err(("entries before a clear are gone", what));
        }
    }
    Ok(())
}
