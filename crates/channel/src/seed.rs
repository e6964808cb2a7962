use std::hash::{BuildHasher, Hasher, RandomState};

/// The standard library's hash keys are random.
pub(crate) fn random_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}
