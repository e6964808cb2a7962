//! Tokens of service accounts that end: KUBE_PING reads the token for each request.

use std::io::Write as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::discovery::{ROLE, has_one_view_of, stack};
use super::release::Release;
use super::{CLUSTER, Namespace, report, succeed};

/// The stack of members that wait for a token in a file. MERGE3 asks for pods every one to three seconds.
fn stack_in_a_map() -> String {
    let stack = stack(r#"saTokenFile="/token/token" operationAttempts="1""#);
    let lines: String = stack.lines().map(|line| format!("    {line}\n")).collect();
    format!("\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: stack}}\ndata:\n  kube.xml: |\n{lines}")
}

fn member(name: &str) -> String {
    format!(
        r#"
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: grid}}}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - name: member
      image: consort:0.1.0
      stdin: true
      env: [{{name: KUBERNETES_NAMESPACE, value: tokens}}]
      command: [sh, -c, "until [ -s /token/token ]; do sleep 0.1; done; exec consort chat --config /stack/kube.xml"]
      volumeMounts: [{{name: stack, mountPath: /stack}}, {{name: token, mountPath: /token}}]
  volumes: [{{name: stack, configMap: {{name: stack}}}}, {{name: token, emptyDir: {{}}}}]
"#
    )
}

/// Writes a token into a member's file, which has the old or the new one at each time.
fn give(namespace: &Namespace, pod: &str, token: &str) {
    let write = "cat > /token/part && mv /token/part /token/token";
    let mut exec = namespace.command(&["exec", pod, "--stdin", "--", "sh", "-c", write]);
    let mut exec = exec.stdin(Stdio::piped()).spawn().expect("kubectl");
    exec.stdin.take().expect("its input").write_all(token.as_bytes()).expect("it reads");
    assert!(exec.wait().expect("its end").success());
}

#[test]
fn member_with_a_token_that_has_ended_says_so_and_lists_pods_again_with_the_next_one() {
    let namespace = Namespace::new("tokens");
    let members: String = ["a", "b", "c"].map(member).concat();
    namespace.apply(&format!("{ROLE}---{}{members}", stack_in_a_map()));
    namespace.run(&["create", "secret", "generic", "life"]);
    // It ends with the secret.
    let bound = ["--bound-object-kind=Secret", "--bound-object-name=life"];
    let ending = namespace.run(&[&["create", "token", "default"], &bound[..]].concat());
    namespace.until("three pods", || namespace.running("app=grid").len() == 3);
    for pod in ["a", "b"] {
        give(&namespace, pod, &ending);
    }
    namespace.until("one view of two", || has_one_view_of(&namespace, "grid", 2));
    namespace.run(&["delete", "secret", "life"]);
    let log = |pod: &str| String::from_utf8_lossy(&namespace.kubectl(&["logs", pod]).stdout).into_owned();
    namespace.until("refused lists", || ["a", "b"].iter().all(|pod| log(pod).contains("401")));
    assert!(has_one_view_of(&namespace, "grid", 2), "members stay that have met");
    // The third member has no valid token: only the others, with a new token, can find it.
    give(&namespace, "c", &ending);
    namespace.until("the third one's log", || log("c").contains("401"));
    let next = namespace.run(&["create", "token", "default"]);
    for pod in ["a", "b"] {
        give(&namespace, pod, &next);
    }
    namespace.until("one view of three", || has_one_view_of(&namespace, "grid", 3));
}

/// Returns whether the API server accepts a token.
fn is_accepted(token: &str) -> bool {
    let mut kubectl = CLUSTER.kubectl();
    kubectl.args(["--kubeconfig=/dev/null", "--server=https://10.0.0.1:6443", "--insecure-skip-tls-verify"]);
    let asked = kubectl.arg(format!("--token={token}")).args(["get", "--raw", "/version"]).output();
    asked.expect("kubectl").status.success()
}

/// Kubernetes' least for a token is ten minutes.
#[test]
#[ignore = "takes eleven minutes: cargo xtask test --only kubernetes --long"]
fn members_of_the_chart_outlive_their_first_tokens() {
    let namespace = Namespace::new("expiring");
    let settings = "users.noAuth=true,antiAffinity=none,cluster.discovery=kube,cluster.tokenSeconds=600,preStopSeconds=0";
    let release = Release::install(namespace, settings);
    let namespace = &release.namespace;
    let file = "/var/run/secrets/kubernetes.io/serviceaccount/token";
    let token = || namespace.run(&["exec", "grid-consort-0", "--", "cat", file]);
    let (first, start) = (token(), Instant::now());
    assert!(is_accepted(&first));
    while is_accepted(&first) {
        assert!(start.elapsed() < Duration::from_mins(15), "the token has not ended");
        std::thread::sleep(Duration::from_secs(5));
    }
    report(&format!("the first token has ended {:.0} s after the start", start.elapsed().as_secs_f64()));
    assert!(token() != first && is_accepted(&token()));
    // Longer than the interval of MERGE3, which lists pods.
    std::thread::sleep(Duration::from_secs(40));
    for nth in 0..3 {
        let pod = format!("grid-consort-{nth}");
        let log = namespace.run(&["logs", &pod]);
        assert!(!log.contains("401") && !log.contains("API of Kubernetes"), "{log}");
    }
    namespace.run(&["scale", "statefulset/grid-consort", "--replicas=4"]);
    for nth in 0..4 {
        release.until_members(&format!("grid-consort-{nth}"), 4);
    }
    succeed(&mut namespace.command(&["get", "pods"]));
}
