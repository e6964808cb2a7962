//! The log of a waiting start: it names the servers, usually missing ones, that a start waits for, so that an operator
//! knows which to start.

use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;

use consort_cache::{Availability, CacheManager};
use tokio::time::sleep;

use crate::limits::{STARTUP_LOG_AFTER, STARTUP_LOG_INTERVAL};

/// The state of an internal cache.
#[derive(Clone, PartialEq, Eq, Debug)]
struct PendingCache {
    name: &'static str,
    /// The unreachable owners; `None` if this server is not in the topology yet.
    away: Option<Vec<String>>,
}

/// Awaits a start. If it takes longer than usual, logs what it waits for, and repeats that until the start is complete.
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

/// The reason for which a cache does not open, if there is one.
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
        format!("servers are away without which nothing may be written: {}", away.join(", "))
    } else if pending.is_empty() {
        format!("it waits for answers of the servers that are here, {view}")
    } else if members > 1 {
        format!(
            "the servers that are here, {view}, have not taken this one in ({}): if servers have gone all at once, they do so \
             when those are back",
            names()
        )
    } else {
        format!("it is alone, {view}, and other servers of its cluster may have later changes ({})", names())
    };
    format!(
        "not serving yet, after {} s: {why}. Start the servers that are missing, or mend the network between them. If they \
         have crashed, consort cache make-available at a server that serves goes on without them; where none does, servers with \
         --data do so with --recovery-timeout SECONDS, and others once all of the cluster are ended and started again",
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
        assert!(away.starts_with("not serving yet, after 5 s: servers are away"), "{away}");
        assert!(away.contains(" written: B, C. Start the servers that are missing"), "{away}");
        let outside = waiting(2, &[of("a", None), of("b", None)]);
        assert!(outside.contains("[A|3], have not taken this one in (a, b)"), "{outside}");
        let alone = waiting(1, &[of("a", None)]);
        assert!(alone.contains("it is the only one here, [A|3]"), "{alone}");
        let silent = waiting(2, &[]);
        assert!(silent.contains("waits for answers of the servers that are here, [A|3]"), "{silent}");
    }
}
