use std::sync::Arc;

use consort_grid::{CacheId, Node, ReduceFn, TransformFn};

#[derive(Default)]
pub(crate) struct Functions {
    pub(crate) transforms: Vec<(String, Arc<TransformFn>)>,
    pub(crate) reductions: Vec<(String, Arc<ReduceFn>)>,
    pub(crate) costly: Vec<String>,
}

impl Functions {
    pub(crate) fn register(self, node: &mut Node, cache: CacheId) {
        for (name, transform) in self.transforms {
            node.register_transform(cache, &name, transform);
        }
        for (name, reduction) in self.reductions {
            node.register_reduction(cache, &name, reduction);
        }
        for name in self.costly {
            node.register_costly(cache, &name);
        }
    }
}
