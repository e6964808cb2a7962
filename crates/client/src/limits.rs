//! Limits of sizes, counts and times, with their reasons.

use std::time::Duration;

/// The room of a connection, in units of [`ROOM_UNIT`] bytes. A request takes one unit plus its size until
/// its response arrives; callers wait in order. Large enough to keep a server busy over a long line (4,000
/// small requests are more than it answers in 20 ms), small enough that the queue for a slow server is a few
/// megabytes.
pub(crate) const ROOM: u32 = 4_096;

/// The unit of [`ROOM`], in bytes.
pub(crate) const ROOM_UNIT: usize = 1_024;

/// Maximum size of a key, as on servers.
pub const KEY_BYTES_MAX: usize = 64 * 1024;

/// Maximum size of a value, as on servers. A larger one would cost all callers the connection.
pub const VALUE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Size of a chunk of a value. Large enough for few round trips, small enough not to delay other requests.
/// With its overhead it is below one read (64 KB), so that few chunks are moved in memory.
pub const PIECE_BYTES: usize = 60 * 1024;

/// Chunks requested ahead while the connection has no other requests: enough to keep both sides busy despite
/// their wake-ups.
pub(crate) const PIECES_AHEAD: usize = 8;

/// Chunks requested and awaited together: the reader and the driver wake once for two, while six are in
/// flight. With half of all, the line would run empty.
pub(crate) const PIECES_TOGETHER: usize = 2;

/// Chunks requested ahead while the connection has other requests, which then wait for at most three chunks.
pub(crate) const PIECES_AHEAD_BESIDE: usize = 3;

/// Chunks written and not acknowledged while the connection has no other requests: enough to keep both sides
/// busy.
pub(crate) const PIECES_UNDER_WAY: usize = 6;

/// Chunks written and not acknowledged while the connection has other requests: one is in flight while the
/// server processes the last.
pub(crate) const PIECES_UNDER_WAY_BESIDE: usize = 2;

/// How long a caller counts as active after a request or response. A sequential caller needs less from a
/// response to its next request.
pub(crate) const OTHER_REQUEST_RECENT: Duration = Duration::from_micros(500);

/// Maximum size of a response. The largest are those to [`crate::Cache::get_all`]: [`BULK_ITEMS`] values.
pub(crate) const ANSWER_BYTES_MAX: usize = 1024 * 1024 * 1024;

/// Keys of one bulk request. Small requests can go between two.
pub(crate) const BULK_ITEMS: usize = 256;

/// Bytes of keys and values after which a bulk request takes no more keys.
pub(crate) const BULK_BYTES: usize = 1024 * 1024;

/// Maximum number of servers of a topology. Larger topologies are ignored.
pub(crate) const SERVERS_MAX: usize = 1_024;

/// Minimum free buffer before a read, so that few reads are short.
pub(crate) const READ_MIN: usize = 8 * 1024;

/// Size of a receive buffer. Values are slices of it and keep it in memory.
pub(crate) const READ_AT_ONCE: usize = 64 * 1024;

/// Reads and writes of a connection before other tasks run.
pub(crate) const ROUNDS_MAX: usize = 16;

/// Interval of the deadline check, and so the maximum delay of a deadline.
pub(crate) const TICK: Duration = Duration::from_millis(50);

/// How long a server may leave a request without a single byte before it gets a PING: many times a normal
/// response time.
pub(crate) const ASK_AFTER: Duration = Duration::from_millis(500);

/// How long after such a PING a server counts as silent: it may hang. Movable requests then go to other
/// servers until it sends something. A healthy server answers a PING whatever else it does.
pub(crate) const SILENT_AFTER: Duration = Duration::from_millis(500);

/// Idle time after which a server gets a PING.
pub(crate) const PING_AFTER: Duration = Duration::from_secs(15);

/// Total silence after which a connection is closed.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(25);

/// How long past its deadline a request may stay unanswered before the connection is closed: its id would
/// never become free.
pub(crate) const RESPONSE_TIMEOUT_MAX: Duration = Duration::from_secs(60);

/// Failed attempts to connect to each server of a cluster before the client switches to another cluster.
pub(crate) const SWITCH_AFTER: u32 = 3;

/// Maximum time until a connection is usable.
pub(crate) const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// The first reconnect delay. It doubles with each failure.
pub(crate) const PAUSE_FIRST: Duration = Duration::from_millis(50);

/// The longest reconnect delay. A connection that lasts as long resets the delay.
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The default timeout of an operation: long enough for the cluster to detect a crashed server.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// Servers that an iteration asks in parallel: enough to keep the reader busy, few compared to other callers.
pub(crate) const WALKS_AT_ONCE: usize = 4;

/// Bytes of keys that an iteration remembers in order to resume: some hundred thousand keys of unfinished
/// segments. Beyond, it cannot resume.
pub(crate) const WALKED_BYTES_MAX: usize = 64 * 1024 * 1024;

/// How often an iteration is restarted without progress.
pub(crate) const WALK_TRIES_MAX: usize = 8;

/// Maximum number of finished segments in a response: more than any cache has.
pub(crate) const SEGMENTS_MAX: usize = 65_536;

/// Default length of a listener's queue: keys only, enough for the initial state that arrives while a reader
/// starts. On overflow the events are replaced by a gap, so that a slow reader does not block the connection.
pub const EVENTS_MAX: usize = 16_384;

/// Bytes of keys and converted data in a listener's queue.
pub(crate) const EVENT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Maximum time of the initial state.
pub(crate) const STATE_TIME_MAX: Duration = Duration::from_secs(5 * 60);

/// Shards of a large near cache, each with a lock, so that readers on several cores seldom contend.
pub(crate) const NEAR_PARTS_MAX: usize = 16;

/// Minimum number of entries per shard of a near cache.
pub(crate) const NEAR_PART_ENTRIES: usize = 1_024;

/// Approximate overhead of an entry of a near cache.
pub(crate) const NEAR_OVERHEAD: usize = 128;

/// Bits of a near cache's Bloom filter per entry: 3 % false positives. Java's clients use four bits: 15 %.
pub(crate) const BLOOM_BITS_PER_ENTRY: u32 = 8;
