//! Infinispan's roles and permissions (its security guide, "user roles and permissions").

use std::collections::BTreeMap;
use std::fmt;

use crate::security::scope::Scope;

/// A permission that requests need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Permission {
    /// Read entries by key.
    Read = 1 << 0,
    /// Write entries by key.
    Write = 1 << 1,
    /// Read all entries.
    BulkRead = 1 << 2,
    /// Write all entries.
    BulkWrite = 1 << 3,
    /// Listen to changes.
    Listen = 1 << 4,
    /// Run tasks.
    Exec = 1 << 5,
    /// Read statistics and health.
    Monitor = 1 << 6,
    /// Create and remove caches, counters and schemas.
    Create = 1 << 7,
    /// Administer the cluster.
    Admin = 1 << 8,
}

impl Permission {
    /// Returns the name that clients know.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "READ",
            Self::Write => "WRITE",
            Self::BulkRead => "BULK_READ",
            Self::BulkWrite => "BULK_WRITE",
            Self::Listen => "LISTEN",
            Self::Exec => "EXEC",
            Self::Monitor => "MONITOR",
            Self::Create => "CREATE",
            Self::Admin => "ADMIN",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Permissions(u16);

impl Permissions {
    pub(crate) const fn new(permissions: &[Permission]) -> Self {
        let (mut set, mut at) = (0, 0);
        while at < permissions.len() {
            set |= permissions[at] as u16;
            at += 1;
        }
        Self(set)
    }

    pub(crate) const fn bits(self) -> u16 {
        self.0
    }

    pub(crate) const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    pub(crate) const fn contain(self, permission: Permission) -> bool {
        self.0 & permission as u16 != 0
    }

    pub(crate) const fn union(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }
}

/// The permissions of a user. Users with the same roles share them.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Grants {
    pub(crate) permissions: Permissions,
    /// In caches with roles of their own; `permissions` apply to all other caches.
    pub(crate) by_cache: BTreeMap<String, Permissions>,
}

impl From<Permissions> for Grants {
    fn from(permissions: Permissions) -> Self {
        Self { permissions, by_cache: BTreeMap::new() }
    }
}

impl Grants {
    /// Roles of a cache permit operations on its entries. Operations on caches themselves do not depend on them.
    pub(crate) fn contain(&self, needed: Permission, scope: Scope<'_>) -> bool {
        let is_on_entries = !matches!(needed, Permission::Create | Permission::Admin);
        match scope {
            Scope::Cache(name) if is_on_entries => {
                self.by_cache.get(name).unwrap_or(&self.permissions).contain(needed)
            }
            Scope::AnyCache if is_on_entries => {
                self.permissions.contain(needed) || self.by_cache.values().any(|own| own.contain(needed))
            }
            _ => self.permissions.contain(needed),
        }
    }
}

/// A role of users.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Role {
    /// All permissions.
    Admin,
    /// Like [`Role::Application`], and creates and removes caches.
    Deployer,
    /// Reads, writes, listens and runs tasks.
    Application,
    /// Reads entries.
    Observer,
    /// Reads statistics.
    Monitor,
}

impl Role {
    /// All roles, those with the most permissions first.
    pub const ALL: [Self; 5] =
        [Self::Admin, Self::Deployer, Self::Application, Self::Observer, Self::Monitor];

    /// Returns the role's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Deployer => "deployer",
            Self::Application => "application",
            Self::Observer => "observer",
            Self::Monitor => "monitor",
        }
    }

    /// Returns the role of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }

    pub(crate) const fn permissions(self) -> Permissions {
        use Permission::{Admin, BulkRead, BulkWrite, Create, Exec, Listen, Monitor, Read, Write};
        const MONITOR: Permissions = Permissions::new(&[Monitor]);
        const OBSERVER: Permissions = MONITOR.union(Permissions::new(&[Read, BulkRead]));
        const APPLICATION: Permissions = OBSERVER.union(Permissions::new(&[Write, BulkWrite, Listen, Exec]));
        const DEPLOYER: Permissions = APPLICATION.union(Permissions::new(&[Create]));
        match self {
            Self::Admin => DEPLOYER.union(Permissions::new(&[Admin])),
            Self::Deployer => DEPLOYER,
            Self::Application => APPLICATION,
            Self::Observer => OBSERVER,
            Self::Monitor => MONITOR,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_have_the_permissions_of_infinispan() {
        use Permission::{Admin, BulkRead, BulkWrite, Create, Exec, Listen, Monitor, Read, Write};
        let all = [Read, Write, BulkRead, BulkWrite, Listen, Exec, Monitor, Create, Admin];
        for (role, permitted) in [
            (Role::Admin, &all[..]),
            (Role::Deployer, &all[..8]),
            (Role::Application, &all[..7]),
            (Role::Observer, &[Read, BulkRead, Monitor]),
            (Role::Monitor, &[Monitor]),
        ] {
            for permission in all {
                let is_permitted = role.permissions().contain(permission);
                assert_eq!(is_permitted, permitted.contains(&permission), "{role}: {}", permission.name());
            }
            assert_eq!(Role::from_name(role.name()), Some(role));
        }
    }
}
