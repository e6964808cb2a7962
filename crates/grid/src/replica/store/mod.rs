//! A cache with a store: writes to it and loads from it.

pub(crate) mod loads;
pub(crate) mod refused_removals;
pub(crate) mod writes;
