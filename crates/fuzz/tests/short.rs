//! A short run of every target, the same every time. `cargo xtask fuzz` runs them for longer.

use consort_fuzz::{driver, target};

/// Inputs per decoder, and packets per stack.
const INPUTS: u64 = 20_000;
const PACKETS: u64 = 2_000;

#[track_caller]
fn hold(name: &str, runs: u64) {
    let target = target(name).unwrap();
    let score = driver::run(target, runs, 7).unwrap_or_else(|broken| {
        let hex: String = broken.input.iter().map(|byte| format!("{byte:02x}")).collect();
        panic!("cargo xtask fuzz --target {name} --seed {} --input {}\n{hex}", broken.seed, broken.nth)
    });
    assert!(score.seen.given >= runs);
    // Mutations that leave no decodable input would test the first length only.
    assert!(score.seen.accepted * 20 >= runs, "{score:?}");
}

macro_rules! targets {
    ($($test:ident: $name:literal, $runs:expr;)+) => {
        $(
            /// S000-67
            #[test]
            fn $test() {
                hold($name, $runs);
            }
        )+

        #[test]
        fn no_target_is_left_out() {
            let tested = [$($name),+];
            assert!(consort_fuzz::TARGETS.iter().all(|target| tested.contains(&target.name)));
        }
    };
}

targets! {
    packets_hold: "packet", INPUTS;
    messages_hold: "message", INPUTS;
    headers_hold: "header", INPUTS;
    objects_hold: "object", INPUTS;
    discovery_holds: "ping-data", INPUTS;
    frames_of_routers_hold: "gossip", INPUTS;
    views_and_digests_hold: "view-and-digest", INPUTS;
    views_hold: "view", INPUTS;
    key_stores_hold: "key-store", INPUTS;
    join_responses_hold: "join-rsp", INPUTS;
    key_blocks_hold: "key-block", INPUTS;
    key_responses_hold: "key-response", INPUTS;
    messages_of_counters_hold: "counter", INPUTS;
    states_of_fork_channels_hold: "fork-state", INPUTS;
    address_lists_hold: "address-list", INPUTS;
    socket_addresses_hold: "socket-addresses", INPUTS;
    method_calls_hold: "method-call", INPUTS;
    calls_of_uperf_hold: "uperf-call", INPUTS;
    primitives_hold: "primitive", INPUTS;
    exceptions_hold: "exception", INPUTS;
    frames_of_fd_sock2_hold: "fd-sock-frame", INPUTS;
    connections_hold: "connection", INPUTS;
    captures_hold: "capture", INPUTS / 4;
    probe_requests_hold: "probe", INPUTS / 10;
    configurations_hold: "config", INPUTS / 4;
    sites_hold: "sites", INPUTS;
    variables_hold: "variables", INPUTS;
    values_hold: "values", INPUTS;
    interface_selectors_hold: "bind-addr", INPUTS / 4;
    files_of_members_hold: "ping-file", INPUTS;
    rows_of_members_hold: "ping-row", INPUTS;
    frames_of_the_grid_hold: "grid-frame", INPUTS / 4;
    requests_of_hot_rod_hold: "hotrod-request", INPUTS;
    responses_of_hot_rod_hold: "hotrod-response", INPUTS;
    requests_in_http_hold: "http", INPUTS;
    values_of_multimaps_hold: "bucket", INPUTS;
    values_of_media_types_hold: "media", INPUTS;
    definitions_of_caches_hold: "definition", INPUTS / 4;
    schemas_hold: "schema", INPUTS / 4;
    queries_hold: "query", INPUTS;
    what_owners_are_told_of_queries_holds: "query-plan", INPUTS;
    messages_of_sasl_hold: "sasl", INPUTS;
    files_of_users_hold: "users-file", INPUTS / 40;
    properties_of_users_hold: "properties", INPUTS / 40;
    files_of_servers_hold: "server-file", INPUTS / 4;
    tokens_hold: "token", INPUTS / 4;
    texts_of_pem_hold: "pem", INPUTS / 40;
    certificates_hold: "certificate", INPUTS;
    uris_of_clients_hold: "uri", INPUTS;
    queries_in_json_hold: "json-query", INPUTS;
    entries_of_backups_hold: "backup-entry", INPUTS;
    records_in_caches_hold: "record", INPUTS;
    parameters_of_filters_hold: "filter", INPUTS / 4;
    files_of_stores_hold: "store-file", INPUTS / 40;
    connections_to_a_server_hold: "server-connection", INPUTS / 40;
    a_cluster_on_tcp_holds: "stack-tcp", PACKETS;
    a_cluster_on_udp_holds: "stack-udp", PACKETS;
    a_cluster_with_acknowledged_multicasts_holds: "stack-tcp-new", PACKETS;
    a_cluster_with_a_sequencer_holds: "stack-sequencer", PACKETS;
}
