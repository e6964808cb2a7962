//! Routers of TCPGOSSIP and TUNNEL: whether they respond, and their members.

use std::time::Duration;

use anyhow::Context;
use consort_group::config::{HostPort, Property, ProtocolConfig};
use consort_router::RouterClientTls;
use consort_tls::{Identity, Roots};

use super::discovered::Discovered;
use super::findings::Findings;

const CHECKED: &str = "routers to ask (TCPGOSSIP, TUNNEL)";

/// The hosts' attribute of each protocol, and the variable that sets it.
const TCPGOSSIP: (&str, &str) = ("initial_hosts", "jgroups.tcpgossip.initial_hosts");
const TUNNEL: (&str, &str) = ("gossip_router_hosts", "jgroups.tunnel.gossip_router_hosts");

pub(super) async fn check(
    protocol: &ProtocolConfig,
    cluster: Option<&str>,
    time_limit: Duration,
    found: &mut Discovered,
    findings: &mut Findings,
) {
    let is_tunnel = protocol.short_name() == "TUNNEL";
    let (attribute, variable) = if is_tunnel { TUNNEL } else { TCPGOSSIP };
    let name_them =
        format!("start one (consort router), or name others: -D {variable}=HOST[12001],HOST[12001]");
    let text = protocol.get(attribute).unwrap_or("localhost[12001]");
    let tls = match client_tls(protocol) {
        Ok(tls) => tls,
        Err(error) => return findings.bad(CHECKED, error.to_string(), "correct the attributes tls.*"),
    };
    let routers = match <Vec<HostPort> as Property>::parse(text) {
        Ok(routers) if !routers.is_empty() => routers,
        Ok(_) => return findings.bad(CHECKED, "none", &*name_them),
        Err(error) => return findings.bad(CHECKED, error, &*name_them),
    };
    let of_cluster = cluster.map(|cluster| format!(" of cluster {cluster}")).unwrap_or_default();
    let mut is_reached = false;
    for router in routers {
        let place = router.to_string();
        let checked = format!("router {place}");
        let answer = match &tls {
            Some(tls) => consort_router::list_members_over_tls(&place, tls, time_limit).await,
            None => consort_router::list_members(&place, time_limit).await,
        };
        match answer {
            Ok(groups) => {
                is_reached = true;
                let members =
                    groups.into_iter().filter(|(name, _)| cluster.is_none_or(|cluster| name == cluster));
                let members: Vec<_> = members.flat_map(|(_, members)| members).collect();
                // Members with TUNNEL are reached through routers only.
                let places = members.iter().filter_map(|member| member.phys.filter(|_| !is_tunnel));
                found.hosts.extend(places.filter_map(|place| place.ip));
                found.has_responses |= !members.is_empty();
                let names = members.iter().map(|member| {
                    let name = member.name.as_deref().unwrap_or("?");
                    member.phys.map_or_else(|| name.to_owned(), |place| format!("{name} at {place}"))
                });
                let result = match members.len() {
                    0 => format!("it responds, and has no member{of_cluster}"),
                    _ => format!("registered members{of_cluster}: {}", names.collect::<Vec<_>>().join(", ")),
                };
                findings.good(checked, result);
            }
            Err(error) => findings.warning(
                checked,
                error.to_string(),
                match tls {
                    Some(_) => {
                        "compare tls.* of the stack with --tls-* of the router, start one there (consort router --host \
                         0.0.0.0), or let members through the firewall"
                    }
                    None => "start one there (consort router --host 0.0.0.0), or let members through the firewall",
                },
            ),
        }
    }
    found.hosts.sort();
    found.hosts.dedup();
    if !is_reached {
        findings.bad(CHECKED, format!("none of {text} can be asked"), &*name_them);
    }
}

fn client_tls(protocol: &ProtocolConfig) -> anyhow::Result<Option<RouterClientTls>> {
    if protocol.get("tls.enabled").is_none_or(|value| value.trim() != "true") {
        return Ok(None);
    }
    // As for the member, an empty value is none.
    let path = |name: &str| protocol.get(name).filter(|path| !path.trim().is_empty());
    let own = path("tls.keystore_path");
    let trusted = path("tls.truststore_path").or(own);
    let roots = Roots::from_file(trusted.context("tls.truststore_path is missing")?)?;
    let key = path("tls.key_path").or(own);
    let identity = own.zip(key).map(|(own, key)| Identity::from_files(own, key)).transpose()?;
    let server_name = path("tls.server_name").map(str::to_owned);
    Ok(Some(RouterClientTls { roots, identity, server_name }))
}
