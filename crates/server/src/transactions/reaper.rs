//! What becomes of transactions that nobody asks for any more: the first member looks after them.

use consort_cache::CacheError;

use super::record::Due;
use super::{Involved, Transactions};
use crate::bounds::REAP_EVERY;
use crate::caches::Caches;

/// Looks after them until it is dropped.
pub(crate) async fn reap(caches: &Caches) {
    loop {
        tokio::time::sleep(REAP_EVERY).await;
        let Some(transactions) = caches.transactions_if_open() else { continue };
        let Some(members) = caches.members_if_first() else { continue };
        if let Err(error) = transactions.reap(caches, &members).await {
            tracing::debug!(%error, "transactions that nobody asks for are looked after later");
        }
    }
}

impl Transactions {
    async fn reap(&self, caches: &Caches, members: &[String]) -> Result<(), CacheError> {
        let mut walk = self.records.keys();
        while let Some(key) = walk.next().await.transpose()? {
            let Some(entry) = self.records.get_with_metadata(&key[..]).await? else { continue };
            let is_member = |server: &str| members.iter().any(|member| member == server);
            match entry.value.due(entry.age, is_member) {
                Due::Nothing => {}
                Due::Forget => {
                    self.records.remove_if_version(&key[..], entry.version).await?;
                }
                Due::Release => self.release_over(&key).await?,
                Due::RollBack => {
                    tracing::info!("a transaction is rolled back that nobody has decided");
                    let _ = self.roll_back(&key).await;
                }
                Due::Finish => {
                    tracing::info!("a transaction is committed for the member that had begun it");
                    let mut involved = Involved::new();
                    for branch in &entry.value.branches {
                        if let Ok(found) = caches.find(&branch.cache).await {
                            involved.insert(branch.cache.clone(), found.map(|served| served.cache.clone()));
                        }
                    }
                    self.finish(&key, &involved).await?;
                }
            }
        }
        Ok(())
    }
}
