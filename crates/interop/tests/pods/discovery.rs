//! KUBE_PING against the API server of Kubernetes, from pods with a token.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use consort_interop::java_libraries;

use super::{CLUSTER, Namespace, report, succeed, views};

/// A Deployment of members that list pods, and the rights of its account.
fn members(name: &str, group: &str, replicas: u8, labels: &str) -> String {
    format!(
        r#"
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}, group: {group}}}}}
    spec:
      terminationGracePeriodSeconds: 2
      containers:
        - name: member
          image: consort:0.1.0
          command: [perf.sh, -nohup, -cfg, kubernetes.xml, -keys=100]
          env: [{{name: KUBERNETES_LABELS, value: "{labels}"}}]
"#
    )
}

pub(crate) const ROLE: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: lists-pods}
rules: [{apiGroups: [\"\"], resources: [pods], verbs: [list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: lists-pods}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: lists-pods}
subjects: [{kind: ServiceAccount, name: default}]
";

/// Returns the views of all members that one pod's member knows and asks.
fn views_of(namespace: &Namespace, app: &str) -> Vec<String> {
    let pods = namespace.running(&format!("app={app}"));
    let Some(pod) = pods.first() else { return Vec::new() };
    let probe = namespace.kubectl(&["exec", pod, "--", "probe.sh", "-addr", "localhost"]);
    views(&String::from_utf8_lossy(&probe.stdout))
}

pub(crate) fn has_one_view_of(namespace: &Namespace, app: &str, members: usize) -> bool {
    matches!(&views_of(namespace, app)[..], [view] if view.contains(&format!("({members})")))
}

/// S000-45: pods that start at once list each other.
#[test]
fn eight_pods_that_start_at_once_form_one_view() {
    let namespace = Namespace::new("at-once");
    namespace.apply(ROLE);
    let time = form_a_view_of_eight(&namespace);
    report(&format!("one view of 8 members {time:.1} s after kubectl create"));
}

#[test]
#[ignore = "takes ten minutes: cargo xtask test --only kubernetes --long"]
fn eight_pods_that_start_at_once_form_one_view_twenty_times() {
    let namespace = Namespace::with_all_nodes("twenty");
    namespace.apply(ROLE);
    for turn in 1..=20 {
        let time = form_a_view_of_eight(&namespace);
        report(&format!("{turn} of 20: one view of 8 members {time:.1} s after kubectl create"));
        namespace.run(&["delete", "deployment", "grid"]);
        let all = ["get", "pods", "--selector=app=grid", "--output=name"];
        namespace.until("no pods", || namespace.run(&all).is_empty());
    }
}

/// Creates a Deployment, and returns the seconds until all of its members have one view.
fn form_a_view_of_eight(namespace: &Namespace) -> f64 {
    let start = Instant::now();
    namespace.apply(&members("grid", "all", 8, ""));
    namespace.until("eight pods", || namespace.running("app=grid").len() == 8);
    namespace.until("one view of eight", || has_one_view_of(namespace, "grid", 8));
    start.elapsed().as_secs_f64()
}

/// S000-46.
#[test]
fn deployments_of_one_namespace_join_and_labels_and_namespaces_separate_clusters() {
    let shop = Namespace::new("shop");
    let other = shop.another("other");
    other.apply(&(ROLE.to_owned() + "---" + &members("first", "all", 1, "")));
    let all = [
        members("first", "all", 1, ""),
        members("second", "all", 1, ""),
        members("apart", "own", 1, "group=own"),
    ];
    shop.apply(&(ROLE.to_owned() + "---" + &all[2]));
    shop.until("the labelled member", || has_one_view_of(&shop, "apart", 1));
    shop.apply(&[&*all[0], &*all[1]].join("---").replace("value: \"\"", "value: \"group=all\""));
    shop.until("a view of both deployments", || has_one_view_of(&shop, "second", 2));
    assert!(has_one_view_of(&shop, "apart", 1), "{:?}", views_of(&shop, "apart"));
    assert!(has_one_view_of(&other, "first", 1), "{:?}", views_of(&other, "first"));
}

/// A member without the right says which commands grant it, and merges once they have run.
#[test]
fn members_without_a_role_name_its_commands_and_merge_once_it_is_granted() {
    let namespace = Namespace::new("late-role");
    namespace.apply(&members("grid", "all", 2, ""));
    namespace.until("the log of both", || {
        let pods = namespace.running("app=grid");
        pods.len() == 2
            && pods.iter().all(|pod| {
                let log = namespace.kubectl(&["logs", pod]);
                String::from_utf8_lossy(&log.stdout).contains("kubectl create role")
            })
    });
    namespace.apply(ROLE);
    namespace.until("one view of both", || has_one_view_of(&namespace, "grid", 2));
}

/// A stack that members of both kinds load, with these attributes of KUBE_PING.
pub(super) fn stack(kube_ping: &str) -> String {
    format!(
        r#"<config xmlns="urn:org:jgroups">
    <TCP bind_addr="match-interface:eth0" bind_port="7800" diag.enabled="true" diag.enable_tcp="true"/>
    <org.jgroups.protocols.kubernetes.KUBE_PING {kube_ping}/>
    <MERGE3 min_interval="1000" max_interval="3000"/>
    <FD_SOCK2/>
    <FD_ALL3/>
    <VERIFY_SUSPECT2 timeout="1500"/>
    <pbcast.NAKACK2 use_mcast_xmit="false"/>
    <UNICAST3/>
    <pbcast.STABLE/>
    <pbcast.GMS join_timeout="3000"/>
    <UFC/>
    <MFC/>
    <FRAG2 frag_size="60K"/>
</config>
"#
    )
}

/// Members of the demonstration `Chat` of both kinds. The node's JDK, its libraries and the jars of the tests are mounted.
const CHATS: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: grid}
spec:
  replicas: 2
  selector: {matchLabels: {app: grid}}
  template:
    metadata: {labels: {app: grid}}
    spec:
      terminationGracePeriodSeconds: 2
      containers:
        - name: member
          image: consort:0.1.0
          stdin: true
          command: [consort, chat, --config, /stack/kube.xml]
          volumeMounts: [{name: stack, mountPath: /stack}]
      volumes: [{name: stack, hostPath: {path: STACK}}]
---
apiVersion: v1
kind: Pod
metadata: {name: java, labels: {app: java}}
spec:
  terminationGracePeriodSeconds: 2
  containers:
    - name: member
      image: consort:0.1.0
      stdin: true
      env: [{name: LD_LIBRARY_PATH, value: /libraries}, {name: KUBERNETES_NAMESPACE, value: java}]
      command:
        - PROGRAM
        - -Xmx200m
        - -Djava.net.preferIPv4Stack=true
        - -cp
        - /jars/*
        - org.jgroups.demos.Chat
        - -props
        - /stack/kube.xml
        - -name
        - Java
      volumeMounts:
        - {name: jars, mountPath: /jars}
        - {name: jdk, mountPath: /usr/lib/jvm}
        - {name: settings, mountPath: /etc/java-17-openjdk}
        - {name: libraries, mountPath: /libraries}
        - {name: stack, mountPath: /stack}
  volumes:
    - {name: jars, hostPath: {path: JARS}}
    - {name: jdk, hostPath: {path: /usr/lib/jvm}}
    - {name: settings, hostPath: {path: /etc/java-17-openjdk, type: DirectoryOrCreate}}
    - {name: libraries, hostPath: {path: /usr/lib/x86_64-linux-gnu}}
    - {name: stack, hostPath: {path: STACK}}
"#;

/// A member of JGroups with jgroups-kubernetes.
#[test]
fn java_member_with_kube_ping_is_in_the_view_of_consort_members() {
    let namespace = Namespace::new("java");
    let directory = CLUSTER.directory().join("stack");
    std::fs::create_dir_all(&directory).expect("a directory");
    std::fs::write(directory.join("kube.xml"), stack("")).expect("written");
    let program = succeed(Command::new("sh").args(["-c", "readlink -f \"$(command -v java)\""]));
    let jars = java_libraries();
    let text = |path: &Path| path.to_str().expect("text").to_owned();
    let chats = CHATS.replace("STACK", &text(&directory)).replace("JARS", &text(&jars));
    namespace.apply(&(ROLE.to_owned() + "---" + &chats.replace("PROGRAM", program.trim())));
    namespace.until("one view of two Consort members and a Java member", || {
        matches!(&views_of(&namespace, "grid")[..], [view] if view.contains("(3)") && view.contains("Java"))
    });
}
