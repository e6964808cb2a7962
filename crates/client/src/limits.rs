use std::time::Duration;

/// The room of a connection, in [`ROOM_UNIT`]s. A request takes one unit plus its size until its response arrives; callers wait
/// in order. 4,000 small requests are more than a server answers in 20 ms of a long line; a slow server's queue stays at a few
/// megabytes.
pub(crate) const ROOM: u32 = 4_096;

/// In bytes.
pub(crate) const ROOM_UNIT: usize = 1_024;

/// Maximum size of a key, as on servers.
pub const KEY_BYTES_MAX: usize = 64 * 1024;

/// Maximum size of a value, as on servers; a larger one would cost all callers the connection.
pub const VALUE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Size of a chunk of a value: few round trips, and little delay of others. With overhead it is below one read (64 KB), so that
/// few chunks are moved in memory.
pub const PIECE_BYTES: usize = 60 * 1024;

/// Chunks requested ahead without other requests: keeps both sides busy despite their wake-ups.
pub(crate) const PIECES_AHEAD: usize = 8;

/// Chunks requested and awaited together: both tasks wake once for two, while six are in flight; with half of all, the line would
/// run empty.
pub(crate) const PIECES_TOGETHER: usize = 2;

/// Chunks requested ahead beside other requests, which wait for at most three chunks.
pub(crate) const PIECES_AHEAD_BESIDE: usize = 3;

/// Unacknowledged written chunks without other requests: keeps both sides busy.
pub(crate) const PIECES_UNDER_WAY: usize = 6;

/// Unacknowledged written chunks beside other requests: one in flight while the server processes the last.
pub(crate) const PIECES_UNDER_WAY_BESIDE: usize = 2;

/// How long a caller counts as active; a sequential one makes its next request sooner.
pub(crate) const OTHER_REQUEST_RECENT: Duration = Duration::from_micros(500);

/// The largest responses are those to [`crate::Cache::get_all`]: [`BULK_ITEMS`] values.
pub(crate) const ANSWER_BYTES_MAX: usize = 1024 * 1024 * 1024;

/// Keys of a bulk request; small requests can go between two.
pub(crate) const BULK_ITEMS: usize = 256;

/// Keys and values after which a bulk request takes no more.
pub(crate) const BULK_BYTES: usize = 1024 * 1024;

/// Larger topologies are ignored.
pub(crate) const SERVERS_MAX: usize = 1_024;

/// Minimum free buffer, so that few reads are short.
pub(crate) const READ_MIN: usize = 8 * 1024;

/// Size of a receive buffer, which values as slices keep in memory.
pub(crate) const READ_AT_ONCE: usize = 64 * 1024;

/// Reads and writes of a connection before other tasks run.
pub(crate) const ROUNDS_MAX: usize = 16;

/// Interval of the deadline check: a deadline's maximum delay.
pub(crate) const TICK: Duration = Duration::from_millis(50);

/// How long a request may wait without a byte before a PING: many times a normal response time.
pub(crate) const ASK_AFTER: Duration = Duration::from_millis(500);

/// How long after such a PING a server counts as silent: movable requests go elsewhere until it sends a byte. A healthy server
/// always answers a PING.
pub(crate) const SILENT_AFTER: Duration = Duration::from_millis(500);

pub(crate) const PING_AFTER: Duration = Duration::from_secs(15);

/// Total silence that closes a connection.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(25);

/// How long past its deadline a request may be unanswered before the connection is closed: its id would never become free.
pub(crate) const RESPONSE_TIMEOUT_MAX: Duration = Duration::from_secs(60);

/// Failed attempts per server before a switch to another cluster.
pub(crate) const SWITCH_AFTER: u32 = 3;

/// Until a connection is usable.
pub(crate) const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// It doubles with each failure.
pub(crate) const PAUSE_FIRST: Duration = Duration::from_millis(50);

/// A connection that lasts as long resets the delay.
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Default timeout of an operation: a cluster detects a crashed server within it.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// Servers that an iteration asks in parallel: keeps the reader busy and leaves room for other callers.
pub(crate) const WALKS_AT_ONCE: usize = 4;

/// Bytes of keys that let an iteration resume: some hundred thousand keys of unfinished segments.
pub(crate) const WALKED_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Restarts of an iteration without progress.
pub(crate) const WALK_TRIES_MAX: usize = 8;

/// Maximum finished segments in a response: more than any cache has.
pub(crate) const SEGMENTS_MAX: usize = 65_536;

/// Default length of a listener's queue: enough for the initial state while a reader starts. On overflow a gap replaces the
/// events, so that a slow reader does not block the connection.
pub const EVENTS_MAX: usize = 16_384;

/// Keys and converted data in a listener's queue.
pub(crate) const EVENT_BYTES_MAX: usize = 16 * 1024 * 1024;

pub(crate) const STATE_TIME_MAX: Duration = Duration::from_secs(5 * 60);

/// Shards of a large near cache, each with a lock, so that cores seldom contend.
pub(crate) const NEAR_PARTS_MAX: usize = 16;

/// Minimum per shard.
pub(crate) const NEAR_PART_ENTRIES: usize = 1_024;

/// Approximate bytes of an entry.
pub(crate) const NEAR_OVERHEAD: usize = 128;

/// 3 % false positives. Java's clients use four bits: 15 %.
pub(crate) const BLOOM_BITS_PER_ENTRY: u32 = 8;
