//! Answers to an operator's first questions, in JSON: the members of the cluster, a cache, the owners of its segments.

use consort_cache::{CacheError, Phase};
use serde_json::{Map, Value, json};

use crate::catalog::admin_error::AdminError;
use crate::catalog::cache_aliases::aliases_of;
use crate::catalog::caches::Caches;
use crate::catalog::definition::{self, ShownForm};
use crate::catalog::rebalancing::RebalancingSetting;
use crate::catalog::registry::Lifecycle;
use crate::catalog::segment_owners::{self, phase_name, segments_to_move};
use crate::catalog::served_cache::ServedCache;
use crate::names::is_internal;

/// Reads the state for an operator.
pub(crate) struct ClusterState<'a>(pub(crate) &'a Caches);

impl ClusterState<'_> {
    /// The members of the view in their order, the coordinator first, with the addresses for clients.
    pub(crate) async fn members_in_json(&self) -> Result<Value, CacheError> {
        let (manager, endpoints) = (self.0.manager(), self.0.servers().await?);
        let silent = manager.silent();
        let view = manager.view();
        let members = view.iter().flat_map(|view| view.members()).map(|member| {
            let endpoint = endpoints.get(&member.to_string());
            json!({
                "name": manager.name_of(member),
                "host": endpoint.map(|endpoint| endpoint.address.host.as_str()),
                "port": endpoint.map(|endpoint| endpoint.address.port),
                "coordinator": view.as_ref().and_then(|view| view.coordinator()) == Some(member),
                "asked": member == manager.address(),
                "leaving": endpoint.is_some_and(|endpoint| endpoint.is_leaving),
                "silent": silent.contains(member),
            })
        });
        Ok(json!({
            "cluster": manager.cluster(),
            "view": view.as_ref().map(|view| view.id().id),
            "version": env!("CARGO_PKG_VERSION"),
            "members": members.collect::<Vec<_>>(),
        }))
    }

    /// The name of a cache that clients have defined, which may be meant by an alias.
    pub(crate) async fn defined_name(&self, name: &str) -> Result<String, AdminError> {
        let target = self.0.alias(name).await?;
        let name = target.as_deref().unwrap_or(name);
        if is_internal(name) || self.0.definitions.get(name.as_bytes()).await?.is_none() {
            return Err(AdminError::None(name.to_owned()));
        }
        Ok(name.to_owned())
    }

    async fn definition_in_json(&self, name: &str) -> Result<Value, AdminError> {
        let text = self.0.definitions.get(name.as_bytes()).await?;
        let text = text.ok_or_else(|| AdminError::None(name.to_owned()))?;
        let (definition, _) = definition::from_stored(name, &String::from_utf8_lossy(&text))?;
        Ok(definition::with_aliases(&definition, &aliases_of(&self.0.definitions, name).await?))
    }

    /// The definition, as it can be given to a creation.
    pub(crate) async fn shown_definition(&self, name: &str, form: ShownForm) -> Result<String, AdminError> {
        let name = self.defined_name(name).await?;
        Ok(definition::to_shown(&name, &self.definition_in_json(&name).await?, form))
    }

    pub(crate) async fn description(&self, name: &str) -> Result<Value, AdminError> {
        let name = self.defined_name(name).await?;
        let mut shown = Map::new();
        shown.insert("name".to_owned(), name.clone().into());
        shown.insert("definition".to_owned(), self.definition_in_json(&name).await?);
        let lifecycle = match self.0.definitions.lifecycle(name.as_bytes()).await? {
            Lifecycle::Persistent => "PERMANENT",
            Lifecycle::Volatile => "VOLATILE",
        };
        shown.insert("lifecycle".to_owned(), lifecycle.into());
        match self.0.find(&name).await {
            Ok(Some(served)) => {
                shown.insert("status".to_owned(), "RUNNING".into());
                shown.insert("here".to_owned(), self.state_here(&served));
                shown.insert("segments".to_owned(), self.segments_in_json(&served));
                let setting = self.0.rebalancing.setting().await?;
                shown.insert("rebalancing".to_owned(), self.rebalancing_in_json(&served, &setting));
            }
            Ok(None) => return Err(AdminError::None(name)),
            Err(AdminError::NotOpened { error, .. }) => {
                shown.insert("status".to_owned(), "FAILED".into());
                shown.insert("error".to_owned(), error.into());
            }
            Err(error) => return Err(error),
        }
        Ok(Value::Object(shown))
    }

    /// This server's part of a cache.
    fn state_here(&self, served: &ServedCache) -> Value {
        let cache = &served.cache;
        json!({
            "server": self.0.manager().name(),
            "entries": cache.local_len(),
            "bytes": cache.local_bytes(),
            "passive_entries": cache.passive_len(),
            "evictions": cache.evictions(),
            "expirations": cache.expirations(),
            "store_error": self.0.manager().store_failure(cache.name()),
        })
    }

    /// `null` for a cache that each server has by itself.
    pub(crate) fn segments_in_json(&self, served: &ServedCache) -> Value {
        let name_of = |member: &_| self.0.manager().name_of(member);
        served.with_topology(|topology| segment_owners::to_json(topology, name_of)).unwrap_or(Value::Null)
    }

    /// `null` for a cache that each server has by itself.
    pub(crate) fn rebalancing_in_json(&self, served: &ServedCache, setting: &RebalancingSetting) -> Value {
        let (times, name) = (served.cache.rebalance_times(), served.cache.name());
        let progress = self.0.manager().rebalance_progress(name);
        let state = served.with_topology(|topology| {
            json!({
                "is_enabled": setting.is_enabled_for(name),
                "phase": phase_name(topology.phase),
                "is_running": topology.phase != Phase::Stable,
                "segments_to_move": segments_to_move(topology),
                "segments_to_come_here": progress.segments_left,
                "bytes_to_come_here": progress.bytes_left,
                "ended": times.ended,
                "last_seconds": times.last.map(|last| last.as_secs_f64()),
                "running_seconds": times.running.map(|running| running.as_secs_f64()),
            })
        });
        state.unwrap_or(Value::Null)
    }
}
