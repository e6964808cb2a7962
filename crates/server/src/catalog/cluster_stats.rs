//! Counts of all servers (facts section 2.4). Each server publishes its own in a replicated cache while they change; a server that
//! is asked adds the last counts of the others, which are at most [`STATS_INTERVAL`] old and the time of a write.

use bytes::Bytes;
use consort_cache::{CacheError, CacheMode};
use serde_json::{Map, Value};

use crate::catalog::caches::Caches;
use crate::catalog::served_cache::ServedCache;
use crate::limits::STATS_INTERVAL;
use crate::metrics::cache_stats::Counts;

fn encode(counts: impl Iterator<Item = (String, Counts)>) -> Bytes {
    let all: Map<String, Value> = counts.map(|(name, counts)| (name, counts.0.to_vec().into())).collect();
    Value::Object(all).to_string().into()
}

/// `None` if the server counts nothing of the cache, or is of another version.
fn decode(published: &[u8], cache: &str) -> Option<Counts> {
    let all: Map<String, Value> = serde_json::from_slice(published).ok()?;
    let counts: Option<Vec<i64>> = all.get(cache)?.as_array()?.iter().map(Value::as_i64).collect();
    Some(Counts(counts?.try_into().ok()?))
}

/// Publishes the counts of this server while they change, and removes those of servers that have left.
pub(crate) async fn publish(caches: &Caches) {
    let own = caches.manager().address().to_string();
    let mut last = Bytes::new();
    loop {
        tokio::time::sleep(STATS_INTERVAL).await;
        let all = caches.all();
        let counts =
            encode(all.iter().map(|(name, served)| (name.clone(), served.stats.counts(&served.cache))));
        if counts != last {
            match caches.statistics.put(own.as_bytes(), &counts).await {
                Ok(_) => last = counts,
                Err(error) => tracing::debug!(%error, "cannot publish the statistics of this server"),
            }
        }
        if let Err(error) = remove_departed(caches).await {
            tracing::debug!(%error, "cannot remove statistics of servers that have left");
        }
    }
}

async fn remove_departed(caches: &Caches) -> Result<(), CacheError> {
    let Some(members) = caches.members_if_first() else { return Ok(()) };
    let mut keys = caches.statistics.keys();
    while let Some(key) = keys.next().await.transpose()? {
        if !members.iter().any(|member| member.as_bytes() == &key[..]) {
            caches.statistics.remove(&key).await?;
        }
    }
    Ok(())
}

/// The sums over all servers.
pub(crate) async fn global_counts(caches: &Caches, served: &ServedCache) -> Result<Counts, CacheError> {
    let mut sum = served.stats.counts(&served.cache);
    let own = caches.manager().address().to_string();
    let view = caches.manager().view();
    let members = view.iter().flat_map(|view| view.members()).map(ToString::to_string);
    for member in members.filter(|member| *member != own) {
        let published = caches.statistics.get(member.as_bytes()).await?;
        if let Some(others) = published.and_then(|published| decode(&published, served.cache.name())) {
            sum.add(&others);
        }
    }
    Ok(sum)
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
        assert_eq!(decode(&published, "c"), Some(counts));
        assert_eq!(decode(&published, "d"), None);
        for other in [&b"{\"c\":[1]}"[..], b"{\"c\":[1,2,3,4,5,\"x\"]}", b"{\"c\":7}", b"[]", b"\xff"] {
            assert_eq!(decode(other, "c"), None);
        }
    }
}
