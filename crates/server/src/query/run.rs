//! A query where the entries are: each is looked at once, by one of its owners, and what is made of it comes here.

use std::sync::Arc;

use bytes::Bytes;
use consort_cache::{Change, Condition, EntryStream, Segment, Version, Write};
use consort_hotrod::Flags;
use consort_query::{Compiled, Exceeded, MergeError, Plan, QueryResult, ResultMerger, Source};

use super::owner::{PARTS, ROWS};
use crate::answer::Refusal;
use crate::bounds::DELETED_AT_ONCE;
use crate::caches::Caches;
use crate::computing::computed;
use crate::gathering::{Gathering, Responses};
use crate::served::Served;

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

/// Rows are here as owners have made them, and once more as they are written.
const COPIES: usize = 2;

/// Where a query looks.
struct Among {
    plan: Bytes,
    /// Only these segments, if not all.
    segments: Option<Arc<[Segment]>>,
}

impl Among {
    fn of(caches: &Caches, served: &Served, plan: &Plan, is_local: bool) -> Self {
        let segments = if is_local { caches.own_segments(served) } else { None };
        Self { plan: plan.to_bytes().into(), segments }
    }

    fn walk<T>(&self, walk: EntryStream<T>, function: &str) -> EntryStream<T> {
        let walk = walk.transform(function, self.plan.clone());
        match &self.segments {
            Some(segments) => walk.segments(segments.clone()),
            None => walk,
        }
    }
}

/// What a query finds, without as many as `offset` says, and no more than `max`.
pub(super) async fn select(
    caches: &Caches,
    served: &Served,
    compiled: &Compiled,
    is_local: bool,
    (offset, max): (usize, usize),
    (responses, gathering): (&Responses, &mut Gathering),
) -> Result<QueryResult, Refusal> {
    if compiled.source == Source::Nothing {
        return Ok(QueryResult { rows: Vec::new(), count: 0 });
    }
    loop {
        let mut finding = ResultMerger::new(compiled, offset, max);
        let in_transit = responses.begin_walk().await?;
        let found = find(caches, served, compiled, is_local, &mut finding, gathering).await?;
        drop(in_transit);
        match found {
            Walked::All => return finish(finding).await,
            Walked::NeedsRoom(bytes) => {
                drop(finding);
                gathering.make_room(bytes).await?;
                gathering.restart();
            }
        }
    }
}

/// How a walk ended.
enum Walked {
    All,
    /// The response needs room for so many bytes more.
    NeedsRoom(usize),
}

/// Looks at all entries, as long as there is room for the rows that are found.
async fn find(
    caches: &Caches,
    served: &Served,
    compiled: &Compiled,
    is_local: bool,
    finding: &mut ResultMerger,
    gathering: &mut Gathering,
) -> Result<Walked, Refusal> {
    let among = Among::of(caches, served, &compiled.plan, is_local);
    if compiled.source == Source::Parts {
        let mut parts = among.walk(served.cache.reduce(PARTS, Bytes::new()), PARTS);
        while let Some(part) = parts.next().await.transpose()? {
            finding.part(&part)?;
            if let Some(more) = gathering.missing_room(COPIES * finding.held_bytes()) {
                return Ok(Walked::NeedsRoom(more));
            }
        }
        return Ok(Walked::All);
    }
    let mut rows = among.walk(served.cache.entries(), ROWS);
    while !finding.is_full() {
        let Some((_, row)) = rows.next().await.transpose()? else { return Ok(Walked::All) };
        finding.row(row)?;
        if let Some(more) = gathering.missing_room(COPIES * finding.held_bytes()) {
            return Ok(Walked::NeedsRoom(more));
        }
    }
    drop(rows);
    // What is not told does not travel.
    let among = Among::of(caches, served, &compiled.plan.counting(), is_local);
    let mut parts = among.walk(served.cache.reduce(PARTS, Bytes::new()), PARTS);
    finding.recount();
    while let Some(part) = parts.next().await.transpose()? {
        finding.more(&part)?;
    }
    Ok(Walked::All)
}

/// What was found, in its order.
async fn finish(finding: ResultMerger) -> Result<QueryResult, Refusal> {
    Ok(computed(finding.held_bytes(), move || finding.finish()).await?)
}

/// Takes away what a query finds. What is changed before it is its turn stays. Returns how many were taken away.
pub(super) async fn delete(
    caches: &Caches,
    served: &Arc<Served>,
    compiled: &Compiled,
    is_local: bool,
) -> Result<u64, Refusal> {
    if compiled.source == Source::Nothing {
        return Ok(0);
    }
    let among = Among::of(caches, served, &compiled.plan, is_local);
    let (mut found, mut count) = (among.walk(served.cache.entries(), ROWS), 0);
    let mut removing = tokio::task::JoinSet::new();
    loop {
        let next = found.next().await.transpose()?;
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
        while is_over && !removing.is_empty() || removing.len() >= DELETED_AT_ONCE {
            let Some(removed) = removing.join_next().await else { break };
            let removed = removed.map_err(|error| Refusal::new(error.to_string()))?;
            count += u64::from(removed?.is_done);
        }
        if is_over {
            return Ok(count);
        }
    }
}
