//! Operations on many keys and on whole caches (facts section 2.4).

use bytes::Bytes;
use consort_cache::{Change, Condition, KeyError, RawCache, Write};
use consort_hotrod::ops::bulk::{Listing, Request, Response};
use consort_hotrod::{RequestHeader, ResponseBody, Status};

use crate::answer::{Answer, Refusal};
use crate::bounds::{GET_ALL_BYTES, GET_ALL_UNRESERVED_MAX, UNRESERVED_BYTES_MAX};
use crate::gathering::{Gathering, Responses};
use crate::map::{kept, lifetime};
use crate::media::Conversion;
use crate::room;
use crate::served::Served;

/// Does what is asked. Of many keys a refusal says which one it is about.
pub(crate) async fn answer(
    responses: &Responses,
    served: &Served,
    conversion: Option<&Conversion>,
    request: Request,
    header: &RequestHeader,
) -> Result<Answer, Refusal> {
    let (Served { stats, .. }, version, flags) = (served, header.version, header.flags);
    let silent = served.silent(flags);
    let cache = silent.as_ref().unwrap_or(&served.cache);
    let (response, gathering) = match request {
        Request::Clear if let Some(schemas) = &served.schemas => {
            schemas.clear(cache).await?;
            return Ok(Answer::of(Status::Success));
        }
        Request::Clear if served.transactions.is_some() => {
            let mut walk = cache.keys();
            while let Some(key) = walk.next().await.transpose()? {
                let (condition, change) = (Condition::Always, Change::Remove);
                served.write(key, Write { condition, change, wants_previous: false }, flags).await?;
            }
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
                    written.map_err(|error| Refusal::from(error).of_key(nth, &key))?;
                }
            } else {
                let living = cache.with_lifetime(lifetime);
                let put = living.put_all(entries.iter().map(|(key, value)| (key, value))).await;
                put.map_err(|KeyError { nth, error }| Refusal::from(error).of_key(nth, &entries[nth].0))?;
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
            let (mut walk, mut listing) = (cache.entries(), Listing::default());
            let (mut gathering, mut count) = (responses.begin().await?, 0);
            while count < max
                && let Some((key, value)) = walk.next().await.transpose()?
            {
                let (key, value) = told(conversion, key, value).await?;
                gathering.add(key.len() + value.len() + AROUND_ENTRY).await?;
                listing.entry(&key, &value);
                count += 1;
            }
            (listing.into_response(), gathering)
        }
        Request::BulkGetKeys(_) => {
            let (mut walk, mut listing) = (cache.keys(), Listing::default());
            let mut gathering = responses.begin().await?;
            while let Some(key) = walk.next().await.transpose()? {
                let key = match conversion {
                    Some(conversion) => conversion.key_out(key)?,
                    None => key,
                };
                gathering.add(key.len() + AROUND_ENTRY).await?;
                listing.key(&key);
            }
            (listing.into_response(), gathering)
        }
    };
    Ok(Answer::success(ResponseBody::Bulk(response)).holding(gathering.finish()))
}

/// Bytes of the lengths and marks of an entry in a response.
const AROUND_ENTRY: usize = 8;

/// Keys that are asked for at once at least, and at most.
const KEYS_AT_ONCE: (usize, usize) = (16, 4_096);

/// An entry as the client knows it.
async fn told(conversion: Option<&Conversion>, key: Bytes, value: Bytes) -> Result<(Bytes, Bytes), Refusal> {
    match conversion {
        Some(conversion) => Ok(conversion.entry_out(key, value).await?),
        None => Ok((key, value)),
    }
}

/// How many keys are asked for at once, so that their values are not all here before it is known how large they are.
fn keys_at_once(cache: &RawCache) -> usize {
    let each = cache.local_bytes() / cache.local_len().max(1);
    let at_once = GET_ALL_BYTES / usize::try_from(each).unwrap_or(usize::MAX).max(1);
    at_once.clamp(KEYS_AT_ONCE.0, KEYS_AT_ONCE.1)
}

/// Keys of which [`UNRESERVED_BYTES_MAX`] each are no more than a request may have here without reserving them.
const KEYS_UNRESERVED: usize = GET_ALL_UNRESERVED_MAX / UNRESERVED_BYTES_MAX as usize;

/// What keys have, and the bytes of each that are reserved already. As long as values of other servers are small, they come
/// together; what is larger has its bytes reserved before it comes, one key after the other.
async fn values(
    cache: &RawCache,
    gathering: &mut Gathering,
    keys: &[(Bytes, usize)],
) -> Result<Vec<(Option<Bytes>, usize)>, Refusal> {
    if let Some(values) = values_together(cache, keys).await? {
        return Ok(values);
    }
    let mut all = Vec::with_capacity(keys.len());
    for keys in keys.chunks(KEYS_UNRESERVED) {
        if let Some(values) = values_together(cache, keys).await? {
            all.extend(values);
            continue;
        }
        for (key, place) in keys {
            let (mut handle, mut reserved) = (room::limited(cache), 0);
            let value = loop {
                let error = match handle.get(key).await {
                    Ok(value) => break value,
                    Err(error) => error,
                };
                let Some(bytes) = room::size_of_large(&error) else {
                    return Err(Refusal::from(error).of_key(*place, key));
                };
                gathering.add((bytes as usize).saturating_sub(reserved)).await?;
                (handle, reserved) = (room::within(cache, bytes), reserved.max(bytes as usize));
            };
            all.push((value, reserved));
        }
    }
    Ok(all)
}

/// What keys have, if what other servers have of them may come without reserving its bytes.
async fn values_together(
    cache: &RawCache,
    keys: &[(Bytes, usize)],
) -> Result<Option<Vec<(Option<Bytes>, usize)>>, Refusal> {
    let each = (GET_ALL_UNRESERVED_MAX / keys.len().max(1)) as u32;
    let handle = room::within(cache, each.min(UNRESERVED_BYTES_MAX));
    match handle.get_all(keys.iter().map(|(key, _)| key)).await {
        Ok(values) => Ok(Some(values.into_iter().map(|value| (value, 0)).collect())),
        Err(KeyError { error, .. }) if room::size_of_large(&error).is_some() => Ok(None),
        Err(KeyError { nth, error }) => {
            let (key, place) = &keys[nth];
            Err(Refusal::from(error).of_key(*place, key))
        }
    }
}

/// Clients count what they are told, each key once.
async fn get_all(
    responses: &Responses,
    served: &Served,
    cache: &RawCache,
    conversion: Option<&Conversion>,
    keys: Vec<Bytes>,
) -> Result<Answer, Refusal> {
    let mut keys: Vec<(Bytes, usize)> = keys.into_iter().zip(0..).collect();
    keys.sort_unstable();
    keys.dedup_by(|next, first| next.0 == first.0);
    let (mut gathering, mut listing, mut hits) = (responses.begin().await?, Listing::default(), 0);
    for keys in keys.chunks(keys_at_once(cache)) {
        let values = values(cache, &mut gathering, keys).await?;
        for ((key, _), (value, reserved)) in keys.iter().zip(values) {
            let Some(value) = value else { continue };
            hits += 1;
            let (key, value) = told(conversion, key.clone(), value).await?;
            gathering.add((key.len() + value.len() + AROUND_ENTRY).saturating_sub(reserved)).await?;
            listing.found(&key, &value);
        }
    }
    served.stats.hits.add(hits);
    served.stats.misses.add(keys.len() - hits);
    Ok(Answer::success(ResponseBody::Bulk(listing.into_found())).holding(gathering.finish()))
}
