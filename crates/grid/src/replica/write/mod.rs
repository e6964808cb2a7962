pub(crate) mod backup;
pub(crate) mod caller;
pub(crate) mod entries;
pub(crate) mod handover;
pub(crate) mod invalidation;
pub(crate) mod primary;
pub(crate) mod records;
pub(crate) mod sole_owner;
