//! Max-idle. All members and conditions find an entry that an owner returned within its `max_idle`; no member
//! finds one that none has returned since. [`super::expiry`] judges that expired entries leave memory.
//!
//! A use lies within the read that returned the entry; a message about uses contains their ages, so the use
//! appears later by the frame's transit time. A member that knew that owners were unreachable is excused: it
//! does not read an entry that was not used there. A use does not count if a member that may alone know of it
//! has crashed since or was removed from the topology.

use std::time::Duration;

use consort_group::Time;

use super::super::history::{Operation, ROUNDED};
use super::super::operations::TIMEOUT;
use super::expiry::{given, late};
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
    // Another write may have replaced the entry, or removed it.
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
    let what = format!(
        "{}\n  does not find the entry used by\n  {}",
        of_key.describe(operation),
        of_key.describe(last)
    );
    Err(("a used entry is found", what))
}

/// Whether the members that may have returned an entry still know that.
fn is_known(of_key: &OfKey<'_>, read: &Operation, until: Time) -> bool {
    let lost = of_key.world.app.lost.iter();
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
    // A read counts whatever its result is: a member may have returned the entry in a response that the caller did not wait
    // for.
    let is_other = |read: &&&Operation| {
        read.write().is_none() && read.began <= operation.began && !std::ptr::eq(**read, operation)
    };
    let ends = of_key.operations.iter().filter(is_other);
    let last = ends.map(|read| read.ended.unwrap_or(read.began + TIMEOUT)).fold(acknowledged, Time::max);
    let late = late(of_key.world, write.began, ended);
    if operation.began > last + max_idle.div_f64(SLOWEST) + late + ROUNDED {
        let what = format!(
            "{}\n  finds an entry that no client has used since {last:?}\n  {}",
            of_key.describe(operation),
            of_key.describe(write)
        );
        return Err(("an unused entry expires for every reader", what));
    }
    Ok(())
}
