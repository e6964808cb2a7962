//! Requests to the API of Kubernetes and its answers, for KUBE_PING.

use std::net::IpAddr;
use std::time::Duration;

/// The pods to list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PodSelector {
    /// The pods with these labels, as a label selector of Kubernetes; all pods of the namespace if it is empty.
    Labels(String),
    /// The pods of the service with this name, by its EndpointSlices.
    Service(String),
}

/// A request for pods. It is repeated after failures that can pass.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KubernetesQuery {
    /// The API server: `https://10.96.0.1:443`.
    pub server: String,
    /// The namespace; `None`: the one that the file `namespace` beside the token names.
    pub namespace: Option<String>,
    /// The pods to list.
    pub selector: PodSelector,
    /// The file of the token, which is read for each request.
    pub token_file: String,
    /// The certificates with which the API server's own is verified (PEM).
    pub ca_file: String,
    /// Files of this client's certificate and of its key (PEM). They replace the token.
    pub client_identity: Option<(String, String)>,
    /// The time to connect.
    pub connect_timeout: Duration,
    /// The time for an answer.
    pub read_timeout: Duration,
    /// How often the request is sent at most.
    pub attempts: u32,
    /// The time between two attempts.
    pub pause: Duration,
    /// The time for all attempts together.
    pub time_limit: Duration,
    /// Whether requests and answers are logged.
    pub is_logged: bool,
}

/// A pod, or an endpoint of a service.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct PodInfo {
    /// The pod's name.
    pub name: String,
    /// Its addresses, of both families in a dual-stack cluster.
    pub ips: Vec<IpAddr>,
    /// Whether it has ended. Its address may be that of another pod.
    pub is_finished: bool,
    /// Whether it is being deleted. It can still be running and ready.
    pub is_deleting: bool,
    /// Whether it is ready.
    pub is_ready: bool,
    /// The label that distinguishes the pods of two versions of one workload during a rolling update.
    pub group: Option<String>,
}

/// The answer to a [`KubernetesQuery`].
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct PodList {
    /// The namespace of the request.
    pub namespace: String,
    /// The pods, in the order of the API.
    pub pods: Vec<PodInfo>,
}
