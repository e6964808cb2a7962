//! What one query may need. Each bound is far beyond what people write, and says what it protects.

/// Bytes of a query. It is read in one go, and owners are told what has become of it with every question.
pub const TEXT_MAX: usize = 64 * 1024;

/// How deep brackets are nested: whoever reads a query, and whoever looks at entries with it, needs its stack for that.
pub const DEPTH_MAX: usize = 64;

/// Names in a path, and so how deep messages are looked into.
pub const PATH_MAX: usize = 32;

/// Parameters of a query.
pub const PARAMETERS_MAX: usize = 10_000;

/// Characters of a LIKE's pattern. Each may be looked at for each of a text's, while a segment is locked.
pub const PATTERN_MAX: usize = 256;

/// Fields that a query reads of an entity, and columns of a row.
pub const COLUMNS_MAX: usize = 1_000;

/// Bytes of what one query holds at the server that was asked: rows, or groups with what is counted in them.
pub const HELD_MAX: usize = 64 * 1024 * 1024;
