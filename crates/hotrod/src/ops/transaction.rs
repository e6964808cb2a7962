//! Transactions (facts section 2.13).

use bytes::Bytes;

use crate::error::Result;
use crate::expiration::{self, Expiration};
use crate::header::RequestHeader;
use crate::layout::{Count, Field, Fields};
use crate::limits::Kind;
use crate::opcode::Opcode;
use crate::ops::{KEY, NOTHING, VALUE};
use crate::output::Output;
use crate::reader::Reader;
use crate::status::Status;
use crate::version::ProtocolVersion;

/// The id of a transaction.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Xid {
    /// The format id.
    pub format: i32,
    /// At most 64 bytes.
    pub global: Bytes,
    /// At most 64 bytes.
    pub branch: Bytes,
}

/// A transaction's read of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// Not read.
    NotRead,
    /// Absent.
    Absent,
    /// Read with this version.
    Version(i64),
}

/// A change by a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Modification {
    /// The key.
    pub key: Bytes,
    /// The version read.
    pub seen: Seen,
    /// `None` to remove the key.
    pub change: Option<(Expiration, Bytes)>,
}

/// A transaction to prepare.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prepare {
    /// The id.
    pub xid: Xid,
    /// Commit at once.
    pub is_one_phase: bool,
    /// The changes.
    pub modifications: Vec<Modification>,
}

/// The recovery settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recovery {
    /// Recovery is possible.
    pub is_recoverable: bool,
    /// Milliseconds until a rollback.
    pub timeout: i64,
}

/// A request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// PREPARE_TX without and PREPARE_TX_2 with recovery settings.
    Prepare(Prepare, Option<Recovery>),
    /// Commit.
    Commit(Xid),
    /// Roll back.
    Rollback(Xid),
    /// Forget the outcome.
    Forget(Xid),
    /// List recoverable transactions.
    FetchRecovery,
}

/// A response with data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Response {
    /// An XA code.
    Code(i32),
    /// Recoverable transactions.
    Prepared(Vec<Xid>),
}

/// XA codes.
pub mod xa {
    /// Done.
    pub const OK: i32 = 0;
    /// No changes.
    pub const READ_ONLY: i32 = 3;
    /// Partly committed.
    pub const HEURISTIC_MIXED: i32 = 5;
    /// Rolled back.
    pub const HEURISTIC_ROLLBACK: i32 = 6;
    /// Committed.
    pub const HEURISTIC_COMMIT: i32 = 7;
    /// Rolled back instead of committed.
    pub const ROLLBACK: i32 = 100;
    /// The server failed.
    pub const SERVER_ERROR: i32 = -3;
    /// Unknown transaction.
    pub const UNKNOWN: i32 = -4;
}

const NOT_READ: u8 = 1;
const ABSENT: u8 = 2;
const REMOVES: u8 = 4;

const FORMAT: Field = Field::VInt("format of a transaction's id");
const PART: Field = Field::Array(Kind::XidPart);
const MODIFICATIONS: Field = Field::Counted("modifications", Count::Items, &[KEY, MODIFICATION]);
const MODIFICATION: Field = Field::Choice("modification", modification);

const fn modification(control: u8) -> Option<Fields> {
    const CHANGE: Fields = &[Field::Fixed(8), expiration::FIELD, VALUE];
    match (control & (NOT_READ | ABSENT) == 0, control & REMOVES == 0) {
        (true, true) => Some(CHANGE),
        (true, false) => Some(&[Field::Fixed(8)]),
        (false, true) => Some(CHANGE.split_at(1).1),
        (false, false) => Some(&[]),
    }
}

pub(crate) const fn request_layout(opcode: Opcode) -> Fields {
    match opcode {
        Opcode::PrepareTx => &[FORMAT, PART, PART, Field::Fixed(1), MODIFICATIONS],
        Opcode::PrepareTx2 => &[FORMAT, PART, PART, Field::Fixed(1 + 1 + 8), MODIFICATIONS],
        Opcode::FetchTxRecovery => NOTHING,
        _ => &[FORMAT, PART, PART],
    }
}

pub(crate) const fn response_layout(opcode: Opcode, status: Status) -> Fields {
    match (opcode, status) {
        (Opcode::ForgetTx, _) => NOTHING,
        (Opcode::FetchTxRecovery, Status::Success) => {
            &[Field::Counted("transactions", Count::Items, &[FORMAT, PART, PART])]
        }
        (_, Status::Success) => &[Field::Fixed(4)],
        _ => NOTHING,
    }
}

impl Xid {
    fn read(from: &mut Reader) -> Result<Self> {
        Ok(Self { format: from.signed_vint()?, global: from.array()?, branch: from.array()? })
    }

    fn write(&self, out: &mut Output) {
        out.signed_vint(self.format);
        out.array(&self.global);
        out.array(&self.branch);
    }
}

impl Modification {
    fn read(from: &mut Reader, header: &RequestHeader) -> Result<Self> {
        let (key, control) = (from.array()?, from.u8()?);
        let seen = if control & NOT_READ != 0 {
            Seen::NotRead
        } else if control & ABSENT != 0 {
            Seen::Absent
        } else {
            Seen::Version(from.i64()?)
        };
        let change = match control & REMOVES {
            0 => Some((Expiration::read(from, header.version, header.flags)?, from.array()?)),
            _ => None,
        };
        Ok(Self { key, seen, change })
    }

    fn write(&self, out: &mut Output, version: ProtocolVersion) {
        out.array(&self.key);
        let (seen, read) = match self.seen {
            Seen::NotRead => (NOT_READ, None),
            Seen::Absent => (ABSENT, None),
            Seen::Version(version) => (0, Some(version)),
        };
        out.u8(seen | if self.change.is_none() { REMOVES } else { 0 });
        if let Some(read) = read {
            out.i64(read);
        }
        if let Some((expiration, value)) = &self.change {
            expiration.write(out, version);
            out.array(value);
        }
    }
}

impl Request {
    /// Returns the operation.
    pub const fn opcode(&self) -> Opcode {
        match self {
            Self::Prepare(_, None) => Opcode::PrepareTx,
            Self::Prepare(_, Some(_)) => Opcode::PrepareTx2,
            Self::Commit(_) => Opcode::CommitTx,
            Self::Rollback(_) => Opcode::RollbackTx,
            Self::Forget(_) => Opcode::ForgetTx,
            Self::FetchRecovery => Opcode::FetchTxRecovery,
        }
    }

    pub(crate) fn read(opcode: Opcode, header: &RequestHeader, from: &mut Reader) -> Result<Self> {
        Ok(match opcode {
            Opcode::PrepareTx | Opcode::PrepareTx2 => {
                let (xid, is_one_phase) = (Xid::read(from)?, from.bool()?);
                let mut recovery = || Ok(Recovery { is_recoverable: from.bool()?, timeout: from.i64()? });
                let recovery = (opcode == Opcode::PrepareTx2).then(&mut recovery).transpose()?;
                let modifications = from.counted(|from| Modification::read(from, header))?;
                Self::Prepare(Prepare { xid, is_one_phase, modifications }, recovery)
            }
            Opcode::CommitTx => Self::Commit(Xid::read(from)?),
            Opcode::RollbackTx => Self::Rollback(Xid::read(from)?),
            Opcode::ForgetTx => Self::Forget(Xid::read(from)?),
            _ => Self::FetchRecovery,
        })
    }

    pub(crate) fn write(&self, out: &mut Output, version: ProtocolVersion) {
        match self {
            Self::Prepare(prepare, recovery) => {
                prepare.xid.write(out);
                out.bool(prepare.is_one_phase);
                if let Some(recovery) = recovery {
                    out.bool(recovery.is_recoverable);
                    out.i64(recovery.timeout);
                }
                out.count(prepare.modifications.len());
                prepare.modifications.iter().for_each(|modification| modification.write(out, version));
            }
            Self::Commit(xid) | Self::Rollback(xid) | Self::Forget(xid) => xid.write(out),
            Self::FetchRecovery => {}
        }
    }
}

impl Response {
    /// For non-empty layouts.
    pub(crate) fn read(opcode: Opcode, from: &mut Reader) -> Result<Self> {
        Ok(match opcode {
            Opcode::FetchTxRecovery => Self::Prepared(from.counted(Xid::read)?),
            _ => Self::Code(from.i32()?),
        })
    }

    pub(crate) fn write(&self, out: &mut Output) {
        match self {
            Self::Code(code) => out.i32(*code),
            Self::Prepared(xids) => {
                out.count(xids.len());
                xids.iter().for_each(|xid| xid.write(out));
            }
        }
    }
}
