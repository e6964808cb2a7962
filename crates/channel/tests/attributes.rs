//! Tests of transports' attributes: each accepted one has a reader; stock stacks and defaults have the expected
//! values.

use std::collections::BTreeSet;

use consort_conf::{STOCK, TRANSPORT_ATTRIBUTES, Variables, load_stack, parse_stack};
use consort_group::config::ProtocolConfig;
use consort_group::protocols::{MpingConfig, registry};
use consort_net::{EdgeKind, TransportConfig};

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

fn transport(protocol: &ProtocolConfig) -> TransportConfig {
    TransportConfig::from_protocol(protocol).expect("a transport").unwrap()
}

/// The transport of a stock stack.
fn stock(name: &str, variables: &Variables) -> TransportConfig {
    transport(&load_stack(name, variables).unwrap().config.protocols[0])
}

#[test]
fn stock_stacks_answer_probe_by_multicast_and_those_of_tcp_over_tcp_too() {
    for (name, _) in STOCK {
        let transport = stock(name, &Variables::new());
        let diag = &transport.diag;
        let answers = (diag.enabled, diag.enable_udp, diag.enable_tcp);
        assert_eq!(answers, (true, true, transport.kind == EdgeKind::Tcp), "{name}");
        let off = Variables::new().with("jgroups.diag.enabled", "false");
        assert!(!stock(name, &off).diag.enabled, "{name}");
    }
    for own in ["<config><TCP/></config>", "<config><TCP_NIO2/></config>", "<config><UDP/></config>"] {
        let stack = parse_stack("own.xml", own, &Variables::new()).unwrap();
        assert!(!transport(&stack.config.protocols[0]).diag.enabled, "{own}");
    }
}

/// Firewalls have rules for these ports.
#[test]
fn ports_are_those_of_jgroups_stacks_by_default() {
    let tcp = stock("tcp.xml", &Variables::new());
    assert_eq!((tcp.bind_port, tcp.diag.port), (7800, 7500));
    let udp = stock("udp.xml", &Variables::new());
    assert_eq!((udp.bind_port, udp.mcast_port, udp.diag.port), (0, 45588, 7500));
    assert_eq!(MpingConfig::default().mcast_port, 7555);
}
