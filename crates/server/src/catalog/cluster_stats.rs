//! Counts of all servers (facts section 2.4). Each server publishes its own in a replicated cache while they change, and adds up those
//! of the others. A request reads the sums: it must not cost the time to read what all servers have published of all caches.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use consort_cache::{CacheError, CacheMode, RawCache};
use serde_json::{Map, Value};

use crate::catalog::served_cache::ServedCache;
use crate::metrics::cache_stats::Counts;

/// Counts that servers publish, and their sums.
pub(crate) struct ClusterStats {
    published: RawCache,
    /// Of the other servers, for the caches of this one.
    sums: Mutex<BTreeMap<String, Counts>>,
}

/// The last counts of other members, so that only changed ones are decoded.
#[derive(Default)]
pub(crate) struct PublishedCounts(BTreeMap<String, DecodedCounts>);

struct DecodedCounts {
    published: Bytes,
    counts: Vec<(String, Counts)>,
}

fn decoded_or_known(published: Bytes, known: Option<DecodedCounts>) -> DecodedCounts {
    match known {
        Some(known) if known.published == published => known,
        _ => DecodedCounts { counts: decode(&published).collect(), published },
    }
}

impl ClusterStats {
    pub(crate) fn new(published: RawCache) -> Self {
        Self { published, sums: Mutex::default() }
    }

    /// Returns the counts of this server and the last ones of the others.
    pub(crate) fn of(&self, served: &ServedCache) -> Counts {
        let mut sum = served.stats.counts(&served.cache);
        let others = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(others) = others.get(served.cache.name()) {
            sum.add(others);
        }
        sum
    }

    /// Adds up the counts that other members have published of caches with these names. `known` has those of the last time.
    pub(crate) async fn add_up(
        &self,
        known: &mut PublishedCounts,
        others: impl Iterator<Item = String>,
        names: impl Iterator<Item = String>,
    ) {
        let mut sums: BTreeMap<String, Counts> = names.map(|name| (name, Counts::default())).collect();
        let mut last = std::mem::take(&mut known.0);
        for member in others {
            let decoded = last.remove(&member);
            let decoded = match self.published.get(member.as_bytes()).await {
                Ok(published) => published.map(|bytes| decoded_or_known(bytes, decoded)),
                Err(error) => {
                    tracing::debug!(%error, %member, "cannot read the statistics of another server");
                    decoded
                }
            };
            if let Some(decoded) = decoded {
                for (name, counts) in &decoded.counts {
                    if let Some(sum) = sums.get_mut(name) {
                        sum.add(counts);
                    }
                }
                known.0.insert(member, decoded);
            }
            // One member can have as many caches as are allowed.
            tokio::task::yield_now().await;
        }
        *self.sums.lock().unwrap_or_else(PoisonError::into_inner) = sums;
    }

    /// Publishes the encoded counts of this member.
    pub(crate) async fn publish(&self, own: &str, counts: &Bytes) -> Result<(), CacheError> {
        self.published.put(own.as_bytes(), counts).await.map(drop)
    }

    /// Removes what other members than these have published.
    pub(crate) async fn retain(&self, members: &[String]) -> Result<(), CacheError> {
        let mut keys = self.published.keys();
        while let Some(key) = keys.next().await.transpose()? {
            if !members.iter().any(|member| member.as_bytes() == &key[..]) {
                self.published.remove(&key).await?;
            }
        }
        Ok(())
    }
}

pub(crate) fn encode(counts: impl Iterator<Item = (String, Counts)>) -> Bytes {
    let all: Map<String, Value> = counts.map(|(name, counts)| (name, counts.0.to_vec().into())).collect();
    Value::Object(all).to_string().into()
}

/// Leaves out counts in the form of another version.
fn decode(published: &[u8]) -> impl Iterator<Item = (String, Counts)> {
    let all: Map<String, Value> = serde_json::from_slice(published).unwrap_or_default();
    all.into_iter().filter_map(|(name, counts)| {
        let counts: Option<Vec<i64>> = counts.as_array()?.iter().map(Value::as_i64).collect();
        Some((name, Counts(counts?.try_into().ok()?)))
    })
}

/// The number of copies of each entry, as long as no server joins or leaves.
pub(crate) fn copies(served: &ServedCache) -> i64 {
    let members = served.with_topology(|topology| topology.addresses().count()).unwrap_or(1);
    let copies = match served.cache.config().mode {
        CacheMode::Replicated => members,
        CacheMode::Distributed { owners } => members.min(owners.into()),
        _ => 1,
    };
    i64::try_from(copies.max(1)).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_counts_are_read_by_cache() {
        let counts = Counts([1, 2, 3, 4, 5, 6]);
        let published = encode([("c".to_owned(), counts)].into_iter());
        assert_eq!(decode(&published).collect::<Vec<_>>(), [("c".to_owned(), counts)]);
        // Counts that have not changed are not decoded again.
        let known = DecodedCounts { published: published.clone(), counts: Vec::new() };
        assert_eq!(decoded_or_known(published.clone(), Some(known)).counts, []);
        let known = DecodedCounts { published: Bytes::new(), counts: Vec::new() };
        assert_eq!(decoded_or_known(published, Some(known)).counts, [("c".to_owned(), counts)]);
        for other in [&b"{\"c\":[1]}"[..], b"{\"c\":[1,2,3,4,5,\"x\"]}", b"{\"c\":7}", b"[]", b"\xff"] {
            assert_eq!(decode(other).count(), 0);
        }
    }
}
