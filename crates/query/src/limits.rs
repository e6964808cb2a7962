//! What one query may need. Each bound is far beyond what people write, and says what it protects.

/// Bytes of a query. It is read in one go, and owners are told what has become of it with every question.
pub const TEXT_MAX: usize = 64 * 1024;

/// How deep brackets are nested: whoever reads a query, and whoever looks at entries with it, needs its stack for that.
pub const DEPTH_MAX: usize = 64;

/// Names in a path, and so how deep messages are looked into.
pub const PATH_MAX: usize = 32;

/// Parameters of a query.
pub const PARAMETERS_MAX: usize = 10_000;

/// Characters of a LIKE's pattern. A text is searched in steps of up to four words, a bit for each character.
pub const PATTERN_MAX: usize = 256;

/// Patterns of LIKE in a query. Each takes up to 12 KiB at each owner.
pub const PATTERNS_MAX: usize = 256;

/// Bytes of the values and patterns with which a query compares fields, those of its parameters included. Owners are sent
/// all of them with every question.
pub const CONSTANTS_BYTES_MAX: usize = 1024 * 1024;

/// Paths that a query joins.
pub const JOINS_MAX: usize = 100;

/// Steps that an owner takes with one entity, of about a nanosecond each: see [`crate::Work`]. A literal is searched in a
/// text of 1 MiB in 262,144 steps.
pub const ENTITY_STEPS_MAX: u64 = 64 * 1024 * 1024;

/// Steps of the conditions on all groups of an answer, as [`ENTITY_STEPS_MAX`].
pub const ANSWER_STEPS_MAX: u64 = 1024 * 1024 * 1024;

/// Bytes of a name for which a similar one is looked for among those that exist.
pub const MISSPELLED_MAX: usize = 256;

/// Names that are compared with one that does not exist.
pub const SIMILAR_MAX: usize = 10_000;

/// Fields that a query reads of an entity, and columns of a row.
pub const COLUMNS_MAX: usize = 1_000;

/// Bytes of what one query holds at the server that was asked: rows, or groups with what is counted in them.
pub const HELD_MAX: usize = 64 * 1024 * 1024;
