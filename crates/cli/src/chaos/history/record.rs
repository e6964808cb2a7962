use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verb {
    Get,
    Put,
    Swap,
    PutIfAbsent,
    ReplaceIf,
    Take,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    Ok,
    Unchanged,
    /// The write takes effect once, later or never.
    Uncertain,
    /// The process ended before the operation, which is as uncertain.
    Unfinished,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Consistency {
    /// An operation has a place between its invocation and its completion.
    Linearizable,
    /// A read gives the last write acknowledged before it, or a newer one; two reads may disagree on the order.
    Regular,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Invocation {
    pub(crate) client: String,
    pub(crate) member: String,
    pub(crate) key: String,
    pub(crate) operation: Verb,
    /// Unique in a history.
    pub(crate) argument: Option<String>,
    pub(crate) expected: Option<String>,
    pub(crate) consistency: Consistency,
    /// By the host's monotonic clock, which all processes share.
    pub(crate) invoked_ns: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Completion {
    pub(crate) outcome: Outcome,
    pub(crate) found: Option<String>,
    pub(crate) done: Option<bool>,
    pub(crate) error: Option<String>,
    pub(crate) completed_ns: u64,
}

/// The number joins an operation's two lines.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Line {
    Invoked(u64, Invocation),
    Completed(u64, Completion),
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Fault {
    pub(crate) fault: String,
    pub(crate) members: Vec<String>,
    /// These members may be left out of the topology without knowing it, so that their reads may be stale.
    pub(crate) excuses_reads: bool,
    pub(crate) from_ns: u64,
    pub(crate) to_ns: u64,
}

pub(crate) struct Recorder {
    file: File,
    next: AtomicU64,
}

impl Recorder {
    pub(crate) fn create(directory: &Path) -> io::Result<Self> {
        let path = directory.join(format!("operations-{}.jsonl", std::process::id()));
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self { file, next: AtomicU64::new(1) })
    }

    pub(crate) fn invoke(&self, invocation: Invocation) -> io::Result<u64> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.append(&Line::Invoked(number, invocation))?;
        Ok(number)
    }

    pub(crate) fn complete(&self, number: u64, completion: Completion) -> io::Result<()> {
        self.append(&Line::Completed(number, completion))
    }

    /// Makes one write: a killed process can leave only its last line incomplete.
    fn append(&self, line: &Line) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        (&self.file).write_all(&text)
    }
}

pub(crate) fn monotonic_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
