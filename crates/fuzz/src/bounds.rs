//! The memory limit of decoders.

/// Bytes of memory per byte of input: at worst a message of seven bytes within a list, which becomes a [`consort_group::Message`]
/// in a list that has grown to twice its size while it is copied.
pub const PER_BYTE: u64 = 96;

/// Memory for any input: error texts, tables, the capacity of a first allocation.
pub const AT_LEAST: u64 = 16 * 1024;

/// Runs a decoder, and returns its result and its peak memory. Panics if the memory is out of proportion to an input of `length`
/// bytes.
pub fn bounded<T>(length: usize, decode: impl FnOnce() -> T) -> (T, u64) {
    bounded_by(AT_LEAST + PER_BYTE * length as u64, decode)
}

/// Runs a function, and panics if it needs more than `limit` bytes.
pub fn bounded_by<T>(limit: u64, run: impl FnOnce() -> T) -> (T, u64) {
    let mut result = None;
    let used = allocation_counter::measure(|| result = Some(run()));
    assert!(used.bytes_max <= limit, "{} bytes of memory, at most {limit} are in proportion", used.bytes_max);
    match result {
        Some(result) => (result, used.bytes_max),
        None => unreachable!("measure runs its function"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_over_a_bound_is_reported() {
        let (length, peak) = bounded(100, || vec![1u8; 1_000].len());
        assert_eq!((length, peak), (1_000, 1_000));
        assert!(std::panic::catch_unwind(|| bounded(100, || vec![1u8; 1_000_000].len())).is_err());
    }
}
