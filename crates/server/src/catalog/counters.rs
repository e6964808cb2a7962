//! Counters that all servers share (facts section 2.14).
//!
//! Each is an entry with two owners, changed by conditional writes, so that weak counters are exact, too. Its segment follows
//! from the hash by which clients choose a server. Persistent counters have another cache, which all servers have
//! ([`crate::catalog::data_directory`]). As in Infinispan, a removed counter stays defined with its initial value; at
//! [`COUNTERS_MAX`] its name is freed.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use consort_cache::{CacheConfig, CacheError, Change, Events, Grouper, Grouping, Lifetime, RawCache};
use consort_hotrod::ops::counter::{Action, CounterConfig, Request, Response};
use consort_hotrod::{ResponseBody, Status, Text};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use crate::catalog::compute::KeyLocks;
use crate::catalog::counter::{Changed, Counter, OutOfBounds};
use crate::catalog::registry::{Lifecycle, Registry};
use crate::catalog::served_cache::ServedCache;
use crate::limits::{
    COUNTER_NAME_MAX, COUNTERS_COUNT_TIMEOUT, COUNTERS_FREE_INTERVAL, COUNTERS_MAX, COUNTERS_WARNING_FROM,
};
use crate::memory::responses::Responses;
use crate::reply::{Answer, Refusal};

/// The cache of volatile counters; the second is that of persistent ones.
pub(crate) const COUNTERS: &str = "___consort_counters";
pub(crate) const KEPT: &str = "___consort_persistent_counters";

pub(crate) struct Counters {
    /// Its owners determine the server that clients choose.
    pub(crate) served: Arc<ServedCache>,
    all: Registry,
    can_keep: bool,
    key_locks: KeyLocks,
    /// As of the last creation here.
    defined: AtomicU64,
    /// Set if the last attempt to free names freed none; locked during an attempt.
    freed_none_at: Mutex<Option<Instant>>,
}

pub(crate) fn config() -> CacheConfig {
    let grouper = Grouper::new("hot-rod-counter", |name| Cow::Owned(known_as(name).to_le_bytes().to_vec()));
    CacheConfig { grouping: Grouping::Custom(grouper), ..CacheConfig::new(COUNTERS) }
}

/// Java's hash of the array of the name's bytes.
fn known_as(name: &[u8]) -> i32 {
    name.iter().fold(1, |hash: i32, byte| hash.wrapping_mul(31).wrapping_add(i32::from(byte.cast_signed())))
}

fn key(name: &Text) -> Bytes {
    Bytes::copy_from_slice(name.as_bytes())
}

fn value(answer: Result<i64, OutOfBounds>) -> Answer {
    match answer {
        Ok(value) => Answer::success(ResponseBody::Counter(Response::Value(value))),
        // No value follows, unlike in other operations with this status.
        Err(OutOfBounds) => Answer::of(Status::NotExecutedWithPrevious),
    }
}

fn unreadable() -> Refusal {
    Refusal::new("the counter was written by a server of another version")
}

impl Counters {
    pub(crate) fn new(served: Arc<ServedCache>, kept: RawCache, can_keep: bool) -> Self {
        let all = Registry::new(kept, served.cache.clone());
        let (defined, freed_none_at) = (AtomicU64::new(0), Mutex::default());
        Self { served, all, can_keep, key_locks: KeyLocks::default(), defined, freed_none_at }
    }

    pub(crate) async fn listen(&self, events_max: usize) -> Result<[Events<Bytes, Bytes>; 2], CacheError> {
        self.all.listen(events_max).await
    }

    /// Answers requests that are not about listeners. Also returns whether a counter has changed.
    pub(crate) async fn answer(
        &self,
        responses: &Responses,
        request: Request,
    ) -> Result<(Answer, bool), Refusal> {
        let (name, action) = match request {
            Request::Names => {
                let mut gathering = responses.begin().await?;
                let names = self.all.names(&mut gathering).await?;
                let names = names.into_iter().filter_map(Text::from_utf8).collect();
                let answer = Answer::success(ResponseBody::Counter(Response::Names(names)));
                return Ok((answer.holding(gathering.finish()), false));
            }
            Request::Of(name, action) => (key(&name), action),
        };
        let missing = || Answer::of(Status::NotFound);
        let answer = match action {
            Action::Create(config) => self.create(name, config).await?,
            Action::Configuration => self.get(&name).await?.map_or_else(missing, |counter| {
                Answer::success(ResponseBody::Counter(Response::Configuration(counter.config)))
            }),
            Action::IsDefined => {
                let is_defined = self.get(&name).await?.is_some();
                Answer::of(if is_defined { Status::Success } else { Status::NotExecuted })
            }
            Action::Get => self.get(&name).await?.map_or_else(missing, |counter| value(Ok(counter.now.0))),
            Action::AddAndGet(delta) => {
                return self.changed(name, move |counter| Ok(counter.added(delta))).await;
            }
            Action::CompareAndSwap(expected, update) => {
                let swapped =
                    move |counter: Counter| strong(counter).map(|one| one.swapped(expected, update));
                return self.changed(name, swapped).await;
            }
            Action::GetAndSet(new) => {
                return self.changed(name, move |counter| strong(counter).map(|one| one.set(new))).await;
            }
            Action::Reset => {
                let (reset, has_changed) = self.changed(name, |counter| Ok(counter.reset())).await?;
                return Ok((Answer::of(reset.status), has_changed));
            }
            Action::Remove => {
                let (_, has_changed) = self.changed(name, |counter| Ok(counter.removed())).await?;
                // To remove a counter that is not defined counts as success.
                return Ok((Answer::of(Status::Success), has_changed));
            }
            Action::AddListener(_) | Action::RemoveListener(_) => {
                return Err(Refusal::new("a listener belongs to a connection"));
            }
        };
        Ok((answer, false))
    }

    pub(crate) async fn get(&self, name: &Bytes) -> Result<Option<Counter>, Refusal> {
        let Some(value) = self.all.get_linearizable(name).await? else { return Ok(None) };
        Counter::from_bytes(&value).ok_or_else(unreadable).map(Some)
    }

    /// Creates a counter, unless it exists with this configuration.
    pub(crate) async fn define(&self, name: &str, config: CounterConfig) -> Result<(), String> {
        let key = Bytes::copy_from_slice(name.as_bytes());
        let answer = self.create(key.clone(), config).await.map_err(|refusal| refusal.text().to_owned())?;
        if answer.status != Status::NotExecuted {
            return Ok(());
        }
        match self.get(&key).await.map_err(|refusal| refusal.text().to_owned())? {
            Some(counter) if counter.config != config => {
                Err("it exists with another configuration; remove it to apply the file".to_owned())
            }
            _ => Ok(()),
        }
    }

    async fn create(&self, name: Bytes, config: CounterConfig) -> Result<Answer, Refusal> {
        let refused = |text: String| Err(Refusal::new(text));
        let Some(counter) = Counter::new(config) else {
            let name = String::from_utf8_lossy(&name);
            return refused(format!(
                "ISPN029508: counter {name}: its bounds have to be lower and upper, with its initial value between them"
            ));
        };
        if config.is_persistent && !self.can_keep {
            return refused(
                "this server keeps no persistent counters: it has no directory for data".to_owned(),
            );
        }
        if name.is_empty() || name.len() > COUNTER_NAME_MAX {
            return refused(format!("the name of a counter has 1 to {COUNTER_NAME_MAX} bytes"));
        }
        if self.get(&name).await?.is_some() {
            return Ok(Answer::of(Status::NotExecuted));
        }
        let defined = self.all.size().await?;
        if defined >= COUNTERS_MAX as u64 && self.free_removed().await? == 0 {
            return refused(format!(
                "counter {}: the limit of {COUNTERS_MAX} counters in the cluster is reached and none of them is removed; \
                 remove counters that are no longer used",
                String::from_utf8_lossy(&name)
            ));
        }
        self.warn_of_limit(defined + 1);
        let keeping = if config.is_persistent { Lifecycle::Persistent } else { Lifecycle::Volatile };
        let is_new = self.all.add(&name, counter.to_bytes(), keeping).await?;
        Ok(Answer::of(if is_new { Status::Success } else { Status::NotExecuted }))
    }

    /// Reads all counters; so it returns 0 at once if a recent attempt has freed none.
    async fn free_removed(&self) -> Result<usize, Refusal> {
        let mut freed_none_at = self.freed_none_at.lock().await;
        if freed_none_at.is_some_and(|at| at.elapsed() < COUNTERS_FREE_INTERVAL) {
            return Ok(0);
        }
        let is_removed = |value: &Bytes| Counter::from_bytes(value).is_some_and(|counter| counter.is_removed);
        let mut freed = 0;
        for (name, value) in self.all.entries().await? {
            if !is_removed(&value) {
                continue;
            }
            // A client may use it again at this moment.
            let make = move |seen: Option<&Bytes>| {
                let change = seen.filter(|seen| is_removed(seen)).map(|_| Change::Remove);
                let has_changed = change.is_some();
                Ok((change, has_changed))
            };
            freed += usize::from(self.key_locks.compute(self.all.cache_of(&name).await?, &name, make).await?);
        }
        *freed_none_at = (freed == 0).then(Instant::now);
        if freed > 0 {
            tracing::info!(freed, "freed the names of removed counters, because {COUNTERS_MAX} were defined");
        }
        Ok(freed)
    }

    /// Warns again with each further tenth of the remaining counters.
    fn warn_of_limit(&self, defined: u64) {
        let (max, from) = (COUNTERS_MAX as u64, COUNTERS_WARNING_FROM as u64);
        let step = ((max - from) / 10).max(1);
        let passed = |count: u64| count.checked_sub(from).map(|beyond| beyond / step);
        let before = self.defined.swap(defined, Ordering::Relaxed);
        if passed(defined) > passed(before) {
            tracing::warn!(
                defined,
                limit = max,
                "the number of counters in the cluster is near the limit, at which new counters are refused. Remove counters that \
                 are no longer used: their names are freed when the limit is reached"
            );
        }
    }

    pub(crate) async fn defined(&self) -> Option<u64> {
        timeout(COUNTERS_COUNT_TIMEOUT, self.all.size()).await.ok()?.ok()
    }

    async fn changed(
        &self,
        name: Bytes,
        change: impl Fn(Counter) -> Result<Changed, Refusal> + Send + 'static,
    ) -> Result<(Answer, bool), Refusal> {
        let make = move |seen: Option<&Bytes>| {
            let Some(seen) = seen else { return Ok((None, (Answer::of(Status::NotFound), false))) };
            let (changed, answer) = change(Counter::from_bytes(seen).ok_or_else(unreadable)?)?;
            let has_changed = changed.is_some();
            Ok((changed.map(putting), (value(answer), has_changed)))
        };
        self.key_locks.compute(self.all.cache_of(&name).await?, &name, make).await
    }
}

fn putting(counter: Counter) -> Change {
    Change::Put { value: counter.to_bytes(), lifetime: Lifetime::FOREVER }
}

fn strong(counter: Counter) -> Result<Counter, Refusal> {
    let refused =
        || Refusal::new("ISPN029514: the counter is weak, not strong: it supports only additions and resets");
    counter.is_strong().then_some(counter).ok_or_else(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_hashed_as_in_java() {
        assert_eq!(known_as(b""), 1);
        assert_eq!(known_as(b"a"), 128);
        assert_eq!(known_as("é".as_bytes()), (31 - 61) * 31 - 87);
        assert_eq!(known_as(b"a long name that overflows"), {
            let mut hash = 1_i64;
            for byte in b"a long name that overflows" {
                hash = (hash * 31 + i64::from(*byte)) as i32 as i64;
            }
            hash as i32
        });
    }
}
