//! `consort cache`: caches of servers, from the command line.

use std::io::{Read, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand};
use consort_client::{Client, Lifetime};

#[derive(Args)]
#[command(
    after_help = "Keys and values are bytes as they are. The exit code is 2 for errors.\n\nExamples:\n  consort cache create shop\n  \
    consort cache put shop apples 3\n  consort cache get shop apples\n  \
    consort cache put shop photo - < photo.jpg\n  consort cache --at 10.0.0.1 ls"
)]
pub(crate) struct Cache {
    /// One of the servers; who has to say who it is, or speaks TLS, gives hotrods://USER:PASSWORD@HOST[:PORT], of which
    /// percent-encoded what is no letter or digit.
    #[arg(long, value_name = "HOST[:PORT]", default_value = "127.0.0.1:11222", global = true)]
    at: String,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Prints what a key has. The exit code is 1 if it has nothing.
    Get { cache: String, key: String },
    /// Gives a key a value.
    Put {
        cache: String,
        key: String,
        /// The value; - is standard input.
        value: String,
        /// How long it lives, in seconds; without it, as the cache's settings have it.
        #[arg(long, value_name = "SECONDS")]
        lifespan: Option<f64>,
        /// Only if the key has nothing. The exit code is 1 if it has.
        #[arg(long)]
        if_absent: bool,
    },
    /// Takes a key's value away. The exit code is 1 if it had none.
    Rm { cache: String, key: String },
    /// The names of the caches.
    Ls,
    /// How many keys a cache has.
    Size { cache: String },
    /// Takes all keys' values away.
    Clear { cache: String },
    /// Makes a cache.
    Create {
        cache: String,
        /// Its settings, in XML or JSON as Infinispan writes them.
        #[arg(default_value = r#"{"distributed-cache": {"owners": 2}}"#)]
        settings: String,
    },
    /// Removes a cache and what it has.
    Drop { cache: String },
}

fn code(is_done: bool) -> ExitCode {
    if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl Cache {
    /// Errors have an exit code of their own, because 1 is an answer.
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        Ok(self.ask().await.unwrap_or_else(|error| {
            eprintln!("consort: {error:#}");
            ExitCode::from(2)
        }))
    }

    async fn ask(self) -> anyhow::Result<ExitCode> {
        let client = Client::connect(&self.at).await?;
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
                out.write_all(&value)?;
                if value.last().is_some_and(|last| *last != b'\n') && std::io::IsTerminal::is_terminal(&out) {
                    out.write_all(b"\n")?;
                }
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
            Verb::Ls => admin.names().await?.iter().for_each(|name| println!("{name}")),
            Verb::Size { cache } => println!("{}", client.raw(&cache).size().await?),
            Verb::Clear { cache } => client.raw(&cache).clear().await?,
            Verb::Create { cache, settings } => admin.create(&cache, &settings).await?,
            Verb::Drop { cache } => admin.remove(&cache).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn input() -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::io::stdin().lock().read_to_end(&mut bytes).context("standard input")?;
    Ok(bytes)
}
