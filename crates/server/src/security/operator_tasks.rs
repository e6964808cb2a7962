//! The names of the tasks with which operators ask, in the style of Infinispan's, and the permissions that they need: those of the
//! same questions in Infinispan's HTTP.

use crate::security::role::Permission;

/// A cache's definition, with the parameters `name` and `format`.
pub(crate) const CONFIG: &str = "@@cache@config";

/// A cache's definition and state.
pub(crate) const DESCRIBE: &str = "@@cache@describe";

pub(crate) const MEMBERS: &str = "@@cluster@members";

/// Owners of segments, of one cache or all.
pub(crate) const SEGMENTS: &str = "@@cluster@segments";

/// The state of rebalances, of one cache or all.
pub(crate) const REBALANCE: &str = "@@cluster@rebalance";

/// Connections of this server, with the parameter `after`, the id of the last known one.
pub(crate) const CLIENTS: &str = "@@server@clients";

pub(crate) fn needed(task: &str) -> Option<Permission> {
    Some(match task {
        CONFIG | DESCRIBE | MEMBERS | SEGMENTS | REBALANCE => Permission::Monitor,
        // Names of users and addresses.
        CLIENTS => Permission::Admin,
        _ => return None,
    })
}
