//! Layouts of messages, and the search for a message's end.
//!
//! The protocol has no message lengths, so each body has a layout, a list of fields, next to the code that reads it. A
//! [`Skimmer`] follows the layout through the received bytes, each once, and resumes when more arrive. It checks every length
//! against its limit before waiting for data.

use smallvec::{SmallVec, smallvec};

use crate::error::{Reason, Result, error};
use crate::intelligence::Intelligence;
use crate::limits::{Kind, Limits};
use crate::opcode::Opcode;
use crate::version::ProtocolVersion;

/// The properties of a request that determine its response's layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestContext {
    /// The request's.
    pub version: ProtocolVersion,
    /// The request's.
    pub opcode: Opcode,
    /// The client's.
    pub intelligence: Intelligence,
}

pub(crate) type Fields = &'static [Field];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Count {
    Items,
    Params,
}

pub(crate) enum Field {
    Fixed(usize),
    /// A variable-length number of 32 bits.
    VInt(&'static str),
    /// A variable-length number of 64 bits.
    VLong(&'static str),
    /// A length and this many bytes.
    Array(Kind),
    /// Or nothing: the length is signed.
    OptionalArray(Kind),
    /// The fields, repeated as often as the count.
    Counted(&'static str, Count, Fields),
    /// The count is one byte.
    CountedInByte(Fields),
    /// Until a zero, each time after a one.
    WhileOne(&'static str, Fields),
    /// Until an empty array.
    Chunks(Kind),
    /// The fields, if the array is not empty.
    IfNotEmpty(Kind, Fields),
    /// The fields, if the array is present.
    IfPresent(Kind, Fields),
    /// A byte selects the fields.
    Choice(&'static str, fn(u8) -> Option<Fields>),
    /// The request determines the fields.
    Sub(fn(RequestContext) -> Fields),
    /// The entries of an iteration: a count, if it is not zero the number of values per entry, and the fields repeated.
    Entries(Fields),
    Projections,
    Projected,
}

struct Level {
    fields: Fields,
    next: usize,
    times: u32,
}

/// Usual layouts are not deeper.
const DEPTH: usize = 8;

pub(crate) struct Skimmer {
    levels: SmallVec<[Level; DEPTH]>,
    /// Of the next field or of the message's end; beyond the received bytes while data are skipped.
    at: usize,
    dropped: usize,
    context: RequestContext,
    projections: u32,
}

impl Skimmer {
    pub(crate) fn new(at: usize, context: RequestContext, parts: [Fields; 2]) -> Self {
        let [first, second] = parts.map(|fields| Level { fields, next: 0, times: 1 });
        Self { levels: smallvec![second, first], at, dropped: 0, context, projections: 1 }
    }

    pub(crate) const fn bytes_needed(&self) -> usize {
        self.dropped + self.at
    }

    pub(crate) fn drop_seen(&mut self, bytes: usize) -> usize {
        let seen = self.at.min(bytes);
        self.at -= seen;
        self.dropped += seen;
        seen
    }

    /// The message's length once it is complete.
    pub(crate) fn skim(&mut self, bytes: &[u8], limits: &Limits) -> Result<Option<usize>> {
        loop {
            if self.bytes_needed() > limits.message {
                let (length, limit) = (self.bytes_needed() as u64, limits.message as u64);
                return error(self.at, Reason::TooLong { what: "message", length, limit });
            }
            if self.at > bytes.len() {
                return Ok(None);
            }
            let Some(level) = self.levels.last_mut() else { return Ok(Some(self.at)) };
            let Some(field) = level.fields.get(level.next) else {
                level.times -= 1;
                level.next = 0;
                if level.times == 0 {
                    self.levels.pop();
                }
                continue;
            };
            if !self.step(field, bytes, limits)? {
                return Ok(None);
            }
        }
    }

    /// False if the beginning of the field has not arrived.
    fn step(&mut self, field: &Field, bytes: &[u8], limits: &Limits) -> Result<bool> {
        match *field {
            Field::Fixed(length) => {
                self.at += length;
                self.done();
            }
            Field::VInt(what) => {
                let Some((_, end)) = vint(bytes, self.at, what)? else { return Ok(false) };
                self.at = end;
                self.done();
            }
            Field::VLong(what) => {
                let Some((_, end)) = vlong(bytes, self.at, what)? else { return Ok(false) };
                self.at = end;
                self.done();
            }
            Field::Array(kind) => {
                if self.array(kind, bytes, limits)?.is_none() {
                    return Ok(false);
                }
                self.done();
            }
            Field::OptionalArray(kind) => {
                if self.optional_array(kind, bytes, limits)?.is_none() {
                    return Ok(false);
                }
                self.done();
            }
            Field::Chunks(kind) => match self.array(kind, bytes, limits)? {
                Some(0) => self.done(),
                Some(_) => {}
                None => return Ok(false),
            },
            Field::IfNotEmpty(kind, fields) => {
                let Some(length) = self.array(kind, bytes, limits)? else { return Ok(false) };
                self.done();
                self.push(fields, u32::from(length > 0));
            }
            Field::IfPresent(kind, fields) => {
                let Some(is_present) = self.optional_array(kind, bytes, limits)? else { return Ok(false) };
                self.done();
                self.push(fields, is_present.into());
            }
            Field::Counted(what, of, fields) => {
                let Some(count) = self.count(what, of, bytes, limits)? else { return Ok(false) };
                self.done();
                self.push(fields, count);
            }
            Field::CountedInByte(fields) => {
                let Some(&count) = bytes.get(self.at) else { return Ok(false) };
                self.at += 1;
                self.done();
                self.push(fields, count.into());
            }
            Field::WhileOne(what, fields) => return self.while_one(what, fields, bytes),
            Field::Choice(what, choose) => return self.choice(what, choose, bytes),
            Field::Sub(fields) => {
                self.done();
                self.push(fields(self.context), 1);
            }
            Field::Entries(fields) => return self.entries(fields, bytes, limits),
            Field::Projections => {
                let projections = self.count("values per entry", Count::Params, bytes, limits)?;
                let Some(projections) = projections else { return Ok(false) };
                self.projections = projections;
                self.done();
            }
            Field::Projected => {
                self.done();
                self.push(&[Field::Array(Kind::Value)], self.projections);
            }
        }
        Ok(true)
    }

    fn while_one(&mut self, what: &'static str, fields: Fields, bytes: &[u8]) -> Result<bool> {
        let Some(&byte) = bytes.get(self.at) else { return Ok(false) };
        match byte {
            0 => self.done(),
            1 => self.push(fields, 1),
            value => return error(self.at, Reason::Invalid { what, value: value.into() }),
        }
        self.at += 1;
        Ok(true)
    }

    fn choice(&mut self, what: &'static str, choose: fn(u8) -> Option<Fields>, bytes: &[u8]) -> Result<bool> {
        let Some(&byte) = bytes.get(self.at) else { return Ok(false) };
        let Some(fields) = choose(byte) else {
            return error(self.at, Reason::Invalid { what, value: byte.into() });
        };
        self.at += 1;
        self.done();
        self.push(fields, 1);
        Ok(true)
    }

    fn entries(&mut self, fields: Fields, bytes: &[u8], limits: &Limits) -> Result<bool> {
        let Some(count) = self.count("entries", Count::Items, bytes, limits)? else { return Ok(false) };
        self.done();
        self.push(fields, count);
        let has_projections = count > 0 && self.context.version >= ProtocolVersion::V2_4;
        self.push(&[Field::Projections], has_projections.into());
        Ok(true)
    }

    fn done(&mut self) {
        if let Some(level) = self.levels.last_mut() {
            level.next += 1;
        }
    }

    fn push(&mut self, fields: Fields, times: u32) {
        if times > 0 && !fields.is_empty() {
            self.levels.push(Level { fields, next: 0, times });
        }
    }

    fn array(&mut self, kind: Kind, bytes: &[u8], limits: &Limits) -> Result<Option<u32>> {
        let Some((length, end)) = vint(bytes, self.at, kind.name())? else { return Ok(None) };
        self.check(kind.name(), length, limits.of(kind))?;
        self.at = end + length as usize;
        Ok(Some(length))
    }

    fn optional_array(&mut self, kind: Kind, bytes: &[u8], limits: &Limits) -> Result<Option<bool>> {
        let Some((length, end)) = vint(bytes, self.at, kind.name())? else { return Ok(None) };
        let Ok(length) = u32::try_from(unzigzag(length)) else {
            self.at = end;
            return Ok(Some(false));
        };
        self.check(kind.name(), length, limits.of(kind))?;
        self.at = end + length as usize;
        Ok(Some(true))
    }

    fn count(&mut self, what: &'static str, of: Count, bytes: &[u8], limits: &Limits) -> Result<Option<u32>> {
        let Some((count, end)) = vint(bytes, self.at, what)? else { return Ok(None) };
        let limit = match of {
            Count::Items => limits.items,
            Count::Params => limits.params,
        };
        self.check(what, count, limit)?;
        self.at = end;
        Ok(Some(count))
    }

    fn check(&self, what: &'static str, length: u32, limit: u32) -> Result<()> {
        if length <= limit {
            return Ok(());
        }
        error(self.at, Reason::TooLong { what, length: length.into(), limit: limit.into() })
    }
}

/// Decodes a number of at most 64 bits; returns it with its end, or `None` if it has not arrived.
pub(crate) fn vlong(bytes: &[u8], at: usize, what: &'static str) -> Result<Option<(u64, usize)>> {
    let mut number = 0;
    for nth in 0..10 {
        let Some(&byte) = bytes.get(at + nth) else { return Ok(None) };
        number |= u64::from(byte & 0x7f) << (7 * nth);
        if byte < 0x80 {
            if nth == 9 && byte > 1 {
                break;
            }
            return Ok(Some((number, at + nth + 1)));
        }
    }
    error(at, Reason::Number(what))
}

/// Decodes a number of at most 32 bits, as [`vlong`] does.
pub(crate) fn vint(bytes: &[u8], at: usize, what: &'static str) -> Result<Option<(u32, usize)>> {
    let mut number = 0;
    for nth in 0..5 {
        let Some(&byte) = bytes.get(at + nth) else { return Ok(None) };
        number |= u32::from(byte & 0x7f) << (7 * nth);
        if byte < 0x80 {
            if nth == 4 && byte > 0x0f {
                break;
            }
            return Ok(Some((number, at + nth + 1)));
        }
    }
    error(at, Reason::Number(what))
}

pub(crate) const fn unzigzag(number: u32) -> i32 {
    (number >> 1) as i32 ^ -((number & 1) as i32)
}
