//! The end of entries by lifespan and by max-idle time.

pub(crate) mod last_use;
pub(crate) mod lifespan;
pub(crate) mod max_idle;
