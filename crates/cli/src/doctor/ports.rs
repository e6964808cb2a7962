//! The ports of members that respond to probes: members need those of the transport and of FD_SOCK2, and firewalls drop them
//! without a word.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use consort_group::config::StackConfig;
use consort_group::protocols::{FdSock2Config, registry};
use consort_net::{EdgeKind, TransportConfig};

use super::findings::Findings;
use super::members::Member;
use super::reach::{Reach, reach};

/// Members whose ports are checked. Each has up to 5 ports.
const MEMBERS_MAX: usize = 100;

pub(super) async fn check(
    members: &[&Member],
    stack: &StackConfig,
    transport: &TransportConfig,
    time_limit: Duration,
    findings: &mut Findings,
) {
    let members = members.iter().take(MEMBERS_MAX);
    let members: Vec<(&Member, SocketAddr)> =
        members.filter_map(|member| Some((*member, member.address.parse().ok()?))).collect();
    let is_tcp = transport.kind == EdgeKind::Tcp;
    let monitoring = stack.protocols.iter().find(|protocol| protocol.short_name() == "FD_SOCK2");
    // With an address of its own FD_SOCK2 listens elsewhere, and a probe does not show where.
    let own_address = stack.protocols.first().and_then(|transport| transport.get("bind_addr"));
    let monitoring = monitoring.filter(|protocol| {
        let has_own = protocol.get("bind_addr").is_some_and(|bind| Some(bind) != own_address);
        !has_own && protocol.get("external_addr").is_none() && protocol.get("external_port").is_none()
    });
    let monitoring = monitoring.and_then(|protocol| registry::properties::<FdSock2Config>(protocol).ok());
    let ports_of = |address: SocketAddr| -> Vec<SocketAddr> {
        let ports = monitoring.as_ref().map(|config| config.ports_beside(address.port())).unwrap_or_default();
        ports.into_iter().map(|port| SocketAddr::new(address.ip(), port)).collect()
    };
    let mut addresses: BTreeSet<SocketAddr> = BTreeSet::new();
    for (_, address) in &members {
        addresses.extend(is_tcp.then_some(*address));
        addresses.extend(ports_of(*address));
    }
    let reached = reach(addresses, time_limit).await;
    for (member, address) in &members {
        if is_tcp {
            transport_port(&member.name, *address, reached.get(address).copied(), findings);
        }
        let candidates = ports_of(*address);
        if !candidates.is_empty() {
            let found: Vec<Reach> = candidates.iter().filter_map(|one| reached.get(one).copied()).collect();
            monitoring_ports(&member.name, &candidates, &found, findings);
        }
    }
}

fn transport_port(name: &str, address: SocketAddr, reach: Option<Reach>, findings: &mut Findings) {
    let checked = format!("port of {name}");
    match reach {
        Some(Reach::Listening) => findings.good(checked, format!("{address} accepts connections")),
        Some(Reach::Silent) => findings.bad(
            checked,
            format!("{name} responds to probe, and {address} does not: a firewall drops TCP port {}", address.port()),
            format!("let TCP port {} through between all members, in both directions", address.port()),
        ),
        Some(Reach::Refused) => findings.bad(
            checked,
            format!("{name} responds to probe, and {address} refuses connections"),
            "the member is ending, or it advertises an address that is not its own: look at its external_addr and bind_addr",
        ),
        Some(Reach::Unreachable) | None => findings.bad(
            checked,
            format!("this host has no way to {address}"),
            "look at the routes of both hosts, or bind the members to another network (--bind)",
        ),
    }
}

fn monitoring_ports(name: &str, candidates: &[SocketAddr], found: &[Reach], findings: &mut Findings) {
    let checked = format!("port of {name} for monitoring (FD_SOCK2)");
    let (Some(first), Some(last)) = (candidates.first(), candidates.last()) else { return };
    let ports = format!("{} to {}", first.port(), last.port());
    let listening = candidates.iter().zip(found).find(|(_, reach)| **reach == Reach::Listening);
    if let Some((address, _)) = listening {
        findings.good(checked, format!("{address} accepts connections"));
    } else if found.contains(&Reach::Silent) {
        findings.bad(
            checked,
            format!(
                "no answer from ports {ports} of {}: a firewall drops them, and members suspect {name}",
                first.ip()
            ),
            format!("let TCP ports {ports} through between all members, in both directions"),
        );
    } else {
        findings.bad(
            checked,
            format!(
                "ports {ports} of {} do not accept connections, and members with this stack suspect {name}",
                first.ip()
            ),
            "all members need FD_SOCK2 in their stacks, with the same offset, port_range and min_port",
        );
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use consort_conf::Variables;

    use super::super::findings::Verdict;
    use super::super::reach::tests::SilentPort;
    use super::*;

    const TIME_LIMIT: Duration = Duration::from_millis(300);

    async fn checked(address: SocketAddr, offset: u16) -> (usize, String) {
        let text =
            format!("<config><TCP/><FD_SOCK2 offset=\"{offset}\" port_range=\"0\" min_port=\"0\"/></config>");
        let own = consort_conf::parse_stack("own.xml", &text, &Variables::new()).expect("a stack").config;
        let transport = TransportConfig::from_protocol(&own.protocols[0]).expect("TCP").expect("valid");
        let mut findings = Findings::new(false);
        check(&[&Member::at(address)], &own, &transport, TIME_LIMIT, &mut findings).await;
        (findings.count(Verdict::Bad), findings.json().expect("JSON"))
    }

    #[tokio::test]
    async fn a_port_that_is_silent_beside_probe_is_a_firewall() {
        let silent = SilentPort::open();
        // With the offset 0, FD_SOCK2's port is that of the transport.
        let (bad, text) = checked(silent.address, 0).await;
        let port = silent.address.port();
        assert_eq!(bad, 2, "{text}");
        assert!(text.contains(&format!("a firewall drops TCP port {port}")), "{text}");
        assert!(text.contains(&format!("let TCP ports {port} to {port} through")), "{text}");
    }

    #[tokio::test]
    async fn members_that_accept_connections_are_well_and_those_that_refuse_are_not() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let (bad, text) = checked(address, 0).await;
        assert_eq!(bad, 0, "{text}");
        drop(listener);
        let (bad, text) = checked(address, 0).await;
        assert!(
            bad == 2 && text.contains("refuses connections") && text.contains("the same offset"),
            "{text}"
        );
    }
}
