//! The unmodified Java Hot Rod client against our servers.

use std::process::Stdio;
use std::time::Duration;

use consort_cache::{CacheManager, Channel};
use consort_conf::{Variables, parse_stack};
use consort_jgroups::HotRodClient;
use consort_server::Server;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// A JVM on a busy machine takes a tenth of this.
const PATIENCE: Duration = Duration::from_secs(180);

const STACK: &str = "<config><SHARED_LOOPBACK/><SHARED_LOOPBACK_PING/><MERGE3/>\
    <FD_ALL3 timeout=\"20000\" interval=\"2000\"/><VERIFY_SUSPECT2 timeout=\"2000\"/><NAKACK2/><UNICAST3/>\
    <STABLE/><GMS join_timeout=\"200\"/><UFC/><MFC/><FRAG4/></config>";

/// A server of this process.
struct Running {
    at: String,
    end: oneshot::Sender<()>,
    serving: JoinHandle<()>,
}

impl Running {
    async fn start(cluster: &str, name: &str) -> Self {
        let stack = parse_stack("servers", STACK, &Variables::new()).unwrap();
        let members = CacheManager::from_channel(Channel::from_config(stack.config)).name(name);
        let manager = members.connect(cluster).await.unwrap();
        let server = Server::builder().port(0).start(manager).await.unwrap();
        let at = server.address().to_string();
        let (end, ends) = oneshot::channel();
        let serving = tokio::spawn(async move {
            let ended = async {
                let _ = ends.await;
            };
            server.serve_until(ended).await.unwrap();
        });
        Self { at, end, serving }
    }

    async fn end(self) {
        self.end.send(()).unwrap();
        timeout(PATIENCE, self.serving).await.expect("it ends").unwrap();
    }
}

/// Runs a program of ours and shows what it said if it fails.
async fn java(program: &'static str, arguments: Vec<String>) {
    let client = tokio::task::spawn_blocking(HotRodClient::prepare).await.unwrap();
    let client = client.unwrap_or_else(|why| panic!("Java interop: {why}"));
    let mut command = client.command(program);
    command.args(arguments).stdin(Stdio::null());
    // Its requests have deadlines: it ends by itself.
    let running = tokio::task::spawn_blocking(move || command.output());
    let output = timeout(PATIENCE, running).await.expect("it ends").unwrap().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && said.contains("ok "), "{program}:\n{said}");
}

fn arguments(at: &str, intelligence: &str, version: &str, servers: usize) -> Vec<String> {
    [at, intelligence, version, &servers.to_string()].map(str::to_owned).to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_uses_maps_of_one_server_in_every_version_it_speaks() {
    let server = Running::start("hotrod-one", "A").await;
    for version in
        ["PROTOCOL_VERSION_30", "PROTOCOL_VERSION_31", "PROTOCOL_VERSION_40", "PROTOCOL_VERSION_41"]
    {
        java("Maps", arguments(&server.at, "BASIC", version, 1)).await;
    }
    java("Maps", arguments(&server.at, "TOPOLOGY_AWARE", "PROTOCOL_VERSION_AUTO", 1)).await;
    server.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_finds_the_owners_among_three_servers() {
    let [a, b, c] = ["A", "B", "C"].map(|name| Running::start("hotrod-three", name));
    // One after the other: each joins those before it.
    let servers = [a.await, b.await, c.await];
    java("Maps", arguments(&servers[1].at, "HASH_DISTRIBUTION_AWARE", "PROTOCOL_VERSION_AUTO", 3)).await;
    for server in servers {
        server.end().await;
    }
}
