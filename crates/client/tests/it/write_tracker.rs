//! Callers who write and read all the time, and who know what was acknowledged to them.

use std::time::Duration;

use consort_client::{Cache, ClientError};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// A busy machine takes a tenth of this.
const PATIENCE: Duration = Duration::from_secs(90);

/// What a caller knows of its key: the last value that was acknowledged, and those of later writes that may have been
/// done.
#[derive(Default)]
struct Known {
    acknowledged: u64,
    possible: Vec<u64>,
}

impl Known {
    fn allows(&self, found: u64) -> bool {
        found == self.acknowledged || self.possible.contains(&found)
    }
}

/// Writes ever larger numbers under its own key and reads them back until the end.
async fn write_and_read(
    cache: Cache<u64, u64>,
    key: u64,
    ends: watch::Receiver<bool>,
    done: watch::Sender<u64>,
) -> (u64, Known) {
    let mut known = Known::default();
    for n in 1.. {
        if *ends.borrow() {
            break;
        }
        match cache.put(&key, &n).await {
            Ok(()) => known = Known { acknowledged: n, possible: Vec::new() },
            Err(error) if error.is_outcome_unknown() => known.possible.push(n),
            Err(error) => panic!("{error}"),
        }
        match cache.get(&key).await {
            Ok(found) => {
                let found = found.unwrap_or(0);
                assert!(
                    known.allows(found),
                    "key {key}: {found}, not {} or {:?}",
                    known.acknowledged,
                    known.possible
                );
            }
            Err(ClientError::Server { .. } | ClientError::TimedOut { .. }) => {}
            Err(error) => panic!("a read fails: {error}"),
        }
        done.send_modify(|done| *done += 1);
    }
    (key, known)
}

/// As many callers as keys.
pub(crate) struct Callers {
    cache: Cache<u64, u64>,
    ends: watch::Sender<bool>,
    done: watch::Sender<u64>,
    running: JoinSet<(u64, Known)>,
}

impl Callers {
    pub(crate) fn begin(cache: &Cache<u64, u64>, keys: u64) -> Self {
        let (ends, done, mut running) = (watch::Sender::new(false), watch::Sender::new(0), JoinSet::new());
        for key in 0..keys {
            running.spawn(write_and_read(cache.clone(), key, ends.subscribe(), done.clone()));
        }
        Self { cache: cache.clone(), ends, done, running }
    }

    /// Waits until so many have written and read again.
    pub(crate) async fn go_on(&self, count: u64) {
        let mut done = self.done.subscribe();
        let wanted = *done.borrow() + count;
        timeout(PATIENCE, done.wait_for(|done| *done >= wanted)).await.expect("callers go on").unwrap();
    }

    /// Ends them, and looks whether all that was acknowledged is there.
    pub(crate) async fn end(mut self) {
        self.ends.send_replace(true);
        let mut lost = Vec::new();
        while let Some(ended) = self.running.join_next().await {
            let (key, known) = ended.unwrap();
            let found = self.cache.get(&key).await.unwrap().unwrap_or(0);
            if !known.allows(found) {
                lost.push((key, found, known.acknowledged));
            }
        }
        assert_eq!(lost, [], "key, what is there, what was acknowledged");
    }
}
