//! Lists of pods by the API of Kubernetes, for KUBE_PING.

mod answer;
mod error;
mod request;
#[cfg(test)]
mod tests;

use std::path::Path;

use consort_group::{KubernetesQuery, PodList, PodSelector};
use tokio::time::{Instant, sleep, timeout_at};

use self::answer::{EndpointSlice, Listed, Pod};
pub use self::error::KubernetesError;
use self::request::Api;

/// Pods of a list. A discovery asks no more.
const PODS_MAX: usize = 2_000;

/// Objects of one answer. The API continues a longer list in another answer.
const PAGE_LEN: u32 = 250;

/// Answers of a list, so that a server that always has another one is left.
const PAGES_MAX: usize = 16;

/// Bytes of all answers of a discovery: 2,000 pods of up to 30 KiB.
const ANSWERS_BYTES_MAX: usize = 64 << 20;

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
    // A look-up of the server's name may still run. A plain drop would wait for it, beyond the time limit.
    runtime.shutdown_background();
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
    let (mut failure, mut room) = (None, ANSWERS_BYTES_MAX);
    for attempt in 1..=query.attempts.max(1) {
        match timeout_at(end, list(query, &mut room)).await {
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

/// Lists pods. `room`: bytes that answers may still have.
async fn list(query: &KubernetesQuery, room: &mut usize) -> Result<PodList, KubernetesError> {
    let namespace = namespace(query)?;
    let api = Api::new(query, &namespace)?;
    let mut pods = Vec::new();
    let mut continued = None;
    for _ in 0..PAGES_MAX {
        continued = match &query.selector {
            PodSelector::Labels(labels) => {
                let fields = "status.phase!=Succeeded,status.phase!=Failed";
                let page = api.list::<Pod>(labels, Some(fields), continued, room).await?;
                pods.extend(page.items.into_iter().flat_map(Listed::into_pods).take(PODS_MAX - pods.len()));
                page.metadata.continued
            }
            PodSelector::Service(service) => {
                let labels = format!("kubernetes.io/service-name={service}");
                let page = api.list::<EndpointSlice>(&labels, None, continued, room).await?;
                pods.extend(page.items.into_iter().flat_map(Listed::into_pods).take(PODS_MAX - pods.len()));
                page.metadata.continued
            }
        };
        continued = continued.filter(|token| !token.is_empty());
        if continued.is_none() || pods.len() == PODS_MAX {
            break;
        }
    }
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
