use consort_group::Time;

use crate::config::CacheId;
#[cfg(doc)]
use crate::cx::NodeEvent;
use crate::cx::waiting_events::TakenEvents;
use crate::event::{ListenError, ListenOptions, ListenerId};
use crate::node::Node;
use crate::operation::OperationError;
use crate::publication::{IterationError, IterationId, Next, Publication};

impl Node {
    /// Begins an iteration; the first [`Node::take`] sends requests.
    ///
    /// # Errors
    ///
    /// [`OperationError::Closed`] and [`OperationError::TooManyInFlight`]; nothing was done.
    pub fn iterate(
        &mut self,
        cache: CacheId,
        publication: Publication,
    ) -> Result<IterationId, OperationError> {
        let cache = self.caches.get_mut(&cache).ok_or(OperationError::Closed)?;
        self.next_iteration += 1;
        let id = IterationId(self.next_iteration);
        cache.iterations.iterate(&cache.shared, id, publication)?;
        Ok(id)
    }

    /// Takes an iteration's next items; earlier ones count as consumed. The end or an error closes it.
    ///
    /// # Errors
    ///
    /// [`IterationError`].
    pub fn take(
        &mut self,
        now: Time,
        cache: CacheId,
        iteration: IterationId,
    ) -> Result<Next, IterationError> {
        self.cx.now = now;
        let Some(cache) = self.caches.get_mut(&cache) else { return Err(OperationError::Closed.into()) };
        let taken = cache.iterations.take(&cache.shared, &cache.store, &mut self.cx, iteration);
        self.work();
        taken
    }

    /// Takes received items for a reader that still processes earlier ones. The first `consumed` of those
    /// count as consumed, and more are requested of other members. This member's own entries are visited only
    /// by [`Node::take`] and while a reader waits after an empty result. Also returns whether more items are
    /// here; if not, [`NodeEvent::Fetched`] follows.
    ///
    /// # Errors
    ///
    /// [`IterationError`].
    pub fn take_ahead(
        &mut self,
        now: Time,
        cache: CacheId,
        iteration: IterationId,
        consumed: usize,
    ) -> Result<(Next, bool), IterationError> {
        self.cx.now = now;
        let Some(cache) = self.caches.get_mut(&cache) else { return Err(OperationError::Closed.into()) };
        let taken =
            cache.iterations.take_ahead(&cache.shared, &cache.store, &mut self.cx, iteration, consumed);
        self.work();
        taken
    }

    /// Ends an iteration early.
    pub fn cancel(&mut self, cache: CacheId, iteration: IterationId) {
        if let Some(cache) = self.caches.get_mut(&cache) {
            cache.iterations.cancel(iteration);
        }
    }

    /// Returns the unconsumed items, requested or received: at most a batch.
    pub fn unconsumed(&self, cache: CacheId, iteration: IterationId) -> usize {
        self.caches.get(&cache).map_or(0, |cache| cache.iterations.unconsumed(iteration))
    }

    /// Returns the requests in flight, at most [`crate::LANES_MAX`].
    pub fn asked(&self, cache: CacheId, iteration: IterationId) -> usize {
        self.caches.get(&cache).map_or(0, |cache| cache.iterations.asked(iteration))
    }

    /// Begins to listen. After [`NodeEvent::Told`], [`Node::is_listening`] returns whether the listener is
    /// ready.
    ///
    /// # Errors
    ///
    /// [`ListenError`]; nothing was done.
    pub fn listen(
        &mut self,
        now: Time,
        cache: CacheId,
        options: ListenOptions,
    ) -> Result<ListenerId, ListenError> {
        self.cx.now = now;
        let cache = self.caches.get_mut(&cache).ok_or(OperationError::Closed)?;
        self.next_listener += 1;
        let id = ListenerId(self.next_listener);
        cache.listeners.listen(&cache.shared, &cache.iterations, &mut self.cx, id, options)?;
        self.work();
        Ok(id)
    }

    /// Whether a listener receives all changes that begin from now on.
    ///
    /// # Errors
    ///
    /// [`OperationError::Closed`] if it has ended. [`OperationError::Degraded`] while a primary is
    /// unreachable: it will receive the changes once all are reachable, or the caller ends it.
    pub fn is_listening(&self, cache: CacheId, listener: ListenerId) -> Result<bool, ListenError> {
        let cache = self.caches.get(&cache).ok_or(OperationError::Closed)?;
        Ok(cache.listeners.is_listening(&cache.shared, listener)?)
    }

    /// Takes all waiting events. After none, [`NodeEvent::Told`] follows.
    ///
    /// # Errors
    ///
    /// [`ListenError`]; the listener has ended.
    pub fn take_events(
        &mut self,
        now: Time,
        cache: CacheId,
        listener: ListenerId,
    ) -> Result<TakenEvents, ListenError> {
        self.cx.now = now;
        let cache = self.caches.get_mut(&cache).ok_or(OperationError::Closed)?;
        let events = cache.listeners.take_events(
            &cache.shared,
            &cache.store,
            &mut cache.iterations,
            &mut self.cx,
            listener,
            &mut self.next_iteration,
        );
        self.work();
        events
    }

    /// Ends a listener.
    pub fn end_listener(&mut self, now: Time, cache: CacheId, listener: ListenerId) {
        self.cx.now = now;
        if let Some(cache) = self.caches.get_mut(&cache) {
            cache.listeners.end_listener(&mut cache.iterations, &self.cx, listener);
        }
        self.work();
    }
}
