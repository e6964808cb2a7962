//! The indexes of a cache by the annotated fields of its entities.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use consort_cache::{CacheIndex, FieldLookup, FieldValues, IndexedFields};
use consort_query::{IndexSchema, IndexSchemaError, RangeEnd, Search};
use tokio::task::JoinHandle;

use crate::catalog::definition::Indexing;
use crate::media::Types;
use crate::query_plans::{PARTS, ROWS, ROWS_WITH_METADATA, plan};

/// The annotated fields, as of certain schemas.
#[derive(Debug)]
pub(crate) struct EntityFields(IndexSchema);

impl IndexedFields for EntityFields {
    fn read(&self, _: &[u8], value: &[u8], values: &mut FieldValues) -> Option<()> {
        self.0.read(value, |field, value| values.add(field, value)).ok()
    }

    fn lookup(&self, function: &str, arguments: &[u8]) -> Option<FieldLookup> {
        if !matches!(function, ROWS | ROWS_WITH_METADATA | PARTS) {
            return None;
        }
        self.0.search(&*plan(arguments)?).map(lookup)
    }
}

fn lookup(search: Search) -> FieldLookup {
    let each = |all: Vec<Search>| all.into_iter().map(lookup).collect();
    match search {
        Search::Equal { field, value } => FieldLookup::equal(field, &value),
        Search::Range { field, from, to: RangeEnd::Value(to) } => FieldLookup::between(field, &from, &to),
        Search::Range { field, from, to: RangeEnd::Prefix(to) } => {
            FieldLookup::up_to_prefix(field, &from, &to)
        }
        Search::All(all) => FieldLookup::all(each(all)),
        Search::Any(any) => FieldLookup::any(each(any)),
    }
}

fn read_annotations(types: &Types, entities: &BTreeSet<String>) -> (IndexSchema, Vec<IndexSchemaError>) {
    if !entities.is_empty() {
        return IndexSchema::new(types, entities.iter().map(String::as_str));
    }
    let all: BTreeSet<String> = consort_query::Types::names(types).into_iter().collect();
    let (schema, mut errors) = IndexSchema::new(types, all.iter().map(String::as_str));
    errors.retain(|error| !matches!(error, IndexSchemaError::NotIndexed(_)));
    (schema, errors)
}

/// The fields with which a cache is opened, so that entries are indexed while they are loaded.
pub(crate) fn fields_for(types: &Types, indexing: &Indexing) -> Arc<dyn IndexedFields> {
    Arc::new(EntityFields(read_annotations(types, &indexing.entities).0))
}

/// The index of an open cache.
pub(crate) struct EntityIndex {
    entities: BTreeSet<String>,
    pub(crate) index: CacheIndex,
    current: Mutex<Option<(IndexSchema, Vec<IndexSchemaError>)>>,
    /// Requests to build it occupy one thread, however many wait.
    building: Arc<tokio::sync::Mutex<()>>,
}

impl EntityIndex {
    pub(crate) fn new(indexing: &Indexing, index: CacheIndex) -> Self {
        Self {
            entities: indexing.entities.clone(),
            index,
            current: Mutex::default(),
            building: Arc::default(),
        }
    }

    /// Builds the index anew, if the annotations have changed or this is forced. Queries scan until the returned task ends.
    pub(crate) fn refresh(&self, cache: &str, types: &Types, is_forced: bool) -> Option<JoinHandle<()>> {
        let read = read_annotations(types, &self.entities);
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_forced && current.as_ref() == Some(&read) {
            return None;
        }
        if current.as_ref().is_none_or(|(_, errors)| *errors != read.1) {
            read.1.iter().for_each(|error| tracing::warn!(%cache, "{error}"));
        }
        let (schema, index) = (read.0.clone(), self.index.clone());
        *current = Some(read);
        index.set((!schema.is_empty()).then(|| Arc::new(EntityFields(schema)) as Arc<dyn IndexedFields>));
        let building = self.building.clone();
        Some(tokio::spawn(async move {
            let _one_at_a_time = building.lock().await;
            if let Err(error) = tokio::task::spawn_blocking(move || index.build()).await {
                tracing::error!(%error, "an index could not be built; queries scan");
            }
        }))
    }
}
