pub(crate) mod batch_builder;
pub(crate) mod computations;
pub(crate) mod publisher;
pub(crate) mod reader;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::publication::{IterationId, ReduceFn, TransformFn};
use crate::replica::iterate::reader::Iteration;

#[derive(Default)]
pub(crate) struct Iterations {
    open: BTreeMap<IterationId, Iteration>,
    pub(crate) transforms: BTreeMap<Arc<str>, Arc<TransformFn>>,
    pub(crate) reductions: BTreeMap<Arc<str>, Arc<ReduceFn>>,
    /// Functions that are applied outside the node.
    pub(crate) costly: BTreeSet<Arc<str>>,
}
