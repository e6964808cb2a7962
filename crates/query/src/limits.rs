//! Limits of one query, far beyond practical ones.

/// Bytes of a query, whose plan is sent to owners with every request.
pub const TEXT_MAX: usize = 64 * 1024;

/// Depth of brackets: parser and evaluation use the stack.
pub const DEPTH_MAX: usize = 64;

/// Names in a path, and nesting of messages.
pub const PATH_MAX: usize = 32;

/// Parameters of a query.
pub const PARAMETERS_MAX: usize = 10_000;

/// Characters of a LIKE pattern, with a bit each in up to four words.
pub const PATTERN_MAX: usize = 256;

/// LIKE patterns of a query, each up to 12 KiB at each owner.
pub const PATTERNS_MAX: usize = 256;

/// Bytes of compared values, parameters and patterns, which are sent to owners with every request.
pub const CONSTANTS_BYTES_MAX: usize = 1024 * 1024;

/// Joined paths.
pub const JOINS_MAX: usize = 100;

/// Steps per entity at an owner, of about a nanosecond each ([`crate::Work`]); a literal in a text of 1 MiB takes 262,144 steps.
pub const ENTITY_STEPS_MAX: u64 = 64 * 1024 * 1024;

/// Steps of the HAVING conditions on all groups.
pub const ANSWER_STEPS_MAX: u64 = 1024 * 1024 * 1024;

/// Bytes of an unknown name with suggestions.
pub const MISSPELLED_MAX: usize = 256;

/// Names compared with an unknown one.
pub const SIMILAR_MAX: usize = 10_000;

/// Fields read per entity, and columns of a row.
pub const COLUMNS_MAX: usize = 1_000;

/// Bytes of a value in an index. Of a longer one the index has the beginning.
pub const INDEXED_BYTES_MAX: usize = 1024;

/// Indexed fields of a cache, of all its types.
pub const INDEXED_FIELDS_MAX: usize = 256;

/// Messages within messages whose fields are indexed; as Infinispan's `includeDepth` by default.
pub const EMBEDDED_DEPTH_MAX: usize = 3;

/// Steps to read the indexed fields of an entity, at each write; beyond it each lookup finds the entity.
pub const INDEX_STEPS_MAX: u64 = 1024 * 1024;

/// Bytes held by one query at its server.
pub const HELD_MAX: usize = 64 * 1024 * 1024;
