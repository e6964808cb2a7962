//! The current users, and authenticated clients' sessions. New roles apply at once. A removed user's connections end, because a
//! listener would otherwise keep receiving events. A new password applies to later logins only.

use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use consort_sasl::Mechanism;
use tokio::sync::Notify;

use crate::security::role::{Grants, Permission, Permissions};
use crate::security::scope::Scope;
use crate::security::users::Users;

pub(crate) struct AuthSettings {
    pub(crate) users: Users,
    pub(crate) mechanisms: Vec<Mechanism>,
}

/// Instead of permissions: they depend on the cache. No permission has this bit.
const BY_CACHE: u16 = 1 << 15;

pub(crate) struct AuthenticatedSession {
    pub(crate) name: Arc<str>,
    /// The permissions of a user that has the same in all caches, or [`BY_CACHE`]. Most users have the same, and their requests
    /// read nothing else.
    permissions: AtomicU16,
    grants: RwLock<Arc<Grants>>,
    is_removed: AtomicBool,
    end: Arc<Notify>,
}

fn summary(grants: &Grants) -> u16 {
    if grants.by_cache.is_empty() { grants.permissions.bits() } else { BY_CACHE }
}

impl AuthenticatedSession {
    fn new(name: Arc<str>, grants: Arc<Grants>, end: Arc<Notify>) -> Self {
        let permissions = AtomicU16::new(summary(&grants));
        Self { name, permissions, grants: RwLock::new(grants), is_removed: AtomicBool::new(false), end }
    }

    pub(crate) fn may(&self, needed: Permission, scope: Scope<'_>) -> bool {
        let permissions = self.permissions.load(Ordering::Relaxed);
        if permissions & BY_CACHE == 0 {
            return Permissions::from_bits(permissions).contain(needed);
        }
        self.grants.read().unwrap_or_else(PoisonError::into_inner).contain(needed, scope)
    }

    /// Whether permissions may depend on the cache.
    pub(crate) fn depends_on_cache(&self) -> bool {
        self.permissions.load(Ordering::Relaxed) & BY_CACHE != 0
    }

    /// The grants are complete, so that a concurrent request has either the old ones or these.
    fn set(&self, grants: Arc<Grants>) {
        let permissions = summary(&grants);
        *self.grants.write().unwrap_or_else(PoisonError::into_inner) = grants;
        self.permissions.store(permissions, Ordering::Release);
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
        let session = Arc::new(AuthenticatedSession::new(name.clone(), user.grants.clone(), end));
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
                Some(known) => session.set(known.grants.clone()),
                None => {
                    removed += 1;
                    session.set(Arc::default());
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
        assert!(
            alice.may(Permission::Read, Scope::Global)
                && !alice.may(Permission::Write, Scope::Global)
                && !alice.is_removed()
        );
        assert!(!bob.may(Permission::Monitor, Scope::Global) && bob.is_removed());
        assert!(register(&sessions, "bob").is_none() && register(&sessions, "carol").is_some());
        // A user that is added again is another user.
        assert_eq!(sessions.replace(settings("bob admin")), 1);
        assert!(bob.is_removed());
    }

    #[test]
    fn permissions_in_a_cache_change_together_with_those_of_the_user() {
        let with = |by_cache: &[(&str, Permission)]| {
            let by_cache = by_cache.iter().map(|(name, one)| ((*name).to_owned(), Permissions::new(&[*one])));
            Arc::new(Grants {
                permissions: Permissions::new(&[Permission::Read, Permission::Create]),
                by_cache: by_cache.collect(),
            })
        };
        let session = AuthenticatedSession::new("alice".into(), with(&[]), Arc::default());
        assert!(!session.depends_on_cache() && session.may(Permission::Read, Scope::Cache("few")));
        session.set(with(&[("few", Permission::Write)]));
        assert!(session.depends_on_cache());
        let may = |needed, scope| session.may(needed, scope);
        assert!(may(Permission::Write, Scope::Cache("few")) && !may(Permission::Read, Scope::Cache("few")));
        assert!(
            may(Permission::Read, Scope::Cache("other")) && !may(Permission::Write, Scope::Cache("other"))
        );
        assert!(may(Permission::Write, Scope::AnyCache) && !may(Permission::Write, Scope::Global));
        assert!(may(Permission::Create, Scope::Cache("few")), "it does not depend on the cache");
        assert!(!may(Permission::Listen, Scope::AnyCache));
        session.set(Arc::default());
        assert!(!session.depends_on_cache() && !may(Permission::Write, Scope::Cache("few")));
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
