//! Operations on many keys: local entries are read directly, other operations run concurrently.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use consort_grid::{Action, Change, Condition, Lookup, OperationError, Outcome, PREFETCH_MAX, Write};

use crate::cache::Cache;
use crate::encoded::EncodedCache;
use crate::error::{CacheError, KeyError};
use crate::operation::Operation;
use consort_encoding::{Decode, Encode, EncodeBorrowed, Encoded};

/// Enough to keep every member of a large cluster busy, and few enough to leave room for other callers.
const WINDOW: usize = 1_024;

/// Values in the order of their keys, and the indexes and reads of the keys that are not here.
type Here<V> = (Vec<Option<V>>, Vec<(usize, (Bytes, Action))>);

enum Place<'a> {
    Running(Operation<'a>),
    Done(Result<Outcome, OperationError>),
}

/// Operations that run concurrently, and return in the order in which they were begun.
struct OrderedJoin<'a, I> {
    more: I,
    running: VecDeque<Place<'a>>,
    ended: Vec<Outcome>,
}

impl<'a, I> OrderedJoin<'a, I>
where
    I: Iterator<Item = Operation<'a>>,
{
    fn new(operations: I) -> Self {
        Self {
            ended: Vec::with_capacity(operations.size_hint().0),
            more: operations,
            running: VecDeque::new(),
        }
    }
}

impl<'a, I> Future for OrderedJoin<'a, I>
where
    I: Iterator<Item = Operation<'a>> + Unpin,
{
    /// Or the index of the first operation that has failed.
    type Output = Result<Vec<Outcome>, (usize, OperationError)>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let step = |place: &mut Place<'_>, cx: &mut Context<'_>| {
            if let Place::Running(operation) = place
                && let Poll::Ready(result) = Pin::new(operation).poll(cx)
            {
                *place = Place::Done(result);
            }
        };
        for place in &mut this.running {
            step(place, cx);
        }
        loop {
            while let Some(Place::Done(_)) = this.running.front() {
                if let Some(Place::Done(result)) = this.running.pop_front() {
                    // All earlier operations have ended, so their number is the index.
                    let place = this.ended.len();
                    this.ended.push(result.map_err(|error| (place, error))?);
                }
            }
            if this.running.len() >= WINDOW {
                return Poll::Pending;
            }
            let Some(next) = this.more.next() else { break };
            let mut place = Place::Running(next);
            step(&mut place, cx);
            this.running.push_back(place);
        }
        if this.running.is_empty() { Poll::Ready(Ok(std::mem::take(&mut this.ended))) } else { Poll::Pending }
    }
}

impl EncodedCache {
    async fn submit_in_order(&self, actions: Vec<(Bytes, Action)>) -> Result<Vec<Outcome>, KeyError> {
        if self.locked_writes.is_some() {
            return self.submit_with_locks(actions).await;
        }
        let operations = actions.into_iter().map(|(key, action)| self.operation(key, action));
        Ok(OrderedJoin::new(operations).await?)
    }

    /// One after the other: each write locks its key.
    async fn submit_with_locks(&self, actions: Vec<(Bytes, Action)>) -> Result<Vec<Outcome>, KeyError> {
        let mut outcomes = Vec::with_capacity(actions.len());
        for (nth, (key, action)) in actions.into_iter().enumerate() {
            let outcome = match action {
                Action::Write(write) => self.write(key, write).await.map(Outcome::Written),
                Action::Read(_) => self.operation(key, action).await.map_err(CacheError::from),
            };
            outcomes.push(outcome.map_err(at(nth))?);
        }
        Ok(outcomes)
    }

    pub(crate) async fn remove_keys(&self, keys: Vec<Bytes>) -> Result<(), CacheError> {
        let removals = keys.into_iter().map(|key| (key, always(Change::Remove))).collect();
        Ok(self.submit_in_order(removals).await.map(drop)?)
    }
}

impl<K, V, KE, VE> Cache<K, V, KE, VE> {
    /// Also returns the indexes of the keys to be read elsewhere.
    fn get_all_here<'q, Q: ?Sized + 'q>(
        &self,
        keys: impl IntoIterator<Item = &'q Q>,
    ) -> Result<Here<V>, KeyError>
    where
        KE: Encode<Q>,
        VE: Decode<V>,
    {
        let (mut values, mut elsewhere) = (Vec::new(), Vec::new());
        let mut keys = keys.into_iter();
        loop {
            let together = keys.by_ref().take(PREFETCH_MAX).enumerate();
            let together = together.map(|(nth, key)| self.key(key).map_err(at(values.len() + nth)));
            let together: Vec<Encoded<'_>> = together.collect::<Result<_, _>>()?;
            if together.is_empty() {
                return Ok((values, elsewhere));
            }
            self.encoded.opened.prefetch(together.iter().map(Encoded::as_slice));
            for key in together {
                let value = match self.encoded.value_here(key.as_slice()) {
                    Lookup::Hit(value) => Some(self.decoded(value).map_err(at(values.len()))?),
                    Lookup::Miss => None,
                    Lookup::NotLocal => {
                        elsewhere.push((values.len(), (key.into_bytes(), self.encoded.reading())));
                        None
                    }
                };
                values.push(value);
            }
        }
    }

    /// Returns the values of these keys, in their order.
    ///
    /// # Errors
    ///
    /// The error of the first key that failed, in their order, with its index; but local entries are read
    /// first. Operations on earlier keys are complete, and those on later keys go on.
    pub async fn get_all<'q, Q: ?Sized + 'q>(
        &self,
        keys: impl IntoIterator<Item = &'q Q>,
    ) -> Result<Vec<Option<V>>, KeyError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: Decode<V>,
    {
        let (mut values, elsewhere) = self.get_all_here(keys)?;
        let (places, actions): (Vec<usize>, Vec<_>) = elsewhere.into_iter().unzip();
        let read = self
            .encoded
            .submit_in_order(actions)
            .await
            .map_err(|failed| KeyError { nth: places[failed.nth], ..failed });
        for (place, outcome) in places.iter().copied().zip(read?) {
            if let Outcome::Read(Some(stored)) = outcome {
                values[place] = Some(self.decoded(stored.value).map_err(at(place))?);
            }
        }
        Ok(values)
    }

    /// Sets keys to values. Each key is written separately: readers may see some of the values before the
    /// others.
    ///
    /// # Errors
    ///
    /// As for [`Cache::get_all`]. If a key or value cannot be encoded, nothing was begun.
    pub async fn put_all<'q, Q: ?Sized + 'q, W: ?Sized + 'q>(
        &self,
        entries: impl IntoIterator<Item = (&'q Q, &'q W)>,
    ) -> Result<(), KeyError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: EncodeBorrowed<V, W>,
    {
        let mut actions = Vec::new();
        for (nth, (key, value)) in entries.into_iter().enumerate() {
            let key = self.key(key).map_err(at(nth))?.into_bytes();
            actions.push((key, always(self.putting(value).map_err(at(nth))?)));
        }
        self.encoded.submit_in_order(actions).await.map(drop)
    }

    /// Removes these keys. Returns which had a value, in their order.
    ///
    /// # Errors
    ///
    /// As for [`Cache::put_all`].
    pub async fn remove_all<'q, Q: ?Sized + 'q>(
        &self,
        keys: impl IntoIterator<Item = &'q Q>,
    ) -> Result<Vec<bool>, KeyError>
    where
        KE: EncodeBorrowed<K, Q>,
    {
        let mut actions = Vec::new();
        for (nth, key) in keys.into_iter().enumerate() {
            actions.push((self.key(key).map_err(at(nth))?.into_bytes(), always(Change::Remove)));
        }
        let outcomes = self.encoded.submit_in_order(actions).await?;
        let was_present = |outcome| matches!(outcome, Outcome::Written(written) if written.was_present);
        Ok(outcomes.into_iter().map(was_present).collect())
    }
}

fn at(nth: usize) -> impl FnOnce(CacheError) -> KeyError {
    move |error| KeyError { nth, error }
}

fn always(change: Change) -> Action {
    Action::Write(Write { condition: Condition::Always, change, wants_previous: false })
}
