//! Counters: at least the acknowledged increments, and at most those and the uncertain ones.

use super::OfKey;
use crate::checks::Broken;
use crate::grid::client::count;
use crate::grid::history::Operation;

pub(super) fn check(of_key: &OfKey<'_>) -> Result<(), Broken> {
    for read in &of_key.operations {
        let Some((found, ended)) = read.read().filter(|_| read.is_primary_read() && !read.is_excused) else {
            continue;
        };
        let is_known = |one: &&&Operation| one.acknowledged().is_some_and(|(_, at)| at < read.began);
        let is_possible =
            |one: &&&Operation| one.began <= ended && (one.acknowledged().is_some() || one.is_uncertain());
        let acknowledged = of_key.operations.iter().filter(is_known).count() as u64;
        let possible = of_key.operations.iter().filter(is_possible).count() as u64;
        let value = found.map_or(0, |stored| count(&stored.value));
        if !(acknowledged..=possible).contains(&value) {
            let what = format!(
                "{acknowledged} were acknowledged, {possible} possible, but {}",
                of_key.describe(read)
            );
            return Err(("counters count exactly", what));
        }
    }
    Ok(())
}
