//! How much there may be of what a server or the callers can make grow, how long things may take, and why.

use std::time::Duration;

/// Room of a connection, in units of [`ROOM_UNIT`] bytes: a request takes one and as many as it has bytes to write, until
/// its answer is there. Callers wait for room in their order. Enough to keep a server busy over a long line (4,000 small
/// requests are more than it answers in 20 ms), and little enough that what waits for a slow one is a few megabytes.
pub(crate) const ROOM: u32 = 4_096;

/// What a unit of [`ROOM`] is.
pub(crate) const ROOM_UNIT: usize = 1_024;

/// Bytes of a key: what servers take.
pub const KEY_BYTES_MAX: usize = 64 * 1024;

/// Bytes of a value: what servers take. Larger ones would cost everybody the connection.
pub const VALUE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Bytes of a piece of a value that is read or written in pieces: enough that few round trips are waited for, little enough
/// that what others ask goes between two of them without being noticed, and with what is around it less than is read at a
/// time (64 KB), so that few are moved while they come.
pub const PIECE_BYTES: usize = 60 * 1024;

/// Pieces that are asked for before they are wanted, while nobody else asks anything on the connection: enough to keep both
/// sides at work although each is woken again and again.
pub(crate) const PIECES_AHEAD: usize = 8;

/// How many of these are asked for, and awaited, together: a reader and its connection's task are woken once for two, and
/// six are on their way meanwhile. By halves of all the line runs empty.
pub(crate) const PIECES_TOGETHER: usize = 2;

/// The same while others ask: what they ask waits for three pieces at most.
pub(crate) const PIECES_AHEAD_BESIDE: usize = 3;

/// Pieces that are written and not acknowledged while nobody else asks anything on the connection: as many as keep both sides
/// at work.
pub(crate) const PIECES_UNDER_WAY: usize = 6;

/// The same while others ask: the next one is on its way while the server takes the last.
pub(crate) const PIECES_UNDER_WAY_BESIDE: usize = 2;

/// How long others count after they have asked something or have had an answer: who asks one thing after the other takes less
/// from an answer to the next request.
pub(crate) const OTHERS_RECENT: Duration = Duration::from_micros(500);

/// Bytes of an answer. Answers to [`crate::Cache::get_all`] are the largest: [`BULK_ITEMS`] values.
pub(crate) const ANSWER_BYTES_MAX: usize = 1024 * 1024 * 1024;

/// Keys of one request for many of them. Small requests can go between two such.
pub(crate) const BULK_ITEMS: usize = 256;

/// Bytes of keys and values from which on a request for many of them takes no more.
pub(crate) const BULK_BYTES: usize = 1024 * 1024;

/// Servers of a topology. With more, it is not believed.
pub(crate) const SERVERS_MAX: usize = 1_024;

/// Bytes for which there is room at least before a connection is read, so that few reads are for a few bytes only.
pub(crate) const READ_MIN: usize = 8 * 1024;

/// Bytes for which room is made at a time. Values are parts of it, and keep it in memory as long as they live.
pub(crate) const READ_AT_ONCE: usize = 64 * 1024;

/// Reads and writes of a connection before other tasks get their turn.
pub(crate) const ROUNDS_MAX: usize = 16;

/// How often requests are looked through for deadlines, while there are any. Deadlines are late by that at most.
pub(crate) const TICK: Duration = Duration::from_millis(50);

/// A server that has left a request without any byte for so long is asked whether it is there: many times as long as it takes a
/// server to answer what it has.
pub(crate) const ASK_AFTER: Duration = Duration::from_millis(500);

/// A server that was asked, and has sent nothing for so long, is silent: it may hang. Requests that can be made twice are made at
/// another server, and others go there, too, until something comes. Servers answer such a question whatever else they do.
pub(crate) const SILENT_AFTER: Duration = Duration::from_millis(500);

/// A server that has said nothing for so long is asked whether it is there.
pub(crate) const PING_AFTER: Duration = Duration::from_secs(15);

/// A server that was asked, and has still said nothing for so long, is given up.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(25);

/// A server that answers others, but not a request whose deadline has passed since so long, is given up: its place would
/// never be free again.
pub(crate) const RESPONSE_TIMEOUT_MAX: Duration = Duration::from_secs(60);

/// Failed attempts to connect with each of a cluster's servers until the client goes on with another cluster.
pub(crate) const SWITCH_AFTER: u32 = 3;

/// How long a connection may take until it can be used.
pub(crate) const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// The pause after a connection was lost or could not be had. It doubles from time to time.
pub(crate) const PAUSE_FIRST: Duration = Duration::from_millis(50);

/// The longest such pause. Also how long a connection must have lasted for the pauses to begin anew.
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(5);

/// How long an operation may take unless its handle says otherwise: long enough for a server's death to be noticed by the
/// others of its cluster.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// Servers of which a walk asks something at the same time: enough to keep the reader busy, and few beside the other
/// callers.
pub(crate) const WALKS_AT_ONCE: usize = 4;

/// Bytes of keys that a walk remembers, so that it can go on when a server is lost: those of some hundred thousand entries
/// in segments that are not finished. With more, it cannot.
pub(crate) const WALKED_BYTES_MAX: usize = 64 * 1024 * 1024;

/// How often a walk is begun again without anything that it has brought.
pub(crate) const WALK_TRIES_MAX: usize = 8;

/// Segments that a server can say are finished in one answer: more than any cache has.
pub(crate) const SEGMENTS_MAX: usize = 65_536;

/// Events that wait for a listener's reader unless it says otherwise: keys only, as many as come of what was there while a
/// reader begins. Beyond, they are dropped for a gap, so that one slow reader costs the others of the connection nothing.
pub const EVENTS_MAX: usize = 16_384;

/// Bytes of keys and of what converters have made that wait for a listener's reader.
pub(crate) const EVENT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// How long a server may take until it has told a listener what was there.
pub(crate) const STATE_TIME_MAX: Duration = Duration::from_secs(5 * 60);

/// Parts of a large near cache, each with its lock: readers on some cores seldom meet.
pub(crate) const NEAR_PARTS_MAX: usize = 16;

/// Entries for which a part of a near cache is worth its while.
pub(crate) const NEAR_PART_ENTRIES: usize = 1_024;

/// What an entry of a near cache takes besides its bytes, about.
pub(crate) const NEAR_OVERHEAD: usize = 128;

/// Bits of a near cache's filter per entry that it has room for: servers then tell of three in a hundred of the keys that it
/// does not have. Java's clients have four bits, and are told of fifteen.
pub(crate) const BLOOM_BITS_PER_ENTRY: u32 = 8;
