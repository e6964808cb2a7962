//! The files of users and certificates that a server's file names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use consort_tls::ListenerFiles;

use super::cache_roles::{self, CacheAccess};
use super::realms::RealmUsers;
use super::roles::RolesSettings;
use crate::security::properties;
use crate::security::role::{Grants, Permissions, Role};
use crate::security::users::{Users, UsersError};

/// The most bytes of a file of users.
const USERS_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The files of the realm of a server's file, which can be read again while the server runs.
#[derive(Clone, Debug)]
pub struct RealmFiles {
    pub(super) users: Option<RealmUsers>,
    pub(super) tls: Option<ListenerFiles>,
    pub(super) roles: Option<RolesSettings>,
    /// By cache.
    pub(super) access: BTreeMap<String, CacheAccess>,
}

impl RealmFiles {
    /// Returns the files of the certificate.
    pub const fn tls(&self) -> Option<&ListenerFiles> {
        self.tls.as_ref()
    }

    /// Returns the file of users.
    pub fn users(&self) -> Option<&Path> {
        self.users.as_ref().map(|users| &*users.users)
    }

    /// Reads the users. They have the roles of the server's file. `None`: the realm has no file of users.
    pub fn read_users(&self) -> Result<Option<Users>, UsersError> {
        let Some(files) = &self.users else { return Ok(None) };
        let users = read_users(files, self.roles.as_ref(), &self.access)?;
        if users.count() == 0 {
            return Err(UsersError::NoUsers { file: files.users.display().to_string() });
        }
        Ok(Some(users))
    }
}

fn read_bounded(path: &Path) -> Result<String, UsersError> {
    let unreadable = |reason: String| UsersError::Unreadable { file: path.display().to_string(), reason };
    let cannot = |error: std::io::Error| unreadable(format!("cannot be read: {error}"));
    let size = std::fs::metadata(path).map_err(cannot)?.len();
    if size > USERS_BYTES_MAX {
        return Err(unreadable(format!("it has {size} bytes; the limit is {USERS_BYTES_MAX}")));
    }
    std::fs::read_to_string(path).map_err(cannot)
}

fn read_users(
    files: &RealmUsers,
    roles: Option<&RolesSettings>,
    access: &BTreeMap<String, CacheAccess>,
) -> Result<Users, UsersError> {
    let wrong = |path: &Path, error: consort_conf::PropertiesError| {
        let (file, line) = (path.display().to_string(), error.line);
        UsersError::Property { file, line, reason: error.reason }
    };
    let all_groups = match &files.groups {
        Some(path) => properties::groups(&read_bounded(path)?).map_err(|error| wrong(path, error))?,
        None => BTreeMap::new(),
    };
    consort_tls::secrets::warn_if_open(&files.users, "the users");
    let text = read_bounded(&files.users)?;
    // Users with the same roles share their permissions.
    let mut known: BTreeMap<BTreeSet<String>, Arc<Grants>> = BTreeMap::new();
    let grants = |name: &str, groups: &BTreeSet<String>| {
        let Some(settings) = roles else { return Arc::new(Role::Admin.permissions().into()) };
        let own = (!settings.only_groups).then_some(name);
        let names: BTreeSet<&str> = groups.iter().map(String::as_str).chain(own).collect();
        let names: BTreeSet<&str> =
            names.into_iter().filter(|name| settings.roles.contains_key(*name)).collect();
        let key = names.iter().map(|name| (*name).to_owned()).collect();
        let make = || {
            let all = names.iter().filter_map(|name| settings.roles.get(*name));
            let permissions = all.fold(Permissions::default(), |all, role| all.union(*role));
            let by_cache = cache_roles::permissions(access, &names, settings);
            Arc::new(Grants { permissions, by_cache })
        };
        known.entry(key).or_insert_with(make).clone()
    };
    properties::users(&text, &all_groups, grants).map_err(|error| wrong(&files.users, error))
}
