//! Questions of operators. Answers are JSON, whose members docs/server.md of the server lists; only Consort's servers have these
//! tasks.

use consort_hotrod::ResponseBody;

use crate::admin::Administration;
use crate::error::ClientError;
use crate::operation::Answer;

/// The form of a cache's definition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConfigFormat {
    /// Infinispan's JSON.
    Json,
    /// Infinispan's XML.
    Xml,
}

fn text(answer: &Answer) -> Result<String, ClientError> {
    let text = match &answer.body {
        ResponseBody::Result(text) => String::from_utf8(text.to_vec()).ok(),
        _ => None,
    };
    text.ok_or_else(|| answer.unexpected())
}

impl Administration<'_> {
    async fn ask(&self, task: &'static str, params: &[(&'static str, &str)]) -> Result<String, ClientError> {
        text(&self.run(task, params).await?)
    }

    /// Returns a cache's definition, as [`create`](Self::create) accepts it. Needs the permission MONITOR, unlike
    /// [`clients`](Self::clients).
    ///
    /// # Errors
    ///
    /// If no such cache exists, or the server is too old.
    pub async fn config(&self, name: &str, format: ConfigFormat) -> Result<String, ClientError> {
        let format = match format {
            ConfigFormat::Json => "json",
            ConfigFormat::Xml => "xml",
        };
        self.ask("@@cache@config", &[("name", name), ("format", format)]).await
    }

    /// Returns a cache's definition, status, owners and rebalance as a JSON object.
    ///
    /// # Errors
    ///
    /// If no such cache exists, or the server is too old.
    pub async fn describe(&self, name: &str) -> Result<String, ClientError> {
        self.ask("@@cache@describe", &[("name", name)]).await
    }

    /// Returns the cluster and its members as a JSON object.
    ///
    /// # Errors
    ///
    /// If the server is too old.
    pub async fn members(&self) -> Result<String, ClientError> {
        self.ask("@@cluster@members", &[]).await
    }

    /// Returns the owners of the segments of one cache, or all, as a JSON array.
    ///
    /// # Errors
    ///
    /// If no such cache exists, or the server is too old.
    pub async fn segments(&self, name: Option<&str>) -> Result<String, ClientError> {
        self.ask("@@cluster@segments", &[("name", name.unwrap_or_default())]).await
    }

    /// Returns whether the owners of one cache, or all, are balanced, and the rebalances in progress, as a JSON object.
    ///
    /// # Errors
    ///
    /// If no such cache exists, or the server is too old.
    pub async fn rebalancing(&self, name: Option<&str>) -> Result<String, ClientError> {
        self.ask("@@cluster@rebalancing", &[("name", name.unwrap_or_default())]).await
    }

    /// Enables or disables the balancing of owners of one cache, or all, until the last server ends, and returns the state as
    /// [`rebalancing`](Self::rebalancing). While it is disabled, servers that join own no segments, and the copies
    /// of a server that is lost or leaves are not replaced: the crash of a segment's last owner then loses its entries. It is not for
    /// rolling restarts. Needs the permission ADMIN.
    ///
    /// # Errors
    ///
    /// If no such cache exists, or the server is too old.
    pub async fn set_rebalancing(&self, name: Option<&str>, is_enabled: bool) -> Result<String, ClientError> {
        let task = if is_enabled { "@@cluster@enablerebalancing" } else { "@@cluster@disablerebalancing" };
        self.ask(task, &[("name", name.unwrap_or_default())]).await
    }

    /// Stops all servers of the cluster in order, and returns the members as [`members`](Self::members). The answer arrives before the
    /// servers end. No entries are moved: each server's stores keep the entries that the server owned, entries without a store are
    /// lost, and at the restart caches with stores wait for all these servers. Needs the permission ADMIN.
    ///
    /// # Errors
    ///
    /// If the servers do not agree in time, after which none stops; or if the server is too old.
    pub async fn stop_cluster(&self) -> Result<String, ClientError> {
        self.ask("@@cluster@stop", &[]).await
    }

    /// Returns the connections of the server that answers, with ids above `after`, as a JSON array. It has a limited number of them:
    /// ask again with the last id until it is empty. Needs the permission ADMIN. A client that is to ask one server only has to be
    /// basic ([`ClientBuilder::intelligence`](crate::ClientBuilder::intelligence)).
    ///
    /// # Errors
    ///
    /// If the server is too old.
    pub async fn clients(&self, after: u64) -> Result<String, ClientError> {
        self.ask("@@server@clients", &[("after", &after.to_string())]).await
    }
}
