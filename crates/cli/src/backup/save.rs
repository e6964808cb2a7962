//! `consort backup`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use bytes::Bytes;
use clap::Args;
use consort_client::{Client, ConfigFormat, CounterConfig, CounterKind, Entry};
use consort_procstat::grouped;
use consort_protostream::backup::{BackupCounterKind, CacheEntry, CounterEntry};

use super::archive::{Contents, Writer};
use super::stored::stored;
use super::{Count, ERRORS, SCHEMAS};
use crate::broken_pipe::print_error;
use crate::operator::{Target, answered, print_text};

#[derive(Args)]
#[command(
    after_help = "The archive has the layout of Infinispan's backups: `consort restore` and Infinispan's servers\n\
    read it. It has every entry that is present during the whole backup exactly once, also if servers come and\n\
    go; an entry that a client writes meanwhile has its old or its new value. Stop the writers for a\n\
    backup of one moment. Missing: templates (caches made of them have their own definitions),\n\
    aliases, users. Only the owner may read the file. With users, the command requires the role admin.\n\
    The exit code is 2 for errors, after which there is no archive.\n\n\
    Examples:\n  \
    consort backup 2026-11-30.zip\n  \
    consort backup shop.zip --cache shop --cache stock\n  \
    consort backup all.zip --at hotrods://shop.example --user alice"
)]
pub(crate) struct Backup {
    /// Archive to write; no file may have this name
    file: PathBuf,
    #[command(flatten)]
    target: Target,
    /// Save only this cache, and no counters and schemas; repeat it for several caches
    #[arg(long = "cache", value_name = "NAME")]
    caches: Vec<String>,
    /// Print the numbers of entries as JSON
    #[arg(long)]
    json: bool,
}

impl Backup {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let saved = self.ask().await;
        Ok(saved.map_or_else(|error| print_error(&error, ExitCode::from(2)), |()| ExitCode::SUCCESS))
    }

    async fn ask(&self) -> anyhow::Result<()> {
        let client = self.target.client()?.connect().await?;
        let saved = self.save(&client).await;
        client.close().await;
        saved
    }

    async fn save(&self, client: &Client) -> anyhow::Result<()> {
        let all: Vec<String> = client
            .administration()
            .names()
            .await?
            .into_iter()
            .filter(|name| !name.starts_with("___"))
            .collect();
        if let Some(unknown) = self.caches.iter().find(|name| !all.contains(name)) {
            bail!("no cache has the name {unknown:?}; `consort cache ls` lists all");
        }
        let is_whole = self.caches.is_empty();
        let mut caches = if is_whole { all } else { self.caches.clone() };
        caches.sort_unstable();
        caches.dedup();
        let mut archive = Writer::begin(&self.file)?;
        let mut counts = Vec::new();
        for cache in &caches {
            let count =
                save_cache(client, cache, &mut archive).await.with_context(|| format!("cache {cache}"))?;
            if !self.json {
                println!("{cache}: {} entries", grouped(count.entries as f64));
            }
            counts.push(count);
        }
        let mut contents = Contents { caches, ..Contents::default() };
        if is_whole {
            contents.counters = save_counters(client, &mut archive).await.context("counters")?;
            contents.schemas = save_schemas(client, &mut archive).await.context("schemas")?;
        }
        archive.end(&contents)?;
        if self.json {
            let caches: Vec<_> = counts.iter().map(Count::json).collect();
            let (counters, schemas) = (contents.counters.len(), contents.schemas.len());
            let text = serde_json::json!({"caches": caches, "counters": counters, "schemas": schemas});
            return print_text(&format!("{text}\n"));
        }
        if is_whole {
            println!("counters: {}\nschemas: {}", contents.counters.len(), contents.schemas.len());
        }
        println!("saved in {}", self.file.display());
        Ok(())
    }
}

async fn save_cache(client: &Client, name: &str, archive: &mut Writer) -> anyhow::Result<Count> {
    let definition = answered(client.administration().config(name, ConfigFormat::Xml).await)?;
    archive.cache(name, &definition)?;
    let mut entries = stored(client, name).entries_with_metadata();
    let mut count = Count::new(name);
    while let Some(entry) = entries.next().await {
        let (key, entry) = entry?;
        let message = entry_of(key, entry).write();
        count.add(message.len());
        archive.entry(&message)?;
    }
    Ok(count)
}

fn milliseconds(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

fn entry_of(key: Bytes, entry: Entry<Bytes>) -> CacheEntry {
    let lifetime = entry.lifetime;
    CacheEntry {
        key,
        value: entry.value,
        version: Some(entry.version.0),
        lifespan: lifetime.lifespan.map(|time| time.as_millis() as u64),
        max_idle: lifetime.max_idle.map(|time| time.as_millis() as u64),
        created: entry.created.map(milliseconds),
        last_used: entry.last_used.map(milliseconds),
    }
}

async fn save_counters(client: &Client, archive: &mut Writer) -> anyhow::Result<Vec<String>> {
    let mut names = client.counter_names().await?;
    names.sort_unstable();
    archive.counters()?;
    for name in &names {
        let counter = client.counter(name);
        let (config, value) = (counter.config().await?, counter.get().await?);
        archive.entry(&counter_of(name, &config, value).write())?;
    }
    Ok(names)
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

async fn save_schemas(client: &Client, archive: &mut Writer) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    let mut schemas = stored(client, SCHEMAS).entries();
    while let Some(schema) = schemas.next().await {
        let (name, text) = schema?;
        let name = String::from_utf8(name.to_vec()).context("the name of a schema")?;
        if name.ends_with(ERRORS) {
            continue;
        }
        archive.schema(&name, &text)?;
        names.push(name);
    }
    names.sort_unstable();
    Ok(names)
}
