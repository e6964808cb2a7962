//! Limits of the resources that clients can use.

use std::time::Duration;

/// Bytes that all clients make a server hold besides entries, without [`crate::ServerBuilder::memory`]: some of the largest
/// values on their way in and out.
pub const CLIENTS_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// The time that a request waits for capacity before it fails.
pub const RESERVE_TIME_MAX: Duration = Duration::from_secs(30);

/// The fixed part of the time for a request to arrive, or for responses to be read.
pub const TRANSFER_TIME_MIN: Duration = Duration::from_secs(30);

/// The least rate at which a client has to send and read, in bytes/s: 2 Mbit/s. The server closes slower connections.
pub const TRANSFER_RATE_MIN: u32 = 256 * 1024;

/// Responses with many entries of one connection that are not read yet.
pub const LARGE_RESPONSES_MAX: usize = 64;

/// Requests of one connection that read a whole cache at a time (SIZE, BULK_GET, queries, new listeners and others), for each
/// processor. More would fill the queues of all threads, so that other connections wait.
pub const SCANS_PER_PROCESSOR: usize = 2;

/// Bytes of one connection's unanswered requests, without large ones. Beyond it, nothing is read from the connection.
pub const UNANSWERED_MAX: usize = 4 * 1024 * 1024;

/// The size in bytes from which on a request's bytes are reserved before they are read.
pub const LARGE_REQUEST_BYTES: usize = READ_BYTES;

/// Expected bytes of one connection's responses. Beyond it, no request is started.
pub const EXPECTED_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Bytes that a response is expected to have at first.
pub const EXPECTED_BYTES_INITIAL: usize = 64 * 1024;

/// Connections at a time. Each has a task, some KiB of buffers and a descriptor. The benchmark has 10,000 idle connections.
pub const CONNECTIONS_MAX: usize = 16_384;

/// Connections that authenticated clients leave free, at most a quarter of all.
pub const CONNECTIONS_RESERVED: usize = 256;

/// Connections from one address by default: a quarter of [`CONNECTIONS_MAX`]. This host is unlimited, because a local proxy has
/// connections for many clients.
pub const CONNECTIONS_PER_ADDRESS_MAX: usize = 4_096;

/// Descriptors of the process for files and other members.
pub const DESCRIPTORS_RESERVED: u64 = 1_024;

/// Connections on the health port. One more closes the oldest one.
pub const HEALTH_CONNECTIONS_MAX: usize = 64;

/// Connections that wait to be accepted, when another server's clients reconnect at once; the next client tries again a second
/// later. The system may allow less.
pub const ACCEPT_BACKLOG: u32 = 4_096;

/// Bytes of a connection before its first request or its authentication.
pub const PREAUTH_BYTES_MAX: usize = 64 * 1024;

/// Bytes of all such connections, each counted with [`PREAUTH_BYTES_MAX`], at most half of the clients' memory. One more closes
/// the oldest one of the address that has the most.
pub const PREAUTH_TOTAL_BYTES_MAX: u64 = 128 * 1024 * 1024;

/// The minimum age of such a connection that is closed for another one. Until then clients wait in the system's queue
/// ([`ACCEPT_BACKLOG`]), so that the first handshakes of thousands complete.
pub const PREAUTH_AGE_MIN: Duration = Duration::from_secs(1);

/// Such connections that are possible even if authenticated clients hold all their memory.
pub const PREAUTH_CONNECTIONS_MIN: usize = 64;

/// The time from a client's connection to its first request, or until the client is authenticated.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of a request before authentication. Tokens have to fit into an HTTP header. With read-ahead, response and TLS record,
/// that is less than [`PREAUTH_BYTES_MAX`].
pub const CREDENTIALS_BYTES_MAX: usize = 16 * 1024;

/// Fields in the head of an HTTP request. Monitoring programs send ten.
pub const HTTP_HEADERS_MAX: usize = 64;

/// The idle time of an HTTP connection. Prometheus sends one request per minute by default.
pub const HTTP_IDLE_MAX: Duration = Duration::from_secs(75);

/// The time that an HTTP client has to close a connection.
pub const HTTP_LINGER_MAX: Duration = Duration::from_secs(1);

/// Failed authentications on one connection.
pub const AUTH_FAILURES_MAX: usize = 3;

/// The server's cores per concurrently hashed password, which costs much CPU by design.
pub const PASSWORD_THREADS_SHARE: usize = 2;

/// How long a verified password needs no hashing: short enough for a secret in memory.
pub const PASSWORD_CACHE_TIME: Duration = Duration::from_secs(5 * 60);

/// Requests of one connection that wait for other members. Beyond it, nothing is read. A client that pipelines has a few
/// hundred.
pub const WAITING_MAX: usize = 4_096;

/// Bytes that wait to be written to a client. Beyond it, nothing is read from it.
pub const UNWRITTEN_MAX: usize = 1024 * 1024;

/// Bytes that are read at a time, which bounds the requests that are started before responses are written.
pub const READ_BYTES: usize = 64 * 1024;

/// Bytes of the largest value that another server sends without a reservation here.
pub const UNRESERVED_BYTES_MAX: u32 = 64 * 1024;

/// The same for all values of a request for many keys.
pub const GET_ALL_UNRESERVED_MAX: usize = 16 * 1024 * 1024;

/// Bytes that an iterating request reserves for owners' entries: more than four responses of 1 MiB, and as much as two values of
/// 64 MiB.
pub const ITERATION_BYTES_MAX: u64 = 128 * 1024 * 1024;

/// Iterating requests at a time even with little memory.
pub const CONCURRENT_ITERATIONS_MIN: u64 = 4;

/// Bytes of one response with many entries. Clients have to iterate over larger caches.
pub const RESPONSE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Expected bytes of the values that a request for many keys reads at once.
pub const GET_ALL_BYTES: usize = 4 * 1024 * 1024;

/// Open iterations of one connection: each thread of an application may iterate. Each holds some hundred entries.
pub const ITERATIONS_MAX: usize = 128;

/// The idle time after which an iteration may be closed, as in Infinispan.
pub const ITERATION_IDLE_MAX: Duration = Duration::from_secs(5 * 60);

/// Entries of one batch; Java requests 10,000 from all servers together.
pub const BATCH_MAX: usize = 10_000;

/// Bytes of keys and values from which on a batch is complete.
pub const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Segments that are iterated over, and reported as finished, together. Each group costs one request to every owner.
pub const SEGMENTS_PER_GROUP: usize = 16;

/// Listeners of one connection. Consort's client has one connection to each server for all of them.
pub const LISTENERS_MAX: usize = 1_024;

/// Events that wait for a listener's connection in the grid. One more, or 16 MiB of keys and values, closes the connection.
pub const EVENTS_MAX: usize = 4_096;

/// Events that wait for a connection's output.
pub const UNSENT_EVENTS_MAX: usize = 256;

/// Bytes of such events. Bytes beyond that are reserved in the budget `events`.
pub const UNSENT_BYTES_MAX: usize = 64 * 1024;

/// The time that an event waits for capacity before the connection is closed.
pub const UNREAD_EVENT_TIMEOUT: Duration = Duration::from_secs(30);

/// How long the response to a counter's change waits for its event: many times as long as an event takes.
pub const COUNTER_EVENT_TIMEOUT: Duration = Duration::from_millis(100);

/// Bits of all filters of a connection's near caches: those of 4 million entries, in 2 MiB.
pub const BLOOM_BITS_MAX: u32 = consort_hotrod::bloom::BLOOM_BITS_MAX;

/// Counters of all clients, whose names are sent in one response. Removed ones count, as they stay defined in Infinispan, until
/// their names are freed at the limit.
pub const COUNTERS_MAX: usize = 10_000;

/// The number of counters from which on the log warns: 80 % of the limit.
pub const COUNTERS_WARNING_FROM: usize = COUNTERS_MAX / 10 * 8;

/// The time that the metrics wait for the cluster's number of counters.
pub const COUNTERS_COUNT_TIMEOUT: Duration = Duration::from_secs(1);

/// The interval of attempts to free removed counters at the limit.
pub const COUNTERS_FREE_INTERVAL: Duration = Duration::from_secs(1);

/// Bytes of a counter's name.
pub const COUNTER_NAME_MAX: usize = 1_024;

/// Counters of which one listener gets events.
pub const COUNTERS_PER_LISTENER_MAX: usize = 1_000;

/// Connections in one response about them: some 250 bytes each. Clients ask for the next page.
pub const CLIENTS_PER_PAGE: usize = 1_000;

/// Unprocessed changes of definitions and servers. With one more, all are read again.
pub const PENDING_CHANGES_MAX: usize = 256;

/// Caches, aliases and templates of clients. Each cache costs every member its segments.
pub const CACHES_MAX: usize = 1_000;

/// Bytes of the name of a cache, alias or template.
pub const CACHE_NAME_MAX: usize = 1_024;

/// Bytes of a cache's definition. Real ones have some KiB.
pub const DEFINITION_BYTES_MAX: usize = 1024 * 1024;

/// The memory for reading a definition, as a multiple of its text at most.
pub const DEFINITION_COST: usize = 64;

/// Bytes of a definition that the connection's own task reads, in some hundred microseconds.
pub const DEFINITION_INLINE_MAX: usize = 16 * 1024;

/// The interval of attempts to open a failed cache. Opening a store reads all of its files.
pub const REOPEN_INTERVAL: Duration = Duration::from_secs(10);

/// The interval at which the log repeats the failure.
pub const REOPEN_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Aliases of one cache.
pub const ALIASES_MAX: usize = 64;

/// Bytes of a cache's name within the name of its directory.
pub const NAME_IN_DIRECTORY_MAX: usize = 64;

/// Entries that a query removes at the same time.
pub const CONCURRENT_DELETES: usize = 256;

/// Schemas. A change of one checks all of them.
pub const SCHEMAS_MAX: usize = 1_000;

/// Bytes of a schema. Real ones have some KiB.
pub const SCHEMA_BYTES_MAX: usize = 1024 * 1024;

/// Bytes of all schemas together.
pub const SCHEMAS_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Punctuation marks in all schemas, which bound a compilation's memory and time: each field, message, value or option has one or
/// two, and needs some KiB when compiled.
pub const SCHEMAS_PUNCTUATION_MAX: usize = 50_000;

/// The depth of brackets in a schema: the parser needs stack for each level.
pub const SCHEMA_NESTING_MAX: usize = 64;

/// The time after which a start logs the servers that it waits for.
pub const STARTUP_LOG_AFTER: Duration = Duration::from_secs(5);

/// The interval of these lines.
pub const STARTUP_LOG_INTERVAL: Duration = Duration::from_secs(30);

/// The interval at which a waiting start checks its recovery timeout.
pub const RECOVERY_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Keys and values below this size are copied, so that they do not keep all received bytes in memory.
pub const COPIED_BELOW: usize = 16 * 1024;

/// Failed logins of a name or an address without a delay.
pub const LOGIN_FAILURES_FREE: u32 = 10;

/// The delay of the next response. Each further failure doubles it.
pub const LOGIN_DELAY_FIRST: Duration = Duration::from_millis(100);

/// The maximum delay: less than half of the time for a login, so that a right password is in time.
pub const LOGIN_DELAY_MAX: Duration = Duration::from_secs(4);

/// The time after which the number of failures is halved.
pub const LOGIN_FAILURES_HALVED_AFTER: Duration = Duration::from_secs(60);

/// Names, addresses, and pairs of both whose failed logins are counted: 32 bytes each.
pub const LOGINS_TRACKED: usize = 4_096;

/// Cores per thread for unauthenticated clients; there is at least one thread.
pub const HANDSHAKE_THREADS_SHARE: usize = 4;

/// Connections that are handled before other tasks run: some microseconds each.
pub const ACCEPT_BATCH_MAX: usize = 16;

/// The time to inform the other servers of this one's end.
pub const WITHDRAW_TIME_MAX: Duration = Duration::from_secs(2);

/// The time that an ending server executes requests while its clients move to other servers. Clients without topologies stay to
/// the end.
pub const MOVE_TIME_MAX: Duration = Duration::from_secs(5);

/// The idle time after which an ending server closes a connection. A client that sends more often learns the other servers.
pub const IDLE_BEFORE_CLOSE: Duration = Duration::from_millis(500);

/// The same when no request is started any more: many times as long as a request is on its way.
pub const IDLE_BEFORE_LAST_CLOSE: Duration = Duration::from_millis(100);

/// The time for which requests are refused before a connection is closed.
pub const REFUSE_TIME_MAX: Duration = Duration::from_secs(1);

/// The time for the client to close its direction, too: with unread bytes the connection would be reset, and responses might be
/// lost.
pub const CLOSE_LINGER_MAX: Duration = Duration::from_secs(1);

/// The time for requests in progress at the end.
pub const DRAIN_TIME_MAX: Duration = Duration::from_secs(10);

/// The idle time after which the system probes a client, so that a vanished one is detected after two minutes.
pub const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);

/// The interval of the probes.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// Probes without a response before the connection ends.
pub const KEEPALIVE_ATTEMPTS: u32 = 6;

/// The pause of a server that is out of descriptors.
pub const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// Values of one key of a multimap. A change rewrites all of them, in some milliseconds.
pub const VALUES_OF_KEY_MAX: usize = 100_000;

/// Bytes of all values of one key of a multimap, with four bytes for the length of each.
pub const VALUES_OF_KEY_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Bytes that a connection's own thread converts or sorts, so that other connections do not wait; other threads do more
/// ([`COMPUTE_THREADS`]).
pub const COMPUTE_INLINE_BYTES_MAX: usize = 64 * 1024;

/// Threads for large conversions and sorts of all connections.
pub const COMPUTE_THREADS: usize = 4;

/// Queries at the same time. Each may hold [`consort_query::limits::HELD_MAX`].
pub const CONCURRENT_QUERIES: usize = 16;

/// Bytes of a client's query with its parameters.
pub const QUERY_REQUEST_BYTES_MAX: usize = 2 * 1024 * 1024;

/// The time of a query. Clients have long stopped waiting by then.
pub const QUERY_TIME_MAX: Duration = Duration::from_secs(5 * 60);

/// Open streams of one connection: each thread of an application may read or write a value.
pub const STREAMS_MAX: usize = 128;

/// The idle time after which a stream and its bytes are dropped, as in Infinispan.
pub const STREAM_IDLE_MAX: Duration = Duration::from_secs(5 * 60);

/// Bytes of a piece that is read from a stream.
pub const PIECE_BYTES_MAX: usize = UNWRITTEN_MAX;

/// The size in bytes from which on a value written in pieces gets capacity for the largest value. Otherwise it would be moved at
/// each doubling, up to 32 MB in one step, while the connection waits. Unwritten memory costs only addresses.
pub const FULL_CAPACITY_FROM: usize = 256 * 1024;

/// Values with such a capacity: 4 GiB of addresses. Others grow step by step.
pub const FULL_CAPACITY_VALUES_MAX: usize = 64;

/// Bytes of a completed value that its connection itself moves to trim its capacity: other requests wait 0.1 ms.
pub const INLINE_COPY_MAX: usize = 1024 * 1024;

/// The interval in which a server publishes changed counts of its requests, as long as Infinispan keeps the sums of all servers.
pub const STATS_INTERVAL: Duration = Duration::from_secs(3);

/// The time for a degraded cache to become available at the operator's request.
pub const AVAILABLE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a cache's creation waits for servers without it. A server that has stopped responding is excluded in about that time,
/// and clients wait longer.
pub const ROLLOUT_TIMEOUT: Duration = Duration::from_secs(5);

/// The same for servers that still have a removed cache.
pub const REMOVAL_TIMEOUT: Duration = ROLLOUT_TIMEOUT;

/// Bytes of an error's text. Clients with the default [`Limits`](consort_hotrod::Limits) accept 64 KiB.
pub const ERROR_TEXT_MAX: usize = 64 * 1024;

/// The interval in which a request to change rebalancing or to stop the cluster looks whether the coordinator has applied it.
pub const APPLIED_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// Bytes of an entity that becomes JSON, which takes twenty times as much memory for small fields.
pub const ENTITY_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Bytes of the JSON of an entity: names in the schema may be long, and occur repeatedly.
pub const ENTITY_JSON_MAX: usize = 16 * 1024 * 1024;

/// The nesting depth of such an entity: JSON is read to a depth of 128, and repeated messages take two levels.
pub const ENTITY_NESTING_MAX: usize = 60;
