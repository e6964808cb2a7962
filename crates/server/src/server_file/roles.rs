//! `<security><authorization>` of a container: roles with their permissions, and how users get them.

use std::collections::BTreeMap;

use super::document::Node;
use super::problem::{Place, Problems};
use super::section::Section;
use crate::security::role::{Permission, Permissions, Role};

/// Roles with their permissions, and which names of a user are roles.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RolesSettings {
    pub(super) roles: BTreeMap<String, Permissions>,
    /// Only groups of a user are roles; the name of the user is not one.
    pub(super) only_groups: bool,
    /// The common name of a certificate is a role, and no other name is.
    pub(super) common_names: Option<Place>,
}

const NAMES: &[(&str, &[Permission])] = &[
    ("READ", &[Permission::Read]),
    ("WRITE", &[Permission::Write]),
    ("BULK_READ", &[Permission::BulkRead]),
    ("BULK_WRITE", &[Permission::BulkWrite]),
    ("ALL_READ", &[Permission::Read, Permission::BulkRead]),
    ("ALL_WRITE", &[Permission::Write, Permission::BulkWrite]),
    ("LISTEN", &[Permission::Listen]),
    ("EXEC", &[Permission::Exec]),
    ("MONITOR", &[Permission::Monitor]),
    ("CREATE", &[Permission::Create]),
    ("ADMIN", &[Permission::Admin]),
    // Caches of Consort are started by the server, not by clients.
    ("LIFECYCLE", &[]),
    ("NONE", &[]),
];

fn permissions(name: &str) -> Option<Permissions> {
    if name == "ALL" {
        return Some(Role::Admin.permissions());
    }
    NAMES.iter().find(|(own, _)| *own == name).map(|(_, permissions)| Permissions::new(permissions))
}

/// `None`: the container has no authorization, and each authenticated user may do everything.
pub(super) fn read(security: &Node, problems: &mut Problems) -> Option<RolesSettings> {
    let mut section = Section::new(security);
    section.warn(
        &[
            ("security-cache-timeout", "permissions are not cached"),
            ("security-cache-size", "permissions are not cached"),
        ],
        problems,
    );
    let authorization = section.child("authorization", problems);
    section.finish(problems);
    let node = authorization?;
    let mut section = Section::new(node);
    let only_groups = section.flag("group-only-mapping", problems);
    if section.flag("enabled", problems) == Some(false) {
        return None;
    }
    if let Some(logger) = section.attribute("audit-logger")
        && !logger.value.ends_with("NullAuditLogger")
    {
        problems.refuse(logger.place, "audit-logger: Java classes cannot be run; the log has failed logins");
    }
    section.refuse(
        &[
            (
                "custom-role-mapper",
                "Java classes cannot be run; use identity-role-mapper, and name roles as groups",
            ),
            (
                "custom-permission-mapper",
                "Java classes cannot be run; define the roles with their permissions",
            ),
        ],
        problems,
    );
    // Both mappers map a group to the role of its name. In Infinispan, clients can then grant other roles; in Consort they cannot.
    section.child("identity-role-mapper", problems);
    let common_names = section.child("common-name-role-mapper", problems).map(|mapper| mapper.place);
    section.child("cluster-permission-mapper", problems);
    if let Some(mapper) = section.child("cluster-role-mapper", problems) {
        let mut mapper = Section::new(mapper);
        mapper.refuse(
            &[("name-rewriter", "names are not changed; name the groups as the roles are named")],
            problems,
        );
        mapper.finish(problems);
    }
    let mut roles = BTreeMap::new();
    for role in section.children("role") {
        read_role(None, role, &mut roles, problems);
    }
    // In JSON and YAML.
    for all in section.children("roles") {
        for role in &all.children {
            let name = (role.name != "role").then_some(&role.written[..]);
            read_role(name, role, &mut roles, problems);
        }
    }
    section.finish(problems);
    if roles.is_empty() {
        roles = Role::ALL.iter().map(|role| (role.name().to_owned(), role.permissions())).collect();
    }
    Some(RolesSettings { roles, only_groups: only_groups.unwrap_or(true), common_names })
}

fn read_role(
    name: Option<&str>,
    node: &Node,
    roles: &mut BTreeMap<String, Permissions>,
    problems: &mut Problems,
) {
    let mut section = Section::new(node);
    let Some(name) = name.or_else(|| section.required("name", problems)) else { return };
    section.text("description");
    let listed = section.required("permissions", problems).and_then(|_| section.words("permissions"));
    let mut all = Permissions::default();
    for word in listed.into_iter().flatten() {
        match permissions(word) {
            Some(permissions) => all = all.union(permissions),
            None => {
                let known: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
                let text = format!(
                    "role `{name}`: unknown permission `{word}`; permissions are ALL, {}",
                    known.join(", ")
                );
                problems.refuse(node.place, text);
            }
        }
    }
    section.finish(problems);
    if roles.insert(name.to_owned(), all).is_some() {
        problems.refuse(node.place, format!("role `{name}` is defined more than once"));
    }
}
