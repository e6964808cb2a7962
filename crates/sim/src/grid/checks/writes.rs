//! Writes, which their versions order. A write that begins after another was acknowledged is newer. Nothing
//! is excused: if two partitions acknowledged writes of a key, one would not have seen the other's.

use consort_grid::{Condition, Version};

use super::super::history::Operation;
use super::OfKey;
use crate::checks::Broken;

pub(super) fn check(of_key: &OfKey<'_>) -> Result<(), Broken> {
    for write in &of_key.operations {
        let Some((version, _)) = write.acknowledged() else { continue };
        let last = of_key.acknowledged_before(write.began);
        if version <= last {
            let what =
                format!("{}\n  is not newer than {}", of_key.describe(write), of_key.tell_version(last));
            return Err(("one order of writes", what));
        }
        saw_the_one_before(of_key, write, version)?;
    }
    Ok(())
}

fn saw_the_one_before(of_key: &OfKey<'_>, write: &Operation, version: Version) -> Result<(), Broken> {
    let (Some((written, ended)), Some(asked)) = (write.written(), write.write()) else { return Ok(()) };
    let before = of_key.done.range(..version).next_back();
    let standing = before.filter(|(_, done)| !done.is_removal).map(|(version, _)| *version);
    let may_have_expired = before.is_some_and(|(_, done)| done.may_be_absent(ended));
    let is_right = match (standing, written.was_present) {
        (None, true) => of_key.may_be_put(ended),
        (Some(_), false) => may_have_expired || of_key.may_be_absent(ended),
        _ => true,
    };
    let saw = written.previous.as_ref().map(|previous| previous.version);
    let is_seen = saw.is_none_or(|saw| Some(saw) == standing);
    let is_held = match &asked.condition {
        Condition::Always => true,
        Condition::Absent => !written.was_present,
        Condition::Present => written.was_present,
        Condition::Version(wanted) => {
            standing.is_none_or(|standing| standing == *wanted || of_key.may_be_put(ended))
        }
        Condition::Value(wanted) => standing
            .and_then(|standing| of_key.values.get(&standing))
            .is_none_or(|value| *value == wanted || of_key.may_be_put(ended)),
    };
    if is_right && is_seen && is_held {
        return Ok(());
    }
    let before = before.map(|(version, _)| of_key.tell_version(*version)).unwrap_or_default();
    Err(("writes see the one before", format!("{}\n  follows {before}", of_key.describe(write))))
}
