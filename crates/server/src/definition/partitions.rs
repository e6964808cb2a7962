//! `partition-handling`: what happens when servers are parted.

use consort_cache::{CacheConfig, CacheMode, MergePolicy, PartitionHandling};

use super::Result;
use super::tree::{Element, refused};
use super::values::one_of;

/// The values of `when-split`.
pub(super) const WHEN_SPLIT: &[(&str, PartitionHandling)] = &[
    ("DENY_READ_WRITES", PartitionHandling::DenyReadWrites),
    ("ALLOW_READS", PartitionHandling::AllowReads),
    ("ALLOW_READ_WRITES", PartitionHandling::AllowReadWrites),
];

/// The values of `merge-policy`, but for `NONE`.
pub(super) const MERGE_POLICIES: &[(&str, MergePolicy)] = &[
    ("PREFERRED_ALWAYS", MergePolicy::PreferredAlways),
    ("PREFERRED_NON_NULL", MergePolicy::PreferredNonNull),
    ("REMOVE_ALL", MergePolicy::RemoveAll),
];

/// Reads the element.
pub(super) fn read(element: &Element, config: &mut CacheConfig) -> Result<()> {
    element.check_children(&[])?;
    if config.mode == CacheMode::Local {
        return Err(refused("partition-handling of local-cache", "it is on one server only"));
    }
    let mut has_none = false;
    for (attribute, value) in &element.attributes {
        match &attribute[..] {
            "when-split" => config.partitions = one_of(element, attribute, value, WHEN_SPLIT)?,
            "merge-policy" if value == "NONE" => has_none = true,
            "merge-policy" => match one_of(element, attribute, value, MERGE_POLICIES) {
                Ok(_) if config.mode == CacheMode::Invalidation => {
                    let why = "after a merge nobody has anything of before it";
                    return Err(element.refused(attribute, value, why));
                }
                Ok(policy) => config.merge = policy,
                Err(_) => {
                    let why = "classes of Java cannot be run; there are PREFERRED_ALWAYS, PREFERRED_NON_NULL and \
                               REMOVE_ALL";
                    return Err(element.refused(attribute, value, why));
                }
            },
            other => return Err(element.unknown(other)),
        }
    }
    // Where only one side goes on, there is nothing to decide.
    if has_none && config.partitions == PartitionHandling::AllowReadWrites && config.mode.is_shared() {
        let why = "with ALLOW_READ_WRITES both sides may have written a key, and its owners have to agree upon a value";
        return Err(element.refused("merge-policy", "NONE", why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::in_each_form;
    use super::*;

    fn of(kind: &str, attributes: &str) -> Result<(PartitionHandling, MergePolicy)> {
        let definition = in_each_form(kind, "partition-handling", attributes)?;
        Ok((definition.config.partitions, definition.config.merge))
    }

    #[test]
    fn what_happens_to_parted_servers_is_read() {
        let default = MergePolicy::default();
        let deny = Ok((PartitionHandling::DenyReadWrites, default.clone()));
        assert_eq!(of("distributed", "when-split=DENY_READ_WRITES merge-policy=NONE"), deny);
        let reads = Ok((PartitionHandling::AllowReads, default.clone()));
        assert_eq!(of("invalidation", "when-split=ALLOW_READS"), reads);
        assert_eq!(of("replicated", "merge-policy=NONE"), reads, "reads are allowed unless it is said");
        let writes = PartitionHandling::AllowReadWrites;
        assert_eq!(of("distributed", "when-split=ALLOW_READ_WRITES"), Ok((writes, default.clone())));
        assert_eq!(
            of("invalidation", "when-split=ALLOW_READ_WRITES merge-policy=NONE"),
            Ok((writes, default))
        );
        let removed = of("replicated", "when-split=ALLOW_READ_WRITES merge-policy=REMOVE_ALL");
        assert_eq!(removed, Ok((writes, MergePolicy::RemoveAll)));
    }

    #[test]
    fn what_cannot_happen_to_them_is_refused() {
        for (kind, attributes) in [
            ("distributed", "when-split=NEVER"),
            ("distributed", "merge-policy=org.acme.Mine"),
            ("distributed", "when-split=ALLOW_READ_WRITES merge-policy=NONE"),
            ("distributed", "mine=1"),
            ("invalidation", "merge-policy=REMOVE_ALL"),
            ("local", "when-split=ALLOW_READS"),
        ] {
            assert!(of(kind, attributes).is_err(), "{kind} {attributes}");
        }
    }
}
