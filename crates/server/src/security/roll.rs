//! The users as they are now, and the connections that are theirs.
//!
//! Users can change while a server serves. Then roles count at once, and who is a user no more has its connections ended: it
//! may be hearing of changes without asking for anything. A new password is for those who come then.

use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use consort_sasl::Mechanism;
use tokio::sync::Notify;

use crate::security::role::{Permission, Permissions};
use crate::security::users::Users;

/// Users, and how they may show who they are.
pub(crate) struct Offer {
    pub(crate) users: Users,
    /// The strongest first.
    pub(crate) mechanisms: Vec<Mechanism>,
}

/// A connection's client that has shown who it is.
pub(crate) struct Admitted {
    pub(crate) name: Arc<str>,
    permissions: AtomicU16,
    is_removed: AtomicBool,
    /// Told when it is to go.
    end: Arc<Notify>,
}

impl Admitted {
    /// Whether it may do this now.
    pub(crate) fn may(&self, needed: Permission) -> bool {
        Permissions::from_bits(self.permissions.load(Ordering::Relaxed)).contain(needed)
    }

    /// Whether it is a user no more.
    pub(crate) fn is_removed(&self) -> bool {
        self.is_removed.load(Ordering::Acquire)
    }
}

/// Who is connected. Those that have gone are swept out when there are twice as many as were left the last time: never more
/// than twice the connections that a server takes, and [`SWEPT_FROM`].
struct Connected {
    all: Vec<Weak<Admitted>>,
    swept_from: usize,
}

/// Below this it is not looked after those that have gone.
const SWEPT_FROM: usize = 64;

/// The users, and who is connected.
pub(crate) struct Roll {
    offer: RwLock<Arc<Offer>>,
    connected: Mutex<Connected>,
}

impl Roll {
    pub(crate) fn new(offer: Offer) -> Self {
        let connected = Connected { all: Vec::new(), swept_from: SWEPT_FROM };
        Self { offer: RwLock::new(Arc::new(offer)), connected: Mutex::new(connected) }
    }

    fn connected(&self) -> MutexGuard<'_, Connected> {
        self.connected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The users of now.
    pub(crate) fn offer(&self) -> Arc<Offer> {
        self.offer.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A client that has shown to be this user, unless that is none any more. It is told by `end` when it is none later.
    pub(crate) fn admit(&self, name: &Arc<str>, end: Arc<Notify>) -> Option<Arc<Admitted>> {
        // Held all the while, so that no change of the users comes between.
        let mut connected = self.connected();
        let permissions = self.offer().users.get(name)?.permissions;
        let admitted = Arc::new(Admitted {
            name: name.clone(),
            permissions: AtomicU16::new(permissions.bits()),
            is_removed: AtomicBool::new(false),
            end,
        });
        if connected.all.len() >= connected.swept_from {
            connected.all.retain(|one| one.strong_count() > 0);
            connected.swept_from = (connected.all.len() * 2).max(SWEPT_FROM);
        }
        connected.all.push(Arc::downgrade(&admitted));
        Some(admitted)
    }

    /// From now on these are the users. Returns how many connections end for it.
    pub(crate) fn replace(&self, offer: Offer) -> usize {
        let connected = self.connected();
        let offer = Arc::new(offer);
        *self.offer.write().unwrap_or_else(PoisonError::into_inner) = offer.clone();
        let mut removed = 0;
        for admitted in connected.all.iter().filter_map(Weak::upgrade) {
            match offer.users.get(&admitted.name) {
                Some(known) => admitted.permissions.store(known.permissions.bits(), Ordering::Relaxed),
                None => {
                    removed += 1;
                    admitted.permissions.store(Permissions::default().bits(), Ordering::Relaxed);
                    admitted.is_removed.store(true, Ordering::Release);
                    admitted.end.notify_one();
                }
            }
        }
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(users: &str) -> Offer {
        Offer { users: Users::parse("users", users).unwrap(), mechanisms: Vec::new() }
    }

    fn admit(roll: &Roll, name: &str) -> Option<Arc<Admitted>> {
        roll.admit(&name.into(), Arc::new(Notify::new()))
    }

    #[test]
    fn who_is_connected_follows_the_users() {
        let roll = Roll::new(offer("alice admin\nbob application"));
        let [alice, bob] = ["alice", "bob"].map(|name| admit(&roll, name).unwrap());
        assert!(admit(&roll, "carol").is_none());
        assert_eq!(roll.replace(offer("alice observer\ncarol monitor")), 1);
        assert!(alice.may(Permission::Read) && !alice.may(Permission::Write) && !alice.is_removed());
        assert!(!bob.may(Permission::Monitor) && bob.is_removed());
        assert!(admit(&roll, "bob").is_none() && admit(&roll, "carol").is_some());
        // Who comes back under the name is another one.
        assert_eq!(roll.replace(offer("bob admin")), 1);
        assert!(bob.is_removed());
    }

    #[test]
    fn who_has_gone_is_forgotten() {
        let roll = Roll::new(offer("alice admin"));
        let kept: Vec<_> = (0..10).map(|_| admit(&roll, "alice").unwrap()).collect();
        for _ in 0..10 * SWEPT_FROM {
            drop(admit(&roll, "alice"));
        }
        assert!(roll.connected().all.len() <= SWEPT_FROM);
        assert_eq!(roll.replace(offer("bob admin")), kept.len());
    }
}
