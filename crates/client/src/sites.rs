//! Clusters between which a client can go, each at a site of its own: by hand, and when none of the servers of the one can be
//! reached any more (facts section 9.3). What their caches have in common is the servers' affair.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, Weak};
use std::task::Waker;

use consort_hotrod::ServerAddress;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::client::{Client, ClientBuilder, Inner};
use crate::error::{ClientError, ConnectError};

/// The name of the cluster that a client begins with: that of the servers that are named first. Java's clients call it so.
pub const DEFAULT_CLUSTER: &str = "___DEFAULT-CLUSTER___";

/// A cluster that a client was given.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    name: String,
    servers: Vec<ServerAddress>,
}

/// All of them, and which one is used.
pub(crate) struct Sites {
    all: Vec<Site>,
    /// Changed under the lock of the client's servers.
    current: AtomicUsize,
    /// How often the client has gone from one to another. What was begun before the last time is of another cluster.
    switches: AtomicU64,
    /// Failed attempts to connect with each server until the next one is tried.
    attempts: u32,
}

impl Sites {
    /// The one of these servers, and others.
    pub(crate) fn new(
        servers: Vec<ServerAddress>,
        others: Vec<Site>,
        attempts: u32,
    ) -> Result<Self, ConnectError> {
        let refuse = |reason: String| Err(ConnectError::Uri { reason });
        if servers.is_empty() {
            return refuse("no server is named".to_owned());
        }
        let mut all = vec![Site { name: DEFAULT_CLUSTER.to_owned(), servers }];
        for site in others {
            if site.servers.is_empty() {
                return refuse(format!("no server of the cluster {} is named", site.name));
            }
            if all.iter().any(|other| other.name == site.name) {
                return refuse(format!("the cluster {} is there twice", site.name));
            }
            all.push(site);
        }
        let (current, switches) = (AtomicUsize::new(0), AtomicU64::new(0));
        Ok(Self { all, current, switches, attempts: attempts.max(1) })
    }

    fn current(&self) -> usize {
        self.current.load(Ordering::Acquire)
    }

    /// The servers that the current one was given with.
    pub(crate) fn servers(&self) -> &[ServerAddress] {
        &self.all[self.current()].servers
    }

    /// How often the client has gone from one to another.
    pub(crate) fn switches(&self) -> u64 {
        self.switches.load(Ordering::Acquire)
    }

    /// What servers are told by who has no topology of theirs (facts section 1.2).
    pub(crate) fn no_topology(&self) -> i32 {
        if self.switches() == 0 { -1 } else { -2 }
    }

    fn others(&self) -> impl Iterator<Item = usize> {
        let (current, count) = (self.current(), self.all.len());
        (1..count).map(move |step| (current + step) % count)
    }
}

impl ClientBuilder {
    /// Another cluster, at another site, with some of its servers. It is gone on with when those in use cannot be reached
    /// ([`ClientBuilder::switch_after`]), in the order in which they are given, or by [`Client::switch_to_cluster`]. Users and
    /// certificates are the same for all.
    #[must_use]
    pub fn cluster(mut self, name: &str, servers: impl IntoIterator<Item = ServerAddress>) -> Self {
        self.clusters.push(Site { name: name.to_owned(), servers: servers.into_iter().collect() });
        self
    }

    /// Goes on with another cluster once so many attempts in a row to connect with each known server of this one have failed,
    /// three unless it is said. Servers whose host is there and says that they are not are given up within a second; where
    /// nothing answers any more, an open connection is silent for 25 seconds before that is noticed, and each attempt takes
    /// five.
    #[must_use]
    pub const fn switch_after(mut self, attempts: u32) -> Self {
        self.switch_after = attempts;
        self
    }
}

impl Client {
    /// The name of the cluster that is used, [`DEFAULT_CLUSTER`] for that of the servers that were named first.
    pub fn cluster(&self) -> &str {
        let sites = &self.inner().sites;
        &sites.all[sites.current()].name
    }

    /// Goes on with the cluster of this name ([`ClientBuilder::cluster`]), and stays there until it cannot be reached. What
    /// is asked from now on is asked there; what was sent before is still answered by the other one. Near caches are empty,
    /// listeners are told of a gap and are added there, or end if there is no such cache or counter, walks that are under
    /// way end with [`ClientError::IterationInterrupted`], and values in pieces with [`ClientError::StreamLost`].
    ///
    /// # Errors
    ///
    /// [`ClientError::NoSuchCluster`]. Whether its servers can be reached shows with the first operation.
    pub fn switch_to_cluster(&self, name: &str) -> Result<(), ClientError> {
        let inner = self.inner();
        let place = inner.sites.all.iter().position(|site| site.name == name);
        inner.switch(place.ok_or_else(|| ClientError::NoSuchCluster(name.to_owned()))?);
        Ok(())
    }

    /// Goes on with the servers that were named first, as [`Client::switch_to_cluster`].
    pub fn switch_to_default_cluster(&self) {
        self.inner().switch(0);
    }
}

impl Inner {
    /// Leaves the cluster for this one, unless it is the same.
    fn switch(&self, to: usize) {
        // What topologies are taken over under: no answer of the old one's comes between.
        let caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        let mut servers = self.servers.write().unwrap_or_else(PoisonError::into_inner);
        if self.sites.current() == to {
            return;
        }
        self.sites.current.store(to, Ordering::Release);
        self.sites.switches.fetch_add(1, Ordering::AcqRel);
        let left = std::mem::take(&mut *servers);
        for cache in caches.values() {
            cache.forget_routing();
        }
        self.has_strangers.store(false, Ordering::Release);
        drop((servers, caches));
        tracing::warn!(cluster = %self.sites.all[to].name, "the client goes on with another cluster");
        for server in left {
            if let Some(link) = server.link() {
                let mut connection = link.lock();
                connection.drain();
                let told: Vec<Waker> = connection.sinks.disconnect().collect();
                drop(connection);
                told.into_iter().for_each(Waker::wake);
            }
            server.retire();
        }
        self.start_initial();
        self.changed.notify_waiters();
    }

    /// Connects with the first cluster that has a server for it.
    pub(crate) async fn connect(&self) -> Result<(), ConnectError> {
        let mut troubles = Vec::new();
        for place in 0..self.sites.all.len() {
            self.switch(place);
            self.start_initial();
            match self.wait_for_one().await {
                Err(ConnectError::Unreachable(more)) => troubles.extend(more),
                other => return other,
            }
        }
        Err(ConnectError::Unreachable(troubles))
    }

    /// Keeps the client at a cluster that can be reached, if it has more than one.
    pub(crate) fn keep_site(self: &Arc<Self>) {
        if self.sites.all.len() > 1 {
            let keeping = keep(Arc::downgrade(self), self.changed.clone());
            self.tasks().spawn_on(keeping, &self.runtime);
        }
    }

    /// Whether none of the cluster's servers can be reached, and each was tried often enough.
    fn has_lost_site(&self) -> bool {
        let is_up = || self.all().iter().any(|server| server.link().is_some());
        if is_up() {
            return false;
        }
        // The topology may have named others than those that the client was given.
        self.start_initial();
        self.all().iter().all(|server| server.link().is_none() && server.failures() >= self.sites.attempts)
    }

    /// Another cluster that has a server for us.
    async fn reachable_site(&self) -> Option<usize> {
        for place in self.sites.others() {
            let mut trying = JoinSet::new();
            for address in &self.sites.all[place].servers {
                let server = self.new_server(address);
                trying.spawn(async move { server.answers().await });
            }
            while let Some(answers) = trying.join_next().await {
                if answers.unwrap_or(false) {
                    return Some(place);
                }
            }
        }
        None
    }
}

/// Looks after every attempt to connect that has failed.
async fn keep(client: Weak<Inner>, changed: Arc<Notify>) {
    loop {
        let notified = changed.notified();
        tokio::pin!(notified);
        notified.as_mut().enable();
        let Some(client) = client.upgrade() else { return };
        let before = client.sites.switches();
        if client.has_lost_site()
            && let Some(place) = client.reachable_site().await
            // Meanwhile servers may be back, or somebody may have switched by hand.
            && client.sites.switches() == before
            && client.has_lost_site()
        {
            client.switch(place);
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

    fn site(name: &str, count: u16) -> Site {
        Site { name: name.to_owned(), servers: servers(count) }
    }

    #[test]
    fn the_others_are_tried_in_their_order_from_the_current_one_on() {
        let sites = Sites::new(servers(2), vec![site("a", 1), site("b", 1)], 0).unwrap();
        assert_eq!((sites.servers().len(), sites.no_topology(), sites.attempts), (2, -1, 1));
        assert!(sites.others().eq([1, 2]));
        sites.current.store(1, Ordering::Release);
        assert!(sites.others().eq([2, 0]));
        let alone = Sites::new(servers(1), Vec::new(), 3).unwrap();
        assert_eq!(alone.others().count(), 0);
    }

    #[test]
    fn clusters_have_servers_and_names_of_their_own() {
        for (first, others, reason) in [
            (0, vec![], "no server is named"),
            (1, vec![site("a", 0)], "no server of the cluster a is named"),
            (1, vec![site("a", 1), site("a", 1)], "the cluster a is there twice"),
            (1, vec![site(DEFAULT_CLUSTER, 1)], "the cluster ___DEFAULT-CLUSTER___ is there twice"),
        ] {
            let Err(error) = Sites::new(servers(first), others, 3) else { panic!("{reason}") };
            assert!(error.to_string().ends_with(reason), "{error}");
        }
    }
}
