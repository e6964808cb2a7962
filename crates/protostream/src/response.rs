//! The response to QUERY (facts section 2.9): an unwrapped message.

use bytes::Bytes;

use crate::wire::{LENGTH, MESSAGE, Raw, TYPE_ID, VARINT, field, put_bytes, put_tag, put_varint};
use crate::wrapped::BYTES;

/// Rows and their total count.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct QueryResponse {
    /// Zero if each row is an entity.
    pub columns: usize,
    /// Wrapped values, empty for null, or entities as in the cache.
    pub rows: Vec<Vec<Bytes>>,
    /// All hits.
    pub count: u64,
    /// The count is exact, not a lower bound.
    pub is_exact: bool,
}

/// An invalid response to a query that may be executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("invalid query response: {0}")]
pub struct ResponseError(&'static str);

const ROWS: u32 = 1;
const COLUMNS: u32 = 2;
const RESULTS: u32 = 3;
const COUNT: u32 = 4;
const IS_EXACT: u32 = 5;

impl QueryResponse {
    /// Encodes it. Columns for which `is_entity` returns true are entities, which are wrapped once more.
    pub fn write(&self, is_entity: impl Fn(usize) -> bool) -> Bytes {
        let mut out = Vec::new();
        for (number, value) in [(ROWS, self.rows.len()), (COLUMNS, self.columns)] {
            put_tag(&mut out, number, VARINT);
            put_varint(&mut out, value as u64);
        }
        for row in &self.rows {
            for (at, value) in row.iter().enumerate() {
                put_tag(&mut out, RESULTS, LENGTH);
                match self.columns {
                    0 => put_bytes(&mut out, &as_bytes(value)),
                    _ if is_entity(at) => put_bytes(&mut out, &twice(value)),
                    _ => put_bytes(&mut out, value),
                }
            }
        }
        // Clients read a 32-bit number.
        let count = i32::try_from(self.count).unwrap_or(i32::MAX);
        put_tag(&mut out, COUNT, VARINT);
        put_varint(&mut out, u64::from(count.cast_unsigned()));
        put_tag(&mut out, IS_EXACT, VARINT);
        put_varint(&mut out, (self.is_exact && u64::from(count.cast_unsigned()) == self.count).into());
        out.into()
    }

    /// Decodes it. Entities are as in the cache.
    pub fn read(bytes: &Bytes) -> Result<Self, ResponseError> {
        let (mut rest, mut response, mut results) = (&bytes[..], Self::default(), Vec::new());
        while !rest.is_empty() {
            match field(&mut rest).ok_or(ResponseError("no protobuf message"))? {
                (COLUMNS, Raw::Varint(columns)) => {
                    response.columns =
                        usize::try_from(columns).map_err(|_| ResponseError("too many columns"))?;
                }
                (RESULTS, Raw::Length(result)) => results.push(bytes.slice_ref(result)),
                (COUNT, Raw::Varint(count)) => response.count = u64::from(count as u32),
                (IS_EXACT, Raw::Varint(is)) => response.is_exact = is != 0,
                _ => {}
            }
        }
        if response.columns == 0 {
            response.rows = results.iter().map(|result| vec![unwrapped(result)]).collect();
        } else if results.len() % response.columns == 0 {
            let rows = results.chunks(response.columns);
            response.rows = rows.map(|row| row.iter().map(once).collect()).collect();
        } else {
            return Err(ResponseError("incomplete rows"));
        }
        Ok(response)
    }
}

fn as_bytes(entity: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(entity.len() + 6);
    put_tag(&mut out, BYTES, LENGTH);
    put_bytes(&mut out, entity);
    out
}

/// The wrapper's type has the id zero.
fn twice(entity: &[u8]) -> Vec<u8> {
    let (mut out, inner) = (Vec::new(), as_bytes(entity));
    put_tag(&mut out, TYPE_ID, VARINT);
    put_varint(&mut out, 0);
    put_tag(&mut out, MESSAGE, LENGTH);
    put_bytes(&mut out, &inner);
    out
}

/// Returns other input unchanged.
fn unwrapped(bytes: &Bytes) -> Bytes {
    let mut rest = &bytes[..];
    match field(&mut rest) {
        Some((BYTES, Raw::Length(inner))) if rest.is_empty() => bytes.slice_ref(inner),
        _ => bytes.clone(),
    }
}

/// Returns values that are not wrapped twice unchanged.
fn once(bytes: &Bytes) -> Bytes {
    let mut rest = &bytes[..];
    match (field(&mut rest), field(&mut rest)) {
        (Some((TYPE_ID, Raw::Varint(0))), Some((MESSAGE, Raw::Length(inner)))) if rest.is_empty() => {
            unwrapped(&bytes.slice_ref(inner))
        }
        _ => bytes.clone(),
    }
}
