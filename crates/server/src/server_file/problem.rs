//! Problems of a server's file, with place and alternative.

use std::fmt;

/// The most reported problems of each severity; a file of another kind would have one per element. Each severity has its own count,
/// so that many warnings do not hide the one problem for which a server does not start.
pub(super) const PROBLEMS_MAX: usize = 200;

/// A place in a file, counted from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Place {
    /// The line.
    pub line: u32,
    /// The column, in characters.
    pub column: u32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// Whether a file with the problem can be used.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum Severity {
    /// A server does not start with it.
    Refused,
    /// The setting has no effect here, and clients get the same responses without it.
    Warning,
}

/// A part of a server's file that has no effect, or for which a server does not start.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Problem {
    /// The file.
    pub file: String,
    /// The place. A problem of the whole file has the first line.
    pub place: Place,
    /// Whether a server starts nevertheless.
    pub severity: Severity,
    /// The reason, and the alternative.
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Refused => "refused",
            Severity::Warning => "warning",
        };
        write!(f, "{}:{}: {severity}: {}", self.file, self.place, self.text)
    }
}

/// The problems found so far.
#[derive(Debug)]
pub(super) struct Problems {
    file: String,
    all: Vec<Problem>,
}

impl Problems {
    pub(super) fn new(file: &str) -> Self {
        Self { file: file.to_owned(), all: Vec::new() }
    }

    fn add(&mut self, place: Place, severity: Severity, text: String) {
        let of_severity = || self.all.iter().filter(|other| other.severity == severity);
        let is_new = || of_severity().all(|other| (other.place, &other.text) != (place, &text));
        if of_severity().count() < PROBLEMS_MAX && is_new() {
            self.all.push(Problem { file: self.file.clone(), place, severity, text });
        }
    }

    pub(super) fn refuse(&mut self, place: Place, text: impl Into<String>) {
        self.add(place, Severity::Refused, text.into());
    }

    pub(super) fn warn(&mut self, place: Place, text: impl Into<String>) {
        self.add(place, Severity::Warning, text.into());
    }

    pub(super) fn file(&self) -> &str {
        &self.file
    }

    /// In the order of the file.
    pub(super) fn sorted(mut self) -> Vec<Problem> {
        self.all.sort_by_key(|problem| (problem.place, problem.severity));
        self.all
    }
}
