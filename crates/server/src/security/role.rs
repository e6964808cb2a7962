//! Roles, and what they permit: those of Infinispan (its security guide, "user roles and permissions").

use std::fmt;

/// What a request needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Permission {
    /// To read entries by their keys.
    Read = 1 << 0,
    /// To write them.
    Write = 1 << 1,
    /// To read whatever there is.
    BulkRead = 1 << 2,
    /// To write whatever there is.
    BulkWrite = 1 << 3,
    /// To hear of changes.
    Listen = 1 << 4,
    /// To run tasks.
    Exec = 1 << 5,
    /// To see how things are.
    Monitor = 1 << 6,
    /// To make and remove caches, counters and schemas.
    Create = 1 << 7,
    /// To do what nobody else may.
    Admin = 1 << 8,
}

impl Permission {
    /// As clients know it.
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

/// A set of them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Permissions(u16);

impl Permissions {
    const fn of(permissions: &[Permission]) -> Self {
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

    /// Those that [`Permissions::bits`] has told.
    pub(crate) const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    pub(crate) const fn contain(self, permission: Permission) -> bool {
        self.0 & permission as u16 != 0
    }

    pub(crate) const fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }
}

/// What a user is to the servers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Role {
    /// May do everything.
    Admin,
    /// An application that makes and removes caches, too.
    Deployer,
    /// Reads, writes, listens.
    Application,
    /// Reads.
    Observer,
    /// Sees statistics.
    Monitor,
}

impl Role {
    /// All of them, those that may do most first.
    pub const ALL: [Self; 5] =
        [Self::Admin, Self::Deployer, Self::Application, Self::Observer, Self::Monitor];

    /// What it is called.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Deployer => "deployer",
            Self::Application => "application",
            Self::Observer => "observer",
            Self::Monitor => "monitor",
        }
    }

    /// The one that is called so.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }

    pub(crate) const fn permissions(self) -> Permissions {
        use Permission::{Admin, BulkRead, BulkWrite, Create, Exec, Listen, Monitor, Read, Write};
        const MONITOR: Permissions = Permissions::of(&[Monitor]);
        const OBSERVER: Permissions = MONITOR.and(Permissions::of(&[Read, BulkRead]));
        const APPLICATION: Permissions = OBSERVER.and(Permissions::of(&[Write, BulkWrite, Listen, Exec]));
        const DEPLOYER: Permissions = APPLICATION.and(Permissions::of(&[Create]));
        match self {
            Self::Admin => DEPLOYER.and(Permissions::of(&[Admin])),
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
    fn roles_permit_what_they_do_in_infinispan() {
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
