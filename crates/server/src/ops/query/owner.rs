use bytes::Bytes;
use consort_cache::CacheBuilder;

use crate::query_plans::{PARTS, ROWS, plan};

pub(crate) fn register(cache: CacheBuilder<'_>) -> CacheBuilder<'_> {
    let cache = super::iterations::register(cache).costly_transform(ROWS, |_, entry, plan_bytes| {
        plan(plan_bytes)?.row(&entry.value, entry.version.0).map(Bytes::from)
    });
    cache.costly_reduction(PARTS, |made, _, entry, plan_bytes| {
        if let Some(plan) = plan(plan_bytes) {
            plan.reduce(made, &entry.value, entry.version.0);
        }
    })
}
