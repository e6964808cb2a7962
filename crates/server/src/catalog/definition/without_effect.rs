//! Settings without an effect that clients observe. Readers of definitions accept them by this list, and `consort server --config`
//! warns of them, unless their value agrees with the behaviour.

use super::tree::Element;
use super::values::{duration, flag, number, one_of};
use super::{FILE_STORES, Result, mode_of};

/// The values of an attribute.
enum Form {
    Flag,
    Duration,
    Integer,
    Decimal,
    OneOf(&'static [(&'static str, ())]),
    Text,
}

use Form::{Decimal, Duration, Flag, Integer, OneOf, Text};

pub(crate) struct WithoutEffect {
    attribute: &'static str,
    form: Form,
    /// Values that mean the behaviour of the server.
    pub(crate) agreeing: &'static [&'static str],
    pub(crate) why: &'static str,
}

const fn setting(
    attribute: &'static str,
    form: Form,
    agreeing: &'static [&'static str],
    why: &'static str,
) -> WithoutEffect {
    WithoutEffect { attribute, form, agreeing, why }
}

const STATISTICS: &str = "statistics are always on";
const LAYOUT: &str = "the files of a store have a layout of their own";
const SEGMENTS: &str = "locks are by segment";
const SEGMENTS_OF_KEYS: &str =
    "servers place segments by racks, machines and an even share; no response depends on it";
const REMOTE_CACHES: &str = "servers do not cache entries of other owners";
const ONE_STORE: &str = "a cache has one store";
const NO_CONNECTIONS: &str = "a store in files has no connections";

const CACHE: &[WithoutEffect] = &[
    setting("statistics", Flag, &["true"], STATISTICS),
    setting("statistics-available", Flag, &["true"], STATISTICS),
    setting("simple-cache", Flag, &["false"], "there is one kind of local cache, and it has all operations"),
    setting("unreliable-return-values", Flag, &["false"], "previous values are always reliable"),
    setting(
        "remote-timeout",
        Duration,
        &[],
        "a server waits for another one until the stack suspects it; clients have their own timeout",
    ),
    setting("l1-lifespan", Duration, &["-1", "0"], REMOTE_CACHES),
    setting("l1-cleanup-interval", Duration, &[], REMOTE_CACHES),
    setting(
        "capacity-factor",
        Decimal,
        &["1", "1.0"],
        "the same factor on all servers gives each an equal share",
    ),
    setting("start", Text, &["EAGER"], "caches start with the server"),
    // Java classes of programs are refused where the attribute is read.
    setting(
        "key-partitioner",
        Text,
        &["org.infinispan.distribution.ch.impl.HashFunctionPartitioner"],
        SEGMENTS_OF_KEYS,
    ),
    setting("consistent-hash-factory", Text, &[], SEGMENTS_OF_KEYS),
    setting("module", Text, &[], "no Java classes are loaded"),
];

const LOCKING: &[WithoutEffect] = &[
    setting(
        "acquire-timeout",
        Text,
        &[],
        "a write waits for the owners, not for a lock; clients have their own timeout",
    ),
    setting("concurrency-level", Text, &[], SEGMENTS),
    setting("striping", Text, &["false"], SEGMENTS),
    // Infinispan also has only the first two: it takes another level for the one that includes it.
    setting(
        "isolation",
        OneOf(&[
            ("REPEATABLE_READ", ()),
            ("READ_COMMITTED", ()),
            ("READ_UNCOMMITTED", ()),
            ("SERIALIZABLE", ()),
            ("NONE", ()),
        ]),
        &["REPEATABLE_READ", "READ_COMMITTED"],
        "reads return committed values",
    ),
];

const STATE_TRANSFER: &[WithoutEffect] = &[
    setting("enabled", Flag, &["true"], "a new owner always gets its entries"),
    setting(
        "timeout",
        Duration,
        &[],
        "a new owner counts as one when it has all entries, however long that takes",
    ),
    setting("chunk-size", Integer, &[], "chunks have a size in bytes"),
    setting(
        "await-initial-transfer",
        Flag,
        &["true"],
        "clients are served at once, by owners that have the entries",
    ),
];

const EXPIRATION: &[WithoutEffect] = &[
    setting(
        "interval",
        Duration,
        &[],
        "an expired entry is never returned, and its memory is freed step by step",
    ),
    setting(
        "touch",
        OneOf(&[("SYNC", ()), ("ASYNC", ())]),
        &["ASYNC"],
        "a read does not wait until other owners have its access time",
    ),
];

const MEMORY: &[WithoutEffect] =
    // Infinispan's own default since version 11 is HEAP, which OBJECT and BINARY mean there, too.
    &[setting(
        "storage",
        OneOf(&[("HEAP", ()), ("OBJECT", ()), ("BINARY", ()), ("OFF_HEAP", ())]),
        &["HEAP"],
        "there is no Java heap",
    )];

const TRANSACTION: &[WithoutEffect] = &[
    setting("locking", Text, &["OPTIMISTIC"], "keys are locked at prepare in either case"),
    setting("auto-commit", Text, &["true"], "Hot Rod clients begin transactions themselves"),
    setting("stop-timeout", Text, &[], "a server that ends hands its transactions over"),
    setting(
        "complete-timeout",
        Text,
        &[],
        "a completed transaction is kept until its servers have confirmed it",
    ),
    setting("reaper-interval", Text, &[], "abandoned transactions are found by their clients' timeout"),
    setting("notifications", Text, &[], "there are no listeners of transactions"),
    setting("transaction-manager-lookup", Text, &[], "transactions are managed by Hot Rod clients"),
];

const PERSISTENCE: &[WithoutEffect] = &[
    setting("availability-interval", Duration, &[], "a failing store is reported by the write that fails"),
    setting("connection-attempts", Integer, &[], NO_CONNECTIONS),
    setting("connection-interval", Duration, &[], NO_CONNECTIONS),
];

const IN_MEMORY: &str = "indexes are in memory, within the segments of the cache";
const IN_STEP: &str = "an index changes with each entry";

const INDEXING: &[WithoutEffect] = &[
    setting("storage", OneOf(&[("filesystem", ()), ("local-heap", ())]), &["local-heap"], IN_MEMORY),
    setting("path", Text, &[], IN_MEMORY),
    setting(
        "startup-mode",
        OneOf(&[
            ("none", ()),
            ("purge", ()),
            ("reindex", ()),
            ("auto", ()),
            ("NONE", ()),
            ("PURGE", ()),
            ("REINDEX", ()),
            ("AUTO", ()),
        ]),
        &["reindex", "auto", "REINDEX", "AUTO"],
        "an index is built while its entries are loaded",
    ),
    setting("use-java-embedded-entities", Flag, &["false"], "no Java classes are loaded"),
];

const INDEX_READER: &[WithoutEffect] = &[setting("refresh-interval", Duration, &["0"], IN_STEP)];

const INDEX_WRITER: &[WithoutEffect] = &[
    setting("thread-pool-size", Integer, &[], IN_STEP),
    setting("queue-count", Integer, &[], IN_STEP),
    setting("queue-size", Integer, &[], IN_STEP),
    setting("commit-interval", Duration, &[], IN_STEP),
    setting("ram-buffer-size", Integer, &[], IN_STEP),
    setting("max-buffered-entries", Integer, &[], IN_STEP),
    setting("low-level-trace", Flag, &["false"], IN_STEP),
];

const INDEX_MERGE: &[WithoutEffect] = &[
    setting("max-entries", Integer, &[], IN_MEMORY),
    setting("factor", Integer, &[], IN_MEMORY),
    setting("min-size", Integer, &[], IN_MEMORY),
    setting("max-size", Integer, &[], IN_MEMORY),
    setting("max-forced-size", Integer, &[], IN_MEMORY),
    setting("calibrate-by-deletes", Flag, &["true"], IN_MEMORY),
];

const INDEX_SHARDING: &[WithoutEffect] =
    &[setting("shards", Integer, &[], "each segment of the cache has an index of its own")];

const STORE: &[WithoutEffect] = &[
    setting("segmented", Flag, &["true"], LAYOUT),
    setting("max-batch-size", Decimal, &[], "writes are combined as they arrive"),
    setting("open-files-limit", Decimal, &[], LAYOUT),
    setting("compaction-threshold", Decimal, &[], LAYOUT),
    setting("max-entries", Decimal, &["-1"], "Infinispan ignores it, too"),
    setting("name", Text, &[], ONE_STORE),
    setting("fetch-state", Text, &[], ONE_STORE),
];

const STORE_INDEX: &[WithoutEffect] = &[
    setting("segments", Integer, &[], LAYOUT),
    setting("max-queue-length", Integer, &[], LAYOUT),
    setting("min-node-size", Integer, &[], LAYOUT),
    setting("max-node-size", Integer, &[], LAYOUT),
];

const WRITE_BEHIND: &[WithoutEffect] =
    &[setting("thread-pool-size", Integer, &[], "one thread writes to a store")];

const STORE_DATA: &[WithoutEffect] = &[setting("max-file-size", Integer, &[], LAYOUT)];

/// By element; one stands for all kinds of caches, and one for all names of stores.
const TABLES: &[(&str, &[WithoutEffect])] = &[
    (ANY_CACHE, CACHE),
    ("locking", LOCKING),
    ("state-transfer", STATE_TRANSFER),
    ("expiration", EXPIRATION),
    ("memory", MEMORY),
    ("transaction", TRANSACTION),
    ("persistence", PERSISTENCE),
    (ANY_STORE, STORE),
    ("indexing", INDEXING),
    ("index-reader", INDEX_READER),
    ("index-writer", INDEX_WRITER),
    ("index-merge", INDEX_MERGE),
    ("index-sharding", INDEX_SHARDING),
    ("index", STORE_INDEX),
    ("data", STORE_DATA),
    ("write-behind", WRITE_BEHIND),
];

const ANY_CACHE: &str = "distributed-cache";
const ANY_STORE: &str = "file-store";

/// The setting of an element, by its name.
pub(crate) fn find(element: &str, attribute: &str) -> Option<&'static WithoutEffect> {
    let element = match element {
        store if FILE_STORES.contains(&store) => ANY_STORE,
        cache if mode_of(cache).is_some() => ANY_CACHE,
        other => other,
    };
    let (_, all) = TABLES.iter().find(|(name, _)| *name == element)?;
    all.iter().find(|setting| setting.attribute == attribute)
}

/// Accepts a setting of the list, if its value has its form; any other attribute is unknown.
pub(super) fn accept(element: &Element, attribute: &str, value: &str) -> Result<()> {
    let Some(setting) = find(&element.name, attribute) else { return Err(element.unknown(attribute)) };
    match setting.form {
        Flag => flag(element, attribute, value).map(drop),
        Duration => duration(element, attribute, value).map(drop),
        Integer => number::<i64>(element, attribute, value).map(drop),
        Decimal => number::<f64>(element, attribute, value).map(drop),
        OneOf(all) => one_of(element, attribute, value, all),
        Text => Ok(()),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::from_text;
    use super::*;

    /// A cache with an attribute of this element.
    pub(crate) fn cache_with(element: &str, attribute: &str, value: &str) -> String {
        let set = format!("{attribute}=\"{value}\"");
        let (of_cache, children) = match element {
            ANY_CACHE => (set, "<persistence><file-store/></persistence>".to_owned()),
            "persistence" => (String::new(), format!("<persistence {set}><file-store/></persistence>")),
            ANY_STORE => (String::new(), format!("<persistence><file-store {set}/></persistence>")),
            "index" | "data" => {
                let store = format!("<persistence><file-store><{element} {set}/></file-store></persistence>");
                (String::new(), store)
            }
            "index-reader" | "index-writer" | "index-sharding" => (
                String::new(),
                format!("<indexing><{element} {set}/></indexing><persistence><file-store/></persistence>"),
            ),
            "index-merge" => {
                let merge = format!("<index-writer><index-merge {set}/></index-writer>");
                (
                    String::new(),
                    format!("<indexing>{merge}</indexing><persistence><file-store/></persistence>"),
                )
            }
            "write-behind" => {
                let behind = format!("<write-behind modification-queue-size=\"7\" {set}/>");
                (String::new(), format!("<persistence><file-store>{behind}</file-store></persistence>"))
            }
            other => (String::new(), format!("<{other} {set}/><persistence><file-store/></persistence>")),
        };
        format!("<distributed-cache name=\"c\" {of_cache}>{children}</distributed-cache>")
    }

    /// The settings of all tables with their elements, a value with another meaning than the behaviour, and one without the form.
    pub(crate) fn all()
    -> impl Iterator<Item = (&'static str, &'static WithoutEffect, &'static str, Option<&'static str>)> {
        let settings =
            TABLES.iter().flat_map(|(element, all)| all.iter().map(move |setting| (*element, setting)));
        settings.map(|(element, setting)| {
            let differs = |value: &&str| !setting.agreeing.contains(value);
            let (values, wrong): (&[&'static str], _) = match setting.form {
                Flag => (&["true", "false"], Some("maybe")),
                Duration => (&["7s"], Some("soon")),
                Integer => (&["7"], Some("1.5")),
                Decimal => (&["7.5"], Some("many")),
                OneOf(all) => {
                    return (
                        element,
                        setting,
                        all.iter().map(|(name, ())| *name).find(|name| differs(name)).unwrap(),
                        Some("OTHER"),
                    );
                }
                Text => (&["org.infinispan.distribution.Other"], None),
            };
            (element, setting, *values.iter().find(|value| differs(value)).unwrap(), wrong)
        })
    }

    impl WithoutEffect {
        pub(crate) const fn name(&self) -> &'static str {
            self.attribute
        }
    }

    #[test]
    fn settings_of_all_tables_change_no_definition_and_have_a_form() {
        let store = "<persistence><file-store/></persistence>";
        let plain = from_text("c", &format!("<distributed-cache>{store}</distributed-cache>")).unwrap();
        let behind = from_text("c", &cache_with("write-behind", "fail-silently", "false")).unwrap();
        let indexed = from_text("c", &cache_with("index-writer", "queue-size", "7")).unwrap();
        assert!(plain != behind && plain != indexed && all().count() > 40);
        for (element, setting, other, wrong) in all() {
            let read = |value: &str| from_text("c", &cache_with(element, setting.attribute, value));
            let expected = match element {
                "write-behind" => &behind,
                "indexing" | "index-reader" | "index-writer" | "index-merge" | "index-sharding" => &indexed,
                _ => &plain,
            };
            for value in setting.agreeing.iter().chain([&other]) {
                let found = read(value);
                assert_eq!(found.as_ref(), Ok(expected), "{} of {element}: {value}", setting.attribute);
            }
            if let Some(wrong) = wrong {
                assert!(read(wrong).is_err(), "{} of {element}: {wrong}", setting.attribute);
            }
        }
    }
}
