//! The plans that owners of entries get with a request, and the name of the transform that applies one.

use std::cell::RefCell;
use std::rc::Rc;

use consort_query::Plan;

/// The transform from an entity to its row.
pub(super) const ROWS: &str = "query-rows";

/// `None` if another version of this program has written the bytes.
type CachedPlan = (Box<[u8]>, Option<Rc<Plan>>);

thread_local! {
    /// The last plan of this thread: the same bytes come with each entity.
    static LAST: RefCell<Option<CachedPlan>> = const { RefCell::new(None) };
}

/// `None` if another version of this program has written the plan.
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
