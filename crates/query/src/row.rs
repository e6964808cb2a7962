//! Rows: the wrapped values of each column; null is encoded as nothing.

use bytes::Bytes;
use smallvec::SmallVec;

use crate::field_reader::Slot;
use crate::value::Value;
use crate::work::Exceeded;
use consort_protostream::wire::{bytes, put_bytes, put_varint, varint};

/// For an entity that takes too many steps; not a valid row.
pub(crate) const EXCEEDED: &[u8] = &[0xff];

pub(crate) fn check(row: &[u8]) -> Result<(), Exceeded> {
    if row == EXCEEDED { Err(Exceeded) } else { Ok(()) }
}

/// Several for a multi-valued field.
pub(crate) type Cell = SmallVec<[Bytes; 1]>;

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

pub(crate) fn put_one(out: &mut Vec<u8>, wrapped: &[u8]) {
    out.push(1);
    put_bytes(out, wrapped);
}

/// `None` for another number of columns.
pub(crate) fn cells(row: &Bytes, columns: usize) -> Option<Vec<Cell>> {
    let (mut rest, mut cells) = (&row[..], Vec::with_capacity(columns));
    for _ in 0..columns {
        let count = usize::try_from(varint(&mut rest)?).ok().filter(|count| *count <= rest.len())?;
        let values = (0..count).map(|_| bytes(&mut rest).map(|value| row.slice_ref(value)));
        cells.push(values.collect::<Option<Cell>>()?);
    }
    rest.is_empty().then_some(cells)
}

/// Returns the version of a DELETE's row; `None` if it is invalid. Fails on an error row.
pub fn version_of(row: &Bytes) -> Result<Option<u64>, Exceeded> {
    check(row)?;
    let value = cells(row, 1).and_then(|cells| Value::read(one(cells.first()?)));
    Ok(match value {
        Some(Value::Long(version)) => Some(version.cast_unsigned()),
        _ => None,
    })
}

pub(crate) fn one(cell: &Cell) -> Bytes {
    cell.first().cloned().unwrap_or_default()
}
