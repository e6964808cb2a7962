use bytes::Bytes;
use consort_cache::{Change, Condition, Lifetime, ReadFrom, Write};
use consort_hotrod::ops::map;
use consort_hotrod::{Flags, RequestBody, Text};

use crate::catalog::schemas::{ERRORS, is_schema, refusal, refusal_of_all};
use crate::catalog::served_cache::ServedCache;
use crate::limits::SCHEMAS_MAX;
use crate::reply::Refusal;

/// `op` is `c` to create a schema, `u` to update it, `s` for either. Returns `c`, `u` or `n` (nothing was done), then a semicolon
/// and the schema's error, if any.
pub(crate) async fn create_or_update(
    served: &ServedCache,
    name: Text,
    content: Bytes,
    op: &str,
    is_forced: bool,
) -> Result<String, Refusal> {
    if !matches!(op, "c" | "u" | "s") {
        return Err(Refusal::new(format!("unknown op '{op}'; use c, u or s")));
    }
    let key = Bytes::copy_from_slice(name.as_bytes());
    let assignment = map::Assignment {
        key: key.clone(),
        expiration: consort_hotrod::Expiration::INFINITE,
        value: content.clone(),
    };
    let put = RequestBody::Map(map::Request::Put(assignment));
    if let Some(refusal) = refusal(&put) {
        return Err(refusal);
    }
    if !is_schema(&key) {
        return Err(Refusal::new("the name of a schema has to end with .proto"));
    }
    if served.cache.size().await? >= 2 * SCHEMAS_MAX as u64 {
        return Err(Refusal::new(format!("there are already {SCHEMAS_MAX} schemas")));
    }
    if let Some(refusal) = refusal_of_all(&served.cache, &put).await? {
        return Err(refusal);
    }
    let newest = served.cache.with_read_from(ReadFrom::Primary);
    let before = newest.get_with_metadata(&key).await?;
    let (condition, outcome) = match (&before, op) {
        (None, "u") | (Some(_), "c") => return Ok("n".to_owned()),
        (None, _) => (Condition::Absent, "c"),
        (Some(_), _) if is_forced => (Condition::Present, "u"),
        (Some(before), _) => (Condition::Version(before.version), "u"),
    };
    let is_same = !is_forced && before.is_some_and(|before| before.value == content);
    let change = Change::Put { value: content, lifetime: Lifetime::FOREVER };
    let write = Write { condition, change, wants_previous: false };
    let is_done = !is_same && served.write(key, write, Flags::NONE).await?.is_done;
    let outcome = if is_done { outcome } else { "n" };
    let error = newest.get([name.as_bytes(), ERRORS].concat().as_slice()).await?;
    Ok(match error {
        None => outcome.to_owned(),
        Some(error) => format!("{outcome};{}", String::from_utf8_lossy(&error)),
    })
}

pub(crate) async fn delete(served: &ServedCache, name: &Text) -> Result<String, Refusal> {
    let write = Write { condition: Condition::Present, change: Change::Remove, wants_previous: false };
    let key = Bytes::copy_from_slice(name.as_bytes());
    let was_there = is_schema(&key) && served.write(key, write, Flags::NONE).await?.is_done;
    Ok(if was_there { "1" } else { "0" }.to_owned())
}
