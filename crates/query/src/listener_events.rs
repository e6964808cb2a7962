//! Events of listeners with a query: wrapped protobuf messages (facts section 2.7).

use bytes::Bytes;

use crate::compile::{Answer, Compiled};
use crate::error::{QueryError, QueryErrorKind};
use crate::row::{cells, check, one};
use crate::work::{Exceeded, Work};
use consort_protostream::wire::{LENGTH, MESSAGE, TYPE_ID, VARINT, put_bytes, put_tag, put_varint};
use consort_protostream::wrapped::BYTES;

#[derive(Clone, Copy)]
enum Change {
    /// A new match.
    Joining = 1,
    /// Still a match.
    Updated = 2,
    /// No longer a match.
    Leaving = 3,
}

/// A type id.
const FILTER_RESULT: u64 = 4402;
/// A type id.
const CONTINUOUS_RESULT: u64 = 4403;

type SelectedValues = (Vec<Bytes>, Vec<Bytes>);

impl Compiled {
    /// Checks that the query is for single entities, without grouping or aggregates.
    pub fn check_per_entity(&self) -> Result<(), QueryError> {
        match self.answer {
            Answer::Rows { .. } => Ok(()),
            Answer::Groups(_) => {
                Err(QueryErrorKind::Unsupported("ISPN028509: Filters cannot use grouping or aggregations")
                    .into())
            }
        }
    }

    fn selected_values(&self, value: &[u8], version: u64) -> Result<Option<SelectedValues>, Exceeded> {
        let Answer::Rows { selected, .. } = &self.answer else { return Ok(None) };
        let row = self.plan.examine(value, version, &mut Work::default())?;
        let Some(cells) = row.and_then(|row| cells(&row.into(), self.plan.columns.len())) else {
            return Ok(None);
        };
        let mut selected_of: Vec<Bytes> = cells.iter().map(one).collect();
        let order = selected_of.split_off(*selected);
        Ok(Some((selected_of, order)))
    }

    /// Returns the selected values of a row of [`Plan::row`](crate::Plan::row), each wrapped, or the entity; `None` if the row is
    /// invalid. Fails on an error row.
    pub fn values<C: FromIterator<Bytes>>(&self, row: &Bytes) -> Result<Option<C>, Exceeded> {
        check(row)?;
        let Answer::Rows { selected, .. } = &self.answer else { return Ok(None) };
        let cells = cells(row, self.plan.columns.len());
        Ok(cells.map(|cells| cells.iter().take(*selected).map(one).collect()))
    }

    /// Returns a continuous query's event; `None` without a match. `was_found`: the previous value matched. Fails after
    /// [`ENTITY_STEPS_MAX`](crate::limits::ENTITY_STEPS_MAX) steps.
    pub fn match_event(
        &self,
        key: &[u8],
        value: &[u8],
        version: u64,
        was_found: bool,
    ) -> Result<Option<Bytes>, Exceeded> {
        let Some((selected, _)) = self.selected_values(value, version)? else { return Ok(None) };
        let mut out = begun(if was_found { Change::Updated } else { Change::Joining }, key);
        if self.names.is_empty() {
            put(&mut out, 3, value);
        } else {
            selected.iter().for_each(|cell| put(&mut out, 4, cell));
        }
        Ok(Some(wrapped(CONTINUOUS_RESULT, &out)))
    }

    /// Returns the event of a key that no longer matches.
    pub fn left_event(&self, key: &[u8]) -> Bytes {
        wrapped(CONTINUOUS_RESULT, &begun(Change::Leaving, key))
    }

    /// Returns a filter's event; `None` without a match. Fails as [`Compiled::match_event`].
    pub fn filter_event(&self, value: &[u8], version: u64) -> Result<Option<Bytes>, Exceeded> {
        let Some((selected, order)) = self.selected_values(value, version)? else { return Ok(None) };
        let mut out = Vec::new();
        if self.names.is_empty() {
            let mut instance = Vec::new();
            put(&mut instance, BYTES, value);
            put(&mut out, 1, &instance);
        } else {
            selected.iter().for_each(|cell| put(&mut out, 2, cell));
        }
        order.iter().for_each(|cell| put(&mut out, 3, cell));
        Ok(Some(wrapped(FILTER_RESULT, &out)))
    }
}

fn put(out: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    put_tag(out, field, LENGTH);
    put_bytes(out, bytes);
}

fn begun(change: Change, key: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_tag(&mut out, 1, VARINT);
    put_varint(&mut out, change as u64);
    put(&mut out, 2, key);
    out
}

fn wrapped(id: u64, message: &[u8]) -> Bytes {
    let mut out = Vec::new();
    put_tag(&mut out, TYPE_ID, VARINT);
    put_varint(&mut out, id);
    put(&mut out, MESSAGE, message);
    out.into()
}
