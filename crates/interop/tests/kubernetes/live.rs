//! Servers as the chart starts them, with its arguments, variables and stack. Parts that one machine requires are replaced:
//! paths of mounts, addresses of pods, and a table of hosts as the service's DNS.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use consort_interop::{Network, PATIENCE, Tool, in_network};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::Chart;

/// Pods of the chart on this machine. Their files are removed when the test ends.
struct Pods {
    chart: Chart,
    directory: PathBuf,
}

struct Pod {
    name: String,
    ip: IpAddr,
    server: Tool,
}

impl Pods {
    fn new(name: &str, values: &[&str]) -> Self {
        let directory = std::env::temp_dir().join(format!("consort-chart-{name}-{}", std::process::id()));
        let pods = Self { chart: Chart::of(values), directory };
        let data = pods.chart.only("ConfigMap")["data"].as_object().expect("files");
        fs::create_dir_all(pods.directory.join("stack")).expect("a directory");
        for (file, content) in data {
            fs::write(pods.directory.join("stack").join(file), content.as_str().expect("text"))
                .expect("written");
        }
        pods.list(&[]);
        pods
    }

    fn of_set(&self, nth: usize) -> String {
        format!("{}-{nth}", self.chart.only("StatefulSet")["metadata"]["name"].as_str().expect("a name"))
    }

    /// Sets the addresses of the headless service's name.
    fn list(&self, all: &[IpAddr]) {
        let service = self.chart.only("StatefulSet")["spec"]["serviceName"].as_str().expect("a service");
        let lines: String = all.iter().map(|ip| format!("{ip} {service}.shop.svc\n")).collect();
        // Written in place, because the pods have mounted this file.
        fs::write(self.directory.join("hosts"), format!("127.0.0.1 localhost\n{lines}")).expect("written");
    }

    /// Returns the value of a container's variable for a pod.
    fn variable(&self, variable: &Value, name: &str, ip: IpAddr, node: &str) -> String {
        match variable["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
            Some("metadata.name") => name.to_owned(),
            Some("status.podIP") => ip.to_string(),
            Some("spec.nodeName") => node.to_owned(),
            // Nodes without zones.
            Some("metadata.labels['topology.kubernetes.io/zone']") => String::new(),
            path => panic!("{path:?}: {variable}"),
        }
    }

    /// Starts a pod on a node. `own` says whether the server listens only on the pod's address, because others have the same
    /// port.
    fn start(&self, nth: usize, ip: &str, node: &str, own: bool) -> Pod {
        let (name, ip) = (self.of_set(nth), ip.parse().expect("an address"));
        let variables: BTreeMap<String, String> = self.chart.container()["env"]
            .as_array()
            .expect("variables")
            .iter()
            .map(|variable| {
                (variable["name"].as_str().unwrap().to_owned(), self.variable(variable, &name, ip, node))
            })
            .collect();
        let arguments: Vec<String> = self
            .chart
            .arguments()
            .into_iter()
            .map(|argument| {
                let mut argument = argument
                    .replace("/etc/consort", self.directory.to_str().expect("text"))
                    .replace("/var/lib/consort", self.directory.join(&name).to_str().expect("text"));
                for (variable, value) in &variables {
                    argument = argument.replace(&format!("$({variable})"), value);
                }
                assert!(!argument.contains("$("), "{argument}: no such variable");
                if own && argument == "--host=::" { format!("--host={ip}") } else { argument }
            })
            .collect();
        Pod { server: Tool::consort_with_hosts(&self.directory.join("hosts"), &arguments), name, ip }
    }
}

impl Drop for Pods {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

impl Pod {
    /// Returns the HTTP status and content, if the server responds.
    async fn ask(&self, path: &str) -> Option<(u16, String)> {
        self.ask_at(11222, path).await
    }

    async fn ask_at(&self, port: u16, path: &str) -> Option<(u16, String)> {
        let mut stream = tokio::net::TcpStream::connect((self.ip, port)).await.ok()?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        let (head, content) = answer.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, content.to_owned()))
    }

    /// As the kubelet does it.
    async fn probe(&self, chart: &Chart, probe: &str) -> bool {
        let get = &chart.container()[probe]["httpGet"];
        assert_eq!((get["port"].as_str(), get["scheme"].as_str()), (Some("health"), Some("HTTP")));
        let answer = self.ask_at(11223, get["path"].as_str().expect("a path")).await;
        answer.is_some_and(|(code, _)| (200..400).contains(&code))
    }

    /// The value of a metric.
    async fn metric(&self, name: &str) -> Option<f64> {
        let (_, metrics) = self.ask("/metrics").await?;
        let (_, value) =
            metrics.lines().filter_map(|line| line.rsplit_once(' ')).find(|(own, _)| *own == name)?;
        value.parse().ok()
    }

    fn at(&self) -> String {
        match self.ip {
            IpAddr::V4(ip) => format!("{ip}:11222"),
            IpAddr::V6(ip) => format!("[{ip}]:11222"),
        }
    }

    /// A `consort cache` command at this pod, which has to be done.
    fn cache(&self, arguments: &[&str]) -> String {
        let run = Tool::run_consort(&[&["cache", "--at", &self.at()], arguments].concat());
        assert!(run.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&run.stderr));
        String::from_utf8(run.stdout).expect("text")
    }
}

/// Asks again until it is so.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < until, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

const KEYS: usize = 60;

/// S000-35: four members on two machines, as where pods could not be kept apart: each key's owners are on both.
#[test]
fn members_of_the_chart_find_each_other_hand_over_and_keep_owners_apart() {
    let pods = Pods::new("four", &["replicas=4", r#"antiAffinity="preferred""#]);
    let test = "live::members_of_the_chart_find_each_other_hand_over_and_keep_owners_apart";
    in_network(Network::Loopback, test, async move {
        let places = [("127.0.0.11", "n1"), ("127.0.0.12", "n1"), ("127.0.0.13", "n2"), ("127.0.0.14", "n2")];
        let ips = places.map(|(ip, _)| ip.parse().expect("an address"));
        // All start at once, and the service's name comes to stand for one after the other.
        let mut nth = 0;
        let mut running = places.map(|(ip, node)| {
            nth += 1;
            pods.start(nth - 1, ip, node, true)
        });
        running[0].server.wait_for(&["not joining yet: grid-consort-members.shop.svc", "127.0.0.11"]);
        assert!(!running[0].probe(&pods.chart, "startupProbe").await);
        for listed in 1..=ips.len() {
            pods.list(&ips[..listed]);
        }
        for pod in &mut running {
            pod.server.wait_for(&["Hot Rod on", "cluster grid-consort"]);
        }
        for pod in &running {
            let chart = &pods.chart;
            until("ready", async || pod.probe(chart, "readinessProbe").await).await;
            assert!(pod.probe(chart, "startupProbe").await && pod.probe(chart, "livenessProbe").await);
            until("one cluster", async || pod.metric("consort_cluster_members").await == Some(4.0)).await;
        }
        running[0].cache(&["create", "stock", r#"{"distributed-cache": {"owners": 2, "segments": 64}}"#]);
        for pod in &running {
            let joined = async || pod.metric("consort_cache_members{cache=\"stock\"}").await == Some(4.0);
            until("all have the cache", joined).await;
            let calm = async || pod.metric("consort_cache_rebalancing{cache=\"stock\"}").await == Some(0.0);
            until("nothing moves", calm).await;
        }
        for key in 0..KEYS {
            running[key % 4].cache(&["put", "stock", &format!("k{key}"), "v"]);
        }
        let mut entries = Vec::new();
        for pod in &running {
            entries.push(pod.metric("consort_cache_entries{cache=\"stock\"}").await.expect("a number"));
        }
        // With owners anywhere that would be a coincidence.
        let each = KEYS as f64;
        assert_eq!((entries[0] + entries[1], entries[2] + entries[3]), (each, each), "{entries:?}");

        // A rolling update begins with the last one.
        let [first, second, third, mut last] = running;
        let grace = pods.chart.pod()["spec"]["terminationGracePeriodSeconds"].as_u64().expect("seconds");
        let begun = Instant::now();
        last.server.signal("TERM");
        last.server.wait_for(&["ended"]);
        last.server.wait_for_end();
        assert!(begun.elapsed() < Duration::from_secs(grace), "{:?}", begun.elapsed());
        assert_eq!(first.cache(&["size", "stock"]), format!("{KEYS}\n"));
        pods.list(&ips[..3]);
        // It comes back with another address, and finds those that are there.
        let mut again = pods.start(3, "127.0.0.15", "n2", true);
        pods.list(&[ips[0], ips[1], ips[2], again.ip]);
        let line = again.server.wait_for(&["Hot Rod on", "(4)"]);
        assert!(line.contains(&last.name) && again.name == last.name, "{line}");
        for pod in [&second, &third, &again] {
            until("one cluster", async || pod.metric("consort_cluster_members").await == Some(4.0)).await;
        }
        assert_eq!(again.cache(&["size", "stock"]), format!("{KEYS}\n"));
    });
}

/// The chart's values for users, caches and data: the server accepts them, listens on all addresses, and has its definitions
/// after a restart.
#[test]
fn a_member_of_the_chart_serves_users_over_ipv6_and_keeps_its_definitions() {
    let values = [
        "replicas=1",
        r#"users={"secretName": "grid-users"}"#,
        r#"persistence={"enabled": true}"#,
        r#"caches={"prices": {"replicatedCache": {"memory": {"maxCount": 9}}}}"#,
        r#"metrics={"open": true}"#,
        r#"extraArgs=["--mechanisms=SCRAM-SHA-256"]"#,
    ];
    let pods = Pods::new("one", &values);
    let test = "live::a_member_of_the_chart_serves_users_over_ipv6_and_keeps_its_definitions";
    in_network(Network::Dual, test, async move {
        fs::create_dir_all(pods.directory.join("users")).expect("a directory");
        fs::write(pods.directory.join("users/users"), "alice admin password:a\n").expect("written");
        pods.list(&["fd00::1".parse().expect("an address")]);
        let at = "--at=hotrod://alice:a@[fd00::1]:11222";
        for turn in ["create", "get-again"] {
            let mut pod = pods.start(0, "fd00::1", "n1", false);
            pod.server.wait_for(&["Hot Rod on [::]:11222, cluster grid-consort"]);
            until("ready", async || pod.probe(&pods.chart, "readinessProbe").await).await;
            assert_eq!(pod.metric("consort_cluster_members").await, Some(1.0));
            // kubectl port-forward comes from within the pod, by IPv4 as a rule.
            let local = Tool::run_consort(&["cache", "--at=alice:a@127.0.0.1:11222", "ls"]);
            assert!(local.status.success(), "{}", String::from_utf8_lossy(&local.stderr));
            if turn == "create" {
                let made = Tool::run_consort(&["cache", at, "create", "stock"]);
                assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
            }
            let listed = Tool::run_consort(&["cache", at, "ls"]);
            assert_eq!(String::from_utf8_lossy(&listed.stdout), "prices\nstock\n", "{listed:?}");
            pod.server.terminate();
        }
    });
}

/// With certificates for names: clients are sent names within the service.
#[test]
fn a_member_of_the_chart_speaks_tls() {
    let pods = Pods::new("tls", &["replicas=1", r#"tls={"secretName": "grid-tls"}"#]);
    let test = "live::a_member_of_the_chart_speaks_tls";
    in_network(Network::Loopback, test, async move {
        let made = rcgen::generate_simple_self_signed(vec![
            "localhost".to_owned(),
            "*.grid-consort-members.shop.svc".to_owned(),
        ]);
        let made = made.expect("a certificate");
        let directory = pods.directory.join("tls");
        fs::create_dir_all(&directory).expect("a directory");
        fs::write(directory.join("tls.crt"), made.cert.pem()).expect("written");
        fs::write(directory.join("tls.key"), made.signing_key.serialize_pem()).expect("written");
        pods.list(&["127.0.0.1".parse().expect("an address")]);
        let mut pod = pods.start(0, "127.0.0.1", "n1", false);
        pod.server.wait_for(&["Hot Rod on [::]:11222"]);
        let at = format!(
            "--at=hotrods://localhost?client_intelligence=BASIC&trust_store_file_name={}",
            directory.join("tls.crt").to_str().expect("text")
        );
        let listed = Tool::run_consort(&["cache", &at, "ls"]);
        assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
        // A client without TLS gets an error that says so.
        assert_eq!(pod.ask("/health/live").await.map(|(code, _)| code), Some(400));
        pod.server.terminate();
    });
}
