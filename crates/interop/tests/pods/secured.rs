//! A release with TLS for clients and between members, users, and KUBE_PING: its own test, more members, and an API server that
//! restarts.

use std::fs;
use std::path::Path;
use std::time::Instant;

use consort_interop::{Tool, built};
use consort_testkit::Authority;

use super::release::{Release, SET};
use super::{CLUSTER, Namespace, report, succeed};

const SETTINGS: &str = "cluster.discovery=kube,cluster.tls.secretName=grid-members,tls.secretName=grid-tls,metrics.open=true,\
                        users.secretName=grid-users,test.userSecretName=grid-test,antiAffinity=none,preStopSeconds=0";

/// Creates a secret with a certificate for a name, as cert-manager does.
fn create_certificate(namespace: &Namespace, authority: &Authority, secret: &str, hosts: &[&str]) {
    let files = authority.certify(secret, hosts);
    let file = |key: &str, path: &Path| format!("--from-file={key}={}", path.display());
    namespace.run(&[
        "create",
        "secret",
        "generic",
        secret,
        &file("tls.crt", &files.cert),
        &file("tls.key", &files.key),
        &file("ca.crt", &authority.file()),
    ]);
}

fn create_secrets(namespace: &Namespace, authority: &Authority) {
    let (clients, members) = (
        format!("grid-consort.{}.svc", namespace.name),
        format!("grid-consort-members.{}.svc", namespace.name),
    );
    create_certificate(namespace, authority, "grid-tls", &[&clients, &format!("*.{members}")]);
    create_certificate(namespace, authority, "grid-members", &[&members]);
    let literal = |secret: &str, literals: &[&str]| {
        let literals: Vec<String> =
            literals.iter().map(|literal| format!("--from-literal={literal}")).collect();
        let literals = literals.iter().map(String::as_str);
        let create = ["create", "secret", "generic", secret].into_iter().chain(literals);
        namespace.run(&create.collect::<Vec<_>>());
    };
    literal("grid-users", &["users=alice admin password:a"]);
    literal("grid-test", &["username=alice", "password=a"]);
}

fn pod(nth: u64) -> String {
    format!("grid-consort-{nth}")
}

#[test]
fn release_with_tls_and_kube_ping_is_tested_scales_to_ten_and_outlives_a_restart_of_the_api_server() {
    let namespace = Namespace::with_all_nodes("secured");
    let authority = Authority::new("secured");
    create_secrets(&namespace, &authority);
    let release = Release::install(namespace, SETTINGS);
    let log = release.test();
    for line in ["ok      servers of cache consort-helm-test: 3 of 3", "a key was put, read and removed"] {
        assert!(log.contains(line), "{log}");
    }
    refuse_member_without_tls(&release);
    let time = scale(&release, 10);
    report(&format!("one view of 10 members {time:.1} s after kubectl scale (from 3)"));
    restart_api_server(&release);
    let time = scale(&release, 11);
    report(&format!(
        "one view of 11 members {time:.1} s after kubectl scale, after the API server's restart"
    ));
}

/// Scales the release, and returns after how many seconds all members have a view of all.
fn scale(release: &Release, members: u64) -> f64 {
    let start = Instant::now();
    release.namespace.run(&["scale", SET, &format!("--replicas={members}")]);
    release.until_members(&pod(members - 1), members);
    let time = start.elapsed().as_secs_f64();
    for nth in 0..members {
        release.until_members(&pod(nth), members);
    }
    time
}

/// A program that reaches members' port, and knows the cluster's name, is no member without a certificate.
fn refuse_member_without_tls(release: &Release) {
    let stack = CLUSTER.directory().join("without-tls.xml");
    let text = format!(
        "<config><TCP bind_addr=\"10.0.0.1\" bind_port=\"7900\"/><TCPPING initial_hosts=\"{}[7800]\" port_range=\"0\"/>\
         <MERGE3 min_interval=\"1s\" max_interval=\"2s\"/><pbcast.NAKACK2 use_mcast_xmit=\"false\"/><UNICAST3/>\
         <pbcast.STABLE/><pbcast.GMS join_timeout=\"1s\"/></config>",
        release.address(&pod(0))
    );
    fs::write(&stack, text).expect("written");
    let mut stranger = CLUSTER.command(built("consort"));
    stranger.args(["chat", "--cluster=grid-consort", "--config"]).arg(&stack);
    let mut stranger = Tool::start(stranger);
    let refusal = "it does not send TLS: is tls.enabled set there?";
    let log = || release.namespace.run(&["logs", &pod(0)]);
    release.namespace.until("the member's refusal", || log().contains(refusal));
    stranger.wait_for(&["no other member responds"]);
    stranger.close_input();
    assert_eq!(release.members(&pod(0)), Some(3));
}

/// The members keep their view while the API lists no pods.
fn restart_api_server(release: &Release) {
    let file = CLUSTER.directory().join("kube-apiserver.pid");
    let process = || fs::read_to_string(&file).expect("a process").trim().to_owned();
    let (killed, view) = (process(), release.view(&pod(0)));
    assert!(view.is_some());
    let start = Instant::now();
    succeed(CLUSTER.command("kill").args(["-KILL", &killed]));
    let is_ready = || release.namespace.kubectl(&["get", "--raw", "/readyz"]).status.success();
    release.namespace.until("a new API server", || process() != killed && is_ready());
    report(&format!("the API server is ready {:.1} s after its end", start.elapsed().as_secs_f64()));
    release.until_members(&pod(0), 10);
    assert_eq!(release.view(&pod(0)), view, "no member was lost");
}
