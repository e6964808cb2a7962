//! Alternatives to JGroups' protocols that Consort lacks.

/// They keep addresses in a cloud provider's store.
const CLOUD_DISCOVERIES: &[&str] = &[
    "AWS_PING",
    "AZURE_PING",
    "GOOGLE_PING",
    "GOOGLE_PING2",
    "MONGO_PING",
    "NATIVE_S3_PING",
    "RACKSPACE_PING",
    "S3_PING",
    "SWIFT_PING",
];

const ALTERNATIVES: &[(&[&str], &str)] = &[
    (&["JDBC_PING"], "use JDBC_PING2, which all members have to use, or FILE_PING, DNS_PING or TCPPING"),
    (&["BPING"], "use MPING or TCPPING"),
    (&["PDC"], "remove it: members keep addresses in memory only"),
    (&["FD_HOST"], "use FD_ALL3"),
    (&["SEQUENCER2"], "use SEQUENCER, which all members have to use"),
    (&["THREAD_COUNT", "SERIALIZE", "EXAMPLE"], "remove it"),
];

/// Continues an error's text.
pub(crate) fn alternative(protocol: &str) -> String {
    if CLOUD_DISCOVERIES.contains(&protocol) {
        return "; it finds members through a store of a cloud provider: use DNS_PING, TCPPING, or FILE_PING in a \
                directory that all members share"
            .to_owned();
    }
    let found = ALTERNATIVES.iter().find(|(names, _)| names.contains(&protocol));
    found.map(|(_, text)| format!("; {text}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use consort_group::protocols::registry;

    use super::*;

    #[test]
    fn protocols_with_an_alternative_are_not_part_of_consort() {
        let all = ALTERNATIVES.iter().flat_map(|(names, _)| *names).chain(CLOUD_DISCOVERIES);
        for name in all {
            assert!(!registry::names().contains(name), "{name}");
            assert!(alternative(name).starts_with("; "), "{name}");
        }
        assert_eq!(alternative("UNBATCH"), "");
    }
}
