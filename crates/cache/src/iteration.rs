//! Going through all entries of a cache, as streams that ask for more only when they are polled.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use consort_grid::{
    CacheMode, Change, Condition, Guarantee, IntoItems, Item, ItemRef, ItemRefs, IterationError, Next,
    Publication, Segment, What, Write,
};
use futures_core::Stream;

use crate::cache::Cache;
use crate::error::CacheError;
use crate::handler::GridHandler;
use crate::lookout::Lookout;
use crate::standing::OpenCache;
use crate::walks::Reader;
use consort_encoding::Decode;

/// Keys removed at the same time by [`Cache::clear`]: enough to fill messages, few beside a member's own operations.
const CLEAR_AT_ONCE: usize = 256;

/// What is to be gone through, and how. From [`Cache::entries`], [`Cache::keys`], [`Cache::values`] and
/// [`Cache::reduce`].
#[must_use = "nothing is asked before it is polled"]
pub struct Walk<T> {
    handler: Arc<GridHandler>,
    opened: Arc<OpenCache>,
    publication: Publication,
    reader: Option<Reader>,
    is_over: bool,
    items: IntoItems,
    /// Others' turn, before the next is asked for.
    others: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// For answers, where one member is asked at a time.
    lookout: Lookout,
    decode: Box<dyn Fn(Item) -> Result<T, CacheError> + Send>,
}

impl<T> fmt::Debug for Walk<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "walk through {} by {:?}", self.opened.config.name, self.publication)
    }
}

impl<T> Walk<T> {
    /// How surely an entry that is there all the time comes, whatever members join or leave. Exactly once by default.
    pub fn guarantee(mut self, guarantee: Guarantee) -> Self {
        self.publication.guarantee = guarantee;
        self
    }

    /// Entries that may be fetched and not consumed, from all members together. 512 by default, one at least. An answer has
    /// a megabyte or so at most, however large the batch is.
    pub fn batch(mut self, batch: usize) -> Self {
        self.publication.batch = batch;
        self
    }

    /// One member after the other, instead of up to four at a time.
    pub fn sequential(mut self) -> Self {
        self.publication.lanes = 1;
        self
    }

    /// Only these segments.
    pub fn segments(mut self, segments: impl Into<Arc<[Segment]>>) -> Self {
        self.publication.segments = Some(segments.into());
        self
    }

    /// Only what this transform lets through, as it makes it: see [`Cache::register_transform`]. Where it makes values of
    /// another type, the entries are to be had from a handle with that type. Of [`Cache::reduce`] it is another reduction.
    pub fn transform(mut self, name: &str, arguments: impl Into<Bytes>) -> Self {
        self.publication.transform =
            Some(consort_grid::Transform { name: name.into(), arguments: arguments.into() });
        self
    }

    /// Has items, unless there are no more.
    fn poll_items(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CacheError>> {
        while self.items.len() == 0 && !self.is_over {
            if let Some(others) = &mut self.others {
                if others.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                self.others = None;
            }
            match self.handler.poll_next(self.opened.id, &mut self.reader, &self.publication, cx) {
                Poll::Pending if self.publication.lanes <= 1 && self.lookout.looks_again(Instant::now()) => {
                    self.others = Some(Box::pin(tokio::task::yield_now()));
                }
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(Next::Items(items))) => {
                    self.lookout.note_came();
                    self.items = items.into_iter();
                    // What is here never has to be waited for: the answers of others would have to.
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

impl<T> Stream for Walk<T> {
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

impl<T> Walk<T> {
    /// The next one; `None` at the end. The stream's `next` for those who use no streams.
    ///
    /// # Errors
    ///
    /// [`CacheError`]; what came before was right. After a failure of the cluster's nothing comes any more, after one of
    /// decoding the next.
    pub async fn next(&mut self) -> Option<Result<T, CacheError>> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }
}

impl<T> Walk<T> {
    /// The next one as the bytes that it is, where it lies; `None` at the end. Nothing is decoded, and no references to its
    /// memory are counted, which is up to a third of the work of a walk through small entries. It has its version, too.
    ///
    /// # Errors
    ///
    /// [`CacheError`], if the cluster fails; what came before was right, and nothing comes any more.
    pub async fn next_bytes(&mut self) -> Option<Result<ItemRef<'_>, CacheError>> {
        // As of whole answers.
        self.publication.whole = true;
        if self.items.len() == 0
            && let Err(error) = std::future::poll_fn(|cx| self.poll_items(cx)).await
        {
            return Some(Err(error));
        }
        self.items.next_ref().map(Ok)
    }

    /// All that has come of one member and was not taken yet, in one go; `None` at the end. Who looks at it where it lies
    /// ([`Batch::bytes`]) has two thirds of the work of who takes small ones entry by entry.
    ///
    /// # Errors
    ///
    /// [`CacheError`], as [`Walk::next`].
    pub async fn next_batch(&mut self) -> Option<Result<Batch<'_, T>, CacheError>> {
        // Unless it has begun: who takes one by one has them made.
        self.publication.whole = true;
        if let Err(error) = std::future::poll_fn(|cx| self.poll_items(cx)).await {
            return Some(Err(error));
        }
        let items = std::mem::take(&mut self.items);
        (items.len() > 0).then(|| Ok(Batch { items, decode: &*self.decode }))
    }
}

/// What has come of one member in a walk, not empty at first: an iterator over its entries, which fails only for those that
/// cannot be decoded. From [`Walk::next_batch`].
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
    /// Those that were not taken yet as the bytes that they are, where they lie: nothing is decoded, and no references are
    /// counted. They have their versions.
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

impl<T> Drop for Walk<T> {
    fn drop(&mut self) {
        if let Some(reader) = &self.reader {
            self.handler.cancel(reader.id());
        }
    }
}

impl<K, V, KE, VE> Cache<K, V, KE, VE> {
    fn walk<T>(
        &self,
        what: What,
        decode: impl Fn(Item) -> Result<T, CacheError> + Send + 'static,
    ) -> Walk<T> {
        Walk {
            handler: self.handler.clone(),
            opened: self.opened.clone(),
            publication: Publication { what, from: self.options().read_from, ..Publication::default() },
            reader: None,
            is_over: false,
            items: IntoItems::default(),
            others: None,
            lookout: Lookout::default(),
            decode: Box::new(decode),
        }
    }

    /// All entries. One that is there from the first poll to the end comes exactly once unless [`Walk::guarantee`] says
    /// otherwise; one that comes or goes meanwhile may come. They come from where this handle reads ([`Cache::with_read_from`]): from
    /// its own member what that owns and else from any owner, or all from primaries. Values are those of the moment in which a member was asked. Keys and
    /// values as bytes are copies if they are small, 128 bytes at most; larger ones are parts of what they came in, or of the
    /// entry itself: whoever keeps one for long makes a copy.
    pub fn entries(&self) -> Walk<(K, V)>
    where
        KE: Decode<K>,
        VE: Decode<V>,
    {
        let (keys, values) = (self.key_encoding(), self.value_encoding());
        self.walk(What::Entries, move |item| Ok((keys.decode(item.key)?, values.decode(item.value)?)))
    }

    /// All keys, as [`Cache::entries`]; values stay where they are.
    pub fn keys(&self) -> Walk<K>
    where
        KE: Decode<K>,
    {
        let keys = self.key_encoding();
        self.walk(What::Keys, move |item| Ok(keys.decode(item.key)?))
    }

    /// All values, as [`Cache::entries`]. Keys come with them, since it is by their keys that none comes twice.
    pub fn values(&self) -> Walk<V>
    where
        VE: Decode<V>,
    {
        let values = self.value_encoding();
        self.walk(What::Entries, move |item| Ok(values.decode(item.value)?))
    }

    /// What a reduction makes of all entries, in parts, which the reader joins: owners apply it to what they have, and no
    /// entry travels. [`Cache::register_reduction`] makes it known. Of each segment in which it makes something there is a
    /// part, or a few where there are many entries. An entry that is there from the first poll to the end is in exactly one
    /// part, whatever members join or leave; with [`Guarantee::AtMostOnce`], in one or none.
    pub fn reduce(&self, name: &str, arguments: impl Into<Bytes>) -> Walk<Bytes> {
        self.walk(What::Reduced, |item| Ok(item.value)).transform(name, arguments)
    }

    /// How many entries there are: each owner counts its own. What comes or goes meanwhile may be counted.
    ///
    /// # Errors
    ///
    /// [`CacheError`], if a segment cannot be read.
    pub async fn size(&self) -> Result<u64, CacheError> {
        let mut walk = self.walk(What::Count, |_| Ok(()));
        std::future::poll_fn(|cx| {
            loop {
                match walk.handler.poll_next(walk.opened.id, &mut walk.reader, &walk.publication, cx) {
                    Poll::Ready(Ok(Next::End { count })) => {
                        walk.end();
                        return Poll::Ready(Ok(count));
                    }
                    Poll::Ready(Ok(_)) => {}
                    Poll::Ready(Err(error)) => {
                        walk.end();
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
        let mut walk = self.walk(What::Keys, |_| Ok(()));
        Ok(walk.next().await.transpose()?.is_none())
    }

    /// Removes every key that is there when it begins. What is put meanwhile may stay. With [`CacheMode::Invalidation`] that is
    /// one command to all members.
    ///
    /// # Errors
    ///
    /// [`CacheError`]; some keys were removed.
    pub async fn clear(&self) -> Result<(), CacheError> {
        if self.config().mode == CacheMode::Invalidation {
            // What others have, nobody knows.
            let change = Change::Clear;
            let all = Write { condition: Condition::Always, change, wants_previous: false };
            return self.write(Bytes::new(), all).await.map(drop);
        }
        let mut walk = self.walk(What::Removable, |item| Ok(item.key)).batch(CLEAR_AT_ONCE);
        let mut keys = Vec::with_capacity(CLEAR_AT_ONCE);
        while let Some(key) = walk.next().await.transpose()? {
            keys.push(key);
            if keys.len() == CLEAR_AT_ONCE {
                self.remove_keys(std::mem::take(&mut keys)).await?;
            }
        }
        self.remove_keys(keys).await
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
