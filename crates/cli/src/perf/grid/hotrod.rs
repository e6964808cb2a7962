//! The same test through servers, with clients in this process.

use std::sync::Arc;

use anyhow::Context;
use consort_client::{Client, RawCache, Traffic};
use tokio::task::JoinSet;

use super::figures::Figures;
use super::load::{self, Done, Run, Test};

const CACHE: &str = "perf";

/// Invokers share one client, or have several, as threads share a pool of connections.
pub(crate) struct Clients(Vec<Vec<Client>>);

impl Clients {
    /// Creates the cache with this number of owners unless it exists.
    pub(crate) async fn connect(at: &str, count: usize, each: u32, owners: u16) -> anyhow::Result<Self> {
        let mut clients = Vec::new();
        for _ in 0..count {
            let mut own = Vec::new();
            for _ in 0..each {
                own.push(Client::connect(at).await.with_context(|| at.to_owned())?);
            }
            clients.push(own);
        }
        let clients = Self(clients);
        if let Some(client) = clients.all().next() {
            let settings = serde_json::json!({"distributed-cache": {"owners": owners}}).to_string();
            client.administration().get_or_create(CACHE, &settings).await?;
        }
        Ok(clients)
    }

    fn all(&self) -> impl Iterator<Item = &Client> {
        self.0.iter().flatten()
    }

    pub(crate) async fn populate(&self, test: &Test) -> anyhow::Result<()> {
        if let Some(client) = self.all().next() {
            let settings = &test.settings;
            load::populate(&client.raw(CACHE), 1..=settings.keys, settings.size, |_| ()).await?;
        }
        Ok(())
    }

    pub(crate) fn start(&self, test: &Test) -> Running {
        let mut running = Running { runs: Vec::new(), tasks: JoinSet::new() };
        for (nth, own) in self.0.iter().enumerate() {
            let caches: Vec<RawCache> = own.iter().map(|client| client.raw(CACHE)).collect();
            let (test, run) = (test.clone(), Arc::new(Run::default()));
            running.runs.push(run.clone());
            let name = format!("client {}", nth + 1);
            running.tasks.spawn(async move {
                let cache = |nth: u32| caches[nth as usize % caches.len()].clone();
                run.carry_out(cache, &test, &name, |_| ()).await
            });
        }
        running
    }

    pub(crate) async fn count(&self, keys: u32) -> anyhow::Result<u32> {
        let client = self.all().next().context("no client")?;
        Ok(load::count(&client.raw(CACHE), keys).await?)
    }

    pub(crate) fn servers(&self) -> usize {
        self.all().map(|client| client.servers().len()).min().unwrap_or(0)
    }

    /// The number of connections, and how often requests shared a system call.
    pub(crate) fn text(&self) -> String {
        let (mut requests, mut writes, mut connections) = (0, 0, 0);
        for client in self.all() {
            let Traffic { requests: own, writes: own_writes, .. } = client.traffic();
            requests += own;
            writes += own_writes;
            connections += client.servers().len();
        }
        let each = requests as f64 / writes.max(1) as f64;
        format!("Connections: {connections}, {each:.1} requests per write")
    }
}

pub(crate) struct Running {
    runs: Vec<Arc<Run>>,
    tasks: JoinSet<anyhow::Result<Figures>>,
}

impl Running {
    pub(crate) fn done(&self) -> Done {
        self.counter()()
    }

    pub(crate) fn counter(&self) -> impl Fn() -> Done + use<> {
        let runs = self.runs.clone();
        move || runs.iter().map(|run| run.done()).sum()
    }

    pub(crate) fn end(&self) {
        self.runs.iter().for_each(|run| run.end());
    }

    pub(crate) async fn figures(mut self) -> anyhow::Result<Vec<Figures>> {
        let mut all = Vec::new();
        while let Some(figures) = self.tasks.join_next().await {
            all.push(figures??);
        }
        all.sort_by(|one, other| one.name.cmp(&other.name));
        // Each has counted the CPU time of the process, which is that of all.
        let count = all.len() as f64;
        all.iter_mut().for_each(|figures| figures.cpu_s /= count);
        Ok(all)
    }
}
