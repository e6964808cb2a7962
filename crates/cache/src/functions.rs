//! Functions that owners apply to their entries: transforms filter and map, reductions make one of many. Every member has to
//! know them, under the same names, before somebody uses them.

use std::sync::Arc;

use bytes::Bytes;
use consort_grid::{CacheId, Entry, Node, ReduceFn, Stored, TransformFn};

use crate::cache::Cache;
use crate::manager::CacheBuilder;

/// Functions for a cache that is being opened, and their names.
#[derive(Default)]
pub(crate) struct Functions {
    transforms: Vec<(String, Arc<TransformFn>)>,
    reductions: Vec<(String, Arc<ReduceFn>)>,
    /// Those of them that take long.
    costly: Vec<String>,
}

impl Functions {
    pub(crate) fn register(self, node: &mut Node, cache: CacheId) {
        for (name, transform) in self.transforms {
            node.register_transform(cache, &name, transform);
        }
        for (name, reduction) in self.reductions {
            node.register_reduction(cache, &name, reduction);
        }
        for name in self.costly {
            node.register_costly(cache, &name);
        }
    }
}

impl CacheBuilder<'_> {
    /// Makes a function known for [`crate::Walk::transform`] before this member is asked for anything, as
    /// [`Cache::register_transform`] does later. It is given entries as they travel.
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

    /// The same for a function that may take long with an entry, as a search in its value does: it is applied by other
    /// threads than those on which everybody waits, for some milliseconds at a time, so that operations go on meanwhile. A
    /// function that is quick is applied where it is, which costs less.
    pub fn costly_transform(
        mut self,
        name: &str,
        transform: impl Fn(&[u8], Stored, &[u8]) -> Option<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.functions.costly.push(name.to_owned());
        self.transform(name, transform)
    }

    /// The same for a reduction, as [`CacheBuilder::costly_transform`].
    pub fn costly_reduction(
        mut self,
        name: &str,
        reduction: impl Fn(&mut Vec<u8>, &[u8], &Entry, &[u8]) + Send + Sync + 'static,
    ) -> Self {
        self.functions.costly.push(name.to_owned());
        self.reduction(name, reduction)
    }

    /// Makes a function known for [`Cache::reduce`] before this member is asked for anything, as
    /// [`Cache::register_reduction`] does later.
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
    /// Makes a function known that [`crate::Walk::transform`] has owners apply to each entry: what it makes of the entry, or
    /// nothing if the entry is not wanted. It gets keys and values as their bytes, is called under a segment's lock, must be
    /// quick and must not use the cache.
    pub fn register_transform(
        &self,
        name: &str,
        transform: impl Fn(&[u8], &Entry, &[u8]) -> Option<Bytes> + Send + Sync + 'static,
    ) {
        let transform: Arc<TransformFn> = Arc::new(transform);
        self.handler.with_node(|node, _| node.register_transform(self.opened.id, name, transform));
    }

    /// Makes a function known that [`Cache::reduce`] has owners apply to their entries: it adds a key, an entry and its
    /// arguments to what it has made of others, which is empty at first. What stays empty is not sent. It is called as
    /// transforms are.
    pub fn register_reduction(
        &self,
        name: &str,
        reduction: impl Fn(&mut Vec<u8>, &[u8], &Entry, &[u8]) + Send + Sync + 'static,
    ) {
        let reduction: Arc<ReduceFn> = Arc::new(reduction);
        self.handler.with_node(|node, _| node.register_reduction(self.opened.id, name, reduction));
    }
}
