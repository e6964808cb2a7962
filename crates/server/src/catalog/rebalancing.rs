//! Whether the owners of caches are balanced: a setting that all servers share, in the cache of servers. Each applies it, so that the
//! next coordinator has it, too. It ends with the last server.

use std::collections::BTreeSet;

use bytes::Bytes;
use consort_cache::{CacheError, CacheManager, RawCache, ReadFrom};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::catalog::admin_error::AdminError;
use crate::catalog::registry::Registry;
use crate::limits::{APPLIED_CHECK_INTERVAL, ROLLOUT_TIMEOUT};

const KEY: &[u8] = b"rebalancing";

/// The setting that a coordinator has applied, with its address: another coordinator may not have applied it yet.
const APPLIED: &[u8] = b"rebalancing applied";

#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct RebalancingSetting {
    is_disabled: bool,
    /// Caches for which it is disabled in any case.
    caches: BTreeSet<String>,
    /// The number of changes, so that two settings never have the same text.
    changes: u64,
}

impl RebalancingSetting {
    /// That of an unreadable text is the default, which keeps no entry from being copied.
    fn from_text(text: &[u8]) -> Self {
        let value: Value = serde_json::from_slice(text).unwrap_or_default();
        let caches = value["caches"].as_array().into_iter().flatten();
        Self {
            is_disabled: value["disabled"] == true,
            caches: caches.filter_map(|name| name.as_str().map(str::to_owned)).collect(),
            changes: value["changes"].as_u64().unwrap_or_default(),
        }
    }

    fn to_json(&self) -> Value {
        let Self { is_disabled, caches, changes } = self;
        json!({"disabled": is_disabled, "caches": caches, "changes": changes})
    }

    fn to_text(&self) -> Bytes {
        self.to_json().to_string().into()
    }

    /// `None` if all caches exist.
    async fn without_unknown(&self, definitions: &Registry) -> Result<Option<Self>, CacheError> {
        let mut known = self.clone();
        for name in &self.caches {
            if definitions.get(name.as_bytes()).await?.is_none() {
                known.set(Some(name), true);
            }
        }
        Ok((known != *self).then_some(known))
    }

    pub(crate) const fn is_enabled(&self) -> bool {
        !self.is_disabled
    }

    pub(crate) fn is_enabled_for(&self, cache: &str) -> bool {
        !self.is_disabled && !self.caches.contains(cache)
    }

    /// That which this member has applied.
    fn applied_text(&self, coordinator: &str) -> Bytes {
        let mut setting = self.to_json();
        setting["coordinator"] = coordinator.into();
        setting.to_string().into()
    }

    /// Returns whether this changes the setting.
    fn set(&mut self, cache: Option<&str>, is_enabled: bool) -> bool {
        let has_changed = match cache {
            None => std::mem::replace(&mut self.is_disabled, !is_enabled) == is_enabled,
            Some(cache) if is_enabled => self.caches.remove(cache),
            Some(cache) => self.caches.insert(cache.to_owned()),
        };
        self.changes += u64::from(has_changed);
        has_changed
    }
}

/// The setting of the cluster.
pub(crate) struct SharedRebalancing {
    servers: RawCache,
    manager: CacheManager,
}

impl SharedRebalancing {
    pub(crate) const fn new(servers: RawCache, manager: CacheManager) -> Self {
        Self { servers, manager }
    }

    pub(crate) async fn setting(&self) -> Result<RebalancingSetting, CacheError> {
        let text = self.servers.get(KEY).await?;
        Ok(text.map_or_else(RebalancingSetting::default, |text| RebalancingSetting::from_text(&text)))
    }

    /// The servers' own caches are always balanced, because every server reads its own copy of them. The coordinator drops names of
    /// caches that no longer exist: a later cache of such a name is another one.
    pub(crate) async fn apply<'n>(
        &self,
        own: impl Iterator<Item = &'n str>,
        is_first: bool,
        definitions: &Registry,
    ) -> Result<(), CacheError> {
        let Some(text) = self.servers.get(KEY).await? else {
            self.manager.set_rebalancing(true, []);
            return Ok(());
        };
        let mut setting = RebalancingSetting::from_text(&text);
        if is_first && let Some(known) = setting.without_unknown(definitions).await? {
            // If it has changed meanwhile, the coordinator is notified again.
            if self.servers.replace_if_value(KEY, &text, &known.to_text()).await? {
                setting = known;
            }
        }
        if setting.is_disabled {
            self.manager.set_rebalancing(false, own);
        } else {
            self.manager.set_rebalancing(true, setting.caches.iter().map(String::as_str));
        }
        if is_first {
            let applied = setting.applied_text(&self.manager.address().to_string());
            if self.servers.get(APPLIED).await?.as_ref() != Some(&applied) {
                self.servers.put(APPLIED, &applied).await?;
            }
        }
        Ok(())
    }

    /// Waits until the coordinator has applied the change, so that a member that joins or leaves afterwards is treated accordingly.
    pub(crate) async fn set(&self, cache: Option<&str>, is_enabled: bool) -> Result<(), AdminError> {
        match self.change(cache, is_enabled).await? {
            Some(text) => self.wait_until_applied(&text).await,
            None => Ok(()),
        }
    }

    /// A later cache of this name is another one.
    pub(crate) async fn forget(&self, cache: &str) -> Result<(), CacheError> {
        self.change(Some(cache), true).await.map(drop)
    }

    /// Returns the setting; `None` if it has never been changed.
    async fn change(&self, cache: Option<&str>, is_enabled: bool) -> Result<Option<Bytes>, CacheError> {
        // A repetition means that another change has succeeded.
        loop {
            let before = self.servers.with_read_from(ReadFrom::Primary).get(KEY).await?;
            let mut setting = before
                .as_ref()
                .map_or_else(RebalancingSetting::default, |text| RebalancingSetting::from_text(text));
            if !setting.set(cache, is_enabled) {
                return Ok(before);
            }
            let text = setting.to_text();
            let is_done = match &before {
                Some(before) => self.servers.replace_if_value(KEY, before, &text).await?,
                None => self.servers.put_if_absent(KEY, &text).await?,
            };
            if is_done {
                return Ok(Some(text));
            }
        }
    }

    async fn wait_until_applied(&self, text: &Bytes) -> Result<(), AdminError> {
        let until = Instant::now() + ROLLOUT_TIMEOUT;
        let changes = RebalancingSetting::from_text(text).changes;
        loop {
            let applied = self.servers.get(APPLIED).await?;
            let coordinator = self.manager.view().and_then(|view| Some(view.coordinator()?.to_string()));
            if applied.is_some_and(|applied| has_applied(&applied, coordinator.as_deref(), changes)) {
                return Ok(());
            }
            if Instant::now() >= until {
                return Err(AdminError::RebalancingNotApplied);
            }
            sleep(APPLIED_CHECK_INTERVAL).await;
        }
    }
}

/// A later change has been applied if this one has been.
fn has_applied(applied: &[u8], coordinator: Option<&str>, changes: u64) -> bool {
    let value: Value = serde_json::from_slice(applied).unwrap_or_default();
    coordinator.is_some_and(|coordinator| value["coordinator"] == coordinator)
        && RebalancingSetting::from_text(applied).changes >= changes
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::catalog::caches::OWN;
    use crate::catalog::registry::Lifecycle;
    use crate::catalog::served_cache::ServedCache;
    use crate::single_member;

    #[test]
    fn change_counts_as_applied_if_the_present_coordinator_has_applied_it_or_a_later_one() {
        let mut setting = RebalancingSetting::default();
        assert!(setting.set(None, false) && setting.set(Some("c"), false));
        let applied = setting.applied_text("A");
        assert!(has_applied(&applied, Some("A"), 1) && has_applied(&applied, Some("A"), 2));
        assert!(!has_applied(&applied, Some("A"), 3), "it does not have that change yet");
        assert!(!has_applied(&applied, Some("B"), 2), "A is no longer the coordinator");
        assert!(!has_applied(&applied, None, 2));
        assert!(!has_applied(&setting.to_text(), Some("A"), 2), "it is only wanted");
    }

    #[tokio::test]
    async fn own_caches_are_balanced_while_rebalancing_is_disabled() {
        const CLUSTER: &str = "rebalancing-own";
        let first = single_member::caches(CLUSTER, Arc::default()).await;
        // A cache that has never had all its owners gets them in any case.
        let definition = Bytes::from_static(br#"{"distributed-cache":{"owners":1}}"#);
        assert!(first.definitions.add(&"c".into(), definition, Lifecycle::Volatile).await.unwrap());
        assert!(first.find("c").await.unwrap().is_some());
        first.rebalancing.change(None, false).await.unwrap();
        first.rebalancing.apply(OWN.into_iter(), true, &first.definitions).await.unwrap();
        let second = single_member::joining(CLUSTER).await;
        let cache = second.find("c").await.unwrap().unwrap();
        let owned = |served: &ServedCache| second.own_segments(served).map(|own| own.len());
        let all = Some(usize::from(second.schemas.cache.config().segments));
        let balanced = async {
            while owned(&second.schemas) != all || owned(&second.counters.served) == Some(0) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), balanced).await.expect("copies of the own caches");
        assert_eq!(owned(&cache), Some(0), "clients' caches are not balanced");
    }

    #[tokio::test]
    async fn coordinator_drops_names_of_caches_that_no_longer_exist() {
        let caches = single_member::caches("rebalancing-names", Arc::default()).await;
        let rebalancing = &caches.rebalancing;
        let there = Bytes::from_static(b"there");
        let definition = Bytes::from_static(br#"{"local-cache":{}}"#);
        assert!(caches.definitions.add(&there, definition, Lifecycle::Volatile).await.unwrap());
        for name in ["gone", "there"] {
            rebalancing.change(Some(name), false).await.unwrap();
        }
        rebalancing.apply([].into_iter(), false, &caches.definitions).await.unwrap();
        assert!(!rebalancing.setting().await.unwrap().is_enabled_for("gone"), "it is no coordinator");
        rebalancing.apply([].into_iter(), true, &caches.definitions).await.unwrap();
        let setting = rebalancing.setting().await.unwrap();
        assert!(setting.is_enabled_for("gone") && !setting.is_enabled_for("there"), "{setting:?}");
        let applied = rebalancing.servers.get(APPLIED).await.unwrap().unwrap();
        let own = rebalancing.manager.address().to_string();
        assert!(has_applied(&applied, Some(&own), setting.changes), "{applied:?}");
    }

    #[test]
    fn setting_is_read_back() {
        let mut setting = RebalancingSetting::default();
        assert!(setting.set(Some("c"), false) && setting.set(None, false));
        assert_eq!(RebalancingSetting::from_text(&setting.to_text()), setting);
        assert_eq!(RebalancingSetting::from_text(b"\xff"), RebalancingSetting::default());
        assert_eq!(RebalancingSetting::from_text(b"[1]"), RebalancingSetting::default());
    }

    #[test]
    fn cache_is_balanced_if_neither_it_nor_all_are_disabled() {
        let mut setting = RebalancingSetting::default();
        let enabled = |setting: &RebalancingSetting| ["c", "d"].map(|cache| setting.is_enabled_for(cache));
        assert!(!setting.set(None, true) && !setting.set(Some("c"), true), "this is the default");
        assert!(setting.set(Some("c"), false) && !setting.set(Some("c"), false));
        assert_eq!((enabled(&setting), setting.is_enabled()), ([false, true], true));
        assert!(setting.set(None, false));
        assert_eq!((enabled(&setting), setting.is_enabled()), ([false, false], false));
        assert!(setting.set(None, true) && setting.set(Some("c"), true));
        assert_eq!((enabled(&setting), setting.changes), ([true, true], 4));
    }
}
