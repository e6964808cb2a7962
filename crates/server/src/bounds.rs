//! What a client can make a server keep, and how much of it.

use std::time::Duration;

/// Connections at a time. One more is closed at once: each has a task and some KiB of buffers, and takes a descriptor.
pub const CONNECTIONS_MAX: usize = 10_000;

/// Bytes of a connection that has not asked anything yet.
pub const STRANGER_BYTES_MAX: usize = 64 * 1024;

/// How long a connection may say nothing before it has asked something. Clients ask at once.
pub const STRANGER_TIME_MAX: Duration = Duration::from_secs(10);

/// Requests of one connection that wait for other members. Beyond, nothing is read from it: a client that pipelines has
/// a few hundred under way.
pub const WAITING_MAX: usize = 4_096;

/// Bytes that wait to be written to a client. Beyond, nothing is read from it until it has read.
pub const UNWRITTEN_MAX: usize = 1024 * 1024;

/// Bytes that are read at a time, and so how many requests are begun before answers are written.
pub const READ_AT_ONCE: usize = 64 * 1024;

/// Bytes of one answer with many entries: it is in memory as a whole. Larger caches are walked over, not asked for.
pub const BULK_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Caches that are made by administration. Each costs every member its segments.
pub const CACHES_MAX: usize = 1_000;

/// Keys and values below this size are copied out of what was received, so that they do not keep all of it in memory.
pub const COPIED_BELOW: usize = 16 * 1024;

/// How long a server that ends waits for what is under way.
pub const DRAIN_TIME_MAX: Duration = Duration::from_secs(10);

/// How long a server that is out of descriptors waits before it tries to take a client again.
pub const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(50);
