//! Indexes of caches by fields of their entries. Transforms and reductions that an index can answer visit only its candidates.

use std::fmt;
use std::sync::Arc;

use consort_grid::{Container, IndexedFields};

use crate::cache::Cache;
use crate::manager::CacheBuilder;

/// The index of a cache on this member, from [`Cache::index`].
#[derive(Clone)]
pub struct CacheIndex {
    container: Arc<Container>,
}

impl fmt::Debug for CacheIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an index with {} values in {} bytes", self.entries(), self.bytes())
    }
}

impl CacheIndex {
    /// Sets the indexed fields. Iterations scan the present entries until [`CacheIndex::build`] has returned.
    pub fn set(&self, fields: Option<Arc<dyn IndexedFields>>) {
        self.container.indexes().set(fields);
    }

    /// Indexes the entries that were here before the fields were set. It takes about a microsecond for each, in steps during which
    /// other operations on a segment wait: call it on a thread that may block.
    pub fn build(&self) {
        while self.container.indexes().build() {}
    }

    /// Returns the values in the index.
    pub fn entries(&self) -> u64 {
        self.container.statistics().index_entries()
    }

    /// Returns the bytes of the index. They count in [`Cache::local_bytes`] and not in the memory limit.
    pub fn bytes(&self) -> u64 {
        self.container.statistics().index_bytes()
    }

    /// Returns the parts of iterations with functions that the index has answered so far, and those that have scanned a segment.
    pub fn walks(&self) -> (u64, u64) {
        (self.container.statistics().indexed_walks(), self.container.statistics().scanned_walks())
    }
}

impl CacheBuilder<'_> {
    /// Sets the indexed fields, so that entries are indexed while they are loaded and received.
    pub fn indexed_fields(mut self, fields: Arc<dyn IndexedFields>) -> Self {
        self.indexed_fields = Some(fields);
        self
    }
}

impl<K, V, KE, VE> Cache<K, V, KE, VE> {
    /// Returns the index here, which is empty without indexed fields.
    pub fn index(&self) -> CacheIndex {
        CacheIndex { container: self.encoded.opened.container.clone() }
    }
}
