//! The clusters of a client (facts section 9.3); servers replicate between them.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use consort_hotrod::ServerAddress;

use crate::error::ConnectError;

/// The cluster of the initial servers, named as in Java's client.
pub const DEFAULT_CLUSTER: &str = "___DEFAULT-CLUSTER___";

#[derive(Clone, Debug)]
pub(crate) struct FailoverCluster {
    name: String,
    servers: Vec<ServerAddress>,
}

impl FailoverCluster {
    pub(crate) fn new(name: &str, servers: impl IntoIterator<Item = ServerAddress>) -> Self {
        Self { name: name.to_owned(), servers: servers.into_iter().collect() }
    }
}

pub(crate) struct FailoverClusters {
    all: Vec<FailoverCluster>,
    /// Changed under the lock of the client's servers.
    current: AtomicUsize,
    /// Switches so far; a request begun before the last one belongs to another cluster.
    switches: AtomicU64,
    /// Failed attempts per server before the next cluster is tried.
    attempts: u32,
}

impl FailoverClusters {
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

    /// Returns whether another cluster was current. The caller holds the lock of the client's servers.
    pub(crate) fn set_current(&self, index: usize) -> bool {
        if self.current() == index {
            return false;
        }
        self.current.store(index, Ordering::Release);
        self.switches.fetch_add(1, Ordering::AcqRel);
        true
    }

    pub(crate) const fn count(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn index_of(&self, name: &str) -> Option<usize> {
        self.all.iter().position(|cluster| cluster.name == name)
    }

    pub(crate) fn name(&self, index: usize) -> &str {
        &self.all[index].name
    }

    pub(crate) fn current_name(&self) -> &str {
        self.name(self.current())
    }

    pub(crate) fn servers_of(&self, index: usize) -> &[ServerAddress] {
        &self.all[index].servers
    }

    pub(crate) fn servers(&self) -> &[ServerAddress] {
        self.servers_of(self.current())
    }

    pub(crate) const fn attempts(&self) -> u32 {
        self.attempts
    }

    pub(crate) fn switches(&self) -> u64 {
        self.switches.load(Ordering::Acquire)
    }

    /// Returns the current cluster's id for "no topology" (facts section 1.2).
    pub(crate) fn no_topology(&self) -> i32 {
        if self.switches() == 0 { -1 } else { -2 }
    }

    pub(crate) fn others(&self) -> impl Iterator<Item = usize> {
        let (current, count) = (self.current(), self.all.len());
        (1..count).map(move |step| (current + step) % count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(count: u16) -> Vec<ServerAddress> {
        (0..count).map(|port| ServerAddress { host: "h".into(), port }).collect()
    }

    fn cluster(name: &str, count: u16) -> FailoverCluster {
        FailoverCluster::new(name, servers(count))
    }

    #[test]
    fn the_others_are_tried_in_their_order_from_the_current_one_on() {
        let clusters = FailoverClusters::new(servers(2), vec![cluster("a", 1), cluster("b", 1)], 0).unwrap();
        assert_eq!((clusters.servers().len(), clusters.no_topology(), clusters.attempts), (2, -1, 1));
        assert!(clusters.others().eq([1, 2]));
        assert!(clusters.set_current(1));
        assert!(!clusters.set_current(1), "it is the current one already");
        assert!(clusters.others().eq([2, 0]));
        assert_eq!((clusters.current_name(), clusters.switches(), clusters.no_topology()), ("a", 1, -2));
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
