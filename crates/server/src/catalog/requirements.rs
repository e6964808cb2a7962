//! The requirements of all servers ([`crate::security::requirement`]), in the cache of servers.

use std::collections::BTreeSet;

use consort_cache::CacheError;

use crate::catalog::caches::Caches;

const KEY: &str = "requires ";

const AUTHENTICATION: &[u8] = b"authentication";

impl Caches {
    pub(crate) async fn compare_requirements(&self) -> Result<(), CacheError> {
        let own = self.manager().address().to_string();
        let mut requiring = BTreeSet::new();
        let mut keys = self.servers.keys();
        while let Some(key) = keys.next().await.transpose()? {
            requiring.extend(String::from_utf8_lossy(&key).strip_prefix(KEY).map(str::to_owned));
        }
        let requirement = &self.security().requirement;
        if requirement.requires_users && !requiring.contains(&own) {
            self.servers.put(format!("{KEY}{own}").as_bytes(), AUTHENTICATION).await?;
        }
        if let Some(members) = self.members_if_first() {
            for gone in requiring.iter().filter(|member| !members.contains(member)) {
                self.servers.remove(format!("{KEY}{gone}").as_bytes()).await?;
            }
        }
        let view = self.manager().view();
        let members = view.iter().flat_map(|view| view.members());
        let others = members.filter(|member| *member != self.manager().address());
        let others = others.filter(|member| requiring.contains(&member.to_string()));
        let others: Vec<String> = others.map(|member| self.manager().name_of(member)).collect();
        requirement.compare(&others);
        Ok(())
    }

    pub(crate) async fn withdraw_requirement(&self) {
        let own = self.manager().address().to_string();
        if self.security().requirement.requires_users {
            // If this fails, the first of the remaining members removes it.
            let _ = self.servers.remove(format!("{KEY}{own}").as_bytes()).await;
        }
    }
}
