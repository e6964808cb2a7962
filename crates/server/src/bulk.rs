//! Operations on many keys and on whole caches (facts section 2.4).

use bytes::Bytes;
use consort_cache::{Change, Condition, KeyError, Write};
use consort_hotrod::ops::bulk::{Request, Response};
use consort_hotrod::{Flags, ProtocolVersion, ResponseBody, Status};

use crate::answer::{Answer, Refusal};
use crate::bounds::BULK_BYTES_MAX;
use crate::map::{kept, lifetime};
use crate::served::Served;

/// Does what is asked. Of many keys a refusal says which one it is about.
pub(crate) async fn answer(
    served: &Served,
    request: Request,
    version: ProtocolVersion,
    flags: Flags,
) -> Result<Answer, Refusal> {
    let Served { stats, .. } = served;
    let silent = served.silent(flags);
    let cache = silent.as_ref().unwrap_or(&served.cache);
    let response = match request {
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
        Request::Size => Response::Size(cache.size().await?),
        Request::GetAll(keys) => {
            // Clients count what they are told, each key once.
            let mut keys: Vec<(Bytes, usize)> = keys.into_iter().zip(0..).collect();
            keys.sort_unstable();
            keys.dedup_by(|next, first| next.0 == first.0);
            let values = cache.get_all(keys.iter().map(|(key, _)| key)).await;
            let values = values.map_err(|KeyError { nth, error }| {
                let (key, place) = &keys[nth];
                Refusal::from(error).of_key(*place, key)
            })?;
            let asked = keys.len();
            let pairs = keys.into_iter().zip(values);
            let found: Vec<_> = pairs.filter_map(|((key, _), value)| Some((key, value?))).collect();
            stats.hits.add(found.len());
            stats.misses.add(asked - found.len());
            Response::Found(found)
        }
        Request::BulkGet(max) => {
            let max = if max == 0 { usize::MAX } else { max as usize };
            let (mut walk, mut entries, mut bytes) = (cache.entries(), Vec::new(), 0);
            while entries.len() < max
                && let Some((key, value)) = walk.next().await.transpose()?
            {
                bytes += key.len() + value.len();
                if bytes > BULK_BYTES_MAX {
                    return Ok(too_much());
                }
                entries.push((key, value));
            }
            Response::Entries(entries)
        }
        Request::BulkGetKeys(_) => {
            let (mut walk, mut keys, mut bytes) = (cache.keys(), Vec::new(), 0);
            while let Some(key) = walk.next().await.transpose()? {
                bytes += key.len();
                if bytes > BULK_BYTES_MAX {
                    return Ok(too_much());
                }
                keys.push(key);
            }
            Response::Keys(keys)
        }
    };
    Ok(Answer::success(ResponseBody::Bulk(response)))
}

fn too_much() -> Answer {
    let text = format!("the answer has more than {BULK_BYTES_MAX} bytes: iterate instead");
    Answer::error(Status::ServerError, text)
}
