//! The provided methods of `BasicCache`, over a map with another writer.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use consort_encoding::optimistic_update::ATTEMPTS;
use consort_encoding::{
    BasicCache, Contention, Decode, Encode, EncodeBorrowed, Lifetime, Postcard, VersionedValue,
};

/// A change by another writer.
type ForeignWrite = Box<dyn FnMut(&mut State) + Send>;

#[derive(Default)]
struct State {
    entries: BTreeMap<String, (Bytes, u64)>,
    last_version: u64,
    /// Number of the next writes before which the other writer changes an entry.
    foreign_writes: u32,
    foreign_write: Option<ForeignWrite>,
}

impl State {
    fn set(&mut self, key: &str, value: u32) {
        self.last_version += 1;
        self.entries.insert(key.to_owned(), (encoded(&value), self.last_version));
    }

    fn version(&self, key: &str) -> Option<u64> {
        self.entries.get(key).map(|(_, version)| *version)
    }

    fn value(&self, key: &str) -> Option<u32> {
        self.entries.get(key).map(|(value, _)| Postcard.decode(value.clone()).unwrap())
    }
}

fn encoded<W: ?Sized>(value: &W) -> Bytes
where
    Postcard: Encode<W>,
{
    Postcard.encode(value).unwrap().into_bytes()
}

/// A cache whose futures are always ready.
#[derive(Clone, Default)]
struct MapCache(Arc<Mutex<State>>);

impl MapCache {
    /// Returns a cache that another writer changes before each of the next conditional writes.
    fn with_foreign_writes(count: u32, write: impl FnMut(&mut State) + Send + 'static) -> Self {
        let cache = Self::default();
        let mut state = cache.0.lock().unwrap();
        state.foreign_writes = count;
        state.foreign_write = Some(Box::new(write));
        drop(state);
        cache
    }

    fn interfere(&self) {
        let mut state = self.0.lock().unwrap();
        if state.foreign_writes > 0
            && let Some(mut write) = state.foreign_write.take()
        {
            state.foreign_writes -= 1;
            write(&mut state);
            state.foreign_write = Some(write);
        }
    }

    fn write_if(&self, key: &str, value: Option<Bytes>, condition: impl FnOnce(&State) -> bool) -> bool {
        self.interfere();
        let mut state = self.0.lock().unwrap();
        let is_done = condition(&state);
        if is_done {
            state.last_version += 1;
            let version = state.last_version;
            match value {
                Some(value) => drop(state.entries.insert(key.to_owned(), (value, version))),
                None => drop(state.entries.remove(key)),
            }
        }
        is_done
    }
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("contended")]
struct Contended(u32);

impl From<Contention> for Contended {
    fn from(Contention { attempts }: Contention) -> Self {
        Self(attempts)
    }
}

impl BasicCache<str, u32> for MapCache {
    type Error = Contended;
    type Version = u64;
    type Values = Postcard;

    fn name(&self) -> &str {
        "map"
    }

    fn with_timeout(&self, _: Duration) -> Self {
        self.clone()
    }

    fn with_lifetime(&self, _: Lifetime) -> Self {
        self.clone()
    }

    async fn get(&self, key: &str) -> Result<Option<u32>, Contended> {
        Ok(self.0.lock().unwrap().value(key))
    }

    async fn get_with_version(&self, key: &str) -> Result<Option<VersionedValue<u32, u64>>, Contended> {
        let state = self.0.lock().unwrap();
        let found = state.value(key).zip(state.version(key));
        Ok(found.map(|(value, version)| VersionedValue { value, version, lifetime: Lifetime::FOREVER }))
    }

    async fn put<W>(&self, key: &str, value: &W) -> Result<(), Contended>
    where
        W: Sync + ?Sized,
        Postcard: EncodeBorrowed<u32, W>,
    {
        self.write_if(key, Some(encoded(value)), |_| true);
        Ok(())
    }

    async fn put_with<W>(&self, key: &str, value: &W, _: Lifetime) -> Result<(), Contended>
    where
        W: Sync + ?Sized,
        Postcard: EncodeBorrowed<u32, W>,
    {
        self.put(key, value).await
    }

    async fn swap<W>(&self, key: &str, value: &W) -> Result<Option<u32>, Contended>
    where
        W: Sync + ?Sized,
        Postcard: EncodeBorrowed<u32, W>,
    {
        let before = self.get(key).await?;
        self.put(key, value).await?;
        Ok(before)
    }

    async fn put_if_absent<W>(&self, key: &str, value: &W) -> Result<bool, Contended>
    where
        W: Sync + ?Sized,
        Postcard: EncodeBorrowed<u32, W>,
    {
        Ok(self.write_if(key, Some(encoded(value)), |state| state.version(key).is_none()))
    }

    async fn replace<W>(&self, key: &str, value: &W) -> Result<bool, Contended>
    where
        W: Sync + ?Sized,
        Postcard: EncodeBorrowed<u32, W>,
    {
        Ok(self.write_if(key, Some(encoded(value)), |state| state.version(key).is_some()))
    }

    async fn replace_if_value<W>(&self, key: &str, expected: &W, value: &W) -> Result<bool, Contended>
    where
        W: Sync + ?Sized,
        Postcard: EncodeBorrowed<u32, W>,
    {
        let expected = encoded(expected);
        let is_expected = |state: &State| state.entries.get(key).is_some_and(|(value, _)| *value == expected);
        Ok(self.write_if(key, Some(encoded(value)), is_expected))
    }

    async fn replace_if_version<W>(&self, key: &str, version: u64, value: &W) -> Result<bool, Contended>
    where
        W: Sync + ?Sized,
        Postcard: EncodeBorrowed<u32, W>,
    {
        Ok(self.write_if(key, Some(encoded(value)), |state| state.version(key) == Some(version)))
    }

    async fn remove(&self, key: &str) -> Result<bool, Contended> {
        Ok(self.write_if(key, None, |state| state.version(key).is_some()))
    }

    async fn take(&self, key: &str) -> Result<Option<u32>, Contended> {
        let before = self.get(key).await?;
        self.remove(key).await?;
        Ok(before)
    }

    async fn remove_if_value<W>(&self, key: &str, expected: &W) -> Result<bool, Contended>
    where
        W: Sync + ?Sized,
        Postcard: EncodeBorrowed<u32, W>,
    {
        let expected = encoded(expected);
        let is_expected = |state: &State| state.entries.get(key).is_some_and(|(value, _)| *value == expected);
        Ok(self.write_if(key, None, is_expected))
    }

    async fn remove_if_version(&self, key: &str, version: u64) -> Result<bool, Contended> {
        Ok(self.write_if(key, None, |state| state.version(key) == Some(version)))
    }

    async fn size(&self) -> Result<u64, Contended> {
        Ok(self.0.lock().unwrap().entries.len() as u64)
    }

    async fn clear(&self) -> Result<(), Contended> {
        self.0.lock().unwrap().entries.clear();
        Ok(())
    }
}

/// Returns the result of a future that is ready. It can be sent to another thread.
fn ready<T>(future: impl Future<Output = T> + Send) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("a future of the map waits"),
    }
}

#[test]
fn compute_changes_the_value_of_another_writer_that_was_faster() {
    let cache = MapCache::with_foreign_writes(2, |state| {
        let value = state.value("k").unwrap_or(0);
        state.set("k", value + 10);
    });
    let mut seen = Vec::new();
    let computed = ready(cache.compute("k", |value| {
        seen.push(value.copied());
        Some(value.unwrap_or(&0) + 1)
    }));
    assert_eq!(computed, Ok(Some(21)));
    assert_eq!(seen, [None, Some(10), Some(20)]);
    assert_eq!(ready(cache.get("k")), Ok(Some(21)));
}

#[test]
fn compute_removes_a_key_or_leaves_it_absent() {
    let cache = MapCache::default();
    assert_eq!(ready(cache.compute("k", |_| None)), Ok(None));
    ready(cache.put("k", &1)).unwrap();
    assert_eq!(ready(cache.compute("k", |_| None)), Ok(None));
    assert_eq!(ready(cache.contains("k")), Ok(false));
}

#[test]
fn compute_fails_after_its_attempts_if_the_key_changes_each_time() {
    let cache = MapCache::with_foreign_writes(u32::MAX, |state| state.set("k", 1));
    assert_eq!(ready(cache.compute("k", |_| Some(2))), Err(Contended(ATTEMPTS)));
    assert_eq!(ready(cache.get("k")), Ok(Some(1)));
}

#[test]
fn compute_if_absent_returns_the_value_of_a_faster_writer() {
    let cache = MapCache::with_foreign_writes(1, |state| state.set("k", 1));
    assert_eq!(ready(cache.compute_if_absent("k", || 2)), Ok(1));
    assert_eq!(ready(cache.compute_if_absent("other", || 3)), Ok(3));
    assert_eq!(ready(cache.compute_if_absent("other", || unreachable!("it is present"))), Ok(3));
}

#[test]
fn compute_if_present_leaves_an_absent_key_absent() {
    let cache = MapCache::default();
    assert_eq!(ready(cache.compute_if_present("k", |value| Some(value + 1))), Ok(None));
    ready(cache.put("k", &1)).unwrap();
    assert_eq!(ready(cache.compute_if_present("k", |value| Some(value + 1))), Ok(Some(2)));
    assert_eq!(ready(cache.compute_if_present("k", |_| None)), Ok(None));
    assert_eq!(ready(cache.is_empty()), Ok(true));
}

#[test]
fn merge_combines_with_the_present_value() {
    let cache = MapCache::default();
    let add = |old: &u32, new: &u32| old.checked_add(*new);
    assert_eq!(ready(cache.merge("k", &1, add)), Ok(Some(1)));
    assert_eq!(ready(cache.merge("k", &2, add)), Ok(Some(3)));
    assert_eq!(ready(cache.merge("k", &u32::MAX, add)), Ok(None));
    assert_eq!(ready(cache.size()), Ok(0));
}

#[test]
fn compare_exchange_returns_the_current_entry_unless_it_is_the_expected_one() {
    let cache = MapCache::default();
    assert_eq!(ready(cache.compare_exchange("k", None, None)), Ok(Ok(())));
    assert_eq!(ready(cache.compare_exchange("k", Some(7), Some(&1))), Ok(Err(None)));
    assert_eq!(ready(cache.compare_exchange("k", None, Some(&1))), Ok(Ok(())));
    let current = ready(cache.get_with_version("k")).unwrap().unwrap();
    for new in [None, Some(&2)] {
        assert_eq!(ready(cache.compare_exchange("k", None, new)), Ok(Err(Some(current))));
    }
    assert_eq!(ready(cache.compare_exchange("k", Some(current.version), Some(&2))), Ok(Ok(())));
    let removed = ready(cache.get_with_version("k")).unwrap().map(|entry| entry.version);
    assert_eq!(ready(cache.compare_exchange("k", removed, None)), Ok(Ok(())));
    assert_eq!(ready(cache.get("k")), Ok(None));
}

#[test]
fn operations_on_several_keys_keep_their_order() {
    let cache = MapCache::default();
    ready(cache.put_all(&[("a", &1), ("c", &3)])).unwrap();
    assert_eq!(ready(cache.get_all(&["c", "b", "a"])), Ok(vec![Some(3), None, Some(1)]));
    assert_eq!(ready(cache.remove_all(&["b", "a"])), Ok(vec![false, true]));
    assert_eq!(ready(cache.size()), Ok(1));
}
