//! Completion of abandoned transactions by the first member.

use consort_cache::CacheError;

use super::record::TimeoutAction;
use super::{FindCache, InvolvedCaches, Transactions};

impl Transactions {
    pub(crate) async fn reap(&self, caches: &impl FindCache, members: &[String]) -> Result<(), CacheError> {
        let mut keys = self.records.keys();
        while let Some(key) = keys.next().await.transpose()? {
            let Some(entry) = self.records.get_with_metadata(&key[..]).await? else { continue };
            let is_member = |server: &str| members.iter().any(|member| member == server);
            match entry.value.timeout_action(entry.age, is_member) {
                TimeoutAction::Nothing => {}
                TimeoutAction::Forget => {
                    self.records.remove_if_version(&key[..], entry.version).await?;
                }
                TimeoutAction::Release => self.release_completed(&key).await?,
                TimeoutAction::RollBack => {
                    tracing::info!("rolling back an undecided transaction after its timeout");
                    let _ = self.roll_back(&key).await;
                }
                TimeoutAction::Finish => {
                    tracing::info!("completing the commit of a transaction for the member that began it");
                    let mut involved = InvolvedCaches::new();
                    for branch in &entry.value.branches {
                        if let Ok(found) = caches.find_cache(&branch.cache).await {
                            involved.insert(branch.cache.clone(), found);
                        }
                    }
                    self.finish(&key, &involved).await?;
                }
            }
        }
        Ok(())
    }
}
