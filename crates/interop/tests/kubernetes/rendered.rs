//! The rendered chart with common values.

use std::fs;

use consort_cache::LEAVE_TIMEOUT;
use consort_server::limits::{DRAIN_TIME_MAX, MOVE_TIME_MAX, WITHDRAW_TIME_MAX};
use serde_json::{Value, json};

use super::{Chart, PROGRAMS, helm, read_strictly, run, text};

pub(crate) const TLS: &str = r#"tls={"secretName": "grid-tls"}"#;

/// The label of a pod of a StatefulSet with its own name.
pub(crate) const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";

/// Values as people give them.
const VALUES: &[&[&str]] = &[
    &[],
    &["replicas=1", r#"antiAffinity="preferred""#],
    &[r#"antiAffinity="none""#, r#"zoneSpread={"maxSkew": 0}"#, r#"fullnameOverride="data""#],
    &[r#"persistence={"enabled": true, "storageClass": "fast", "aloneAfterSeconds": 600}"#],
    &[r#"users={"secretName": "grid-users"}"#, TLS, r#"metrics={"open": true}"#],
    &[r#"tls={"secretName": "grid-tls", "clients": {"secretName": "grid-clients", "required": true}}"#],
    &[r#"service={"ipFamilies": ["IPv6"], "ipFamilyPolicy": "SingleStack"}"#],
    &[r#"service={"type": "LoadBalancer", "ipFamilyPolicy": "PreferDualStack", "annotations": {"a": "b"}}"#],
    &[
        r#"metrics={"serviceMonitor": {"enabled": true, "labels": {"release": "p"}, "endpoint": {"honorLabels": true}}}"#,
        TLS,
    ],
    &["podSecurityContext=null", "securityContext=null", r#"networkPolicy={"enabled": false}"#],
    &[r#"caches={"stock": {"distributedCache": {"memory": {"maxCount": 5}}}, "p": {"localCache": {}}}"#],
    &[r#"podDisruptionBudget={"enabled": false}"#, r#"serviceAccount={"create": false, "name": "own"}"#],
    &[r#"serviceAccount={"annotations": {"a": "b"}}"#, r#"extraArgs=["--open-metrics"]"#, "preStopSeconds=0"],
    &[
        r#"extraEnv=[{"name": "CONSORT_LOG", "value": "warn"}]"#,
        r#"labels={"team": "grid"}"#,
        r#"podLabels={"part": "data"}"#,
        r#"podAnnotations={"a": "b"}"#,
        r#"imagePullSecrets=[{"name": "registry"}]"#,
        r#"nodeSelector={"disk": "ssd"}"#,
        r#"tolerations=[{"key": "data", "operator": "Exists"}]"#,
        r#"priorityClassName="high""#,
        r#"cluster={"name": "orders", "port": 7900, "stack": "<config/>\n"}"#,
    ],
    &[
        r#"cluster={"discovery": "dns", "tls": {"secretName": "m", "ca": {"secretName": "a", "key": "own.crt"}}}"#,
        r#"external={"type": "NodePort", "nodePort": 30123, "annotations": {"a": "b"}}"#,
        r#"metrics={"rules": {"enabled": true}, "dashboard": {"enabled": true}}"#,
        r#"persistence={"enabled": true, "retention": {"whenScaled": "Delete", "whenDeleted": "Delete"}}"#,
        r#"test={"cache": "stock"}"#,
    ],
    &[
        TLS,
        r#"users={"secretName": "grid-users"}"#,
        r#"external={"type": "LoadBalancer", "domain": "grid.example", "annotations": {"n": "{host}"}}"#,
        r#"metrics={"rules": {"enabled": true, "labels": {"release": "p"}}}"#,
        r#"affinity={"nodeAffinity": {}}"#,
        r#"extraVolumes=[{"name": "keys", "secret": {"secretName": "keys"}}]"#,
        r#"extraVolumeMounts=[{"name": "keys", "mountPath": "/etc/consort/keys"}]"#,
        r#"test={"userSecretName": "grid-test"}"#,
    ],
];

/// Whether labels have all that a selector wants.
pub(crate) fn selects(selector: &Value, labels: &Value) -> bool {
    let wanted = selector.as_object().expect("labels that are wanted");
    !wanted.is_empty() && wanted.iter().all(|(name, value)| labels[name] == *value)
}

pub(crate) fn names<'a>(list: &'a Value, key: &str) -> Vec<&'a str> {
    list.as_array().map_or_else(Vec::new, |list| list.iter().map(|it| it[key].as_str().unwrap()).collect())
}

#[test]
fn helm_and_kubernetes_take_the_chart_with_all_values() {
    for values in VALUES {
        let lint = helm(&["lint", "--strict"], values);
        assert!(lint.status.success(), "{values:?}: {}{}", text(&lint.stdout), text(&lint.stderr));
        let chart = Chart::of(values);
        let (pod, set) = (chart.pod(), &chart.only("StatefulSet")["spec"]);
        let labels = &pod["metadata"]["labels"];
        let mut selectors = vec![&set["selector"]["matchLabels"]];
        // Those of one pod each have its name besides.
        let is_for_all = |service: &&Value| service["spec"]["selector"][POD_NAME].is_null();
        selectors.extend(chart.all("Service").filter(is_for_all).map(|service| &service["spec"]["selector"]));
        selectors.extend(
            chart.all("PodDisruptionBudget").map(|budget| &budget["spec"]["selector"]["matchLabels"]),
        );
        for policy in chart.all("NetworkPolicy") {
            selectors.push(&policy["spec"]["podSelector"]["matchLabels"]);
            let rules = policy["spec"]["ingress"].as_array().into_iter().flatten();
            let sources = rules.flat_map(|rule| rule["from"].as_array().into_iter().flatten());
            let before = selectors.len();
            selectors.extend(sources.map(|source| &source["podSelector"]["matchLabels"]));
            assert_eq!(selectors.len(), before + 1, "only members reach the ports of members");
        }
        for constraint in pod["spec"]["topologySpreadConstraints"].as_array().into_iter().flatten() {
            selectors.push(&constraint["labelSelector"]["matchLabels"]);
        }
        assert!(selectors.len() >= 3);
        assert!(selectors.iter().all(|selector| selects(selector, labels)), "{selectors:?}: {labels}");

        // Everything that is named is there.
        let ports = names(&chart.container()["ports"], "name");
        for service in chart.all("Service") {
            let targets = names(&service["spec"]["ports"], "targetPort");
            assert!(targets.iter().all(|target| ports.contains(target)), "{targets:?}: {ports:?}");
        }
        let mut volumes = names(&pod["spec"]["volumes"], "name");
        let claims = set["volumeClaimTemplates"].as_array().into_iter().flatten();
        volumes.extend(claims.map(|claim| claim["metadata"]["name"].as_str().unwrap()));
        let mut mounts = names(&chart.container()["volumeMounts"], "name");
        volumes.sort_unstable();
        mounts.sort_unstable();
        assert_eq!(volumes, mounts);
        let headless = chart.service(set["serviceName"].as_str().expect("a service"));
        assert_eq!(headless["spec"]["clusterIP"], "None");
        assert_eq!(headless["spec"]["publishNotReadyAddresses"], true);
        let host = format!("{}.shop.svc", set["serviceName"].as_str().unwrap());
        assert!(chart.arguments().contains(&&*format!("--wait-for-dns={host}")), "{:?}", chart.arguments());
    }
}

const KUBE: &str = r#"cluster={"discovery": "kube"}"#;

#[test]
fn discovery_by_the_api_has_a_token_a_role_and_a_stack_and_dns_has_none_of_them() {
    let chart = Chart::of(&[KUBE]);
    // The token is a volume, which has its own time and is where KUBE_PING expects it.
    assert_eq!(chart.pod()["spec"]["automountServiceAccountToken"], false);
    let token = chart.volume("token")["projected"]["sources"].clone();
    assert_eq!(token[0]["serviceAccountToken"], json!({"path": "token", "expirationSeconds": 3600}));
    assert_eq!(chart.mount("token")["mountPath"], "/var/run/secrets/kubernetes.io/serviceaccount");
    let short = Chart::of(&[r#"cluster={"discovery": "kube", "tokenSeconds": 600}"#]);
    let sources = &short.volume("token")["projected"]["sources"];
    assert_eq!(sources[0]["serviceAccountToken"]["expirationSeconds"], 600);
    let rule = json!({"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list"]});
    assert_eq!(chart.only("Role")["rules"], json!([rule]));
    let binding = chart.only("RoleBinding");
    assert_eq!(binding["roleRef"]["name"], chart.only("Role")["metadata"]["name"]);
    assert_eq!(binding["subjects"][0]["name"], chart.pod()["spec"]["serviceAccountName"]);
    let stack = chart.only("ConfigMap")["data"]["stack.xml"].as_str().expect("a stack");
    let service = chart.only("StatefulSet")["spec"]["serviceName"].as_str().expect("a service");
    let parsed =
        consort_conf::parse_stack("stack.xml", stack, &consort_conf::Variables::new()).expect("a stack");
    let discovery = &parsed.config.protocols[1];
    assert_eq!(discovery.short_name(), "KUBE_PING");
    assert_eq!((discovery.get("service"), discovery.get("namespace")), (Some(service), Some("shop")));
    assert!(chart.arguments().iter().all(|argument| !argument.starts_with("--wait-for-dns")));
    let named = Chart::of(&[KUBE, r#"serviceAccount={"create": false, "name": "own"}"#]);
    assert_eq!(named.only("RoleBinding")["subjects"][0]["name"], "own");

    let chart = Chart::of(&[]);
    assert!(!names(&chart.pod()["spec"]["volumes"], "name").contains(&"token"));
    assert_eq!(chart.all("Role").count() + chart.all("RoleBinding").count(), 0);
    let refused = helm(&["template", "grid"], &[r#"cluster={"discovery": "multicast"}"#]);
    assert!(
        !refused.status.success() && text(&refused.stderr).contains("discovery"),
        "{}",
        text(&refused.stderr)
    );
}

#[test]
fn manifests_of_the_examples_are_kubernetes_types() {
    let manifests = include_bytes!("../../../../examples/kubernetes/discovery.yaml");
    let objects = read_strictly(manifests).unwrap_or_else(|error| panic!("{error}"));
    let kinds: Vec<&str> = objects.iter().map(|object| object["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["ServiceAccount", "Role", "RoleBinding", "Service", "Deployment"]);
    let pod = &objects[4]["spec"]["template"];
    assert!(selects(&objects[3]["spec"]["selector"], &pod["metadata"]["labels"]));
    assert_eq!(pod["spec"]["serviceAccountName"], objects[0]["metadata"]["name"]);
}

/// That the reading as Kubernetes' types finds something.
#[test]
fn fields_that_kubernetes_does_not_know_are_found() {
    let pod = |field: &str| {
        format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec: {{containers: [], {field}}}\n")
    };
    assert_eq!(read_strictly(pod("hostNetwork: true").as_bytes()).unwrap().len(), 1);
    for (wrong, expected) in
        [("hostnetwork: true", "unknown field"), ("hostPID: true, hostPID: false", "already set")]
    {
        let error = read_strictly(pod(wrong).as_bytes()).unwrap_err();
        assert!(error.contains(expected), "{wrong}: {error}");
    }
    assert!(read_strictly(b"apiVersion: v1\nkind: Poda\n").unwrap_err().contains("Poda"));
}

/// S000-35.
#[test]
fn members_are_kept_apart_by_default() {
    let chart = Chart::of(&[]);
    let affinity = &chart.pod()["spec"]["affinity"]["podAntiAffinity"];
    let required = affinity["requiredDuringSchedulingIgnoredDuringExecution"].as_array().expect("required");
    let [term] = &required[..] else { panic!("{required:?}") };
    assert_eq!(term["topologyKey"], "kubernetes.io/hostname");
    // In its own namespace, as without any.
    assert!(term["namespaces"].is_null() && term["namespaceSelector"].is_null());
    assert!(selects(&term["labelSelector"]["matchLabels"], &chart.pod()["metadata"]["labels"]), "{term}");
    // Another release of the chart is kept apart from itself, not from this one.
    assert_eq!(term["labelSelector"]["matchLabels"]["app.kubernetes.io/instance"], "grid");

    let chart = Chart::of(&[r#"antiAffinity="preferred""#]);
    let affinity = &chart.pod()["spec"]["affinity"]["podAntiAffinity"];
    assert!(affinity["requiredDuringSchedulingIgnoredDuringExecution"].is_null());
    let term = &affinity["preferredDuringSchedulingIgnoredDuringExecution"][0]["podAffinityTerm"];
    assert_eq!(term["topologyKey"], "kubernetes.io/hostname");
    assert!(selects(&term["labelSelector"]["matchLabels"], &chart.pod()["metadata"]["labels"]), "{term}");

    // Where servers share a zone, the owners of a key still do not.
    let chart = Chart::of(&[r#"antiAffinity="none""#]);
    assert!(chart.pod()["spec"]["affinity"].is_null());
    assert!(chart.arguments().contains(&"--machine=$(NODE_NAME)"), "{:?}", chart.arguments());
    let node = json!({"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}});
    assert!(chart.container()["env"].as_array().unwrap().contains(&node));
}

#[test]
fn members_have_no_rights_and_no_token() {
    for values in VALUES {
        let chart = Chart::of(values);
        let kinds = chart.objects.iter().map(|object| object["kind"].as_str().unwrap());
        assert!(!kinds.clone().any(|kind| kind.contains("Role")), "{:?}", kinds.collect::<Vec<_>>());
        assert_eq!(chart.pod()["spec"]["automountServiceAccountToken"], false);
        for account in chart.all("ServiceAccount") {
            assert_eq!(account["automountServiceAccountToken"], false);
            assert_eq!(account["metadata"]["name"], chart.pod()["spec"]["serviceAccountName"]);
        }
    }
    let chart = Chart::of(&[]);
    assert_eq!(chart.pod()["spec"]["securityContext"]["runAsNonRoot"], true);
    let own = &chart.container()["securityContext"];
    assert_eq!(
        (&own["readOnlyRootFilesystem"], &own["allowPrivilegeEscalation"]),
        (&json!(true), &json!(false))
    );
    assert_eq!(own["capabilities"]["drop"], json!(["ALL"]));
}

#[test]
fn a_member_has_the_time_to_hand_over() {
    let chart = Chart::of(&[]);
    let grace = chart.pod()["spec"]["terminationGracePeriodSeconds"].as_u64().expect("seconds");
    let before = chart.container()["lifecycle"]["preStop"]["sleep"]["seconds"].as_u64().expect("seconds");
    let at_most = WITHDRAW_TIME_MAX + MOVE_TIME_MAX + DRAIN_TIME_MAX + LEAVE_TIMEOUT;
    assert!(grace > before + at_most.as_secs(), "{grace} s");
    let budget = &chart.only("PodDisruptionBudget")["spec"];
    assert_eq!(budget["maxUnavailable"], 1);
    assert_eq!(chart.only("StatefulSet")["spec"]["updateStrategy"]["type"], "RollingUpdate");
}

/// Returns the notes that `helm install` prints. Without a cluster Helm does not print them, so a copy of the chart has them
/// in a manifest.
fn notes(name: &str, value: &str) -> String {
    let copy = std::env::temp_dir().join(format!("consort-notes-{name}-{}", std::process::id()));
    let templates = copy.join("templates");
    fs::create_dir_all(&templates).expect("a directory");
    for file in ["Chart.yaml", "values.yaml", "values.schema.json"] {
        fs::copy(PROGRAMS.chart().join(file), copy.join(file)).expect("a copy");
    }
    for file in ["_names.tpl", "NOTES.txt"] {
        fs::copy(PROGRAMS.chart().join("templates").join(file), templates.join(file)).expect("a copy");
    }
    fs::rename(templates.join("NOTES.txt"), copy.join("notes.txt")).expect("moved");
    let manifest = "notes: {{ tpl (.Files.Get \"notes.txt\") . | quote }}\n";
    fs::write(templates.join("notes.yaml"), manifest).expect("written");
    let mut command = PROGRAMS.helm();
    command.args(["template", "grid"]).arg(&copy);
    command.args(["--namespace=shop", "--kube-version=1.35.0", "--set-json", value]);
    let made = run(command, b"");
    fs::remove_dir_all(&copy).expect("removed");
    assert!(made.status.success(), "{value}: {}", text(&made.stderr));
    text(&made.stdout)
}

/// Kubernetes never replaces a pod of an ordered set that has not become ready, also after `helm rollback`.
#[test]
fn a_rollback_replaces_a_pod_that_never_became_ready() {
    const ORDERED: &str = r#"podManagementPolicy="OrderedReady""#;
    let management = |values: &[&str]| {
        Chart::of(values).only("StatefulSet")["spec"]["podManagementPolicy"].as_str().unwrap().to_owned()
    };
    for values in [&[] as &[&str], &[r#"podManagementPolicy="""#], &[r#"persistence={"enabled": true}"#]] {
        assert_eq!(management(values), "Parallel", "{values:?}");
    }
    assert_eq!(management(&[ORDERED]), "OrderedReady");
    let by_default = notes("default", "replicas=3");
    assert!(by_default.contains("helm --namespace shop rollback grid"), "{by_default}");
    assert!(!by_default.contains("delete pod"), "{by_default}");
    let ordered = notes("ordered", ORDERED);
    assert!(ordered.contains("kubectl --namespace shop delete pod"), "{ordered}");
}

#[test]
fn a_tag_that_is_a_whole_number_is_text_in_the_image() {
    let image = |arguments: &[&str]| {
        let made = helm(&[&["template", "grid"], arguments].concat(), &[]);
        assert!(made.status.success(), "{arguments:?}: {}", text(&made.stderr));
        let objects = read_strictly(&made.stdout).unwrap_or_else(|error| panic!("{arguments:?}: {error}"));
        let chart = Chart { objects };
        chart.container()["image"].as_str().expect("text").to_owned()
    };
    for (given, tag) in [
        ("image.tag=1", "1"),
        ("image.tag=20260101", "20260101"),
        ("image.tag=1.0", "1.0"),
        ("image.tag=1.10", "1.10"),
        ("image.tag=v2", "v2"),
        ("image.tag=", "0.1.0"),
    ] {
        assert_eq!(image(&["--set", given]), format!("consort:{tag}"), "{given}");
    }
    assert_eq!(image(&["--set-string", "image.tag=007"]), "consort:007");
    // Numbers of files of values come as these do.
    assert_eq!(image(&["--set-json", "image.tag=20260101"]), "consort:20260101");
    assert!(notes("tag", "image.tag=20260101").contains("The image is consort:20260101."));
}

#[test]
fn probes_ask_in_the_way_that_is_answered() {
    let probes = |values: &[&str]| {
        let container = Chart::of(values).container().clone();
        ["startupProbe", "livenessProbe", "readinessProbe"].map(|name| container[name].clone())
    };
    const SHARED: &str = "probes.healthPort=0";
    for (values, scheme, port) in [
        (&[SHARED] as &[&str], "HTTP", "hotrod"),
        (&[SHARED, TLS], "HTTPS", "hotrod"),
        (&[], "HTTP", "health"),
        (&[TLS], "HTTP", "health"),
    ] {
        let asks = probes(values).map(|probe| probe["httpGet"].clone());
        assert!(asks.iter().all(|ask| ask["scheme"] == scheme && ask["port"] == port), "{asks:?}");
        // A server that waits for others is alive, and its probe does not restart it.
        let paths = asks.map(|ask| ask["path"].clone());
        assert_eq!(paths, ["/health/live", "/health/live", "/health/ready"].map(Value::from));
    }
    let [startup, ..] = probes(&[]);
    let seconds = |probe: &Value| {
        probe["periodSeconds"].as_u64().unwrap() * probe["failureThreshold"].as_u64().unwrap()
    };
    assert!(seconds(&startup) >= 600, "{startup}");
    // The kubelet has no certificate to show.
    let needed = r#"tls={"secretName": "t", "clients": {"secretName": "c", "required": true}}"#;
    for probe in probes(&[SHARED, needed]) {
        assert!(probe["httpGet"].is_null() && probe["tcpSocket"]["port"] == "hotrod", "{probe}");
    }
    for probe in probes(&[needed]) {
        assert_eq!(probe["httpGet"]["port"], "health", "{probe}");
    }
    // Only where probes can be answered without clients does a stopped server stay.
    let stays = |values: &[&str]| Chart::of(values).arguments().contains(&"--stay-after-stop");
    assert!(stays(&[]) && !stays(&[SHARED]));
}

#[test]
fn invalid_values_are_refused() {
    for (value, expected) in [
        (r#"antiAfinity="none""#, "antiAfinity"),
        (r#"antiAffinity="hard""#, "antiAffinity"),
        ("replicas=-1", "replicas"),
        // YAML has made that of 1.10.
        ("image.tag=1.1", "tag"),
        ("image.tag=true", "tag"),
        (r#"replicas="three""#, "replicas"),
        (r#"persistence={"size": 5}"#, "size"),
        (r#"tls={"clients": {"secretName": "c"}}"#, "tls.clients.secretName needs tls.secretName"),
        (r#"tls={"secretName": "t", "clients": {"required": true}}"#, "tls.clients.required needs"),
        (r#"users={"noAuth": false}"#, "users.secretName is empty"),
        (r#"users={"secretName": "grid-users", "noAuth": true}"#, "one of them has to go"),
    ] {
        let made = helm(&["template", "grid"], &[value]);
        let message = text(&made.stderr);
        assert!(!made.status.success() && message.contains(expected), "{value}: {message}");
    }
}

#[test]
fn chart_serves_without_authentication_only_if_set() {
    let without = Chart::of(&[r#"users={"noAuth": true}"#]);
    assert!(without.arguments().contains(&"--no-auth"));
    let with = Chart::of(&[r#"users={"secretName": "grid-users"}"#]);
    assert!(!with.arguments().contains(&"--no-auth"));
    let image = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Dockerfile")).unwrap();
    assert!(!image.contains("\"--no-auth\""), "the image serves no client without users");
}

#[test]
fn the_images_below_are_named_by_digest() {
    let image = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Dockerfile")).unwrap();
    let bases: Vec<&str> = image.lines().filter_map(|line| line.strip_prefix("FROM ")).collect();
    assert_eq!(bases.len(), 2);
    for base in bases {
        let (_, digest) = base.split(' ').next().unwrap().split_once('@').expect("a digest");
        let argument =
            digest.strip_prefix("${").and_then(|name| name.strip_suffix('}')).expect("an argument");
        assert!(image.lines().any(|line| line == format!("ARG {argument}")), "{argument} has no default");
    }
}
