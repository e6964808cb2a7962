//! Lists of pods by the API of Kubernetes, for KUBE_PING.

mod error;
mod request;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::path::Path;

use consort_group::{KubernetesQuery, PodInfo, PodList, PodSelector};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio::time::{Instant, sleep, timeout_at};

pub use self::error::KubernetesError;
use self::request::Api;

/// Pods of a list. A discovery asks no more.
const PODS_MAX: usize = 2_000;

/// Objects of one answer. The API continues a longer list in another answer.
const PAGE_LEN: u32 = 250;

/// Answers of a list, so that a server that always has another one is left.
const PAGES_MAX: usize = 16;

/// Lists pods. Blocks for at most the query's time limit.
///
/// # Errors
///
/// Of the last attempt, with the remedy.
pub fn list_pods(query: &KubernetesQuery) -> Result<PodList, KubernetesError> {
    if query.is_logged {
        tracing::info!(server = query.server, namespace = query.namespace, selector = ?query.selector, "listing pods");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(KubernetesError::Runtime)?;
    // The client logs each failure as an error. Callers log failures by their own limits.
    let silent = tracing::Dispatch::none();
    let listed = tracing::dispatcher::with_default(&silent, || runtime.block_on(list_repeatedly(query)));
    if query.is_logged {
        match &listed {
            Ok(list) => tracing::info!(namespace = list.namespace, pods = ?list.pods, "listed pods"),
            Err(error) => tracing::info!(%error, "listed no pods"),
        }
    }
    listed
}

/// Repeats the request after failures that can pass.
async fn list_repeatedly(query: &KubernetesQuery) -> Result<PodList, KubernetesError> {
    let end = Instant::now() + query.time_limit;
    let mut failure = None;
    for attempt in 1..=query.attempts.max(1) {
        match timeout_at(end, list(query)).await {
            Ok(Err(error)) if error.can_pass() => failure = Some(error),
            Ok(listed) => return listed,
            Err(_) => break,
        }
        if attempt == query.attempts || Instant::now() + query.pause >= end {
            break;
        }
        sleep(query.pause).await;
    }
    Err(failure.unwrap_or_else(|| KubernetesError::TooSlow {
        server: query.server.clone(),
        time_limit: query.time_limit,
    }))
}

async fn list(query: &KubernetesQuery) -> Result<PodList, KubernetesError> {
    let namespace = namespace(query)?;
    let api = Api::new(query, &namespace)?;
    let mut pods = Vec::new();
    let mut continued = None;
    for _ in 0..PAGES_MAX {
        continued = match &query.selector {
            PodSelector::Labels(labels) => {
                let fields = "status.phase!=Succeeded,status.phase!=Failed";
                let page = api.list::<Pod>(labels, Some(fields), continued).await?;
                pods.extend(page.items.into_iter().map(pod));
                page.metadata.continue_
            }
            PodSelector::Service(service) => {
                let labels = format!("kubernetes.io/service-name={service}");
                let page = api.list::<EndpointSlice>(&labels, None, continued).await?;
                pods.extend(page.items.into_iter().flat_map(endpoints));
                page.metadata.continue_
            }
        };
        continued = continued.filter(|token| !token.is_empty());
        if continued.is_none() || pods.len() >= PODS_MAX {
            break;
        }
    }
    pods.truncate(PODS_MAX);
    Ok(PodList { namespace, pods })
}

/// Returns the query's namespace, or this pod's own, which the file beside the token names.
fn namespace(query: &KubernetesQuery) -> Result<String, KubernetesError> {
    if let Some(namespace) = &query.namespace {
        return Ok(namespace.clone());
    }
    let path = Path::new(&query.token_file).with_file_name("namespace");
    match std::fs::read_to_string(&path) {
        Ok(text) if !text.trim().is_empty() => Ok(text.trim().to_owned()),
        read => {
            let why = read.err().map_or_else(|| "it is empty".to_owned(), |error| error.to_string());
            Err(KubernetesError::NoNamespace { path: path.display().to_string(), why })
        }
    }
}

/// Labels by which jgroups-kubernetes distinguishes two versions of a workload.
const GROUP_LABELS: [&str; 3] = ["pod-template-hash", "deployment", "controller-revision-hash"];

fn pod(pod: Pod) -> PodInfo {
    let ObjectMeta { name, labels, deletion_timestamp, .. } = pod.metadata;
    let status = pod.status.unwrap_or_default();
    let texts =
        status.pod_ips.iter().flatten().map(|entry| entry.ip.as_str()).chain(status.pod_ip.as_deref());
    let mut ips: Vec<IpAddr> = texts.filter_map(|text| text.parse().ok()).collect();
    ips.dedup();
    let phase = status.phase.as_deref().unwrap_or_default();
    let mut containers = status.container_statuses.iter().flatten();
    let mut conditions = status.conditions.iter().flatten();
    PodInfo {
        name: name.unwrap_or_default(),
        ips,
        is_finished: matches!(phase, "Succeeded" | "Failed"),
        is_deleting: deletion_timestamp.is_some(),
        is_ready: phase == "Running"
            && status.message.is_none()
            && status.reason.is_none()
            && containers.all(|container| container.ready)
            && conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True"),
        group: labels.and_then(|mut labels| GROUP_LABELS.into_iter().find_map(|name| labels.remove(name))),
    }
}

/// A condition that is absent counts as true, but for the end of an endpoint.
fn endpoints(slice: EndpointSlice) -> impl Iterator<Item = PodInfo> {
    let slice_name = slice.metadata.name.unwrap_or_default();
    slice.endpoints.into_iter().map(move |endpoint| {
        let conditions = endpoint.conditions.unwrap_or_default();
        PodInfo {
            name: endpoint.target_ref.and_then(|pod| pod.name).unwrap_or_else(|| slice_name.clone()),
            // Names (the address type FQDN) are no addresses.
            ips: endpoint.addresses.iter().filter_map(|ip| ip.parse().ok()).collect(),
            is_finished: false,
            is_deleting: conditions.terminating.unwrap_or(false),
            is_ready: conditions.ready.unwrap_or(true),
            group: None,
        }
    })
}
