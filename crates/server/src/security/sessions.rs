//! The current users, and authenticated clients' sessions. New roles apply at once. A removed user's connections end, because a
//! listener would otherwise keep receiving events. A new password applies to later logins only.

use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use consort_sasl::Mechanism;
use tokio::sync::Notify;

use crate::security::role::{Permission, Permissions};
use crate::security::users::{CachePermissions, Users};

pub(crate) struct AuthSettings {
    pub(crate) users: Users,
    pub(crate) mechanisms: Vec<Mechanism>,
}

pub(crate) struct AuthenticatedSession {
    pub(crate) name: Arc<str>,
    permissions: AtomicU16,
    /// Whether `by_cache` has some: most users have none, and their requests do not read it.
    has_by_cache: AtomicBool,
    by_cache: RwLock<CachePermissions>,
    is_removed: AtomicBool,
    end: Arc<Notify>,
}

impl AuthenticatedSession {
    pub(crate) fn may(&self, needed: Permission) -> bool {
        Permissions::from_bits(self.permissions.load(Ordering::Relaxed)).contain(needed)
    }

    /// Whether permissions may depend on the cache.
    pub(crate) fn depends_on_cache(&self) -> bool {
        self.has_by_cache.load(Ordering::Relaxed)
    }

    /// For a request on a cache. Its roles permit operations on entries; those on caches themselves do not depend on it.
    pub(crate) fn may_in(&self, cache: &str, needed: Permission) -> bool {
        let by_cache = self.by_cache.read().unwrap_or_else(PoisonError::into_inner);
        match by_cache.get(cache) {
            Some(own) if !matches!(needed, Permission::Create | Permission::Admin) => own.contain(needed),
            _ => self.may(needed),
        }
    }

    fn set(&self, permissions: Permissions, by_cache: CachePermissions) {
        self.permissions.store(permissions.bits(), Ordering::Relaxed);
        self.has_by_cache.store(!by_cache.is_empty(), Ordering::Relaxed);
        *self.by_cache.write().unwrap_or_else(PoisonError::into_inner) = by_cache;
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.is_removed.load(Ordering::Acquire)
    }
}

/// Swept at twice the size after the last sweep, so never more than twice the server's connections, and [`SWEEP_MIN`].
struct SessionList {
    all: Vec<Weak<AuthenticatedSession>>,
    sweep_at: usize,
}

/// Closed sessions are swept out from this number on.
const SWEEP_MIN: usize = 64;

pub(crate) struct ActiveSessions {
    settings: RwLock<Arc<AuthSettings>>,
    open_sessions: Mutex<SessionList>,
}

impl ActiveSessions {
    pub(crate) fn new(settings: AuthSettings) -> Self {
        let open = SessionList { all: Vec::new(), sweep_at: SWEEP_MIN };
        Self { settings: RwLock::new(Arc::new(settings)), open_sessions: Mutex::new(open) }
    }

    fn open_sessions(&self) -> MutexGuard<'_, SessionList> {
        self.open_sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn settings(&self) -> Arc<AuthSettings> {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// `None` if the user was removed meanwhile. `end` is notified when the user is removed.
    pub(crate) fn register(&self, name: &Arc<str>, end: Arc<Notify>) -> Option<Arc<AuthenticatedSession>> {
        // The lock is held until the end, so that the users do not change in between.
        let mut open = self.open_sessions();
        let settings = self.settings();
        let user = settings.users.get(name)?;
        let session = Arc::new(AuthenticatedSession {
            name: name.clone(),
            permissions: AtomicU16::new(user.permissions.bits()),
            has_by_cache: AtomicBool::new(!user.by_cache.is_empty()),
            by_cache: RwLock::new(user.by_cache.clone()),
            is_removed: AtomicBool::new(false),
            end,
        });
        if open.all.len() >= open.sweep_at {
            open.all.retain(|one| one.strong_count() > 0);
            open.sweep_at = (open.all.len() * 2).max(SWEEP_MIN);
        }
        open.all.push(Arc::downgrade(&session));
        Some(session)
    }

    pub(crate) fn replace(&self, settings: AuthSettings) -> usize {
        let open = self.open_sessions();
        let settings = Arc::new(settings);
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = settings.clone();
        let mut removed = 0;
        for session in open.all.iter().filter_map(Weak::upgrade) {
            match settings.users.get(&session.name) {
                Some(known) => session.set(known.permissions, known.by_cache.clone()),
                None => {
                    removed += 1;
                    session.set(Permissions::default(), CachePermissions::default());
                    session.is_removed.store(true, Ordering::Release);
                    session.end.notify_one();
                }
            }
        }
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(users: &str) -> AuthSettings {
        AuthSettings { users: Users::parse("users", users).unwrap(), mechanisms: Vec::new() }
    }

    fn register(sessions: &ActiveSessions, name: &str) -> Option<Arc<AuthenticatedSession>> {
        sessions.register(&name.into(), Arc::new(Notify::new()))
    }

    #[test]
    fn open_session_follows_a_change_of_the_users() {
        let sessions = ActiveSessions::new(settings("alice admin\nbob application"));
        let [alice, bob] = ["alice", "bob"].map(|name| register(&sessions, name).unwrap());
        assert!(register(&sessions, "carol").is_none());
        assert_eq!(sessions.replace(settings("alice observer\ncarol monitor")), 1);
        assert!(alice.may(Permission::Read) && !alice.may(Permission::Write) && !alice.is_removed());
        assert!(!bob.may(Permission::Monitor) && bob.is_removed());
        assert!(register(&sessions, "bob").is_none() && register(&sessions, "carol").is_some());
        // A user that is added again is another user.
        assert_eq!(sessions.replace(settings("bob admin")), 1);
        assert!(bob.is_removed());
    }

    #[test]
    fn closed_sessions_are_swept_out() {
        let sessions = ActiveSessions::new(settings("alice admin"));
        let kept: Vec<_> = (0..10).map(|_| register(&sessions, "alice").unwrap()).collect();
        for _ in 0..10 * SWEEP_MIN {
            drop(register(&sessions, "alice"));
        }
        assert!(sessions.open_sessions().all.len() <= SWEEP_MIN);
        assert_eq!(sessions.replace(settings("bob admin")), kept.len());
    }
}
