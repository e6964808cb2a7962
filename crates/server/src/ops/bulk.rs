//! Operations on many keys and on whole caches (facts section 2.4).

use bytes::Bytes;
use consort_cache::{Change, Condition, EntryStream, KeyError, RawCache, Write};
use consort_hotrod::ops::bulk::{Listing, Request, Response};
use consort_hotrod::{RequestHeader, ResponseBody, Status};

use crate::catalog::served_cache::ServedCache;
use crate::limits::{GET_ALL_BYTES, GET_ALL_UNRESERVED_MAX, UNRESERVED_BYTES_MAX};
use crate::media::Conversion;
use crate::memory::remote_values;
use crate::memory::responses::{ResponseReservation, Responses};
use crate::ops::map::{kept, lifetime};
use crate::reply::{Answer, Refusal};

/// An error names the key.
pub(crate) async fn answer(
    responses: &Responses,
    served: &ServedCache,
    conversion: Option<&Conversion>,
    request: Request,
    header: &RequestHeader,
) -> Result<Answer, Refusal> {
    let (ServedCache { stats, .. }, version, flags) = (served, header.version, header.flags);
    let silent = served.silent(flags);
    let cache = silent.as_ref().unwrap_or(&served.cache);
    let (response, reservation) = match request {
        Request::Clear if let Some(schemas) = &served.schemas => {
            schemas.clear(cache).await?;
            return Ok(Answer::of(Status::Success));
        }
        Request::Clear => {
            cache.clear().await?;
            return Ok(Answer::of(Status::Success));
        }
        Request::PutAll(expiration, entries) => {
            let entries: Vec<(Bytes, Bytes)> =
                entries.into_iter().map(|(key, value)| (kept(key), kept(value))).collect();
            let (count, lifetime) = (entries.len(), lifetime(&expiration, version, served.lifetime()));
            if !served.is_plain() {
                for (nth, (key, value)) in entries.into_iter().enumerate() {
                    let (condition, change) = (Condition::Always, Change::Put { value, lifetime });
                    let write = Write { condition, change, wants_previous: false };
                    let written = served.write(key.clone(), write, flags).await;
                    written.map_err(|error| Refusal::from(error).for_key(nth, &key))?;
                }
            } else {
                let living = cache.with_lifetime(lifetime);
                let put = living.put_all(entries.iter().map(|(key, value)| (key, value))).await;
                put.map_err(|KeyError { nth, error }| Refusal::from(error).for_key(nth, &entries[nth].0))?;
            }
            stats.stores.add(count);
            return Ok(Answer::of(Status::Success));
        }
        Request::Size => {
            let size = Response::Size(cache.size().await?);
            return Ok(Answer::success(ResponseBody::Bulk(size)));
        }
        Request::GetAll(keys) => return get_all(responses, served, cache, conversion, keys).await,
        Request::BulkGet(max) => {
            let max = if max == 0 { usize::MAX } else { max as usize };
            let parts = |(key, value)| (key, Some(value));
            list(responses, conversion, || cache.entries().sequential(), max, parts).await?
        }
        Request::BulkGetKeys(_) => {
            let parts = |key| (key, None);
            list(responses, conversion, || cache.keys().sequential(), usize::MAX, parts).await?
        }
    };
    Ok(Answer::success(ResponseBody::Bulk(response)).holding(reservation.finish()))
}

const AROUND_ENTRY: usize = 8;

const KEYS_AT_ONCE: (usize, usize) = (16, 4_096);

async fn entry_for_client(
    conversion: Option<&Conversion>,
    key: Bytes,
    value: Bytes,
) -> Result<(Bytes, Bytes), Refusal> {
    match conversion {
        Some(conversion) => Ok(conversion.entry_out(key, value).await?),
        None => Ok((key, value)),
    }
}

/// Limited so that few values are here before their size is known.
fn keys_at_once(cache: &RawCache) -> usize {
    let each = cache.local_bytes() / cache.local_len().max(1);
    let at_once = GET_ALL_BYTES / usize::try_from(each).unwrap_or(usize::MAX).max(1);
    at_once.clamp(KEYS_AT_ONCE.0, KEYS_AT_ONCE.1)
}

/// Values of [`UNRESERVED_BYTES_MAX`] may be here without a reservation.
const KEYS_UNRESERVED: usize = GET_ALL_UNRESERVED_MAX / UNRESERVED_BYTES_MAX as usize;

/// Without capacity for the next entry, the request drops the iteration and its entries, waits, and iterates again, because a
/// waiting request must hold no entries.
async fn list<T>(
    responses: &Responses,
    conversion: Option<&Conversion>,
    iterate: impl Fn() -> EntryStream<T>,
    max: usize,
    parts: fn(T) -> (Bytes, Option<Bytes>),
) -> Result<(Response, ResponseReservation), Refusal> {
    let mut reservation = responses.begin().await?;
    loop {
        let in_transit = responses.begin_iteration().await?;
        let (mut entries, mut listing, mut count, mut lacks) = (iterate(), Listing::default(), 0, None);
        while count < max
            && let Some(item) = entries.next().await.transpose()?
        {
            let bytes = match parts(item) {
                (key, Some(value)) => {
                    let (key, value) = entry_for_client(conversion, key, value).await?;
                    listing.entry(&key, &value);
                    key.len() + value.len()
                }
                (key, None) => {
                    let key = match conversion {
                        Some(conversion) => conversion.key_out(key)?,
                        None => key,
                    };
                    listing.key(&key);
                    key.len()
                }
            };
            lacks = Some(bytes + AROUND_ENTRY).filter(|bytes| !reservation.try_take(*bytes));
            if lacks.is_some() {
                break;
            }
            count += 1;
        }
        let Some(bytes) = lacks else { return Ok((listing.into_response(), reservation)) };
        drop((entries, listing, in_transit));
        reservation.make_room(bytes).await?;
        reservation.restart();
    }
}

/// Bytes of a large value are reserved before its server sends it.
async fn value_alone(
    cache: &RawCache,
    reservation: &mut ResponseReservation,
    (key, place): &(Bytes, usize),
) -> Result<(Option<Bytes>, usize), Refusal> {
    let (mut handle, mut reserved) = (remote_values::limited(cache), 0);
    loop {
        let error = match handle.get(key).await {
            Ok(value) => return Ok((value, reserved)),
            Err(error) => error,
        };
        let Some(bytes) = remote_values::size_of_large(&error) else {
            return Err(Refusal::from(error).for_key(*place, key));
        };
        reservation.add((bytes as usize).saturating_sub(reserved)).await?;
        (handle, reserved) = (remote_values::within(cache, bytes), reserved.max(bytes as usize));
    }
}

/// `None` if another server has a value of more than `each` bytes.
async fn values_together(
    cache: &RawCache,
    keys: &[(Bytes, usize)],
    each: u32,
) -> Result<Option<Vec<Option<Bytes>>>, Refusal> {
    match remote_values::within(cache, each).get_all(keys.iter().map(|(key, _)| key)).await {
        Ok(values) => Ok(Some(values)),
        Err(KeyError { error, .. }) if remote_values::size_of_large(&error).is_some() => Ok(None),
        Err(KeyError { nth, error }) => {
            let (key, place) = &keys[nth];
            Err(Refusal::from(error).for_key(*place, key))
        }
    }
}

/// Each key once, because clients count a response's entries. Small values of other servers are read together, larger ones one by
/// one, each after a reservation.
async fn get_all(
    responses: &Responses,
    served: &ServedCache,
    cache: &RawCache,
    conversion: Option<&Conversion>,
    keys: Vec<Bytes>,
) -> Result<Answer, Refusal> {
    let mut keys: Vec<(Bytes, usize)> = keys.into_iter().zip(0..).collect();
    keys.sort_unstable();
    keys.dedup_by(|next, first| next.0 == first.0);
    let (mut reservation, mut listing, mut hits) = (responses.begin().await?, Listing::default(), 0);
    let (mut rest, mut at_once) = (&keys[..], keys_at_once(cache));
    while !rest.is_empty() {
        let together = &rest[..rest.len().min(at_once)];
        let each = (responses.get_all_bytes() / together.len()).min(UNRESERVED_BYTES_MAX as usize);
        let in_transit = responses.begin_get_all(each * together.len()).await?;
        let Some(values) = values_together(cache, together, each as u32).await? else {
            drop(in_transit);
            if at_once > KEYS_UNRESERVED {
                at_once = KEYS_UNRESERVED;
                continue;
            }
            for key in together {
                let (Some(value), reserved) = value_alone(cache, &mut reservation, key).await? else {
                    continue;
                };
                let (key, value) = entry_for_client(conversion, key.0.clone(), value).await?;
                reservation.add((key.len() + value.len() + AROUND_ENTRY).saturating_sub(reserved)).await?;
                listing.found(&key, &value);
                hits += 1;
            }
            rest = &rest[together.len()..];
            continue;
        };
        let (mut done, mut lacks) = (0, None);
        for ((key, _), value) in together.iter().zip(values) {
            if let Some(value) = value {
                let (key, value) = entry_for_client(conversion, key.clone(), value).await?;
                let bytes = key.len() + value.len() + AROUND_ENTRY;
                if !reservation.try_take(bytes) {
                    lacks = Some(bytes);
                    break;
                }
                listing.found(&key, &value);
                hits += 1;
            }
            done += 1;
        }
        rest = &rest[done..];
        // A request that waits for capacity holds no values outside of its response.
        drop(in_transit);
        if let Some(bytes) = lacks {
            reservation.make_room(bytes).await?;
        }
    }
    served.stats.hits.add(hits);
    served.stats.misses.add(keys.len() - hits);
    Ok(Answer::success(ResponseBody::Bulk(listing.into_found())).holding(reservation.finish()))
}
