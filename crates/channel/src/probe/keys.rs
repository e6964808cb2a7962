//! Known keys, and responses to JGroups' keys without meaning here.

use std::fmt::Write as _;

use crate::up_handler::UpHandlers;

const KEYS: &[&str] = &[
    "keys",
    "member-addrs",
    "uuids",
    "props",
    "print-protocols",
    "pp",
    "insert-protocol",
    "remove-protocol",
    "jmx",
    "op",
    "invoke",
    "ops",
    "reset-stats",
    "metrics",
    "threads",
    "dump-digest",
    "drops",
];

/// Handlers that count calls (RPC) or messages (caches) have these keys.
const CALL_KEYS: &[&str] = &[
    "rpcs",
    "rpcs-reset",
    "rpcs-details",
    "rpcs-enable-details",
    "rpcs-disable-details",
    "stats",
    "enable-rpcstats",
    "disable-rpcstats",
    "rtt",
    "rtt-reset",
    "requests",
    "reqtable-info",
];

const ABSENT: &[(&str, &str)] = &[
    ("dump", "no threads of a JVM's: a stack per thread shows gdb -p PID, or perf; `threads` counts them"),
    ("max-list-print-size", "views are printed whole"),
    ("remove-all", "layers that members need are not removed while they run; remove-protocol removes others"),
    ("enable-cpu", "the system measures a thread's time itself: top -H, or perf"),
    ("disable-cpu", "the system measures a thread's time itself: top -H, or perf"),
    ("enable-contention", "not measured; no lock is held while anything is waited for"),
    ("disable-contention", "not measured; no lock is held while anything is waited for"),
    ("digest-history", "no history is kept; dump-digest shows the digest as it is"),
    ("fix-digests", "a digest is taken from a view or a state only; there is nothing to fix"),
    ("avg-req-delivery", "not measured; DELIVERY_TIME in the stack measures deliveries, rtt round trips"),
    ("avg-req-delivery-reset", "not measured"),
    ("avg-rsp-delivery", "not measured; DELIVERY_TIME in the stack measures deliveries, rtt round trips"),
    ("avg-rsp-delivery-reset", "not measured"),
    ("async-rsp-handling", "answers are always handled where they are read"),
    ("fjp", "there is no ForkJoinPool"),
];

pub(super) fn all(handlers: &UpHandlers) -> String {
    let calls: &[&str] = if handlers.probe("rpcs").is_some() { CALL_KEYS } else { &[] };
    KEYS.iter().chain(calls).copied().collect::<Vec<_>>().join("\n")
}

pub(super) fn unanswered(key: &str) -> String {
    let word = key.split('=').next().unwrap_or(key);
    let mut text = String::new();
    let _ = match ABSENT.iter().find(|(name, _)| *name == word) {
        Some((_, why)) => write!(text, "not supported: {why}"),
        None if CALL_KEYS.contains(&word) => write!(text, "this member counts no calls"),
        None => write!(text, "no such key and no such protocol; `keys` and `pp` list them"),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The keys are those of JGroups' full stack.
    #[test]
    fn every_key_of_jgroups_is_known_or_accounted_for() {
        let theirs = "dump keys uuids member-addrs props max-list-print-size print-protocols pp remove-protocol \
                      remove-all insert-protocol jmx op invoke ops reset-stats metrics threads enable-cpu \
                      enable-contention disable-cpu disable-contention digest-history dump-digest fix-digests \
                      requests reqtable-info rpcs rpcs-reset rpcs-enable-details rpcs-disable-details rpcs-details \
                      rtt rtt-reset avg-req-delivery avg-req-delivery-reset async-rsp-handling avg-rsp-delivery \
                      avg-rsp-delivery-reset fjp enable-rpcstats disable-rpcstats stats";
        for key in theirs.split_whitespace() {
            let is_ours = KEYS.contains(&key) || CALL_KEYS.contains(&key);
            let is_absent = ABSENT.iter().any(|(name, _)| *name == key);
            assert!(is_ours != is_absent, "{key}");
        }
    }
}
