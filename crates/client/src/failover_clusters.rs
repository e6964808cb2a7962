//! Failover between clusters: manually, or when no server of the current cluster is reachable (facts section 9.3). Replication
//! between the clusters is up to the servers.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, Weak};
use std::task::Waker;

use consort_hotrod::ServerAddress;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::client::{Client, ClientBuilder, Inner};
use crate::error::{ClientError, ConnectError};

/// The name of the cluster of the initial servers, as in Java's client.
pub const DEFAULT_CLUSTER: &str = "___DEFAULT-CLUSTER___";

/// A configured cluster.
#[derive(Clone, Debug)]
pub(crate) struct FailoverCluster {
    name: String,
    servers: Vec<ServerAddress>,
}

/// All clusters, and the current one.
pub(crate) struct FailoverClusters {
    all: Vec<FailoverCluster>,
    /// Changed under the lock of the client's servers.
    current: AtomicUsize,
    /// The number of switches. Whatever began before the last switch belongs to another cluster.
    switches: AtomicU64,
    /// Failed attempts to connect to each server before the next cluster is tried.
    attempts: u32,
}

impl FailoverClusters {
    /// The default cluster with these servers, and the others.
    pub(crate) fn new(
        servers: Vec<ServerAddress>,
        others: Vec<FailoverCluster>,
        attempts: u32,
    ) -> Result<Self, ConnectError> {
        let refuse = |reason: String| Err(ConnectError::Uri { reason });
        if servers.is_empty() {
            return refuse("no server".to_owned());
        }
        let mut all = vec![FailoverCluster { name: DEFAULT_CLUSTER.to_owned(), servers }];
        for cluster in others {
            if cluster.servers.is_empty() {
                return refuse(format!("no server of cluster {}", cluster.name));
            }
            if all.iter().any(|other| other.name == cluster.name) {
                return refuse(format!("duplicate cluster {}", cluster.name));
            }
            all.push(cluster);
        }
        let (current, switches) = (AtomicUsize::new(0), AtomicU64::new(0));
        Ok(Self { all, current, switches, attempts: attempts.max(1) })
    }

    fn current(&self) -> usize {
        self.current.load(Ordering::Acquire)
    }

    /// The initial servers of the current cluster.
    pub(crate) fn servers(&self) -> &[ServerAddress] {
        &self.all[self.current()].servers
    }

    /// The number of switches.
    pub(crate) fn switches(&self) -> u64 {
        self.switches.load(Ordering::Acquire)
    }

    /// The topology id that means none, for the current cluster (facts section 1.2).
    pub(crate) fn no_topology(&self) -> i32 {
        if self.switches() == 0 { -1 } else { -2 }
    }

    fn others(&self) -> impl Iterator<Item = usize> {
        let (current, count) = (self.current(), self.all.len());
        (1..count).map(move |step| (current + step) % count)
    }
}

impl ClientBuilder {
    /// Adds a failover cluster with some of its servers. The client switches to it when the current one is
    /// unreachable ([`ClientBuilder::switch_after`]), in the order of these calls, or by
    /// [`Client::switch_to_cluster`]. All clusters share the credentials and certificates.
    #[must_use]
    pub fn cluster(mut self, name: &str, servers: impl IntoIterator<Item = ServerAddress>) -> Self {
        self.clusters.push(FailoverCluster { name: name.to_owned(), servers: servers.into_iter().collect() });
        self
    }

    /// Sets after how many failed attempts in a row to connect to each known server the client switches
    /// clusters; default three. A refused connection fails within a second. If nothing responds, an open
    /// connection takes 25 s to be noticed, and each attempt 5 s.
    #[must_use]
    pub const fn switch_after(mut self, attempts: u32) -> Self {
        self.switch_after = attempts;
        self
    }
}

impl Client {
    /// Returns the name of the current cluster; [`DEFAULT_CLUSTER`] for that of the initial servers.
    pub fn cluster(&self) -> &str {
        let clusters = &self.inner().clusters;
        &clusters.all[clusters.current()].name
    }

    /// Switches to the cluster of this name ([`ClientBuilder::cluster`]) until it is unreachable. Later
    /// operations go there; requests in flight are still answered by the previous cluster. Near caches are
    /// emptied. Listeners get a gap event and register there, or end if the cache or counter does not exist.
    /// Iterations in progress end with [`ClientError::IterationInterrupted`], values in chunks with
    /// [`ClientError::StreamLost`].
    ///
    /// # Errors
    ///
    /// [`ClientError::NoSuchCluster`]. An unreachable cluster shows with the first operation.
    pub fn switch_to_cluster(&self, name: &str) -> Result<(), ClientError> {
        let inner = self.inner();
        let index = inner.clusters.all.iter().position(|cluster| cluster.name == name);
        inner.switch(index.ok_or_else(|| ClientError::NoSuchCluster(name.to_owned()))?);
        Ok(())
    }

    /// Switches to the cluster of the initial servers, as [`Client::switch_to_cluster`].
    pub fn switch_to_default_cluster(&self) {
        self.inner().switch(0);
    }
}

impl Inner {
    /// Switches to this cluster, unless it is the current one.
    fn switch(&self, to: usize) {
        // The lock of topologies, so that no response of the previous cluster interferes.
        let caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        let mut servers = self.servers.write().unwrap_or_else(PoisonError::into_inner);
        if self.clusters.current() == to {
            return;
        }
        self.clusters.current.store(to, Ordering::Release);
        self.clusters.switches.fetch_add(1, Ordering::AcqRel);
        let left = std::mem::take(&mut *servers);
        for cache in caches.values() {
            cache.forget_routing();
        }
        self.has_strangers.store(false, Ordering::Release);
        drop((servers, caches));
        tracing::warn!(cluster = %self.clusters.all[to].name, "switched to another cluster");
        for server in left {
            if let Some(handle) = server.handle() {
                let mut connection = handle.lock();
                connection.drain();
                let wakers: Vec<Waker> = connection.sinks.disconnect().collect();
                drop(connection);
                wakers.into_iter().for_each(Waker::wake);
            }
            server.retire();
        }
        self.start_initial();
        self.changed.notify_waiters();
    }

    /// Connects to the first cluster with a reachable server.
    pub(crate) async fn connect(&self) -> Result<(), ConnectError> {
        let mut troubles = Vec::new();
        for index in 0..self.clusters.all.len() {
            self.switch(index);
            self.start_initial();
            match self.wait_for_one().await {
                Err(ConnectError::Unreachable(more)) => troubles.extend(more),
                other => return other,
            }
        }
        Err(ConnectError::Unreachable(troubles))
    }

    /// Starts the failover task, if there is more than one cluster.
    pub(crate) fn keep_cluster(self: &Arc<Self>) {
        if self.clusters.all.len() > 1 {
            let keeping = keep(Arc::downgrade(self), self.changed.clone());
            self.tasks().spawn_on(keeping, &self.runtime);
        }
    }

    /// Whether no server of the cluster is usable, and each has failed often enough.
    fn has_lost_cluster(&self) -> bool {
        let is_up = || self.all().iter().any(|server| server.handle().is_some());
        if is_up() {
            return false;
        }
        // The topology may have replaced the initial servers.
        self.start_initial();
        self.all()
            .iter()
            .all(|server| server.handle().is_none() && server.failures() >= self.clusters.attempts)
    }

    /// Returns another cluster with a reachable server.
    async fn reachable_cluster(&self) -> Option<usize> {
        for index in self.clusters.others() {
            let mut trying = JoinSet::new();
            for address in &self.clusters.all[index].servers {
                let server = self.new_server(address);
                trying.spawn(async move { server.answers().await });
            }
            while let Some(answers) = trying.join_next().await {
                if answers.unwrap_or(false) {
                    return Some(index);
                }
            }
        }
        None
    }
}

/// Checks the cluster after every failed attempt to connect.
async fn keep(client: Weak<Inner>, changed: Arc<Notify>) {
    loop {
        let notified = changed.notified();
        tokio::pin!(notified);
        notified.as_mut().enable();
        let Some(client) = client.upgrade() else { return };
        let before = client.clusters.switches();
        if client.has_lost_cluster()
            && let Some(index) = client.reachable_cluster().await
            // Meanwhile servers may be back, or the caller may have switched.
            && client.clusters.switches() == before
            && client.has_lost_cluster()
        {
            client.switch(index);
        }
        drop(client);
        notified.await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(count: u16) -> Vec<ServerAddress> {
        (0..count).map(|port| ServerAddress { host: "h".into(), port }).collect()
    }

    fn cluster(name: &str, count: u16) -> FailoverCluster {
        FailoverCluster { name: name.to_owned(), servers: servers(count) }
    }

    #[test]
    fn the_others_are_tried_in_their_order_from_the_current_one_on() {
        let clusters = FailoverClusters::new(servers(2), vec![cluster("a", 1), cluster("b", 1)], 0).unwrap();
        assert_eq!((clusters.servers().len(), clusters.no_topology(), clusters.attempts), (2, -1, 1));
        assert!(clusters.others().eq([1, 2]));
        clusters.current.store(1, Ordering::Release);
        assert!(clusters.others().eq([2, 0]));
        let alone = FailoverClusters::new(servers(1), Vec::new(), 3).unwrap();
        assert_eq!(alone.others().count(), 0);
    }

    #[test]
    fn clusters_have_servers_and_names_of_their_own() {
        for (first, others, reason) in [
            (0, vec![], "no server"),
            (1, vec![cluster("a", 0)], "no server of cluster a"),
            (1, vec![cluster("a", 1), cluster("a", 1)], "duplicate cluster a"),
            (1, vec![cluster(DEFAULT_CLUSTER, 1)], "duplicate cluster ___DEFAULT-CLUSTER___"),
        ] {
            let Err(error) = FailoverClusters::new(servers(first), others, 3) else { panic!("{reason}") };
            assert!(error.to_string().ends_with(reason), "{error}");
        }
    }
}
