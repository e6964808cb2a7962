//! Whether the owners of caches are balanced: a setting that all servers share, in the cache of servers. Each applies it, so that the
//! next coordinator has it, too. It ends with the last server.

use std::collections::BTreeSet;

use bytes::Bytes;
use consort_cache::{CacheError, CacheManager, RawCache, ReadFrom};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::catalog::admin_error::AdminError;
use crate::limits::{REBALANCING_CHECK_INTERVAL, ROLLOUT_TIMEOUT};

const KEY: &[u8] = b"rebalancing";

/// The setting that the coordinator has applied.
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

    fn to_text(&self) -> Bytes {
        let Self { is_disabled, caches, changes } = self;
        json!({"disabled": is_disabled, "caches": caches, "changes": changes}).to_string().into()
    }

    pub(crate) const fn is_enabled(&self) -> bool {
        !self.is_disabled
    }

    pub(crate) fn is_enabled_for(&self, cache: &str) -> bool {
        !self.is_disabled && !self.caches.contains(cache)
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

    /// The servers' own caches are always balanced, because every server reads its own copy of them.
    pub(crate) async fn apply<'n>(
        &self,
        own: impl Iterator<Item = &'n str>,
        is_first: bool,
    ) -> Result<(), CacheError> {
        let Some(text) = self.servers.get(KEY).await? else {
            self.manager.set_rebalancing(true, []);
            return Ok(());
        };
        let setting = RebalancingSetting::from_text(&text);
        if setting.is_disabled {
            self.manager.set_rebalancing(false, own);
        } else {
            self.manager.set_rebalancing(true, setting.caches.iter().map(String::as_str));
        }
        if is_first && self.servers.get(APPLIED).await?.as_ref() != Some(&text) {
            self.servers.put(APPLIED, &text).await?;
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
            // A later change has been applied if this one has been.
            if applied.is_some_and(|applied| RebalancingSetting::from_text(&applied).changes >= changes) {
                return Ok(());
            }
            if Instant::now() >= until {
                return Err(AdminError::RebalancingNotApplied);
            }
            sleep(REBALANCING_CHECK_INTERVAL).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
