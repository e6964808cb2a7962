use std::collections::BTreeMap;
use std::io::{IsTerminal, Read, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand};
use consort_client::{
    CacheLoss, Client, ConfigFormat, EntryEvent, Event, EventKind, Filter, Lifetime, RawCache,
};

use crate::broken_pipe::print_error;
use crate::operator::{Target, answered, describe, print_text};
use crate::table::table;
use crate::terminal::{Escaped, escape_bytes};

#[derive(Args)]
#[command(after_help = "Keys and values are raw bytes. The exit code is 2 for errors.\n\n\
    Examples:\n  \
    consort cache create shop\n  \
    consort cache put shop apples 3\n  \
    consort cache get shop apples\n  \
    consort cache put shop photo - < photo.jpg\n  \
    consort cache --at 10.0.0.1 ls\n  \
    consort cache --at hotrods://shop.example --user alice ls\n  \
    consort cache ls shop --prefix app --values\n  \
    consort cache watch shop --state\n  \
    consort cache stats shop\n  \
    consort cache describe shop\n  \
    consort cache config shop > shop.xml\n  \
    consort cache --at 10.0.0.9 create shop \"$(cat shop.xml)\"\n  \
    consort cache alter shop expiration.lifespan 30m\n  \
    consort cache alias stock shop-2027   stock means shop-2027\n  \
    consort cache make-available          servers have crashed for good")]
pub(crate) struct Cache {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Print the value of a key. The exit code is 1 if the key has none.
    Get {
        /// Name of the cache
        cache: String,
        /// Key
        key: String,
    },
    /// Put a value under a key
    Put {
        /// Name of the cache
        cache: String,
        /// Key
        key: String,
        /// Value; - reads it from standard input
        value: String,
        /// Lifespan in seconds; without it, the cache's default
        #[arg(long, value_name = "SECONDS")]
        lifespan: Option<f64>,
        /// Put only if the key is absent. The exit code is 1 if it is present
        #[arg(long)]
        if_absent: bool,
    },
    /// Remove a key. The exit code is 1 if it was absent
    Rm {
        /// Name of the cache
        cache: String,
        /// Key
        key: String,
    },
    /// List the caches, or the keys of one, in no order
    Ls {
        /// List the keys of this cache. Without it, list the names of all caches.
        cache: Option<String>,
        /// Only keys with this prefix (Consort servers only)
        #[arg(long, value_name = "TEXT", requires = "cache")]
        prefix: Option<String>,
        /// Print the values, too, after a tab
        #[arg(long, requires = "cache")]
        values: bool,
        /// Stop after this many keys
        #[arg(long, value_name = "COUNT", requires = "cache")]
        limit: Option<usize>,
    },
    /// Print changes, one per line, until Ctrl-C.
    ///
    /// A line is `created`, `modified`, `removed` or `expired`, a tab, and the key. A line `gap` means that changes may be
    /// missing, because a server was lost.
    Watch {
        /// Name of the cache
        cache: String,
        /// Print the present keys first, as `existing`, then a line `complete`.
        #[arg(long)]
        state: bool,
        /// Only keys with this prefix (Consort servers only)
        #[arg(long, value_name = "TEXT")]
        prefix: Option<String>,
        /// Stop after this many lines
        #[arg(long, value_name = "COUNT")]
        limit: Option<usize>,
    },
    /// Count the keys of a cache
    Size {
        /// Name of the cache
        cache: String,
    },
    /// Print the statistics of a cache: of the server that is asked, and with names that begin with `global` of all servers
    Stats {
        /// Name of the cache
        cache: String,
        /// Print one JSON object, with null for a statistic that the server does not count
        #[arg(long)]
        json: bool,
    },
    /// Print a cache's settings, owners and state
    Describe {
        /// Name of the cache
        cache: String,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Print the definition of a cache in Infinispan's XML, as `create` takes it in another cluster.
    ///
    /// It has the cache's aliases, which no other cache of the same cluster can have.
    Config {
        /// Name of the cache
        cache: String,
        /// Print it in Infinispan's JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove all keys
    Clear {
        /// Name of the cache
        cache: String,
    },
    /// Create a cache
    Create {
        /// Name of the cache
        cache: String,
        /// Definition of the cache in Infinispan's XML, JSON or YAML: owners, encoding, memory, expiration, persistence,
        /// partition-handling, transaction and more. docs/server.md lists the supported and the refused settings.
        #[arg(default_value = r#"{"distributed-cache": {"owners": 2}}"#)]
        settings: String,
        /// Do not keep the cache when all servers have stopped, even if they have a directory (consort server --data)
        #[arg(long)]
        volatile: bool,
    },
    /// Remove a cache and its entries. The exit code is 1 if there is no such cache.
    Drop {
        /// Name of the cache
        cache: String,
    },
    /// Change one attribute of an existing cache; its entries stay.
    ///
    /// Default lifetimes: expiration.lifespan and expiration.max-idle. Limits of each server's memory, if the cache has one:
    /// memory.max-count or memory.max-size. Other names: aliases, separated by spaces. With users, it requires the role
    /// deployer or admin.
    Alter {
        /// Name of the cache
        cache: String,
        /// Path of the attribute below the cache's element, such as memory.max-count
        attribute: String,
        /// New value, as in a configuration: 30m, 500MB, -1 for no limit
        #[arg(allow_hyphen_values = true)]
        value: String,
    },
    /// Point an alias to this cache, whatever it pointed to before.
    ///
    /// Clients that use the alias are moved to the cache on all servers within seconds, without an error. With users, it
    /// requires the role deployer or admin.
    Alias {
        /// Alias
        alias: String,
        /// Name of the cache
        cache: String,
    },
    /// Make degraded caches available without servers that have crashed.
    ///
    /// A cache is degraded if too many servers crash at once: keys of the missing servers cannot be written, and new servers
    /// are not added. This command makes one cache, or all including the servers' own, available with the remaining data, and
    /// prints their names. Entries that only the missing servers had are lost: the command prints the number of segments
    /// without an owner and asks first. Do not use it while servers are only stopped or disconnected: both partitions would
    /// accept writes, and the writes of one would be lost in the merge. With users, it requires the role admin.
    MakeAvailable {
        /// Name of the cache; without it, all caches
        cache: Option<String>,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
    },
}

fn code(is_done: bool) -> ExitCode {
    if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl Cache {
    /// Errors have an exit code of their own, because 1 is an answer.
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        Ok(self.ask().await.unwrap_or_else(|error| print_error(&error, ExitCode::from(2))))
    }

    async fn ask(self) -> anyhow::Result<ExitCode> {
        let client = self.target.client()?.connect().await?;
        let done = Self::carry_out(&client, self.verb).await;
        client.close().await;
        done
    }

    async fn carry_out(client: &Client, verb: Verb) -> anyhow::Result<ExitCode> {
        let admin = client.administration();
        match verb {
            Verb::Get { cache, key } => {
                let value = client.raw(&cache).get(key.as_bytes()).await?;
                let Some(value) = value else { return Ok(ExitCode::FAILURE) };
                let mut out = std::io::stdout().lock();
                let is_terminal = out.is_terminal();
                out.write_all(&escape_bytes(&value, is_terminal))?;
                if is_terminal && value.last().is_some_and(|last| *last != b'\n') {
                    out.write_all(b"\n")?;
                }
                // Output without a line end is held back until then, and its errors are lost with the process.
                out.flush()?;
            }
            Verb::Put { cache, key, value, lifespan, if_absent } => {
                let value = if value == "-" { input()? } else { value.into_bytes() };
                let mut cache = client.raw(&cache);
                if let Some(seconds) = lifespan {
                    let lifespan = Duration::try_from_secs_f64(seconds).context("the lifespan")?;
                    cache = cache.with_lifetime(Lifetime::lifespan(lifespan));
                }
                if if_absent {
                    return Ok(code(cache.put_if_absent(key.as_bytes(), &value[..]).await?));
                }
                cache.put(key.as_bytes(), &value[..]).await?;
            }
            Verb::Rm { cache, key } => return Ok(code(client.raw(&cache).remove(key.as_bytes()).await?)),
            Verb::Ls { cache: None, .. } => print_names(&admin.names().await?),
            Verb::Ls { cache: Some(cache), prefix, values, limit } => {
                list(&client.raw(&cache), prefix, values, limit.unwrap_or(usize::MAX)).await?;
            }
            Verb::Watch { cache, state, prefix, limit } => {
                let watching = watch(client.raw(&cache), state, prefix, limit.unwrap_or(usize::MAX));
                tokio::select! {
                    watched = watching => watched?,
                    interrupted = tokio::signal::ctrl_c() => interrupted?,
                }
            }
            Verb::Size { cache } => println!("{}", client.raw(&cache).size().await?),
            Verb::Stats { cache, json } => print_stats(&client.raw(&cache).statistics().await?, json)?,
            Verb::Describe { cache, json } => {
                describe::print(&answered(admin.describe(&cache).await)?, json)?;
            }
            Verb::Config { cache, json } => {
                let format = if json { ConfigFormat::Json } else { ConfigFormat::Xml };
                print_text(&answered(admin.config(&cache, format).await)?)?;
            }
            Verb::Clear { cache } => client.raw(&cache).clear().await?,
            Verb::Create { cache, settings, volatile: true } => {
                admin.create_volatile(&cache, &settings).await?;
            }
            Verb::Create { cache, settings, .. } => admin.create(&cache, &settings).await?,
            Verb::Drop { cache } => {
                let was_there = admin.names().await?.contains(&cache);
                admin.remove(&cache).await?;
                return Ok(code(was_there));
            }
            Verb::Alter { cache, attribute, value } => {
                admin.set_attribute(&cache, &attribute, &value).await?;
            }
            Verb::Alias { alias, cache } => admin.assign_alias(&alias, &cache).await?,
            Verb::MakeAvailable { cache, yes } => {
                let losses = admin.losses(cache.as_deref()).await?;
                print_losses(&losses)?;
                if !losses.is_empty() && !yes && !is_confirmed()? {
                    anyhow::bail!("not confirmed: nothing was changed");
                }
                print_names(&admin.make_available(cache.as_deref()).await?);
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Names of caches may contain line feeds.
fn print_names(names: &[String]) {
    names.iter().for_each(|name| println!("{}", Escaped(name)));
}

/// Servers return -1 for statistics that they do not count.
fn print_stats(stats: &BTreeMap<String, i64>, is_json: bool) -> std::io::Result<()> {
    let counted = |value: i64| (value >= 0).then_some(value);
    let text = if is_json {
        let object: serde_json::Map<String, serde_json::Value> =
            stats.iter().map(|(name, &value)| (name.clone(), counted(value).into())).collect();
        serde_json::to_string_pretty(&object)? + "\n"
    } else {
        let shown = |value: i64| counted(value).map_or_else(|| "-".to_owned(), |value| value.to_string());
        table(&stats.iter().map(|(name, &value)| vec![name.clone(), shown(value)]).collect::<Vec<_>>())
    };
    print!("{text}");
    Ok(())
}

fn print_losses(losses: &[CacheLoss]) -> std::io::Result<()> {
    let mut out = std::io::stderr().lock();
    for CacheLoss { cache, segments, segments_without_owner: lost, unreachable: away } in losses {
        let away = Escaped(&away.join(", ")).to_string();
        let cache = Escaped(cache);
        writeln!(
            out,
            "{cache}: {lost} of {segments} segments have no owner without {away}; entries in them are lost"
        )?;
    }
    Ok(())
}

fn is_confirmed() -> anyhow::Result<bool> {
    if !std::io::stdin().is_terminal() {
        anyhow::bail!(
            "standard input is no terminal for a confirmation; to continue without these servers, add --yes"
        );
    }
    write!(std::io::stderr(), "Continue without these servers and lose these segments? [y/N] ")?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

async fn list(cache: &RawCache, prefix: Option<String>, values: bool, limit: usize) -> anyhow::Result<()> {
    let filter = prefix.map(|prefix| Filter::key_prefix(cache, &prefix)).transpose()?;
    let out = std::io::stdout().lock();
    let is_terminal = out.is_terminal();
    let mut out = std::io::BufWriter::new(out);
    if values {
        let walk = cache.entries();
        let mut walk = if let Some(filter) = filter { walk.filter(filter) } else { walk };
        for _ in 0..limit {
            let Some(entry) = walk.next().await else { break };
            let (key, value) = entry?;
            let (key, value) = (escape_bytes(&key, is_terminal), escape_bytes(&value, is_terminal));
            out.write_all(&[&key[..], b"\t", &value, b"\n"].concat())?;
        }
    } else {
        let walk = cache.keys();
        let mut walk = if let Some(filter) = filter { walk.filter(filter) } else { walk };
        for _ in 0..limit {
            let Some(key) = walk.next().await else { break };
            out.write_all(&[&escape_bytes(&key?, is_terminal)[..], b"\n"].concat())?;
        }
    }
    Ok(out.flush()?)
}

async fn watch(cache: RawCache, state: bool, prefix: Option<String>, limit: usize) -> anyhow::Result<()> {
    let mut listen = cache.listen();
    if let Some(prefix) = prefix {
        listen = listen.filter(Filter::key_prefix(&cache, &prefix)?);
    }
    if state {
        listen = listen.with_state();
    }
    let mut events = listen.start().await?;
    for _ in 0..limit {
        let Some(event) = events.next().await else { break };
        let line = match event? {
            Event::Entry(EntryEvent { kind, key, .. }) => {
                let kind = match kind {
                    EventKind::Created => "created",
                    EventKind::Modified => "modified",
                    EventKind::Removed => "removed",
                    EventKind::Expired => "expired",
                    EventKind::Existing => "existing",
                };
                [kind.as_bytes(), b"\t", &key].concat()
            }
            Event::Complete => b"complete".to_vec(),
            Event::Gap => b"gap".to_vec(),
            // Without a converter there is nothing else.
            _ => continue,
        };
        let mut out = std::io::stdout().lock();
        let is_terminal = out.is_terminal();
        out.write_all(&escape_bytes(&line, is_terminal))?;
        out.write_all(b"\n")?;
        out.flush()?;
    }
    Ok(())
}

fn input() -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::io::stdin().lock().read_to_end(&mut bytes).context("standard input")?;
    Ok(bytes)
}
