//! The part of queries that owners of entries run: they turn entities into rows by a plan, which comes with every request.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::Bytes;
use consort_cache::CacheBuilder;
use consort_query::Plan;

/// The transform from an entity to its row.
pub(super) const ROWS: &str = "query-rows";

/// The reduction of many rows to one.
pub(super) const PARTS: &str = "query-parts";

/// The bytes of a plan, and the plan; `None` if another version of this program has written it.
type CachedPlan = (Box<[u8]>, Option<Rc<Plan>>);

thread_local! {
    /// The last plan that this thread has read. The same bytes come with each entity.
    static LAST: RefCell<Option<CachedPlan>> = const { RefCell::new(None) };
}

/// Parses a plan. `None` if another version of this program has written it.
pub(super) fn plan(bytes: &[u8]) -> Option<Rc<Plan>> {
    LAST.with_borrow_mut(|last| match last {
        Some((of, plan)) if **of == *bytes => plan.clone(),
        last => {
            let plan = Plan::from_bytes(bytes).map(Rc::new);
            *last = Some((bytes.into(), plan.clone()));
            plan
        }
    })
}

/// Registers the functions of queries on this member.
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
