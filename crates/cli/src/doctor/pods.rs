//! The members that KUBE_PING asks.

use std::net::IpAddr;
use std::time::Duration;

use consort_group::config::{HostPort, ProtocolConfig};
use consort_group::protocols::{KubePingConfig, registry};
use consort_net::{TransportConfig, list_pods};

use super::discovered::Asked;
use super::findings::Findings;

const CHECKED: &str = "pods (KUBE_PING)";

/// The hosts that KUBE_PING asks: the addresses of its names, or else of the pods that the API lists.
pub(super) async fn asked(
    protocol: &ProtocolConfig,
    transport: &TransportConfig,
    own: IpAddr,
    time_limit: Duration,
    findings: &mut Findings,
) -> Option<Asked> {
    let config: KubePingConfig = match registry::properties(protocol) {
        Ok(config) => config,
        Err(error) => {
            findings.bad(CHECKED, error.to_string(), "correct the attribute");
            return None;
        }
    };
    if let Some((name, why)) = config.missing() {
        findings.bad(
            CHECKED,
            format!("{name}: {why}"),
            "-D jgroups.dns.dns_query=NAME of a headless service",
        );
        return None;
    }
    let mut hosts = Vec::new();
    for name in config.dns_names() {
        let found =
            tokio::time::timeout(time_limit, tokio::net::lookup_host((name, transport.bind_port))).await;
        if let Ok(Ok(all)) = found {
            hosts.extend(all.map(|address| address.ip().to_string()));
        }
    }
    if hosts.is_empty() {
        hosts = listed(&config, own, time_limit, findings).await?;
    }
    let text = hosts.join(", ");
    let named = hosts.into_iter().map(|host| HostPort { host, port: transport.bind_port }).collect();
    Some(Asked {
        checked: "members to ask (KUBE_PING)",
        text,
        named,
        range: config.port_range,
        is_list: false,
        remedy: "the first member finds no other; later ones need names, labels or a service that all members have",
    })
}

async fn listed(
    config: &KubePingConfig,
    own: IpAddr,
    time_limit: Duration,
    findings: &mut Findings,
) -> Option<Vec<String>> {
    let query = config.query(time_limit);
    let listed = tokio::task::spawn_blocking(move || list_pods(&query)).await;
    let list = match listed {
        Ok(Ok(list)) => list,
        Ok(Err(error)) => {
            findings.bad(CHECKED, error.to_string(), "docs/kubernetes.md has the Role and all attributes");
            return None;
        }
        Err(error) => {
            findings.bad(CHECKED, error.to_string(), "report it");
            return None;
        }
    };
    let asked = config.select(&list, Some(own));
    let found = format!("{} listed in namespace {}, {} to ask", list.pods.len(), list.namespace, asked.len());
    if asked.is_empty() {
        findings.bad(
            CHECKED,
            found,
            "correct namespace, labels or service: they have to select the members' own pods",
        );
        return None;
    }
    findings.good(CHECKED, found);
    Some(asked.iter().map(ToString::to_string).collect())
}
