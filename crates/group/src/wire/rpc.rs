//! Method calls of JGroups' RpcDispatcher.

use bytes::{BufMut, BytesMut};

use super::objects::{Form, put_primitive, read_primitive};
use super::primitives::{Reader, Result, WireError, put_bool, put_string};
use crate::{MagicId, Object, Primitive};

/// A reference to a method.
#[derive(Clone, PartialEq, Debug)]
pub enum Method {
    /// By an agreed number.
    Id(i16),
    /// By name and parameter types.
    Name(Option<String>, Vec<Primitive>),
}

/// A method call with primitive arguments.
#[derive(Clone, PartialEq, Debug)]
pub struct MethodCall {
    /// The method.
    pub method: Method,
    /// The arguments.
    pub args: Vec<Primitive>,
}

/// The type number of a streamable object.
pub(super) const STREAMABLE: u8 = 50;

pub(super) fn put_method_call(out: &mut impl BufMut, call: &MethodCall) {
    match &call.method {
        Method::Id(id) => {
            put_bool(out, true);
            out.put_i16(*id);
        }
        Method::Name(name, types) => {
            put_bool(out, false);
            put_string(out, name.as_deref());
            out.put_u8(types.len() as u8);
            types.iter().for_each(|class| put_primitive(out, class, Form::Stream));
        }
    }
    out.put_u8(call.args.len() as u8);
    call.args.iter().for_each(|arg| put_primitive(out, arg, Form::Stream));
}

pub(super) fn read_method_call(reader: &mut Reader<'_>) -> Result<MethodCall> {
    let list = |reader: &mut Reader<'_>, what| -> Result<Vec<Primitive>> {
        let count = reader.u8(what)?;
        (0..count).map(|_| read_primitive(reader, Form::Stream)).collect()
    };
    let method = if reader.bool("method by id")? {
        Method::Id(reader.i16("method id")?)
    } else {
        let name = reader.string("method name")?;
        Method::Name(name, list(reader, "number of types")?)
    };
    Ok(MethodCall { method, args: list(reader, "number of arguments")? })
}

/// Encodes a call as an object.
pub fn encode_method_call(call: &MethodCall) -> Object {
    let mut out = BytesMut::new();
    out.put_u8(STREAMABLE);
    out.put_u8(1);
    out.put_i16(MagicId::METHOD_CALL.0);
    put_method_call(&mut out, call);
    Object::Serialized(Some(out.freeze()))
}

/// Decodes a call; fails if the object is no call, or an argument no primitive.
pub fn decode_method_call(object: &Object) -> Result<MethodCall> {
    let Object::Serialized(Some(bytes)) = object else {
        return Err(WireError::BadValue { what: "method call", value: 0 });
    };
    let mut reader = Reader::new(bytes);
    let kind = reader.u8("object type")?;
    let is_present = reader.bool("object presence")?;
    let magic = reader.i16("object class")?;
    if kind != STREAMABLE || !is_present || magic != MagicId::METHOD_CALL.0 {
        return Err(WireError::BadValue { what: "method call", value: magic.into() });
    }
    read_method_call(&mut reader)
}
