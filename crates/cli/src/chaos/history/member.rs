//! A member whose clients record their operations: with an embedded cache, or as a Hot Rod server.

use std::path::PathBuf;
use std::rc::Rc;

use anyhow::Context;
use consort_cache::{CacheConfig, CacheManager, CacheMode};
use consort_client::Client;
use consort_server::{CacheDefinitions, Server};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::oneshot;

use super::super::clients::Tally;
use super::super::member::{CACHE, Order, Reply, member_state, send_reply};
use super::client::HistoryClients;
use super::record::Recorder;
use super::target::Target;
use crate::shutdown::{Signals, leave_gracefully};

const PORT: u16 = 11222;

const DEFINITION: &str = r#"{"caches": {"chaos": {"distributed-cache": {"owners": 2}}}}"#;

pub(in crate::chaos) struct Setting {
    pub(in crate::chaos) manager: CacheManager,
    pub(in crate::chaos) operations: PathBuf,
    pub(in crate::chaos) servers: Option<Servers>,
    pub(in crate::chaos) clients: u32,
}

pub(in crate::chaos) struct Servers {
    pub(in crate::chaos) bind: String,
    pub(in crate::chaos) all: Vec<String>,
}

struct RunningServer {
    end: oneshot::Sender<()>,
    ended: tokio::task::JoinHandle<Result<(), consort_cache::HandoverTimeout>>,
    client: Client,
}

impl RunningServer {
    async fn start(manager: CacheManager, servers: &Servers) -> anyhow::Result<Self> {
        let definitions = CacheDefinitions::parse("the cache of a history", DEFINITION)?;
        let builder = Server::builder().host(&servers.bind).port(PORT).caches(definitions);
        let server = builder.start(manager).await.context("starting the server")?;
        let (end, asked) = oneshot::channel();
        let serving = server.serve_until(async {
            // A sender that is gone asks for the same.
            let _ = asked.await;
        });
        let ended = tokio::task::spawn_local(serving);
        // The own server first: others may not run yet.
        let others = servers.all.iter().filter(|host| **host != servers.bind);
        let hosts: Vec<&str> = std::iter::once(&servers.bind).chain(others).map(String::as_str).collect();
        let client = Client::connect(&format!("hotrod://{}", hosts.join(","))).await?;
        Ok(Self { end, ended, client })
    }

    async fn end(self) -> anyhow::Result<()> {
        self.client.close().await;
        let _ = self.end.send(());
        Ok(self.ended.await??)
    }
}

pub(in crate::chaos) async fn serve(setting: Setting) -> anyhow::Result<()> {
    let Setting { manager, operations, servers, clients } = setting;
    let mut signals = Signals::listen()?;
    let recorder = Rc::new(Recorder::create(&operations).context("creating the file of operations")?);
    let name = manager.name().to_owned();
    let (target, server) = match servers {
        None => {
            let config =
                CacheConfig { mode: CacheMode::Distributed { owners: 2 }, ..CacheConfig::new(CACHE) };
            (Target::embedded(&manager.open(config).raw().await?), None)
        }
        Some(servers) => {
            let server = RunningServer::start(manager.clone(), &servers).await?;
            (Target::HotRod(server.client.raw(CACHE)), Some(server))
        }
    };
    send_reply(0, Reply::Ready);
    let mut working: Option<HistoryClients> = None;
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    loop {
        let line = tokio::select! {
            line = lines.next_line() => line.context("the input")?,
            _ = signals.next() => {
                if let Some(working) = working.take() {
                    working.stop().await?;
                }
                return match server {
                    Some(server) => server.end().await,
                    None => leave_gracefully(manager, signals.next(), |_| ()).await,
                };
            }
        };
        let Some(line) = line else {
            manager.abort().await;
            return Ok(());
        };
        let (number, order): (u64, Order) = serde_json::from_str(&line).context("an order")?;
        let reply = match order {
            Order::Work => {
                working.get_or_insert_with(|| HistoryClients::start(&target, &recorder, &name, clients));
                Reply::Done
            }
            Order::Stop => match working.take() {
                None => Reply::Tally(Tally::default()),
                Some(working) => match working.stop().await {
                    Ok(_) => Reply::Tally(Tally::default()),
                    Err(error) => Reply::Failed(format!("{error:#}")),
                },
            },
            Order::Look => Reply::State(member_state(&manager)),
            Order::Populate | Order::Read => Reply::Failed(format!("{order:?} is not for a history")),
        };
        send_reply(number, reply);
    }
}
