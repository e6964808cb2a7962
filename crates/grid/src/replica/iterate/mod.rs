//! Iterations: the reader, and the owners that publish their entries to it.

pub(crate) mod batch_builder;
pub(crate) mod computations;
pub(crate) mod publisher;
pub(crate) mod reader;
