//! What owners make of an entity: the values of each column, as clients wrap them. Nothing is wrapped as nothing.

use bytes::Bytes;
use smallvec::SmallVec;

use crate::field_reader::Slot;
use crate::value::Value;
use crate::work::Exceeded;
use consort_protostream::wire::{bytes, put_bytes, put_varint, varint};

/// What stands for the row of an entity that needs more steps than a query may take. It is no row of any number of columns.
pub(crate) const EXCEEDED: &[u8] = &[0xff];

/// Fails if this stands for a row that could not be made.
pub(crate) fn check(row: &[u8]) -> Result<(), Exceeded> {
    if row == EXCEEDED { Err(Exceeded) } else { Ok(()) }
}

/// The values of a column: one, or those of a field with several.
pub(crate) type Cell = SmallVec<[Bytes; 1]>;

/// Adds a column with these values.
pub(crate) fn put_slot(out: &mut Vec<u8>, slot: &Slot<'_>) {
    put_varint(out, slot.len() as u64);
    let mut wrapped = Vec::new();
    for value in slot {
        wrapped.clear();
        if let Some(value) = value {
            value.write(&mut wrapped);
        }
        put_bytes(out, &wrapped);
    }
}

/// Adds a column with one value, which is wrapped already.
pub(crate) fn put_one(out: &mut Vec<u8>, wrapped: &[u8]) {
    out.push(1);
    put_bytes(out, wrapped);
}

/// The columns of a row; nothing if that is no row of so many.
pub(crate) fn cells(row: &Bytes, columns: usize) -> Option<Vec<Cell>> {
    let (mut rest, mut cells) = (&row[..], Vec::with_capacity(columns));
    for _ in 0..columns {
        let count = usize::try_from(varint(&mut rest)?).ok().filter(|count| *count <= rest.len())?;
        let values = (0..count).map(|_| bytes(&mut rest).map(|value| row.slice_ref(value)));
        cells.push(values.collect::<Option<Cell>>()?);
    }
    rest.is_empty().then_some(cells)
}

/// The version that is all of a row of a DELETE; nothing if it is no such row.
///
/// # Errors
///
/// [`Exceeded`] if the row of an entity could not be made.
pub fn version_of(row: &Bytes) -> Result<Option<u64>, Exceeded> {
    check(row)?;
    let value = cells(row, 1).and_then(|cells| Value::read(one(cells.first()?)));
    Ok(match value {
        Some(Value::Long(version)) => Some(version.cast_unsigned()),
        _ => None,
    })
}

/// The one value of a column that has one.
pub(crate) fn one(cell: &Cell) -> Bytes {
    cell.first().cloned().unwrap_or_default()
}
