//! JGroups' attributes that no part of Consort reads: those that change nothing here, with the reason, and those whose
//! effect is missing, which are refused with an alternative.

/// Why no part reads an attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnusedAttribute {
    /// It changes nothing here by its nature.
    NoEffect(&'static str),
    /// Its effect is missing. Values other than these are refused.
    Refused {
        /// Values that ask for nothing.
        accepted: &'static [&'static str],
        /// The alternative.
        alternative: &'static str,
    },
}

use UnusedAttribute::{NoEffect, Refused};

/// Attributes of these protocols. `*` stands for all protocols.
type Row = (&'static [&'static str], &'static [&'static str], UnusedAttribute);

const ALL: &[&str] = &["*"];
const TRANSPORTS: &[&str] = &["TCP", "TCP_NIO2", "UDP", "SHARED_LOOPBACK", "TUNNEL"];
const STREAMS: &[&str] = &["TCP", "TCP_NIO2"];
const SOCKETS: &[&str] = &["TCP", "TCP_NIO2", "UDP"];
const DISCOVERIES: &[&str] = &[
    "PING",
    "TCPPING",
    "TCPGOSSIP",
    "DNS_PING",
    "KUBE_PING",
    "MPING",
    "FILE_PING",
    "JDBC_PING2",
    "LOCAL_PING",
    "SHARED_LOOPBACK_PING",
];
const MULTICASTS: &[&str] = &["NAKACK2", "NAKACK3", "NAKACK4"];
const RETRANSMISSIONS: &[&str] = &["NAKACK2", "NAKACK3", "NAKACK4", "UNICAST3", "UNICAST4"];

const JAVA_CLASS: &str = "Java classes are not supported";
const BUNDLER: &str =
    "the bundler packs the messages of one cycle at once; it has neither a queue nor a thread";
const THREADS: &str = "a member runs on one task; it has no pools of threads";
const LOG: &str = "the log has its own limits: repeated warnings of one cause are one line a minute";
const COUNTED: &str = "counters are always on";
const STORE: &str = "certificates and keys are PEM files, which have no password, type or alias";

/// Every attribute that no part reads.
const ROWS: &[Row] = &[
    (ALL, &["after_creation_hook", "policies"], Refused { accepted: &[""], alternative: JAVA_CLASS }),
    (ALL, &["ergonomics"], NoEffect("no property is tuned at run time, and JGroups tunes none either")),
    (ALL, &["level"], NoEffect("CONSORT_LOG sets the levels of the log")),
    (ALL, &["preview_warning"], NoEffect(LOG)),
    (ALL, &["stats"], NoEffect(COUNTED)),
    (
        TRANSPORTS,
        &[
            "async_executor.enabled",
            "thread_naming_pattern",
            "thread_pool.delta",
            "thread_pool.enabled",
            "thread_pool.increase_max_size_dynamically",
            "thread_pool.keep_alive_time",
            "thread_pool.max_threads",
            "thread_pool.min_threads",
            "thread_pool.rejection_policy",
            "thread_pool.thread_dump_path",
            "thread_pool.thread_dumps_enabled",
            "thread_pool.thread_dumps_threshold",
            "thread_pool.thread_pool_full_suppress_time",
            "use_virtual_threads",
            "use_vthreads",
        ],
        NoEffect(THREADS),
    ),
    (
        TRANSPORTS,
        &[
            "bundler.capacity",
            "bundler.drop_when_full",
            "bundler.remove_delay",
            "bundler.remove_queue_capacity",
            "bundler.suppress_log_timeout",
            "bundler.use_ringbuffer",
            "bundler.use_single_sender_thread",
        ],
        NoEffect(BUNDLER),
    ),
    (
        TRANSPORTS,
        &["msg_processing_policy.max_buffer_size"],
        NoEffect("flow control bounds the messages that wait for delivery"),
    ),
    (TRANSPORTS, &["diag.bind_interfaces"], Refused { accepted: &[""], alternative: "set diag.bind_addr" }),
    (TRANSPORTS, &["local_transport_class"], Refused { accepted: &[""], alternative: JAVA_CLASS }),
    (
        TRANSPORTS,
        &[
            "log_discard_msgs",
            "log_discard_msgs_version",
            "suppress_time_different_cluster_warnings",
            "suppress_time_different_version_warnings",
        ],
        NoEffect(LOG),
    ),
    (
        TRANSPORTS,
        &[
            "logical_addr_cache_expiration",
            "logical_addr_cache_max_size",
            "logical_addr_cache_reaper_interval",
        ],
        NoEffect(
            "a former member's address is kept for 6 min, and at most 2000 addresses are, as in JGroups; a \
             discovery finds an address that is missing",
        ),
    ),
    (SOCKETS, &["bundler_num_spins", "bundler_wait_strategy"], NoEffect(BUNDLER)),
    (
        SOCKETS,
        &[
            "loopback_separate_thread",
            "spawn_thread_on_full_pool",
            "thread_pool.use_common_fork_join_pool",
            "thread_pool.use_fork_join_pool",
            "use_fibers",
        ],
        NoEffect(THREADS),
    ),
    (
        SOCKETS,
        &["loopback_copy"],
        NoEffect("a member's own messages are never changed after they are sent, with either value"),
    ),
    (TRANSPORTS, &["msg_stats.enabled"], NoEffect(COUNTED)),
    (
        TRANSPORTS,
        &["rtt.num_reqs", "rtt.oob", "rtt.size", "rtt.timeout"],
        NoEffect("members answer round-trip probes (rtt.enabled) and send none"),
    ),
    (TRANSPORTS, &["time_service_interval"], NoEffect("each cycle reads the clock once")),
    (
        &["TCP", "TCP_NIO2", "SHARED_LOOPBACK", "TUNNEL"],
        &["receive_interfaces", "receive_on_all_interfaces"],
        NoEffect("they concern multicast sockets, which this transport does not have"),
    ),
    (
        &["UDP", "MPING"],
        &["receive_on_all_interfaces"],
        Refused { accepted: &["false"], alternative: "set bind_addr to the interface of the members" },
    ),
    (
        &["UDP", "MPING"],
        &["receive_interfaces"],
        Refused { accepted: &[""], alternative: "set bind_addr to the interface of the members" },
    ),
    (
        &["MPING"],
        &["send_on_all_interfaces"],
        Refused { accepted: &["false"], alternative: "set bind_addr to the interface of the members" },
    ),
    (
        &["MPING"],
        &["bind_interface", "send_interfaces"],
        Refused { accepted: &[""], alternative: "set bind_addr to the interface of the members" },
    ),
    (
        &["UDP"],
        &["disable_loopback"],
        Refused {
            accepted: &["false"],
            alternative: "remove it: members of one host would not receive each other's multicasts",
        },
    ),
    (&["UDP"], &["suppress_time_out_of_buffer_space"], NoEffect(LOG)),
    (
        &["SHARED_LOOPBACK"],
        &["bind_addr", "external_addr", "external_port", "port_range"],
        NoEffect("the transport has no sockets"),
    ),
    (
        STREAMS,
        &["client_bind_addr"],
        Refused { accepted: &[""], alternative: "the system chooses the source address by its routes" },
    ),
    (
        STREAMS,
        &["client_bind_port"],
        Refused { accepted: &["0"], alternative: "the system chooses the port of outgoing connections" },
    ),
    (
        STREAMS,
        &["defer_client_bind_addr"],
        NoEffect("the system chooses the source address of outgoing connections, as with true"),
    ),
    (STREAMS, &["log_details"], NoEffect(LOG)),
    (STREAMS, &["use_acks"], NoEffect("JGroups ignores it, too")),
    (
        &["TCP"],
        &["buffered_input_stream_size", "buffered_output_stream_size", "use_lock_to_send"],
        NoEffect("connections have no streams of Java: each read and write takes all bytes that are ready"),
    ),
    (&["TCP"], &["log_accept_error"], NoEffect(LOG)),
    (
        &["TCP"],
        &["max_send_queue", "non_blocking_sends"],
        NoEffect("writes never block; send_queue_bytes bounds the queue of a peer"),
    ),
    (
        &["TCP_NIO2"],
        &["copy_on_partial_write", "max_send_buffers", "reader_idle_time", "use_direct_memory"],
        NoEffect(
            "connections have no buffers and selectors of Java; send_queue_bytes bounds the queue of a peer",
        ),
    ),
    (
        &["TUNNEL"],
        &["external_addr", "external_port", "who_has_cache_timeout"],
        NoEffect("members are reached through routers, by their member addresses"),
    ),
    (
        &["TUNNEL"],
        &["bind_port"],
        Refused { accepted: &["0"], alternative: "the system chooses the port of connections to routers" },
    ),
    (&["TUNNEL"], &["port_range"], NoEffect("JGroups sets it to 0, too")),
    (
        &["TUNNEL"],
        &["max_send_queue", "non_blocking_sends"],
        NoEffect("writes never block; send_queue_bytes bounds the queues of all routers"),
    ),
    (&["TUNNEL"], &["use_nio"], NoEffect("the bytes are the same, and no connection blocks")),
    (
        &["TUNNEL"],
        &["tls.client_auth"],
        NoEffect("members only open connections; the router's setting decides (--tls-client-ca)"),
    ),
    (
        &["TCP", "TUNNEL"],
        &[
            "tls.keystore_alias",
            "tls.keystore_password",
            "tls.keystore_type",
            "tls.truststore_password",
            "tls.truststore_type",
        ],
        NoEffect(STORE),
    ),
    (
        &["TCP", "TUNNEL"],
        &["tls.provider"],
        NoEffect("it names a library of Java; both sides speak the same TLS"),
    ),
    (
        &["TUNNEL"],
        &["tls.sni_matchers"],
        NoEffect("it concerns accepted connections, and members only open some"),
    ),
    (
        &["TCP"],
        &["tls.sni_matchers"],
        Refused { accepted: &[""], alternative: "require certificates of peers: tls.client_auth=\"need\"" },
    ),
    (
        DISCOVERIES,
        &["async_discovery", "async_discovery_use_separate_thread_per_request"],
        NoEffect("a discovery never blocks the member"),
    ),
    (
        DISCOVERIES,
        &["discovery_rsp_expiry_time"],
        NoEffect("responses are dropped as soon as their discovery ends"),
    ),
    (
        &["KUBE_PING"],
        &["clientKeyPassword"],
        Refused { accepted: &[""], alternative: "set clientKeyFile to a PEM file without password" },
    ),
    (&["KUBE_PING"], &["clientKeyAlgo"], NoEffect("the PEM file names the key's algorithm")),
    (DISCOVERIES, &["use_disk_cache"], NoEffect("it needs PDC, which is refused")),
    (
        &["FILE_PING"],
        &["register_shutdown_hook"],
        NoEffect("a member removes its file when it leaves, and the commands leave at SIGTERM"),
    ),
    (
        &["JDBC_PING2"],
        &["register_shutdown_hook"],
        NoEffect("a member removes its row when it leaves, and the commands leave at SIGTERM"),
    ),
    (&["JDBC_PING2"], &["clear_sql", "location"], NoEffect("JGroups ignores it, too")),
    (
        &["JDBC_PING2"],
        &["datasource_jndi_name"],
        Refused {
            accepted: &[""],
            alternative: "there is no JNDI: set connection_url, connection_username and connection_password",
        },
    ),
    (
        &["JDBC_PING2"],
        &["datasource_injecter_class"],
        Refused {
            accepted: &[""],
            alternative: "Java classes are not supported: set connection_url, connection_username and \
                          connection_password",
        },
    ),
    (&["TCPGOSSIP"], &["use_nio"], NoEffect("the bytes are the same, and no connection blocks")),
    (
        &["FD_SOCK"],
        &["cache_max_age", "cache_max_elements"],
        NoEffect("addresses of members that have left are removed at once, and at most 2000 are kept"),
    ),
    (
        &["FD_SOCK2"],
        &["linger"],
        Refused {
            accepted: &["-1"],
            alternative: "the transport's linger applies to FD_SOCK2's connections, too",
        },
    ),
    (&["FD_ALL"], &["use_time_service"], NoEffect("each cycle reads the clock once")),
    (
        &["VERIFY_SUSPECT"],
        &["use_icmp"],
        Refused { accepted: &["false"], alternative: "members answer over the transport" },
    ),
    (&["VERIFY_SUSPECT"], &["bind_addr"], NoEffect("it concerns ICMP, and use_icmp=\"true\" is refused")),
    (&["BARRIER"], &["flush_timeout"], NoEffect(THREADS)),
    (
        MULTICASTS,
        &["discard_delivered_msgs"],
        NoEffect(
            "only with xmit_from_random_member=\"true\" are delivered messages requested, and that is refused",
        ),
    ),
    (
        &["NAKACK2", "NAKACK3"],
        &["xmit_from_random_member"],
        Refused { accepted: &["false"], alternative: "set use_mcast_xmit_req: all members get the request" },
    ),
    (&["NAKACK4"], &["xmit_from_random_member"], NoEffect("JGroups ignores it, too")),
    (&["NAKACK4"], &["dynamic_buffers"], NoEffect("windows grow and shrink by themselves")),
    (MULTICASTS, &["log_discard_msgs", "suppress_time_non_member_warnings"], NoEffect(LOG)),
    (RETRANSMISSIONS, &["log_not_found_msgs"], NoEffect(LOG)),
    (
        RETRANSMISSIONS,
        &["max_batch_size", "reuse_message_batches"],
        NoEffect("they tune threads that share a window; a member has one task"),
    ),
    (
        &["NAKACK3", "NAKACK4", "UNICAST4"],
        &["send_atomically"],
        NoEffect("no thread sends while another one does; a member has one task"),
    ),
    (
        &["NAKACK2", "NAKACK3", "NAKACK4", "UNICAST3"],
        &[
            "xmit_table_max_compaction_time",
            "xmit_table_msgs_per_row",
            "xmit_table_num_rows",
            "xmit_table_resize_factor",
        ],
        NoEffect("windows have no rows; they grow and shrink by themselves"),
    ),
    (
        &["UNICAST3", "UNICAST4"],
        &["loopback"],
        NoEffect("the transport delivers a member's messages to itself at once, with either value"),
    ),
    (
        &["UNICAST3", "UNICAST4"],
        &["max_retransmit_time"],
        NoEffect("a connection to a member that has left is dropped after conn_close_timeout"),
    ),
    (&["UNICAST3", "UNICAST4"], &["xmits_enabled"], NoEffect("JGroups ignores it, too")),
    (
        &["STABLE"],
        &["send_stable_msgs_to_coord_only", "stability_delay"],
        NoEffect("the coordinator alone gathers the digests and multicasts at once, as in JGroups since 5.1"),
    ),
    (&["GMS"], &["max_leave_attempts"], NoEffect("JGroups ignores it, too")),
    (
        &["GMS"],
        &["membership_change_policy"],
        Refused {
            accepted: &[
                "",
                "org.jgroups.protocols.pbcast.GMS$DefaultMembershipPolicy",
                "GMS$DefaultMembershipPolicy",
            ],
            alternative: "Java classes are not supported: remove it, and set a policy with \
                          ChannelBuilder::membership_policy",
        },
    ),
    (
        &["GMS"],
        &["num_prev_mbrs"],
        NoEffect("it bounds a list of former members that JGroups shows to operators"),
    ),
    (&["GMS"], &["print_local_addr", "print_physical_addrs", "print_view_details"], NoEffect(LOG)),
    (
        &["SYM_ENCRYPT"],
        &["asym_algorithm", "asym_keylength", "sym_keylength"],
        NoEffect(
            "they concern generated keys, and SYM_ENCRYPT reads its key from a file; JGroups ignores them, too",
        ),
    ),
    (
        &["SYM_ENCRYPT"],
        &["cipher_pool_size", "key_map_max_size", "provider"],
        NoEffect("they tune Java's cipher objects; the bytes are the same"),
    ),
    (
        &["ASYM_ENCRYPT"],
        &["cipher_pool_size", "provider"],
        NoEffect("they tune Java's cipher objects; the bytes are the same"),
    ),
    (
        &["SSL_KEY_EXCHANGE"],
        &["session_verifier_class", "session_verifier_arg"],
        Refused {
            accepted: &[""],
            alternative: "Java classes are not supported: remove it, and trust only the members' own certificates or \
                          an authority that signs for this cluster alone (truststore_name)",
        },
    ),
    (
        &["DH_KEY_EXCHANGE"],
        &["secret_key_length"],
        NoEffect("the key has the length of sym_keylength of ASYM_ENCRYPT, which JGroups takes, too"),
    ),
    (
        &["SSL_KEY_EXCHANGE"],
        &["ssl_provider"],
        NoEffect("it names a provider of Java; the bytes are the same"),
    ),
    (
        &["AUTH"],
        &[
            "auth_token.client_password",
            "auth_token.client_principal_name",
            "auth_token.service_principal_name",
        ],
        NoEffect("they are attributes of a token that auth_class refuses"),
    ),
    (&["STATE"], &["max_pool", "pool_thread_keep_alive"], NoEffect(THREADS)),
    (&["STATE_SOCK"], &["pool_thread_keep_alive"], NoEffect(THREADS)),
    (&["STATE_SOCK"], &["buffer_size"], NoEffect("the state is written without a buffer in between")),
    (
        &["STATE_SOCK"],
        &["bind_interface"],
        Refused { accepted: &[""], alternative: "set bind_addr to match-interface:NAME" },
    ),
    (
        &["FORK"],
        &["config"],
        Refused {
            accepted: &[""],
            alternative: "fork stacks have no protocols of their own: remove it, and put the protocols in the stack \
                          of all members",
        },
    ),
    (
        &["RELAY2", "RELAY3"],
        &["site_master_picker_impl"],
        Refused {
            accepted: &["", "org.jgroups.protocols.relay.StickySiteMasterPicker"],
            alternative: "remove it: a member's messages always take the same site master, so that they keep their order",
        },
    ),
    (
        &["RELAY2"],
        &["can_forward_local_cluster"],
        Refused {
            accepted: &["false"],
            alternative: "it gives unicasts to random members: set max_site_masters, by which several members share \
                          the work",
        },
    ),
    (
        &["RELAY2", "RELAY3"],
        &["async_relay_creation"],
        NoEffect("bridges are opened in the background; no view waits for them"),
    ),
    (
        &["RELAY2"],
        &["delay_sites_down", "topo.global_views"],
        NoEffect("JGroups ignores it, too: it concerns RELAY3"),
    ),
    (&["RELAY2", "RELAY3"], &["suppress_time_no_route_errors"], NoEffect(LOG)),
    (
        &["RELAY3"],
        &["delay_site_unreachable_events"],
        NoEffect(
            "a message without a route is lost, and its sender hears of it at once; UNICAST3 above RELAY3, which \
                  would send it again, is refused",
        ),
    ),
    (&["RELAY2"], &["topo_wait_time"], NoEffect("members answer requests for topologies, and send none")),
    (&["COMPRESS"], &["pool_size"], NoEffect("there is no pool of compressors")),
    (
        &["SIZE2"],
        &["exception_on_missing_bucket"],
        Refused {
            accepted: &["false"],
            alternative: "end the boundaries with the largest size: no message fails",
        },
    ),
    (&["STATS"], &["mstats.enabled"], NoEffect(COUNTED)),
    (&["DISCARD"], &["gui"], NoEffect("there is no window; probe changes the attributes")),
    (&["NON_BLOCKING_SENDS"], &["fix", "verbose"], NoEffect("sends of a receiver never block")),
    (
        &["TIME"],
        &[
            "down_msgs",
            "num_batches",
            "num_batches_oob",
            "num_batches_reg",
            "num_down_msgs",
            "num_down_msgs_oob",
            "num_down_msgs_reg",
            "num_up_msgs",
            "num_up_msgs_oob",
            "num_up_msgs_reg",
            "up_batches",
            "up_msgs",
        ],
        NoEffect("they set the initial values of JGroups' counters"),
    ),
];

impl UnusedAttribute {
    /// Returns why no part reads this attribute of a protocol. `None`: a part reads it.
    pub fn of(protocol: &str, attribute: &str) -> Option<Self> {
        let is_row = |(protocols, attributes, _): &&Row| {
            (protocols.contains(&protocol) || *protocols == ALL) && attributes.contains(&attribute)
        };
        ROWS.iter().find(is_row).map(|(.., why)| *why)
    }

    /// Returns all rows: protocols, attributes and the reason. `*` stands for all protocols.
    pub fn rows() -> impl Iterator<Item = (&'static [&'static str], &'static [&'static str], Self)> {
        ROWS.iter().copied()
    }

    /// Returns why a value is refused, or `None` if it asks for nothing.
    pub(crate) fn refusal(self, value: &str) -> Option<&'static str> {
        match self {
            Refused { accepted, alternative } => {
                let value = value.trim();
                (!accepted.iter().any(|one| one.eq_ignore_ascii_case(value))).then_some(alternative)
            }
            NoEffect(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_that_asks_for_nothing_is_accepted() {
        let refusal = |protocol, attribute, value| {
            UnusedAttribute::of(protocol, attribute).expect("an unused attribute").refusal(value)
        };
        assert_eq!(refusal("VERIFY_SUSPECT", "use_icmp", " FALSE "), None);
        assert_eq!(refusal("VERIFY_SUSPECT", "use_icmp", "true"), Some("members answer over the transport"));
        assert_eq!(refusal("TCP", "thread_pool.max_threads", "200"), None);
        assert_eq!(UnusedAttribute::of("TCP", "bind_port"), None);
        assert!(refusal("UDP", "receive_on_all_interfaces", "true").is_some());
        assert_eq!(refusal("TCP", "receive_on_all_interfaces", "true"), None);
    }

    #[test]
    fn attribute_of_a_protocol_has_one_row() {
        for (nth, (protocols, attributes, _)) in ROWS.iter().enumerate() {
            for (others, further, _) in &ROWS[nth + 1..] {
                let shared = |all: &[&str], rest: &[&str]| all.iter().any(|one| rest.contains(one));
                assert!(
                    !(shared(protocols, others) && shared(attributes, further)),
                    "{protocols:?} {attributes:?}"
                );
            }
        }
    }
}
