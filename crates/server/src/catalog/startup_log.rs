//! The log of a waiting start names the servers that it waits for, usually missing ones.

use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;

use consort_cache::{Availability, CacheManager};
use tokio::time::sleep;

use crate::limits::{STARTUP_LOG_AFTER, STARTUP_LOG_INTERVAL};

#[derive(Clone, PartialEq, Eq, Debug)]
struct PendingCache {
    name: &'static str,
    /// `None` if this server is not in the topology yet.
    away: Option<Vec<String>>,
}

pub(crate) async fn log_while_waiting<T>(
    manager: &CacheManager,
    caches: &[&'static str],
    starting: impl Future<Output = T>,
) -> T {
    tokio::pin!(starting);
    let mut pause = STARTUP_LOG_AFTER;
    let mut waited = Duration::ZERO;
    loop {
        tokio::select! {
            started = &mut starting => return started,
            () = sleep(pause) => {}
        }
        waited += pause;
        pause = STARTUP_LOG_INTERVAL;
        let members = manager.view().map_or(0, |view| view.len());
        let pending: Vec<PendingCache> = caches.iter().filter_map(|name| of(manager, name)).collect();
        tracing::warn!("{}", text(waited, &manager.view_text(), members, &pending));
    }
}

fn of(manager: &CacheManager, name: &'static str) -> Option<PendingCache> {
    // A cache whose opening has not begun waits for the others.
    let topology = manager.watch_topology(name)?.borrow().clone();
    let away = match topology.map(|topology| topology.availability) {
        None => None,
        Some(Availability::Available) => return None,
        Some(Availability::Degraded { away }) => {
            Some(away.iter().map(|one| manager.member(one).to_string()).collect())
        }
    };
    Some(PendingCache { name, away })
}

fn text(waited: Duration, view: &str, members: usize, pending: &[PendingCache]) -> String {
    let names = || pending.iter().map(|one| one.name).collect::<Vec<_>>().join(", ");
    let away: BTreeSet<&String> = pending.iter().filter_map(|one| one.away.as_ref()).flatten().collect();
    let why = if !away.is_empty() {
        let away: Vec<&str> = away.into_iter().map(String::as_str).collect();
        format!("writes need these unreachable owners: {}", away.join(", "))
    } else if pending.is_empty() {
        format!("it waits for responses of the members {view}")
    } else if members > 1 {
        format!(
            "the members {view} have not added this server to the caches {}. If several servers left at the same time, they \
             do so after those return",
            names()
        )
    } else {
        format!(
            "it is the only member, {view}, and missing servers may have later changes of the caches {}",
            names()
        )
    };
    format!(
        "not serving yet, after {} s: {why}. Start the missing servers, or repair the network between them. If they have \
         crashed for good, run consort cache make-available at a serving server. If no server serves, start servers that have \
         --data with --recovery-timeout SECONDS; without --data, end all servers of the cluster and start them again",
        waited.as_secs()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &'static str, away: Option<&[&str]>) -> PendingCache {
        PendingCache { name, away: away.map(|away| away.iter().map(|one| (*one).to_owned()).collect()) }
    }

    #[test]
    fn log_line_names_the_awaited_servers() {
        let waiting =
            |members, pending: &[PendingCache]| text(Duration::from_secs(5), "[A|3]", members, pending);
        let away = waiting(2, &[of("a", Some(&["C", "B"])), of("b", Some(&["C"])), of("c", None)]);
        assert!(
            away.starts_with("not serving yet, after 5 s: writes need these unreachable owners: B, C. Start"),
            "{away}"
        );
        let outside = waiting(2, &[of("a", None), of("b", None)]);
        assert!(
            outside.contains("the members [A|3] have not added this server to the caches a, b."),
            "{outside}"
        );
        let alone = waiting(1, &[of("a", None)]);
        assert!(
            alone.contains("only member, [A|3], and missing servers may have later changes of the caches a"),
            "{alone}"
        );
        let silent = waiting(2, &[]);
        assert!(silent.contains("it waits for responses of the members [A|3]"), "{silent}");
    }
}
