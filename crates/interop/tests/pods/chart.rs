//! The chart on nodes, under the strictest rules for pods: a rolling restart under load, a drained node, a killed server, and a node
//! that is cut off.

use std::process::Command;

use consort_interop::{Tool, built};
use serde_json::Value;

use super::{CLUSTER, Namespace, succeed};

const SET: &str = "statefulset/grid-consort";

const MEMBERS: &str = "app.kubernetes.io/instance=grid";

/// A release of the chart with three members.
struct Release {
    namespace: Namespace,
}

impl Release {
    fn install(namespace: &'static str, values: &[&str]) -> Self {
        let namespace = Namespace::with_all_nodes(namespace);
        let rule = "pod-security.kubernetes.io/enforce=restricted";
        succeed(CLUSTER.kubectl().args(["label", "namespace", namespace.name, rule]));
        let chart = CLUSTER.chart();
        let mut install = CLUSTER.helm();
        install.args(["install", "grid"]).arg(chart).arg(format!("--namespace={}", namespace.name));
        install.args([
            "--wait",
            "--timeout=3m",
            "--set=image.repository=localhost/consort,users.noAuth=true",
        ]);
        succeed(install.args(["--set=resources.requests.cpu=50m,preStopSeconds=1"]).args(values));
        Self { namespace }
    }

    /// Returns the address of a pod.
    fn address(&self, pod: &str) -> String {
        self.namespace.run(&["get", "pod", pod, "--output=jsonpath={.status.podIP}"])
    }

    /// Returns how many members a server counts, if it responds.
    fn members(&self, pod: &str) -> Option<u64> {
        let url = format!("/api/v1/namespaces/{}/pods/{pod}:11222/proxy/metrics", self.namespace.name);
        let metrics = self.namespace.kubectl(&["get", "--raw", &url]);
        let metrics = String::from_utf8_lossy(&metrics.stdout);
        let line = metrics.lines().find_map(|line| line.strip_prefix("consort_cluster_members "))?;
        line.parse::<f64>().ok().map(|members| members as u64)
    }

    fn until_members(&self, pod: &str, members: u64) {
        let what = format!("{members} members at {pod}");
        self.namespace.until(&what, || self.members(pod) == Some(members));
    }
}

/// 50 writers see no error while all servers are replaced one after the other.
#[test]
fn servers_are_restarted_drained_and_killed_under_restricted_pod_security() {
    let release = Release::install("chart", &[]);
    release.until_members("grid-consort-0", 3);
    let mut load = CLUSTER.command(built("consort"));
    let server = format!("{}:11222", release.address("grid-consort-0"));
    load.args([
        "perf",
        "--hotrod",
        &server,
        "--threads=50",
        "--reads=0.2",
        "--keys=1000",
        "--time=30",
        "--json",
    ]);
    let mut load = Tool::start(load);
    release.namespace.run(&["rollout", "restart", SET]);
    release.namespace.run(&["rollout", "status", SET, "--timeout=3m"]);
    let result = load.wait_for(&["{"]);
    load.wait_for_end();
    let result: Value = serde_json::from_str(&result).expect("JSON");
    assert_eq!((&result["errors"], &result["missing"]), (&Value::from(0), &Value::from(0)), "{result}");
    release.until_members("grid-consort-0", 3);
    drain(&release);
    kill(&release);
    cut_off(&release);
}

/// The server of a drained node hands over and leaves, and comes back with the node.
fn drain(release: &Release) {
    let path = "--output=jsonpath={.spec.nodeName}";
    let node = release.namespace.run(&["get", "pod", "grid-consort-2", path]);
    succeed(CLUSTER.kubectl().args([
        "drain",
        &node,
        "--ignore-daemonsets",
        "--delete-emptydir-data",
        "--force",
    ]));
    release.until_members("grid-consort-0", 2);
    succeed(CLUSTER.kubectl().args(["uncordon", &node]));
    release.until_members("grid-consort-0", 3);
}

/// Without a grace period the kubelet kills a server at once.
fn kill(release: &Release) {
    release.namespace.run(&["delete", "pod", "grid-consort-1", "--grace-period=0", "--force"]);
    release.namespace.until("the new pod", || release.namespace.running(MEMBERS).len() == 3);
    release.until_members("grid-consort-0", 3);
}

/// The members of other nodes exclude the one of a node without network, and merge with it afterwards.
fn cut_off(release: &Release) {
    let path = "--output=jsonpath={.spec.nodeName}";
    let node = release.namespace.run(&["get", "pod", "grid-consort-1", path]);
    let link = |state: &str| {
        let mut ip: Command = CLUSTER.command("ip");
        succeed(ip.args(["-n", &node, "link", "set", "eth0", state]));
    };
    link("down");
    release.until_members("grid-consort-0", 2);
    link("up");
    // Routes go with a link that is down.
    succeed(CLUSTER.command("ip").args(["-n", &node, "route", "replace", "default", "via", "10.0.0.1"]));
    release.until_members("grid-consort-0", 3);
}
