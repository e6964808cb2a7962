//! Memory that a decoder may take.

/// Bytes of memory per byte of input at most. What needs most is a message of seven bytes within a list: it becomes a
/// [`consort_group::Message`], and the list may have grown to twice what it needs while it is copied to where it is
/// larger still.
pub const PER_BYTE: u64 = 96;

/// What a decoder may take whatever the input is: error texts, tables, the room that a first allocation has.
pub const AT_LEAST: u64 = 16 * 1024;

/// Runs a decoder and tells its result, and how much memory it had at its largest.
///
/// # Panics
///
/// If that is more than is in proportion to an input of `length` bytes.
pub fn bounded<T>(length: usize, decode: impl FnOnce() -> T) -> (T, u64) {
    bounded_by(AT_LEAST + PER_BYTE * length as u64, decode)
}

/// The same with another limit.
///
/// # Panics
///
/// If it needs more than `limit` bytes.
pub fn bounded_by<T>(limit: u64, run: impl FnOnce() -> T) -> (T, u64) {
    let mut result = None;
    let used = allocation_counter::measure(|| result = Some(run()));
    assert!(used.bytes_max <= limit, "{} bytes of memory, at most {limit} are in proportion", used.bytes_max);
    match result {
        Some(result) => (result, used.bytes_max),
        None => unreachable!("measure runs what it is given"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_too_much_is_caught() {
        let (length, peak) = bounded(100, || vec![1u8; 1_000].len());
        assert_eq!((length, peak), (1_000, 1_000));
        assert!(std::panic::catch_unwind(|| bounded(100, || vec![1u8; 1_000_000].len())).is_err());
    }
}
