//! Lists of the API. Only the fields that members need are kept, and of inner lists only a bounded number of elements, so
//! that an answer of many small objects takes no more memory than one of large ones.

use std::fmt;
use std::marker::PhantomData;
use std::net::IpAddr;

use consort_group::PodInfo;
use serde::de::{DeserializeOwned, Error, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::PAGE_LEN;

/// Addresses of a pod or endpoint. A pod has one of each family.
const IPS_MAX: usize = 16;

/// Endpoints of a slice, as Kubernetes limits them.
const ENDPOINTS_MAX: usize = 1_000;

/// Bytes of the name of an object, as Kubernetes limits them.
const NAME_BYTES_MAX: usize = 253;

/// Objects that are listed to find pods.
pub(super) trait Listed: DeserializeOwned {
    /// The object's type, which has the path of its lists.
    type Object: kube::Resource<DynamicType = ()>;
    /// The kind of its lists.
    const LIST_KIND: &'static str;

    fn into_pods(self) -> impl Iterator<Item = PodInfo>;
}

#[derive(Deserialize)]
#[serde(bound = "T: Deserialize<'de>")]
pub(super) struct ObjectList<T> {
    pub(super) kind: String,
    #[serde(default)]
    pub(super) metadata: ListMetadata,
    #[serde(default = "Vec::new", deserialize_with = "page")]
    pub(super) items: Vec<T>,
}

#[derive(Default, Deserialize)]
pub(super) struct ListMetadata {
    #[serde(rename = "continue")]
    pub(super) continued: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    labels: Option<GroupLabels>,
    deletion_timestamp: Option<IgnoredAny>,
}

/// Labels by which jgroups-kubernetes distinguishes two versions of a workload.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct GroupLabels {
    pod_template_hash: Option<String>,
    deployment: Option<String>,
    controller_revision_hash: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct Pod {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    status: PodStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodStatus {
    phase: Option<String>,
    message: Option<IgnoredAny>,
    reason: Option<IgnoredAny>,
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    #[serde(rename = "podIPs", deserialize_with = "pod_ips")]
    pod_ips: Vec<IpAddr>,
    #[serde(rename = "containerStatuses", deserialize_with = "has_unready_container")]
    has_unready_container: bool,
    #[serde(rename = "conditions", deserialize_with = "has_ready_condition")]
    has_ready_condition: bool,
}

impl Listed for Pod {
    type Object = k8s_openapi::api::core::v1::Pod;
    const LIST_KIND: &'static str = "PodList";

    fn into_pods(self) -> impl Iterator<Item = PodInfo> {
        let Self { metadata, status } = self;
        let mut ips = status.pod_ips;
        ips.extend(status.pod_ip.and_then(|ip| ip.parse::<IpAddr>().ok()));
        ips.dedup();
        let phase = status.phase.as_deref().unwrap_or_default();
        let group = metadata.labels.and_then(|labels| {
            labels.pod_template_hash.or(labels.deployment).or(labels.controller_revision_hash)
        });
        std::iter::once(PodInfo {
            name: name(metadata.name),
            ips,
            is_finished: matches!(phase, "Succeeded" | "Failed"),
            is_deleting: metadata.deletion_timestamp.is_some(),
            is_ready: phase == "Running"
                && status.message.is_none()
                && status.reason.is_none()
                && !status.has_unready_container
                && status.has_ready_condition,
            group: group.map(|group| name(Some(group))),
        })
    }
}

#[derive(Deserialize)]
pub(super) struct EndpointSlice {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default, deserialize_with = "endpoints")]
    endpoints: Vec<Endpoint>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Endpoint {
    #[serde(default, deserialize_with = "addresses")]
    addresses: Vec<IpAddr>,
    #[serde(default)]
    conditions: Option<EndpointConditions>,
    #[serde(default)]
    target_ref: Option<Metadata>,
}

#[derive(Default, Deserialize)]
struct EndpointConditions {
    ready: Option<bool>,
    terminating: Option<bool>,
}

/// A condition that is absent counts as true, but for the end of an endpoint.
impl Listed for EndpointSlice {
    type Object = k8s_openapi::api::discovery::v1::EndpointSlice;
    const LIST_KIND: &'static str = "EndpointSliceList";

    fn into_pods(self) -> impl Iterator<Item = PodInfo> {
        let slice_name = name(self.metadata.name);
        self.endpoints.into_iter().map(move |endpoint| {
            let conditions = endpoint.conditions.unwrap_or_default();
            let pod_name = endpoint.target_ref.and_then(|pod| pod.name);
            PodInfo {
                name: pod_name.map_or_else(|| slice_name.clone(), |pod_name| name(Some(pod_name))),
                ips: endpoint.addresses,
                is_finished: false,
                is_deleting: conditions.terminating.unwrap_or(false),
                is_ready: conditions.ready.unwrap_or(true),
                group: None,
            }
        })
    }
}

fn name(name: Option<String>) -> String {
    let mut name = name.unwrap_or_default();
    name.truncate(name.floor_char_boundary(NAME_BYTES_MAX));
    name
}

/// Reads a list and keeps the result of `step` only. `null` is an empty list.
struct Fold<T, A, F> {
    start: A,
    step: F,
    element: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>, A, F: FnMut(&mut A, T) -> Result<(), String>> Visitor<'de> for Fold<T, A, F> {
    type Value = A;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_unit<E: Error>(self) -> Result<A, E> {
        Ok(self.start)
    }

    fn visit_seq<S: SeqAccess<'de>>(mut self, mut list: S) -> Result<A, S::Error> {
        while let Some(element) = list.next_element()? {
            (self.step)(&mut self.start, element).map_err(S::Error::custom)?;
        }
        Ok(self.start)
    }
}

fn fold<'de, T: Deserialize<'de>, A, D: Deserializer<'de>>(
    list: D,
    start: A,
    step: impl FnMut(&mut A, T) -> Result<(), String>,
) -> Result<A, D::Error> {
    list.deserialize_any(Fold { start, step, element: PhantomData })
}

/// A list with more objects than were asked for is an error, because the continued list would lack some of them.
fn page<'de, T: Deserialize<'de>, D: Deserializer<'de>>(list: D) -> Result<Vec<T>, D::Error> {
    fold(list, Vec::new(), |items, item| {
        if items.len() == PAGE_LEN as usize {
            return Err(format!("it has more than the {PAGE_LEN} items that were asked for"));
        }
        items.push(item);
        Ok(())
    })
}

#[derive(Deserialize)]
struct PodIp {
    #[serde(default)]
    ip: String,
}

fn pod_ips<'de, D: Deserializer<'de>>(list: D) -> Result<Vec<IpAddr>, D::Error> {
    fold(list, Vec::new(), |ips, PodIp { ip }| {
        keep(ips, &ip);
        Ok(())
    })
}

/// Names (the address type FQDN) are no addresses.
fn addresses<'de, D: Deserializer<'de>>(list: D) -> Result<Vec<IpAddr>, D::Error> {
    fold(list, Vec::new(), |ips, ip: String| {
        keep(ips, &ip);
        Ok(())
    })
}

fn keep(ips: &mut Vec<IpAddr>, ip: &str) {
    if ips.len() < IPS_MAX {
        ips.extend(ip.parse::<IpAddr>());
    }
}

#[derive(Deserialize)]
struct ContainerStatus {
    #[serde(default)]
    ready: bool,
}

fn has_unready_container<'de, D: Deserializer<'de>>(list: D) -> Result<bool, D::Error> {
    fold(list, false, |is_found, container: ContainerStatus| {
        *is_found |= !container.ready;
        Ok(())
    })
}

#[derive(Deserialize)]
struct Condition {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    status: String,
}

fn has_ready_condition<'de, D: Deserializer<'de>>(list: D) -> Result<bool, D::Error> {
    fold(list, false, |is_found, Condition { kind, status }| {
        *is_found |= kind == "Ready" && status == "True";
        Ok(())
    })
}

fn endpoints<'de, D: Deserializer<'de>>(list: D) -> Result<Vec<Endpoint>, D::Error> {
    fold(list, Vec::new(), |endpoints, endpoint| {
        if endpoints.len() < ENDPOINTS_MAX {
            endpoints.push(endpoint);
        }
        Ok(())
    })
}
