//! Callers that write and read continuously and check that no acknowledged write is lost.

use std::time::Duration;

use consort_client::{Cache, ClientError};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Ten times as long as any step takes.
const PATIENCE: Duration = Duration::from_secs(90);

/// The last acknowledged value of a key, and later values with an unknown outcome.
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

/// Writes increasing numbers to one key.
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

/// The callers, one per key.
pub struct Callers {
    cache: Cache<u64, u64>,
    ends: watch::Sender<bool>,
    done: watch::Sender<u64>,
    running: JoinSet<(u64, Known)>,
}

impl Callers {
    /// Starts the callers of this many keys.
    pub fn begin(cache: &Cache<u64, u64>, keys: u64) -> Self {
        let (ends, done, mut running) = (watch::Sender::new(false), watch::Sender::new(0), JoinSet::new());
        for key in 0..keys {
            running.spawn(write_and_read(cache.clone(), key, ends.subscribe(), done.clone()));
        }
        Self { cache: cache.clone(), ends, done, running }
    }

    /// Waits until this many more rounds are done.
    ///
    /// # Panics
    ///
    /// If they are not done within 90 s.
    pub async fn wait_for_writes(&self, count: u64) {
        let mut done = self.done.subscribe();
        let wanted = *done.borrow() + count;
        timeout(PATIENCE, done.wait_for(|done| *done >= wanted))
            .await
            .expect("the callers make progress")
            .unwrap();
    }

    /// Stops the callers and checks that all acknowledged writes are there.
    ///
    /// # Panics
    ///
    /// If an acknowledged write is lost, or a caller got an unexpected error.
    pub async fn end(mut self) {
        self.ends.send_replace(true);
        let mut lost = Vec::new();
        while let Some(ended) = self.running.join_next().await {
            let (key, known) = ended.unwrap();
            let found = self.cache.get(&key).await.unwrap().unwrap_or(0);
            if !known.allows(found) {
                lost.push((key, found, known.acknowledged));
            }
        }
        assert_eq!(lost, [], "key, found value, acknowledged value");
    }
}
