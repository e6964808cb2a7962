//! Operations on one key (facts sections 2.2 and 2.3).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use consort_cache::{
    CacheError, Change, Condition, Entry, Lifetime, Lookup, RawCache, Stored, Version, Write,
};
use consort_hotrod::ops::map::{Assignment, Request, Response};
use consort_hotrod::{Expiration, Flags, Metadata, Previous, ProtocolVersion, ResponseBody, Status, Timed};

use crate::answer::Answer;
use crate::bounds::COPIED_BELOW;
use crate::caches::Served;
use crate::stats::Stats;

/// Since 1970.
pub(crate) fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// How long an entry lives. The server's default is for ever.
pub(crate) fn lifetime(expiration: &Expiration, version: ProtocolVersion) -> Lifetime {
    let span = |span: consort_hotrod::Span| span.duration(version, None, unix_time());
    Lifetime { lifespan: span(expiration.lifespan), max_idle: span(expiration.max_idle) }
}

/// The same bytes in memory of their own, if they are few.
pub(crate) fn kept(bytes: Bytes) -> Bytes {
    if bytes.len() < COPIED_BELOW { Bytes::copy_from_slice(&bytes) } else { bytes }
}

const fn told(version: Version) -> i64 {
    version.0.cast_signed()
}

const fn meant(version: i64) -> Version {
    Version(version.cast_unsigned())
}

fn metadata(version: Version, lifetime: Lifetime, age: Duration, idle: Duration) -> Metadata {
    let timed = |span: Option<Duration>, ago: Duration| {
        span.map(|span| Timed {
            since: i64::try_from(unix_time().saturating_sub(ago).as_millis()).unwrap_or(i64::MAX),
            seconds: u32::try_from(span.as_secs()).unwrap_or(u32::MAX),
        })
    };
    Metadata {
        lifespan: timed(lifetime.lifespan, age),
        max_idle: timed(lifetime.max_idle, idle),
        version: told(version),
    }
}

pub(crate) fn of_entry(entry: &Entry<Bytes>) -> Metadata {
    metadata(entry.version, entry.lifetime, entry.age, entry.idle)
}

pub(crate) fn of_stored(stored: Stored) -> Previous {
    let Stored { value, version, lifetime, age, idle } = stored;
    Previous { metadata: Some(metadata(version, lifetime, age, idle)), value }
}

/// What a write is told with.
struct Told {
    /// If the key has nothing, though it should.
    absent: Status,
    /// Whether what it had is wanted.
    wants_previous: bool,
}

impl Told {
    fn answer(&self, written: consort_cache::Written) -> Answer {
        let previous = written.previous.map(of_stored);
        let with_previous =
            |status, previous| Answer::new(status, ResponseBody::Map(Response::Previous(previous)));
        match (written.is_done, written.was_present) {
            (true, _) if self.wants_previous => with_previous(Status::SuccessWithPrevious, previous),
            (true, _) => Answer::of(Status::Success),
            (false, false) => Answer::of(self.absent),
            (false, true) if self.wants_previous => with_previous(Status::NotExecutedWithPrevious, previous),
            (false, true) => Answer::of(Status::NotExecuted),
        }
    }
}

/// Does what is asked of a cache, which this handle reads.
pub(crate) async fn answer(
    served: &Served,
    reads: &RawCache,
    request: Request,
    version: ProtocolVersion,
    flags: Flags,
) -> Result<Answer, CacheError> {
    let wants_previous = flags.contains(Flags::FORCE_RETURN_PREVIOUS);
    let put = |to: Assignment, condition, absent| {
        let change = Change::Put { value: kept(to.value), lifetime: lifetime(&to.expiration, version) };
        (to.key, Write { condition, change, wants_previous }, absent)
    };
    let (key, write, absent) = match request {
        Request::Put(to) => put(to, Condition::Always, Status::Success),
        Request::PutIfAbsent(to) => put(to, Condition::Absent, Status::Success),
        Request::Replace(to) => put(to, Condition::Present, Status::NotExecuted),
        Request::ReplaceIfUnmodified(to, unmodified) => {
            put(to, Condition::Version(meant(unmodified)), Status::NotFound)
        }
        // A removal that finds nothing is not done.
        Request::Remove(key) => {
            let write = Write { condition: Condition::Present, change: Change::Remove, wants_previous };
            (key, write, Status::NotFound)
        }
        Request::RemoveIfUnmodified(key, unmodified) => {
            let condition = Condition::Version(meant(unmodified));
            (key, Write { condition, change: Change::Remove, wants_previous }, Status::NotFound)
        }
        Request::Get(_)
        | Request::ContainsKey(_)
        | Request::GetWithVersion(_)
        | Request::GetWithMetadata(_) => return read(reads, &served.stats, request).await,
    };
    let (is_removal, is_new) = (write.change == Change::Remove, write.condition == Condition::Absent);
    let written = served.write(kept(key), write).await?;
    if is_removal {
        served.stats.note_removal(written.is_done);
    } else if written.is_done {
        served.stats.stores.one();
    }
    // What is put where nothing was has no previous value, whatever is wanted.
    let wants_previous = wants_previous && !(is_new && written.is_done);
    Ok(Told { absent, wants_previous }.answer(written))
}

/// The answer to a read whose key is here; nothing if it has to be looked for elsewhere, or is no such read.
pub(crate) fn answer_here(served: &Served, request: &Request) -> Option<Answer> {
    let (Request::Get(key) | Request::ContainsKey(key)) = request else { return None };
    let value = match served.cache.get_here(key) {
        Lookup::Hit(value) => Some(Response::Value(value)),
        Lookup::Miss => None,
        Lookup::Elsewhere => return None,
    };
    Some(of_read(&served.stats, request, value))
}

async fn read(cache: &RawCache, stats: &Stats, request: Request) -> Result<Answer, CacheError> {
    let response = match &request {
        Request::Get(key) => cache.get(key).await?.map(Response::Value),
        _ => cache.get_with_metadata(request.key()).await?.map(|entry| {
            let metadata = of_entry(&entry);
            match &request {
                Request::GetWithVersion(_) => Response::WithVersion(metadata.version, entry.value),
                _ => Response::WithMetadata(metadata, entry.value),
            }
        }),
    };
    Ok(of_read(stats, &request, response))
}

fn of_read(stats: &Stats, request: &Request, response: Option<Response>) -> Answer {
    stats.note_read(response.is_some());
    match response {
        None => Answer::of(Status::NotFound),
        Some(_) if matches!(request, Request::ContainsKey(_)) => Answer::of(Status::Success),
        Some(response) => Answer::success(ResponseBody::Map(response)),
    }
}
