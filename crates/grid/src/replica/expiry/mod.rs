pub(crate) mod last_use;
pub(crate) mod lifespan;
pub(crate) mod max_idle;
