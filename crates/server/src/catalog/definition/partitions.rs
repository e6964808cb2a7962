//! The element `partition-handling`.

use consort_cache::{CacheConfig, CacheMode, MergePolicy, PartitionHandling};

use super::Result;
use super::tree::{Element, refused};
use super::values::one_of;

pub(super) const WHEN_SPLIT: &[(&str, PartitionHandling)] = &[
    ("DENY_READ_WRITES", PartitionHandling::DenyReadWrites),
    ("ALLOW_READS", PartitionHandling::AllowReads),
    ("ALLOW_READ_WRITES", PartitionHandling::AllowReadWrites),
];

/// The values of `merge-policy`, except `NONE`.
pub(super) const MERGE_POLICIES: &[(&str, MergePolicy)] = &[
    ("PREFERRED_ALWAYS", MergePolicy::PreferredAlways),
    ("PREFERRED_NON_NULL", MergePolicy::PreferredNonNull),
    ("REMOVE_ALL", MergePolicy::RemoveAll),
];

pub(super) fn read(element: &Element, config: &mut CacheConfig) -> Result<()> {
    element.check_children(&[])?;
    if config.mode == CacheMode::Local {
        return Err(refused("partition-handling of local-cache", "the cache is local to each server"));
    }
    let mut has_none = false;
    for (attribute, value) in &element.attributes {
        match &attribute[..] {
            "when-split" => config.partitions = one_of(element, attribute, value, WHEN_SPLIT)?,
            "merge-policy" if value == "NONE" => has_none = true,
            "merge-policy" => match one_of(element, attribute, value, MERGE_POLICIES) {
                Ok(_) if config.mode == CacheMode::Invalidation => {
                    let why = "a merge invalidates all entries";
                    return Err(element.refused(attribute, value, why));
                }
                Ok(policy) => config.merge = policy,
                Err(_) => {
                    let why = "Java classes cannot be run; use PREFERRED_ALWAYS, PREFERRED_NON_NULL or \
                               REMOVE_ALL";
                    return Err(element.refused(attribute, value, why));
                }
            },
            other => return Err(element.unknown(other)),
        }
    }
    // If only one partition stays available, there are no conflicts to resolve.
    if has_none && config.partitions == PartitionHandling::AllowReadWrites && config.mode.is_shared() {
        let why =
            "with ALLOW_READ_WRITES both partitions may write a key, and the owners have to agree on a value";
        return Err(element.refused("merge-policy", "NONE", why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::in_each_form;
    use super::*;

    fn policies(kind: &str, attributes: &str) -> Result<(PartitionHandling, MergePolicy)> {
        let definition = in_each_form(kind, "partition-handling", attributes)?;
        Ok((definition.config.partitions, definition.config.merge))
    }

    #[test]
    fn when_split_and_merge_policy_are_read() {
        let default = MergePolicy::default();
        let deny = Ok((PartitionHandling::DenyReadWrites, default.clone()));
        assert_eq!(policies("distributed", "when-split=DENY_READ_WRITES merge-policy=NONE"), deny);
        let reads = Ok((PartitionHandling::AllowReads, default.clone()));
        assert_eq!(policies("invalidation", "when-split=ALLOW_READS"), reads);
        assert_eq!(policies("replicated", "merge-policy=NONE"), reads, "reads are allowed by default");
        let writes = PartitionHandling::AllowReadWrites;
        assert_eq!(policies("distributed", "when-split=ALLOW_READ_WRITES"), Ok((writes, default.clone())));
        assert_eq!(
            policies("invalidation", "when-split=ALLOW_READ_WRITES merge-policy=NONE"),
            Ok((writes, default))
        );
        let removed = policies("replicated", "when-split=ALLOW_READ_WRITES merge-policy=REMOVE_ALL");
        assert_eq!(removed, Ok((writes, MergePolicy::RemoveAll)));
    }

    #[test]
    fn invalid_partition_handling_is_refused() {
        for (kind, attributes) in [
            ("distributed", "when-split=NEVER"),
            ("distributed", "merge-policy=org.acme.Mine"),
            ("distributed", "when-split=ALLOW_READ_WRITES merge-policy=NONE"),
            ("distributed", "mine=1"),
            ("invalidation", "merge-policy=REMOVE_ALL"),
            ("local", "when-split=ALLOW_READS"),
        ] {
            assert!(policies(kind, attributes).is_err(), "{kind} {attributes}");
        }
    }
}
