//! The cache in which clients register schemas of protobuf (facts section 6.2), as Infinispan has it: `NAME.proto` has a
//! schema, `NAME.proto.errors` what is wrong with it, and `.errors` the names of those with errors, a line each. Keys and
//! values are texts.
//!
//! Whoever writes a schema brings the errors up to date before it answers, and looks again whether somebody else has changed
//! a schema meanwhile: who is last leaves what is right.
//!
//! What they define is compiled where a client wants an entity as JSON, or the other way round, and when one has changed since.

mod check;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use consort_cache::{CacheError, Change, Condition, Lifetime, RawCache, ReadFrom, Write, Written};
use consort_hotrod::ops::{bulk, map, stream};
use consort_hotrod::{Flags, RequestBody, Text};
use tokio::sync::Mutex;

use crate::answer::Refusal;
use crate::bounds::{SCHEMA_BYTES_MAX, SCHEMAS_MAX};
use crate::media::Types;
use crate::served::Served;

/// The cache.
pub(crate) const SCHEMAS: &str = "___protobuf_metadata";

const SCHEMA: &[u8] = b".proto";
const ERRORS: &[u8] = b".errors";

/// How often it is looked again whether others have changed schemas meanwhile. One of them is last each time.
const ATTEMPTS: u32 = 1_000;

/// What the server does for the cache besides keeping it.
#[derive(Default)]
pub(crate) struct Schemas {
    /// One write after the other, so that they do not make each other look again.
    alone: Mutex<()>,
    /// How often something may have changed.
    changes: AtomicU64,
    known: Mutex<Known>,
}

/// What the schemas define, and of when that is.
#[derive(Default)]
struct Known {
    seen: Option<Seen>,
    sources: Arc<check::Sources>,
    types: Arc<Types>,
}

/// What shows whether schemas have changed: how often somebody has said so, and how many entries and bytes they are here. Who
/// writes one at another server is answered when it is here, but before that is said.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Seen {
    changes: u64,
    entries: u64,
    bytes: u64,
}

fn is_schema(key: &[u8]) -> bool {
    key.ends_with(SCHEMA)
}

/// Why a request is not done, because all schemas together would be too large, if it is not.
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
    let (mut sources, _) = all(cache).await?;
    for (key, value) in written.into_iter().filter(|(key, _)| is_schema(key)) {
        sources.insert(String::from_utf8_lossy(key).into_owned(), value.clone());
    }
    Ok(check::too_large(&sources).map(Refusal::new))
}

/// Why a request is not done, if it is not.
pub(crate) fn refusal(body: &RequestBody) -> Option<Refusal> {
    let refused = |key: &Bytes, value: Option<&Bytes>| {
        if !is_schema(key) && !key.ends_with(ERRORS) {
            let key = String::from_utf8_lossy(key);
            let text = format!("ISPN028009: The key must be a String ending with \".proto\" : {key}");
            return Some(Refusal::new(text));
        }
        let is_large = value.is_some_and(|value| value.len() > SCHEMA_BYTES_MAX);
        is_large.then(|| Refusal::new(format!("a schema has {SCHEMA_BYTES_MAX} bytes at most")))
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
            Some(Refusal::new("schemas are written as a whole, not in pieces"))
        }
        RequestBody::Multimap(_) => Some(Refusal::new("schemas are no multimap")),
        _ => None,
    }
}

impl Schemas {
    /// Writes a key of the cache, and then what is wrong with the schemas.
    pub(crate) async fn write(
        &self,
        cache: &RawCache,
        key: Bytes,
        write: Write,
    ) -> Result<Written, CacheError> {
        if !is_schema(&key) {
            return cache.write(key, write).await;
        }
        let _alone = self.alone.lock().await;
        let written = cache.write(key, write).await?;
        if written.is_done {
            self.changed();
            update(cache).await?;
        }
        Ok(written)
    }

    /// Removes everything.
    pub(crate) async fn clear(&self, cache: &RawCache) -> Result<(), CacheError> {
        let _alone = self.alone.lock().await;
        cache.clear().await?;
        self.changed();
        update(cache).await
    }

    /// Some may have changed.
    pub(crate) fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// What they define now; what was known before if they cannot be read.
    pub(crate) async fn types(&self, cache: &RawCache) -> Arc<Types> {
        let mut known = self.known.lock().await;
        let changes = self.changes.load(Ordering::Acquire);
        let seen = Seen { changes, entries: cache.local_len(), bytes: cache.local_bytes() };
        if known.seen != Some(seen) {
            match all(cache).await {
                Ok((sources, _)) if *known.sources == sources => known.seen = Some(seen),
                Ok((sources, _)) => {
                    let sources = Arc::new(sources);
                    let compiling = tokio::task::spawn_blocking({
                        let sources = sources.clone();
                        move || check::types(sources)
                    });
                    match compiling.await {
                        Ok(types) => *known = Known { seen: Some(seen), sources, types: Arc::new(types) },
                        Err(error) => tracing::error!(%error, "schemas cannot be compiled"),
                    }
                }
                Err(error) => tracing::debug!(%error, "schemas cannot be read"),
            }
        }
        known.types.clone()
    }
}

/// The schemas, and what is said to be wrong with them.
async fn all(cache: &RawCache) -> Result<(check::Sources, BTreeMap<Bytes, Bytes>), CacheError> {
    let (mut walk, mut sources, mut errors) = (cache.entries(), check::Sources::new(), BTreeMap::new());
    while let Some((key, value)) = walk.next().await.transpose()? {
        if is_schema(&key) {
            sources.insert(String::from_utf8_lossy(&key).into_owned(), value);
        } else {
            errors.insert(key, value);
        }
    }
    Ok((sources, errors))
}

/// What a schema defines that is alone.
pub(crate) fn types_of(schema: Bytes) -> Types {
    check::types(Arc::new([(String::from_utf8_lossy(SCHEMA).into_owned(), schema)].into()))
}

/// What is wrong with a schema that is alone.
pub(crate) fn error_of(schema: Bytes) -> Option<String> {
    let name = String::from_utf8_lossy(SCHEMA).into_owned();
    check::errors(Arc::new([(name, schema)].into())).into_values().next()
}

/// Brings the errors up to date.
async fn update(cache: &RawCache) -> Result<(), CacheError> {
    let mut seen = None;
    for _ in 0..ATTEMPTS {
        let (sources, errors) = all(cache).await?;
        let sources = Arc::new(sources);
        if seen.as_ref() == Some(&sources) {
            return Ok(());
        }
        seen = Some(sources.clone());
        let checking = tokio::task::spawn_blocking(move || check::errors(sources));
        let found = checking.await.unwrap_or_else(|error| {
            tracing::error!(%error, "schemas cannot be checked");
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

/// Puts a schema: `op` is `c` to create it, `u` to update it, `s` for either. Says `c`, `u` or `n` for nothing, and what is
/// wrong with the schema after a semicolon.
pub(crate) async fn create_or_update(
    served: &Served,
    name: Text,
    content: Bytes,
    op: &str,
    is_forced: bool,
) -> Result<String, Refusal> {
    if !matches!(op, "c" | "u" | "s") {
        return Err(Refusal::new(format!("op '{op}' is none of c, u and s")));
    }
    let key = Bytes::copy_from_slice(name.as_bytes());
    let assignment = map::Assignment {
        key: key.clone(),
        expiration: consort_hotrod::Expiration::INFINITE,
        value: content.clone(),
    };
    let put = RequestBody::Map(map::Request::Put(assignment));
    if let Some(refusal) = refusal(&put) {
        return Err(refusal);
    }
    if !is_schema(&key) {
        return Err(Refusal::new("the name of a schema ends with .proto"));
    }
    if served.cache.size().await? >= 2 * SCHEMAS_MAX as u64 {
        return Err(Refusal::new(format!("there are {SCHEMAS_MAX} schemas at most")));
    }
    if let Some(refusal) = refusal_of_all(&served.cache, &put).await? {
        return Err(refusal);
    }
    let newest = served.cache.with_read_from(ReadFrom::Primary);
    let before = newest.get_with_metadata(&key).await?;
    let (condition, told) = match (&before, op) {
        (None, "u") | (Some(_), "c") => return Ok("n".to_owned()),
        (None, _) => (Condition::Absent, "c"),
        (Some(_), _) if is_forced => (Condition::Present, "u"),
        (Some(before), _) => (Condition::Version(before.version), "u"),
    };
    let is_same = !is_forced && before.is_some_and(|before| before.value == content);
    let change = Change::Put { value: content, lifetime: Lifetime::FOREVER };
    let write = Write { condition, change, wants_previous: false };
    let is_done = !is_same && served.write(key, write, Flags::NONE).await?.is_done;
    let told = if is_done { told } else { "n" };
    let error = newest.get([name.as_bytes(), ERRORS].concat().as_slice()).await?;
    Ok(match error {
        None => told.to_owned(),
        Some(error) => format!("{told};{}", String::from_utf8_lossy(&error)),
    })
}

/// Removes a schema: `1` if it was there, else `0`.
pub(crate) async fn delete(served: &Served, name: &Text) -> Result<String, Refusal> {
    let write = Write { condition: Condition::Present, change: Change::Remove, wants_previous: false };
    let key = Bytes::copy_from_slice(name.as_bytes());
    let was_there = is_schema(&key) && served.write(key, write, Flags::NONE).await?.is_done;
    Ok(if was_there { "1" } else { "0" }.to_owned())
}
