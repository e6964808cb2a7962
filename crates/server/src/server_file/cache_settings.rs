//! Settings of caches that Consort accepts and that have no effect. Each is a warning, unless it has Infinispan's default.

use super::document::Node;
use super::problem::Problems;

/// An element within the cache (the empty name: the cache), an attribute, values that agree with Consort's behaviour, and the
/// reason.
type Setting = (&'static str, &'static str, &'static [&'static str], &'static str);

const WITHOUT_EFFECT: &[Setting] = &[
    ("", "statistics", &["true"], "statistics are always on"),
    ("", "statistics-available", &["true"], "statistics are always on"),
    ("", "simple-cache", &["false"], "there is one kind of local cache, and it has all operations"),
    ("", "unreliable-return-values", &["false"], "previous values are always reliable"),
    (
        "",
        "remote-timeout",
        &[],
        "a server waits for another one until the stack suspects it; clients have their own timeout",
    ),
    ("", "l1-cleanup-interval", &[], "servers do not cache entries of other owners"),
    ("", "capacity-factor", &["1", "1.0"], "the same factor on all servers gives each an equal share"),
    ("", "start", &["EAGER"], "caches start with the server"),
    (
        "locking",
        "acquire-timeout",
        &[],
        "a write waits for the owners, not for a lock; clients have their own timeout",
    ),
    ("locking", "concurrency-level", &[], "locks are by segment"),
    ("locking", "striping", &["false"], "locks are by segment"),
    (
        "state-transfer",
        "timeout",
        &[],
        "a new owner counts as one when it has all entries, however long that takes",
    ),
    ("state-transfer", "chunk-size", &[], "chunks have a size in bytes"),
    (
        "state-transfer",
        "await-initial-transfer",
        &["true"],
        "clients are served at once, by owners that have the entries",
    ),
    (
        "expiration",
        "interval",
        &[],
        "an expired entry is never returned, and its memory is freed step by step",
    ),
    ("expiration", "touch", &["ASYNC"], "a read does not wait until other owners have its access time"),
    ("memory", "storage", &["HEAP"], "there is no Java heap"),
    ("transaction", "locking", &["OPTIMISTIC"], "keys are locked at prepare in either case"),
    ("transaction", "auto-commit", &["true"], "Hot Rod clients begin transactions themselves"),
    ("transaction", "stop-timeout", &[], "a server that ends hands its transactions over"),
    (
        "transaction",
        "complete-timeout",
        &[],
        "a completed transaction is kept until its servers have confirmed it",
    ),
    ("transaction", "reaper-interval", &[], "abandoned transactions are found by their clients' timeout"),
    ("transaction", "notifications", &[], "there are no listeners of transactions"),
    ("persistence", "availability-interval", &[], "a failing store is reported by the write that fails"),
    ("persistence", "connection-attempts", &[], "a store in files has no connections"),
];

const STORES: [&str; 3] = ["file-store", "single-file-store", "soft-index-file-store"];

/// Reports settings without effect; removes those that a definition by a client could not have.
pub(super) fn report(label: &str, node: &mut Node, problems: &mut Problems) {
    report_element(label, "", node, problems);
    node.children.retain(|child| {
        let is_index = child.name == "indexing" && child.get("enabled").is_none_or(|own| own.value != "false");
        if is_index {
            let text = format!(
                "{label}: indexing: there are no indexes; queries scan all entries and have the same results, and full-text \
                 predicates are refused"
            );
            problems.warn(child.place, text);
        }
        !is_index
    });
    for child in &mut node.children {
        let name = child.name.clone();
        report_element(label, &name, child, problems);
        if name == "persistence" {
            child.children.iter_mut().filter(|store| STORES.contains(&&store.name[..])).for_each(|store| {
                remove_paths(label, store, problems);
            });
        }
    }
}

fn report_element(label: &str, name: &str, node: &Node, problems: &mut Problems) {
    for (_, attribute, agreeing, why) in WITHOUT_EFFECT.iter().filter(|(element, ..)| *element == name) {
        if let Some(found) = node.get(attribute)
            && !agreeing.contains(&&found.value[..])
        {
            problems.warn(found.place, format!("{label}: {attribute} of {} has no effect: {why}", node.name));
        }
    }
}

/// Of the store, its index and its data.
fn remove_paths(label: &str, store: &mut Node, problems: &mut Problems) {
    let is_path = |name: &str| matches!(name, "path" | "relative-to");
    for attribute in store.attributes.iter().filter(|attribute| is_path(&attribute.name)) {
        let text = format!("{label}: {} of {}: entries are stored in --data", attribute.name, store.name);
        problems.warn(attribute.place, text);
    }
    store.attributes.retain(|attribute| !is_path(&attribute.name));
    store.children.iter_mut().for_each(|child| remove_paths(label, child, problems));
}
