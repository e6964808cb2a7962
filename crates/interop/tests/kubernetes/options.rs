//! The effects of the chart's options, one by one, and their schema.

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};

use super::rendered::{POD_NAME, TLS, names, selects};
use super::{Chart, PROGRAMS, helm, read_strictly, text};

fn stack_of(chart: &Chart) -> consort_group::config::ProtocolConfig {
    let stack = chart.only("ConfigMap")["data"]["stack.xml"].as_str().expect("a stack");
    let parsed = consort_conf::parse_stack("stack.xml", stack, &consort_conf::Variables::new());
    parsed.expect("a stack").config.protocols[0].clone()
}

#[test]
fn members_with_certificates_of_a_secret_require_tls_of_each_other() {
    let chart = Chart::of(&[r#"cluster={"tls": {"secretName": "grid-members"}}"#]);
    let transport = stack_of(&chart);
    let secret = &chart.volume("members")["secret"];
    // Readable for the member's group only: 0440.
    assert_eq!((&secret["secretName"], &secret["defaultMode"]), (&json!("grid-members"), &json!(0o440)));
    assert_eq!(chart.mount("members")["mountPath"], "/etc/consort/members");
    for (attribute, expected) in [
        ("tls.enabled", "true"),
        ("tls.client_auth", "NEED"),
        ("tls.keystore_path", "/etc/consort/members/tls.crt"),
        ("tls.key_path", "/etc/consort/members/tls.key"),
        ("tls.truststore_path", "/etc/consort/members/ca.crt"),
        ("tls.server_name", "grid-consort-members.shop.svc"),
    ] {
        assert_eq!(transport.get(attribute), Some(expected), "{attribute}");
    }

    let tls =
        r#"{"secretName": "m", "ca": {"secretName": "a", "key": "own.crt"}, "serverName": "grid.example"}"#;
    let chart = Chart::of(&[&format!(r#"cluster={{"tls": {tls}}}"#)]);
    let transport = stack_of(&chart);
    assert_eq!(transport.get("tls.truststore_path"), Some("/etc/consort/authority/own.crt"));
    assert_eq!(transport.get("tls.server_name"), Some("grid.example"));
    assert_eq!(chart.mount("authority")["mountPath"], "/etc/consort/authority");
    assert_eq!(chart.volume("authority")["secret"]["secretName"], "a");

    let chart = Chart::of(&[]);
    assert_eq!(stack_of(&chart).get("tls.enabled"), None);
}

#[test]
fn each_pod_has_a_load_balancer_by_whose_name_clients_come() {
    let external = r#"external={"type": "LoadBalancer", "domain": "grid.example", "sourceRanges": ["192.0.2.0/24"],
        "loadBalancerClass": "inner", "annotations": {"dns/name": "{host}", "dns/pod": "of {pod}"}}"#;
    let chart = Chart::of(&["replicas=2", external, TLS]);
    let services: Vec<&Value> =
        chart.all("Service").filter(|service| service["spec"]["type"] == "LoadBalancer").collect();
    assert_eq!(services.len(), 2);
    let pod_labels = &chart.pod()["metadata"]["labels"];
    for (nth, service) in services.iter().enumerate() {
        let pod = format!("grid-consort-{nth}");
        let (spec, annotations) = (&service["spec"], &service["metadata"]["annotations"]);
        let mut labels = pod_labels.clone();
        labels[POD_NAME] = Value::from(&*pod);
        assert!(selects(&spec["selector"], &labels) && !selects(&spec["selector"], pod_labels), "{spec}");
        assert_eq!(annotations["dns/name"], format!("{pod}.grid.example"));
        assert_eq!(annotations["dns/pod"], format!("of {pod}"));
        assert_eq!(spec["ports"][0]["port"], 11222, "the port that members advertise");
        assert_eq!(spec["externalTrafficPolicy"], "Local");
        assert_eq!(spec["loadBalancerSourceRanges"], json!(["192.0.2.0/24"]));
        assert_eq!(spec["loadBalancerClass"], "inner");
    }
    assert!(chart.arguments().contains(&"--advertise=$(POD_NAME).grid.example"), "{:?}", chart.arguments());
    let advertised = chart.arguments().iter().filter(|argument| argument.starts_with("--advertise")).count();
    assert_eq!(advertised, 1);
}

#[test]
fn port_of_each_node_leads_to_its_own_member() {
    let chart = Chart::of(&[r#"external={"type": "NodePort", "nodePort": 30123}"#]);
    let service = chart.service("grid-consort-external");
    let spec = &service["spec"];
    assert_eq!((&spec["type"], &spec["ports"][0]["nodePort"]), (&json!("NodePort"), &json!(30123)));
    assert_eq!(
        (&spec["externalTrafficPolicy"], &spec["internalTrafficPolicy"]),
        (&json!("Local"), &json!("Local"))
    );
    let arguments = chart.arguments();
    for argument in ["--advertise=$(HOST_IP)", "--advertise-port=30123"] {
        assert!(arguments.contains(&argument), "{arguments:?}");
    }
    let node = json!({"name": "HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}});
    assert!(chart.container()["env"].as_array().unwrap().contains(&node));
    // Prometheus does not read members twice.
    assert_ne!(service["metadata"]["labels"]["app.kubernetes.io/component"], "clients");
}

#[test]
fn affinity_and_constraints_are_added_to_those_of_the_chart() {
    let own = r#"{"topologyKey": "rack", "labelSelector": {"matchLabels": {"a": "b"}}}"#;
    let values = [
        format!(
            r#"affinity={{"nodeAffinity": {{"preferredDuringSchedulingIgnoredDuringExecution": []}},
                "podAntiAffinity": {{"requiredDuringSchedulingIgnoredDuringExecution": [{own}]}}}}"#
        ),
        r#"topologySpreadConstraints=[{"topologyKey": "rack", "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule"},
            {"topologyKey": "hall", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule",
             "labelSelector": {"matchLabels": {"team": "data"}}}]"#
            .to_owned(),
    ];
    let chart = Chart::of(&[&*values[0], &*values[1]]);
    let affinity = &chart.pod()["spec"]["affinity"];
    assert!(affinity["nodeAffinity"].is_object());
    let terms = &affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    assert_eq!(names(terms, "topologyKey"), ["kubernetes.io/hostname", "rack"]);
    let constraints = &chart.pod()["spec"]["topologySpreadConstraints"];
    assert_eq!(names(constraints, "topologyKey"), ["topology.kubernetes.io/zone", "rack", "hall"]);
    let labels = &chart.pod()["metadata"]["labels"];
    assert!(selects(&constraints[1]["labelSelector"]["matchLabels"], labels), "{constraints}");
    assert_eq!(constraints[1]["maxSkew"], 2);
    assert_eq!(constraints[2]["labelSelector"], json!({"matchLabels": {"team": "data"}}));

    let chart = Chart::of(&[&*values[0], r#"antiAffinity="none""#, r#"zoneSpread={"maxSkew": 0}"#]);
    let terms = &chart.pod()["spec"]["affinity"]["podAntiAffinity"];
    assert_eq!(terms["requiredDuringSchedulingIgnoredDuringExecution"].as_array().unwrap().len(), 1);
    assert!(chart.pod()["spec"]["topologySpreadConstraints"].is_null());
}

#[test]
fn volumes_budget_and_claims_have_their_settings() {
    let chart = Chart::of(&[
        r#"extraVolumes=[{"name": "keys", "secret": {"secretName": "keys"}}]"#,
        r#"extraVolumeMounts=[{"name": "keys", "mountPath": "/keys", "readOnly": true}]"#,
        r#"podDisruptionBudget={"maxUnavailable": "30%", "unhealthyPodEvictionPolicy": "AlwaysAllow"}"#,
        r#"persistence={"enabled": true, "retention": {"whenScaled": "Delete"}}"#,
    ]);
    assert_eq!(chart.volume("keys")["secret"]["secretName"], "keys");
    assert_eq!(chart.mount("keys")["mountPath"], "/keys");
    let budget = &chart.only("PodDisruptionBudget")["spec"];
    assert_eq!(budget["unhealthyPodEvictionPolicy"], "AlwaysAllow");
    assert_eq!(budget["maxUnavailable"], "30%");
    let retention = &chart.only("StatefulSet")["spec"]["persistentVolumeClaimRetentionPolicy"];
    assert_eq!(*retention, json!({"whenScaled": "Delete", "whenDeleted": "Retain"}));

    let chart = Chart::of(&[]);
    let budget = &chart.only("PodDisruptionBudget")["spec"];
    assert_eq!(budget["unhealthyPodEvictionPolicy"], "IfHealthyBudget");
    assert!(chart.only("StatefulSet")["spec"]["persistentVolumeClaimRetentionPolicy"].is_null());
}

/// Returns the metrics in an expression.
fn metrics_of(expression: &str) -> impl Iterator<Item = &str> {
    let words = expression.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    words.filter(|word| word.starts_with("consort_") || word.starts_with("process_"))
}

/// A test of the server compares docs/metrics.md with a server.
fn assert_is_known(metric: &str, documented: &str) {
    let family = metric.trim_end_matches("_bucket");
    assert!(documented.contains(&format!("| `{family}` |")), "{metric}");
}

#[test]
fn alerts_and_the_dashboard_have_metrics_of_the_server() {
    let documented =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md")).unwrap();
    let chart = Chart::of(&[
        TLS,
        r#"metrics={"rules": {"enabled": true, "labels": {"release": "p"}, "for": "7m", "diskFreeBytes": 5000000000,
            "certificateDays": 9}, "dashboard": {"enabled": true, "labels": {"own": "1"}, "annotations": {"f": "g"}}}"#,
    ]);
    let rule = chart.only("PrometheusRule");
    assert_eq!(rule["metadata"]["labels"]["release"], "p");
    let rules = rule["spec"]["groups"][0]["rules"].as_array().expect("rules");
    let expression = |alert: &str| {
        let rule = rules.iter().find(|rule| rule["alert"] == alert).unwrap_or_else(|| panic!("no {alert}"));
        rule["expr"].as_str().expect("an expression")
    };
    assert!(rules.iter().any(|rule| rule["for"] == "7m"));
    for rule in rules {
        let expression = rule["expr"].as_str().expect("an expression");
        let metrics: Vec<&str> = metrics_of(expression).collect();
        assert!(!metrics.is_empty(), "{rule}");
        // Each selects this release's servers.
        let selected = expression.matches(r#"{namespace="shop",service="grid-consort"}"#).count();
        assert_eq!(selected, metrics.len(), "{expression}");
        metrics.into_iter().for_each(|metric| assert_is_known(metric, &documented));
        assert!(!rule["annotations"]["summary"].as_str().expect("a summary").is_empty());
    }
    assert!(expression("ConsortDiskFull").ends_with("< 5000000000"));
    assert!(expression("ConsortCertificateEnds").contains("9 * 86400"));
    assert!(expression("ConsortMembersMissing").ends_with("< 3"));
    let without = Chart::of(&[r#"metrics={"rules": {"enabled": true}}"#]);
    assert!(!without.only("PrometheusRule").to_string().contains("ConsortCertificateEnds"));

    let mut maps = chart.all("ConfigMap");
    let map = maps.find(|map| map["metadata"]["name"] == "grid-consort-dashboard").expect("a dashboard");
    assert_eq!(
        (&map["metadata"]["labels"]["own"], &map["metadata"]["annotations"]["f"]),
        (&json!("1"), &json!("g"))
    );
    assert_eq!(map["metadata"]["labels"]["grafana_dashboard"], "1");
    let dashboard = map["data"]["grid-consort.json"].as_str().expect("a file");
    let dashboard: Value = serde_json::from_str(dashboard).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let expressions: Vec<&str> = targets.map(|target| target["expr"].as_str().expect("text")).collect();
    assert!(expressions.len() > 20);
    for metric in expressions.iter().flat_map(|expression| metrics_of(expression)) {
        assert_is_known(metric, &documented);
    }
}

#[test]
fn pod_of_the_test_is_no_member_and_reads_the_secrets_of_a_client() {
    let chart = Chart::of(&[]);
    let pod = chart.only("Pod");
    let members = &chart.only("StatefulSet")["spec"]["selector"]["matchLabels"];
    assert!(!selects(members, &pod["metadata"]["labels"]), "{pod}");
    assert_eq!(pod["metadata"]["annotations"]["helm.sh/hook"], "test");
    let script =
        |chart: &Chart| chart.only("Pod")["spec"]["containers"][0]["args"][0].as_str().unwrap().to_owned();
    assert!(script(&chart).contains("--servers 3"), "{}", script(&chart));
    let address = |chart: &Chart| chart.only("Pod")["spec"]["containers"][0]["env"][0]["value"].clone();
    assert_eq!(address(&chart), "hotrod://grid-consort.shop.svc:11222");

    let users = r#"users={"secretName": "grid-users"}"#;
    let needed = r#"tls={"secretName": "grid-tls", "clients": {"secretName": "c", "required": true}}"#;
    let test = r#"test={"userSecretName": "u", "cache": "stock", "certificateSecretName": "k",
        "ca": {"secretName": "a", "key": "own.crt"}}"#;
    let chart = Chart::of(&["replicas=5", users, needed, test, r#"service={"port": 999}"#]);
    assert_eq!(
        address(&chart),
        "hotrods://grid-consort.shop.svc:999?trust_store_file_name=/etc/consort/ca/own.crt&\
         key_store_file_name=/tmp/client.pem"
    );
    let (script, pod) = (script(&chart), chart.only("Pod"));
    assert!(script.contains("--servers 5") && script.contains("cache='stock'"), "{script}");
    assert!(!script.contains("grid create"), "{script}");
    let secrets: Vec<&Value> = pod["spec"]["volumes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|volume| &volume["secret"]["secretName"])
        .collect();
    assert_eq!(secrets, [&Value::Null, &json!("a"), &json!("k")]);
    let variables = names(&pod["spec"]["containers"][0]["env"], "name");
    assert_eq!(variables, ["AT", "TEST_USER", "CONSORT_PASSWORD"]);

    // It does not pass without having tested anything.
    let chart = Chart::of(&[users]);
    let script = chart.only("Pod")["spec"]["containers"][0]["args"][0].as_str().unwrap().to_owned();
    assert!(script.contains("exit 1") && !script.contains("grid put"), "{script}");
}

#[test]
fn values_without_effect_together_are_refused() {
    for (values, expected) in [
        (&[r#"cluster={"tls": {"serverName": "n"}}"#] as &[&str], "need cluster.tls.secretName"),
        (&[r#"cluster={"tls": {"ca": {"secretName": "a"}}}"#], "need cluster.tls.secretName"),
        (
            &[r#"cluster={"stack": "<config/>", "tls": {"secretName": "m"}}"#],
            "cluster.tls sets up the chart's stack",
        ),
        (&[r#"external={"type": "LoadBalancer"}"#], "needs external.domain"),
        (
            &[r#"external={"type": "NodePort", "domain": "grid.example"}"#],
            "are for external.type: LoadBalancer",
        ),
        (&[r#"external={"sourceRanges": ["192.0.2.0/24"]}"#], "are for external.type: LoadBalancer"),
        (&[r#"external={"annotations": {"a": "b"}}"#], "that external.type makes"),
        (&[r#"external={"type": "NodePort"}"#, r#"antiAffinity="none""#], "needs antiAffinity: required"),
        (&[r#"external={"type": "NodePort"}"#, r#"advertise="name""#], "leave advertise empty"),
        (&[r#"external={"type": "LoadBalancer", "domain": "no domain"}"#], "domain"),
        (&[r#"test={"userSecretName": "u"}"#], "one of them has to go"),
        (&[r#"test={"ca": {"secretName": "u"}}"#], "need tls.secretName"),
        (&[r#"cluster={"tokenSeconds": 599}"#], "tokenSeconds"),
        (&[r#"affinity={"nodeAfinity": {}}"#], "nodeAfinity"),
        (&[r#"topologySpreadConstraints=[{"topologyKey": "rack"}]"#], "maxSkew"),
    ] {
        let made = helm(&["template", "grid"], values);
        let message = text(&made.stderr);
        assert!(!made.status.success() && message.contains(expected), "{values:?}: {message}");
    }
}

/// Paths of all options in the schema: those with properties, and those without.
fn options(
    schema: &Value,
    own: &Value,
    path: &str,
    groups: &mut Vec<String>,
    leaves: &mut Vec<(String, Value)>,
) {
    let own = match own["$ref"].as_str() {
        Some(name) => schema.pointer(name.trim_start_matches('#')).expect("a definition"),
        None => own,
    };
    let Some(properties) = own["properties"].as_object() else {
        leaves.push((path.to_owned(), own.clone()));
        return;
    };
    groups.push(path.to_owned());
    for (name, property) in properties {
        options(schema, property, &format!("{path}/{name}"), groups, leaves);
    }
}

fn schema() -> Value {
    let text = fs::read_to_string(PROGRAMS.chart().join("values.schema.json")).expect("a schema");
    serde_json::from_str(&text).expect("JSON")
}

/// Paths of all options without properties, and their schemas.
pub(crate) fn leaves() -> Vec<(String, Value)> {
    let schema = schema();
    let (mut groups, mut leaves) = (Vec::new(), Vec::new());
    options(&schema, &schema, "", &mut groups, &mut leaves);
    // Helm's own, for charts that contain this one.
    leaves.retain(|(path, _)| path != "/global");
    leaves
}

/// Each option has a default in `values.yaml`, and a wrong type of it or a wrong name beside it is refused.
#[test]
fn schema_has_each_value_and_refuses_other_names_and_types() {
    let own = fs::read_to_string(PROGRAMS.chart().join("values.yaml")).expect("values");
    // The reader of manifests converts YAML of the kinds in its list.
    let values = format!("kind: PrometheusRule\n{own}");
    let values = read_strictly(values.as_bytes()).expect("values").remove(0);
    let (schema, leaves) = (schema(), leaves());
    let mut groups = Vec::new();
    options(&schema, &schema, "", &mut groups, &mut Vec::new());
    for (path, _) in &leaves {
        assert!(values.pointer(path).is_some(), "{path} is not in values.yaml");
    }
    let known: BTreeSet<&str> =
        groups.iter().map(String::as_str).chain(leaves.iter().map(|(path, _)| &**path)).collect();
    for group in &groups {
        let members = values.pointer(group).and_then(Value::as_object).expect("an object");
        for name in members.keys().filter(|name| *name != "kind") {
            assert!(known.contains(&*format!("{group}/{name}")), "{group}/{name} is not in the schema");
        }
    }
    let setting =
        |path: &str, value: &str| format!("{}={value}", path.trim_start_matches('/').replace('/', "."));
    let wrong_names =
        groups.iter().map(|group| (setting(&format!("{group}/unknown"), "1"), "unknown".to_owned()));
    let wrong_types = leaves.iter().map(|(path, own)| {
        let wrong = if own["type"] == "boolean" { r#""yes""# } else { "true" };
        (setting(path, wrong), path.clone())
    });
    for (value, expected) in wrong_names.chain(wrong_types) {
        let made = helm(&["template", "grid"], &[&value]);
        let message = text(&made.stderr);
        assert!(!made.status.success() && message.contains(&expected), "{value}: {message}");
    }
}
