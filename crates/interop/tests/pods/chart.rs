//! The chart on nodes, under the strictest rules for pods: a rolling restart under load, a drained node, a killed server, a node that is
//! cut off, and a stop of the cluster.

use std::process::Command;

use consort_interop::{Tool, built};
use serde_json::Value;

use super::release::{MEMBERS, Release, SET};
use super::{CLUSTER, Namespace, succeed};

/// 50 writers outside of the cluster see no error while all servers are replaced one after the other.
#[test]
fn servers_are_restarted_drained_and_killed_under_restricted_pod_security() {
    let namespace = Namespace::with_all_nodes("chart");
    let release = Release::install(
        namespace,
        "users.noAuth=true,preStopSeconds=1,external.type=NodePort,external.nodePort=30123",
    );
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
    clients_outside(&release);
    drain(&release);
    kill(&release);
    cut_off(&release);
    stop(&release);
}

/// Clients outside are sent to a port of each node, which leads to the member of that node.
fn clients_outside(release: &Release) {
    let server = format!("{}:11222", release.address("grid-consort-0"));
    let mut doctor = CLUSTER.command(built("consort"));
    let found = succeed(doctor.args(["doctor", &server, "--servers=3"]));
    for node in 1..=3 {
        let line = format!("ok      server 10.0.0.1{node}:30123 that clients are sent to: connected");
        assert!(found.contains(&line), "{found}");
    }
}

/// The server of a drained node hands over and leaves, and comes back with the node.
fn drain(release: &Release) {
    let node = release.node("grid-consort-2");
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
    let node = release.node("grid-consort-1");
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

/// Kubernetes does not start the stopped servers again: they wait for the end of their pods.
fn stop(release: &Release) {
    let pods =
        |output: &str| release.namespace.run(&["get", "pods", &format!("--selector={MEMBERS}"), output]);
    let restarts = "--output=jsonpath={.items[*].status.containerStatuses[0].restartCount}";
    let before = pods(restarts);
    let stopped = release.namespace.run(&["exec", "grid-consort-0", "--", "consort", "cluster", "stop"]);
    assert!(stopped.contains("3 members") && stopped.contains("all servers stop"), "{stopped}");
    let ready = "--output=jsonpath={.items[*].status.containerStatuses[0].ready}";
    release.namespace.until("pods that are not ready", || pods(ready).trim() == "false false false");
    let state = "--output=jsonpath={.items[*].status.containerStatuses[0].state.running}";
    assert_eq!(pods(state).matches("startedAt").count(), 3, "they run");
    assert_eq!(pods(restarts), before);
    release.namespace.run(&["scale", SET, "--replicas=0"]);
    release.namespace.until("no pods", || pods("--output=name").trim().is_empty());
    release.namespace.run(&["scale", SET, "--replicas=3"]);
    release.until_members("grid-consort-0", 3);
}
