//! Clients of members: each runs one operation after another.

use std::time::Duration;

use bytes::Bytes;
use consort_grid::Action;

use crate::cluster::Cluster;

/// Timeout of an operation.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

struct Client {
    member: usize,
    running: Option<usize>,
}

#[derive(Default)]
pub(crate) struct Clients(Vec<Client>);

impl Clients {
    /// Starts members at different times, each with this many clients.
    pub(crate) fn start(cluster: &mut Cluster, members: u64, each: usize) -> Self {
        let mut all = Self::default();
        for _ in 0..members {
            let member = cluster.start();
            all.add(member, each);
            let pause = cluster.rng.duration(Duration::ZERO, Duration::from_millis(200));
            cluster.run(pause);
        }
        all
    }

    pub(crate) fn add(&mut self, member: usize, count: usize) {
        self.0.extend((0..count).map(|_| Client { member, running: None }));
    }

    /// Begins the next operation of each idle client, if there is one.
    pub(crate) fn begin(
        &mut self,
        cluster: &mut Cluster,
        mut next: impl FnMut(&mut Cluster) -> Option<(Bytes, Action)>,
    ) {
        for client in &mut self.0 {
            let is_there = cluster.members[client.member].as_ref().is_some_and(|member| !member.is_left);
            if client.running.is_none()
                && is_there
                && let Some((key, action)) = next(cluster)
            {
                client.running = Some(cluster.submit(client.member, key, action, TIMEOUT));
            }
        }
    }

    /// Lets 1 ms pass. Returns the operations that have ended, as indexes in the history.
    pub(crate) fn pass(&mut self, cluster: &mut Cluster) -> Vec<usize> {
        let step = cluster.now + Duration::from_millis(1);
        while cluster.step(step) {}
        self.note_ended(cluster)
    }

    /// Marks clients whose operations have ended as idle. Returns these operations, as indexes in the history.
    pub(crate) fn note_ended(&mut self, cluster: &mut Cluster) -> Vec<usize> {
        let ended = std::mem::take(&mut cluster.ended);
        for client in &mut self.0 {
            client.running.take_if(|running| ended.contains(running));
        }
        ended
    }
}
