//! What a client can make a server keep, and how much of it.

use std::time::Duration;

/// Bytes that all clients together make a server hold besides the entries of caches, unless the server is given a budget of the
/// process ([`crate::ServerBuilder::memory`]): some of the largest values on their way in and out.
pub const CLIENTS_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// How long a request waits for room for its bytes or those of its response. Then it fails, and the error names the limit.
pub const RESERVE_TIME_MAX: Duration = Duration::from_secs(30);

/// How long a request may take to arrive as a whole, or responses to be taken, besides the time for their bytes.
pub const TRANSFER_TIME_MIN: Duration = Duration::from_secs(30);

/// Bytes in a second at which a client sends and takes at least: 2 Mbit. Who is slower than that, as who has stopped, has its
/// connection closed, because the bytes are kept for it.
pub const TRANSFER_RATE_MIN: u32 = 256 * 1024;

/// Responses of a connection that are put together at a time, or were and are not taken: those with many entries.
pub const GATHERINGS_MAX: usize = 64;

/// Bytes of the requests of one connection that have begun and are not answered, large ones apart. Beyond, nothing is read from
/// it.
pub const UNANSWERED_MAX: usize = 4 * 1024 * 1024;

/// Bytes of a request from which on it is a large one, whose bytes are reserved before they are read.
pub const LARGE_REQUEST_BYTES: usize = READ_AT_ONCE;

/// Bytes that the responses of one connection are expected to have that have begun, if others were as large. Beyond, nothing
/// is begun for it.
pub const EXPECTED_MAX: usize = 64 * 1024 * 1024;

/// Bytes that a response is expected to have at first.
pub const EXPECTED_FIRST: usize = 64 * 1024;

/// Connections at a time. One more is closed at once: each has a task and some KiB of buffers, and takes a descriptor. More
/// than the 10,000 idle ones with which the bench measures those that are not.
pub const CONNECTIONS_MAX: usize = 16_384;

/// Connections that are kept free of clients that are known: who watches the server and clients that log in still come in
/// when all others are taken. At most a quarter of the connections that there may be.
pub const CONNECTIONS_RESERVED: usize = 256;

/// Connections of one address, unless the server's owner has it otherwise: a quarter of [`CONNECTIONS_MAX`]. This host has
/// no limit: a proxy beside the server has connections for many clients.
pub const CONNECTIONS_PER_ADDRESS_MAX: usize = 4_096;

/// Descriptors of the process that connections do not take: they are for files and for other members.
pub const DESCRIPTORS_RESERVED: u64 = 1_024;

/// Connections on the port for health at a time. With one more, the oldest one ends.
pub const HEALTH_CONNECTIONS_MAX: usize = 64;

/// Connections that wait to be accepted: as many clients as come back at once when another server is gone. One more has to
/// try again, a second later. The system may allow less.
pub const CONNECTING_MAX: u32 = 4_096;

/// Bytes of a connection that has not asked anything yet, or has not shown who its client is.
pub const STRANGER_BYTES_MAX: usize = 64 * 1024;

/// Bytes of all connections together of which it is not known whose they are, each counted with [`STRANGER_BYTES_MAX`]. With
/// one more, the oldest one ends of the address that has most of them.
/// With less memory for clients, half of that.
pub const STRANGERS_BYTES_MAX: u64 = 128 * 1024 * 1024;

/// How long such a connection has before it ends for another one. Until then nobody is accepted, and who comes waits in the
/// system's queue ([`CONNECTING_MAX`]): if thousands come back at once, what was begun for the first ones is finished.
pub const STRANGER_KEPT_FOR: Duration = Duration::from_secs(1);

/// So many of these connections there may be also if clients hold all the memory that they may: who watches the server is
/// among them.
pub const STRANGERS_MIN: usize = 64;

/// How long a connection may say nothing before it has asked something, or may take until it is known who its client is, its
/// handshake included. Clients ask at once.
pub const STRANGER_TIME_MAX: Duration = Duration::from_secs(10);

/// Bytes of a request of which it has to be shown first who asks it: tokens are no larger, as they have to fit into a header
/// of HTTP. With what is read ahead, with the answer and with a record of TLS that is less than [`STRANGER_BYTES_MAX`].
pub const CREDENTIALS_BYTES_MAX: usize = 16 * 1024;

/// Fields in the head of a request in HTTP. Programs that watch servers send ten.
pub const HTTP_HEADERS_MAX: usize = 64;

/// How long a connection in HTTP may take from one answer to the next request. Prometheus asks once in a minute unless it is
/// told otherwise.
pub const HTTP_IDLE_MAX: Duration = Duration::from_secs(75);

/// How long it is waited for a client in HTTP to hang up that was told to.
pub const HTTP_LINGER_MAX: Duration = Duration::from_secs(1);

/// How often a connection's client may fail to show who it is. People mistype a password; a program is not wrong in another
/// way each time.
pub const AUTH_FAILURES_MAX: usize = 3;

/// A server hashes as many passwords at a time as it has cores, divided by this: those that send them as they are cost as
/// much as they are safe, whoever they are.
pub const PASSWORDS_SHARE: usize = 2;

/// How long a password that was right is known again without being hashed: as long as clients with short connections save most
/// of it, and no longer than a password should be found in memory by who can read that.
pub const VERIFIED_KEPT: Duration = Duration::from_secs(5 * 60);

/// Requests of one connection that wait for other members. Beyond, nothing is read from it: a client that pipelines has
/// a few hundred under way.
pub const WAITING_MAX: usize = 4_096;

/// Bytes that wait to be written to a client. Beyond, nothing is read from it until it has read.
pub const UNWRITTEN_MAX: usize = 1024 * 1024;

/// Bytes that are read at a time, and so how many requests are begun before answers are written.
pub const READ_AT_ONCE: usize = 64 * 1024;

/// Bytes of the largest value of another server that is sent here for a request for one key before its bytes are reserved.
pub const UNRESERVED_BYTES_MAX: u32 = 64 * 1024;

/// Bytes of values of other servers that a request for many keys has sent here before they are reserved.
pub const GET_ALL_UNRESERVED_MAX: usize = 16 * 1024 * 1024;

/// Bytes that a request that walks reserves for what owners send before it is part of a response: more than four answers of 1 MiB,
/// and as much as two values of 64 MiB.
pub const WALK_BYTES_MAX: u64 = 128 * 1024 * 1024;

/// So many requests walk at a time also in a process with little memory, where each reserves less.
pub const WALKS_AT_ONCE_MIN: u64 = 4;

/// Bytes of one response with many entries: it is in memory as a whole. Larger caches are walked over, not asked for.
pub const RESPONSE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Bytes of values that a request for many keys is expected to find at a time: it asks for so many keys at once.
pub const GET_ALL_BYTES: usize = 4 * 1024 * 1024;

/// Walks of one connection that have begun and not ended: an application has one connection per server, and each of its
/// threads may walk. Each holds what owners have sent and the client has not taken, some hundred entries.
pub const ITERATIONS_MAX: usize = 128;

/// After this time without a request a walk makes room for another one. As long as in Infinispan.
pub const ITERATION_IDLE_MAX: Duration = Duration::from_secs(5 * 60);

/// Entries of one answer to a walk, whatever the client wants; Java wants 10,000 from all servers together.
pub const BATCH_MAX: usize = 10_000;

/// Bytes of keys and values from which on an answer to a walk is given as it is.
pub const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Segments that are walked over together: clients learn after each such part that it is finished, and each asks every
/// owner once.
pub const SEGMENTS_AT_ONCE: usize = 16;

/// Listeners of one connection: an application has some per cache, a near cache is one, and Consort's client has one connection
/// to each server for all of them.
pub const LISTENERS_MAX: usize = 1_024;

/// Events that wait for a listener's connection in the grid: as many as come while a client stands still for a moment. With
/// one more, or with 16 MiB of keys and of values that are told, the client is too slow, and its connection ends.
pub const EVENTS_MAX: usize = 4_096;

/// Events that are on their way to a connection's output.
pub const UNSENT_EVENTS_MAX: usize = 256;

/// Bytes of events on their way to a connection's output: keys, and what converters have made. What an event has beyond that is
/// reserved in the budget `events`.
pub const UNSENT_BYTES_MAX: usize = 64 * 1024;

/// How long an event waits for room in a connection's output. After this time the client takes nothing, and its connection
/// ends.
pub const UNTAKEN_TIME_MAX: Duration = Duration::from_secs(30);

/// How long the answer to the change of a counter waits for the event of it on the same connection: many times as long as it
/// takes. If servers are busier, clients get their answers before.
pub const TOLD_FIRST_MAX: Duration = Duration::from_millis(100);

/// Bits of all filters of a connection's near caches: those of near caches with 4 million entries, in 2 MiB.
pub const BLOOM_BITS_MAX: u32 = consort_hotrod::bloom::BLOOM_BITS_MAX;

/// Counters of all clients together: their names are told in one answer. Removed ones count, as they stay defined in
/// Infinispan, until this limit is reached; then their names are freed.
pub const COUNTERS_MAX: usize = 10_000;

/// Counters from which on the log warns of the limit: 80 % of it.
pub const COUNTERS_WARNED_FROM: usize = COUNTERS_MAX / 10 * 8;

/// How long the metrics wait for other servers to say how many counters they have.
pub const COUNTERS_ASKED_WITHIN: Duration = Duration::from_secs(1);

/// How often all counters are read for removed ones when the limit is reached and the last time has freed none.
pub const COUNTERS_FREED_EVERY: Duration = Duration::from_secs(1);

/// Bytes of a counter's name.
pub const COUNTER_NAME_MAX: usize = 1_024;

/// Counters that one listener hears of.
pub const COUNTERS_LISTENED_MAX: usize = 1_000;

/// Changes of definitions and of servers that wait to be looked at. With one more they are all looked at again.
pub const LOOKED_AT_MAX: usize = 256;

/// Caches that are made by administration, and aliases and templates. Each cache costs every member its segments.
pub const CACHES_MAX: usize = 1_000;

/// Bytes of the name of a cache or a template that clients make, and of another name of a cache.
pub const CACHE_NAME_MAX: usize = 1_024;

/// Bytes of a cache's definition. Real ones have some KiB.
pub const DEFINITION_BYTES_MAX: usize = 1024 * 1024;

/// How many times as much memory as its text a definition takes at most while it is read.
pub const DEFINITION_COST: usize = 64;

/// Bytes of a definition that is read where it is asked for: some hundred microseconds. Longer ones are read beside the requests
/// of others.
pub const DEFINITION_HERE_MAX: usize = 16 * 1024;

/// How long a defined cache that could not be opened waits before the server tries again. Opening a store reads all of its
/// files.
pub const FAILED_TRIED_EVERY: Duration = Duration::from_secs(10);

/// How often the log says again that a defined cache could not be opened.
pub const FAILED_LOGGED_EVERY: Duration = Duration::from_secs(60);

/// Other names of one cache.
pub const ALIASES_MAX: usize = 64;

/// Bytes of a cache's name in the name of the directory of its files, where it stands for people.
pub const NAME_IN_PLACE_MAX: usize = 64;

/// Entries that a query takes away at the same time: enough to fill messages, few beside what others do.
pub const DELETED_AT_ONCE: usize = 256;

/// Schemas that are checked. All of them are, whenever one changes.
pub const SCHEMAS_MAX: usize = 1_000;

/// Bytes of a schema. Real ones have some KiB.
pub const SCHEMA_BYTES_MAX: usize = 1024 * 1024;

/// Bytes of all schemas together.
pub const SCHEMAS_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Punctuation marks in all schemas together: each field, message, value of an enumeration or option has one or two. What is
/// compiled of them needs some KiB for each at most, so that this bounds the memory and the time of a compilation.
pub const SCHEMAS_MARKS_MAX: usize = 50_000;

/// How deep brackets may be nested in a schema: whoever reads it needs its stack for that.
pub const SCHEMA_NESTING_MAX: usize = 64;

/// How long a server takes to start before it says what it waits for: many times as long as without waiting.
pub const WAITING_TOLD_AFTER: Duration = Duration::from_secs(5);

/// How often it says so again.
pub const WAITING_TOLD_EVERY: Duration = Duration::from_secs(30);

/// How often a server looks whether it has waited long enough for others that have what is kept, and then goes on without
/// them.
pub const ALONE_LOOKED_AT_EVERY: Duration = Duration::from_secs(5);

/// Keys and values below this size are copied out of what was received, so that they do not keep all of it in memory.
pub const COPIED_BELOW: usize = 16 * 1024;

/// Failed logins of a name, or from an address, after which answers do not wait yet.
pub const LOGIN_FAILURES_FREE: u32 = 10;

/// How long the answer after these waits. It is twice as long with each further failure.
pub const LOGIN_DELAY_FIRST: Duration = Duration::from_millis(100);

/// How long an answer waits at most: less than half of the time for a login, so that a right password is always in time.
pub const LOGIN_DELAY_MAX: Duration = Duration::from_secs(4);

/// After this time without another failure half of the failures count.
pub const LOGIN_FAILURES_HALVED_AFTER: Duration = Duration::from_secs(60);

/// Names, addresses, and names with addresses whose failed logins are counted: 32 bytes each.
pub const LOGINS_TRACKED: usize = 4_096;

/// Clients that are not known yet have a thread for as many cores as this, and one at least: there may be thousands of them
/// at once, and most of the CPUs are for those that are known.
pub const STRANGERS_SHARE: usize = 4;

/// Connections that are accepted, moved or forgotten before others have their turn: some microseconds each.
pub const ACCEPTED_AT_ONCE: usize = 16;

/// How long a server that ends tries to say so to the other servers, whose clients then go elsewhere.
pub const WITHDRAW_TIME_MAX: Duration = Duration::from_secs(2);

/// How long a server that ends goes on to perform requests while its clients go over to other servers. Clients learn with the
/// next response which these are; those that do not follow topologies stay until the end of this time.
pub const MOVE_TIME_MAX: Duration = Duration::from_secs(5);

/// A server that ends closes a connection on which all is answered once nothing has come for this time: a client that asks more
/// often learns with a response where to go on.
pub const IDLE_BEFORE_CLOSE: Duration = Duration::from_millis(500);

/// The same when the server begins no request any more: many times as long as a request is on its way.
pub const IDLE_BEFORE_LAST_CLOSE: Duration = Duration::from_millis(100);

/// How long requests of a client that does not stop are refused before its connection is closed.
pub const REFUSE_TIME_MAX: Duration = Duration::from_secs(1);

/// How long a server that has closed its direction of a connection waits for its client to do the same. With something unread
/// the connection would be reset, and the last responses might not arrive.
pub const CLOSE_LINGER_MAX: Duration = Duration::from_secs(1);

/// How long a server that ends waits for what is under way.
pub const DRAIN_TIME_MAX: Duration = Duration::from_secs(10);

/// After this time without a byte the system asks whether the client of a connection is still there, then as often and with as
/// many attempts as follow: a client that has gone without a word is noticed after two minutes.
pub const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);

/// How often it asks again.
pub const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);

/// After how many attempts without an answer the connection ends.
pub const KEEPALIVE_ATTEMPTS: u32 = 6;

/// How long a server that is out of descriptors waits before it tries to take a client again.
pub const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// Values of one key of a multimap. A change of one of them rewrites all of them: with this and [`VALUES_OF_KEY_BYTES_MAX`]
/// that takes some milliseconds.
pub const VALUES_OF_KEY_MAX: usize = 100_000;

/// Bytes of all values of one key of a multimap, with four bytes for the length of each.
pub const VALUES_OF_KEY_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Bytes up to which a connection's own thread converts values, or puts answers in order. More is done by other threads
/// ([`COMPUTING_AT_ONCE`]): others on the connection's thread would wait for it.
pub const COMPUTED_HERE_BYTES_MAX: usize = 64 * 1024;

/// Threads that convert large values and put large answers in order at the same time, of all connections together.
pub const COMPUTING_AT_ONCE: usize = 4;

/// Queries that a server answers at the same time. Others wait in the order in which they came. Each may hold as much as
/// `consort_query` allows ([`consort_query::limits::HELD_MAX`]).
pub const QUERIES_AT_ONCE: usize = 16;

/// Bytes of a query as a client sends it, with its parameters.
pub const QUERY_REQUEST_BYTES_MAX: usize = 2 * 1024 * 1024;

/// How long a query may take, from its request to its answer. Clients have long stopped waiting by then.
pub const QUERY_TIME_MAX: Duration = Duration::from_secs(5 * 60);

/// Streams of one connection that have begun and not ended: an application has one connection per server, and each of its
/// threads may read or write a value.
pub const STREAMS_MAX: usize = 128;

/// After this time without a request a stream is dropped, with what was written to it. As long as in Infinispan.
pub const STREAM_IDLE_MAX: Duration = Duration::from_secs(5 * 60);

/// Bytes of a piece that is read from a stream, whatever the client wants: as much as may wait to be written to it.
pub const PIECE_BYTES_MAX: usize = UNWRITTEN_MAX;

/// Bytes of a value that is written in pieces from which on it has room for the largest at once. Without it, it would be moved
/// whenever it has doubled, up to 32 MB in one step, for which everybody on the connection waits. Of memory that nothing
/// was written to, only the addresses are taken.
pub const ROOM_FROM: usize = 256 * 1024;

/// Values that have such a room at the same time: 4 GiB of addresses. Others grow step by step.
pub const ROOMS_MAX: usize = 64;

/// Bytes of a value in pieces that its connection moves itself, when it is there as a whole and has more room than it needs:
/// others wait 0.1 ms for it. More are moved by another thread.
pub const MOVED_HERE_MAX: usize = 1024 * 1024;

/// How long a transaction that prepares, or a write of one key in a transactional cache, waits for a key that another has:
/// less than clients wait for an answer.
pub const LOCK_TIME_MAX: Duration = Duration::from_secs(1);

/// How long a write of one key has its lock if its server goes before it is done: longer than any operation takes.
pub const LOCK_KEPT: Duration = Duration::from_secs(60);

/// Transactions that are known: those under way, and those that have ended a minute ago at most, unless their clients have
/// said that they ask no more. More than a thousand in a second.
pub const TRANSACTIONS_MAX: u64 = 100_000;

/// Bytes of what all these transactions are to write. Every server has them.
pub const TRANSACTIONS_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Bytes of keys and values that a transaction changes in one cache: they are sent to all servers as one value.
pub const TRANSACTION_BYTES_MAX: usize = 16 * 1024 * 1024;

/// How long a transaction may wait for its decision, whatever its client wants: its keys are locked as long.
pub const DECISION_TIME_MAX: Duration = Duration::from_secs(10 * 60);

/// How long a server may take to prepare a transaction. Then it is taken back.
pub const PREPARE_TIME_MAX: Duration = Duration::from_secs(60);

/// How long after the last sign of a server that has gone others end what it has decided: what it has sent before has
/// arrived by then, or is refused.
pub const TAKE_OVER_AFTER: Duration = Duration::from_secs(15);

/// How long a server that is there may take to write what is decided. Then others do it.
pub const FINISH_TIME_MAX: Duration = Duration::from_secs(5 * 60);

/// How long a transaction that is over is known, for clients that ask again. As long as in Infinispan.
pub const COMPLETED_KEPT: Duration = Duration::from_secs(60);

/// How often it is looked after transactions that nobody asks for.
pub const REAP_EVERY: Duration = Duration::from_secs(5);

/// How long it may take until a cache is available again that is to go on with what is left: the coordinator says so to all,
/// and one that has not done so by then may be gone.
pub const AVAILABLE_WITHIN: Duration = Duration::from_secs(10);

/// How long the answer to who has made a cache waits for servers that do not have it yet: one that has stopped answering is
/// excluded in about that time, and clients wait longer.
pub const EVERYWHERE_WITHIN: Duration = Duration::from_secs(5);

/// The same for servers that still have a cache that is removed.
pub const GONE_WITHIN: Duration = EVERYWHERE_WITHIN;

/// Bytes of an entity that becomes JSON: what is in one of small fields takes twenty times as much for a moment.
pub const ENTITY_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Bytes of the JSON of an entity, either way: names that the schema has may be long, and stand there again and again.
pub const ENTITY_JSON_MAX: usize = 16 * 1024 * 1024;

/// How deep messages within an entity are nested that becomes JSON: it is read there to a depth of 128, and repeated messages
/// take two.
pub const ENTITY_NESTING_MAX: usize = 60;
