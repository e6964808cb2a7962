use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};

use bytes::Bytes;

use crate::aggregate::Total;
use crate::compile::{Answer, Compiled};
use crate::field_reader::Slot;
use crate::grouping::Grouping;
use crate::limits::{ANSWER_STEPS_MAX, HELD_MAX};
use crate::row::{Cell, cells, check, one};
use crate::run_length::runs;
use crate::value::Value;
use crate::work::{Exceeded, Work};

/// Approximate overhead of a row or group.
const EACH: usize = 96;

/// The result needs too many bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the answer needs more than {HELD_MAX} bytes on the server: ask for fewer results (maxResults), for fields instead of \
     entities, or for fewer groups"
)]
pub struct LimitExceeded;

/// A failure to merge.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MergeError {
    /// The result is too large.
    #[error(transparent)]
    LimitExceeded(#[from] LimitExceeded),
    /// Too many steps for an entity.
    #[error(transparent)]
    Exceeded(#[from] Exceeded),
    /// Too many steps for HAVING.
    #[error(
        "the conditions of HAVING need more than {ANSWER_STEPS_MAX} steps for all groups: use fewer conditions or groups"
    )]
    Having,
}

/// The result of a query.
#[derive(Clone, PartialEq, Debug)]
pub struct QueryResult {
    /// Wrapped values, empty for none, or the entity alone.
    pub rows: Vec<Vec<Bytes>>,
    /// All matches.
    pub count: u64,
}

/// A result under construction.
#[derive(Debug)]
pub struct ResultMerger {
    offset: usize,
    /// With the offset.
    wanted: usize,
    columns: usize,
    count: u64,
    held: usize,
    rows: Rows,
}

#[derive(Debug)]
enum Rows {
    Any {
        selected: usize,
        rows: Vec<Bytes>,
    },
    /// The last row is dropped when there are too many.
    First {
        selected: usize,
        order: Vec<bool>,
        rows: BinaryHeap<Ranked>,
    },
    Groups {
        grouping: Grouping,
        groups: BTreeMap<Vec<u8>, Group>,
    },
}

#[derive(Debug)]
struct Group {
    key: Vec<Bytes>,
    totals: Vec<Total>,
}

/// The row's bytes break ties, so that pages are consistent.
#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Ranked {
    keys: Vec<Key>,
    row: Bytes,
}

#[derive(Debug)]
struct Key {
    value: Option<Value<'static>>,
    is_descending: bool,
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        // Nulls sort first.
        let order = match (&self.value, &other.value) {
            (Some(one), Some(other)) => one.order(other),
            (one, other) => one.is_some().cmp(&other.is_some()),
        };
        if self.is_descending { order.reverse() } else { order }
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Key {}

fn value(wrapped: &Bytes) -> Option<Value<'static>> {
    Value::read(wrapped.clone())
}

impl ResultMerger {
    /// Skips `offset` rows and returns at most `max`.
    pub fn new(compiled: &Compiled, offset: usize, max: usize) -> Self {
        let rows = match &compiled.answer {
            Answer::Rows { selected, order } if order.is_empty() => {
                Rows::Any { selected: *selected, rows: Vec::new() }
            }
            Answer::Rows { selected, order } => {
                Rows::First { selected: *selected, order: order.clone(), rows: BinaryHeap::new() }
            }
            Answer::Groups(grouping) => {
                let mut groups = BTreeMap::new();
                // The group of an empty key exists also without rows.
                if grouping.keys == 0 {
                    groups.insert(Vec::new(), Group::new(Vec::new(), grouping));
                }
                Rows::Groups { grouping: grouping.clone(), groups }
            }
        };
        let (columns, wanted) = (compiled.plan.columns.len(), offset.saturating_add(max));
        Self { offset, wanted, columns, count: 0, held: 0, rows }
    }

    /// Adds a row, unless it is invalid. After a [`MergeError`] the merger is unusable.
    pub fn row(&mut self, row: Bytes) -> Result<(), MergeError> {
        check(&row)?;
        self.count += 1;
        match &mut self.rows {
            Rows::Any { rows, .. } => {
                if rows.len() < self.wanted {
                    self.held += EACH + row.len();
                    rows.push(row);
                }
            }
            Rows::First { selected, order, rows } => {
                let Some(cells) = cells(&row, self.columns) else { return Ok(()) };
                let keys = cells[*selected..].iter().zip(&*order);
                let keys = keys.map(|(cell, is_descending)| Key {
                    value: value(&one(cell)),
                    is_descending: *is_descending,
                });
                let ranked = Ranked { keys: keys.collect(), row };
                let is_full = rows.len() >= self.wanted;
                if is_full && rows.peek().is_none_or(|last| ranked >= *last) {
                    return Ok(());
                }
                self.held += 2 * (EACH + ranked.row.len());
                rows.push(ranked);
                if is_full && let Some(last) = rows.pop() {
                    self.held -= 2 * (EACH + last.row.len());
                }
            }
            Rows::Groups { .. } => return Ok(self.add(1, &row)?),
        }
        Ok(self.check()?)
    }

    /// Adds a reduced result, as [`ResultMerger::row`].
    pub fn part(&mut self, made: &Bytes) -> Result<(), MergeError> {
        for (count, row) in runs(made).unwrap_or_default() {
            check(&row)?;
            self.add(count, &row)?;
        }
        Ok(())
    }

    /// Counts rows that are not returned, as [`ResultMerger::row`].
    pub fn more(&mut self, made: &Bytes) -> Result<(), MergeError> {
        for (count, row) in runs(made).unwrap_or_default() {
            check(&row)?;
            self.count += u64::from(count);
        }
        Ok(())
    }

    /// Returns whether further rows only need to be counted.
    pub fn is_full(&self) -> bool {
        matches!(&self.rows, Rows::Any { rows, .. } if rows.len() >= self.wanted)
    }

    /// Resets the count for a new one.
    pub fn recount(&mut self) {
        self.count = 0;
    }

    fn add(&mut self, count: u32, row: &Bytes) -> Result<(), LimitExceeded> {
        let Rows::Groups { grouping, groups } = &mut self.rows else { return Ok(()) };
        let Some(cells) = cells(row, self.columns) else { return Ok(()) };
        let key = key(&cells[..grouping.keys]);
        let group = match groups.get_mut(&key) {
            Some(group) => group,
            None => {
                let values = cells[..grouping.keys].iter().map(|cell| Bytes::copy_from_slice(&one(cell)));
                self.held += EACH * (1 + grouping.aggregates.len()) + 2 * key.len();
                groups.entry(key).or_insert_with(|| Group::new(values.collect(), grouping))
            }
        };
        for (total, counted) in group.totals.iter_mut().zip(&grouping.aggregates) {
            let cell = counted.column.and_then(|column| cells.get(column));
            self.held += total.add(count, cell);
        }
        self.check()
    }

    /// Returns the approximate bytes.
    pub fn held_bytes(&self) -> usize {
        self.held
    }

    fn check(&self) -> Result<(), LimitExceeded> {
        if self.held > HELD_MAX { Err(LimitExceeded) } else { Ok(()) }
    }

    /// Returns the result. Sorting can take long. Fails after [`ANSWER_STEPS_MAX`] steps for HAVING.
    pub fn finish(self) -> Result<QueryResult, MergeError> {
        let (offset, columns) = (self.offset, self.columns);
        let selected_of = |row: &Bytes, selected: usize| {
            let cells = cells(row, columns).unwrap_or_default();
            cells.iter().take(selected).map(one).collect::<Vec<_>>()
        };
        Ok(match self.rows {
            Rows::Any { selected, rows } => {
                let count = self.count.max(rows.len() as u64);
                QueryResult {
                    rows: rows.iter().skip(offset).map(|row| selected_of(row, selected)).collect(),
                    count,
                }
            }
            Rows::First { selected, rows, .. } => {
                let rows = rows.into_sorted_vec();
                QueryResult {
                    rows: rows.iter().skip(offset).map(|one| selected_of(&one.row, selected)).collect(),
                    count: self.count,
                }
            }
            Rows::Groups { grouping, groups } => {
                finish_groups(&grouping, groups, offset, self.wanted - offset)?
            }
        })
    }
}

impl Group {
    fn new(key: Vec<Bytes>, grouping: &Grouping) -> Self {
        Self { key, totals: grouping.aggregates.iter().map(Total::of).collect() }
    }
}

fn key(cells: &[Cell]) -> Vec<u8> {
    let mut key = Vec::new();
    cells.iter().for_each(|cell| crate::row::put_one(&mut key, &one(cell)));
    key
}

fn finish_groups(
    grouping: &Grouping,
    groups: BTreeMap<Vec<u8>, Group>,
    offset: usize,
    max: usize,
) -> Result<QueryResult, MergeError> {
    let mut work = Work::up_to(ANSWER_STEPS_MAX);
    let mut all: Vec<(Vec<Key>, Vec<Bytes>)> = Vec::new();
    for group in groups.into_values() {
        let keys = group.key.iter().map(value);
        let values: Vec<Slot<'_>> = keys
            .chain(group.totals.into_iter().map(Total::value))
            .map(|value| Slot::from_elem(value, 1))
            .collect();
        if !grouping.having.holds(&values, &mut work).map_err(|Exceeded| MergeError::Having)? {
            continue;
        }
        let value = |at: usize| values.get(at).and_then(|slot| slot.first()).and_then(Option::as_ref);
        let keys = grouping
            .order
            .iter()
            .map(|(at, is_descending)| Key { value: value(*at).cloned(), is_descending: *is_descending });
        let row = grouping.selected.iter().map(|at| {
            let mut wrapped = Vec::new();
            if let Some(value) = value(*at) {
                value.write(&mut wrapped);
            }
            Bytes::from(wrapped)
        });
        all.push((keys.collect(), row.collect()));
    }
    all.sort();
    let count = all.len() as u64;
    Ok(QueryResult { rows: all.into_iter().skip(offset).take(max).map(|(_, row)| row).collect(), count })
}
