pub(crate) mod directory;
pub(crate) mod push;
