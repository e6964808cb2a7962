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

/// The state of rebalancing, of one cache or all.
pub(crate) const REBALANCING: &str = "@@cluster@rebalancing";

/// Of one cache or all. Separate tasks: a server that does not know such a parameter would only show the state.
pub(crate) const ENABLE_REBALANCING: &str = "@@cluster@enablerebalancing";
pub(crate) const DISABLE_REBALANCING: &str = "@@cluster@disablerebalancing";

/// All servers stop.
pub(crate) const STOP: &str = "@@cluster@stop";

/// Connections of this server, with the parameter `after`, the id of the last known one.
pub(crate) const CLIENTS: &str = "@@server@clients";

/// Whether the answer is about single caches, in which the user may have permissions of its own.
pub(crate) fn shows_caches(task: &str) -> bool {
    matches!(task, CONFIG | DESCRIBE | SEGMENTS | REBALANCING)
}

pub(crate) fn needed(task: &str) -> Option<Permission> {
    Some(match task {
        CONFIG | DESCRIBE | MEMBERS | SEGMENTS | REBALANCING => Permission::Monitor,
        // The list of clients has names of users and addresses.
        ENABLE_REBALANCING | DISABLE_REBALANCING | STOP | CLIENTS => Permission::Admin,
        _ => return None,
    })
}
