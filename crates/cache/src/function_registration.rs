//! Functions that owners apply to entries. Every member registers them under the same names before the first use.

use std::sync::Arc;

use bytes::Bytes;
use consort_grid::{Entry, ReduceFn, Stored, TransformFn};

use crate::cache::Cache;
use crate::manager::CacheBuilder;

impl CacheBuilder<'_> {
    /// Registers a function, see [`Cache::register_transform`], before this member gets requests.
    pub fn transform(
        mut self,
        name: &str,
        transform: impl Fn(&[u8], Stored, &[u8]) -> Option<Bytes> + Send + Sync + 'static,
    ) -> Self {
        let now = self.manager.clock();
        let transform = move |key: &[u8], entry: &Entry, arguments: &[u8]| {
            transform(key, Stored::of(entry.clone(), now()), arguments)
        };
        self.functions.transforms.push((name.to_owned(), Arc::new(transform)));
        self
    }

    /// Registers a transform that may take long, such as a search in a value. Separate threads apply it for some milliseconds at
    /// a time, and operations go on meanwhile. A quick function is cheaper on the request's thread ([`CacheBuilder::transform`]).
    pub fn costly_transform(
        mut self,
        name: &str,
        transform: impl Fn(&[u8], Stored, &[u8]) -> Option<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.functions.costly.push(name.to_owned());
        self.transform(name, transform)
    }

    /// Registers a reduction as [`CacheBuilder::costly_transform`].
    pub fn costly_reduction(
        mut self,
        name: &str,
        reduction: impl Fn(&mut Vec<u8>, &[u8], &Entry, &[u8]) + Send + Sync + 'static,
    ) -> Self {
        self.functions.costly.push(name.to_owned());
        self.reduction(name, reduction)
    }

    /// Registers a function, see [`Cache::register_reduction`], before this member gets requests.
    pub fn reduction(
        mut self,
        name: &str,
        reduction: impl Fn(&mut Vec<u8>, &[u8], &Entry, &[u8]) + Send + Sync + 'static,
    ) -> Self {
        self.functions.reductions.push((name.to_owned(), Arc::new(reduction)));
        self
    }
}

impl<K, V, KE, VE> Cache<K, V, KE, VE> {
    /// Registers a function for [`crate::EntryStream::transform`]: from an encoded key, entry and arguments it returns the new
    /// value, or `None` to skip the entry. Owners call it under a segment's lock, so it must be quick and not use the cache.
    pub fn register_transform(
        &self,
        name: &str,
        transform: impl Fn(&[u8], &Entry, &[u8]) -> Option<Bytes> + Send + Sync + 'static,
    ) {
        let transform: Arc<TransformFn> = Arc::new(transform);
        self.encoded
            .handler
            .with_node(|node, _| node.register_transform(self.encoded.opened.id, name, transform));
    }

    /// Registers a function for [`Cache::reduce`]: it adds a key, an entry and arguments to its result, which
    /// is empty at first. An empty result is not sent. The conditions are those of transforms.
    pub fn register_reduction(
        &self,
        name: &str,
        reduction: impl Fn(&mut Vec<u8>, &[u8], &Entry, &[u8]) + Send + Sync + 'static,
    ) {
        let reduction: Arc<ReduceFn> = Arc::new(reduction);
        self.encoded
            .handler
            .with_node(|node, _| node.register_reduction(self.encoded.opened.id, name, reduction));
    }
}
