//! The records of a history, and the file to which a process appends them.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// The operation on a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verb {
    /// Reads the value.
    Get,
    /// Writes `argument`.
    Put,
    /// Writes `argument` and returns the previous value.
    Swap,
    /// Writes `argument` if there is no value.
    PutIfAbsent,
    /// Writes `argument` if the value is `expected`.
    ReplaceIf,
    /// Removes the value and returns it.
    Take,
}

/// How an operation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// It was acknowledged; `found` and `done` hold the response.
    Ok,
    /// It failed, and the error says that nothing was changed.
    Unchanged,
    /// It failed, and the error says that the write is done once, later or never.
    Uncertain,
    /// The process ended before the operation: as uncertain.
    Unfinished,
}

/// The guarantee for an operation's place in the order of its key's operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Consistency {
    /// It has a place between its invocation and its completion.
    Linearizable,
    /// A read gives the last write that was acknowledged before it, or a newer one; two reads may disagree on the order.
    Regular,
}

/// A client's request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Invocation {
    /// The process and the client in it.
    pub(crate) client: String,
    /// The member in whose process the client is.
    pub(crate) member: String,
    pub(crate) key: String,
    pub(crate) operation: Verb,
    /// The value to write. Values are unique in a history.
    pub(crate) argument: Option<String>,
    /// The value on which the write depends.
    pub(crate) expected: Option<String>,
    pub(crate) consistency: Consistency,
    /// Nanoseconds of the host's monotonic clock, which all processes share.
    pub(crate) invoked_ns: u64,
}

/// A client's response.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Completion {
    pub(crate) outcome: Outcome,
    /// The value that was read, or that the write replaced.
    pub(crate) found: Option<String>,
    /// Whether the condition held, of conditional writes.
    pub(crate) done: Option<bool>,
    /// The text of the error.
    pub(crate) error: Option<String>,
    pub(crate) completed_ns: u64,
}

/// A line of a process's file. The number joins an operation's two lines.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Line {
    Invoked(u64, Invocation),
    Completed(u64, Completion),
}

/// A fault of a member, and the time until the cluster had recovered from it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Fault {
    pub(crate) fault: String,
    pub(crate) members: Vec<String>,
    /// Whether these members can be left out of the topology without knowing it, so that their reads may be stale.
    pub(crate) excuses_reads: bool,
    pub(crate) from_ns: u64,
    pub(crate) to_ns: u64,
}

/// The file of one process.
pub(crate) struct Recorder {
    file: File,
    next: AtomicU64,
}

impl Recorder {
    /// Appends to the file of this process in a directory.
    pub(crate) fn create(directory: &Path) -> io::Result<Self> {
        let path = directory.join(format!("operations-{}.jsonl", std::process::id()));
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self { file, next: AtomicU64::new(1) })
    }

    /// Records that an operation begins. Its number is for [`Recorder::complete`].
    pub(crate) fn invoke(&self, invocation: Invocation) -> io::Result<u64> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.append(&Line::Invoked(number, invocation))?;
        Ok(number)
    }

    /// Records how it ended.
    pub(crate) fn complete(&self, number: u64, completion: Completion) -> io::Result<()> {
        self.append(&Line::Completed(number, completion))
    }

    /// One write, so that a killed process leaves no line without its end but the last one.
    fn append(&self, line: &Line) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        (&self.file).write_all(&text)
    }
}

/// The host's monotonic clock, which processes of all network namespaces share, in nanoseconds.
pub(crate) fn monotonic_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
