//! `consort restore`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use clap::Args;
use consort_client::{Client, ClientError, CounterConfig, CounterKind, Lifetime};
use consort_procstat::grouped;
use consort_protostream::backup::{BackupCounterKind, CacheEntry, CounterEntry};
use tokio::task::JoinSet;

use super::archive::Reader;
use super::stored::{StoredCache, stored};
use super::{Count, SCHEMAS};
use crate::broken_pipe::print_error;
use crate::operator::{Target, print_text};

/// Writes that wait for their responses.
const WRITES_MAX: usize = 256;
const WRITES_BYTES_MAX: usize = 32 << 20;

#[derive(Args)]
#[command(
    after_help = "Archives are those of `consort backup` and of Infinispan's servers 12 to 16. A cache that exists\n\
    keeps its definition and its other entries; entries of the archive replace those of the same key.\n\
    A missing cache is created as the archive defines it: if a server refuses the definition, create\n\
    the cache first. Entries keep the rest of their lifetimes and get new versions; those that have expired are\n\
    left out. A counter that exists gets the archive's value only if it has its initial value.\n\
    With users, the command requires the role admin. The exit code is 2 if a part was not restored;\n\
    the command names it, and restores the others.\n\n\
    Examples:\n  \
    consort restore 2026-11-30.zip\n  \
    consort restore infinispan.zip --cache shop --at 10.0.0.1"
)]
pub(crate) struct Restore {
    /// Archive to read
    file: PathBuf,
    #[command(flatten)]
    target: Target,
    /// Restore only this cache, and no counters and schemas; repeat it for several caches
    #[arg(long = "cache", value_name = "NAME")]
    caches: Vec<String>,
    /// Print the numbers of entries as JSON
    #[arg(long)]
    json: bool,
}

struct Restored {
    count: Count,
    expired: u64,
}

impl Restore {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        Ok(match self.ask().await {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::from(2),
            Err(error) => print_error(&error, ExitCode::from(2)),
        })
    }

    async fn ask(&self) -> anyhow::Result<bool> {
        let mut archive = self.open()?;
        let client = self.target.client()?.connect().await?;
        let restored = self.restore(&client, &mut archive).await;
        client.close().await;
        restored
    }

    fn open(&self) -> anyhow::Result<Reader> {
        let archive = Reader::open(&self.file)?;
        if let Some(unknown) = self.caches.iter().find(|name| !archive.contents.caches.contains(name)) {
            let all = archive.contents.caches.join(", ");
            bail!("{} has no cache {unknown:?}; its caches are: {all}", self.file.display());
        }
        Ok(archive)
    }

    /// Returns whether all parts were restored.
    async fn restore(&self, client: &Client, archive: &mut Reader) -> anyhow::Result<bool> {
        let is_whole = self.caches.is_empty();
        let mut is_complete = true;
        let mut fail = |part: &str, error: anyhow::Error| {
            print_error(&error.context(format!("{part} was not restored")), ExitCode::from(2));
            is_complete = false;
        };
        let (mut schemas, mut counters) = (0, 0);
        if is_whole {
            // First: definitions of caches may name their types.
            for name in archive.contents.schemas.clone() {
                match restore_schema(client, &name, archive).await {
                    Ok(()) => schemas += 1,
                    Err(error) => fail(&format!("schema {name}"), error),
                }
            }
        }
        let existing = client.administration().names().await?;
        let caches = if is_whole { archive.contents.caches.clone() } else { self.caches.clone() };
        let mut all = Vec::new();
        for name in caches {
            let is_new = !existing.contains(&name);
            match restore_cache(client, &name, is_new, archive).await {
                Ok(restored) => {
                    if !self.json {
                        print_cache(&restored);
                    }
                    all.push(restored);
                }
                Err(error) => fail(&format!("cache {name}"), error),
            }
        }
        if is_whole && !archive.contents.counters.is_empty() {
            match restore_counters(client, archive, &mut fail).await {
                Ok(count) => counters = count,
                Err(error) => fail("a counter", error),
            }
        }
        if is_whole {
            for (kind, names) in &archive.contents.others {
                eprintln!("not restored, because Consort has none: {kind} {}", names.join(", "));
            }
        }
        if self.json {
            let caches: Vec<_> = all.iter().map(Restored::json).collect();
            let text = serde_json::json!({"caches": caches, "counters": counters, "schemas": schemas});
            print_text(&format!("{text}\n"))?;
        } else if is_whole {
            println!("counters: {counters}\nschemas: {schemas}");
        }
        Ok(is_complete)
    }
}

impl Restored {
    fn json(&self) -> serde_json::Value {
        let mut json = self.count.json();
        json["expired"] = self.expired.into();
        json
    }
}

fn print_cache(restored: &Restored) {
    let (cache, entries) = (&restored.count.cache, grouped(restored.count.entries as f64));
    match restored.expired {
        0 => println!("{cache}: {entries} entries"),
        expired => println!("{cache}: {entries} entries, and {} have expired", grouped(expired as f64)),
    }
}

async fn restore_schema(client: &Client, name: &str, archive: &mut Reader) -> anyhow::Result<()> {
    let text = archive.schema(name)?;
    Ok(stored(client, SCHEMAS).put(&Bytes::from(name.to_owned()), &Bytes::from(text)).await?)
}

async fn restore_cache(
    client: &Client,
    name: &str,
    is_new: bool,
    archive: &mut Reader,
) -> anyhow::Result<Restored> {
    if is_new {
        let definition = archive.definition(name)?;
        client.administration().get_or_create(name, &definition).await.context("the definition")?;
    }
    let mut messages = archive.entries(name)?;
    let mut writes = Writes { cache: stored(client, name), under_way: JoinSet::new(), bytes: 0 };
    let mut restored = Restored { count: Count::new(name), expired: 0 };
    let outcome = loop {
        let entry = match messages.next() {
            Ok(Some(message)) => CacheEntry::read(&message.into()).map_err(anyhow::Error::from),
            Ok(None) => break Ok(()),
            Err(error) => Err(error),
        };
        let written = match entry {
            Ok(entry) => writes.put(entry, &mut restored).await,
            Err(error) => Err(error),
        };
        if written.is_err() {
            break written;
        }
    };
    let ended = writes.end().await;
    let count = grouped(restored.count.entries as f64);
    outcome.and(ended).with_context(|| format!("after {count} entries, which stay"))?;
    Ok(restored)
}

/// Writes of one cache that wait for their responses.
struct Writes {
    cache: StoredCache,
    under_way: JoinSet<(usize, Result<(), ClientError>)>,
    bytes: usize,
}

impl Writes {
    async fn put(&mut self, entry: CacheEntry, restored: &mut Restored) -> anyhow::Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        let Some(lifetime) = rest_of_lifetime(&entry, now) else {
            restored.expired += 1;
            return Ok(());
        };
        let size = entry.key.len() + entry.value.len();
        while !self.under_way.is_empty()
            && (self.under_way.len() >= WRITES_MAX || self.bytes + size > WRITES_BYTES_MAX)
        {
            self.wait().await?;
        }
        self.bytes += size;
        let cache =
            if lifetime.is_forever() { self.cache.clone() } else { self.cache.with_lifetime(lifetime) };
        let (key, value) = (entry.key, entry.value);
        self.under_way.spawn(async move { (size, cache.put(&key, &value).await) });
        restored.count.add(size);
        Ok(())
    }

    async fn wait(&mut self) -> anyhow::Result<()> {
        let Some(done) = self.under_way.join_next().await else { return Ok(()) };
        let (size, written) = done?;
        self.bytes -= size;
        Ok(written?)
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

async fn restore_counters(
    client: &Client,
    archive: &mut Reader,
    fail: &mut impl FnMut(&str, anyhow::Error),
) -> anyhow::Result<usize> {
    let mut messages = archive.counters()?;
    let mut count = 0;
    while let Some(message) = messages.next()? {
        let entry = CounterEntry::read(&message)?;
        match restore_counter(client, &entry).await {
            Ok(()) => count += 1,
            Err(error) => fail(&format!("counter {}", entry.name), error),
        }
    }
    Ok(count)
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
