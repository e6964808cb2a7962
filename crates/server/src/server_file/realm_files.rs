//! The files of users and certificates that a server's file names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use consort_sasl::prepare;
use consort_tls::{ListenerFiles, StoreFile, TlsError, TrustFile};

use super::cache_roles::{self, CacheAccess};
use super::realms::{RealmUsers, UserSource};
use super::roles::RolesSettings;
use crate::security::properties;
use crate::security::role::{Grants, Permissions, Role};
use crate::security::secret::Secret;
use crate::security::tls::common_name;
use crate::security::users::{LineError, UserEntry, Users, UsersError};

/// The most bytes of a file of users.
const USERS_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The files of the realm of a server's file, which can be read again while the server runs.
#[derive(Clone, Debug)]
pub struct RealmFiles {
    pub(super) sources: Vec<UserSource>,
    pub(super) tls: Option<ListenerFiles>,
    pub(super) roles: FileRoles,
}

/// The roles of a server's file, and those of its caches.
#[derive(Clone, Debug)]
pub struct FileRoles {
    /// `None`: each user can do everything.
    pub(super) roles: Option<RolesSettings>,
    /// By cache.
    pub(super) access: BTreeMap<String, CacheAccess>,
}

impl FileRoles {
    /// Reads a file of users as of `--users`, whose roles are those of the server's file, if that has some.
    ///
    /// # Errors
    ///
    /// With file, line and reason.
    pub fn read_users(&self, path: impl AsRef<Path>) -> Result<Users, UsersError> {
        let Some(settings) = &self.roles else { return Users::read(path) };
        Users::read_with_roles(path, &|names| match names
            .iter()
            .find(|name| !settings.roles.contains_key(**name))
        {
            Some(unknown) => {
                let known: Vec<&str> = settings.roles.keys().map(String::as_str).collect();
                Err(LineError::RoleOfFile((*unknown).to_owned(), known.join(", ")))
            }
            None => Ok(self.grants(names.iter().copied().collect())),
        })
    }

    fn grants(&self, names: BTreeSet<&str>) -> Grants {
        let Some(settings) = &self.roles else { return Role::Admin.permissions().into() };
        let all = names.iter().filter_map(|name| settings.roles.get(*name));
        let permissions = all.fold(Permissions::default(), |all, role| all.union(*role));
        let by_cache = cache_roles::permissions(&self.access, &names, settings);
        Grants { permissions, by_cache }
    }
}

impl RealmFiles {
    /// Returns the files of the certificate.
    pub const fn tls(&self) -> Option<&ListenerFiles> {
        self.tls.as_ref()
    }

    /// Returns the first file of users.
    pub fn users(&self) -> Option<&Path> {
        match self.sources.first()? {
            UserSource::Properties(users) => Some(&users.users),
            UserSource::Certificates(_) => self.tls.as_ref()?.client_ca.as_ref().map(TrustFile::path),
        }
    }

    /// Reads the users. They have the roles of the server's file. `None`: the realm has no file of users.
    pub fn read_users(&self) -> Result<Option<Users>, UsersError> {
        let mut all: Option<Users> = None;
        for source in &self.sources {
            let users = self.read_source(source)?;
            all = Some(match all {
                Some(first) => first.with_others(users),
                None => users,
            });
        }
        Ok(all)
    }

    fn read_source(&self, source: &UserSource) -> Result<Users, UsersError> {
        let (file, users) = match source {
            UserSource::Properties(files) => (&*files.users, read_users(files, &self.roles)?),
            UserSource::Certificates(_) => {
                let Some(TrustFile::Store { file, .. }) =
                    self.tls.as_ref().and_then(|tls| tls.client_ca.as_ref())
                else {
                    return Err(UsersError::NoUsers { file: "truststore".to_owned() });
                };
                (&*file.path, self.read_owners(file)?)
            }
        };
        if users.count() == 0 {
            return Err(UsersError::NoUsers { file: file.display().to_string() });
        }
        Ok(users)
    }

    /// The owners of the certificates of a trust store. Infinispan's mapper of common names gives each the role of its name.
    fn read_owners(&self, store: &StoreFile) -> Result<Users, UsersError> {
        let unreadable = |error: TlsError| UsersError::Unreadable {
            file: store.path.display().to_string(),
            reason: error.to_string(),
        };
        let trusted = store.trusted().map_err(unreadable)?;
        let maps_names = self.roles.roles.as_ref().is_some_and(|roles| roles.common_names.is_some());
        // Without verifiers there are no decoys, which would need a secret.
        let mut users = Users::without_entries(Secret::from_bytes(&[]));
        for name in trusted.certificates().filter_map(common_name) {
            let roles: BTreeSet<&str> = maps_names.then_some(&*name).into_iter().collect();
            let Ok(prepared) = prepare(&name) else { continue };
            let grants = Arc::new(self.roles.grants(roles));
            users.add(prepared.into_owned(), UserEntry::with_verifiers(grants, Vec::new()));
        }
        Ok(users)
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

fn read_users(files: &RealmUsers, roles: &FileRoles) -> Result<Users, UsersError> {
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
        let settings = roles.roles.as_ref();
        let own = settings.is_some_and(|settings| !settings.only_groups).then_some(name);
        let names = groups.iter().map(String::as_str).chain(own);
        let names: BTreeSet<&str> = names
            .filter(|name| settings.is_some_and(|settings| settings.roles.contains_key(*name)))
            .collect();
        let key = names.iter().map(|name| (*name).to_owned()).collect();
        known.entry(key).or_insert_with(|| Arc::new(roles.grants(names))).clone()
    };
    properties::users(&text, &all_groups, grants).map_err(|error| wrong(&files.users, error))
}
