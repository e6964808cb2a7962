//! What configurations accept as a transport's attributes is what somebody reads.

use std::collections::BTreeSet;

use consort_conf::TRANSPORT_ATTRIBUTES;
use consort_group::protocols::registry;
use consort_net::TransportConfig;

#[test]
fn every_accepted_attribute_of_a_transport_has_a_reader() {
    let accepted: BTreeSet<&str> = TRANSPORT_ATTRIBUTES.iter().copied().collect();
    let read: BTreeSet<&str> = TransportConfig::attributes()
        .chain(registry::TRANSPORT_ATTRIBUTES.iter().copied())
        // The channel's own.
        .chain(["message_processing_policy"])
        .collect();
    assert_eq!(accepted, read);
}
