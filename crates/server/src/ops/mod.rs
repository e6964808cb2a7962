pub(crate) mod admin;
pub(crate) mod bucket;
pub(crate) mod bulk;
pub(crate) mod cached_lookup;
pub(crate) mod converter;
pub(crate) mod counter_listeners;
pub(crate) mod dispatch;
pub(crate) mod filter;
pub(crate) mod iteration;
pub(crate) mod listeners;
pub(crate) mod map;
pub(crate) mod multimap;
pub(crate) mod operator;
pub(crate) mod query;
pub(crate) mod session;
mod task_params;
pub(crate) mod transactions;
pub(crate) mod value_pieces;
pub(crate) mod value_streams;

use consort_cache::CacheBuilder;

pub(crate) fn register_transforms(cache: CacheBuilder<'_>) -> CacheBuilder<'_> {
    query::register(multimap::register_transform(filter::register_transform(cache)))
}
