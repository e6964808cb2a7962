//! Indexes. At every owner and at any time, a lookup finds the same entries as a scan of the segment.
//!
//! A member that begins with stored entries indexes them step by step, while it works.

use std::collections::BTreeSet;

use bytes::Bytes;
use consort_grid::{Container, FieldLookup, IndexLookup, Segment, Visited};
use consort_group::Time;

use super::super::GridWorld;
use super::super::member::alive;
use super::super::value_fields::{CLASS, LENGTH, VALUE, class};
use crate::checks::Broken;

type Condition = fn(&[u8]) -> bool;

fn lookups() -> [(FieldLookup, Condition); 4] {
    let between = |field, from: &[u8], to: &[u8]| FieldLookup::between(field, from, to);
    let short = || between(LENGTH, &0_u32.to_be_bytes(), &7_u32.to_be_bytes());
    [
        (FieldLookup::equal(CLASS, &[0]), |value| class(value) == 0),
        (between(CLASS, &[1], &[2]), |value| matches!(class(value), 1 | 2)),
        (between(VALUE, b"b", b"n"), |value| (&b"b"[..]..=&b"n"[..]).contains(&value)),
        (FieldLookup::all(vec![short(), FieldLookup::equal(CLASS, &[3])]), |value| {
            value.len() <= 7 && class(value) == 3
        }),
    ]
}

pub(crate) fn check(world: &GridWorld) -> Result<(), Broken> {
    for (node, member) in alive(world) {
        let own = node.application_clock(world.now);
        for segment in (0..member.container.segment_count()).map(Segment) {
            for (lookup, condition) in lookups() {
                differ(&member.container, segment, &lookup, condition, own).map_err(|what| {
                    (
                        "an index finds the entries of a scan",
                        format!("{}: segment {segment}: {what}", node.name),
                    )
                })?;
            }
        }
        member.container.indexes().build();
    }
    Ok(())
}

/// After the last step of each build.
pub(crate) fn check_built(world: &GridWorld) -> Result<(), Broken> {
    for (_, member) in alive(world) {
        while member.container.indexes().build() {}
    }
    check(world)?;
    for (node, member) in alive(world) {
        let statistics = member.container.statistics();
        if statistics.index_entries() < member.container.len() {
            let (entries, values) = (member.container.len(), statistics.index_entries());
            let what = format!("{}: {values} values of {entries} entries", node.name);
            return Err(("a complete index has each entry", what));
        }
    }
    Ok(())
}

fn differ(
    container: &Container,
    segment: Segment,
    lookup: &FieldLookup,
    condition: Condition,
    now: Time,
) -> Result<(), String> {
    let indexes = container.indexes();
    let Some(fields) = indexes.fields() else { return Err("there is no index".to_owned()) };
    let answer = |lookup: Option<&IndexLookup>| {
        let mut found = BTreeSet::new();
        // An entry whose value only the store has may match.
        let is_it = |visited: Visited<'_>| visited.is_passive() || condition(visited.value());
        let walked = indexes.visit(segment, lookup, now, |visited| {
            if is_it(visited) {
                found.insert((Bytes::copy_from_slice(visited.key()), visited.version()));
            }
        });
        walked.map(|()| found)
    };
    let (indexed, scanned) = (answer(Some(&IndexLookup::new(fields, lookup.clone()))), answer(None));
    if indexed == scanned { Ok(()) } else { Err(format!("{lookup:?}: {indexed:?}, but a scan: {scanned:?}")) }
}
