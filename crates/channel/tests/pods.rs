//! Tests of members that find each other by the API of Kubernetes (KUBE_PING). Pods have addresses of 127.0.0.0/8.

#![cfg(feature = "kubernetes")]

mod cluster;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use cluster::{Cluster, Inbox, one_view};
use consort_channel::{Channel, Message};
use consort_testkit::kubernetes::{ApiRequest, ApiResponse, FakeKubernetes, failure, pod, pod_list};

/// Members of `kubernetes.xml` at one port, each with an address of its own, as pods have.
struct Pods {
    api: FakeKubernetes,
    cluster: Cluster,
}

impl Pods {
    fn new(respond: impl Fn(&ApiRequest) -> ApiResponse + Send + Sync + 'static) -> Self {
        let api = FakeKubernetes::start(respond);
        let cluster = Cluster::new("kubernetes.xml")
            .with("KUBERNETES_SERVICE_HOST", "127.0.0.1")
            .with("KUBERNETES_SERVICE_PORT", &api.port().to_string())
            .with("KUBERNETES_CA_CERTIFICATE_FILE", &api.file("ca.crt"))
            .with("KUBERNETES_SA_TOKEN_FILE", &api.file("token"))
            .with("KUBERNETES_LABELS", "app=grid")
            .with("jgroups.tcp.port_range", "0");
        Self { api, cluster }
    }

    async fn start(&self, name: &str, ip: &str, inbox: Arc<Inbox>) -> Channel {
        let cluster = Cluster {
            name: self.cluster.name.clone(),
            config: self.cluster.config,
            text: self.cluster.text.clone(),
            variables: self.cluster.variables.clone().with("jgroups.bind_addr", ip),
        };
        cluster.join(name, inbox).await
    }
}

fn addresses() -> [String; 3] {
    // Apart from those of other clusters of this program, which run at the same time.
    let nth = std::process::id() % 250;
    [2, 3, 4].map(|last| format!("127.77.{nth}.{last}"))
}

#[tokio::test]
async fn members_find_each_other_by_the_pods_of_the_api() {
    let ips = addresses();
    let listed = Arc::new(Mutex::new(Vec::new()));
    let pods = Pods::new({
        let listed = listed.clone();
        move |_| {
            let mut all = listed.lock().unwrap().clone();
            let mut finished = pod("job", "127.0.0.99");
            finished["status"]["phase"] = "Succeeded".into();
            all.extend([finished, pod("six", "fd00::9")]);
            pod_list(all)
        }
    });
    let inboxes: Vec<Arc<Inbox>> = (0..3).map(|_| Arc::default()).collect();
    let mut members = Vec::new();
    for (n, ip) in ips.iter().enumerate() {
        let name = ["A", "B", "C"][n];
        listed.lock().unwrap().push(pod(name, ip));
        members.push(pods.start(name, ip, inboxes[n].clone()).await);
    }
    let [a, b, c] = &members[..] else { panic!("three members") };
    one_view(&[a, b, c]).await;
    // Each was admitted at once: none has begun a cluster of its own that is merged later.
    assert!(a.view_text().ends_with("|2] (3) [A, B, C]"), "{}", a.view_text());
    c.send(Message::bytes(None, vec![7; 1_000])).await.unwrap();
    assert_eq!(inboxes[0].from(c.address(), 1).await, [vec![7; 1_000]]);
    assert!(pods.api.take_requests().len() >= 3, "each asked for itself");
    for member in members {
        member.close().await;
    }
}

/// Pods that start together are not listed before they have their addresses. None begins alone and merges later.
#[tokio::test]
async fn members_that_start_before_the_api_lists_them_join_by_a_later_list() {
    let ips = addresses().map(|ip| ip.replace("127.77", "127.79"));
    let requests = AtomicUsize::new(0);
    let pods = Pods::new({
        let ips = ips.clone();
        move |_| match requests.fetch_add(1, Ordering::SeqCst) {
            0 | 1 => pod_list(vec![pod("other", "127.0.0.99")]),
            _ => pod_list(ips.iter().map(|ip| pod(ip, ip)).collect()),
        }
    });
    let (a, b) =
        tokio::join!(pods.start("A", &ips[0], Arc::default()), pods.start("B", &ips[1], Arc::default()));
    one_view(&[&a, &b]).await;
    assert!(!a.view_text().starts_with("MergeView"), "{}", a.view_text());
    a.close().await;
    b.close().await;
}

#[tokio::test]
async fn members_without_role_begin_alone_and_merge_when_it_is_granted() {
    let ips = addresses().map(|ip| ip.replace("127.77", "127.78"));
    let is_granted = Arc::new(AtomicBool::new(false));
    let pods = Pods::new({
        let (is_granted, ips) = (is_granted.clone(), ips.clone());
        move |_| {
            if is_granted.load(Ordering::SeqCst) {
                pod_list(ips.iter().map(|ip| pod(ip, ip)).collect())
            } else {
                failure(
                    403,
                    "Forbidden",
                    "User \"system:serviceaccount:shop:default\" cannot list resource \"pods\"",
                )
            }
        }
    });
    let merge = "<MERGE3 min_interval=\"10s\" max_interval=\"30s\"/>";
    let pods = Pods {
        cluster: pods.cluster.edited(&[(merge, "<MERGE3 min_interval=\"500ms\" max_interval=\"1s\"/>")]),
        ..pods
    };
    let a = pods.start("A", &ips[0], Arc::default()).await;
    let b = pods.start("B", &ips[1], Arc::default()).await;
    assert!(a.view_text().ends_with("(1) [A]") && b.view_text().ends_with("(1) [B]"), "{}", b.view_text());
    is_granted.store(true, Ordering::SeqCst);
    one_view(&[&a, &b]).await;
    a.close().await;
    b.close().await;
}
