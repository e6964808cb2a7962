use std::borrow::Cow;

use bytes::Bytes;

use crate::value::Value;
use consort_protostream::wire::{bytes, put_bytes, put_varint, varint};

pub(crate) fn put_number(out: &mut Vec<u8>, number: usize) {
    put_varint(out, number as u64);
}

pub(crate) fn number(from: &mut &[u8]) -> Option<usize> {
    usize::try_from(varint(from)?).ok()
}

/// Items have at least one byte each.
pub(crate) fn count(from: &mut &[u8]) -> Option<usize> {
    number(from).filter(|count| *count <= from.len())
}

pub(crate) fn below(from: &mut &[u8], limit: usize) -> Option<usize> {
    number(from).filter(|number| *number < limit)
}

pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    put_bytes(out, text.as_bytes());
}

pub(crate) fn text<'a>(from: &mut &'a [u8]) -> Option<&'a str> {
    std::str::from_utf8(bytes(from)?).ok()
}

pub(crate) fn put_value(out: &mut Vec<u8>, value: Option<&Value<'_>>) {
    let mut wrapped = Vec::new();
    if let Some(value) = value {
        value.write(&mut wrapped);
    }
    put_bytes(out, &wrapped);
}

pub(crate) fn value(from: &mut &[u8]) -> Option<Option<Value<'static>>> {
    let wrapped = bytes(from)?;
    if wrapped.is_empty() {
        return Some(None);
    }
    Value::read(Bytes::copy_from_slice(wrapped)).map(Some)
}

/// The text should be UTF-8.
pub(crate) fn lossy(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}
