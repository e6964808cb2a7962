//! A Kubernetes cluster on this machine, with nodes in network namespaces.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};

use consort_netns::KillOnDrop;

use crate::jar::{JarError, finish, in_file};
use crate::kubernetes_programs::KubernetesPrograms;

const TOOLS: &str =
    "Debian's packages containerd, runc, containernetworking-plugins, nftables, util-linux and iproute2";

/// A control plane and nodes, with their containers. It ends when it is dropped, or with the process that started it.
#[derive(Debug)]
pub struct KubernetesCluster {
    programs: KubernetesPrograms,
    helm: KubernetesPrograms,
    directory: PathBuf,
    /// The process in the cluster's namespaces whose end ends all others.
    process: u32,
    _cluster: KillOnDrop,
    /// The cluster ends at the end of its input.
    _input: ChildStdin,
}

impl KubernetesCluster {
    /// Starts a cluster around the image of the repository with this binary, and returns when all nodes are ready. Nodes have the
    /// names node1, node2 and so on, and are in the zones zone1, zone2 and so on.
    ///
    /// # Errors
    ///
    /// If a tool is missing, or a node is not ready within 60 s. Needs root.
    pub fn start(binary: &Path, nodes: u8) -> Result<Self, JarError> {
        let (helm, programs) = (KubernetesPrograms::prepare()?, KubernetesPrograms::prepare_cluster()?);
        let images = container_images(&programs, binary)?;
        let directory = programs.directory().join("running");
        if directory.exists() {
            fs::remove_dir_all(&directory).map_err(in_file(&directory))?;
        }
        fs::create_dir_all(&directory).map_err(in_file(&directory))?;
        let log = directory.join("start.log");
        let mut start = Command::new("unshare");
        start.args(["--mount", "--pid", "--fork", "--kill-child", "--net", "--mount-proc"]);
        start.args(["--propagation", "private", "bash"]);
        start.arg(programs.root().join("interop/kubernetes/start.sh"));
        start.arg(programs.directory().join("cluster")).arg(&directory).arg(nodes.to_string()).args(images);
        start.stdin(Stdio::piped()).stdout(Stdio::piped());
        start.stderr(fs::File::create(&log).map_err(in_file(&log))?);
        let spawned = start.spawn();
        let mut child = spawned.map_err(|error| JarError::Tool {
            program: "unshare".to_owned(),
            package: TOOLS,
            error,
        })?;
        let input = child.stdin.take().expect("its input");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        let mut cluster = KillOnDrop(child);
        let is_ready = output.lines().map_while(Result::ok).any(|line| line == "ready");
        if !is_ready {
            let status = cluster.0.wait().map_err(in_file(&log))?;
            let output_text = fs::read_to_string(&log).unwrap_or_default();
            return Err(JarError::Failed { program: "start.sh".to_owned(), status, output_text });
        }
        let process = child_of(cluster.0.id()).map_err(in_file(Path::new("/proc")))?;
        Ok(Self { programs, helm, directory, process, _cluster: cluster, _input: input })
    }

    /// Returns the directory of `consort server`'s chart.
    pub fn chart(&self) -> PathBuf {
        self.helm.chart()
    }

    /// Returns the directory with the logs (`log`) and keys (`keys`) of the cluster.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns a command of a program in the network and the mounts of the control plane.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut enter = Command::new("nsenter");
        enter.arg(format!("--target={}", self.process)).args(["--mount", "--net", "--pid"]);
        enter.arg(program.as_ref());
        enter
    }

    /// Returns `kubectl` with all rights.
    pub fn kubectl(&self) -> Command {
        let mut kubectl = self.command(self.programs.directory().join("cluster"));
        kubectl.arg("kubectl").env("KUBECONFIG", self.kubeconfig());
        kubectl
    }

    /// Returns Helm with all rights.
    pub fn helm(&self) -> Command {
        let mut helm = self.command(self.helm.directory().join("helm"));
        self.helm.set_helm_directories(&mut helm);
        helm.env("KUBECONFIG", self.kubeconfig());
        helm
    }

    fn kubeconfig(&self) -> PathBuf {
        self.directory.join("keys/admin.kubeconfig")
    }
}

/// Builds the repository's image around a binary, without a container engine. Returns the archives of the image
/// `localhost/consort:0.1.0` and of the image that Kubernetes starts in each pod.
///
/// # Errors
///
/// If a tool is missing or fails. Needs root.
fn container_images(programs: &KubernetesPrograms, binary: &Path) -> Result<Vec<PathBuf>, JarError> {
    const PACKAGES: &str = "Debian's packages buildah and mmdebstrap";
    let directory = programs.directory().join("images");
    let [image, pause] = ["consort.tar", "pause.tar"].map(|name| directory.join(name));
    if image.exists() {
        fs::remove_file(&image).map_err(in_file(&image))?;
    }
    let scripts = programs.root().join("interop/kubernetes");
    let mut build = Command::new("bash");
    build.arg(scripts.join("image.sh")).arg(programs.root()).arg(binary).arg(&directory).arg("0");
    build.arg(format!("docker-archive:{}:localhost/consort:0.1.0", image.display()));
    finish(&mut build, PACKAGES)?;
    let mut build = Command::new("bash");
    build.arg(scripts.join("pause.sh")).arg(programs.directory().join("pause")).arg(&directory);
    finish(&mut build, PACKAGES)?;
    Ok(vec![image, pause])
}

fn child_of(process: u32) -> io::Result<u32> {
    let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children"))?;
    let child = children.split_whitespace().next().and_then(|child| child.parse().ok());
    child.ok_or_else(|| io::Error::other(format!("process {process} has no child")))
}
