//! Both commands with servers of this process.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use clap::{Args, Parser};
use consort_cache::{CacheManager, Channel};
use consort_client::{Client, CounterConfig, CounterKind, Lifetime};
use consort_conf::{Variables, parse_stack};
use consort_protostream::backup::{CacheEntry, CounterEntry};
use consort_server::Server;
use serde_json::json;
use tokio::task::JoinHandle;

use super::archive::{Contents, Writer};
use super::stored_bytes::open_stored;
use super::{Backup, Restore, SCHEMAS, restore, save};

const STACK: &str = "<config><SHARED_LOOPBACK/><SHARED_LOOPBACK_PING/><NAKACK2/><UNICAST3/><STABLE/>\
                     <GMS join_timeout=\"10\"/><UFC/><MFC/><FRAG4/></config>";
const HOUR: Duration = Duration::from_secs(3_600);
const TEXTS: &str = r#"<local-cache><encoding media-type="text/plain"/></local-cache>"#;

/// A server of a cluster of one, with a client and a name for an archive. The server ends with the test's runtime.
struct Fixture {
    at: String,
    client: Client,
    file: PathBuf,
    _serving: JoinHandle<()>,
}

impl Fixture {
    async fn begin(name: &str) -> Self {
        let stack = parse_stack("backup", STACK, &Variables::new()).unwrap();
        let manager = CacheManager::from_channel(Channel::from_config(stack.config));
        let manager = manager.connect(&format!("backup-{name}")).await.unwrap();
        let server = Server::builder().port(0).start(manager).await.unwrap();
        let at = server.address().to_string();
        let serving = tokio::spawn(async move { server.serve_until(std::future::pending()).await.unwrap() });
        let client = Client::connect(&at).await.unwrap();
        let file = std::env::temp_dir().join(format!("consort-backup-{name}-{}.zip", std::process::id()));
        let _ = std::fs::remove_file(&file);
        Self { at, client, file, _serving: serving }
    }

    async fn create(&self, name: &str, definition: &str) {
        self.client.administration().create(name, definition).await.unwrap();
    }

    async fn put(&self, cache: &str, key: &str, value: &str, lifetime: Lifetime) {
        let (key, value) = (Bytes::from(key.to_owned()), Bytes::from(value.to_owned()));
        open_stored(&self.client, cache).with_lifetime(lifetime).put(&key, &value).await.unwrap();
    }

    async fn get(&self, cache: &str, key: &str) -> Option<Bytes> {
        open_stored(&self.client, cache).get(&Bytes::from(key.to_owned())).await.unwrap()
    }

    async fn lifespan(&self, cache: &str, key: &str) -> Option<Duration> {
        let key = Bytes::from(key.to_owned());
        let entry = open_stored(&self.client, cache).get_with_metadata(&key).await.unwrap();
        entry.expect("an entry").lifetime.lifespan
    }

    fn command<A: Args>(&self, options: &[&str]) -> A {
        #[derive(Parser)]
        struct Line<A: Args> {
            #[command(flatten)]
            command: A,
        }
        let file = self.file.display().to_string();
        Line::parse_from([&["consort", &file, "--at", &self.at], options].concat()).command
    }

    async fn backup(&self, options: &[&str]) -> anyhow::Result<save::Summary> {
        self.command::<Backup>(options).save_until(std::future::pending()).await
    }

    async fn restore(&self, options: &[&str]) -> anyhow::Result<restore::Summary> {
        self.command::<Restore>(options).restore().await
    }

    /// Writes an archive with these entries and counters.
    fn write(&self, caches: &[(&str, &str, &[CacheEntry])], counters: &[&[u8]]) {
        let mut archive = Writer::begin(&self.file).unwrap();
        let mut contents = Contents::default();
        for (name, definition, entries) in caches {
            archive.begin_cache(name, definition).unwrap();
            entries.iter().for_each(|entry| archive.write_entry(&entry.write()).unwrap());
            contents.caches.push((*name).to_owned());
        }
        archive.begin_counters().unwrap();
        for (n, counter) in counters.iter().enumerate() {
            archive.write_entry(counter).unwrap();
            contents.counters.push(format!("c{n}"));
        }
        archive.finish(&contents).unwrap();
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
    }
}

fn entry(key: &'static str, value: &'static str) -> CacheEntry {
    let (key, value) = (Bytes::from_static(key.as_bytes()), Bytes::from_static(value.as_bytes()));
    CacheEntry { key, value, ..CacheEntry::default() }
}

fn error(result: anyhow::Result<impl Sized>) -> String {
    format!("{:#}", result.err().expect("an error"))
}

#[tokio::test]
async fn chosen_caches_are_saved_and_restored_and_unknown_ones_are_named() {
    let it = Fixture::begin("chosen").await;
    it.create("shop", TEXTS).await;
    it.create("stock", TEXTS).await;
    it.put("shop", "apples", "3", Lifetime::FOREVER).await;
    it.put("stock", "pears", "4", Lifetime::FOREVER).await;
    let unknown = error(it.backup(&["--cache", "none"]).await);
    assert_eq!(unknown, "no cache has the name \"none\"; `consort cache ls` lists all");
    assert!(!it.file.exists());
    let saved = it.backup(&["--cache", "shop", "--json"]).await.unwrap();
    let expected =
        json!({"caches": [{"name": "shop", "entries": 1, "bytes": 7}], "counters": 0, "schemas": 0});
    assert_eq!(saved.json(), expected);
    let unknown = error(it.restore(&["--cache", "stock"]).await);
    assert!(unknown.ends_with("has no cache \"stock\"; its caches are: shop"), "{unknown}");

    it.put("shop", "apples", "0", Lifetime::FOREVER).await;
    it.put("shop", "plums", "5", Lifetime::FOREVER).await;
    let restored = it.restore(&["--cache", "shop", "--json"]).await.unwrap();
    let caches = json!([{"name": "shop", "entries": 1, "bytes": 7, "expired": 0}]);
    assert_eq!(restored.json(), json!({"caches": caches, "counters": 0, "schemas": 0, "skipped": []}));
    assert_eq!(restored.totals.failures.first, [""; 0]);
    assert_eq!(it.get("shop", "apples").await.as_deref(), Some(&b"3"[..]));
    assert_eq!(it.get("shop", "plums").await.as_deref(), Some(&b"5"[..]), "other entries stay");
}

#[tokio::test]
async fn whole_cluster_is_restored_with_its_aliases_and_lifetimes() {
    let it = Fixture::begin("whole").await;
    let definition = r#"<local-cache aliases="store"><expiration lifespan="3600000"/></local-cache>"#;
    it.create("shop", definition).await;
    it.put("shop", "for ever", "1", Lifetime::FOREVER).await;
    it.put("shop", "two hours", "2", Lifetime::lifespan(2 * HOUR)).await;
    it.put(SCHEMAS, "a.proto", "syntax = \"proto3\";", Lifetime::FOREVER).await;
    it.put(SCHEMAS, "b,c.proto", "syntax = \"proto3\";", Lifetime::FOREVER).await;
    let config = CounterConfig { kind: CounterKind::Strong, is_persistent: false, initial: 1 };
    for name in ["hits", "a,b"] {
        it.client.counter(name).create(config).await.unwrap();
        it.client.counter(name).add(7).await.unwrap();
    }
    let saved = it.backup(&[]).await.unwrap();
    assert_eq!((saved.totals.counters, saved.totals.schemas), (1, 1));
    let [counter, schema] = &saved.totals.failures.first[..] else { panic!("{saved:?}") };
    assert!(counter.starts_with("a counter was not saved: the name \"a,b\" has a comma"), "{counter}");
    assert!(schema.starts_with("a schema was not saved: the name \"b,c.proto\" has a comma"), "{schema}");

    it.client.administration().remove("shop").await.unwrap();
    it.client.counter("hits").remove().await.unwrap();
    // Again: nothing differs.
    for _ in 0..2 {
        let restored = it.restore(&[]).await.unwrap();
        assert_eq!((restored.totals.counters, restored.totals.schemas, restored.caches.len()), (1, 1, 1));
        assert_eq!(restored.totals.failures.first, [""; 0]);
        assert_eq!(it.lifespan("shop", "for ever").await, None);
        assert!(it.lifespan("shop", "two hours").await > Some(HOUR));
        assert_eq!(it.get("store", "for ever").await.as_deref(), Some(&b"1"[..]), "the alias");
        assert_eq!(it.client.counter("hits").get().await.unwrap(), 8);
    }
}

/// One of two caches, beside a counter and a schema.
#[tokio::test]
async fn chosen_caches_have_no_counters_and_schemas() {
    let it = Fixture::begin("parts").await;
    for name in ["shop", "stock", "other"] {
        it.create(name, TEXTS).await;
        it.put(name, "apples", "3", Lifetime::FOREVER).await;
    }
    it.put(SCHEMAS, "a.proto", "syntax = \"proto3\";", Lifetime::FOREVER).await;
    it.client.counter("hits").create(CounterConfig::default()).await.unwrap();
    let names = |caches: &[String]| caches.join(" ");
    let saved = it.backup(&["--cache", "stock", "--cache", "shop", "--cache", "shop"]).await.unwrap();
    assert_eq!((saved.caches.len(), saved.totals.counters, saved.totals.schemas), (2, 0, 0));
    std::fs::remove_file(&it.file).unwrap();
    let saved = it.backup(&[]).await.unwrap();
    assert_eq!((saved.caches.len(), saved.totals.counters, saved.totals.schemas), (3, 1, 1));
    assert_eq!(std::fs::metadata(&it.file).unwrap().permissions().mode() & 0o777, 0o600);

    let restored = it.restore(&["--cache", "shop", "--cache", "other"]).await.unwrap();
    let caches: Vec<String> = restored.caches.iter().map(|one| one.tally.cache.clone()).collect();
    assert_eq!(names(&caches), "shop other");
    assert_eq!((restored.totals.counters, restored.totals.schemas), (0, 0));
}

#[tokio::test]
async fn names_of_servers_have_no_control_characters_on_a_terminal() {
    let it = Fixture::begin("escapes").await;
    it.create("a\u{1b}]0;x\nb", TEXTS).await;
    let saved = it.backup(&[]).await.unwrap();
    assert_eq!(saved.caches[0].line(), "a\\u001b]0;x\\nb: 0 entries");
    let restored = it.restore(&[]).await.unwrap();
    assert_eq!(restored.caches[0].line(), "a\\u001b]0;x\\nb: 0 entries");
}

#[tokio::test]
async fn alias_in_use_costs_the_alias_only() {
    let it = Fixture::begin("alias").await;
    it.create("stock", TEXTS).await;
    let definition = TEXTS.replace("<local-cache>", r#"<local-cache aliases="stock">"#);
    it.write(&[("shop", &definition, &[entry("apples", "3")])], &[]);
    let restored = it.restore(&[]).await.unwrap();
    let [failure] = &restored.totals.failures.first[..] else { panic!("{restored:?}") };
    assert!(failure.starts_with("cache shop was restored without its aliases: "), "{failure}");
    assert_eq!(it.get("shop", "apples").await.as_deref(), Some(&b"3"[..]));
    assert_eq!(it.get("stock", "apples").await, None);
}

#[tokio::test]
async fn cache_whose_name_is_an_alias_is_not_restored_into_the_other_cache() {
    let it = Fixture::begin("named").await;
    it.create("other", TEXTS).await;
    it.client.administration().assign_alias("shop", "other").await.unwrap();
    it.write(&[("shop", TEXTS, &[entry("apples", "3")]), ("stock", TEXTS, &[entry("pears", "4")])], &[]);
    let restored = it.restore(&[]).await.unwrap();
    let [failure] = &restored.totals.failures.first[..] else { panic!("{restored:?}") };
    assert!(
        failure.starts_with("cache shop was not restored: the name is an alias of another cache"),
        "{failure}"
    );
    assert_eq!(it.get("other", "apples").await, None);
    assert_eq!(it.get("stock", "pears").await.as_deref(), Some(&b"4"[..]), "the others are restored");
}

#[tokio::test]
async fn existing_cache_of_another_encoding_is_not_restored() {
    let it = Fixture::begin("encoding").await;
    it.create("shop", &TEXTS.replace("text/plain", "application/json")).await;
    it.write(&[("shop", TEXTS, &[entry("apples", "3")])], &[]);
    let restored = it.restore(&[]).await.unwrap();
    let [failure] = &restored.totals.failures.first[..] else { panic!("{restored:?}") };
    assert!(
        failure.contains("has another encoding (application/json) than the archive (text/plain)"),
        "{failure}"
    );
    assert_eq!(open_stored(&it.client, "shop").size().await.unwrap(), 0);
}

#[tokio::test]
async fn expired_entries_and_unreadable_counters_are_counted_and_the_others_restored() {
    let it = Fixture::begin("expired").await;
    let expired = CacheEntry { lifespan: Some(1), created: Some(1), ..entry("pears", "4") };
    let counter =
        |name: &str| CounterEntry { name: name.to_owned(), value: 5, ..CounterEntry::default() }.write();
    it.write(
        &[("shop", TEXTS, &[entry("apples", "3"), expired])],
        &[&counter("first"), b"\x12\x02\x28\x03", &counter("last")],
    );
    let restored = it.restore(&[]).await.unwrap();
    assert_eq!(
        (restored.totals.counters, restored.caches[0].expired, restored.caches[0].tally.entries),
        (2, 1, 1)
    );
    assert_eq!(
        restored.totals.failures.first,
        ["a counter was not restored: a counter of the unknown kind 3"]
    );
    assert_eq!(it.client.counter("last").get().await.unwrap(), 5);
    assert_eq!(it.get("shop", "pears").await, None);
}

#[tokio::test]
async fn cache_with_a_comma_in_its_name_is_refused_before_a_file_is_written() {
    let it = Fixture::begin("comma").await;
    it.create("a,b", TEXTS).await;
    it.create("shop", TEXTS).await;
    assert!(error(it.backup(&[]).await).contains("the name \"a,b\" has a comma"));
    assert!(!it.file.exists());
    assert_eq!(it.backup(&["--cache", "shop"]).await.unwrap().caches.len(), 1);
}

#[tokio::test]
async fn signal_ends_a_backup_and_removes_its_file() {
    let it = Fixture::begin("signal").await;
    it.create("shop", TEXTS).await;
    let partial = it.file.with_extension("zip.partial");
    let signal = async {
        while !partial.exists() {
            tokio::task::yield_now().await;
        }
        "SIGTERM"
    };
    let ended = error(it.command::<Backup>(&[]).save_until(signal).await);
    assert_eq!(ended, "SIGTERM: the backup has ended without an archive");
    assert!(!partial.exists() && !it.file.exists());
    // Once the archive has its name, the backup is complete.
    let late = async {
        while !it.file.exists() {
            tokio::task::yield_now().await;
        }
        "SIGTERM"
    };
    it.command::<Backup>(&[]).save_until(late).await.unwrap();
}
