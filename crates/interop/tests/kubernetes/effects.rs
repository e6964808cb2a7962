//! Each option of the chart changes the manifests.

use std::collections::BTreeSet;

use super::helm;
use super::options::leaves;

const PERSISTENT: &str = "persistence.enabled=true";
const MEMBERS_TLS: &str = r#"cluster.tls.secretName="m""#;
const TLS: &str = r#"tls.secretName="t""#;
const CLIENTS: &str = r#"tls.clients.secretName="c""#;
const USERS: &str = r#"users.secretName="u""#;
const BALANCED: &str = r#"external={"type": "LoadBalancer", "domain": "grid.example"}"#;
const NODES: &str = r#"external.type="NodePort""#;
const KUBE: &str = r#"cluster.discovery="kube""#;
const MONITOR: &str = "metrics.serviceMonitor.enabled=true";
const RULES: &str = "metrics.rules.enabled=true";
const DASHBOARD: &str = "metrics.dashboard.enabled=true";

/// Another value of each option than its default, and the settings with which it has an effect.
const EFFECTS: &[(&str, &[&str])] = &[
    ("replicas=5", &[]),
    (r#"image.repository="r/consort""#, &[]),
    (r#"image.tag="7""#, &[]),
    (r#"image.pullPolicy="Always""#, &[]),
    (r#"imagePullSecrets=[{"name": "registry"}]"#, &[]),
    (r#"fullnameOverride="data""#, &[]),
    (r#"nameOverride="data""#, &[]),
    (r#"labels={"a": "b"}"#, &[]),
    (r#"podLabels={"a": "b"}"#, &[]),
    (r#"podAnnotations={"a": "b"}"#, &[]),
    (r#"antiAffinity="preferred""#, &[]),
    ("zoneSpread.maxSkew=2", &[]),
    (r#"zoneSpread.whenUnsatisfiable="DoNotSchedule""#, &[]),
    (r#"location.zoneLabel="zone""#, &[]),
    (r#"affinity={"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}"#, &[]),
    (
        r#"topologySpreadConstraints=[{"topologyKey": "rack", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]"#,
        &[],
    ),
    (r#"nodeSelector={"disk": "ssd"}"#, &[]),
    (r#"tolerations=[{"key": "data", "operator": "Exists"}]"#, &[]),
    (r#"priorityClassName="high""#, &[]),
    (r#"listen="0.0.0.0""#, &[]),
    (r#"advertise="name""#, &[]),
    (r#"service.type="NodePort""#, &[]),
    ("service.port=999", &[]),
    (r#"service.annotations={"a": "b"}"#, &[]),
    (r#"service.ipFamilyPolicy="SingleStack""#, &[]),
    (r#"service.ipFamilies=["IPv6"]"#, &[]),
    (NODES, &[]),
    (r#"external.domain="other.example""#, &[BALANCED]),
    ("external.nodePort=30123", &[NODES]),
    (r#"external.annotations={"a": "b"}"#, &[NODES]),
    (r#"external.sourceRanges=["192.0.2.0/24"]"#, &[BALANCED]),
    (r#"external.loadBalancerClass="inner""#, &[BALANCED]),
    (r#"cluster.name="orders""#, &[]),
    ("cluster.port=7900", &[]),
    ("cluster.suspectAfterSeconds=20", &[]),
    (KUBE, &[]),
    (r#"cluster.stack="<config/>""#, &[]),
    (MEMBERS_TLS, &[]),
    (r#"cluster.tls.ca.secretName="a""#, &[MEMBERS_TLS]),
    (r#"cluster.tls.ca.key="own.crt""#, &[MEMBERS_TLS]),
    (r#"cluster.tls.serverName="grid.example""#, &[MEMBERS_TLS]),
    ("cluster.tokenSeconds=600", &[KUBE]),
    (r#"caches={"stock": {"localCache": {}}}"#, &[]),
    ("networkPolicy.enabled=false", &[]),
    (PERSISTENT, &[]),
    (r#"persistence.size="2Gi""#, &[PERSISTENT]),
    (r#"persistence.storageClass="fast""#, &[PERSISTENT]),
    (r#"persistence.accessModes=["ReadWriteOncePod"]"#, &[PERSISTENT]),
    (r#"persistence.retention.whenScaled="Delete""#, &[PERSISTENT]),
    (r#"persistence.retention.whenDeleted="Delete""#, &[PERSISTENT]),
    ("persistence.aloneAfterSeconds=60", &[PERSISTENT]),
    (USERS, &[]),
    (r#"users.key="file""#, &[USERS]),
    ("users.noAuth=true", &[r#"users.secretName="""#]),
    (TLS, &[]),
    (CLIENTS, &[TLS]),
    (r#"tls.clients.key="own.crt""#, &[TLS, CLIENTS]),
    ("tls.clients.required=true", &[TLS, CLIENTS]),
    ("metrics.open=true", &[USERS]),
    (MONITOR, &[]),
    (r#"metrics.serviceMonitor.interval="7s""#, &[MONITOR]),
    (r#"metrics.serviceMonitor.labels={"a": "b"}"#, &[MONITOR]),
    (r#"metrics.serviceMonitor.endpoint={"honorLabels": true}"#, &[MONITOR]),
    (RULES, &[]),
    (r#"metrics.rules.labels={"a": "b"}"#, &[RULES]),
    (r#"metrics.rules.for="7m""#, &[RULES]),
    ("metrics.rules.diskFreeBytes=7", &[RULES]),
    ("metrics.rules.certificateDays=7", &[RULES, TLS]),
    (DASHBOARD, &[]),
    (r#"metrics.dashboard.labels={"a": "b"}"#, &[DASHBOARD]),
    (r#"metrics.dashboard.annotations={"a": "b"}"#, &[DASHBOARD]),
    (r#"test.userSecretName="v""#, &[USERS]),
    (r#"test.cache="stock""#, &[]),
    (r#"test.ca.secretName="a""#, &[TLS]),
    (r#"test.ca.key="own.crt""#, &[TLS]),
    (r#"test.certificateSecretName="k""#, &[TLS, CLIENTS]),
    (r#"extraArgs=["--open-metrics"]"#, &[]),
    (r#"extraEnv=[{"name": "CONSORT_LOG", "value": "warn"}]"#, &[]),
    (r#"extraVolumes=[{"name": "keys", "secret": {"secretName": "keys"}}]"#, &[]),
    (r#"extraVolumeMounts=[{"name": "tmp", "mountPath": "/other"}]"#, &[]),
    (r#"resources={"limits": {"memory": "2Gi"}}"#, &[]),
    ("terminationGracePeriodSeconds=130", &[]),
    ("preStopSeconds=6", &[]),
    (r#"podManagementPolicy="OrderedReady""#, &[]),
    ("podDisruptionBudget.enabled=false", &[]),
    ("podDisruptionBudget.maxUnavailable=2", &[]),
    (r#"podDisruptionBudget.unhealthyPodEvictionPolicy="AlwaysAllow""#, &[]),
    ("probes.startSeconds=60", &[]),
    ("probes.periodSeconds=7", &[]),
    ("probes.timeoutSeconds=7", &[]),
    ("probes.healthPort=8080", &[]),
    ("probes.livenessFailures=7", &[]),
    ("probes.readinessFailures=7", &[]),
    ("serviceAccount.create=false", &[]),
    (r#"serviceAccount.name="own""#, &[]),
    (r#"serviceAccount.annotations={"a": "b"}"#, &[]),
    ("podSecurityContext=null", &[]),
    ("securityContext=null", &[]),
];

/// The manifests; `None` if the chart refuses the values.
fn manifests(values: &[&str]) -> Option<Vec<u8>> {
    let made = helm(&["template", "grid"], values);
    made.status.success().then_some(made.stdout)
}

#[test]
fn each_option_changes_the_manifests() {
    let mut known: BTreeSet<String> = leaves().into_iter().map(|(path, _)| path).collect();
    for (setting, with) in EFFECTS {
        let (path, _) = setting.split_once('=').expect("a value");
        let path = format!("/{}", path.replace('.', "/"));
        assert!(known.remove(&path), "{path} is no option, or stands twice");
        let changed = manifests(&[with, &[*setting][..]].concat());
        assert!(changed.is_some(), "{setting} with {with:?} is refused");
        let unchanged = manifests(with);
        // Without users the chart wants this option.
        assert!(unchanged.is_some() || path == "/users/noAuth", "{with:?} without {setting} is refused");
        assert!(changed != unchanged, "{setting} has no effect with {with:?}");
    }
    assert!(known.is_empty(), "options without a row: {known:?}");
}
