//! Iterations over all entries of a cache, as streams that request more only when they are polled.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use consort_grid::{
    CacheMode, Change, Condition, Guarantee, IntoItems, Item, ItemRef, ItemRefs, IterationError, Next,
    Projection, Publication, Segment, Write,
};
use futures_core::Stream;

use crate::adaptive_spin::AdaptiveSpin;
use crate::cache::Cache;
use crate::error::CacheError;
use crate::handler::GridHandler;
use crate::iterations::Reader;
use crate::open_cache::OpenCache;
use consort_encoding::Decode;

/// Number of keys that [`Cache::clear`] removes at the same time: enough to fill messages, few beside a member's own
/// operations.
const CLEAR_AT_ONCE: usize = 256;

/// An iteration and its options. From [`Cache::entries`], [`Cache::keys`], [`Cache::values`] and [`Cache::reduce`].
#[must_use = "an iteration sends no request before it is polled"]
pub struct EntryStream<T> {
    handler: Arc<GridHandler>,
    opened: Arc<OpenCache>,
    publication: Publication,
    reader: Option<Reader>,
    is_over: bool,
    items: IntoItems,
    /// A yield to other tasks, before the next request.
    others: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// The spin for responses in a sequential iteration.
    spin: AdaptiveSpin,
    decode: Box<dyn Fn(Item) -> Result<T, CacheError> + Send>,
}

impl<T> fmt::Debug for EntryStream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "iteration of {} by {:?}", self.opened.config.name, self.publication)
    }
}

impl<T> EntryStream<T> {
    /// Sets the delivery guarantee for entries that are present throughout, whatever members join or leave. Exactly
    /// once by default.
    pub fn guarantee(mut self, guarantee: Guarantee) -> Self {
        self.publication.guarantee = guarantee;
        self
    }

    /// Sets the maximum number of fetched and not yet consumed entries, from all members together. 512 by default, at
    /// least one. A response has about 1 MiB at most, however large the batch is.
    pub fn batch(mut self, batch: usize) -> Self {
        self.publication.batch = batch;
        self
    }

    /// Requests entries of one member after the other, instead of up to four at a time.
    pub fn sequential(mut self) -> Self {
        self.publication.lanes = 1;
        self
    }

    /// Iterates over these segments only.
    pub fn segments(mut self, segments: impl Into<Arc<[Segment]>>) -> Self {
        self.publication.segments = Some(segments.into());
        self
    }

    /// Filters and maps the entries with this transform: see [`Cache::register_transform`]. If it returns values of
    /// another type, begin the iteration on a handle with that type. For [`Cache::reduce`] it sets another reduction.
    pub fn transform(mut self, name: &str, arguments: impl Into<Bytes>) -> Self {
        self.publication.transform =
            Some(consort_grid::Transform { name: name.into(), arguments: arguments.into() });
        self
    }

    /// Waits until there are items or the iteration has ended.
    fn poll_items(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CacheError>> {
        while self.items.len() == 0 && !self.is_over {
            if let Some(others) = &mut self.others {
                if others.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                self.others = None;
            }
            match self.handler.poll_next(self.opened.id, &mut self.reader, &self.publication, cx) {
                Poll::Pending if self.publication.lanes <= 1 && self.spin.should_spin(Instant::now()) => {
                    self.others = Some(Box::pin(tokio::task::yield_now()));
                }
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(Next::Items(items))) => {
                    self.spin.reset();
                    self.items = items.into_iter();
                    // Local entries are always ready; only responses of other members need a wait.
                    self.others = Some(Box::pin(tokio::task::yield_now()));
                }
                Poll::Ready(Ok(_)) => self.end(),
                Poll::Ready(Err(error)) => {
                    self.end();
                    return Poll::Ready(Err(error.into()));
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    fn end(&mut self) {
        self.is_over = true;
        self.reader = None;
    }
}

impl<T> Stream for EntryStream<T> {
    type Item = Result<T, CacheError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.items.len() == 0
            && let Err(error) = ready!(self.poll_items(cx))
        {
            return Poll::Ready(Some(Err(error)));
        }
        let item = self.items.next();
        Poll::Ready(item.map(|item| (self.decode)(item)))
    }
}

impl<T> EntryStream<T> {
    /// Returns the next item; `None` at the end. The same as the stream's `next`, for callers without streams.
    ///
    /// # Errors
    ///
    /// [`CacheError`]; the items before are valid. After an error of the cluster the iteration has ended; after a
    /// decoding error the next item follows.
    pub async fn next(&mut self) -> Option<Result<T, CacheError>> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }
}

impl<T> EntryStream<T> {
    /// Returns the next item as borrowed bytes with its version; `None` at the end. Without decoding and reference
    /// counting, which are up to a third of the work of an iteration over small entries.
    ///
    /// # Errors
    ///
    /// [`CacheError`], if the cluster fails; the items before are valid, and the iteration has ended.
    pub async fn next_bytes(&mut self) -> Option<Result<ItemRef<'_>, CacheError>> {
        // Whole responses are kept.
        self.publication.whole = true;
        if self.items.len() == 0
            && let Err(error) = std::future::poll_fn(|cx| self.poll_items(cx)).await
        {
            return Some(Err(error));
        }
        self.items.next_ref().map(Ok)
    }

    /// Returns all received items of one member that were not taken yet; `None` at the end. Reading them as borrowed
    /// bytes ([`Batch::bytes`]) takes two thirds of the work of taking small ones entry by entry.
    ///
    /// # Errors
    ///
    /// [`CacheError`], as [`EntryStream::next`].
    pub async fn next_batch(&mut self) -> Option<Result<Batch<'_, T>, CacheError>> {
        // Only before the iteration has begun: a caller that takes items one by one needs owned items.
        self.publication.whole = true;
        if let Err(error) = std::future::poll_fn(|cx| self.poll_items(cx)).await {
            return Some(Err(error));
        }
        let items = std::mem::take(&mut self.items);
        (items.len() > 0).then(|| Ok(Batch { items, decode: &*self.decode }))
    }
}

/// Received items of one member in an iteration, not empty at first: an iterator over the entries, which fails only
/// for entries that cannot be decoded. From [`EntryStream::next_batch`].
pub struct Batch<'w, T> {
    items: IntoItems,
    decode: &'w (dyn Fn(Item) -> Result<T, CacheError> + Send),
}

impl<T> fmt::Debug for Batch<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} entries", self.items.len())
    }
}

impl<T> Batch<'_, T> {
    /// Returns the remaining items as borrowed bytes with their versions, without decoding and reference counting.
    pub fn bytes(&self) -> ItemRefs<'_> {
        self.items.rest()
    }
}

impl<T> Iterator for Batch<'_, T> {
    type Item = Result<T, CacheError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.items.next().map(self.decode)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.items.size_hint()
    }
}

impl<T> ExactSizeIterator for Batch<'_, T> {}

impl<T> Drop for EntryStream<T> {
    fn drop(&mut self) {
        if let Some(reader) = &self.reader {
            self.handler.cancel(reader.id());
        }
    }
}

impl<K, V, KE, VE> Cache<K, V, KE, VE> {
    fn stream<T>(
        &self,
        projection: Projection,
        decode: impl Fn(Item) -> Result<T, CacheError> + Send + 'static,
    ) -> EntryStream<T> {
        EntryStream {
            handler: self.encoded.handler.clone(),
            opened: self.encoded.opened.clone(),
            publication: Publication { projection, from: self.options().read_from, ..Publication::default() },
            reader: None,
            is_over: false,
            items: IntoItems::default(),
            others: None,
            spin: AdaptiveSpin::default(),
            decode: Box::new(decode),
        }
    }

    /// Iterates over all entries. An entry that is present from the first poll to the end is returned exactly once
    /// unless [`EntryStream::guarantee`] says otherwise; one that is added or removed meanwhile may be returned. The
    /// handle's option [`Cache::with_read_from`] sets the owners: by default this member for its own segments and any
    /// owner for the others, or all primaries. Values are those at the time of the request to the member. Keys and
    /// values as bytes are copies if they have at most 128 bytes. Larger ones share the memory of their response, or
    /// of the entry itself: copy those that are kept for long.
    pub fn entries(&self) -> EntryStream<(K, V)>
    where
        KE: Decode<K>,
        VE: Decode<V>,
    {
        let (keys, values) = (self.codec.keys().clone(), self.codec.values().clone());
        self.stream(Projection::Entries, move |item| Ok((keys.decode(item.key)?, values.decode(item.value)?)))
    }

    /// Iterates over all keys, as [`Cache::entries`]; values are not transferred.
    pub fn keys(&self) -> EntryStream<K>
    where
        KE: Decode<K>,
    {
        let keys = self.codec.keys().clone();
        self.stream(Projection::Keys, move |item| Ok(keys.decode(item.key)?))
    }

    /// Iterates over all values, as [`Cache::entries`]. Keys are transferred, too, because duplicates are detected by
    /// their keys.
    pub fn values(&self) -> EntryStream<V>
    where
        VE: Decode<V>,
    {
        let values = self.codec.values().clone();
        self.stream(Projection::Entries, move |item| Ok(values.decode(item.value)?))
    }

    /// Iterates over the partial results of a reduction of all entries, which the reader combines. Owners apply the
    /// reduction to their entries, and no entry is transferred. [`Cache::register_reduction`] registers it. Each
    /// segment with a result has one part, or a few if it has many entries. An entry that is present from the first
    /// poll to the end is in exactly one part, whatever members join or leave; with [`Guarantee::AtMostOnce`], in one
    /// or none.
    pub fn reduce(&self, name: &str, arguments: impl Into<Bytes>) -> EntryStream<Bytes> {
        self.stream(Projection::Reduced, |item| Ok(item.value)).transform(name, arguments)
    }

    /// Returns the number of entries: each owner counts its own. Entries added or removed meanwhile may be counted.
    ///
    /// # Errors
    ///
    /// [`CacheError`], if a segment cannot be read.
    pub async fn size(&self) -> Result<u64, CacheError> {
        let mut stream = self.stream(Projection::Count, |_| Ok(()));
        std::future::poll_fn(|cx| {
            loop {
                match stream.handler.poll_next(stream.opened.id, &mut stream.reader, &stream.publication, cx)
                {
                    Poll::Ready(Ok(Next::End { count })) => {
                        stream.end();
                        return Poll::Ready(Ok(count));
                    }
                    Poll::Ready(Ok(_)) => {}
                    Poll::Ready(Err(error)) => {
                        stream.end();
                        return Poll::Ready(Err(error.into()));
                    }
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await
    }

    /// Returns whether there are no entries.
    ///
    /// # Errors
    ///
    /// As [`Cache::size`].
    pub async fn is_empty(&self) -> Result<bool, CacheError> {
        let mut stream = self.stream(Projection::Keys, |_| Ok(()));
        Ok(stream.next().await.transpose()?.is_none())
    }

    /// Removes every key that is present when the call begins. Keys put meanwhile may stay. With
    /// [`CacheMode::Invalidation`] this is one command to all members.
    ///
    /// # Errors
    ///
    /// [`CacheError`]; some keys were removed.
    pub async fn clear(&self) -> Result<(), CacheError> {
        if self.config().mode == CacheMode::Invalidation {
            // A member does not know the entries of other members.
            let change = Change::Clear;
            let all = Write { condition: Condition::Always, change, wants_previous: false };
            return self.write(Bytes::new(), all).await.map(drop);
        }
        let mut stream = self.stream(Projection::Removable, |item| Ok(item.key)).batch(CLEAR_AT_ONCE);
        let mut keys = Vec::with_capacity(CLEAR_AT_ONCE);
        while let Some(key) = stream.next().await.transpose()? {
            keys.push(key);
            if keys.len() == CLEAR_AT_ONCE {
                self.encoded.remove_keys(std::mem::take(&mut keys)).await?;
            }
        }
        self.encoded.remove_keys(keys).await
    }
}

impl From<IterationError> for CacheError {
    fn from(error: IterationError) -> Self {
        match error {
            IterationError::Operation(error) => error.into(),
            error => Self::Iteration(error),
        }
    }
}
