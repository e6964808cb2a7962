//! Iterations over a cache as streams that request more only when polled.

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

/// Keys that [`Cache::clear`] removes at a time: fills messages, and leaves room for a member's own operations.
const CLEAR_AT_ONCE: usize = 256;

/// An iteration, from [`Cache::entries`], [`Cache::keys`], [`Cache::values`] or [`Cache::reduce`].
#[must_use = "an iteration sends no request before it is polled"]
pub struct EntryStream<T> {
    handler: Arc<GridHandler>,
    opened: Arc<OpenCache>,
    publication: Publication,
    reader: Option<Reader>,
    is_over: bool,
    items: IntoItems,
    /// A yield to other tasks before the next request.
    others: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    spin: AdaptiveSpin,
    decode: Box<dyn Fn(Item) -> Result<T, CacheError> + Send>,
}

impl<T> fmt::Debug for EntryStream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "iteration of {} by {:?}", self.opened.config.name, self.publication)
    }
}

impl<T> EntryStream<T> {
    /// Sets the guarantee for entries present throughout, whatever members join or leave. Default: exactly
    /// once.
    pub fn guarantee(mut self, guarantee: Guarantee) -> Self {
        self.publication.guarantee = guarantee;
        self
    }

    /// Sets the limit of fetched but not consumed entries of all members; default 512, at least 1. A response
    /// has at most about 1 MiB.
    pub fn batch(mut self, batch: usize) -> Self {
        self.publication.batch = batch;
        self
    }

    /// Requests one member after the other, instead of up to four at a time.
    pub fn sequential(mut self) -> Self {
        self.publication.lanes = 1;
        self
    }

    /// Iterates over these segments only.
    pub fn segments(mut self, segments: impl Into<Arc<[Segment]>>) -> Self {
        self.publication.segments = Some(segments.into());
        self
    }

    /// Filters and maps entries with this transform ([`Cache::register_transform`]). For values of another
    /// type, begin on a handle with that type. For [`Cache::reduce`] it sets another reduction.
    pub fn transform(mut self, name: &str, arguments: impl Into<Bytes>) -> Self {
        self.publication.transform =
            Some(consort_grid::Transform { name: name.into(), arguments: arguments.into() });
        self
    }

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
    /// Returns the next item; `None` at the end.
    ///
    /// # Errors
    ///
    /// [`CacheError`]; earlier items are valid. An error of the cluster ends the iteration; after a decoding
    /// error the next item follows.
    pub async fn next(&mut self) -> Option<Result<T, CacheError>> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }
}

impl<T> EntryStream<T> {
    /// Returns the next item as borrowed bytes; `None` at the end. It saves decoding and reference counting:
    /// up to a third of the work with small entries.
    ///
    /// # Errors
    ///
    /// [`CacheError`], if the cluster fails; earlier items are valid, and the iteration has ended.
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

    /// Returns the received items of one member that were not taken yet; `None` at the end. [`Batch::bytes`] takes two thirds of
    /// the work of small entries one by one.
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

/// Received items of one member, not empty at first, from [`EntryStream::next_batch`]: an iterator that fails only for entries
/// that cannot be decoded.
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
    /// Returns the remaining items as borrowed bytes.
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

    /// Iterates over all entries. One present from the first poll to the end is returned exactly once (see
    /// [`EntryStream::guarantee`]); one added or removed meanwhile may be. [`Cache::with_read_from`] sets the owners: by
    /// default this member for its own segments and any owner for the others, or all primaries. Values are those at the request
    /// to the member. Keys and values as bytes are copies up to 128 bytes. Larger ones share the memory of the response or the
    /// entry: copy those that you keep for long.
    pub fn entries(&self) -> EntryStream<(K, V)>
    where
        KE: Decode<K>,
        VE: Decode<V>,
    {
        let (keys, values) = (self.codec.keys().clone(), self.codec.values().clone());
        self.stream(Projection::Entries, move |item| Ok((keys.decode(item.key)?, values.decode(item.value)?)))
    }

    /// Iterates over all keys, as [`Cache::entries`], without transferring values.
    pub fn keys(&self) -> EntryStream<K>
    where
        KE: Decode<K>,
    {
        let keys = self.codec.keys().clone();
        self.stream(Projection::Keys, move |item| Ok(keys.decode(item.key)?))
    }

    /// Iterates over all values, as [`Cache::entries`]. Keys are transferred, too, to detect duplicates.
    pub fn values(&self) -> EntryStream<V>
    where
        VE: Decode<V>,
    {
        let values = self.codec.values().clone();
        self.stream(Projection::Entries, move |item| Ok(values.decode(item.value)?))
    }

    /// Iterates over the partial results of a reduction ([`Cache::register_reduction`]), which the reader combines. Owners apply
    /// it; no entry is transferred. A segment with a result has one part, or a few if it has many entries. An entry present from
    /// the first poll to the end is in exactly one part, whatever members join or leave; with
    /// [`Guarantee::AtMostOnce`], in one or none.
    pub fn reduce(&self, name: &str, arguments: impl Into<Bytes>) -> EntryStream<Bytes> {
        self.stream(Projection::Reduced, |item| Ok(item.value)).transform(name, arguments)
    }

    /// Returns the number of entries, counted by their owners. Entries added or removed meanwhile may be counted.
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

    /// Whether there are no entries.
    ///
    /// # Errors
    ///
    /// As [`Cache::size`].
    pub async fn is_empty(&self) -> Result<bool, CacheError> {
        let mut stream = self.stream(Projection::Keys, |_| Ok(()));
        Ok(stream.next().await.transpose()?.is_none())
    }

    /// Removes every key that is present at the beginning. Keys put meanwhile may stay. With
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
