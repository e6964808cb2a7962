//! `consort backup`.

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use bytes::Bytes;
use clap::Args;
use consort_client::{Client, ConfigFormat, CounterConfig, CounterKind, Entry};
use consort_protostream::backup::{BackupCounterKind, CacheEntry, CounterEntry};

use super::archive::{Contents, Writer, check_name};
use super::stored_bytes::open_stored;
use super::{CacheTally, ERRORS, Failures, Options, SCHEMAS, Totals};
use crate::broken_pipe::print_error;
use crate::operator::answered;
use crate::shutdown::Signals;

/// Servers tell clients lifetimes in whole seconds, rounded down.
const SHORTEST_LIFETIME: Duration = Duration::from_secs(1);

#[derive(Args)]
#[command(after_help = "The archive has the layout of Infinispan's backups since release 12: `consort\n\
    restore` and Infinispan's servers read it (tested with 16.0). It has every\n\
    entry that is present during the whole backup exactly once, also if servers\n\
    come and go; an entry that a client writes meanwhile has its old or its new\n\
    value. If a server crashes after it has sent more than 64 MiB of keys of\n\
    segments that are not complete, the backup fails with an error. Stop the\n\
    writers for a consistent snapshot. Aliases are part of the definitions.\n\
    Missing: templates (caches made of them have their own definitions) and users.\n\
    Volatile caches are restored as permanent ones. Only the owner may read the\n\
    file. With users, the command requires the role observer. The exit code is 2 for\n\
    errors, after which there is no archive, and also if a counter or a schema is\n\
    left out, because its name has a comma.\n\n\
    Examples:\n  \
    consort backup 2026-11-30.zip\n  \
    consort backup shop.zip --cache shop --cache stock\n  \
    consort backup all.zip --at hotrods://shop.example --user alice")]
pub(crate) struct Backup {
    #[command(flatten)]
    options: Options,
}

/// The contents of a complete archive.
#[derive(Debug)]
pub(super) struct Summary {
    pub(super) caches: Vec<CacheTally>,
    pub(super) totals: Totals,
}

impl Summary {
    pub(super) fn json(&self) -> serde_json::Value {
        self.totals.json(self.caches.iter().map(CacheTally::json).collect())
    }
}

impl Backup {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let mut signals = Signals::listen()?;
        let saved = self.save_until(signals.next()).await;
        Ok(saved.map_or_else(
            |error| print_error(&error, ExitCode::from(2)),
            |summary| ExitCode::from(summary.totals.failures.exit_code()),
        ))
    }

    /// Removes the incomplete archive if a signal ends the backup. Once the archive has its name, signals have no effect.
    pub(super) async fn save_until(
        &self,
        signal: impl Future<Output = &'static str>,
    ) -> anyhow::Result<Summary> {
        let (client, summary) = tokio::select! {
            saved = self.save() => saved?,
            signal = signal => bail!("{signal}: the backup has ended without an archive"),
        };
        client.close().await;
        self.print(&summary)?;
        Ok(summary)
    }

    async fn save(&self) -> anyhow::Result<(Client, Summary)> {
        let client = self.options.target.client()?.connect().await?;
        let summary = self.save_all(&client).await?;
        Ok((client, summary))
    }

    /// Checks the names before a byte is written.
    async fn chosen_caches(&self, client: &Client) -> anyhow::Result<Vec<String>> {
        let all = client.administration().names().await?;
        if let Some(unknown) = self.options.caches.iter().find(|name| !all.contains(name)) {
            bail!("no cache has the name {unknown:?}; `consort cache ls` lists all");
        }
        let mut caches = if self.options.is_whole() { all } else { self.options.caches.clone() };
        caches.sort_unstable();
        caches.dedup();
        caches.iter().try_for_each(|name| check_name(name)).context("choose other caches with --cache")?;
        Ok(caches)
    }

    async fn save_all(&self, client: &Client) -> anyhow::Result<Summary> {
        let caches = self.chosen_caches(client).await?;
        let mut archive = Writer::begin(&self.options.file)?;
        let mut tallies = Vec::new();
        for cache in &caches {
            let tally =
                save_cache(client, cache, &mut archive).await.with_context(|| format!("cache {cache}"))?;
            if !self.options.json {
                println!("{}", tally.line());
            }
            tallies.push(tally);
        }
        let mut contents = Contents { caches, ..Contents::default() };
        let mut totals = Totals::default();
        if self.options.is_whole() {
            let counters = save_counters(client, &mut archive, &mut totals.failures).await;
            contents.counters = counters.context("counters")?;
            let schemas = save_schemas(client, &mut archive, &mut totals.failures).await;
            contents.schemas = schemas.context("schemas")?;
        }
        archive.finish(&contents)?;
        (totals.counters, totals.schemas) = (contents.counters.len(), contents.schemas.len());
        Ok(Summary { caches: tallies, totals })
    }

    fn print(&self, summary: &Summary) -> anyhow::Result<()> {
        self.options.print(&summary.totals, &summary.json())?;
        if !self.options.json {
            println!("saved in {}", self.options.file.display());
        }
        Ok(())
    }
}

async fn save_cache(client: &Client, name: &str, archive: &mut Writer) -> anyhow::Result<CacheTally> {
    let definition = answered(client.administration().config(name, ConfigFormat::Xml).await)?;
    archive.begin_cache(name, &definition)?;
    let mut entries = open_stored(client, name).entries_with_metadata();
    let mut tally = CacheTally::new(name);
    while let Some(entry) = entries.next().await {
        let (key, entry) = entry?;
        tally.add(key.len() + entry.value.len());
        archive.write_entry(&entry_of(key, entry).write())?;
    }
    Ok(tally)
}

fn milliseconds(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

fn entry_of(key: Bytes, entry: Entry<Bytes>) -> CacheEntry {
    let lifetime = entry.lifetime;
    // An entry with a lifetime of less than a second has not expired.
    let time = |time: Option<Duration>| time.map(|time| time.max(SHORTEST_LIFETIME).as_millis() as u64);
    CacheEntry {
        key,
        value: entry.value,
        version: Some(entry.version.0),
        lifespan: time(lifetime.lifespan),
        max_idle: time(lifetime.max_idle),
        created: entry.created.map(milliseconds),
        last_used: entry.last_used.map(milliseconds),
    }
}

async fn save_counters(
    client: &Client,
    archive: &mut Writer,
    failures: &mut Failures,
) -> anyhow::Result<Vec<String>> {
    let mut names = client.counter_names().await?;
    names.sort_unstable();
    names.retain(|name| is_listable("counter", name, failures));
    archive.begin_counters()?;
    for name in &names {
        let counter = client.counter(name);
        let config = counter.config().await.with_context(|| name.clone())?;
        let value = counter.get().await.with_context(|| name.clone())?;
        archive.write_entry(&counter_of(name, &config, value).write())?;
    }
    Ok(names)
}

fn is_listable(kind: &str, name: &str, failures: &mut Failures) -> bool {
    let checked = check_name(name);
    let is_listable = checked.is_ok();
    if let Err(error) = checked {
        failures.add(format!("a {kind} was not saved"), error);
    }
    is_listable
}

fn counter_of(name: &str, config: &CounterConfig, value: i64) -> CounterEntry {
    CounterEntry {
        name: name.to_owned(),
        kind: match config.kind {
            CounterKind::Strong => BackupCounterKind::Unbounded,
            CounterKind::Bounded { lower, upper } => BackupCounterKind::Bounded { lower, upper },
            CounterKind::Weak { concurrency } => BackupCounterKind::Weak { concurrency },
        },
        is_persistent: config.is_persistent,
        initial: config.initial,
        value,
    }
}

async fn save_schemas(
    client: &Client,
    archive: &mut Writer,
    failures: &mut Failures,
) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    let mut schemas = open_stored(client, SCHEMAS).entries();
    while let Some(schema) = schemas.next().await {
        let (name, text) = schema?;
        let name = String::from_utf8(name.to_vec()).context("the name of a schema")?;
        if name.ends_with(ERRORS) || !is_listable("schema", &name, failures) {
            continue;
        }
        archive.write_schema(&name, &text)?;
        names.push(name);
    }
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use consort_client::{Lifetime, Version};

    use super::*;

    #[test]
    fn lifetime_below_a_second_is_saved_as_a_second() {
        let of = |max_idle: Option<Duration>| {
            let lifetime = Lifetime { lifespan: None, max_idle };
            let (version, value) = (Version(1), Bytes::new());
            entry_of(Bytes::new(), Entry { value, version, lifetime, created: None, last_used: None })
                .max_idle
        };
        assert_eq!(of(Some(Duration::ZERO)), Some(1_000));
        assert_eq!((of(Some(Duration::from_secs(7))), of(None)), (Some(7_000), None));
    }
}
