//! Execution of a query: one of its owners evaluates each entry, once.

use std::sync::Arc;

use bytes::Bytes;
use consort_cache::{Change, Condition, EntryStream, Segment, Version, Write};
use consort_hotrod::Flags;
use consort_query::{Compiled, Exceeded, MergeError, Plan, QueryResult, ResultMerger, Source};

use crate::catalog::caches::Caches;
use crate::catalog::served_cache::ServedCache;
use crate::compute_pool::offload_if_large;
use crate::limits::CONCURRENT_DELETES;
use crate::memory::responses::{ResponseReservation, Responses};
use crate::query_plans::{PARTS, ROWS};
use crate::reply::Refusal;

impl From<MergeError> for Refusal {
    fn from(error: MergeError) -> Self {
        Self::new(error.to_string())
    }
}

impl From<Exceeded> for Refusal {
    fn from(error: Exceeded) -> Self {
        Self::new(error.to_string())
    }
}

/// Rows are held as owners sent them, and once more in the response.
const COPIES: usize = 2;

struct QueryScope {
    plan: Bytes,
    segments: Option<Arc<[Segment]>>,
}

impl QueryScope {
    fn new(caches: &Caches, served: &ServedCache, plan: &Plan, is_local: bool) -> Self {
        let segments = if is_local { caches.own_segments(served) } else { None };
        Self { plan: plan.to_bytes().into(), segments }
    }

    fn apply<T>(&self, entries: EntryStream<T>, function: &str) -> EntryStream<T> {
        let entries = entries.transform(function, self.plan.clone());
        match &self.segments {
            Some(segments) => entries.segments(segments.clone()),
            None => entries,
        }
    }
}

pub(super) async fn select(
    caches: &Caches,
    served: &ServedCache,
    compiled: &Compiled,
    is_local: bool,
    (offset, max): (usize, usize),
    (responses, gathering): (&Responses, &mut ResponseReservation),
) -> Result<QueryResult, Refusal> {
    if compiled.source == Source::Nothing {
        return Ok(QueryResult { rows: Vec::new(), count: 0 });
    }
    loop {
        let mut merger = ResultMerger::new(compiled, offset, max);
        let in_transit = responses.begin_iteration().await?;
        let collected = collect(caches, served, compiled, is_local, &mut merger, gathering).await?;
        drop(in_transit);
        match collected {
            Collected::All => return finish(merger).await,
            Collected::NeedsMemory(bytes) => {
                drop(merger);
                gathering.make_room(bytes).await?;
                gathering.restart();
            }
        }
    }
}

enum Collected {
    All,
    NeedsMemory(usize),
}

/// Ends early without memory for the rows.
async fn collect(
    caches: &Caches,
    served: &ServedCache,
    compiled: &Compiled,
    is_local: bool,
    merger: &mut ResultMerger,
    gathering: &mut ResponseReservation,
) -> Result<Collected, Refusal> {
    let scope = QueryScope::new(caches, served, &compiled.plan, is_local);
    if compiled.source == Source::Parts {
        let mut parts = scope.apply(served.cache.reduce(PARTS, Bytes::new()), PARTS);
        while let Some(part) = parts.next().await.transpose()? {
            merger.part(&part)?;
            if let Some(more) = gathering.missing_room(COPIES * merger.held_bytes()) {
                return Ok(Collected::NeedsMemory(more));
            }
        }
        return Ok(Collected::All);
    }
    let mut rows = scope.apply(served.cache.entries(), ROWS);
    while !merger.is_full() {
        let Some((_, row)) = rows.next().await.transpose()? else { return Ok(Collected::All) };
        merger.row(row)?;
        if let Some(more) = gathering.missing_room(COPIES * merger.held_bytes()) {
            return Ok(Collected::NeedsMemory(more));
        }
    }
    drop(rows);
    // Rows beyond the limit are only counted, and not sent.
    let scope = QueryScope::new(caches, served, &compiled.plan.counting(), is_local);
    let mut parts = scope.apply(served.cache.reduce(PARTS, Bytes::new()), PARTS);
    merger.recount();
    while let Some(part) = parts.next().await.transpose()? {
        merger.more(&part)?;
    }
    Ok(Collected::All)
}

async fn finish(merger: ResultMerger) -> Result<QueryResult, Refusal> {
    Ok(offload_if_large(merger.held_bytes(), move || merger.finish()).await?)
}

/// An entry that changed since its evaluation stays.
pub(super) async fn delete(
    caches: &Caches,
    served: &Arc<ServedCache>,
    compiled: &Compiled,
    is_local: bool,
    responses: &Responses,
) -> Result<u64, Refusal> {
    if compiled.source == Source::Nothing {
        return Ok(0);
    }
    let _in_transit = responses.begin_iteration().await?;
    let scope = QueryScope::new(caches, served, &compiled.plan, is_local);
    let (mut collected, mut count) = (scope.apply(served.cache.entries(), ROWS), 0);
    let mut removing = tokio::task::JoinSet::new();
    loop {
        let next = collected.next().await.transpose()?;
        let is_over = next.is_none();
        if let Some((key, row)) = next
            && let Some(version) = consort_query::version_of(&row)?
        {
            let served = served.clone();
            removing.spawn(async move {
                let (condition, change) = (Condition::Version(Version(version)), Change::Remove);
                served.write(key, Write { condition, change, wants_previous: false }, Flags::NONE).await
            });
        }
        while is_over && !removing.is_empty() || removing.len() >= CONCURRENT_DELETES {
            let Some(removed) = removing.join_next().await else { break };
            let removed = removed.map_err(|error| Refusal::new(error.to_string()))?;
            count += u64::from(removed?.is_done);
        }
        if is_over {
            return Ok(count);
        }
    }
}
