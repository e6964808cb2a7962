//! Iterations, as the reader requests them and as the owner of the entries responds.

pub(crate) mod batch_builder;
pub(crate) mod computations;
pub(crate) mod publisher;
pub(crate) mod reader;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::publication::{IterationId, ReduceFn, TransformFn};
use crate::replica::iterate::reader::Iteration;

/// The iterations that this member reads, and the functions that it applies to entries for readers.
#[derive(Default)]
pub(crate) struct Iterations {
    open: BTreeMap<IterationId, Iteration>,
    pub(crate) transforms: BTreeMap<Arc<str>, Arc<TransformFn>>,
    pub(crate) reductions: BTreeMap<Arc<str>, Arc<ReduceFn>>,
    /// The names of functions that take long with an entry: they are applied outside the node.
    pub(crate) costly: BTreeSet<Arc<str>>,
}
