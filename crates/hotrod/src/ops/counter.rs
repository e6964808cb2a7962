//! Counters (facts section 2.14).

use bytes::Bytes;

use crate::error::Result;
use crate::layout::{Count, Field, Fields};
use crate::opcode::Opcode;
use crate::ops::listener::ID;
use crate::ops::{NOTHING, TEXT};
use crate::output::Output;
use crate::reader::Reader;
use crate::status::Status;
use crate::text::Text;

/// The kind of a counter.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum CounterKind {
    /// Linearizable.
    #[default]
    Strong,
    /// Linearizable with bounds.
    Bounded {
        /// The lower bound.
        lower: i64,
        /// The upper bound.
        upper: i64,
    },
    /// Fast additions, eventually consistent reads.
    Weak {
        /// Concurrency of additions.
        concurrency: u32,
    },
}

/// The configuration of a counter; by default linearizable without bounds, in memory, from 0.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CounterConfig {
    /// The kind.
    pub kind: CounterKind,
    /// Survives a restart of all servers.
    pub is_persistent: bool,
    /// The initial value.
    pub initial: i64,
}

/// An action on a counter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Create it.
    Create(CounterConfig),
    /// Get the configuration.
    Configuration,
    /// Check that it exists.
    IsDefined,
    /// Add, and return the new value.
    AddAndGet(i64),
    /// Reset to the initial value.
    Reset,
    /// Get the value.
    Get,
    /// Set the second if the first is current.
    CompareAndSwap(i64, i64),
    /// Listen with this id.
    AddListener(Bytes),
    /// Remove this listener.
    RemoveListener(Bytes),
    /// Remove it.
    Remove,
    /// Set, and return the previous value.
    GetAndSet(i64),
}

/// A request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// For this name.
    Of(Text, Action),
    /// List the names.
    Names,
}

/// A response with data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Response {
    /// A value.
    Value(i64),
    /// A configuration.
    Configuration(CounterConfig),
    /// The names of counters.
    Names(Vec<Text>),
}

// As in the Java client (facts section 2.14).
const UNBOUNDED: u8 = 0;
const WEAK: u8 = 1;
const BOUNDED: u8 = 2;
const KIND: u8 = 3;
const PERSISTENT: u8 = 4;

const CONFIG: Field = Field::Choice("kind of counter", config);

const fn config(flags: u8) -> Option<Fields> {
    match flags & KIND {
        UNBOUNDED => Some(&[Field::Fixed(8)]),
        BOUNDED => Some(&[Field::Fixed(8 * 3)]),
        WEAK => Some(&[Field::VInt("concurrency"), Field::Fixed(8)]),
        _ => None,
    }
}

pub(crate) const fn request_layout(opcode: Opcode) -> Fields {
    match opcode {
        Opcode::CounterGetNames => NOTHING,
        Opcode::CounterCreate => &[TEXT, CONFIG],
        Opcode::CounterAddAndGet | Opcode::CounterGetAndSet => &[TEXT, Field::Fixed(8)],
        Opcode::CounterCas => &[TEXT, Field::Fixed(16)],
        Opcode::CounterAddListener | Opcode::CounterRemoveListener => &[TEXT, ID],
        _ => &[TEXT],
    }
}

pub(crate) const fn response_layout(opcode: Opcode, status: Status) -> Fields {
    match (opcode, status) {
        (
            Opcode::CounterAddAndGet | Opcode::CounterGet | Opcode::CounterCas | Opcode::CounterGetAndSet,
            Status::Success,
        ) => &[Field::Fixed(8)],
        (Opcode::CounterGetConfiguration, Status::Success) => &[CONFIG],
        (Opcode::CounterGetNames, Status::Success) => &[Field::Counted("names", Count::Items, &[TEXT])],
        _ => NOTHING,
    }
}

impl CounterConfig {
    fn read(from: &mut Reader) -> Result<Self> {
        let flags = from.u8()?;
        let kind = match flags & KIND {
            UNBOUNDED => CounterKind::Strong,
            BOUNDED => CounterKind::Bounded { lower: from.i64()?, upper: from.i64()? },
            WEAK => CounterKind::Weak { concurrency: from.vint()? },
            other => return from.invalid("kind of counter", other),
        };
        Ok(Self { kind, is_persistent: flags & PERSISTENT != 0, initial: from.i64()? })
    }

    fn write(&self, out: &mut Output) {
        let kind = match self.kind {
            CounterKind::Strong => UNBOUNDED,
            CounterKind::Bounded { .. } => BOUNDED,
            CounterKind::Weak { .. } => WEAK,
        };
        out.u8(kind | if self.is_persistent { PERSISTENT } else { 0 });
        match self.kind {
            CounterKind::Strong => {}
            CounterKind::Bounded { lower, upper } => {
                out.i64(lower);
                out.i64(upper);
            }
            CounterKind::Weak { concurrency } => out.vint(concurrency),
        }
        out.i64(self.initial);
    }
}

impl Request {
    /// Returns the operation.
    pub const fn opcode(&self) -> Opcode {
        let Self::Of(_, action) = self else { return Opcode::CounterGetNames };
        match action {
            Action::Create(_) => Opcode::CounterCreate,
            Action::Configuration => Opcode::CounterGetConfiguration,
            Action::IsDefined => Opcode::CounterIsDefined,
            Action::AddAndGet(_) => Opcode::CounterAddAndGet,
            Action::Reset => Opcode::CounterReset,
            Action::Get => Opcode::CounterGet,
            Action::CompareAndSwap(..) => Opcode::CounterCas,
            Action::AddListener(_) => Opcode::CounterAddListener,
            Action::RemoveListener(_) => Opcode::CounterRemoveListener,
            Action::Remove => Opcode::CounterRemove,
            Action::GetAndSet(_) => Opcode::CounterGetAndSet,
        }
    }

    pub(crate) fn read(opcode: Opcode, from: &mut Reader) -> Result<Self> {
        if opcode == Opcode::CounterGetNames {
            return Ok(Self::Names);
        }
        let name = from.text()?;
        let action = match opcode {
            Opcode::CounterCreate => Action::Create(CounterConfig::read(from)?),
            Opcode::CounterGetConfiguration => Action::Configuration,
            Opcode::CounterIsDefined => Action::IsDefined,
            Opcode::CounterAddAndGet => Action::AddAndGet(from.i64()?),
            Opcode::CounterReset => Action::Reset,
            Opcode::CounterCas => Action::CompareAndSwap(from.i64()?, from.i64()?),
            Opcode::CounterAddListener => Action::AddListener(from.array()?),
            Opcode::CounterRemoveListener => Action::RemoveListener(from.array()?),
            Opcode::CounterRemove => Action::Remove,
            Opcode::CounterGetAndSet => Action::GetAndSet(from.i64()?),
            _ => Action::Get,
        };
        Ok(Self::Of(name, action))
    }

    pub(crate) fn write(&self, out: &mut Output) {
        let Self::Of(name, action) = self else { return };
        out.text(name);
        match action {
            Action::Create(config) => config.write(out),
            Action::AddAndGet(number) | Action::GetAndSet(number) => out.i64(*number),
            Action::CompareAndSwap(expected, update) => {
                out.i64(*expected);
                out.i64(*update);
            }
            Action::AddListener(id) | Action::RemoveListener(id) => out.array(id),
            Action::Configuration | Action::IsDefined | Action::Reset | Action::Get | Action::Remove => {}
        }
    }
}

impl Response {
    /// For non-empty layouts.
    pub(crate) fn read(opcode: Opcode, from: &mut Reader) -> Result<Self> {
        Ok(match opcode {
            Opcode::CounterGetConfiguration => Self::Configuration(CounterConfig::read(from)?),
            Opcode::CounterGetNames => Self::Names(from.counted(Reader::text)?),
            _ => Self::Value(from.i64()?),
        })
    }

    pub(crate) fn write(&self, out: &mut Output) {
        match self {
            Self::Value(value) => out.i64(*value),
            Self::Configuration(config) => config.write(out),
            Self::Names(names) => {
                out.count(names.len());
                names.iter().for_each(|name| out.text(name));
            }
        }
    }
}
