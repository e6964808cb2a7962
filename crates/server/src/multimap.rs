//! Multimaps: a key has any number of values (facts section 2.15).
//!
//! A key's values are one value of the cache ([`crate::bucket`]), and every change of them is a conditional write, so that
//! it is atomic across servers. They live as long as the cache's entries do: what clients say of that is not heard, as in
//! Infinispan.

use bytes::{BufMut, Bytes, BytesMut};
use consort_cache::{CacheBuilder, Change, Condition, Lifetime, RawCache, Write};
use consort_hotrod::ops::map::Assignment;
use consort_hotrod::ops::multimap::{Action, Request, Response};
use consort_hotrod::{ResponseBody, Status};

use crate::answer::{Answer, Refusal};
use crate::bounds::VALUES_OF_KEY_MAX;
use crate::bucket::{self, Bucket};
use crate::map::{kept, of_entry};
use crate::served::Served;

/// By which owners say how many values a key has, or whether it has one of them.
const TRANSFORM: &str = "hot-rod-multimap";

const HOW_MANY: u8 = b'n';
const HAS: u8 = b'v';

/// Makes known on this member what walks over multimaps need.
pub(crate) fn known(cache: CacheBuilder<'_>) -> CacheBuilder<'_> {
    cache.transform(TRANSFORM, |_, entry, wanted| made(&entry.value, wanted))
}

/// What an owner makes of what a key has. What is no bucket is not seen.
fn made(value: &Bytes, wanted: &[u8]) -> Option<Bytes> {
    match wanted.split_first()? {
        (&HOW_MANY, []) => bucket::count(value).map(|count| Bytes::copy_from_slice(&count.to_be_bytes())),
        (&HAS, wanted) => Bucket::from_bytes(value)?.contains(wanted).then(Bytes::new),
        _ => None,
    }
}

fn is(is: bool) -> Answer {
    Answer::success(ResponseBody::Multimap(Response::Is(is)))
}

fn another_kind() -> Refusal {
    Refusal::new("the key has a value that was not put by a multimap")
}

/// Does what is asked.
pub(crate) async fn answer(served: &Served, request: Request) -> Result<Answer, Refusal> {
    if served.transactions.is_some() {
        return Err(Refusal::new("a cache with transactions is no multimap"));
    }
    let Request { action, allows_duplicates } = request;
    let cache = &served.cache;
    Ok(match action {
        Action::Get(key) => {
            let found = cache.get(&key).await?;
            served.stats.note_read(found.is_some());
            let Some(value) = found else { return Ok(Answer::of(Status::NotFound)) };
            let bucket = Bucket::from_bytes(&value).ok_or_else(another_kind)?;
            let values = bucket.into_values(allows_duplicates);
            Answer::success(ResponseBody::Multimap(Response::Values(values)))
        }
        Action::GetWithMetadata(key) => {
            let found = cache.get_with_metadata(&key).await?;
            served.stats.note_read(found.is_some());
            let Some(entry) = found else { return Ok(Answer::of(Status::NotFound)) };
            let bucket = Bucket::from_bytes(&entry.value).ok_or_else(another_kind)?;
            let values = bucket.into_values(allows_duplicates);
            let response = Response::WithMetadata(of_entry(&entry), values);
            Answer::success(ResponseBody::Multimap(response))
        }
        Action::Put(to) => {
            put(served, to, allows_duplicates).await?;
            Answer::of(Status::Success)
        }
        Action::RemoveKey(key) => {
            let write =
                Write { condition: Condition::Present, change: Change::Remove, wants_previous: false };
            let was_there = cache.write(kept(key), write).await?.is_done;
            served.stats.note_removal(was_there);
            is(was_there)
        }
        Action::RemoveEntry(to) => {
            let was_there = remove(served, to, allows_duplicates).await?;
            served.stats.note_removal(was_there);
            is(was_there)
        }
        Action::Size => {
            let size = size(cache).await?;
            Answer::success(ResponseBody::Multimap(Response::Size(size)))
        }
        Action::ContainsKey(key) => is(cache.contains(&key).await?),
        Action::ContainsEntry(Assignment { key, value, .. }) => match cache.get(&key).await? {
            Some(found) => is(Bucket::from_bytes(&found).ok_or_else(another_kind)?.contains(&value)),
            None => is(false),
        },
        Action::ContainsValue(_, value) => is(contains_value(cache, &value).await?),
    })
}

fn seen_as(seen: Option<&Bytes>) -> Result<Bucket, Refusal> {
    seen.map_or_else(|| Ok(Bucket::default()), |value| Bucket::from_bytes(value).ok_or_else(another_kind))
}

fn having(bucket: &Bucket, lifetime: Lifetime) -> Change {
    Change::Put { value: bucket.to_bytes(), lifetime }
}

async fn put(served: &Served, to: Assignment, allows_duplicates: bool) -> Result<(), Refusal> {
    let make = |seen: Option<&Bytes>| {
        let mut bucket = seen_as(seen)?;
        if !bucket.add(to.value.clone(), allows_duplicates) {
            return Ok((None, ()));
        }
        if bucket.len() > VALUES_OF_KEY_MAX {
            return Err(Refusal::new(format!("a key of a multimap has {VALUES_OF_KEY_MAX} values at most")));
        }
        Ok((Some(having(&bucket, served.lifetime())), ()))
    };
    served.lanes.compute(&served.cache, &kept(to.key.clone()), make).await?;
    served.stats.stores.one();
    Ok(())
}

async fn remove(served: &Served, from: Assignment, allows_duplicates: bool) -> Result<bool, Refusal> {
    let make = |seen: Option<&Bytes>| {
        let mut bucket = seen_as(seen)?;
        if !bucket.remove(&from.value, allows_duplicates) {
            return Ok((None, false));
        }
        let change = if bucket.is_empty() { Change::Remove } else { having(&bucket, served.lifetime()) };
        Ok((Some(change), true))
    };
    served.lanes.compute(&served.cache, &kept(from.key.clone()), make).await
}

/// All values of all keys.
async fn size(cache: &RawCache) -> Result<u64, Refusal> {
    let mut walk = cache.entries().transform(TRANSFORM, Bytes::from_static(&[HOW_MANY]));
    let mut size = 0;
    while let Some((_, count)) = walk.next().await.transpose()? {
        let count = <[u8; 4]>::try_from(&count[..]).map_err(|_| another_kind())?;
        size += u64::from(u32::from_be_bytes(count));
    }
    Ok(size)
}

async fn contains_value(cache: &RawCache, value: &[u8]) -> Result<bool, Refusal> {
    let mut wanted = BytesMut::with_capacity(1 + value.len());
    wanted.put_u8(HAS);
    wanted.put_slice(value);
    let mut walk = cache.entries().transform(TRANSFORM, wanted.freeze());
    Ok(walk.next().await.transpose()?.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_count_and_look_for_values_and_see_no_others() {
        let mut bucket = Bucket::default();
        assert!(bucket.add("a".into(), false) && bucket.add("b".into(), false));
        let value = bucket.to_bytes();
        assert_eq!(made(&value, b"n").as_deref(), Some(&2_u32.to_be_bytes()[..]));
        assert_eq!(made(&value, b"vb"), Some(Bytes::new()));
        assert_eq!(made(&value, b"vc"), None);
        assert_eq!(made(&Bytes::from_static(b"plain"), b"n"), None);
        assert_eq!(made(&value, b""), None);
    }
}
