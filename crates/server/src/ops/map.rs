//! Operations on one key (facts sections 2.2 and 2.3).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use consort_cache::{
    CacheError, Change, Condition, Entry, Lifetime, Lookup, RawCache, Stored, Version, Write, Written,
};
use consort_hotrod::ops::map::{Assignment, Request, Response};
use consort_hotrod::{
    Expiration, Flags, Metadata, Previous, ProtocolVersion, ResponseBody, Span, Status, Timed,
};

use crate::catalog::served_cache::ServedCache;
use crate::limits::COPIED_BELOW;
use crate::memory::remote_values::{self, ValueReservation};
use crate::memory::responses::Responses;
use crate::metrics::cache_stats::Stats;
use crate::reply::ResponseBytes;
use crate::reply::{Answer, Refusal};

pub(crate) fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

pub(crate) fn lifetime(expiration: &Expiration, version: ProtocolVersion, default: Lifetime) -> Lifetime {
    let span = |span: Span, default| span.duration(version, default, unix_time);
    Lifetime {
        lifespan: span(expiration.lifespan, default.lifespan),
        max_idle: span(expiration.max_idle, default.max_idle),
    }
}

pub(crate) fn kept(bytes: Bytes) -> Bytes {
    if bytes.len() < COPIED_BELOW { Bytes::copy_from_slice(&bytes) } else { bytes }
}

const fn version_number(version: Version) -> i64 {
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
        version: version_number(version),
    }
}

pub(crate) fn of_entry(entry: &Entry<Bytes>) -> Metadata {
    metadata(entry.version, entry.lifetime, entry.age, entry.idle)
}

pub(crate) fn of_stored(stored: Stored) -> Previous {
    let Stored { value, version, lifetime, age, idle } = stored;
    Previous { metadata: Some(metadata(version, lifetime, age, idle)), value }
}

struct ReplyForm {
    absent: Status,
    wants_previous: bool,
    is_removal: bool,
    is_new: bool,
}

impl ReplyForm {
    fn reply(&self, stats: &Stats, written: Written) -> Answer {
        if self.is_removal {
            stats.note_removal(written.is_done);
        } else if written.is_done {
            stats.stores.one();
        }
        // A new entry has no previous value, also if the client requests one.
        let wants_previous = self.wants_previous && !(self.is_new && written.is_done);
        let previous = written.previous.map(of_stored);
        let with_previous =
            |status, previous| Answer::new(status, ResponseBody::Map(Response::Previous(previous)));
        match (written.is_done, written.was_present) {
            (true, _) if wants_previous => with_previous(Status::SuccessWithPrevious, previous),
            (true, _) => Answer::of(Status::Success),
            (false, false) => Answer::of(self.absent),
            (false, true) if wants_previous => with_previous(Status::NotExecutedWithPrevious, previous),
            (false, true) => Answer::of(Status::NotExecuted),
        }
    }
}

struct WriteRequest<'a> {
    key: &'a Bytes,
    write: Write,
    form: ReplyForm,
}

impl<'a> WriteRequest<'a> {
    /// `None` for other requests. Values are as the client sent them.
    fn from_request(
        served: &ServedCache,
        request: &'a Request,
        version: ProtocolVersion,
        flags: Flags,
    ) -> Option<Self> {
        let wants_previous = flags.contains(Flags::FORCE_RETURN_PREVIOUS);
        let put = |to: &Assignment| Change::Put {
            value: to.value.clone(),
            lifetime: lifetime(&to.expiration, version, served.lifetime()),
        };
        let (condition, change, absent) = match request {
            Request::Put(to) => (Condition::Always, put(to), Status::Success),
            Request::PutIfAbsent(to) => (Condition::Absent, put(to), Status::Success),
            Request::Replace(to) => (Condition::Present, put(to), Status::NotExecuted),
            Request::ReplaceIfUnmodified(to, unmodified) => {
                (Condition::Version(meant(*unmodified)), put(to), Status::NotFound)
            }
            // A removal without an entry is not done.
            Request::Remove(_) => (Condition::Present, Change::Remove, Status::NotFound),
            Request::RemoveIfUnmodified(_, unmodified) => {
                (Condition::Version(meant(*unmodified)), Change::Remove, Status::NotFound)
            }
            Request::Get(_)
            | Request::ContainsKey(_)
            | Request::GetWithVersion(_)
            | Request::GetWithMetadata(_) => return None,
        };
        let form = ReplyForm {
            absent,
            wants_previous,
            is_removal: change == Change::Remove,
            is_new: condition == Condition::Absent,
        };
        Some(Self { key: request.key(), write: Write { condition, change, wants_previous }, form })
    }
}

/// `cache` is a limited handle.
pub(crate) async fn answer(
    responses: &Responses,
    served: &ServedCache,
    reads: &RawCache,
    request: Request,
    version: ProtocolVersion,
    flags: Flags,
) -> Result<Answer, Refusal> {
    let Some(WriteRequest { key, mut write, form }) =
        WriteRequest::from_request(served, &request, version, flags)
    else {
        return read(responses, reads, &served.stats, request).await;
    };
    let key = kept(key.clone());
    // Without other references, the bytes of a large value are not copied again.
    drop(request);
    if let Change::Put { value, .. } = &mut write.change {
        *value = kept(std::mem::take(value));
    }
    if write.wants_previous && served.is_plain() {
        // Boxed, because few requests need it and it would enlarge the state of all.
        let (written, held) = Box::pin(write_with_room(responses, served, key, write, flags)).await?;
        return Ok(form.reply(&served.stats, written).holding_some(held));
    }
    Ok(form.reply(&served.stats, served.write(key, write, flags).await?))
}

/// Reserves bytes for the previous value first.
async fn write_with_room(
    responses: &Responses,
    served: &ServedCache,
    key: Bytes,
    write: Write,
    flags: Flags,
) -> Result<(Written, Option<Box<ResponseBytes>>), Refusal> {
    let silent = served.silent(flags).map(|silent| remote_values::limited(&silent));
    let mut reservation = ValueReservation::new(silent.as_ref().unwrap_or(&served.limited));
    loop {
        match reservation.cache().write(key.clone(), write.clone()).await {
            Ok(written) => return Ok((written, reservation.into_held())),
            Err(error) => reservation.grow(responses, error).await?,
        }
    }
}

/// `None` unless the request completes at once: a read of a local key, or a write without a response of another member.
pub(crate) fn try_answer_local(
    served: &ServedCache,
    request: &Request,
    version: ProtocolVersion,
    flags: Flags,
) -> Option<Answer> {
    let (Request::Get(key) | Request::ContainsKey(key)) = request else {
        // Writes without events are few.
        let is_silent = flags.contains(Flags::SKIP_LISTENER_NOTIFICATION);
        return if is_silent {
            None
        } else {
            try_write_local(served, WriteRequest::from_request(served, request, version, flags)?)
        };
    };
    let value = match served.cache.get_local(key) {
        Lookup::Hit(value) => Some(Response::Value(value)),
        Lookup::Miss => None,
        Lookup::NotLocal => return None,
    };
    Some(of_read(&served.stats, request, value))
}

fn try_write_local(
    served: &ServedCache,
    WriteRequest { key, write, form }: WriteRequest<'_>,
) -> Option<Answer> {
    let is_small = match &write.change {
        Change::Put { value, .. } => value.len() < COPIED_BELOW,
        Change::Remove | Change::Clear => true,
    };
    if !is_small || !served.is_plain() {
        return None;
    }
    let written = served.cache.try_write_local(key, write)?;
    Some(written.map_or_else(Answer::from, |written| form.reply(&served.stats, written)))
}

async fn read(
    responses: &Responses,
    cache: &RawCache,
    stats: &Stats,
    request: Request,
) -> Result<Answer, Refusal> {
    match (read_by(cache, &request).await, &request) {
        (Ok(response), _) => Ok(of_read(stats, &request, response)),
        // The existence of the large value is the whole response.
        (Err(error), Request::ContainsKey(_)) if remote_values::size_of_large(&error).is_some() => {
            stats.note_read(true);
            Ok(Answer::of(Status::Success))
        }
        // Boxed, because few requests need it and it would enlarge the state of all.
        (Err(error), _) => Box::pin(read_with_room(responses, cache, stats, request, error)).await,
    }
}

async fn read_by(cache: &RawCache, request: &Request) -> Result<Option<Response>, CacheError> {
    Ok(match request {
        Request::Get(key) => cache.get(key).await?.map(Response::Value),
        _ => cache.get_with_metadata(request.key()).await?.map(|entry| {
            let metadata = of_entry(&entry);
            match request {
                Request::GetWithVersion(_) => Response::WithVersion(metadata.version, entry.value),
                _ => Response::WithMetadata(metadata, entry.value),
            }
        }),
    })
}

async fn read_with_room(
    responses: &Responses,
    cache: &RawCache,
    stats: &Stats,
    request: Request,
    error: CacheError,
) -> Result<Answer, Refusal> {
    let mut reservation = ValueReservation::new(cache);
    reservation.grow(responses, error).await?;
    loop {
        match read_by(reservation.cache(), &request).await {
            Ok(response) => {
                return Ok(of_read(stats, &request, response).holding_some(reservation.into_held()));
            }
            Err(error) => reservation.grow(responses, error).await?,
        }
    }
}

fn of_read(stats: &Stats, request: &Request, response: Option<Response>) -> Answer {
    stats.note_read(response.is_some());
    match response {
        None => Answer::of(Status::NotFound),
        Some(_) if matches!(request, Request::ContainsKey(_)) => Answer::of(Status::Success),
        Some(response) => Answer::success(ResponseBody::Map(response)),
    }
}
