//! `consort restore`.

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use clap::Args;
use consort_client::{Client, ClientError, ConfigFormat, CounterConfig, CounterKind, Lifetime};
use consort_procstat::grouped;
use consort_protostream::backup::{BackupCounterKind, CacheEntry, CounterEntry};
use tokio::task::JoinSet;

use super::archive::Reader;
use super::definition::{ensure_same_encoding, without_aliases};
use super::stored_bytes::{StoredCache, open_stored};
use super::{CacheTally, Failures, Options, SCHEMAS, Totals};
use crate::broken_pipe::print_error;
use crate::operator::answered;
use crate::terminal::Escaped;

/// Writes that wait for their responses.
const WRITES_MAX: usize = 256;
const WRITES_BYTES_MAX: usize = 32 << 20;

#[derive(Args)]
#[command(after_help = "Archives are those of `consort backup` and of Infinispan's servers (tested\n\
    with 16.0; the layout is that of 12 and later). A cache that exists keeps its\n\
    definition and its other entries; entries of the archive replace those of the\n\
    same key. It needs the media types of the archive's definition. A missing\n\
    cache is created as the archive defines it: if a server refuses the\n\
    definition, create the cache first. It is created without its aliases if they\n\
    are in use, and not at all if its name is an alias. Entries keep the rest of\n\
    their lifespans, their max-idle times start anew, and they get new versions;\n\
    those that have expired are left out. A counter that exists gets the archive's\n\
    value only if it has its initial value. With users, the command requires the\n\
    role deployer. The exit code is 2 if a part was not restored; the command\n\
    names it, and restores the others. Templates and tasks are named and left out.\n\n\
    Examples:\n  \
    consort restore 2026-11-30.zip\n  \
    consort restore infinispan.zip --cache shop --at 10.0.0.1")]
pub(crate) struct Restore {
    #[command(flatten)]
    options: Options,
}

/// The entries of one cache.
#[derive(Debug)]
pub(super) struct RestoredCache {
    pub(super) tally: CacheTally,
    pub(super) expired: u64,
}

impl RestoredCache {
    fn json(&self) -> serde_json::Value {
        let mut json = self.tally.json();
        json["expired"] = self.expired.into();
        json
    }

    pub(super) fn line(&self) -> String {
        match self.expired {
            0 => self.tally.line(),
            expired => format!("{}, and {} have expired", self.tally.line(), grouped(expired as f64)),
        }
    }
}

/// The restored parts, and those that were not.
#[derive(Default, Debug)]
pub(super) struct Summary {
    pub(super) caches: Vec<RestoredCache>,
    pub(super) totals: Totals,
    /// Templates and tasks, with their names: they count as no failure.
    pub(super) skipped: Vec<String>,
}

impl Summary {
    pub(super) fn json(&self) -> serde_json::Value {
        let mut json = self.totals.json(self.caches.iter().map(RestoredCache::json).collect());
        json["skipped"] = self.skipped.clone().into();
        json
    }
}

impl Restore {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        Ok(match self.restore().await {
            Ok(summary) => ExitCode::from(summary.totals.failures.exit_code()),
            Err(error) => print_error(&error, ExitCode::from(2)),
        })
    }

    pub(super) async fn restore(&self) -> anyhow::Result<Summary> {
        let mut archive = self.open()?;
        let client = self.options.target.client()?.connect().await?;
        let restored = self.restore_all(&client, &mut archive).await;
        client.close().await;
        let summary = restored?;
        self.print(&summary)?;
        Ok(summary)
    }

    fn open(&self) -> anyhow::Result<Reader> {
        let archive = Reader::open(&self.options.file)?;
        if let Some(unknown) = self.options.caches.iter().find(|name| !archive.contents.caches.contains(name))
        {
            let all = archive.contents.caches.join(", ");
            bail!("{} has no cache {unknown:?}; its caches are: {all}", self.options.file.display());
        }
        Ok(archive)
    }

    async fn restore_all(&self, client: &Client, archive: &mut Reader) -> anyhow::Result<Summary> {
        let is_whole = self.options.is_whole();
        let mut summary = Summary::default();
        if is_whole {
            // First: definitions of caches may name their types.
            for name in archive.contents.schemas.clone() {
                match restore_schema(client, &name, archive).await {
                    Ok(()) => summary.totals.schemas += 1,
                    Err(error) => {
                        summary.totals.failures.add(format!("schema {name} was not restored"), error);
                    }
                }
            }
        }
        let existing = client.administration().names().await?;
        let caches = if is_whole { archive.contents.caches.clone() } else { self.options.caches.clone() };
        for name in caches {
            let is_new = !existing.contains(&name);
            match restore_cache(client, &name, is_new, archive, &mut summary.totals.failures).await {
                Ok(restored) => {
                    if !self.options.json {
                        println!("{}", restored.line());
                    }
                    summary.caches.push(restored);
                }
                Err(error) => summary.totals.failures.add(format!("cache {name} was not restored"), error),
            }
        }
        if is_whole && !archive.contents.counters.is_empty() {
            summary.totals.counters = restore_counters(client, archive, &mut summary.totals.failures).await;
        }
        if is_whole {
            let others = archive.contents.others.iter();
            summary.skipped = others.map(|(kind, names)| format!("{kind} {}", names.join(", "))).collect();
        }
        Ok(summary)
    }

    fn print(&self, summary: &Summary) -> anyhow::Result<()> {
        for skipped in &summary.skipped {
            eprintln!("not restored: {}", Escaped(skipped));
        }
        self.options.print(&summary.totals, &summary.json())
    }
}

async fn restore_schema(client: &Client, name: &str, archive: &mut Reader) -> anyhow::Result<()> {
    let text = archive.read_schema(name)?;
    Ok(open_stored(client, SCHEMAS).put(&Bytes::from(name.to_owned()), &Bytes::from(text)).await?)
}

/// The number of Infinispan's error for a cache that exists. Its name may also be an alias.
const CACHE_EXISTS: &str = "ISPN000507";

async fn create_cache(
    client: &Client,
    name: &str,
    definition: &str,
    failures: &mut Failures,
) -> anyhow::Result<()> {
    let administration = client.administration();
    let Err(refused) = administration.create(name, definition).await else { return Ok(()) };
    if matches!(&refused, ClientError::Server { message, .. } if message.contains(CACHE_EXISTS)) {
        // A write would go to the cache of the alias.
        return Err(refused).context(
            "the name is an alias of another cache, or another client has created the cache meanwhile; \
             remove the alias, or repeat the command",
        );
    }
    let Some(without) = without_aliases(definition) else { return Err(refused).context("the definition") };
    if administration.create(name, &without).await.is_err() {
        return Err(refused).context("the definition");
    }
    failures.add(format!("cache {name} was restored without its aliases"), refused.into());
    Ok(())
}

async fn restore_cache(
    client: &Client,
    name: &str,
    is_new: bool,
    archive: &mut Reader,
    failures: &mut Failures,
) -> anyhow::Result<RestoredCache> {
    let definition = archive.read_definition(name)?;
    if is_new {
        create_cache(client, name, &definition, failures).await?;
    } else {
        let existing = answered(client.administration().config(name, ConfigFormat::Xml).await)?;
        ensure_same_encoding(&definition, &existing)?;
    }
    let mut messages = archive.open_entries(name)?;
    let mut writes = Writes::begin(client, name);
    let outcome = loop {
        let entry = match messages.next() {
            Ok(Some(message)) => CacheEntry::read(&message.into()).map_err(anyhow::Error::from),
            Ok(None) => break Ok(()),
            Err(error) => Err(error),
        };
        let written = match entry {
            Ok(entry) => writes.put(entry).await,
            Err(error) => Err(error),
        };
        if written.is_err() {
            break written;
        }
    };
    let ended = writes.end().await;
    let count = grouped(writes.restored.tally.entries as f64);
    outcome.and(ended).with_context(|| format!("after {count} entries, which stay"))?;
    Ok(writes.restored)
}

/// Writes of one cache that wait for their responses.
struct Writes {
    cache: StoredCache,
    under_way: JoinSet<(usize, Result<(), ClientError>)>,
    bytes: usize,
    restored: RestoredCache,
}

impl Writes {
    fn begin(client: &Client, name: &str) -> Self {
        let restored = RestoredCache { tally: CacheTally::new(name), expired: 0 };
        Self { cache: open_stored(client, name), under_way: JoinSet::new(), bytes: 0, restored }
    }

    async fn put(&mut self, entry: CacheEntry) -> anyhow::Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        let Some(lifetime) = rest_of_lifetime(&entry, now) else {
            self.restored.expired += 1;
            return Ok(());
        };
        let size = entry.key.len() + entry.value.len();
        while !self.under_way.is_empty()
            && (self.under_way.len() >= WRITES_MAX || self.bytes + size > WRITES_BYTES_MAX)
        {
            self.wait().await?;
        }
        self.bytes += size;
        // Also for immortal entries: without a lifetime the server takes the default of the cache.
        let cache = self.cache.with_lifetime(lifetime);
        let (key, value) = (entry.key, entry.value);
        self.under_way.spawn(async move { (size, cache.put(&key, &value).await) });
        Ok(())
    }

    async fn wait(&mut self) -> anyhow::Result<()> {
        let Some(done) = self.under_way.join_next().await else { return Ok(()) };
        let (size, written) = done?;
        self.bytes -= size;
        written?;
        self.restored.tally.add(size);
        Ok(())
    }

    /// Waits for all responses, and returns the first error.
    async fn end(&mut self) -> anyhow::Result<()> {
        let mut outcome = Ok(());
        while !self.under_way.is_empty() {
            let done = self.wait().await;
            outcome = outcome.and(done);
        }
        outcome
    }
}

/// `None` if the entry has expired.
fn rest_of_lifetime(entry: &CacheEntry, now: u64) -> Option<Lifetime> {
    let rest = |time: Option<u64>, since: Option<u64>| match time {
        None => Some(None),
        Some(time) => {
            let rest = since.unwrap_or(now).saturating_add(time).saturating_sub(now);
            (rest > 0).then(|| Some(Duration::from_millis(rest)))
        }
    };
    let lifespan = rest(entry.lifespan, entry.created)?;
    rest(entry.max_idle, entry.last_used)?;
    // An entry is used when it is written.
    Some(Lifetime { lifespan, max_idle: entry.max_idle.map(Duration::from_millis) })
}

/// Returns the number of restored counters.
async fn restore_counters(client: &Client, archive: &mut Reader, failures: &mut Failures) -> usize {
    let not_restored = |counter: &str| format!("{counter} was not restored");
    let mut messages = match archive.open_counters() {
        Ok(messages) => messages,
        Err(error) => {
            failures.add("the counters were not restored".to_owned(), error);
            return 0;
        }
    };
    let mut count = 0;
    loop {
        let message = match messages.next() {
            Ok(Some(message)) => message,
            Ok(None) => return count,
            // The place of the next counter is unknown.
            Err(error) => {
                failures.add("the remaining counters were not restored".to_owned(), error);
                return count;
            }
        };
        match CounterEntry::read(&message) {
            Ok(entry) => match restore_counter(client, &entry).await {
                Ok(()) => count += 1,
                Err(error) => failures.add(not_restored(&format!("counter {}", entry.name)), error),
            },
            Err(error) => failures.add(not_restored("a counter"), error.into()),
        }
    }
}

async fn restore_counter(client: &Client, entry: &CounterEntry) -> anyhow::Result<()> {
    let counter = client.counter(&entry.name);
    let kind = match entry.kind {
        BackupCounterKind::Unbounded => CounterKind::Strong,
        BackupCounterKind::Bounded { lower, upper } => CounterKind::Bounded { lower, upper },
        BackupCounterKind::Weak { concurrency } => CounterKind::Weak { concurrency },
    };
    let config = CounterConfig { kind, is_persistent: entry.is_persistent, initial: entry.initial };
    counter.create(config).await?;
    if let CounterKind::Weak { .. } = kind {
        let value = counter.get().await?;
        ensure!(value == entry.initial || value == entry.value, "it exists, and its value is {value}");
        if value != entry.value {
            counter.add(entry.value.wrapping_sub(value)).await?;
        }
        return Ok(());
    }
    let value = counter.compare_and_swap(entry.initial, entry.value).await?;
    ensure!(value == entry.initial || value == entry.value, "it exists, and its value is {value}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(
        lifespan: Option<u64>,
        created: Option<u64>,
        max_idle: Option<u64>,
        used: Option<u64>,
    ) -> CacheEntry {
        CacheEntry { lifespan, created, max_idle, last_used: used, ..CacheEntry::default() }
    }

    #[test]
    fn json_names_the_parts_that_are_not_restored_by_design() {
        let summary = Summary { skipped: vec!["tasks a, b".to_owned()], ..Summary::default() };
        assert_eq!(summary.json()["skipped"], serde_json::json!(["tasks a, b"]));
    }

    #[test]
    fn entry_keeps_the_rest_of_its_lifetime() {
        let rest = |entry: CacheEntry| rest_of_lifetime(&entry, 10_000);
        let ms = Duration::from_millis;
        assert_eq!(rest(entry(None, None, None, None)), Some(Lifetime::FOREVER));
        assert_eq!(rest(entry(Some(5_000), Some(8_000), None, None)), Some(Lifetime::lifespan(ms(3_000))));
        assert_eq!(rest(entry(Some(5_000), Some(5_000), None, None)), None);
        assert_eq!(rest(entry(Some(5_000), None, None, None)), Some(Lifetime::lifespan(ms(5_000))));
        let idle = Lifetime { lifespan: None, max_idle: Some(ms(700)) };
        assert_eq!(rest(entry(None, None, Some(700), Some(9_900))), Some(idle));
        assert_eq!(rest(entry(None, None, Some(700), Some(9_300))), None);
        assert_eq!(rest(entry(Some(u64::MAX), Some(9), None, None)).map(|one| one.is_forever()), Some(false));
    }
}
