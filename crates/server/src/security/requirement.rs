//! What the servers of a cluster require of their clients: that each is a user, or nothing.
//!
//! A server without users that shares its caches with servers that have users would serve to everyone what the others protect.
//! So a server with users says so in the cache of servers, under a name of its own beside its address, which servers that do
//! not know of it pass over. A server that requires less than another one does not start, or refuses its clients from the
//! moment it learns of the other one until that has gone, unless its owner allows the difference.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use consort_cache::CacheError;
use consort_hotrod::Status;
use tokio::sync::Notify;

use crate::answer::Answer;
use crate::caches::Caches;

/// What the names begin with under which servers say what they require.
const KEY: &str = "requires ";

/// What stands there.
const AUTHENTICATION: &[u8] = b"authentication";

/// From so many connections on it is looked which of them have gone.
const SWEPT_FROM: usize = 64;

/// What a server requires, beside what others do.
pub(crate) struct Requirement {
    /// Its clients have to be users.
    requires_users: bool,
    /// Its owner allows that others require more.
    is_weaker_allowed: bool,
    /// Others require more.
    is_weaker: AtomicBool,
    connected: Mutex<Connected>,
}

/// What ends the connections that are there.
struct Connected {
    all: Vec<Weak<Notify>>,
    swept_from: usize,
}

impl Requirement {
    pub(crate) const fn new(requires_users: bool, is_weaker_allowed: bool) -> Self {
        let connected = Mutex::new(Connected { all: Vec::new(), swept_from: SWEPT_FROM });
        Self { requires_users, is_weaker_allowed, is_weaker: AtomicBool::new(false), connected }
    }

    /// Whether clients are refused because other servers require that they are users.
    pub(crate) fn refuses(&self) -> bool {
        !self.is_weaker_allowed && self.is_weaker.load(Ordering::Relaxed)
    }

    /// The answer to every request of every client, if it is one.
    pub(crate) fn refusal(&self) -> Option<Answer> {
        self.refuses().then(|| {
            let text = format!("java.lang.SecurityException: ISPN006017: {}", Self::REFUSAL);
            Answer::error(Status::ServerError, text)
        })
    }

    /// Why clients are refused.
    pub(crate) const REFUSAL: &str =
        "this server has no users, and other servers of its cluster require authentication";

    /// A connection, which ends when clients are refused from some moment on.
    pub(crate) fn connect(&self, end: &Arc<Notify>) {
        if self.requires_users || self.is_weaker_allowed {
            return;
        }
        let mut connected = self.connected.lock().unwrap_or_else(PoisonError::into_inner);
        if connected.all.len() >= connected.swept_from {
            connected.all.retain(|one| one.strong_count() > 0);
            connected.swept_from = (connected.all.len() * 2).max(SWEPT_FROM);
        }
        connected.all.push(Arc::downgrade(end));
    }

    /// These other servers have users.
    fn compare(&self, others: &[String]) {
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
                    "this server has no users and serves everyone, as its owner allows; others require authentication"
                );
            }
            return;
        }
        if is_weaker {
            tracing::error!(
                %others,
                "all clients are refused: this server has no users, and others of its cluster require authentication; \
                 restart it with their users (--users), or with --allow-weaker-authentication to serve everyone"
            );
            let mut connected = self.connected.lock().unwrap_or_else(PoisonError::into_inner);
            connected.all.drain(..).filter_map(|end| end.upgrade()).for_each(|end| end.notify_one());
        } else {
            tracing::warn!("clients are served again: no other server requires authentication any more");
        }
    }
}

impl Caches {
    /// Says what this server requires, and looks what the others do.
    pub(crate) async fn compare_requirements(&self) -> Result<(), CacheError> {
        let own = self.manager().address().to_string();
        let mut requiring = BTreeSet::new();
        let mut walk = self.servers.keys();
        while let Some(key) = walk.next().await.transpose()? {
            requiring.extend(String::from_utf8_lossy(&key).strip_prefix(KEY).map(str::to_owned));
        }
        let requirement = &self.security().requirement;
        if requirement.requires_users && !requiring.contains(&own) {
            self.servers.put(format!("{KEY}{own}").as_bytes(), AUTHENTICATION).await?;
        }
        if let Some(members) = self.members_if_first() {
            for gone in requiring.iter().filter(|member| !members.contains(member)) {
                self.servers.remove(format!("{KEY}{gone}").as_bytes()).await?;
            }
        }
        let view = self.manager().view();
        let members = view.iter().flat_map(|view| view.members());
        let others = members.filter(|member| *member != self.manager().address());
        let others = others.filter(|member| requiring.contains(&member.to_string()));
        let others: Vec<String> = others.map(|member| self.manager().name_of(member)).collect();
        requirement.compare(&others);
        Ok(())
    }

    /// This server requires nothing any more.
    pub(crate) async fn withdraw_requirement(&self) {
        let own = self.manager().address().to_string();
        if self.security().requirement.requires_users {
            // Where it cannot be written, the first of the others takes it away.
            let _ = self.servers.remove(format!("{KEY}{own}").as_bytes()).await;
        }
    }
}
