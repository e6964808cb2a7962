//! Walks over what a query finds: each entry as it is, or with what the query selects of it (facts section 2.7).

use bytes::Bytes;
use consort_cache::{CacheBuilder, EntryStream};
use consort_hotrod::Metadata;
use consort_hotrod::ops::iteration::{Start, Values};
use consort_query::{Compiled, Exceeded};

use super::{factory, owner};
use crate::answer::Refusal;
use crate::caches::Caches;
use crate::filter::{take_metadata, with_metadata};
use crate::served::Served;

/// The factory of walks over what a query finds.
pub(crate) const WALK: &str = "iteration-filter-converter-factory";

/// The transforms that make the row of each entity: alone, or behind its entry's metadata.
const ROWS: &str = owner::ROWS;
const ROWS_WITH_METADATA: &str = "query-rows-with-metadata";

/// A query that is walked over.
#[derive(Debug)]
pub(crate) struct Rows {
    compiled: Compiled,
    with_metadata: bool,
}

impl Rows {
    /// The query that is meant, if the walk has one.
    pub(crate) async fn of(caches: &Caches, served: &Served, start: &Start) -> Result<Option<Self>, Refusal> {
        let Some(factory) = start.filter.as_ref().filter(|factory| factory.name.as_str() == WALK) else {
            return Ok(None);
        };
        let compiled = factory::compiled(caches, served, factory).await?;
        Ok(Some(Self { compiled, with_metadata: start.with_metadata }))
    }

    /// The walk that gives it.
    pub(crate) fn of_walk(&self, walk: EntryStream<(Bytes, Bytes)>) -> EntryStream<(Bytes, Bytes)> {
        let transform = if self.with_metadata { ROWS_WITH_METADATA } else { ROWS };
        walk.transform(transform, Bytes::from(self.compiled.plan.to_bytes()))
    }

    /// How many values an entry has for the client.
    pub(crate) fn columns(&self) -> usize {
        self.compiled.names.len().max(1)
    }

    /// The metadata and the values in what an owner has made; `None` if another version of this program has made it.
    ///
    /// # Errors
    ///
    /// [`Exceeded`] if an owner could not examine the entry within its limit.
    pub(crate) fn read(&self, mut made: Bytes) -> Result<Option<(Option<Metadata>, Values)>, Exceeded> {
        let metadata = match self.with_metadata.then(|| take_metadata(&mut made)) {
            Some(None) => return Ok(None),
            Some(metadata) => metadata,
            None => None,
        };
        Ok(self.compiled.values(&made)?.map(|values| (metadata, values)))
    }
}

/// Makes known on this member what such walks need.
pub(super) fn known(cache: CacheBuilder<'_>) -> CacheBuilder<'_> {
    cache.costly_transform(ROWS_WITH_METADATA, |_, entry, told| {
        let row = owner::plan(told)?.row(&entry.value, entry.version.0)?;
        with_metadata(entry, &row)
    })
}
