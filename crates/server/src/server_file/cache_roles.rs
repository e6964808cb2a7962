//! `<security><authorization>` of a cache: the roles that have permissions in it.

use std::collections::{BTreeMap, BTreeSet};

use super::document::Node;
use super::problem::{Place, Problems};
use super::roles::RolesSettings;
use super::section::Section;
use crate::security::role::{Permission, Permissions};

/// The users with permissions in a cache, if the container has authorization.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum CacheAccess {
    /// The cache has no authorization: as in Infinispan, each authenticated user may read, write and listen.
    AllUsers,
    /// All roles have their permissions.
    AllRoles,
    /// Only these roles have permissions.
    Roles(BTreeSet<String>, Place),
}

/// Permissions on entries of a cache, which has no authorization.
const ON_ENTRIES: Permissions = Permissions::new(&[
    Permission::Read,
    Permission::Write,
    Permission::BulkRead,
    Permission::BulkWrite,
    Permission::Listen,
    Permission::Exec,
    Permission::Monitor,
]);

/// Removes the element, because definitions of clients cannot have it.
pub(super) fn take(node: &mut Node, problems: &mut Problems) -> CacheAccess {
    let Some(at) = node.children.iter().position(|child| child.name == "security") else {
        return CacheAccess::AllUsers;
    };
    let security = node.children.remove(at);
    let mut section = Section::new(&security);
    let authorization = section.child("authorization", problems);
    section.finish(problems);
    let Some(authorization) = authorization else { return CacheAccess::AllUsers };
    let mut section = Section::new(authorization);
    let is_enabled = section.flag("enabled", problems).unwrap_or(true);
    let roles = section.words("roles").unwrap_or_default();
    section.finish(problems);
    if !is_enabled {
        return CacheAccess::AllUsers;
    }
    if roles.is_empty() {
        return CacheAccess::AllRoles;
    }
    CacheAccess::Roles(roles.into_iter().map(str::to_owned).collect(), authorization.place)
}

/// Reports authorization that the container does not define.
pub(super) fn check(
    all: &BTreeMap<String, CacheAccess>,
    roles: Option<&RolesSettings>,
    problems: &mut Problems,
) {
    for (cache, access) in all {
        let CacheAccess::Roles(names, place) = access else { continue };
        let Some(settings) = roles else {
            let text =
                format!("cache `{cache}`: authorization needs <security><authorization> in the container");
            problems.refuse(*place, text);
            continue;
        };
        for name in names.iter().filter(|name| !settings.roles.contains_key(*name)) {
            problems.refuse(*place, format!("cache `{cache}`: the container has no role `{name}`"));
        }
    }
}

/// The permissions of a user with these roles in each cache with roles of its own.
pub(super) fn permissions(
    all: &BTreeMap<String, CacheAccess>,
    own: &BTreeSet<&str>,
    roles: &RolesSettings,
) -> BTreeMap<String, Permissions> {
    let by_roles = |names: &BTreeSet<String>| {
        let both = names.iter().filter(|name| own.contains(&name[..]));
        let found = both.filter_map(|name| roles.roles.get(name));
        found.fold(Permissions::default(), |all, role| all.union(*role))
    };
    let own_permissions = |access: &CacheAccess| match access {
        CacheAccess::AllUsers => Some(ON_ENTRIES),
        CacheAccess::AllRoles => None,
        CacheAccess::Roles(names, _) => Some(by_roles(names)),
    };
    all.iter().filter_map(|(cache, access)| Some((cache.clone(), own_permissions(access)?))).collect()
}
