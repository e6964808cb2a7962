//! What owners do for queries: they make rows of their entities by a plan, which they are told with every question.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::Bytes;
use consort_cache::CacheBuilder;
use consort_query::Plan;

/// The transform that makes the row of each entity.
pub(super) const ROWS: &str = "query-rows";

/// The reduction that makes one of many of them.
pub(super) const PARTS: &str = "query-parts";

/// What was told, and which plan that is; none if another version of this program has written it.
type Told = (Box<[u8]>, Option<Rc<Plan>>);

thread_local! {
    /// The last plan that this thread has read, and of what: it is told again with each entity.
    static LAST: RefCell<Option<Told>> = const { RefCell::new(None) };
}

/// The plan that these bytes tell; nothing if another version of this program has written them.
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

/// Makes known on this member what queries need.
pub(crate) fn known(cache: CacheBuilder<'_>) -> CacheBuilder<'_> {
    let cache = super::walk::known(cache).costly_transform(ROWS, |_, entry, told| {
        plan(told)?.row(&entry.value, entry.version.0).map(Bytes::from)
    });
    cache.costly_reduction(PARTS, |made, _, entry, told| {
        if let Some(plan) = plan(told) {
            plan.reduce(made, &entry.value, entry.version.0);
        }
    })
}
