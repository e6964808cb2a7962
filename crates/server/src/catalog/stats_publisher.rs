//! The task that keeps the statistics of all servers current.

use bytes::Bytes;

use crate::catalog::caches::Caches;
use crate::catalog::cluster_stats::{PublishedCounts, encode};
use crate::limits::STATS_INTERVAL;

/// Publishes the counts of this server while they change, adds up those of others, and removes those of servers that have left,
/// once in a [`STATS_INTERVAL`].
pub(crate) async fn publish(caches: &Caches) {
    let (stats, own) = (&caches.statistics, caches.manager().address().to_string());
    let (mut last, mut known) = (Bytes::new(), PublishedCounts::default());
    loop {
        tokio::time::sleep(STATS_INTERVAL).await;
        let all = caches.all();
        let counts =
            encode(all.iter().map(|(name, served)| (name.clone(), served.stats.counts(&served.cache))));
        if counts != last {
            match stats.publish(&own, &counts).await {
                Ok(()) => last = counts,
                Err(error) => tracing::debug!(%error, "cannot publish the statistics of this server"),
            }
        }
        let view = caches.manager().view();
        let members = view.iter().flat_map(|view| view.members()).map(ToString::to_string);
        let others = members.filter(|member| *member != own);
        stats.add_up(&mut known, others, all.into_iter().map(|(name, _)| name)).await;
        let Some(members) = caches.members_if_first() else { continue };
        if let Err(error) = stats.retain(&members).await {
            tracing::debug!(%error, "cannot remove statistics of servers that have left");
        }
    }
}
