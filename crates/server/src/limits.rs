//! The limits of what clients can make a server hold and do.

use std::time::Duration;

/// Bytes that all clients make a server hold besides entries, without a budget of the process
/// ([`crate::ServerBuilder::memory`]): some of the largest values on their way in and out.
pub const CLIENTS_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// The time that a request waits for capacity. Then it fails, and the error names the limit.
pub const RESERVE_TIME_MAX: Duration = Duration::from_secs(30);

/// The time for a request to arrive completely, or for responses to be read, besides the time for their bytes.
pub const TRANSFER_TIME_MIN: Duration = Duration::from_secs(30);

/// The least rate at which a client has to send and read, in bytes/s: 2 Mbit/s. The server closes slower connections,
/// because it holds their bytes.
pub const TRANSFER_RATE_MIN: u32 = 256 * 1024;

/// Responses with many entries that one connection assembles at a time, or whose bytes its client has not read.
pub const LARGE_RESPONSES_MAX: usize = 64;

/// Requests of one connection at a time that read a whole cache (SIZE, BULK_GET, queries, new listeners and others), for
/// each processor. Beyond that, their tasks would fill the queues of all threads, and other connections would wait.
pub const SCANS_PER_PROCESSOR: usize = 2;

/// Bytes of one connection's unanswered requests, without large ones. Beyond the limit, nothing is read from the
/// connection.
pub const UNANSWERED_MAX: usize = 4 * 1024 * 1024;

/// The size in bytes from which on a request is large: its bytes are reserved before they are read.
pub const LARGE_REQUEST_BYTES: usize = READ_BYTES;

/// Expected bytes of one connection's responses, if they are as large as recent ones. Beyond the limit, no request is
/// started.
pub const EXPECTED_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Bytes that a response is expected to have at first.
pub const EXPECTED_BYTES_INITIAL: usize = 64 * 1024;

/// Connections at a time. One more is closed at once, because each has a task, some KiB of buffers and a descriptor. The
/// limit is above the benchmark's 10,000 idle connections.
pub const CONNECTIONS_MAX: usize = 16_384;

/// Connections that authenticated clients leave free, for monitoring and logins. At most a quarter of the limit of
/// connections.
pub const CONNECTIONS_RESERVED: usize = 256;

/// Connections from one address by default: a quarter of [`CONNECTIONS_MAX`]. Connections from this host have no limit,
/// because a local proxy has connections for many clients.
pub const CONNECTIONS_PER_ADDRESS_MAX: usize = 4_096;

/// Descriptors of the process for files and other members.
pub const DESCRIPTORS_RESERVED: u64 = 1_024;

/// Connections on the health port at a time. One more closes the oldest one.
pub const HEALTH_CONNECTIONS_MAX: usize = 64;

/// Connections that wait to be accepted, when clients of a server that has gone reconnect at once. One more client tries
/// again a second later. The system may allow less.
pub const ACCEPT_BACKLOG: u32 = 4_096;

/// Bytes of a connection that has sent no request yet, or whose client is not authenticated.
pub const PREAUTH_BYTES_MAX: usize = 64 * 1024;

/// Bytes of all connections without an authenticated client, each counted with [`PREAUTH_BYTES_MAX`]. One more closes the
/// oldest one of the address that has the most of them. The limit is at most half of the clients' memory.
pub const PREAUTH_TOTAL_BYTES_MAX: u64 = 128 * 1024 * 1024;

/// The minimum age at which such a connection is closed for another one. Until then clients wait in the system's queue
/// ([`ACCEPT_BACKLOG`]): if thousands reconnect at once, the first handshakes still complete.
pub const PREAUTH_AGE_MIN: Duration = Duration::from_secs(1);

/// The number of these connections that is possible even if authenticated clients hold all their memory, for example for
/// monitoring.
pub const PREAUTH_CONNECTIONS_MIN: usize = 64;

/// The time from a client's connection to its first request, or until the client is authenticated.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of a request before authentication. Tokens have to fit into a header of HTTP. With read-ahead, the response and a
/// TLS record, that is less than [`PREAUTH_BYTES_MAX`].
pub const CREDENTIALS_BYTES_MAX: usize = 16 * 1024;

/// Fields in the head of an HTTP request. Monitoring programs send ten.
pub const HTTP_HEADERS_MAX: usize = 64;

/// The time from an HTTP response to the next request on a connection. Prometheus sends one per minute by default.
pub const HTTP_IDLE_MAX: Duration = Duration::from_secs(75);

/// The time that the server waits for an HTTP client to close a connection.
pub const HTTP_LINGER_MAX: Duration = Duration::from_secs(1);

/// Failed authentications on one connection.
pub const AUTH_FAILURES_MAX: usize = 3;

/// The server's cores per password that is hashed at a time. A hash of a cleartext password costs much CPU by design.
pub const PASSWORD_THREADS_SHARE: usize = 2;

/// The time for which a verified password is accepted again without hashing: for clients with short connections, and short
/// enough for a secret in memory.
pub const PASSWORD_CACHE_TIME: Duration = Duration::from_secs(5 * 60);

/// Requests of one connection that wait for other members. Beyond the limit, nothing is read from the connection. A client
/// that pipelines has a few hundred in flight.
pub const WAITING_MAX: usize = 4_096;

/// Bytes that wait to be written to a client. Beyond the limit, nothing is read from it.
pub const UNWRITTEN_MAX: usize = 1024 * 1024;

/// Bytes that are read at a time. This bounds the requests that are started before responses are written.
pub const READ_BYTES: usize = 64 * 1024;

/// Bytes of the largest value that another server sends for a request for one key without a reservation here.
pub const UNRESERVED_BYTES_MAX: u32 = 64 * 1024;

/// Bytes of values that other servers send for a request for many keys without a reservation here.
pub const GET_ALL_UNRESERVED_MAX: usize = 16 * 1024 * 1024;

/// Bytes that an iterating request reserves for entries from owners: more than four responses of 1 MiB, and as much as two
/// values of 64 MiB.
pub const ITERATION_BYTES_MAX: u64 = 128 * 1024 * 1024;

/// Iterating requests at a time even with little memory, where each reserves less.
pub const CONCURRENT_ITERATIONS_MIN: u64 = 4;

/// Bytes of one response with many entries, which is in memory as a whole. Clients have to iterate over larger caches.
pub const RESPONSE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Expected bytes of the values that a request for many keys reads at once.
pub const GET_ALL_BYTES: usize = 4 * 1024 * 1024;

/// Open iterations of one connection: an application has one connection per server, and each of its threads may iterate.
/// Each iteration holds some hundred entries that the client has not read.
pub const ITERATIONS_MAX: usize = 128;

/// The idle time after which an iteration may be closed for another one. As in Infinispan.
pub const ITERATION_IDLE_MAX: Duration = Duration::from_secs(5 * 60);

/// Entries of one batch of an iteration, whatever the client requests; Java requests 10,000 from all servers together.
pub const BATCH_MAX: usize = 10_000;

/// Bytes of keys and values from which on a batch is complete.
pub const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Segments that are iterated over together. After each group the client learns that it is finished. Each group costs one
/// request to every owner.
pub const SEGMENTS_PER_GROUP: usize = 16;

/// Listeners of one connection: an application has some per cache, a near cache is one, and Consort's client has one
/// connection to each server for all of them.
pub const LISTENERS_MAX: usize = 1_024;

/// Events that wait for a listener's connection in the grid: as many as occur while a client pauses briefly. With one more,
/// or with 16 MiB of keys and values, the connection is closed.
pub const EVENTS_MAX: usize = 4_096;

/// Events that wait for a connection's output.
pub const UNSENT_EVENTS_MAX: usize = 256;

/// Bytes of such events: keys, and the results of converters. Bytes beyond that are reserved in the budget `events`.
pub const UNSENT_BYTES_MAX: usize = 64 * 1024;

/// The time that an event waits for capacity in a connection's output. Then the connection is closed.
pub const UNREAD_EVENT_TIMEOUT: Duration = Duration::from_secs(30);

/// The time that the response to a counter's change waits for its event on the same connection: many times as long as an
/// event takes.
pub const COUNTER_EVENT_TIMEOUT: Duration = Duration::from_millis(100);

/// Bits of all filters of a connection's near caches: those of 4 million entries, in 2 MiB.
pub const BLOOM_BITS_MAX: u32 = consort_hotrod::bloom::BLOOM_BITS_MAX;

/// Counters of all clients, whose names are sent in one response. Removed ones count, because they stay defined in
/// Infinispan; at the limit their names are freed.
pub const COUNTERS_MAX: usize = 10_000;

/// The number of counters from which on the log warns: 80 % of the limit.
pub const COUNTERS_WARNING_FROM: usize = COUNTERS_MAX / 10 * 8;

/// The time that the metrics wait for the cluster's number of counters.
pub const COUNTERS_COUNT_TIMEOUT: Duration = Duration::from_secs(1);

/// The interval at which all counters are read for removed ones, if the limit is reached and the last attempt has freed
/// none.
pub const COUNTERS_FREE_INTERVAL: Duration = Duration::from_secs(1);

/// Bytes of a counter's name.
pub const COUNTER_NAME_MAX: usize = 1_024;

/// Counters of which one listener gets events.
pub const COUNTERS_PER_LISTENER_MAX: usize = 1_000;

/// Unprocessed changes of definitions and of servers. With one more, all of them are read again.
pub const PENDING_CHANGES_MAX: usize = 256;

/// Caches made by administration, aliases and templates. Each cache costs every member its segments.
pub const CACHES_MAX: usize = 1_000;

/// Bytes of the name of a cache, alias or template that a client makes.
pub const CACHE_NAME_MAX: usize = 1_024;

/// Bytes of a cache's definition. Real ones have some KiB.
pub const DEFINITION_BYTES_MAX: usize = 1024 * 1024;

/// The memory for reading a definition, as a multiple of its text at most.
pub const DEFINITION_COST: usize = 64;

/// Bytes of a definition that the connection's own task reads, in some hundred microseconds. Other threads read longer
/// ones.
pub const DEFINITION_INLINE_MAX: usize = 16 * 1024;

/// The interval of attempts to open a defined cache after a failure. Opening a store reads all of its files.
pub const REOPEN_INTERVAL: Duration = Duration::from_secs(10);

/// The interval at which the log repeats such a failure.
pub const REOPEN_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Aliases of one cache.
pub const ALIASES_MAX: usize = 64;

/// Bytes of a cache's name within the name of its directory, where it is for people.
pub const NAME_IN_DIRECTORY_MAX: usize = 64;

/// Entries that a query removes at the same time: enough to fill messages, few beside other requests.
pub const CONCURRENT_DELETES: usize = 256;

/// Schemas. A change of one checks all of them.
pub const SCHEMAS_MAX: usize = 1_000;

/// Bytes of a schema. Real ones have some KiB.
pub const SCHEMA_BYTES_MAX: usize = 1024 * 1024;

/// Bytes of all schemas together.
pub const SCHEMAS_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Punctuation marks in all schemas: each field, message, value of an enumeration or option has one or two, and needs some
/// KiB when compiled. This bounds the memory and the time of a compilation.
pub const SCHEMAS_PUNCTUATION_MAX: usize = 50_000;

/// The depth of brackets in a schema: the parser needs stack for each level.
pub const SCHEMA_NESTING_MAX: usize = 64;

/// The duration of a start after which the log names what it waits for: many times that of a start without waiting.
pub const STARTUP_LOG_AFTER: Duration = Duration::from_secs(5);

/// The interval of these lines.
pub const STARTUP_LOG_INTERVAL: Duration = Duration::from_secs(30);

/// The interval at which a waiting start checks its recovery timeout.
pub const RECOVERY_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Keys and values below this size are copied out of the received bytes, so that they do not keep all of these in memory.
pub const COPIED_BELOW: usize = 16 * 1024;

/// Failed logins of a name, or from an address, that do not delay the response yet.
pub const LOGIN_FAILURES_FREE: u32 = 10;

/// The delay of the first response after these. Each further failure doubles it.
pub const LOGIN_DELAY_FIRST: Duration = Duration::from_millis(100);

/// The maximum delay: less than half of the time for a login, so that a login with the right password is in time.
pub const LOGIN_DELAY_MAX: Duration = Duration::from_secs(4);

/// The time without another failure after which the number of failures is halved.
pub const LOGIN_FAILURES_HALVED_AFTER: Duration = Duration::from_secs(60);

/// Names, addresses, and pairs of both whose failed logins are counted: 32 bytes each.
pub const LOGINS_TRACKED: usize = 4_096;

/// Cores per thread for clients that are not authenticated; there is at least one thread. Most CPUs are for authenticated
/// clients.
pub const HANDSHAKE_THREADS_SHARE: usize = 4;

/// Connections that are accepted, moved or removed before other tasks run: some microseconds each.
pub const ACCEPT_BATCH_MAX: usize = 16;

/// The time that an ending server tries to inform the other servers.
pub const WITHDRAW_TIME_MAX: Duration = Duration::from_secs(2);

/// The time that an ending server executes requests while its clients move to other servers, which they learn with the next
/// response. Clients that do not use topologies stay until the end of this time.
pub const MOVE_TIME_MAX: Duration = Duration::from_secs(5);

/// An ending server closes a connection without unanswered requests after this time without input. A client that sends more
/// often learns the other servers with a response.
pub const IDLE_BEFORE_CLOSE: Duration = Duration::from_millis(500);

/// The same when the server starts no request any more: many times as long as a request is on its way.
pub const IDLE_BEFORE_LAST_CLOSE: Duration = Duration::from_millis(100);

/// The time for which requests of a client that does not stop are refused before its connection is closed.
pub const REFUSE_TIME_MAX: Duration = Duration::from_secs(1);

/// The time that the server waits for the client to close its direction, too. With unread bytes the connection would be
/// reset, and the last responses might not arrive.
pub const CLOSE_LINGER_MAX: Duration = Duration::from_secs(1);

/// The time that an ending server waits for requests in progress.
pub const DRAIN_TIME_MAX: Duration = Duration::from_secs(10);

/// The idle time after which the system probes a client. With the next two constants, a vanished client is detected after
/// two minutes.
pub const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);

/// The interval of the probes.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// The number of probes without a response after which the connection ends.
pub const KEEPALIVE_ATTEMPTS: u32 = 6;

/// The time after which a server that is out of descriptors accepts again.
pub const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// Values of one key of a multimap. A change rewrites all of them: with this limit and [`VALUES_OF_KEY_BYTES_MAX`], in some
/// milliseconds.
pub const VALUES_OF_KEY_MAX: usize = 100_000;

/// Bytes of all values of one key of a multimap, with four bytes for the length of each.
pub const VALUES_OF_KEY_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Bytes that a connection's own thread converts or sorts. Other threads do more ([`COMPUTE_THREADS`]), because the
/// thread's other connections would wait.
pub const COMPUTE_INLINE_BYTES_MAX: usize = 64 * 1024;

/// Threads that convert large values and sort large responses, for all connections together.
pub const COMPUTE_THREADS: usize = 4;

/// Queries that a server executes at the same time. Others wait in the order of their arrival. Each may hold
/// [`consort_query::limits::HELD_MAX`].
pub const CONCURRENT_QUERIES: usize = 16;

/// Bytes of a client's query with its parameters.
pub const QUERY_REQUEST_BYTES_MAX: usize = 2 * 1024 * 1024;

/// The time from a query's request to its response. Clients have long stopped waiting by then.
pub const QUERY_TIME_MAX: Duration = Duration::from_secs(5 * 60);

/// Open streams of one connection: an application has one connection per server, and each of its threads may read or write
/// a value.
pub const STREAMS_MAX: usize = 128;

/// The idle time after which a stream is dropped, with the bytes that were written to it. As in Infinispan.
pub const STREAM_IDLE_MAX: Duration = Duration::from_secs(5 * 60);

/// Bytes of a piece that is read from a stream: as much as may wait to be written to a client.
pub const PIECE_BYTES_MAX: usize = UNWRITTEN_MAX;

/// The size in bytes from which on a value written in pieces gets capacity for the largest value. Otherwise it would be
/// moved at each doubling, up to 32 MB in one step, for which the whole connection waits. Memory that is not written costs
/// only addresses.
pub const FULL_CAPACITY_FROM: usize = 256 * 1024;

/// Values that have such a capacity at the same time: 4 GiB of addresses. Others grow step by step.
pub const FULL_CAPACITY_VALUES_MAX: usize = 64;

/// Bytes of a completed value in pieces that its connection itself moves to trim its capacity: other requests wait 0.1 ms
/// for that. Another thread moves larger ones.
pub const INLINE_COPY_MAX: usize = 1024 * 1024;

/// The time that a transaction that prepares, or a write in a transactional cache, waits for a locked key: less than
/// clients wait for a response.
pub const LOCK_TIME_MAX: Duration = Duration::from_secs(1);

/// The time for which a write of one key keeps its lock if its server goes: longer than any operation takes.
pub const LOCK_LEASE: Duration = Duration::from_secs(60);

/// Tracked transactions: those in progress, and those that ended at most a minute ago unless their clients have forgotten
/// them. More than a thousand per second.
pub const TRANSACTIONS_MAX: u64 = 100_000;

/// Bytes of the pending writes of all these transactions. Every server has them.
pub const TRANSACTIONS_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Bytes of keys and values that a transaction changes in one cache: they are sent to all servers as one value.
pub const TRANSACTION_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The time that a transaction may wait for its decision, with locked keys, whatever its client requests.
pub const DECISION_TIME_MAX: Duration = Duration::from_secs(10 * 60);

/// The time that a server may take to prepare a transaction. Then it is rolled back.
pub const PREPARE_TIME_MAX: Duration = Duration::from_secs(60);

/// The time after the last sign of a server that has gone after which other servers complete its decided transactions: by
/// then its earlier messages have arrived, or are refused.
pub const TAKE_OVER_AFTER: Duration = Duration::from_secs(15);

/// The time that a live server may take to write a decided transaction. Then other servers do it.
pub const FINISH_TIME_MAX: Duration = Duration::from_secs(5 * 60);

/// The time for which the outcome of a completed transaction is kept. As in Infinispan.
pub const COMPLETED_RETENTION: Duration = Duration::from_secs(60);

/// The interval of the search for abandoned transactions.
pub const REAP_INTERVAL: Duration = Duration::from_secs(5);

/// The time for a degraded cache to become available at the operator's request. A member that has not reacted by then may
/// be gone.
pub const AVAILABLE_TIMEOUT: Duration = Duration::from_secs(10);

/// The time that the response to a cache's creation waits for servers without the cache. A server that has stopped
/// responding is excluded in about that time, and clients wait longer.
pub const ROLLOUT_TIMEOUT: Duration = Duration::from_secs(5);

/// The same for servers that still have a removed cache.
pub const REMOVAL_TIMEOUT: Duration = ROLLOUT_TIMEOUT;

/// Bytes of an entity that becomes JSON: one of small fields takes twenty times as much memory during the conversion.
pub const ENTITY_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Bytes of the JSON of an entity, in both directions: names in the schema may be long, and occur repeatedly.
pub const ENTITY_JSON_MAX: usize = 16 * 1024 * 1024;

/// The nesting depth of messages within an entity that becomes JSON: JSON is read to a depth of 128, and repeated messages
/// take two levels.
pub const ENTITY_NESTING_MAX: usize = 60;
