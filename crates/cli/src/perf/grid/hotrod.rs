//! The same test through servers: clients in this process, each with connections of its own.

use std::sync::Arc;

use anyhow::Context;
use consort_client::{Client, Traffic};
use tokio::task::JoinSet;

use super::figures::Figures;
use super::load::{self, Run, Test};

/// The cache that is read and written.
const CACHE: &str = "perf";

/// Clients of the same servers.
pub(super) struct Clients(Vec<Client>);

impl Clients {
    /// Connects so many, and makes the cache with so many owners of each key unless it is there.
    pub(super) async fn connect(at: &str, count: usize, owners: u16) -> anyhow::Result<Self> {
        let mut clients = Vec::new();
        for _ in 0..count {
            clients.push(Client::connect(at).await.with_context(|| at.to_owned())?);
        }
        if let Some(client) = clients.first() {
            let settings = serde_json::json!({"distributed-cache": {"owners": owners}}).to_string();
            client.administration().get_or_create(CACHE, &settings).await?;
        }
        Ok(Self(clients))
    }

    /// Puts all keys.
    pub(super) async fn populate(&self, test: &Test) -> anyhow::Result<()> {
        if let Some(client) = self.0.first() {
            let settings = &test.settings;
            load::populate(&client.raw(CACHE), 1..=settings.keys, settings.size, |_| ()).await?;
        }
        Ok(())
    }

    /// Runs the test on all clients at once.
    pub(super) async fn run(&self, test: &Test) -> anyhow::Result<Vec<Figures>> {
        let mut running = JoinSet::new();
        for (nth, client) in self.0.iter().enumerate() {
            let (cache, test) = (client.raw(CACHE), test.clone());
            let name = format!("client {}", nth + 1);
            running.spawn(async move {
                let mut figures = Arc::new(Run::default()).carry_out(cache, &test, &name, |_| ()).await?;
                figures.name = name;
                anyhow::Ok(figures)
            });
        }
        let mut all = Vec::new();
        while let Some(figures) = running.join_next().await {
            all.push(figures??);
        }
        all.sort_by(|one, other| one.name.cmp(&other.name));
        // Each has counted what the process has used, which is that of all.
        let count = all.len() as f64;
        all.iter_mut().for_each(|figures| figures.cpu_s /= count);
        Ok(all)
    }

    /// How many connections there are, and how often requests shared a system call.
    pub(super) fn text(&self) -> String {
        let (mut requests, mut writes, mut connections) = (0, 0, 0);
        for client in &self.0 {
            let Traffic { requests: own, writes: own_writes, .. } = client.traffic();
            requests += own;
            writes += own_writes;
            connections += client.servers().len();
        }
        let each = requests as f64 / writes.max(1) as f64;
        format!("Connections: {connections}, {each:.1} requests per write")
    }
}
