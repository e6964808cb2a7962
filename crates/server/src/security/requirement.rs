//! Whether servers of a cluster require authentication.
//!
//! A server without users would serve its cluster's caches to every client, although other servers protect them. So a server with
//! users publishes its requirement in the cache of servers, under a key that earlier versions skip. A server that requires less
//! does not start, or refuses its clients while the other is a member, unless it is configured to allow that.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use consort_hotrod::Status;
use tokio::sync::Notify;

use crate::reply::Answer;

/// Closed connections are swept out from this number on.
const SWEEP_MIN: usize = 64;

pub(crate) struct Requirement {
    pub(crate) requires_users: bool,
    is_weaker_allowed: bool,
    is_weaker: AtomicBool,
    connections: Mutex<OpenConnections>,
}

struct OpenConnections {
    all: Vec<Weak<Notify>>,
    sweep_at: usize,
}

impl Requirement {
    pub(crate) const fn new(requires_users: bool, is_weaker_allowed: bool) -> Self {
        let connections = Mutex::new(OpenConnections { all: Vec::new(), sweep_at: SWEEP_MIN });
        Self { requires_users, is_weaker_allowed, is_weaker: AtomicBool::new(false), connections }
    }

    pub(crate) fn refuses(&self) -> bool {
        !self.is_weaker_allowed && self.is_weaker.load(Ordering::Relaxed)
    }

    pub(crate) fn refusal(&self) -> Option<Answer> {
        self.refuses().then(|| {
            let text = format!("java.lang.SecurityException: ISPN006017: {}", Self::REFUSAL);
            Answer::error(Status::ServerError, text)
        })
    }

    pub(crate) const REFUSAL: &str =
        "this server has no users, and other servers of its cluster require authentication";

    /// The connection ends when clients are refused.
    pub(crate) fn register_connection(&self, end: &Arc<Notify>) {
        if self.requires_users || self.is_weaker_allowed {
            return;
        }
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        if connections.all.len() >= connections.sweep_at {
            connections.all.retain(|one| one.strong_count() > 0);
            connections.sweep_at = (connections.all.len() * 2).max(SWEEP_MIN);
        }
        connections.all.push(Arc::downgrade(end));
    }

    pub(crate) fn compare(&self, others: &[String]) {
        if self.requires_users {
            return;
        }
        let is_weaker = !others.is_empty();
        if self.is_weaker.swap(is_weaker, Ordering::Relaxed) == is_weaker {
            return;
        }
        let others = others.join(", ");
        if self.is_weaker_allowed {
            if is_weaker {
                tracing::warn!(
                    %others,
                    "this server has no users and serves every client as configured; other servers require authentication"
                );
            }
            return;
        }
        if is_weaker {
            tracing::error!(
                %others,
                "refusing all clients: this server has no users, and other servers require authentication; \
                 restart it with their users (--users), or with --allow-weaker-authentication to serve every client"
            );
            let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
            connections.all.drain(..).filter_map(|end| end.upgrade()).for_each(|end| end.notify_one());
        } else {
            tracing::warn!("serving clients again: no other server requires authentication");
        }
    }
}
