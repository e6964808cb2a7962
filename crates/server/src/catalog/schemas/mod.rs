//! The cache in which clients register protobuf schemas (facts section 6.2), as in Infinispan. `NAME.proto` has a schema,
//! `NAME.proto.errors` its error, and `.errors` the names of the schemas with errors, one per line. Keys and values are texts.
//!
//! A server that writes a schema updates the errors before it responds, again after a concurrent write. So the last writer leaves
//! correct errors.
//!
//! The schemas are compiled when a client reads or writes an entity as JSON after a change.

mod check;
mod options;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use consort_cache::{CacheError, RawCache, Write, Written};
use consort_hotrod::RequestBody;
use consort_hotrod::ops::{bulk, map, stream};
use tokio::sync::Mutex;

use crate::limits::SCHEMA_BYTES_MAX;
use crate::media::Types;
use crate::reply::Refusal;

const SCHEMA: &[u8] = b".proto";
pub(crate) const ERRORS: &[u8] = b".errors";

/// Each time one of the concurrent writers is the last one.
const ATTEMPTS: u32 = 1_000;

#[derive(Default)]
pub(crate) struct Schemas {
    /// Serializes writes, so that they do not make each other update errors again.
    writing: Mutex<()>,
    changes: AtomicU64,
    compiled: Mutex<CompiledSchemas>,
}

#[derive(Default)]
struct CompiledSchemas {
    fingerprint: Option<Fingerprint>,
    sources: Arc<check::Sources>,
    types: Arc<Types>,
}

/// A client that writes a schema at another server gets its response when the schema is here, but before the change is reported;
/// so the entries and bytes here count, too.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Fingerprint {
    changes: u64,
    entries: u64,
    bytes: u64,
}

pub(crate) fn is_schema(key: &[u8]) -> bool {
    key.ends_with(SCHEMA)
}

/// Refuses a request that would make all schemas together exceed a limit.
pub(crate) async fn refusal_of_all(cache: &RawCache, body: &RequestBody) -> Result<Option<Refusal>, Refusal> {
    let written: Vec<(&Bytes, &Bytes)> = match body {
        RequestBody::Map(
            map::Request::Put(to)
            | map::Request::PutIfAbsent(to)
            | map::Request::Replace(to)
            | map::Request::ReplaceIfUnmodified(to, _),
        ) => vec![(&to.key, &to.value)],
        RequestBody::Bulk(bulk::Request::PutAll(_, entries)) => {
            entries.iter().map(|(key, value)| (key, value)).collect()
        }
        _ => return Ok(None),
    };
    let (mut sources, _) = read_all(cache).await?;
    for (key, value) in written.into_iter().filter(|(key, _)| is_schema(key)) {
        sources.insert(String::from_utf8_lossy(key).into_owned(), value.clone());
    }
    Ok(check::too_large(&sources).map(Refusal::new))
}

pub(crate) fn refusal(body: &RequestBody) -> Option<Refusal> {
    let refused = |key: &Bytes, value: Option<&Bytes>| {
        if !is_schema(key) && !key.ends_with(ERRORS) {
            let key = String::from_utf8_lossy(key);
            let text = format!("ISPN028009: The key must be a String ending with \".proto\" : {key}");
            return Some(Refusal::new(text));
        }
        let is_large = value.is_some_and(|value| value.len() > SCHEMA_BYTES_MAX);
        is_large.then(|| Refusal::new(format!("a schema can have at most {SCHEMA_BYTES_MAX} bytes")))
    };
    match body {
        RequestBody::Map(
            map::Request::Put(to)
            | map::Request::PutIfAbsent(to)
            | map::Request::Replace(to)
            | map::Request::ReplaceIfUnmodified(to, _),
        ) => refused(&to.key, Some(&to.value)),
        RequestBody::Bulk(bulk::Request::PutAll(_, entries)) => {
            entries.iter().find_map(|(key, value)| refused(key, Some(value)))
        }
        RequestBody::Stream(stream::Request::Put(..) | stream::Request::StartPut(_)) => {
            Some(Refusal::new("schemas cannot be written in pieces"))
        }
        RequestBody::Multimap(_) => Some(Refusal::new("the cache of schemas is not a multimap")),
        _ => None,
    }
}

impl Schemas {
    pub(crate) async fn write(
        &self,
        cache: &RawCache,
        key: Bytes,
        write: Write,
    ) -> Result<Written, CacheError> {
        if !is_schema(&key) {
            return cache.write(key, write).await;
        }
        let _writing = self.writing.lock().await;
        let written = cache.write(key, write).await?;
        if written.is_done {
            self.note_change();
            update_errors(cache).await?;
        }
        Ok(written)
    }

    pub(crate) async fn clear(&self, cache: &RawCache) -> Result<(), CacheError> {
        let _writing = self.writing.lock().await;
        cache.clear().await?;
        self.note_change();
        update_errors(cache).await
    }

    pub(crate) fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// The previous types if the schemas cannot be read.
    pub(crate) async fn types(&self, cache: &RawCache) -> Arc<Types> {
        let mut compiled = self.compiled.lock().await;
        let changes = self.changes.load(Ordering::Acquire);
        let fingerprint = Fingerprint { changes, entries: cache.local_len(), bytes: cache.local_bytes() };
        if compiled.fingerprint != Some(fingerprint) {
            match read_all(cache).await {
                // Also without schemas there are types, of protostream.
                Ok((sources, _)) if compiled.fingerprint.is_some() && *compiled.sources == sources => {
                    compiled.fingerprint = Some(fingerprint);
                }
                Ok((sources, _)) => {
                    let sources = Arc::new(sources);
                    let compiling = tokio::task::spawn_blocking({
                        let sources = sources.clone();
                        move || check::types(sources)
                    });
                    match compiling.await {
                        Ok(types) => {
                            *compiled = CompiledSchemas {
                                fingerprint: Some(fingerprint),
                                sources,
                                types: Arc::new(types),
                            }
                        }
                        Err(error) => tracing::error!(%error, "cannot compile schemas"),
                    }
                }
                Err(error) => tracing::debug!(%error, "cannot read schemas"),
            }
        }
        compiled.types.clone()
    }
}

async fn read_all(cache: &RawCache) -> Result<(check::Sources, BTreeMap<Bytes, Bytes>), CacheError> {
    let (mut entries, mut sources, mut errors) = (cache.entries(), check::Sources::new(), BTreeMap::new());
    while let Some((key, value)) = entries.next().await.transpose()? {
        if is_schema(&key) {
            sources.insert(String::from_utf8_lossy(&key).into_owned(), value);
        } else {
            errors.insert(key, value);
        }
    }
    Ok((sources, errors))
}

pub(crate) fn types_of(schema: Bytes) -> Types {
    check::types(Arc::new([(String::from_utf8_lossy(SCHEMA).into_owned(), schema)].into()))
}

pub(crate) fn error_of(schema: Bytes) -> Option<String> {
    let name = String::from_utf8_lossy(SCHEMA).into_owned();
    check::errors(Arc::new([(name, schema)].into())).into_values().next()
}

async fn update_errors(cache: &RawCache) -> Result<(), CacheError> {
    let mut seen = None;
    for _ in 0..ATTEMPTS {
        let (sources, errors) = read_all(cache).await?;
        let sources = Arc::new(sources);
        if seen.as_ref() == Some(&sources) {
            return Ok(());
        }
        seen = Some(sources.clone());
        let checking = tokio::task::spawn_blocking(move || check::errors(sources));
        let found = checking.await.unwrap_or_else(|error| {
            tracing::error!(%error, "cannot check schemas");
            BTreeMap::new()
        });
        let names: Vec<&str> = found.keys().map(String::as_str).collect();
        let mut right: BTreeMap<Bytes, Bytes> = BTreeMap::new();
        if !names.is_empty() {
            right.insert(Bytes::from_static(ERRORS), names.join("\n").into());
        }
        for (name, why) in &found {
            right.insert([name.as_bytes(), ERRORS].concat().into(), why.clone().into());
        }
        for key in errors.keys().filter(|key| !right.contains_key(*key)) {
            cache.remove(key).await?;
        }
        for (key, why) in right.iter().filter(|(key, why)| errors.get(*key) != Some(why)) {
            cache.put(key, why).await?;
        }
    }
    Err(CacheError::Contended { attempts: ATTEMPTS })
}
