//! What owners have made of their entities, put together: the rows that are wanted, in their order, or groups.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};

use bytes::Bytes;

use crate::aggregate::Total;
use crate::limits::{ANSWER_STEPS_MAX, HELD_MAX};
use crate::compile::{Answer, Compiled};
use crate::grouping::Grouping;
use crate::row::{Cell, cells, check, one};
use crate::run_length::runs;
use crate::field_reader::Slot;
use crate::value::Value;
use crate::work::{Exceeded, Work};

/// What one row or group has around it, about.
const EACH: usize = 96;

/// A query holds more than it may. Nothing is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the answer needs more than {HELD_MAX} bytes on the server: ask for fewer results (maxResults), for fields instead of \
     entities, or for fewer groups"
)]
pub struct LimitExceeded;

/// Why a query is not answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MergeError {
    /// Its answer is too large.
    #[error(transparent)]
    LimitExceeded(#[from] LimitExceeded),
    /// An entity would take too many steps.
    #[error(transparent)]
    Exceeded(#[from] Exceeded),
    /// The conditions on its groups would take too many steps.
    #[error(
        "the conditions of HAVING need more than {ANSWER_STEPS_MAX} steps for all groups: use fewer conditions or groups"
    )]
    Having,
}

/// What was found.
#[derive(Clone, PartialEq, Debug)]
pub struct QueryResult {
    /// The rows that are told: of each column what is wrapped, which is nothing where there is no value, or the entity alone.
    pub rows: Vec<Vec<Bytes>>,
    /// How many there are in all.
    pub count: u64,
}

/// An answer that is being put together.
#[derive(Debug)]
pub struct ResultMerger {
    offset: usize,
    /// Rows from the first one on to the last that is told.
    wanted: usize,
    columns: usize,
    count: u64,
    held: usize,
    rows: Rows,
}

#[derive(Debug)]
enum Rows {
    /// Any of them.
    Any {
        selected: usize,
        rows: Vec<Bytes>,
    },
    /// The first ones of an order. The last of them is taken away when there are too many.
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

/// A group's key as cells, and what has become of its rows.
#[derive(Debug)]
struct Group {
    key: Vec<Bytes>,
    totals: Vec<Total>,
}

/// A row by what it is ordered by. Among those that are the same their bytes decide, so that pages of an answer fit together.
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
        // What has no value comes first.
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
    /// Nothing yet. Of what is found so much is left out, and no more is told than this.
    pub fn new(compiled: &Compiled, offset: usize, max: usize) -> Self {
        let rows = match &compiled.answer {
            Answer::Rows { selected, order } if order.is_empty() => Rows::Any { selected: *selected, rows: Vec::new() },
            Answer::Rows { selected, order } => {
                Rows::First { selected: *selected, order: order.clone(), rows: BinaryHeap::new() }
            }
            Answer::Groups(grouping) => {
                let mut groups = BTreeMap::new();
                // All of nothing is a group, too.
                if grouping.keys == 0 {
                    groups.insert(Vec::new(), Group::new(Vec::new(), grouping));
                }
                Rows::Groups { grouping: grouping.clone(), groups }
            }
        };
        let (columns, wanted) = (compiled.plan.columns.len(), offset.saturating_add(max));
        Self { offset, wanted, columns, count: 0, held: 0, rows }
    }

    /// Adds a row. What is none is left out.
    ///
    /// # Errors
    ///
    /// [`MergeError`], after which nothing more can be had of it.
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

    /// Adds what a reduction has made of several.
    ///
    /// # Errors
    ///
    /// As [`ResultMerger::row`].
    pub fn part(&mut self, made: &Bytes) -> Result<(), MergeError> {
        for (count, row) in runs(made).unwrap_or_default() {
            check(&row)?;
            self.add(count, &row)?;
        }
        Ok(())
    }

    /// Adds so many that are not told.
    ///
    /// # Errors
    ///
    /// As [`ResultMerger::row`].
    pub fn more(&mut self, made: &Bytes) -> Result<(), MergeError> {
        for (count, row) in runs(made).unwrap_or_default() {
            check(&row)?;
            self.count += u64::from(count);
        }
        Ok(())
    }

    /// Whether everything is there that is told, so that the others only have to be counted.
    pub fn is_full(&self) -> bool {
        matches!(&self.rows, Rows::Any { rows, .. } if rows.len() >= self.wanted)
    }

    /// Forgets how many there were: all will be counted.
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

    /// How many bytes it holds, about.
    pub fn held_bytes(&self) -> usize {
        self.held
    }

    fn check(&self) -> Result<(), LimitExceeded> {
        if self.held > HELD_MAX { Err(LimitExceeded) } else { Ok(()) }
    }

    /// What was found. It is put in order here, which can take as long as the answer is large.
    ///
    /// # Errors
    ///
    /// [`MergeError`] if the conditions on its groups need more than [`ANSWER_STEPS_MAX`] steps.
    pub fn finish(self) -> Result<QueryResult, MergeError> {
        let (offset, columns) = (self.offset, self.columns);
        let selected_of = |row: &Bytes, selected: usize| {
            let cells = cells(row, columns).unwrap_or_default();
            cells.iter().take(selected).map(one).collect::<Vec<_>>()
        };
        Ok(match self.rows {
            Rows::Any { selected, rows } => {
                let count = self.count.max(rows.len() as u64);
                QueryResult { rows: rows.iter().skip(offset).map(|row| selected_of(row, selected)).collect(), count }
            }
            Rows::First { selected, rows, .. } => {
                let rows = rows.into_sorted_vec();
                QueryResult {
                    rows: rows.iter().skip(offset).map(|one| selected_of(&one.row, selected)).collect(),
                    count: self.count,
                }
            }
            Rows::Groups { grouping, groups } => finish_groups(&grouping, groups, offset, self.wanted - offset)?,
        })
    }
}

impl Group {
    fn new(key: Vec<Bytes>, grouping: &Grouping) -> Self {
        Self { key, totals: grouping.aggregates.iter().map(Total::of).collect() }
    }
}

/// What is the same for rows of a group.
fn key(cells: &[Cell]) -> Vec<u8> {
    let mut key = Vec::new();
    cells.iter().for_each(|cell| crate::row::put_one(&mut key, &one(cell)));
    key
}

/// The groups that are told.
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
