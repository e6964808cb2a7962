//! The plan for owners, in a form that needs no schema.

use crate::condition::Condition;
use crate::entity::entity;
use crate::field_reader::{FieldReader, Slot};
use crate::limits::COLUMNS_MAX;
use crate::plan_codec::{below, count, number, put_number, put_text, text};
use crate::row::{EXCEEDED, put_one, put_slot};
use crate::run_length;
use crate::value::Value;
use crate::work::{Exceeded, Work};

/// A plan of an unknown version matches nothing.
const FORM: u8 = 1;

/// A plan for owners: see [`Plan::row`].
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    pub(crate) type_name: String,
    /// Clients may use it instead of the name.
    pub(crate) type_id: Option<u32>,
    pub(crate) slots: usize,
    pub(crate) reader: FieldReader,
    pub(crate) condition: Condition,
    pub(crate) columns: Vec<Column>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Column {
    Slot(usize),
    Version,
    Entity,
    /// Always null.
    Nothing,
}

impl Plan {
    /// Returns the row of a matching entity. Values that are no valid message of the type do not match. Beyond
    /// [`ENTITY_STEPS_MAX`](crate::limits::ENTITY_STEPS_MAX) steps it returns an error row, and the query fails at the merge.
    pub fn row(&self, value: &[u8], version: u64) -> Option<Vec<u8>> {
        self.examine(value, version, &mut Work::default()).unwrap_or_else(|Exceeded| Some(EXCEEDED.to_vec()))
    }

    /// As [`Plan::row`], with a limit of steps; beyond it this fails.
    pub fn examine(&self, value: &[u8], version: u64, work: &mut Work) -> Result<Option<Vec<u8>>, Exceeded> {
        let Some(slots) = self.let_through(value, work)? else { return Ok(None) };
        let mut row = Vec::new();
        for column in &self.columns {
            match column {
                Column::Slot(slot) => {
                    let Some(slot) = slots.get(*slot) else { return Ok(None) };
                    let bytes = |value: &Option<Value<'_>>| value.as_ref().map_or(0, Value::len) + 16;
                    work.spend(slot.iter().map(bytes).sum::<usize>() as u64)?;
                    put_slot(&mut row, slot);
                }
                Column::Version => {
                    let mut wrapped = Vec::new();
                    Value::Long(version.cast_signed()).write(&mut wrapped);
                    put_one(&mut row, &wrapped);
                }
                Column::Entity => {
                    work.spend(value.len() as u64)?;
                    put_one(&mut row, value);
                }
                Column::Nothing => put_one(&mut row, &[]),
            }
        }
        Ok(Some(row))
    }

    /// Adds a row to a reduced result.
    pub fn reduce(&self, made: &mut Vec<u8>, value: &[u8], version: u64) {
        if let Some(row) = self.row(value, version) {
            run_length::push(made, &row);
        }
    }

    /// Returns whether a value matches; fails after [`ENTITY_STEPS_MAX`](crate::limits::ENTITY_STEPS_MAX) steps.
    pub fn holds(&self, value: &[u8]) -> Result<bool, Exceeded> {
        Ok(self.let_through(value, &mut Work::default())?.is_some())
    }

    /// Returns the plan without columns, to count matches.
    pub fn counting(&self) -> Self {
        Self { columns: Vec::new(), ..self.clone() }
    }

    fn let_through<'v>(&self, value: &'v [u8], work: &mut Work) -> Result<Option<Vec<Slot<'v>>>, Exceeded> {
        let Some(message) = self.message(value) else { return Ok(None) };
        let Some(slots) = self.reader.read(message, self.slots, work)? else { return Ok(None) };
        Ok(self.condition.holds(&slots, work)?.then_some(slots))
    }

    fn message<'v>(&self, value: &'v [u8]) -> Option<&'v [u8]> {
        let (entity, message) = entity(value)?;
        let is_of_type = entity.is(&self.type_name, self.type_id);
        is_of_type.then_some(message)
    }

    /// Encodes the plan.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![FORM];
        put_text(&mut out, &self.type_name);
        put_number(&mut out, self.type_id.map_or(0, |id| id as usize + 1));
        put_number(&mut out, self.slots);
        self.reader.write(&mut out);
        self.condition.write(&mut out);
        put_number(&mut out, self.columns.len());
        for column in &self.columns {
            let number = match column {
                Column::Entity => 0,
                Column::Version => 1,
                Column::Nothing => 2,
                Column::Slot(slot) => 3 + slot,
            };
            put_number(&mut out, number);
        }
        out
    }

    /// Decodes a plan; `None` for another version.
    pub fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        let from = &mut bytes;
        if below(from, 256)? != usize::from(FORM) {
            return None;
        }
        let type_name = text(from)?.to_owned();
        let type_id = match number(from)? {
            0 => None,
            id => Some(u32::try_from(id - 1).ok()?),
        };
        let slots = below(from, COLUMNS_MAX + 1)?;
        let (reader, condition) = (FieldReader::from(from, slots)?, Condition::from(from, slots)?);
        if reader.slots() != slots {
            return None;
        }
        let columns = (0..count(from)?).map(|_| {
            Some(match below(from, 3 + slots)? {
                0 => Column::Entity,
                1 => Column::Version,
                2 => Column::Nothing,
                slot => Column::Slot(slot - 3),
            })
        });
        let columns = columns.collect::<Option<_>>()?;
        from.is_empty().then_some(Self { type_name, type_id, slots, reader, condition, columns })
    }
}
