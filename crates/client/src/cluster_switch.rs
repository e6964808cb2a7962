//! The switch to another cluster: by the caller, or by a task when no server is reachable (facts section 9.3).

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::task::Waker;

use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::client_state::ClientState;
use crate::error::ConnectError;

impl ClientState {
    pub(crate) fn switch(&self, to: usize) {
        // The lock of topologies, so that no response of the previous cluster interferes.
        let caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        let mut servers = self.servers.write().unwrap_or_else(PoisonError::into_inner);
        if !self.clusters.set_current(to) {
            return;
        }
        let left = std::mem::take(&mut *servers);
        for cache in caches.values() {
            cache.forget_routing();
        }
        self.has_strangers.store(false, Ordering::Release);
        drop((servers, caches));
        tracing::warn!(cluster = %self.clusters.name(to), "switched to another cluster");
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

    pub(crate) async fn connect(&self) -> Result<(), ConnectError> {
        let mut troubles = Vec::new();
        for index in 0..self.clusters.count() {
            self.switch(index);
            self.start_initial();
            match self.wait_for_one().await {
                Err(ConnectError::Unreachable(more)) => troubles.extend(more),
                other => return other,
            }
        }
        Err(ConnectError::Unreachable(troubles))
    }

    pub(crate) fn keep_cluster(self: &Arc<Self>) {
        if self.clusters.count() > 1 {
            let keeping = keep(Arc::downgrade(self), self.changed.clone());
            self.tasks().spawn_on(keeping, &self.runtime);
        }
    }

    fn has_lost_cluster(&self) -> bool {
        let is_up = || self.all().iter().any(|server| server.handle().is_some());
        if is_up() {
            return false;
        }
        // The topology may have replaced the initial servers.
        self.start_initial();
        self.all()
            .iter()
            .all(|server| server.handle().is_none() && server.failures() >= self.clusters.attempts())
    }

    async fn reachable_cluster(&self) -> Option<usize> {
        for index in self.clusters.others() {
            let mut trying = JoinSet::new();
            for address in self.clusters.servers_of(index) {
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

async fn keep(client: Weak<ClientState>, changed: Arc<Notify>) {
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
