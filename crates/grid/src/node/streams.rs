//! Iterations and listeners, as their readers use them.

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
    /// Begins an iteration. No request is sent before the first [`Node::take`].
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

    /// Takes the next items of an iteration. The items taken before count as consumed. After the end and after an error the
    /// iteration is closed.
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

    /// Takes the received items of an iteration, for a reader that still processes earlier ones. The first `consumed` of those
    /// count as consumed, and more are requested of other members if they have some. This member's own entries are visited only
    /// by [`Node::take`], and while a reader waits that received nothing there. Also returns whether more items are here; if not,
    /// [`NodeEvent::Fetched`] follows when they are.
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

    /// Returns the number of requested or received items of an iteration that are not consumed: never more than its batch.
    pub fn unconsumed(&self, cache: CacheId, iteration: IterationId) -> usize {
        self.caches.get(&cache).map_or(0, |cache| cache.iterations.unconsumed(iteration))
    }

    /// Returns the number of an iteration's requests in flight: never more than [`crate::LANES_MAX`].
    pub fn asked(&self, cache: CacheId, iteration: IterationId) -> usize {
        self.caches.get(&cache).map_or(0, |cache| cache.iterations.asked(iteration))
    }

    /// Begins to listen. After [`NodeEvent::Told`], [`Node::is_listening`] returns whether the listener receives all changes.
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

    /// Returns whether a listener receives all changes that begin from now on.
    ///
    /// # Errors
    ///
    /// [`OperationError::Closed`] if it has ended. [`OperationError::Degraded`] if it does not because a primary is unreachable:
    /// the caller may end it, or it will receive the changes once all primaries are reachable.
    pub fn is_listening(&self, cache: CacheId, listener: ListenerId) -> Result<bool, ListenError> {
        let cache = self.caches.get(&cache).ok_or(OperationError::Closed)?;
        Ok(cache.listeners.is_listening(&cache.shared, listener)?)
    }

    /// Takes all events that wait for a listener's reader. If there are none, [`NodeEvent::Told`] follows when there are.
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
