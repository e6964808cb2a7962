//! Unmodified clients that write continuously while a server is killed and another one is added: acknowledged writes are
//! read, and clients that follow the topology know the current servers.

use std::process::Command;

use consort_testbed::HotRodRelease;

use super::{Running, RunningProgram, node, releases};

/// Returns the output of a client's program while it writes.
fn of(servers: usize, follows: bool) -> String {
    if follows { format!("written {servers}") } else { "written".to_owned() }
}

/// A client writes to three servers' cluster, whose second one is killed; then there is a fourth. `program` has the servers
/// as its argument.
async fn lose_and_add_a_server(cluster: &str, follows: bool, program: impl FnOnce(&str) -> Command) {
    let [a, b, c] = Running::three(cluster).await;
    // A client that does not follow the topology has to know other servers than the killed one.
    let known = if follows { b.at.clone() } else { [&*a.at, &b.at, &c.at].join(";") };
    let mut writing = RunningProgram::begin(program(&known));
    writing.wait_for(&of(3, follows)).await;
    b.kill().await;
    a.sees(2).await;
    writing.wait_for(&of(2, follows)).await;
    writing.wait_for(&of(2, follows)).await;
    let d = Running::start(cluster, "D").await;
    writing.wait_for(&of(3, follows)).await;
    d.owners.are(3).await;
    writing.wait_for(&of(3, follows)).await;
    writing.end().await;
    for server in [a, c, d] {
        server.end().await;
    }
}

async fn java(release: HotRodRelease, cluster: &str, intelligence: &str) {
    let client = releases::prepared(release).await;
    let follows = intelligence != "BASIC";
    lose_and_add_a_server(cluster, follows, |servers| {
        let mut command = client.command("Writes");
        command.args([servers, intelligence, "PROTOCOL_VERSION_AUTO"]);
        command
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_16_0_loses_nothing_that_was_acknowledged() {
    java(HotRodRelease::V16_0, "hotrod-writes-16-0", "HASH_DISTRIBUTION_AWARE").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_loses_nothing_that_was_acknowledged_also_if_it_does_not_follow() {
    java(HotRodRelease::V16_0, "hotrod-writes-basic", "BASIC").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_15_2_loses_nothing_that_was_acknowledged() {
    java(HotRodRelease::V15_2, "hotrod-writes-15-2", "HASH_DISTRIBUTION_AWARE").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_16_2_loses_nothing_that_was_acknowledged() {
    java(HotRodRelease::V16_2, "hotrod-writes-16-2", "HASH_DISTRIBUTION_AWARE").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_loses_nothing_that_was_acknowledged() {
    let client = node::prepared().await;
    lose_and_add_a_server("hotrod-writes-node", true, |servers| {
        let mut command = client.command("writes");
        command.args([servers, "auto"]);
        command
    })
    .await;
}

/// A rolling update: each server ends in order, and another one comes at another address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_has_no_failure_while_servers_are_restarted_one_after_the_other() {
    let client = releases::prepared(HotRodRelease::V16_0).await;
    let cluster = "hotrod-writes-restarted";
    let mut servers = Vec::from(Running::three(cluster).await);
    let mut command = client.command("Writes");
    command.args([&*servers[0].at, "HASH_DISTRIBUTION_AWARE", "PROTOCOL_VERSION_AUTO"]);
    let mut writing = RunningProgram::begin(command);
    for name in ["D", "E", "F"] {
        writing.wait_for(&of(3, true)).await;
        servers.remove(0).end().await;
        writing.wait_for(&of(2, true)).await;
        servers.push(Running::start(cluster, name).await);
        writing.wait_for(&of(3, true)).await;
    }
    writing.end_without_failure().await;
    for server in servers {
        server.end().await;
    }
}
