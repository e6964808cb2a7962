//! The Kubernetes chart (`charts/consort`): the manifests that Helm renders, parsed as Kubernetes' own types, and servers
//! started as the manifests say. There is no Kubernetes here: scheduling, addresses and names of pods are not tested.

mod effects;
mod live;
mod options;
mod rendered;

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;

use consort_testbed::KubernetesPrograms;
use serde_json::Value;

static PROGRAMS: LazyLock<KubernetesPrograms> =
    LazyLock::new(|| KubernetesPrograms::prepare().unwrap_or_else(|error| panic!("{error}")));

/// Renders the chart with values in a release `grid` in the namespace `shop`.
struct Chart {
    objects: Vec<Value>,
}

/// Runs a command with this input.
fn run(mut command: Command, input: &[u8]) -> Output {
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = pipes.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    // Helm may fail before it reads all input.
    let _ = child.stdin.take().expect("its input").write_all(input);
    child.wait_with_output().expect("its end")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// `helm` with this subcommand for the chart, and with values (`--set-json`).
fn helm(subcommand: &[&str], values: &[&str]) -> Output {
    let mut command = PROGRAMS.helm();
    command.args(subcommand).arg(PROGRAMS.chart()).args(["--namespace=shop", "--kube-version=1.35.0"]);
    for value in values {
        command.args(["--set-json", value]);
    }
    // Without users the chart has to be told explicitly, as tests of other features do here.
    if !values.iter().any(|value| value.starts_with("users")) {
        command.args(["--set-json", "users.noAuth=true"]);
    }
    run(command, b"")
}

/// Parses manifests as Kubernetes' own types, or returns the error.
fn read_strictly(manifests: &[u8]) -> Result<Vec<Value>, String> {
    let mut command = PROGRAMS.manifests();
    command.args(["ServiceMonitor", "PrometheusRule"]);
    let read = run(command, manifests);
    if read.status.success() {
        Ok(serde_json::from_slice(&read.stdout).expect("a list in JSON"))
    } else {
        Err(text(&read.stderr))
    }
}

/// A value of the chart may have a quote too many.
fn check_shell_script(script: &str) {
    let mut shell = Command::new("sh");
    shell.arg("-n");
    let checked = run(shell, script.as_bytes());
    assert!(checked.status.success(), "{}{script}", text(&checked.stderr));
}

impl Chart {
    fn of(values: &[&str]) -> Self {
        let made = helm(&["template", "grid"], values);
        assert!(made.status.success(), "{values:?}: {}", text(&made.stderr));
        let objects = read_strictly(&made.stdout).unwrap_or_else(|error| panic!("{values:?}: {error}"));
        for pod in objects.iter().filter(|object| object["kind"] == "Pod") {
            let container = &pod["spec"]["containers"][0];
            assert_eq!(container["command"][0], "/bin/sh", "{values:?}: {container}");
            check_shell_script(container["args"][0].as_str().expect("a script"));
        }
        Self { objects }
    }

    /// All of this kind.
    fn all<'a>(&'a self, kind: &str) -> impl Iterator<Item = &'a Value> {
        self.objects.iter().filter(move |object| object["kind"] == kind)
    }

    /// The only one of this kind.
    fn only(&self, kind: &str) -> &Value {
        let found: Vec<&Value> = self.all(kind).collect();
        let [only] = found[..] else { panic!("{} of {kind}", found.len()) };
        only
    }

    /// A service by which members are found, or the one for clients.
    fn service(&self, name: &str) -> &Value {
        let mut services = self.all("Service");
        services.find(|service| service["metadata"]["name"] == name).expect("a service of this name")
    }

    /// The pods' template.
    fn pod(&self) -> &Value {
        &self.only("StatefulSet")["spec"]["template"]
    }

    fn container(&self) -> &Value {
        &self.pod()["spec"]["containers"][0]
    }

    fn volume(&self, name: &str) -> &Value {
        of_name(&self.pod()["spec"]["volumes"], name)
    }

    fn mount(&self, name: &str) -> &Value {
        of_name(&self.container()["volumeMounts"], name)
    }

    /// The server's arguments as they stand there.
    fn arguments(&self) -> Vec<&str> {
        let arguments = self.container()["args"].as_array().expect("arguments");
        arguments.iter().map(|argument| argument.as_str().expect("text")).collect()
    }
}

/// The element of a list with this name.
fn of_name<'a>(list: &'a Value, name: &str) -> &'a Value {
    let mut all = list.as_array().into_iter().flatten();
    all.find(|one| one["name"] == name).unwrap_or_else(|| panic!("no {name}: {list}"))
}
