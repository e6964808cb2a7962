//! Lists from an API server in this process, over TLS.

use std::fs;
use std::net::{IpAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use consort_group::protocols::KubePingConfig;
use consort_testkit::kubernetes::{ApiResponse, FakeKubernetes, failure, pod, pod_list};
use serde_json::{Value, json};

use super::*;

fn config(api: &FakeKubernetes) -> KubePingConfig {
    KubePingConfig {
        masterHost: "127.0.0.1".to_owned(),
        masterPort: api.port(),
        caCertFile: api.file("ca.crt"),
        saTokenFile: api.file("token"),
        operationSleep: Duration::ZERO,
        ..KubePingConfig::default()
    }
}

fn list_by(config: &KubePingConfig) -> Result<PodList, KubernetesError> {
    list_pods(&config.query(Duration::from_secs(60)))
}

fn error_of(config: &KubePingConfig) -> String {
    list_by(config).unwrap_err().to_string()
}

fn names(list: &PodList) -> Vec<&str> {
    list.pods.iter().map(|pod| pod.name.as_str()).collect()
}

fn asked(list: &PodList, own: &str) -> Vec<String> {
    let own: IpAddr = own.parse().unwrap();
    KubePingConfig::default().select(list, Some(own)).iter().map(ToString::to_string).collect()
}

fn changed(mut object: Value, path: &str, value: Value) -> Value {
    let (parent, name) = path.rsplit_once('/').unwrap();
    object.pointer_mut(parent).unwrap()[name] = value;
    object
}

#[test]
fn pods_of_the_own_namespace_are_listed_by_labels_with_the_token() {
    let api = FakeKubernetes::start(|_| pod_list(vec![pod("a", "10.0.0.7"), pod("b", "10.0.0.8")]));
    let config = KubePingConfig { labels: "app in (a,b),x!=y".to_owned(), ..config(&api) };
    let list = list_by(&config).unwrap();
    assert_eq!((names(&list), list.namespace.as_str()), (vec!["a", "b"], "shop"));
    assert!(list.pods.iter().all(|pod| pod.is_ready && !pod.is_finished && !pod.is_deleting));
    let requests = api.take_requests();
    assert_eq!(requests.len(), 1);
    assert_eq!((requests[0].token.as_deref(), requests[0].has_certificate), (Some("token-1"), false));
    let (path, query) = requests[0].target.split_once('?').unwrap();
    assert_eq!(path, "/api/v1/namespaces/shop/pods");
    // As jgroups-kubernetes encodes it.
    assert!(query.contains("labelSelector=app+in+%28a%2Cb%29%2Cx%21%3Dy"), "{query}");
    assert!(
        query.contains("fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed"),
        "{query}"
    );
}

#[test]
fn given_namespace_replaces_the_own_one() {
    let api = FakeKubernetes::start(|_| pod_list(Vec::new()));
    fs::remove_file(api.file("namespace")).unwrap();
    let given = KubePingConfig { namespace: "other".to_owned(), ..config(&api) };
    // A namespace that does not exist has an empty list, too.
    let list = list_by(&given).unwrap();
    assert_eq!(list, PodList { namespace: "other".to_owned(), pods: Vec::new() });
    assert!(api.take_requests()[0].target.starts_with("/api/v1/namespaces/other/pods?"));
    let error = error_of(&config(&api));
    assert!(
        error.starts_with("the own namespace is unknown, because ") && error.contains("KUBERNETES_NAMESPACE"),
        "{error}"
    );
}

#[test]
fn finished_deleting_and_not_ready_pods_and_both_families_are_recognized() {
    let api = FakeKubernetes::start(|_| {
        let six =
            changed(pod("six", "fd00::5"), "/status/podIPs", json!([{"ip": "fd00::5"}, {"ip": "10.0.0.5"}]));
        let mut pending = pod("pending", "10.0.0.9");
        pending["status"] = json!({"phase": "Pending"});
        pod_list(vec![
            changed(pod("job", "10.0.0.1"), "/status/phase", json!("Succeeded")),
            changed(pod("dead", "10.0.0.2"), "/status/phase", json!("Failed")),
            changed(pod("old", "10.0.0.3"), "/metadata/deletionTimestamp", json!("2026-11-29T10:00:00Z")),
            changed(pod("new", "10.0.0.4"), "/status/containerStatuses/0/ready", json!(false)),
            six,
            pending,
            changed(pod("unready", "10.0.0.6"), "/status/conditions/0/status", json!("False")),
        ])
    });
    let list = list_by(&config(&api)).unwrap();
    let ready: Vec<bool> = list.pods.iter().map(|pod| pod.is_ready).collect();
    assert_eq!(ready, [false, false, true, false, true, false, false]);
    assert_eq!(asked(&list, "10.0.0.99"), ["10.0.0.4", "10.0.0.5", "10.0.0.6"]);
    assert_eq!(asked(&list, "fd00::99"), ["fd00::5"]);
}

#[test]
fn pod_has_the_group_of_its_first_label_of_a_workload() {
    let api = FakeKubernetes::start(|_| {
        pod_list(vec![
            changed(
                pod("a", "10.0.0.1"),
                "/metadata/labels",
                json!({"deployment": "d", "pod-template-hash": "h"}),
            ),
            changed(pod("b", "10.0.0.2"), "/metadata/labels", json!({"controller-revision-hash": "r"})),
            pod("c", "10.0.0.3"),
        ])
    });
    let list = list_by(&config(&api)).unwrap();
    let groups: Vec<Option<&str>> = list.pods.iter().map(|pod| pod.group.as_deref()).collect();
    assert_eq!(groups, [Some("h"), Some("r"), None]);
}

#[test]
fn endpoints_of_a_service_are_listed_without_pods() {
    let api = FakeKubernetes::start(|_| {
        let endpoint = |name: &str, ip: &str, conditions: Value| json!({"addresses": [ip], "conditions": conditions, "targetRef": {"kind": "Pod", "name": name}});
        let slice = |kind: &str, endpoints: Value| json!({"metadata": {"name": "grid-x"}, "addressType": kind, "endpoints": endpoints, "ports": []});
        ApiResponse::Json(
            200,
            json!({
                "kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1", "metadata": {},
                "items": [
                    slice("IPv4", json!([
                        endpoint("a", "10.0.0.7", json!({"ready": true, "serving": true, "terminating": false})),
                        endpoint("b", "10.0.0.8", json!({"ready": false, "serving": true, "terminating": true})),
                        endpoint("c", "10.0.0.9", json!({}))
                    ])),
                    slice("IPv6", json!([endpoint("a", "fd00::7", json!({"ready": true}))])),
                    slice("FQDN", json!([endpoint("d", "d.example", json!({"ready": true}))]))
                ]
            }),
        )
    });
    let list = list_by(&KubePingConfig { service: "grid".to_owned(), ..config(&api) }).unwrap();
    assert_eq!(names(&list), ["a", "b", "c", "a", "d"]);
    assert_eq!(asked(&list, "10.0.0.99"), ["10.0.0.7", "10.0.0.9"]);
    assert_eq!(asked(&list, "fd00::99"), ["fd00::7"]);
    let target = api.take_requests().remove(0).target;
    assert!(target.starts_with("/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices?"), "{target}");
    assert!(target.contains("labelSelector=kubernetes.io%2Fservice-name%3Dgrid"), "{target}");
}

#[test]
fn long_list_comes_in_several_answers_and_ends_at_the_limit() {
    let count = AtomicUsize::new(0);
    let api = FakeKubernetes::start(move |_| {
        let page = count.fetch_add(1, Ordering::Relaxed);
        let pods = (0..PAGE_LEN).map(|n| pod(&format!("p-{page}-{n}"), "10.0.0.7")).collect();
        match pod_list(pods) {
            ApiResponse::Json(status, list) => {
                ApiResponse::Json(status, changed(list, "/metadata/continue", json!(format!("next {page}"))))
            }
            other => other,
        }
    });
    assert_eq!(list_by(&config(&api)).unwrap().pods.len(), PODS_MAX);
    let requests = api.take_requests();
    assert_eq!(requests.len(), PODS_MAX / PAGE_LEN as usize);
    assert!(
        requests[0].target.contains("limit=250") && !requests[0].target.contains("continue="),
        "{requests:?}"
    );
    assert!(requests[1].target.contains("continue=next+0"), "{requests:?}");
}

/// As after the kubelet has exchanged the token.
#[test]
fn token_is_read_for_each_request() {
    let api = FakeKubernetes::start(|request| match request.token.as_deref() {
        Some("token-2") => pod_list(vec![pod("a", "10.0.0.7")]),
        _ => failure(401, "Unauthorized", "Unauthorized"),
    });
    let query = config(&api).query(Duration::from_secs(60));
    let path = api.file("token");
    let listed = std::thread::scope(|scope| {
        let listing = scope.spawn(|| {
            // The first attempt has the old token.
            list_pods(&KubernetesQuery { attempts: 1_000, ..query })
        });
        while api.take_requests().is_empty() {
            std::thread::yield_now();
        }
        fs::write(&path, "token-2").unwrap();
        listing.join().unwrap()
    });
    assert_eq!(names(&listed.unwrap()), ["a"]);
}

#[test]
fn refused_token_is_reported_with_its_file_after_all_attempts() {
    let api = FakeKubernetes::start(|_| failure(401, "Unauthorized", "Unauthorized"));
    let error = error_of(&config(&api));
    assert_eq!(
        error,
        format!(
            "https://127.0.0.1:{} does not accept this member (401: Unauthorized): {} is expired or of another cluster; let \
             the pod mount its service account's token, which Kubernetes renews (it is read for each request)",
            api.port(),
            api.file("token")
        )
    );
    assert_eq!(api.take_requests().len(), 3, "operationAttempts");
}

#[test]
fn missing_role_is_reported_with_the_commands_that_make_it() {
    let api = FakeKubernetes::start(|request| {
        let resource = if request.target.contains("endpointslices") { "endpointslices" } else { "pods" };
        let message = format!(
            "{resource} is forbidden: User \"system:serviceaccount:shop:member\" cannot list resource \"{resource}\" in API \
             group \"\" in the namespace \"shop\""
        );
        failure(403, "Forbidden", &message)
    });
    let error = error_of(&config(&api));
    assert!(
        error
            .contains("forbids the list (403: pods is forbidden: User \"system:serviceaccount:shop:member\""),
        "{error}"
    );
    let role = "its service account needs a Role with the verb list on pods in namespace shop: kubectl create role \
                consort-discovery -n shop --verb=list --resource=pods && kubectl create rolebinding consort-discovery -n shop \
                --role=consort-discovery --serviceaccount=shop:member";
    assert!(error.ends_with(role), "{error}");
    // A repetition does not help before the next discovery.
    assert_eq!(api.take_requests().len(), 1);
    let error = error_of(&KubePingConfig { service: "grid".to_owned(), ..config(&api) });
    assert!(error.contains("--resource=endpointslices.discovery.k8s.io"), "{error}");
}

#[test]
fn failure_without_account_and_other_statuses_are_reported() {
    let api = FakeKubernetes::start(|request| match request.target.as_str() {
        target if target.contains("bad") => failure(400, "BadRequest", "unable to parse requirement"),
        target if target.contains("gone") => {
            ApiResponse::Text(502, "<html>\u{7} bad gateway</html>".to_owned())
        }
        _ => failure(403, "Forbidden", "no"),
    });
    let of = |labels: &str| error_of(&KubePingConfig { labels: labels.to_owned(), ..config(&api) });
    assert!(of("a=b").ends_with("--serviceaccount=NAMESPACE:SERVICEACCOUNT"), "{}", of("a=b"));
    assert!(
        of("bad")
            .contains("answers with the status 400: unable to parse requirement; check namespace, labels")
    );
    api.take_requests();
    assert!(of("gone").contains("answers with the status 502: <html>  bad gateway</html>"), "{}", of("gone"));
    assert_eq!(api.take_requests().len(), 3, "operationAttempts");
}

#[test]
fn certificate_of_another_authority_or_host_is_refused_before_the_token_is_sent() {
    let api = FakeKubernetes::start_at("127.0.0.1", &["kubernetes.default.svc"], |_| pod_list(Vec::new()));
    let error = error_of(&config(&api));
    assert!(
        error.starts_with(&format!(
            "TLS with https://127.0.0.1:{} fails: invalid peer certificate",
            api.port()
        )),
        "{error}"
    );
    assert!(error.contains("caCertFile") && error.contains("the clock of this host"), "{error}");
    let other = FakeKubernetes::start(|_| pod_list(Vec::new()));
    let error = error_of(&KubePingConfig { caCertFile: other.file("ca.crt"), ..config(&api) });
    assert!(error.contains("invalid peer certificate: UnknownIssuer"), "{error}");
    assert!(api.take_requests().is_empty());
}

#[test]
fn missing_files_are_reported_and_nothing_is_sent() {
    let api = FakeKubernetes::start(|_| pod_list(Vec::new()));
    fs::write(api.file("empty"), "").unwrap();
    fs::write(api.file("broken"), "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n").unwrap();
    for (name, why) in [("none", "No such file"), ("empty", "it has no certificate"), ("broken", "")] {
        let error = error_of(&KubePingConfig { caCertFile: api.file(name), ..config(&api) });
        assert!(
            error.starts_with("the API server cannot be verified, because the certificates in "),
            "{error}"
        );
        assert!(error.contains(&format!("{name} cannot be read: {why}")), "{error}");
        assert!(error.contains("KUBERNETES_CA_CERTIFICATE_FILE"), "{error}");
    }
    let token =
        KubePingConfig { saTokenFile: api.file("none"), namespace: "shop".to_owned(), ..config(&api) };
    let error = error_of(&token);
    assert!(error.starts_with("there is no token for the API server, because "), "{error}");
    assert!(error.contains("automountServiceAccountToken"), "{error}");
    let identity =
        KubePingConfig { clientCertFile: api.file("none"), clientKeyFile: api.file("token"), ..config(&api) };
    let error = error_of(&identity);
    assert!(error.contains("correct clientCertFile and clientKeyFile"), "{error}");
    assert!(api.take_requests().is_empty());
}

#[test]
fn client_certificate_replaces_the_token() {
    let api = FakeKubernetes::start(|_| pod_list(vec![pod("a", "10.0.0.7")]));
    let identity = KubePingConfig {
        clientCertFile: api.file("kubernetes-cert.pem"),
        clientKeyFile: api.file("kubernetes-key.pem"),
        ..config(&api)
    };
    assert_eq!(names(&list_by(&identity).unwrap()), ["a"]);
    let request = api.take_requests().remove(0);
    assert_eq!((request.token, request.has_certificate), (None, true));
}

#[test]
fn silent_server_is_left_after_the_time_of_an_attempt_or_of_the_discovery() {
    let api = FakeKubernetes::start(|_| ApiResponse::Silence);
    // The time to connect is long enough for a slow host.
    let short = Duration::from_millis(100);
    let config =
        KubePingConfig { connectTimeout: Duration::from_secs(2), readTimeout: short, ..config(&api) };
    let error = error_of(&config);
    assert!(error.contains("does not answer within 2.1s; check that the API server"), "{error}");
    assert!(error.contains("join_timeout of GMS"), "{error}");
    let patient = KubePingConfig { readTimeout: Duration::from_secs(600), ..config };
    let error = list_pods(&patient.query(short)).unwrap_err().to_string();
    assert!(error.contains("does not answer within 100ms"), "{error}");
}

/// The server accepts the connection and does not begin TLS.
#[test]
fn connect_timeout_ends_an_attempt_before_the_time_for_an_answer() {
    let api = FakeKubernetes::start(|_| pod_list(Vec::new()));
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = KubePingConfig {
        masterPort: silent.local_addr().unwrap().port(),
        connectTimeout: Duration::from_millis(100),
        readTimeout: Duration::from_secs(600),
        operationAttempts: 1,
        ..config(&api)
    };
    let error = error_of(&config);
    assert!(error.starts_with("there is no connection to https://127.0.0.1:"), "{error}");
}

#[test]
fn operation_attempts_is_the_number_of_requests() {
    let api = FakeKubernetes::start(|_| failure(503, "ServiceUnavailable", "starting"));
    for attempts in [1, 2, 5] {
        error_of(&KubePingConfig { operationAttempts: attempts, ..config(&api) });
        assert_eq!(api.take_requests().len(), attempts as usize);
    }
}

/// `kubectl proxy` has credentials of its own. A listener on the network would read the token.
#[test]
fn server_without_tls_is_asked_without_certificates_and_gets_no_token() {
    let api = FakeKubernetes::start_plain(|_| pod_list(vec![pod("a", "10.0.0.7")]));
    fs::write(api.file("token"), "token-1").unwrap();
    let config =
        KubePingConfig { masterProtocol: "http".to_owned(), caCertFile: api.file("missing"), ..config(&api) };
    assert_eq!(names(&list_by(&config).unwrap()), ["a"]);
    fs::remove_file(api.file("token")).unwrap();
    assert_eq!(names(&list_by(&config).unwrap()), ["a"], "no token is needed");
    let tokens: Vec<Option<String>> = api.take_requests().into_iter().map(|request| request.token).collect();
    assert_eq!(tokens, [None, None]);
}

#[test]
fn time_of_a_discovery_bounds_its_attempts_and_the_last_failure_is_reported() {
    let api = FakeKubernetes::start(|_| failure(503, "ServiceUnavailable", "starting"));
    let config = KubePingConfig { operationSleep: Duration::from_secs(600), ..config(&api) };
    let error = list_pods(&config.query(Duration::from_secs(60))).unwrap_err().to_string();
    assert!(error.contains("answers with the status 503: starting"), "{error}");
    assert_eq!(api.take_requests().len(), 1);
}

#[test]
fn answer_above_the_limit_is_refused() {
    let api = FakeKubernetes::start(|_| ApiResponse::Endless);
    let error = error_of(&config(&api));
    assert_eq!(
        error,
        format!(
            "the answer of https://127.0.0.1:{} has more than {} bytes; choose fewer pods: set labels or service",
            api.port(),
            request::ANSWER_BYTES_MAX
        )
    );
    assert_eq!(api.take_requests().len(), 1, "not again");
}

/// 16 MiB of small objects would take gigabytes as pods.
#[test]
fn answer_with_more_objects_than_asked_for_is_refused() {
    for items in [250, 251] {
        let text = format!("{{\"kind\":\"PodList\",\"items\":[{}]}}", vec!["{}"; items].join(","));
        let api = FakeKubernetes::start(move |_| ApiResponse::Text(200, text.clone()));
        match list_by(&config(&api)) {
            Ok(list) => assert_eq!((items, list.pods.len()), (250, 250)),
            Err(error) => {
                let why = "it has more than the 250 items that were asked for";
                assert!(items == 251 && error.to_string().contains(why), "{error}");
            }
        }
    }
}

#[test]
fn lists_within_an_object_are_kept_up_to_their_limits() {
    let ips: Vec<Value> =
        (0..10_000).map(|n| json!({"ip": format!("10.1.{}.{}", n / 250, n % 250)})).collect();
    let api = FakeKubernetes::start(move |request| {
        if request.target.contains("endpointslices") {
            let addresses: Vec<&Value> = ips.iter().map(|ip| &ip["ip"]).collect();
            let mut endpoints = vec![json!({"addresses": addresses}); 2];
            endpoints.resize(3_000, json!({"addresses": []}));
            let slice = json!({"metadata": {"name": "s".repeat(100_000)}, "endpoints": endpoints});
            ApiResponse::Json(200, json!({"kind": "EndpointSliceList", "items": [slice.clone(), slice]}))
        } else {
            pod_list(vec![changed(pod(&"p".repeat(100_000), "10.0.0.7"), "/status/podIPs", json!(ips))])
        }
    });
    let list = list_by(&config(&api)).unwrap();
    // The last one is that of `podIP`.
    assert_eq!((list.pods[0].ips.len(), list.pods[0].name.len()), (17, 253));
    let list = list_by(&KubePingConfig { service: "grid".to_owned(), ..config(&api) }).unwrap();
    assert_eq!((list.pods.len(), list.pods[0].ips.len(), list.pods[2].name.len()), (PODS_MAX, 16, 253));
    assert!(!list.pods[1_000].ips.is_empty() && list.pods[999].ips.is_empty(), "1,000 of a slice");
}

#[test]
fn answers_of_one_discovery_are_bounded_together() {
    let pages = AtomicUsize::new(0);
    let api = FakeKubernetes::start(move |_| {
        let page = pages.fetch_add(1, Ordering::Relaxed);
        let padding = " ".repeat(request::ANSWER_BYTES_MAX * 9 / 10);
        let text = format!(
            "{{\"kind\":\"PodList\",\"metadata\":{{\"continue\":\"{page}\"}},{padding}\"items\":[]}}"
        );
        ApiResponse::Text(200, text)
    });
    let error = error_of(&config(&api));
    assert!(error.contains(&format!("have more than {ANSWERS_BYTES_MAX} bytes together")), "{error}");
    assert_eq!(api.take_requests().len(), 5);
}

#[test]
fn texts_of_the_server_are_bounded_in_errors() {
    let long = "x\n".repeat(10_000);
    for (status, response) in [
        (200, json!({"kind": &long})),
        (200, json!({"kind": "PodList", "items": [{"metadata": &long}]})),
        (400, json!({"message": &long})),
        (400, json!(&long)),
    ] {
        let api = FakeKubernetes::start(move |_| ApiResponse::Json(status, response.clone()));
        let error = error_of(&config(&api));
        assert!(error.contains("x") && error.len() < 1_300 && !error.contains('\n'), "{error}");
    }
    // A failure that is longer than its bound keeps its status.
    let api = FakeKubernetes::start(|_| ApiResponse::Text(403, "x".repeat(1 << 20)));
    assert!(error_of(&config(&api)).contains("forbids the list (403: )"), "{}", error_of(&config(&api)));
}

#[test]
fn answer_that_is_no_list_is_refused() {
    for text in
        ["", "<html></html>", "{\"kind\": \"PodList\"", "{\"kind\": \"NodeList\", \"apiVersion\": \"v1\"}"]
    {
        let api = FakeKubernetes::start(|_| ApiResponse::Text(200, text.to_owned()));
        let error = error_of(&config(&api));
        assert!(error.contains("is not a list of Kubernetes") && error.contains("masterHost"), "{error}");
    }
}

#[test]
fn unreachable_server_is_reported_with_its_variables() {
    let api = FakeKubernetes::start(|_| pod_list(Vec::new()));
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let error = error_of(&KubePingConfig { masterPort: free, ..config(&api) });
    let begin = format!("there is no connection to https://127.0.0.1:{free}: Connection refused");
    assert!(error.starts_with(&begin) && error.contains("KUBERNETES_SERVICE_HOST"), "{error}");
}

#[test]
fn server_at_an_ipv6_address_is_asked() {
    let api = FakeKubernetes::start_at("::1", &["::1"], |_| pod_list(vec![pod("a", "fd00::7")]));
    let config = KubePingConfig { masterHost: "::1".to_owned(), ..config(&api) };
    assert_eq!(names(&list_by(&config).unwrap()), ["a"]);
}

#[test]
fn requests_are_logged_if_dump_requests_is_set() {
    let api = FakeKubernetes::start(|_| pod_list(vec![pod("a", "10.0.0.7")]));
    for (dump_requests, expected) in [(true, 2), (false, 0)] {
        let (log, _guard) = consort_testkit::Log::begin("info");
        list_by(&KubePingConfig { dump_requests, ..config(&api) }).unwrap();
        let logged = log.take();
        assert_eq!(logged.lines().count(), expected, "{logged}");
    }
}

#[test]
fn client_does_not_log_failures_itself() {
    let api = FakeKubernetes::start(|_| failure(503, "ServiceUnavailable", "starting"));
    let (log, _guard) = consort_testkit::Log::begin("trace");
    error_of(&config(&api));
    assert_eq!(log.take(), "");
}
