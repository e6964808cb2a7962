//! The orderly stop of all servers. They agree on it in the cache of servers before the first one leaves, so that no entry is moved to
//! a server that stops, too. The record of it ends with the last server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use consort_cache::{CacheError, CacheManager, RawCache, ReadFrom};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::catalog::admin_error::AdminError;
use crate::limits::{APPLIED_CHECK_INTERVAL, ROLLOUT_TIMEOUT};

const KEY: &[u8] = b"cluster stop";

#[derive(Clone, PartialEq, Eq, Debug)]
struct StopRecord {
    /// The address of the server that an operator has asked. If it is lost before the others agree, the cluster goes on.
    asked: String,
    /// The coordinator that moves no entries any more.
    holding: Option<String>,
    /// Whether all servers leave now.
    is_agreed: bool,
}

impl StopRecord {
    /// That of an unreadable text is withdrawn: no server has its address.
    fn from_text(text: &[u8]) -> Self {
        let value: Value = serde_json::from_slice(text).unwrap_or_default();
        Self {
            asked: value["asked"].as_str().unwrap_or_default().to_owned(),
            holding: value["holding"].as_str().map(str::to_owned),
            is_agreed: value["agreed"] == true,
        }
    }

    fn to_text(&self) -> Bytes {
        let Self { asked, holding, is_agreed } = self;
        json!({"asked": asked, "holding": holding, "agreed": is_agreed}).to_string().into()
    }
}

/// The stop of the cluster, as this server takes part in it.
#[derive(Clone)]
pub(crate) struct ClusterStop {
    servers: RawCache,
    manager: CacheManager,
    /// The requests of operators that wait here for an agreement.
    waiting: Arc<AtomicUsize>,
    is_agreed: Arc<watch::Sender<bool>>,
}

impl ClusterStop {
    pub(crate) fn new(servers: RawCache, manager: CacheManager) -> Self {
        let is_agreed = Arc::new(watch::Sender::new(false));
        Self { servers, manager, waiting: Arc::default(), is_agreed }
    }

    /// Completes when all servers leave.
    pub(crate) async fn agreed(&self) {
        // The sender is kept here.
        let _ = self.is_agreed.subscribe().wait_for(|is_agreed| *is_agreed).await;
    }

    pub(crate) fn is_agreed(&self) -> bool {
        *self.is_agreed.borrow()
    }

    /// Takes over the state of the cluster. The coordinator, which has the list of all members, confirms that it moves no entries any
    /// more, and withdraws a stop whose server is lost.
    pub(crate) async fn apply(&self, members_if_first: Option<Vec<String>>) -> Result<(), CacheError> {
        let Some(text) = self.servers.get(KEY).await? else {
            self.manager.set_cluster_stopping(false);
            return Ok(());
        };
        let record = StopRecord::from_text(&text);
        let own = self.manager.address().to_string();
        let is_lost = members_if_first.as_ref().is_some_and(|members| !members.contains(&record.asked));
        let is_abandoned = record.asked == own && self.waiting.load(Ordering::Acquire) == 0;
        if !record.is_agreed && (is_lost || is_abandoned) {
            // If it has changed meanwhile, this server is notified again.
            self.servers.remove_if_value(KEY, &text).await?;
            return Ok(());
        }
        self.manager.set_cluster_stopping(true);
        if record.is_agreed {
            self.is_agreed.send_replace(true);
        } else if members_if_first.is_some() && record.holding.as_ref() != Some(&own) {
            let confirmed = StopRecord { holding: Some(own), ..record };
            self.servers.replace_if_value(KEY, &text, &confirmed.to_text()).await?;
        }
        Ok(())
    }

    /// Lets all servers agree to leave, or none, also if the operator's connection ends meanwhile.
    pub(crate) async fn agree(&self) -> Result<(), AdminError> {
        let own = self.clone();
        let agreeing = async move {
            own.waiting.fetch_add(1, Ordering::AcqRel);
            let agreed = own.propose().await;
            own.waiting.fetch_sub(1, Ordering::AcqRel);
            match agreed {
                // A write with an error may have taken effect.
                Err(_) if own.withdraw().await => Ok(()),
                agreed => agreed,
            }
        };
        tokio::spawn(agreeing).await.unwrap_or(Err(AdminError::StopNotAgreed))
    }

    async fn propose(&self) -> Result<(), AdminError> {
        let until = Instant::now() + ROLLOUT_TIMEOUT;
        let cache = self.servers.with_read_from(ReadFrom::Primary);
        let proposed =
            StopRecord { asked: self.manager.address().to_string(), holding: None, is_agreed: false };
        while Instant::now() < until {
            let Some(text) = cache.get(KEY).await? else {
                cache.put_if_absent(KEY, &proposed.to_text()).await?;
                continue;
            };
            let record = StopRecord::from_text(&text);
            let coordinator = self.manager.view().and_then(|view| Some(view.coordinator()?.to_string()));
            if record.is_agreed {
                return Ok(());
            }
            if record.holding.is_some() && record.holding == coordinator {
                let agreed = StopRecord { is_agreed: true, ..record };
                if cache.replace_if_value(KEY, &text, &agreed.to_text()).await? {
                    return Ok(());
                }
                continue;
            }
            sleep(APPLIED_CHECK_INTERVAL).await;
        }
        Err(AdminError::StopNotAgreed)
    }

    /// Returns whether the servers have agreed all the same. If this fails, too, the record is withdrawn with the next change of
    /// members or servers.
    async fn withdraw(&self) -> bool {
        let withdrawing = async {
            let Some(text) = self.servers.with_read_from(ReadFrom::Primary).get(KEY).await? else {
                return Ok(false);
            };
            let is_agreed = StopRecord::from_text(&text).is_agreed;
            if !is_agreed {
                self.servers.remove_if_value(KEY, &text).await?;
            }
            Ok::<_, CacheError>(is_agreed)
        };
        withdrawing.await.unwrap_or_else(|error| {
            tracing::warn!(
                %error,
                "the stop of the cluster is not agreed, and could not be withdrawn: until it is, no entries are moved to new owners"
            );
            false
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::catalog::caches::Caches;
    use crate::single_member;

    async fn apply(caches: &Caches) {
        caches.stop.apply(caches.members_if_first()).await.unwrap();
    }

    async fn record(caches: &Caches) -> Option<StopRecord> {
        Some(StopRecord::from_text(&caches.stop.servers.get(KEY).await.unwrap()?))
    }

    #[tokio::test]
    async fn servers_agree_when_the_coordinator_moves_no_entries_any_more() {
        let caches = single_member::caches("stop-agree", Arc::default()).await;
        let agreeing = tokio::spawn({
            let stop = caches.stop.clone();
            async move { stop.agree().await }
        });
        while record(&caches).await.is_none() {
            tokio::task::yield_now().await;
        }
        assert!(!caches.stop.is_agreed());
        apply(&caches).await;
        assert_eq!(record(&caches).await.unwrap().holding, Some(caches.manager().address().to_string()));
        agreeing.await.unwrap().unwrap();
        apply(&caches).await;
        tokio::time::timeout(Duration::from_secs(5), caches.stop.agreed()).await.unwrap();
    }

    #[tokio::test]
    async fn stop_without_the_coordinators_confirmation_is_withdrawn() {
        let caches = single_member::caches("stop-withdraw", Arc::default()).await;
        // Nothing applies the record.
        let refused = caches.stop.agree().await;
        assert!(matches!(refused, Err(AdminError::StopNotAgreed)), "{refused:?}");
        assert_eq!(record(&caches).await, None);
        assert!(!caches.stop.is_agreed());
    }

    #[tokio::test]
    async fn stop_that_was_agreed_in_spite_of_an_error_is_not_withdrawn() {
        let caches = single_member::caches("stop-in-spite", Arc::default()).await;
        let own = caches.manager().address().to_string();
        for is_agreed in [false, true] {
            let text = StopRecord { asked: own.clone(), holding: Some(own.clone()), is_agreed }.to_text();
            caches.servers.put(KEY, &text).await.unwrap();
            assert_eq!(caches.stop.withdraw().await, is_agreed);
            assert_eq!(record(&caches).await.is_some(), is_agreed);
        }
    }

    #[tokio::test]
    async fn stop_of_a_lost_or_restarted_server_is_withdrawn() {
        let caches = single_member::caches("stop-lost", Arc::default()).await;
        let own = caches.manager().address().to_string();
        for asked in ["another", &own] {
            let text = StopRecord { asked: asked.to_owned(), holding: None, is_agreed: false }.to_text();
            caches.servers.put(KEY, &text).await.unwrap();
            apply(&caches).await;
            assert_eq!(record(&caches).await, None, "{asked}");
        }
        // Other servers may have left already.
        let text = StopRecord { asked: "another".to_owned(), holding: None, is_agreed: true }.to_text();
        caches.servers.put(KEY, &text).await.unwrap();
        apply(&caches).await;
        assert!(record(&caches).await.is_some() && caches.stop.is_agreed());
    }

    #[test]
    fn record_is_read_back() {
        for holding in [None, Some("B".to_owned())] {
            let record = StopRecord { asked: "A".to_owned(), holding, is_agreed: true };
            assert_eq!(StopRecord::from_text(&record.to_text()), record);
        }
        assert!(!StopRecord::from_text(b"\xff").is_agreed);
    }
}
