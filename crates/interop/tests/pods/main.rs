//! A real Kubernetes: the image of the `Dockerfile`, the manifests of `examples/kubernetes`, and the chart, on nodes with kubelets and
//! containers. All tests share one cluster, and each has a namespace of its own.

mod chart;
mod discovery;
mod founding_text;
mod release;
mod secured;
mod tokens;

use std::process::{Command, Output, Stdio};
use std::rc::Rc;
use std::sync::{LazyLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use consort_interop::{PATIENCE, built};
use consort_testbed::KubernetesCluster;

const NODES: u8 = 3;

static CLUSTER: LazyLock<KubernetesCluster> = LazyLock::new(|| {
    KubernetesCluster::start(&built("consort"), NODES).unwrap_or_else(|error| panic!("{error}"))
});

/// Held by tests that share the nodes, or exclusively by one that drains or cuts off a node.
static NODES_IN_USE: RwLock<()> = RwLock::new(());

/// A namespace of a test. It is deleted when the test ends.
struct Namespace {
    name: &'static str,
    nodes: Rc<Nodes>,
}

enum Nodes {
    Shared { _guard: RwLockReadGuard<'static, ()> },
    Exclusive { _guard: RwLockWriteGuard<'static, ()> },
}

impl Namespace {
    fn new(name: &'static str) -> Self {
        // A test that failed leaves the nodes as they were.
        let guard = NODES_IN_USE.read().unwrap_or_else(PoisonError::into_inner);
        Self::create(name, Rc::new(Nodes::Shared { _guard: guard }))
    }

    /// Another namespace of the same test. A second guard would wait for a test that waits for the first one.
    fn another(&self, name: &'static str) -> Self {
        Self::create(name, self.nodes.clone())
    }

    /// No other test has pods meanwhile.
    fn with_all_nodes(name: &'static str) -> Self {
        let guard = NODES_IN_USE.write().unwrap_or_else(PoisonError::into_inner);
        Self::create(name, Rc::new(Nodes::Exclusive { _guard: guard }))
    }

    fn create(name: &'static str, nodes: Rc<Nodes>) -> Self {
        succeed(CLUSTER.kubectl().args(["create", "namespace", name]));
        let namespace = Self { name, nodes };
        // Pods are refused before it exists.
        namespace.until("the service account", || {
            namespace.kubectl(&["get", "serviceaccount", "default"]).status.success()
        });
        namespace
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut kubectl = CLUSTER.kubectl();
        kubectl.arg(format!("--namespace={}", self.name)).args(arguments);
        kubectl
    }

    fn kubectl(&self, arguments: &[&str]) -> Output {
        self.command(arguments).stdin(Stdio::null()).output().expect("kubectl")
    }

    /// Returns the output of a command that has to succeed.
    fn run(&self, arguments: &[&str]) -> String {
        succeed(&mut self.command(arguments))
    }

    /// Creates objects from a manifest with the image that this cluster has.
    fn apply(&self, manifest: &str) {
        use std::io::Write as _;
        let manifest = manifest.replace("image: consort:", "image: localhost/consort:");
        let mut create = self.command(&["create", "-f", "-"]);
        let mut child = create.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("kubectl");
        child.stdin.take().expect("its input").write_all(manifest.as_bytes()).expect("it reads");
        assert!(child.wait().expect("its end").success(), "{manifest}");
    }

    /// Returns the names of the running pods with a label.
    fn running(&self, label: &str) -> Vec<String> {
        let label = format!("--selector={label}");
        let path = "jsonpath={range .items[*]}{.metadata.name}{\"\\n\"}{end}";
        let running = "--field-selector=status.phase=Running";
        self.run(&["get", "pods", &label, running, "--output", path]).lines().map(str::to_owned).collect()
    }

    /// Repeats a question until the answer is yes.
    fn until(&self, what: &str, mut holds: impl FnMut() -> bool) -> Duration {
        let start = Instant::now();
        while !holds() {
            if start.elapsed() > 2 * PATIENCE {
                let pods = self.kubectl(&["get", "pods", "--output=wide"]);
                let logs = self.kubectl(&["logs", "--all-pods", "--selector=app", "--tail=20"]);
                let text = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
                panic!("not in time: {what}\n{}\n{}", text(&pods), text(&logs));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        start.elapsed()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = CLUSTER.kubectl().args(["delete", "namespace", self.name, "--wait=false"]).output();
    }
}

fn succeed(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{text}{errors}", output.status);
    text.into_owned()
}

/// Prints a figure, also of a test that passes.
fn report(figure: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "figure: {figure}");
}

/// Returns the different views that members report to probe.
fn views(responses: &str) -> Vec<String> {
    let views = responses.lines().filter_map(|line| line.trim().strip_prefix("view=").map(str::to_owned));
    let mut views: Vec<String> = views.collect();
    views.sort();
    views.dedup();
    views
}
