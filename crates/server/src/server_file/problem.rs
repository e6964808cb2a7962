//! Problems of a server's file, with place and alternative.

use std::collections::HashSet;
use std::fmt;
use std::hash::{BuildHasher, RandomState};

/// The most listed problems of each severity; a file of another kind would have one per element. Each severity has its own count,
/// so that many warnings do not hide the one problem for which a server does not start. The others are counted.
pub(super) const PROBLEMS_MAX: usize = 200;

/// A place in a file, counted from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
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
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
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
#[derive(Clone, Debug)]
pub(super) struct Problems {
    file: String,
    listed: Vec<Problem>,
    refused: usize,
    warnings: usize,
    /// Hashes of all problems, also of those that are not listed, so that each counts once. The size of a file bounds their number.
    known: HashSet<u64>,
    hasher: RandomState,
}

impl Problems {
    pub(super) fn new(file: &str) -> Self {
        let (known, hasher) = (HashSet::new(), RandomState::new());
        Self { file: file.to_owned(), listed: Vec::new(), refused: 0, warnings: 0, known, hasher }
    }

    fn add(&mut self, place: Place, severity: Severity, text: String) {
        if !self.known.insert(self.hasher.hash_one((place, severity, &text))) {
            return;
        }
        let count = match severity {
            Severity::Refused => &mut self.refused,
            Severity::Warning => &mut self.warnings,
        };
        *count += 1;
        if *count <= PROBLEMS_MAX {
            self.listed.push(Problem { file: self.file.clone(), place, severity, text });
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

    /// Also those that are not listed.
    pub(super) const fn count(&self, severity: Severity) -> usize {
        match severity {
            Severity::Refused => self.refused,
            Severity::Warning => self.warnings,
        }
    }

    pub(super) fn listed(&self) -> &[Problem] {
        &self.listed
    }

    /// Into the order of the file.
    pub(super) fn sort(&mut self) {
        self.listed.sort_by_key(|problem| (problem.place, problem.severity));
    }
}
