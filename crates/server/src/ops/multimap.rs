//! Multimaps (facts section 2.15). A key's values are one value of the cache ([`crate::ops::bucket`]), changed by conditional
//! writes. They have the cache's default lifetime: a client's is ignored, as in Infinispan.

use bytes::{BufMut, Bytes, BytesMut};
use consort_cache::{CacheBuilder, Change, Condition, Entry, Lifetime, RawCache, Write};
use consort_hotrod::ops::map::Assignment;
use consort_hotrod::ops::multimap::{Action, Request, Response};
use consort_hotrod::{ResponseBody, Status};

use crate::catalog::served_cache::ServedCache;
use crate::compute_pool::offload_if_large;
use crate::limits::{VALUES_OF_KEY_BYTES_MAX, VALUES_OF_KEY_MAX};
use crate::memory::remote_values::ValueReservation;
use crate::memory::responses::Responses;
use crate::ops::bucket::{self, Bucket};
use crate::ops::map::{kept, of_entry};
use crate::reply::ResponseBytes;
use crate::reply::{Answer, Refusal};

/// The transform returns the number of a key's values, or whether the key has one of them.
const TRANSFORM: &str = "hot-rod-multimap";

const HOW_MANY: u8 = b'n';
const HAS: u8 = b'v';

pub(crate) fn register_transform(cache: CacheBuilder<'_>) -> CacheBuilder<'_> {
    cache.costly_transform(TRANSFORM, |_, entry, wanted| transform(&entry.value, wanted))
}

fn transform(value: &Bytes, wanted: &[u8]) -> Option<Bytes> {
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
    Refusal::new("the key has a value that is not of a multimap")
}

pub(crate) async fn answer(
    responses: &Responses,
    served: &ServedCache,
    request: Request,
) -> Result<Answer, Refusal> {
    if served.transactions.is_some() {
        return Err(Refusal::new("a transactional cache supports no multimap operations"));
    }
    let Request { action, allows_duplicates } = request;
    let cache = &served.cache;
    Ok(match action {
        Action::Get(key) => {
            let (found, reservation) = found(responses, served, &key).await?;
            served.stats.note_read(found.is_some());
            let Some(Entry { value, .. }) = found else { return Ok(Answer::of(Status::NotFound)) };
            let held = held(responses, &value, reservation).await?;
            let values = values(value, allows_duplicates).await?;
            Answer::success(ResponseBody::Multimap(Response::Values(values))).holding(held)
        }
        Action::GetWithMetadata(key) => {
            let (found, reservation) = found(responses, served, &key).await?;
            served.stats.note_read(found.is_some());
            let Some(entry) = found else { return Ok(Answer::of(Status::NotFound)) };
            let held = held(responses, &entry.value, reservation).await?;
            let values = values(entry.value.clone(), allows_duplicates).await?;
            let response = Response::WithMetadata(of_entry(&entry), values);
            Answer::success(ResponseBody::Multimap(response)).holding(held)
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
            let size = size(responses, cache).await?;
            Answer::success(ResponseBody::Multimap(Response::Size(size)))
        }
        Action::ContainsKey(key) => is(cache.contains(&key).await?),
        Action::ContainsEntry(Assignment { key, value, .. }) => match found(responses, served, &key).await? {
            (Some(found), _held) => {
                let bytes = found.value.len();
                let contains = move || Bucket::from_bytes(&found.value).map(|bucket| bucket.contains(&value));
                is(offload_if_large(bytes, contains).await.ok_or_else(another_kind)?)
            }
            (None, _) => is(false),
        },
        Action::ContainsValue(_, value) => is(contains_value(responses, cache, &value).await?),
    })
}

async fn found(
    responses: &Responses,
    served: &ServedCache,
    key: &Bytes,
) -> Result<(Option<Entry<Bytes>>, Option<Box<ResponseBytes>>), Refusal> {
    let mut reservation =
        ValueReservation::new(&served.limited).with_overhead(VALUES_OF_KEY_MAX * size_of::<Bytes>());
    loop {
        match reservation.cache().get_with_metadata(key).await {
            Ok(found) => return Ok((found, reservation.into_held())),
            Err(error) => reservation.grow(responses, error).await?,
        }
    }
}

async fn values(value: Bytes, with_duplicates: bool) -> Result<Vec<Bytes>, Refusal> {
    let bytes = value.len();
    let into_values = move || Bucket::from_bytes(&value).map(|bucket| bucket.into_values(with_duplicates));
    offload_if_large(bytes, into_values).await.ok_or_else(another_kind)
}

/// Each value is a slice of the cache's value, copied unless it is large. Bytes of another server's large value were reserved
/// before its transfer.
async fn held(
    responses: &Responses,
    value: &Bytes,
    reservation: Option<Box<ResponseBytes>>,
) -> Result<Box<ResponseBytes>, Refusal> {
    if let Some(held) = reservation {
        return Ok(held);
    }
    let count = bucket::count(value).ok_or_else(another_kind)? as usize;
    responses.hold(value.len() + count * size_of::<Bytes>()).await
}

fn seen_as(seen: Option<&Bytes>) -> Result<Bucket, Refusal> {
    seen.map_or_else(|| Ok(Bucket::default()), |value| Bucket::from_bytes(value).ok_or_else(another_kind))
}

fn having(bucket: &Bucket, lifetime: Lifetime) -> Change {
    Change::Put { value: bucket.to_bytes(), lifetime }
}

/// Fails if one more value would exceed the key's limits; values beyond them can still be removed.
fn check_size(bucket: &Bucket) -> Result<(), String> {
    if bucket.len() > VALUES_OF_KEY_MAX {
        return Err(format!(
            "a key of a multimap has at most {VALUES_OF_KEY_MAX} values: put the value under another key"
        ));
    }
    if bucket.bytes() > VALUES_OF_KEY_BYTES_MAX {
        return Err(format!(
            "the values of a key of a multimap have at most {VALUES_OF_KEY_BYTES_MAX} bytes together: put the value under \
             another key"
        ));
    }
    Ok(())
}

async fn put(served: &ServedCache, to: Assignment, allows_duplicates: bool) -> Result<(), Refusal> {
    let (key, lifetime) = (kept(to.key.clone()), served.lifetime());
    let make = move |seen: Option<&Bytes>| {
        let mut bucket = seen_as(seen)?;
        if !bucket.add(to.value.clone(), allows_duplicates) {
            return Ok((None, ()));
        }
        check_size(&bucket).map_err(Refusal::new)?;
        Ok((Some(having(&bucket, lifetime)), ()))
    };
    served.key_locks.compute(&served.cache, &key, make).await?;
    served.stats.stores.one();
    Ok(())
}

async fn remove(served: &ServedCache, from: Assignment, allows_duplicates: bool) -> Result<bool, Refusal> {
    let (key, lifetime) = (kept(from.key.clone()), served.lifetime());
    let make = move |seen: Option<&Bytes>| {
        let mut bucket = seen_as(seen)?;
        if !bucket.remove(&from.value, allows_duplicates) {
            return Ok((None, false));
        }
        let change = if bucket.is_empty() { Change::Remove } else { having(&bucket, lifetime) };
        Ok((Some(change), true))
    };
    served.key_locks.compute(&served.cache, &key, make).await
}

async fn size(responses: &Responses, cache: &RawCache) -> Result<u64, Refusal> {
    let _in_transit = responses.begin_iteration().await?;
    let mut counts = cache.entries().transform(TRANSFORM, Bytes::from_static(&[HOW_MANY]));
    let mut size = 0;
    while let Some((_, count)) = counts.next().await.transpose()? {
        let count = <[u8; 4]>::try_from(&count[..]).map_err(|_| another_kind())?;
        size += u64::from(u32::from_be_bytes(count));
    }
    Ok(size)
}

async fn contains_value(responses: &Responses, cache: &RawCache, value: &[u8]) -> Result<bool, Refusal> {
    let _in_transit = responses.begin_iteration().await?;
    let mut wanted = BytesMut::with_capacity(1 + value.len());
    wanted.put_u8(HAS);
    wanted.put_slice(value);
    let mut counts = cache.entries().transform(TRANSFORM, wanted.freeze());
    Ok(counts.next().await.transpose()?.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_with_more_values_or_bytes_than_the_limit_is_refused_with_the_limit() {
        let full = Bucket::of((0..VALUES_OF_KEY_MAX).map(|_| Bytes::from_static(b"v")));
        assert!(check_size(&full).is_ok());
        let mut more = full;
        assert!(more.add("v".into(), true));
        let told = check_size(&more).unwrap_err();
        assert!(told.contains(&VALUES_OF_KEY_MAX.to_string()), "{told}");
        let long = Bucket::of([Bytes::from(vec![0; VALUES_OF_KEY_BYTES_MAX - 4])]);
        assert!(check_size(&long).is_ok());
        let longer = Bucket::of([Bytes::from(vec![0; VALUES_OF_KEY_BYTES_MAX - 3])]);
        let told = check_size(&longer).unwrap_err();
        assert!(told.contains(&VALUES_OF_KEY_BYTES_MAX.to_string()), "{told}");
    }

    #[test]
    fn owners_count_and_find_values_of_buckets_only() {
        let mut bucket = Bucket::default();
        assert!(bucket.add("a".into(), false) && bucket.add("b".into(), false));
        let value = bucket.to_bytes();
        assert_eq!(transform(&value, b"n").as_deref(), Some(&2_u32.to_be_bytes()[..]));
        assert_eq!(transform(&value, b"vb"), Some(Bytes::new()));
        assert_eq!(transform(&value, b"vc"), None);
        assert_eq!(transform(&Bytes::from_static(b"plain"), b"n"), None);
        assert_eq!(transform(&value, b""), None);
    }
}
