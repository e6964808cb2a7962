//! Releases of the chart under the strictest rules for pods.

use super::{CLUSTER, Namespace, succeed};

/// The StatefulSet of the release.
pub(crate) const SET: &str = "statefulset/grid-consort";

/// The label of its members.
pub(crate) const MEMBERS: &str = "app.kubernetes.io/instance=grid,app.kubernetes.io/name=consort";

/// A release of the chart with the name `grid`.
pub(crate) struct Release {
    pub(crate) namespace: Namespace,
    scheme: &'static str,
}

impl Release {
    /// Installs the chart with settings (`--set`), and waits until all pods are ready.
    pub(crate) fn install(namespace: Namespace, settings: &str) -> Self {
        let rule = "pod-security.kubernetes.io/enforce=restricted";
        succeed(CLUSTER.kubectl().args(["label", "namespace", namespace.name, rule]));
        let mut install = CLUSTER.helm();
        install.args(["install", "grid"]).arg(CLUSTER.chart());
        install.arg(format!("--namespace={}", namespace.name)).args(["--wait", "--timeout=3m"]);
        let small =
            "image.repository=localhost/consort,resources.requests.cpu=50m,resources.requests.memory=64Mi";
        succeed(install.args(["--set", small, "--set", settings]));
        let scheme = if settings.contains("tls.secretName=grid-tls") { "https:" } else { "" };
        Self { namespace, scheme }
    }

    /// Runs `helm test`, and returns the log of its pod.
    pub(crate) fn test(&self) -> String {
        let mut test = CLUSTER.helm();
        test.args(["test", "grid", "--logs", "--timeout=1m"]);
        succeed(test.arg(format!("--namespace={}", self.namespace.name)))
    }

    /// Returns the address of a pod.
    pub(crate) fn address(&self, pod: &str) -> String {
        self.namespace.run(&["get", "pod", pod, "--output=jsonpath={.status.podIP}"])
    }

    /// Returns the node of a pod.
    pub(crate) fn node(&self, pod: &str) -> String {
        self.namespace.run(&["get", "pod", pod, "--output=jsonpath={.spec.nodeName}"])
    }

    /// Returns how many members a server counts, if it responds.
    pub(crate) fn members(&self, pod: &str) -> Option<u64> {
        self.metric(pod, "consort_cluster_members ")
    }

    /// Returns the number of a server's view, if it responds.
    pub(crate) fn view(&self, pod: &str) -> Option<u64> {
        self.metric(pod, "consort_cluster_view ")
    }

    fn metric(&self, pod: &str, name: &str) -> Option<u64> {
        let (scheme, namespace) = (self.scheme, self.namespace.name);
        let url = format!("/api/v1/namespaces/{namespace}/pods/{scheme}{pod}:11222/proxy/metrics");
        let metrics = self.namespace.kubectl(&["get", "--raw", &url]);
        let metrics = String::from_utf8_lossy(&metrics.stdout);
        let value = metrics.lines().find_map(|line| line.strip_prefix(name))?;
        value.parse::<f64>().ok().map(|value| value as u64)
    }

    pub(crate) fn until_members(&self, pod: &str, members: u64) {
        let what = format!("{members} members at {pod}");
        self.namespace.until(&what, || self.members(pod) == Some(members));
    }
}
