//! Routers of TCPGOSSIP: whether they respond, and their members.

use std::time::Duration;

use consort_group::config::{HostPort, Property, ProtocolConfig};

use super::discovered::Discovered;
use super::findings::Findings;

const CHECKED: &str = "routers to ask (TCPGOSSIP)";

pub(super) async fn check(
    protocol: &ProtocolConfig,
    cluster: Option<&str>,
    time_limit: Duration,
    found: &mut Discovered,
    findings: &mut Findings,
) {
    let text = protocol.get("initial_hosts").unwrap_or("localhost[12001]");
    let routers = match <Vec<HostPort> as Property>::parse(text) {
        Ok(routers) if !routers.is_empty() => routers,
        Ok(_) => return findings.bad(CHECKED, "none", NAME_THEM),
        Err(error) => return findings.bad(CHECKED, error, NAME_THEM),
    };
    let of_cluster = cluster.map(|cluster| format!(" of cluster {cluster}")).unwrap_or_default();
    let mut is_reached = false;
    for router in routers {
        let place = router.to_string();
        let checked = format!("router {place}");
        match consort_router::list_members(&place, time_limit).await {
            Ok(groups) => {
                is_reached = true;
                let members =
                    groups.into_iter().filter(|(name, _)| cluster.is_none_or(|cluster| name == cluster));
                let members: Vec<_> = members.flat_map(|(_, members)| members).collect();
                let places = members.iter().filter_map(|member| member.phys);
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
                "start one there (consort router --host 0.0.0.0), or let members through the firewall",
            ),
        }
    }
    found.hosts.sort();
    found.hosts.dedup();
    if !is_reached {
        findings.bad(CHECKED, format!("none of {text} can be asked"), NAME_THEM);
    }
}

const NAME_THEM: &str =
    "start one (consort router), or name others: -D jgroups.tcpgossip.initial_hosts=HOST[12001],HOST[12001]";
