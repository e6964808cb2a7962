//! Clears: what had been acknowledged before one began is read nowhere once it is acknowledged, whoever joins, leaves, crashes
//! or has segments on their way meanwhile. What was written beside it may stay.
//!
//! Excused as in [`super::walks`] is a clear to which a member may have given its keys that was left out and did not know it,
//! and reads as in [`super::register`].

use super::super::history::Operation;
use super::super::several::Several;
use super::{merges, tell};
use crate::checks::Broken;
use crate::world::World;

pub(super) fn check(world: &World, key: &[u8], operations: &[&Operation]) -> Result<(), Broken> {
    let several = world.grid.iter().flat_map(|grid| &grid.several);
    let clears: Vec<&Several> = several.filter(|one| one.is_clear && !one.is_excused).collect();
    if clears.is_empty() || merges::has_parted(world) {
        return Ok(());
    }
    for read in operations.iter().filter(|read| !read.is_excused) {
        let Some((Some(stored), _)) = read.read() else { continue };
        // Counters come to the same value again.
        let mut writers = operations.iter().filter(|write| write.value() == Some(&stored.value));
        let (Some(writer), None) = (writers.next(), writers.next()) else { continue };
        let Some((_, written)) = writer.acknowledged() else { continue };
        let is_over = |clear: &&&Several| {
            // What has expired by one owner's clock is not removed from the others.
            let is_cleared = |ended| ended < read.began && !writer.may_be_absent(ended);
            written < clear.began && clear.ended.is_some_and(is_cleared)
        };
        if let Some(clear) = clears.iter().find(is_over) {
            let what = format!(
                "{}\n  cleared by {} from {:?} to {:?}",
                tell(world, key, read),
                world.nodes[clear.node].name,
                clear.began,
                clear.ended
            );
            return Err(("what was there when it was cleared is gone", what));
        }
    }
    Ok(())
}
