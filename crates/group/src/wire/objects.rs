use bytes::{BufMut, Bytes, BytesMut};

use super::addresses::{magic_of, put_body, read_body};
use super::primitives::{
    Reader, Result, WireError, compressed_long_length, put_compressed_int, put_compressed_long,
    put_tagged_string,
};
use super::views::{
    put_digest, put_seqno_list, put_view, put_view_id, read_digest, read_seqno_list, read_view, read_view_id,
};
use crate::{MagicId, Object, Primitive};

/// Java has two encodings of a primitive.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Compressed numbers; arrays extend to the end.
    Buffer,
    /// Fixed-width numbers; arrays have a length.
    Stream,
}

pub(super) fn put_primitive(out: &mut impl BufMut, value: &Primitive, form: Form) {
    let is_stream = form == Form::Stream;
    match value {
        Primitive::Null => out.put_u8(0),
        Primitive::Boolean(value) => {
            out.put_u8(if is_stream { 2 } else { 1 });
            out.put_u8(u8::from(*value));
        }
        Primitive::Byte(value) => {
            out.put_u8(4);
            out.put_i8(*value);
        }
        Primitive::Char(value) => {
            out.put_u8(6);
            out.put_u16(*value);
        }
        Primitive::Double(value) => {
            out.put_u8(8);
            out.put_f64(*value);
        }
        Primitive::Float(value) => {
            out.put_u8(10);
            out.put_f32(*value);
        }
        Primitive::Int(value) => {
            out.put_u8(12);
            if is_stream { out.put_i32(*value) } else { put_compressed_int(out, *value) }
        }
        Primitive::Long(value) => {
            out.put_u8(14);
            if is_stream { out.put_i64(*value) } else { put_compressed_long(out, *value) }
        }
        Primitive::Short(value) => {
            out.put_u8(16);
            out.put_i16(*value);
        }
        Primitive::String(value) => {
            out.put_u8(17);
            put_tagged_string(out, value);
        }
        Primitive::Bytes(value) => {
            out.put_u8(18);
            if is_stream {
                out.put_i32(value.len() as i32);
            }
            out.put_slice(value);
        }
        Primitive::Class(value) => {
            out.put_u8(19);
            out.put_u8(*value);
        }
    }
}

pub(super) fn read_primitive(reader: &mut Reader<'_>, form: Form) -> Result<Primitive> {
    let is_stream = form == Form::Stream;
    Ok(match reader.u8("value type")? {
        0 => Primitive::Null,
        1 | 2 => Primitive::Boolean(reader.bool("boolean")?),
        3 | 4 => Primitive::Byte(reader.u8("byte")? as i8),
        5 | 6 => Primitive::Char(reader.u16("char")?),
        7 | 8 => Primitive::Double(f64::from_bits(reader.u64("double")?)),
        9 | 10 => Primitive::Float(f32::from_bits(reader.i32("float")? as u32)),
        11 | 12 if is_stream => Primitive::Int(reader.i32("int")?),
        11 | 12 => Primitive::Int(reader.compressed_int("int")?),
        13 | 14 if is_stream => Primitive::Long(reader.u64("long")? as i64),
        13 | 14 => Primitive::Long(reader.compressed_long("long")?),
        15 | 16 => Primitive::Short(reader.i16("short")?),
        17 => Primitive::String(reader.tagged_string("string")?),
        18 if is_stream => {
            let length = reader.length("byte array")?.unwrap_or(0);
            Primitive::Bytes(reader.bytes("byte array", length)?)
        }
        18 => {
            let left = reader.left();
            Primitive::Bytes(reader.bytes("byte array", left)?)
        }
        19 => Primitive::Class(reader.u8("class")?),
        kind => return Err(WireError::BadValue { what: "value type", value: kind.into() }),
    })
}

/// Encodes the "buffer" form, as in BytesMessages with flag SERIALIZED.
pub fn encode_primitive(value: &Primitive) -> Bytes {
    let mut out = BytesMut::new();
    put_primitive(&mut out, value, Form::Buffer);
    out.freeze()
}

/// Decodes [`encode_primitive`]'s output; fails on invalid bytes.
pub fn decode_primitive(bytes: &Bytes) -> Result<Primitive> {
    read_primitive(&mut Reader::new(bytes), Form::Buffer)
}

fn magic(object: &Object) -> Option<MagicId> {
    Some(match object {
        Object::Null => return None,
        Object::SeqnoList(_) => MagicId::SEQNO_LIST,
        Object::Digest { is_mutable: true, .. } => MagicId::MUTABLE_DIGEST,
        Object::Digest { .. } => MagicId::DIGEST,
        Object::View(view) if view.is_merge() => MagicId::MERGE_VIEW,
        Object::View(_) => MagicId::VIEW,
        Object::ViewId(_) => MagicId::VIEW_ID,
        Object::Address(address) => magic_of(address),
        Object::Primitive(_) => MagicId::OBJECT_WRAPPER_PRIMITIVE,
        Object::Serialized(_) => MagicId::OBJECT_WRAPPER_SERIALIZABLE,
        Object::PerfGet { .. } => MagicId::PERF_GET_CALL,
        Object::PerfPut { .. } => MagicId::PERF_PUT_CALL,
    })
}

pub(super) fn put_object(out: &mut impl BufMut, object: &Object) {
    let Some(magic) = magic(object) else { return out.put_u8(0) };
    out.put_u8(1);
    out.put_i16(magic.0);
    match object {
        Object::Null => {}
        Object::SeqnoList(list) => put_seqno_list(out, list),
        Object::Digest { digest, .. } => put_digest(out, digest),
        Object::View(view) => put_view(out, view),
        Object::ViewId(id) => put_view_id(out, id),
        Object::Address(address) => put_body(out, address),
        Object::Primitive(value) => put_primitive(out, value, Form::Stream),
        Object::Serialized(None) => out.put_i32(-1),
        Object::Serialized(Some(bytes)) => {
            out.put_i32(bytes.len() as i32);
            out.put_slice(bytes);
        }
        Object::PerfGet { method, key } => {
            out.put_i16(*method);
            out.put_i32(*key);
        }
        Object::PerfPut { method, key, value } => {
            out.put_i16(*method);
            out.put_i32(*key);
            out.put_i32(value.len() as i32);
            out.put_slice(value);
        }
    }
}

pub(super) fn read_object(reader: &mut Reader<'_>) -> Result<Object> {
    if !reader.bool("object presence")? {
        return Ok(Object::Null);
    }
    Ok(match MagicId(reader.i16("object class")?) {
        MagicId::SEQNO_LIST => Object::SeqnoList(read_seqno_list(reader)?),
        MagicId::MUTABLE_DIGEST => Object::Digest { digest: read_digest(reader)?, is_mutable: true },
        MagicId::DIGEST => Object::Digest { digest: read_digest(reader)?, is_mutable: false },
        MagicId::VIEW => Object::View(read_view(reader, false)?),
        MagicId::MERGE_VIEW => Object::View(read_view(reader, true)?),
        MagicId::VIEW_ID => Object::ViewId(read_view_id(reader)?),
        MagicId::OBJECT_WRAPPER_PRIMITIVE => Object::Primitive(read_primitive(reader, Form::Stream)?),
        MagicId::OBJECT_WRAPPER_SERIALIZABLE => {
            Object::Serialized(match reader.length("serialized object")? {
                Some(length) => Some(reader.bytes("serialized object", length)?),
                None => None,
            })
        }
        MagicId::PERF_GET_CALL => {
            Object::PerfGet { method: reader.i16("method id")?, key: reader.i32("key of a read")? }
        }
        MagicId::PERF_PUT_CALL => {
            let (method, key) = (reader.i16("method id")?, reader.i32("key of a write")?);
            let length = reader.length("value of a write")?.unwrap_or(0);
            Object::PerfPut { method, key, value: reader.bytes("value of a write", length)? }
        }
        magic => Object::Address(read_body(reader, magic)?),
    })
}

/// Returns an object's length for flow control.
pub fn object_length(object: &Object) -> usize {
    match object {
        Object::Null => 1,
        Object::Serialized(bytes) => 7 + bytes.as_ref().map_or(0, Bytes::len),
        Object::Primitive(Primitive::Int(_)) => 8,
        Object::Primitive(Primitive::Long(_)) => 12,
        Object::PerfGet { .. } => 9,
        Object::PerfPut { value, .. } => 13 + value.len(),
        _ => {
            let mut out = BytesMut::new();
            put_object(&mut out, object);
            out.len()
        }
    }
}

pub(super) const fn long_length(value: i64) -> usize {
    compressed_long_length(value)
}
