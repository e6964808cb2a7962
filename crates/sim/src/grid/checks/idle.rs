//! Entries that live as long as somebody uses them: what an owner has given within its `max_idle` is found by all, and by
//! conditions; what none has given since is found by nobody. That nothing is left of it in the end is for [`super::expiry`].
//!
//! A use is a read that gave the entry. When exactly it was, nobody knows but that it was while the read went on. Excused is who
//! knew that owners were away: what was not used there is not read there. A use does not count if somebody was lost since, or
//! left out, who may be the only one that knows of it.
//!
//! Clocks differ in their speed, and what is told of uses says how long ago they were: it is as much younger as the frame took.

use std::time::Duration;

use consort_group::Time;

use super::super::client::TIMEOUT;
use super::super::history::Operation;
use super::expiry::{ROUNDED, given, late};
use super::{Done, OfKey};
use crate::checks::Broken;
use crate::faults::{FASTEST, SLOWEST};

pub(super) fn check(of_key: &OfKey<'_>) -> Result<(), Broken> {
    for operation in &of_key.operations {
        used_is_found(of_key, operation)?;
        unused_is_not_found(of_key, operation)?;
    }
    Ok(())
}

/// When an operation had found nothing.
fn found_nothing(operation: &Operation) -> Option<Time> {
    let is_nothing = match (operation.read(), operation.written()) {
        (Some((found, _)), _) => found.is_none(),
        (_, Some((written, _))) => !written.was_present,
        _ => false,
    };
    operation.ended.filter(|_| is_nothing && !operation.is_excused && !operation.is_degraded)
}

fn used_is_found(of_key: &OfKey<'_>, operation: &Operation) -> Result<(), Broken> {
    let Some(ended) = found_nothing(operation) else { return Ok(()) };
    let version = of_key.acknowledged_before(operation.began);
    let Some(Done { operation: Some(write), is_removal: false }) = of_key.done.get(&version) else {
        return Ok(());
    };
    let Some(max_idle) = write.lifetime().and_then(|lifetime| lifetime.max_idle) else { return Ok(()) };
    let is_over = |span: Duration, since: Time| since + span.div_f64(FASTEST) <= ended + ROUNDED;
    // Another one may have replaced it, or taken it away.
    let is_newer = |other: &&Operation| {
        other.began <= ended
            && !std::ptr::eq(*other, operation)
            && (other.is_uncertain() || other.acknowledged().is_some_and(|(theirs, _)| theirs > version))
    };
    if write.lifespan().is_some_and(|lifespan| is_over(lifespan, write.began))
        || of_key.operations.iter().copied().any(|other| is_newer(&other))
    {
        return Ok(());
    }
    let is_use = |read: &&&Operation| {
        let gave =
            read.read().is_some_and(|(found, _)| found.is_some_and(|stored| stored.version == version));
        gave && read.ended.is_some_and(|at| at < operation.began) && is_known(of_key, read, ended)
    };
    let last =
        of_key.operations.iter().filter(is_use).max_by_key(|read| read.began).copied().unwrap_or(write);
    if is_over(max_idle, last.began) {
        return Ok(());
    }
    let what =
        format!("{}\n  does not find what was used by\n  {}", of_key.tell(operation), of_key.tell(last));
    Err(("what is used is found", what))
}

/// Whether those who may have given an entry still know that.
fn is_known(of_key: &OfKey<'_>, read: &Operation, until: Time) -> bool {
    let lost = of_key.world.grid.iter().flat_map(|grid| &grid.lost);
    let mut since = lost.filter(|(_, at)| (read.began..=until).contains(at));
    !read.is_excused && !since.any(|(node, _)| read.readers.contains(node))
}

fn unused_is_not_found(of_key: &OfKey<'_>, operation: &Operation) -> Result<(), Broken> {
    let (Some(stored), Some(ended)) = (given(operation), operation.ended) else { return Ok(()) };
    let Some(write) = of_key.operations.iter().find(|write| write.value() == Some(&stored.value)) else {
        return Ok(());
    };
    let Some(max_idle) = write.lifetime().and_then(|lifetime| lifetime.max_idle) else { return Ok(()) };
    let Some((_, acknowledged)) = write.acknowledged() else { return Ok(()) };
    // Whatever came of a read: somebody may have given the entry whose answer nobody waited for.
    let is_other = |read: &&&Operation| {
        read.write().is_none() && read.began <= operation.began && !std::ptr::eq(**read, operation)
    };
    let ends = of_key.operations.iter().filter(is_other);
    let last = ends.map(|read| read.ended.unwrap_or(read.began + TIMEOUT)).fold(acknowledged, Time::max);
    let late = late(of_key.world, write.began, ended);
    if operation.began > last + max_idle.div_f64(SLOWEST) + late + ROUNDED {
        let what = format!(
            "{}\n  finds what nobody has used since {last:?}\n  {}",
            of_key.tell(operation),
            of_key.tell(write)
        );
        return Err(("what nobody uses is found by nobody", what));
    }
    Ok(())
}
