//! The table of targets.

use crate::mutate::Shape;
use crate::seen::Seen;
use crate::{
    edges, grid, hotrod, identity, key_store, query, records, rounds, sasl, server, server_connection,
    store_files, texts, tools, wire,
};

/// A reader of foreign bytes.
pub struct Target {
    /// Its name on command lines.
    pub name: &'static str,
    /// The kind of its input.
    pub what: &'static str,
    /// Reads an input, and panics if a rule is broken.
    pub run: fn(&[u8]) -> Seen,
    /// Real inputs.
    pub corpus: fn() -> Vec<Vec<u8>>,
    /// How inputs are mutated.
    pub shape: Shape,
}

const fn reads(
    name: &'static str,
    what: &'static str,
    run: fn(&[u8]) -> Seen,
    corpus: fn() -> Vec<Vec<u8>>,
) -> Target {
    Target { name, what, run, corpus, shape: Shape::Bytes }
}

impl Target {
    const fn shaped(self, shape: Shape) -> Self {
        Self { shape, ..self }
    }
}

/// All targets.
pub const TARGETS: &[Target] = &[
    reads(
        "packet",
        "transport payloads and UDP datagrams: single messages and lists",
        wire::packet,
        wire::packets,
    ),
    reads(
        "message",
        "messages of all types without envelope, as fragments and wrappers carry them",
        wire::message,
        wire::messages,
    ),
    reads("header", "headers of all protocols", wire::header, wire::headers),
    reads(
        "object",
        "objects and values: addresses, views, digests, lists of seqnos, primitives",
        wire::object,
        wire::objects,
    ),
    reads("ping-data", "discovery's payload", wire::ping_data, wire::ping_datas),
    reads("gossip", "messages between members and routers", wire::gossip, wire::gossips),
    reads(
        "view-and-digest",
        "GMS' payload of view and digest",
        wire::view_and_digest,
        wire::views_and_digests,
    ),
    reads("view", "MERGE3's payload, and view ids", wire::view, wire::views),
    reads("join-rsp", "a coordinator's response to a joiner", wire::join_rsp, wire::join_rsps),
    reads("key-block", "keys in front of ASYM_ENCRYPT's payloads", wire::key_block, wire::key_blocks),
    reads("key-response", "keys of SSL_KEY_EXCHANGE's servers", wire::key_response, wire::key_responses),
    reads("counter", "requests and responses of COUNTER", wire::counter, wire::counters),
    reads("fork-state", "states of a channel and its fork channels", wire::fork_state, wire::fork_states),
    reads("address-list", "lists of addresses", wire::address_list, wire::address_lists),
    reads(
        "socket-addresses",
        "addresses of FD_SOCK's server sockets",
        wire::socket_address_list,
        wire::socket_address_lists,
    ),
    reads("method-call", "calls of RpcDispatcher", wire::method_call, wire::method_calls),
    reads("uperf-call", "calls of JGroups' UPerf", wire::uperf_call, wire::uperf_calls),
    reads("primitive", "return values of calls", wire::primitive, wire::primitives),
    reads("exception", "failures of state transfer and of calls", wire::exception, wire::exceptions),
    reads(
        "fd-sock-frame",
        "FD_SOCK2's frames on connections of its own, and MPING's datagrams",
        wire::frame,
        wire::frames,
    ),
    reads(
        "connection",
        "a TCP connection from its first byte: set-up, frames, packets",
        edges::connection,
        edges::connections,
    ),
    reads("capture", "pcap files and hex texts of consort parse", tools::capture, tools::captures),
    reads("probe", "requests of probe, with operations and attributes", tools::probe, tools::requests)
        .shaped(Shape::Text),
    reads("config", "XML stacks, down to layers that are made and started", texts::config, texts::configs)
        .shaped(Shape::Text),
    reads(
        "sites",
        "sites with their bridges and forwards, in files of their own and in stacks",
        texts::sites,
        texts::some_sites,
    )
    .shaped(Shape::Text),
    reads("variables", "texts with variables", texts::variables, texts::texts_with_variables)
        .shaped(Shape::Text),
    reads("values", "durations, sizes, numbers, hosts, versions", texts::values, texts::some_values)
        .shaped(Shape::Text),
    reads("bind-addr", "selectors of interfaces", texts::bind_addr, texts::bind_addrs).shaped(Shape::Text),
    reads("ping-file", "files of FILE_PING", texts::ping_file, texts::ping_files).shaped(Shape::Text),
    reads("ping-row", "URLs, statements and rows of JDBC_PING2", texts::ping_row, texts::ping_rows)
        .shaped(Shape::Text),
    reads("grid-frame", "a member of the grid under mutated frames of another", grid::frame, grid::frames),
    reads(
        "hotrod-request",
        "requests of Hot Rod clients, of all versions",
        hotrod::request,
        hotrod::requests,
    ),
    reads(
        "hotrod-response",
        "responses and events of Hot Rod servers, of all versions",
        hotrod::response,
        hotrod::responses,
    ),
    reads("http", "requests in HTTP on a server's port", server::http, server::requests).shaped(Shape::Text),
    reads("bucket", "the values of a multimap's key", server::bucket, server::buckets),
    reads("media", "values that become values of another media type", server::convert, server::media),
    reads("definition", "definitions of caches", server::definition, server::definitions).shaped(Shape::Text),
    reads("server-file", "whole files of a server", server::server_file, server::server_files)
        .shaped(Shape::Text),
    reads(
        "properties",
        "users and groups in Infinispan's properties",
        server::properties,
        server::property_files,
    )
    .shaped(Shape::Text),
    reads("schema", "schemas of protobuf", server::schema, server::schemas).shaped(Shape::Text),
    reads("query", "queries in Ickle, down to the plans of owners", query::query, query::queries)
        .shaped(Shape::Text),
    reads("query-plan", "plans of queries, requests and responses", query::plan, query::plans),
    reads("sasl", "messages of SASL's mechanisms, and verifiers", sasl::message, sasl::messages)
        .shaped(Shape::Text),
    reads("users-file", "files of users with roles and secrets", identity::users, identity::user_files)
        .shaped(Shape::Text),
    reads("token", "JSON Web Tokens whose header and claims are signed", identity::token, identity::tokens)
        .shaped(Shape::Text),
    reads("pem", "certificates and keys in PEM", identity::pem, identity::pems).shaped(Shape::Text),
    reads("certificate", "certificates in DER", identity::certificate, identity::certificates),
    reads("key-store", "key stores of encryption layers", key_store::store, key_store::stores),
    reads("uri", "URIs of Hot Rod clients", identity::uri, identity::uris).shaped(Shape::Text),
    reads("json-query", "queries in JSON", records::json_query, records::json_queries).shaped(Shape::Text),
    reads("record", "records of counters and transactions in caches", records::record, records::records),
    reads("backup-entry", "entries of archives", records::backup_entry, records::backup_entries),
    reads("filter", "parameters of filters and of their queries", records::filter, records::filters),
    reads("store-file", "a store with a file that was replaced", store_files::file, store_files::files),
    reads(
        "server-connection",
        "a connection to a running server, from its first byte to its last",
        server_connection::connection,
        server_connection::connections,
    ),
    reads("stack-tcp", "a cluster on tcp.xml under mutated traffic", rounds::tcp, rounds::none)
        .shaped(Shape::Round),
    reads("stack-udp", "a cluster on udp.xml under mutated traffic", rounds::udp, rounds::none)
        .shaped(Shape::Round),
    reads(
        "stack-tcp-new",
        "a cluster on tcp-new.xml with MPING and RSVP under mutated traffic",
        rounds::tcp_new,
        rounds::none,
    )
    .shaped(Shape::Round),
    reads(
        "stack-sequencer",
        "a cluster on sequencer.xml under mutated traffic",
        rounds::sequencer,
        rounds::none,
    )
    .shaped(Shape::Round),
];

/// Returns the target of a name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
