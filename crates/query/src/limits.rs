//! Limits of one query, each far beyond practical queries.

/// Bytes of a query: the text is parsed at once, and its plan is sent to owners with every request.
pub const TEXT_MAX: usize = 64 * 1024;

/// Nesting depth of brackets: parser and evaluation use the stack.
pub const DEPTH_MAX: usize = 64;

/// Names in a path, and so the nesting depth of messages read.
pub const PATH_MAX: usize = 32;

/// Parameters of a query.
pub const PARAMETERS_MAX: usize = 10_000;

/// Characters of a LIKE pattern. The search uses up to four words, with a bit per character.
pub const PATTERN_MAX: usize = 256;

/// LIKE patterns of a query. Each takes up to 12 KiB at each owner.
pub const PATTERNS_MAX: usize = 256;

/// Bytes of the values and patterns that a query compares with fields, parameters included. All of them are
/// sent to owners with every request.
pub const CONSTANTS_BYTES_MAX: usize = 1024 * 1024;

/// Joined paths of a query.
pub const JOINS_MAX: usize = 100;

/// Steps per entity at an owner, of about a nanosecond each: see [`crate::Work`]. Searching a literal in a
/// text of 1 MiB takes 262,144 steps.
pub const ENTITY_STEPS_MAX: u64 = 64 * 1024 * 1024;

/// Steps of the HAVING conditions on all groups, as [`ENTITY_STEPS_MAX`].
pub const ANSWER_STEPS_MAX: u64 = 1024 * 1024 * 1024;

/// Bytes of an unknown name for which a similar one is suggested.
pub const MISSPELLED_MAX: usize = 256;

/// Names compared with an unknown one.
pub const SIMILAR_MAX: usize = 10_000;

/// Fields read per entity, and columns of a row.
pub const COLUMNS_MAX: usize = 1_000;

/// Bytes held by one query at the coordinating server: rows, or groups with their aggregates.
pub const HELD_MAX: usize = 64 * 1024 * 1024;
