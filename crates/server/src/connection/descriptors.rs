use crate::limits::{CONNECTIONS_MAX, DESCRIPTORS_RESERVED};

/// The configured limit, or less: a part of the descriptors stays for files and members, at most a quarter of a small
/// limit.
pub(crate) fn connections_max() -> usize {
    match limit() {
        Some(limit) => connections_within(limit),
        None => CONNECTIONS_MAX,
    }
}

fn connections_within(limit: u64) -> usize {
    let reserved = DESCRIPTORS_RESERVED.min(limit / 4);
    usize::try_from(limit - reserved).unwrap_or(usize::MAX).min(CONNECTIONS_MAX)
}

fn limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_left_for_files_and_members_at_any_limit() {
        for (limit, connections) in
            [(256, 192), (1_024, 768), (4_096, 3_072), (16_384, 16_384 - 1_024), (1_000_000, CONNECTIONS_MAX)]
        {
            assert_eq!(connections_within(limit), connections, "of {limit}");
        }
    }
}
