use bytes::Bytes;
use consort_grid::{Action, Change, Condition, Lifetime, Write};

/// The entry does not expire.
pub(super) fn put(value: Bytes, condition: Condition, wants_previous: bool) -> Action {
    put_for(Lifetime::FOREVER, value, condition, wants_previous)
}

pub(super) fn put_for(
    lifetime: Lifetime,
    value: Bytes,
    condition: Condition,
    wants_previous: bool,
) -> Action {
    Action::Write(Write { condition, change: Change::Put { value, lifetime }, wants_previous })
}

pub(super) fn remove(condition: Condition, wants_previous: bool) -> Action {
    Action::Write(Write { condition, change: Change::Remove, wants_previous })
}
