//! Operations on many keys and on whole caches (facts section 2.4).

use std::collections::BTreeSet;

use bytes::Bytes;
use consort_cache::{CacheError, Change, Condition, Write};
use consort_hotrod::ops::bulk::{Request, Response};
use consort_hotrod::{Flags, ProtocolVersion, ResponseBody, Status};

use crate::answer::Answer;
use crate::bounds::BULK_BYTES_MAX;
use crate::map::{kept, lifetime};
use crate::served::Served;

/// Does what is asked.
pub(crate) async fn answer(
    served: &Served,
    request: Request,
    version: ProtocolVersion,
    flags: Flags,
) -> Result<Answer, CacheError> {
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
                for (key, value) in entries {
                    let (condition, change) = (Condition::Always, Change::Put { value, lifetime });
                    served.write(key, Write { condition, change, wants_previous: false }, flags).await?;
                }
            } else {
                let living = cache.with_lifetime(lifetime);
                living.put_all(entries.iter().map(|(key, value)| (key, value))).await?;
            }
            stats.stores.add(count);
            return Ok(Answer::of(Status::Success));
        }
        Request::Size => Response::Size(cache.size().await?),
        Request::GetAll(keys) => {
            // Clients count what they are told, each key once.
            let keys: BTreeSet<Bytes> = keys.into_iter().collect();
            let values = cache.get_all(&keys).await?;
            let asked = keys.len();
            let pairs = keys.into_iter().zip(values);
            let found: Vec<_> = pairs.filter_map(|(key, value)| Some((key, value?))).collect();
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
