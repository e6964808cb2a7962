//! Iterations with a query as their filter: over whole entries, or over selected fields (facts section 2.7).

use bytes::Bytes;
use consort_cache::{CacheBuilder, EntryStream};
use consort_hotrod::Metadata;
use consort_hotrod::ops::iteration::{Start, Values};
use consort_query::{Compiled, Exceeded};

use super::factory;
use crate::catalog::caches::Caches;
use crate::catalog::served_cache::ServedCache;
use crate::ops::filter::{ITERATION_QUERY, take_metadata, with_metadata};
use crate::query_plans::{ROWS, ROWS_WITH_METADATA, plan};
use crate::reply::Refusal;

#[derive(Debug)]
pub(crate) struct IterationQuery {
    compiled: Compiled,
    with_metadata: bool,
}

impl IterationQuery {
    pub(crate) async fn from_start(
        caches: &Caches,
        served: &ServedCache,
        start: &Start,
    ) -> Result<Option<Self>, Refusal> {
        let Some(factory) = start.filter.as_ref().filter(|factory| factory.name.as_str() == ITERATION_QUERY)
        else {
            return Ok(None);
        };
        let compiled = factory::compiled(caches, served, factory).await?;
        Ok(Some(Self { compiled, with_metadata: start.with_metadata }))
    }

    pub(crate) fn apply(&self, entries: EntryStream<(Bytes, Bytes)>) -> EntryStream<(Bytes, Bytes)> {
        let transform = if self.with_metadata { ROWS_WITH_METADATA } else { ROWS };
        entries.transform(transform, Bytes::from(self.compiled.plan.to_bytes()))
    }

    pub(crate) fn columns(&self) -> usize {
        self.compiled.names.len().max(1)
    }

    /// `None` if another version of this program sent the bytes.
    pub(crate) fn read(&self, mut made: Bytes) -> Result<Option<(Option<Metadata>, Values)>, Exceeded> {
        let metadata = match self.with_metadata.then(|| take_metadata(&mut made)) {
            Some(None) => return Ok(None),
            Some(metadata) => metadata,
            None => None,
        };
        Ok(self.compiled.values(&made)?.map(|values| (metadata, values)))
    }
}

pub(super) fn register(cache: CacheBuilder<'_>) -> CacheBuilder<'_> {
    cache.costly_transform(ROWS_WITH_METADATA, |_, entry, plan_bytes| {
        let row = plan(plan_bytes)?.row(&entry.value, entry.version.0)?;
        with_metadata(entry, &row)
    })
}
