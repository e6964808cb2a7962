//! A member's stack on this host.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::path::Path;
use std::time::Duration;

use consort_conf::{ConfigError, IgnoredAttribute, RenamedAttribute, Stack};
use consort_group::config::{HostPort, Property, ProtocolConfig, StackConfig};
use consort_group::protocols::Hosts;
use consort_group::{DnsRecord, Version};
use consort_net::{EdgeKind, Interface, TransportConfig, query_dns};
use tokio::net::lookup_host;
use tokio::time::timeout;

use super::discovered::{Asked, Discovered};
use super::findings::Findings;
use super::reach::{Reach, reach};
use super::{database, host, members, multicast, pods, ports, routers};
use crate::join::Join;

/// Without a cluster, members of all clusters count.
pub(super) async fn check(
    join: &Join,
    cluster: Option<&str>,
    time_limit: Duration,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    let checked = format!("stack {}", join.config);
    let variables = join.variables()?;
    let Stack { config: stack, ignored, renamed } = match consort_conf::load_stack(&join.config, &variables) {
        Ok(stack) => stack,
        Err(error) => {
            problems(checked, error, findings);
            return Ok(());
        }
    };
    let names: Vec<&str> = stack.protocols.iter().map(ProtocolConfig::short_name).collect();
    let transport = match stack.protocols.first().and_then(TransportConfig::from_protocol) {
        Some(Ok(transport)) => transport,
        Some(Err(error)) => {
            findings.bad(checked, error.to_string(), "correct the transport's attribute");
            return Ok(());
        }
        None => {
            findings.bad(
                checked,
                format!("its first protocol is no transport: {}", names.join(", ")),
                "begin it with TCP or UDP",
            );
            return Ok(());
        }
    };
    if let Err(error) = consort_conf::check_required_layers(&stack) {
        findings.bad(checked, error.to_string(), "add it at its place in the stock stacks");
        return Ok(());
    }
    findings.good(checked, names.join(", "));
    if let Some(unused) = IgnoredAttribute::line(&ignored, &stack) {
        findings.good("attributes of JGroups' without use here", unused);
    }
    if let Some(renamed) = RenamedAttribute::line(&renamed, &stack) {
        findings.good("attributes under names of JGroups 4", renamed);
    }
    if transport.kind == EdgeKind::SharedLoopback {
        findings.good("transport", "within this process only: its members are all in one program");
        return Ok(());
    }
    let Some(interface) = bound(&transport, findings) else { return Ok(()) };
    port(&transport, interface.ip, findings);
    if transport.kind == EdgeKind::Udp {
        host::receive_buffers(transport.mcast_recv_buf_size.max(transport.ucast_recv_buf_size), findings);
    }
    let found = discover(&stack, &transport, &interface, (cluster, time_limit), findings).await;
    let members = members::query_members(found.hosts, time_limit).await;
    if let Some(cluster) = cluster {
        unnamed(&members, cluster, &found.asked, findings);
    }
    members::check_members(&members, cluster, own_version(), found.has_responses, findings);
    let ours = members.iter().filter(|member| cluster.is_none_or(|cluster| member.cluster == cluster));
    ports::check(&ours.collect::<Vec<_>>(), &stack, &transport, time_limit, findings).await;
    Ok(())
}

/// A line for each problem of a file. Errors name an alternative after a semicolon.
fn problems(checked: String, mut error: ConfigError, findings: &mut Findings) {
    let others = std::mem::take(&mut error.others);
    for problem in std::iter::once(error).chain(others) {
        let text = problem.to_string();
        match text.split_once("; ") {
            Some((fault, alternative)) => findings.bad(checked.clone(), fault, alternative),
            None => findings.bad(checked.clone(), &*text, remedy(&text)),
        }
    }
}

fn remedy(error: &str) -> &'static str {
    if error.contains("dns_query") {
        // A name with several addresses stands for all of them.
        "in Kubernetes name a headless service: dns_query=\"SERVICE.NAMESPACE.svc\", or use --config kubernetes.xml"
    } else {
        "correct the file at the named line"
    }
}

fn own_version() -> (u16, u16) {
    (Version::V5_5_7.major(), Version::V5_5_7.minor())
}

fn bound(transport: &TransportConfig, findings: &mut Findings) -> Option<Interface> {
    let checked = "address to bind to";
    let interface = match transport.bind_addr.choose_of_host(transport.ip_version) {
        Ok(interface) => interface,
        Err(error) => {
            findings.bad(
                checked,
                error.to_string(),
                "name an address of this host: --bind ADDRESS, or site_local, or match-interface:eth.*",
            );
            return None;
        }
    };
    let mtu = std::fs::read_to_string(format!("/sys/class/net/{}/mtu", interface.name)).unwrap_or_default();
    let mtu =
        if mtu.trim().is_empty() { String::new() } else { format!(", packets of {} bytes", mtu.trim()) };
    let found = format!("{} of {}{mtu}", interface.ip, interface.name);
    if interface.ip.is_loopback() {
        findings.warning(
            checked,
            found,
            "only members on this host reach it; for others: --bind site_local, or an address",
        );
    } else {
        findings.good(checked, found);
    }
    Some(interface)
}

fn port(transport: &TransportConfig, ip: IpAddr, findings: &mut Findings) {
    let checked = "port to bind to";
    let (first, last) = (transport.bind_port, transport.bind_port.saturating_add(transport.port_range));
    if first == 0 {
        return findings.good(checked, "any that is free");
    }
    let is_free = |port: &u16| match transport.kind {
        EdgeKind::Udp => UdpSocket::bind((ip, *port)).is_ok(),
        _ => TcpListener::bind((ip, *port)).is_ok(),
    };
    match (first..=last).find(is_free) {
        Some(port) if port == first => findings.good(checked, format!("{port} is free")),
        Some(port) => {
            findings.good(checked, format!("{first} is taken, by a member as a rule; {port} is free"));
        }
        None => findings.bad(
            checked,
            format!("all from {first} to {last} are taken"),
            "end the programs that use them, or use others: -D jgroups.bind_port=PORT, or a larger port_range",
        ),
    }
}

async fn discover(
    stack: &StackConfig,
    transport: &TransportConfig,
    interface: &Interface,
    (cluster, time_limit): (Option<&str>, Duration),
    findings: &mut Findings,
) -> Discovered {
    let mut found = Discovered::default();
    let mut ways = 0;
    for protocol in &stack.protocols {
        match protocol.short_name() {
            "TCPPING" => match asked_by_tcpping(protocol, transport) {
                Ok(asked) => hosts(&asked, interface, time_limit, &mut found, findings).await,
                Err(why) => {
                    findings.bad(TCPPING, why, "-D jgroups.tcpping.initial_hosts=HOST[7800],HOST[7800]");
                }
            },
            "DNS_PING" => {
                let asked = asked_by_dns(protocol, transport, findings).await;
                hosts(&asked, interface, time_limit, &mut found, findings).await;
            }
            "KUBE_PING" => {
                let asked = pods::asked(protocol, transport, interface.ip, time_limit, findings).await;
                if let Some(asked) = asked {
                    hosts(&asked, interface, time_limit, &mut found, findings).await;
                }
            }
            "TCPGOSSIP" => routers::check(protocol, cluster, time_limit, &mut found, findings).await,
            // PING's requests go through TUNNEL's routers.
            "TUNNEL" => routers::check(protocol, cluster, time_limit, &mut found, findings).await,
            "PING" if transport.kind == EdgeKind::Tunnel => continue,
            "PING" if transport.ip_mcast => {
                multicast::check(transport.mcast_addr, interface, time_limit, findings);
            }
            "MPING" => match protocol.get("mcast_addr").unwrap_or("230.5.6.7").parse() {
                Ok(group) => multicast::check(group, interface, time_limit, findings),
                Err(_) => findings.bad("MPING", "mcast_addr is no address", "correct it in the file"),
            },
            "FILE_PING" => directory(protocol.get("location").unwrap_or("/tmp/jgroups"), findings),
            "JDBC_PING2" => database::check(protocol, time_limit, findings).await,
            name if name.ends_with("_PING") || name.ends_with("PING") => {}
            _ => continue,
        }
        ways += 1;
    }
    if ways == 0 {
        findings.bad("discovery", "the stack has none", "add TCPPING or, where there is multicast, PING");
    }
    found
}

const TCPPING: &str = "hosts to ask (TCPPING)";

/// The hosts that TCPPING asks.
fn asked_by_tcpping(protocol: &ProtocolConfig, transport: &TransportConfig) -> Result<Asked, String> {
    let text = match protocol.get("initial_hosts_file").map(str::trim).filter(|path| !path.is_empty()) {
        Some(path) => std::fs::read_to_string(path).map_err(|error| format!("`{path}`: {error}"))?,
        None => protocol.get("initial_hosts").unwrap_or("localhost[7800]").to_owned(),
    };
    let named = Hosts::parse(&text, transport.bind_port)?;
    let text = named.show();
    if named.is_empty() {
        return Err("none".to_owned());
    }
    let range = protocol.get("port_range").and_then(|range| range.parse().ok()).unwrap_or(1);
    Ok(Asked {
        checked: TCPPING,
        text,
        named,
        range,
        is_list: true,
        remedy: "name hosts where members are: -D jgroups.tcpping.initial_hosts=HOST[7800],… (the first member finds no other)",
    })
}

/// The hosts that the names of DNS_PING resolve to.
async fn asked_by_dns(
    protocol: &ProtocolConfig,
    transport: &TransportConfig,
    findings: &mut Findings,
) -> Asked {
    let text = protocol.get("dns_query").unwrap_or_default().to_owned();
    let names = text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned);
    let record = protocol.get("dns_record_type").and_then(|kind| DnsRecord::parse(kind).ok());
    let record = record.unwrap_or(DnsRecord::A);
    let server = protocol.get("dns_address").map(str::trim).filter(|server| !server.is_empty());
    let (mut named, mut range) = (Vec::new(), transport.port_range);
    for host in names {
        if record != DnsRecord::Srv && server.is_none() {
            named.push(HostPort { host, port: transport.bind_port });
            continue;
        }
        let (name, server) = (host.clone(), server.map(str::to_owned));
        let asked = tokio::task::spawn_blocking(move || query_dns(&name, record, server.as_deref())).await;
        match asked {
            Ok(Ok(found)) => {
                for (ip, port) in found {
                    range = if port > 0 { 0 } else { range };
                    let port = if port > 0 { port } else { transport.bind_port };
                    named.push(HostPort { host: ip.to_string(), port });
                }
            }
            Ok(Err(error)) => findings.bad(
                format!("name {host}"),
                error.to_string(),
                "correct dns_query, dns_record_type or dns_address",
            ),
            Err(error) => findings.bad(format!("name {host}"), error.to_string(), "report it"),
        }
    }
    Asked {
        checked: "names to ask (DNS_PING)",
        named,
        range,
        is_list: false,
        remedy: "the first member finds no other; later ones need a name that stands for all members: -D jgroups.dns.dns_query=NAME",
        text,
    }
}

async fn hosts(
    asked: &Asked,
    interface: &Interface,
    time_limit: Duration,
    found: &mut Discovered,
    findings: &mut Findings,
) {
    let Asked { checked, text, named, range, is_list, remedy } = asked;
    let mut addresses = BTreeSet::new();
    for HostPort { host, port } in named {
        let resolved = timeout(time_limit, lookup_host((&**host, *port))).await;
        let mut ips: BTreeSet<IpAddr> = match resolved {
            Ok(Ok(all)) => all.map(|address| address.ip()).collect(),
            Ok(Err(error)) => {
                findings.bad(
                    format!("name {host}"),
                    format!("it has no address: {error}"),
                    "name the host in DNS or in /etc/hosts, or give its address",
                );
                continue;
            }
            Err(_) => {
                findings.bad(
                    format!("name {host}"),
                    format!("the name service does not respond within {time_limit:?}"),
                    "look at /etc/resolv.conf",
                );
                continue;
            }
        };
        if host == "localhost" {
            // It means our own address, too.
            ips.insert(interface.ip);
        }
        if ips.iter().all(|ip| ip.is_ipv4() != interface.ip.is_ipv4()) {
            findings.bad(
                format!("name {host}"),
                format!(
                    "{} and our address {} are not of one family, IPv4 or IPv6",
                    listed(&ips),
                    interface.ip
                ),
                "bind to an address of the same family (--bind), or name the host's other address",
            );
        }
        for ip in ips {
            for port in *port..=port.saturating_add(*range) {
                let address = SocketAddr::new(ip, port);
                found.asked.extend(is_list.then_some(address));
                addresses.insert(address);
            }
        }
    }
    let reached = reach(addresses, time_limit).await;
    let of = |wanted: fn(&Reach) -> bool| -> Vec<SocketAddr> {
        reached.iter().filter(|(_, reach)| wanted(reach)).map(|(address, _)| *address).collect()
    };
    let (there, silent) =
        (of(|reach| matches!(reach, Reach::Listening)), of(|reach| matches!(reach, Reach::Silent)));
    // A host behind a firewall may respond to probes.
    found.hosts.extend(there.iter().chain(&silent).map(SocketAddr::ip));
    found.hosts.dedup();
    found.has_responses |= !there.is_empty();
    if !there.is_empty() {
        findings.good(*checked, format!("a member listens at {}", addresses_of(&there)));
    } else if silent.is_empty() {
        let missing = format!("no member listens at any of {text}, nor at the {range} ports after each");
        findings.warning(*checked, missing, *remedy);
    }
    if !silent.is_empty() {
        findings.bad(
            *checked,
            format!(
                "{} neither accept nor refuse connections within {time_limit:?}: a firewall drops them, or the hosts are down",
                addresses_of(&silent)
            ),
            format!("let TCP to these ports through between all members, in both directions; or {remedy}"),
        );
    }
}

fn addresses_of(all: &[SocketAddr]) -> String {
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn listed(all: &BTreeSet<IpAddr>) -> String {
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn directory(location: &str, findings: &mut Findings) {
    let checked = "directory with addresses (FILE_PING)";
    match std::fs::metadata(Path::new(location)) {
        Ok(found) if !found.is_dir() => {
            findings.bad(checked, format!("{location} is no directory"), "name another location");
        }
        Ok(found) if found.permissions().readonly() => {
            findings.bad(
                checked,
                format!("{location} cannot be written to"),
                "all members write to it and read from it",
            );
        }
        Ok(_) => findings.good(checked, location),
        Err(error) => findings.warning(
            checked,
            format!("{location}: {error}"),
            "the first member makes it; all of them have to see the same one",
        ),
    }
}

fn unnamed(all: &[members::Member], cluster: &str, asked: &[SocketAddr], findings: &mut Findings) {
    if asked.is_empty() {
        return;
    }
    let is_asked = |address: &str| address.parse().is_ok_and(|address| asked.contains(&address));
    let ours = || all.iter().filter(|member| member.cluster == cluster);
    if ours().next().is_some() && !ours().any(|member| is_asked(&member.address)) {
        let places: Vec<String> = ours()
            .map(|member| match member.address.rsplit_once(':') {
                Some((host, port)) => format!("{}[{port}]", host.trim_matches(['[', ']'])),
                None => member.address.clone(),
            })
            .collect();
        findings.bad(
            TCPPING,
            format!("none of them is a member of cluster {cluster}; its members have other addresses"),
            format!("-D jgroups.tcpping.initial_hosts={}", places.join(",")),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings_of(text: &str) -> String {
        let mut findings = Findings::new(false);
        let error = consort_conf::parse_stack("own.xml", text, &consort_conf::Variables::new()).unwrap_err();
        problems("stack own.xml".to_owned(), error, &mut findings);
        findings.json().unwrap()
    }

    #[test]
    fn each_problem_of_a_file_has_a_line_with_its_alternative() {
        let found = findings_of("<config><TCP/><S3_PING/><MERGE3 max_intervall=\"1\"/></config>");
        let found: serde_json::Value = serde_json::from_str(&found).unwrap();
        let findings = found["findings"].as_array().unwrap();
        let advice: Vec<&str> = findings.iter().map(|one| one["advice"].as_str().unwrap()).collect();
        assert_eq!(advice.len(), 2, "{found}");
        assert!(advice[0].contains("use DNS_PING, TCPPING"), "{found}");
        assert!(advice[1].contains("did you mean `max_interval`?"), "{found}");
    }

    #[test]
    fn a_missing_dns_query_is_reported_with_the_name_of_a_service() {
        let found = findings_of("<config><TCP/><dns.DNS_PING/></config>");
        assert!(found.contains("headless service"), "{found}");
    }
}
