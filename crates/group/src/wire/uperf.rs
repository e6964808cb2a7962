//! The calls of JGroups' UPerf (`org.jgroups.tests.perf.UPerf` and `PerfUtil` of 5.5.7).
//!
//! Reads and writes are objects of classes that write themselves. The other calls are method calls by number, whose arguments may be
//! addresses and results.

use bytes::{BufMut, Bytes, BytesMut};

use super::addresses::{magic_of, put_body, read_body};
use super::objects::{Form, put_primitive, read_primitive};
use super::primitives::{Reader, Result, WireError, put_bool, put_compressed_long, put_string};
use super::rpc::STREAMABLE;
use crate::{Address, MagicId, Object, Payload, Primitive};

const START: i16 = 0;
const GET: i16 = 1;
const PUT: i16 = 2;
const GET_CONFIG: i16 = 3;
const SET: i16 = 4;
const QUIT_ALL: i16 = 5;
const ACCEPT_RESULTS: i16 = 6;

/// Java's ordinal of `TimeUnit.NANOSECONDS`.
const NANOSECONDS: i32 = 0;

/// UPerf has nine settings.
const SETTINGS_MAX: i32 = 100;

/// A call of a member of UPerf.
#[derive(Clone, PartialEq, Debug)]
pub enum UperfCall {
    /// Starts the test; results go to this member.
    Start(Address),
    /// Asks for a value.
    Get,
    /// Gives a value.
    Put(Bytes),
    /// Asks for the settings.
    GetConfig,
    /// Changes a setting.
    Set {
        /// Its name in Java.
        name: String,
        /// Its value.
        value: Primitive,
    },
    /// Ends all members.
    QuitAll,
    /// Has the results of a member.
    AcceptResults {
        /// The member.
        member: Address,
        /// `None`: its test failed.
        results: Option<UperfResults>,
    },
}

/// The least, mean and greatest time of calls, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct UperfTimes {
    /// The least.
    pub min: f64,
    /// The mean.
    pub mean: f64,
    /// The greatest.
    pub max: f64,
}

/// The results of a member.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct UperfResults {
    /// The number of reads.
    pub gets: i64,
    /// The number of writes.
    pub puts: i64,
    /// The duration of the test.
    pub milliseconds: i64,
    /// The times of reads.
    pub get_times: Option<UperfTimes>,
    /// The times of writes.
    pub put_times: Option<UperfTimes>,
}

/// Encodes a call. A read and a write have the key 0, as in Java.
pub fn encode_uperf_call(call: &UperfCall) -> Object {
    let mut args = BytesMut::new();
    let (method, count) = match call {
        UperfCall::Get => return Object::PerfGet { method: GET, key: 0 },
        UperfCall::Put(value) => return Object::PerfPut { method: PUT, key: 0, value: value.clone() },
        UperfCall::Start(starter) => {
            put_address(&mut args, starter);
            (START, 1)
        }
        UperfCall::GetConfig => (GET_CONFIG, 0),
        UperfCall::Set { name, value } => {
            put_primitive(&mut args, &Primitive::String(name.clone()), Form::Stream);
            put_primitive(&mut args, value, Form::Stream);
            (SET, 2)
        }
        UperfCall::QuitAll => (QUIT_ALL, 0),
        UperfCall::AcceptResults { member, results } => {
            put_address(&mut args, member);
            match results {
                Some(results) => {
                    put_class(&mut args, MagicId::PERF_RESULTS);
                    put_results(&mut args, results);
                }
                None => put_primitive(&mut args, &Primitive::Null, Form::Stream),
            }
            (ACCEPT_RESULTS, 2)
        }
    };
    let mut out = BytesMut::new();
    put_class(&mut out, MagicId::METHOD_CALL);
    put_bool(&mut out, true);
    out.put_i16(method);
    out.put_u8(count);
    out.put_slice(&args);
    Object::Serialized(Some(out.freeze()))
}

/// Decodes a call; fails if the payload is none.
pub fn decode_uperf_call(payload: &Payload) -> Result<UperfCall> {
    let bytes = match payload {
        Payload::Object(object) => match &**object {
            Object::PerfGet { method: GET, .. } => return Ok(UperfCall::Get),
            Object::PerfPut { method: PUT, value, .. } => return Ok(UperfCall::Put(value.clone())),
            Object::Serialized(Some(bytes)) => bytes,
            _ => return Err(no_call(0)),
        },
        _ => return Err(no_call(0)),
    };
    let mut reader = Reader::new(bytes);
    read_class(&mut reader, MagicId::METHOD_CALL)?;
    if !reader.bool("method by id")? {
        return Err(no_call(0));
    }
    let method = reader.i16("method id")?;
    let count = reader.u8("number of arguments")?;
    let call = match (method, count) {
        (START, 1) => UperfCall::Start(read_address(&mut reader)?),
        (GET_CONFIG, 0) => UperfCall::GetConfig,
        (SET, 2) => {
            let Primitive::String(name) = read_primitive(&mut reader, Form::Stream)? else {
                return Err(no_call(method));
            };
            UperfCall::Set { name, value: read_primitive(&mut reader, Form::Stream)? }
        }
        (QUIT_ALL, 0) => UperfCall::QuitAll,
        (ACCEPT_RESULTS, 2) => {
            let member = read_address(&mut reader)?;
            let results = if reader.peek().first() == Some(&0) {
                reader.skip(1);
                None
            } else {
                read_class(&mut reader, MagicId::PERF_RESULTS)?;
                Some(read_results(&mut reader)?)
            };
            UperfCall::AcceptResults { member, results }
        }
        _ => return Err(no_call(method)),
    };
    reader.end()?;
    Ok(call)
}

/// Encodes the settings by their names in Java.
pub fn encode_uperf_config(settings: &[(&str, Primitive)]) -> Object {
    let mut out = BytesMut::new();
    put_class(&mut out, MagicId::PERF_CONFIG);
    out.put_i32(settings.len() as i32);
    for (name, value) in settings {
        put_string(&mut out, Some(name));
        put_primitive(&mut out, value, Form::Stream);
    }
    Object::Serialized(Some(out.freeze()))
}

/// Decodes the settings; fails on invalid bytes.
pub fn decode_uperf_config(payload: &Payload) -> Result<Vec<(String, Primitive)>> {
    let Payload::Object(object) = payload else { return Err(no_call(GET_CONFIG)) };
    let Object::Serialized(Some(bytes)) = &**object else { return Err(no_call(GET_CONFIG)) };
    let mut reader = Reader::new(bytes);
    read_class(&mut reader, MagicId::PERF_CONFIG)?;
    let count = reader.i32("number of settings")?;
    if !(0..=SETTINGS_MAX).contains(&count) {
        return Err(WireError::BadValue { what: "number of settings", value: count.into() });
    }
    let mut settings = Vec::new();
    for _ in 0..count {
        let name = reader.string("name of a setting")?;
        let value = read_primitive(&mut reader, Form::Stream)?;
        settings.extend(name.map(|name| (name, value)));
    }
    Ok(settings)
}

fn no_call(method: i16) -> WireError {
    WireError::BadValue { what: "method of UPerf", value: method.into() }
}

fn put_class(out: &mut impl BufMut, class: MagicId) {
    out.put_u8(STREAMABLE);
    put_bool(out, true);
    out.put_i16(class.0);
}

fn read_magic(reader: &mut Reader<'_>) -> Result<MagicId> {
    let kind = reader.u8("object type")?;
    if kind != STREAMABLE || !reader.bool("object presence")? {
        return Err(WireError::BadValue { what: "object type", value: kind.into() });
    }
    Ok(MagicId(reader.i16("object class")?))
}

fn read_class(reader: &mut Reader<'_>, class: MagicId) -> Result<()> {
    let found = read_magic(reader)?;
    if found == class {
        Ok(())
    } else {
        Err(WireError::BadValue { what: "object class", value: found.0.into() })
    }
}

fn put_address(out: &mut impl BufMut, address: &Address) {
    put_class(out, magic_of(address));
    put_body(out, address);
}

fn read_address(reader: &mut Reader<'_>) -> Result<Address> {
    let magic = read_magic(reader)?;
    read_body(reader, magic)
}

fn put_results(out: &mut impl BufMut, results: &UperfResults) {
    let UperfResults { gets, puts, milliseconds, get_times, put_times } = results;
    for number in [gets, puts, milliseconds] {
        put_compressed_long(out, *number);
    }
    for times in [get_times, put_times] {
        put_bool(out, times.is_some());
        if let Some(UperfTimes { min, mean, max }) = times {
            out.put_f64(*min);
            out.put_f64(*mean);
            out.put_f64(*max);
            out.put_i32(NANOSECONDS);
        }
    }
}

fn read_results(reader: &mut Reader<'_>) -> Result<UperfResults> {
    let [gets, puts, milliseconds] = [
        reader.compressed_long("number of reads")?,
        reader.compressed_long("number of writes")?,
        reader.compressed_long("duration of a test")?,
    ];
    let (get_times, put_times) = (read_times(reader)?, read_times(reader)?);
    Ok(UperfResults { gets, puts, milliseconds, get_times, put_times })
}

fn read_times(reader: &mut Reader<'_>) -> Result<Option<UperfTimes>> {
    if !reader.bool("presence of times")? {
        return Ok(None);
    }
    let mut time = || reader.u64("time").map(f64::from_bits);
    let times = UperfTimes { min: time()?, mean: time()?, max: time()? };
    match reader.i32("unit of times")? {
        // Java writes -1 for no unit.
        NANOSECONDS | -1 => Ok(Some(times)),
        unit => Err(WireError::BadValue { what: "unit of times", value: unit.into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::member;

    fn calls() -> Vec<UperfCall> {
        let times = UperfTimes { min: 1.5, mean: 20.25, max: 1e9 };
        let results = UperfResults {
            gets: 300,
            puts: 70_000,
            milliseconds: 60_001,
            get_times: Some(times),
            put_times: None,
        };
        vec![
            UperfCall::Start(member(1)),
            UperfCall::Get,
            UperfCall::Put(Bytes::from_static(b"value")),
            UperfCall::GetConfig,
            UperfCall::Set { name: "time".to_owned(), value: Primitive::Int(5) },
            UperfCall::QuitAll,
            UperfCall::AcceptResults { member: member(2), results: Some(results) },
            UperfCall::AcceptResults { member: member(2), results: None },
        ]
    }

    fn payload(object: Object) -> Payload {
        Payload::Object(Box::new(object))
    }

    #[test]
    fn calls_are_read_back() {
        for call in calls() {
            assert_eq!(decode_uperf_call(&payload(encode_uperf_call(&call))).as_ref(), Ok(&call));
        }
    }

    #[test]
    fn settings_are_read_back() {
        let settings = [("oob", Primitive::Boolean(true)), ("read_percentage", Primitive::Double(0.8))];
        let read = decode_uperf_config(&payload(encode_uperf_config(&settings))).unwrap();
        assert_eq!(read, settings.map(|(name, value)| (name.to_owned(), value)));
    }

    #[test]
    fn cut_and_foreign_bytes_are_errors() {
        for call in calls() {
            let Object::Serialized(Some(bytes)) = encode_uperf_call(&call) else { continue };
            for end in 0..bytes.len() {
                let cut = payload(Object::Serialized(Some(bytes.slice(..end))));
                assert!(decode_uperf_call(&cut).is_err(), "{call:?} {end}");
                assert!(decode_uperf_config(&cut).is_err(), "{call:?} {end}");
            }
        }
        assert!(decode_uperf_call(&payload(Object::PerfGet { method: 9, key: 0 })).is_err());
        assert!(decode_uperf_call(&Payload::Empty).is_err());
    }
}
