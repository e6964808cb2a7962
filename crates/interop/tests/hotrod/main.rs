//! The unmodified Java Hot Rod client against our servers.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use consort_cache::{CacheManager, Channel, View};
use consort_conf::{Variables, parse_stack};
use consort_server::{ClientCertificates, Server, ServerBuilder, Tokens, Users};
use consort_testbed::HotRodClient;
use consort_testkit::{Authority, Owners};
use tokio::sync::{OnceCell, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

mod administration;
mod behaviours;
mod node;
mod queries;
mod releases;
mod writes;

/// A JVM on a busy machine takes a tenth of this.
const PATIENCE: Duration = Duration::from_secs(180);

const STACK: &str = "<config><SHARED_LOOPBACK/><SHARED_LOOPBACK_PING/><MERGE3/>\
    <FD_ALL3 timeout=\"5000\" interval=\"500\"/><VERIFY_SUSPECT2 timeout=\"1000\"/><NAKACK2/><UNICAST3/>\
    <STABLE/><GMS join_timeout=\"200\"/><UFC/><MFC/><FRAG4/></config>";

/// The client's names of its protocol versions.
const VERSIONS: [&str; 4] =
    ["PROTOCOL_VERSION_30", "PROTOCOL_VERSION_31", "PROTOCOL_VERSION_40", "PROTOCOL_VERSION_41"];

/// A server of this process.
struct Running {
    at: String,
    view: watch::Receiver<Option<View>>,
    owners: Owners,
    end: oneshot::Sender<()>,
    serving: JoinHandle<()>,
}

impl Running {
    /// Three of a cluster, one after the other: each joins those before it.
    async fn three(cluster: &str) -> [Self; 3] {
        let [a, b, c] = ["A", "B", "C"].map(|name| Self::start(cluster, name));
        [a.await, b.await, c.await]
    }

    async fn start(cluster: &str, name: &str) -> Self {
        Self::secured(cluster, name, Server::builder()).await
    }

    /// One that is like this.
    async fn secured(cluster: &str, name: &str, builder: ServerBuilder) -> Self {
        let stack = parse_stack("servers", STACK, &Variables::new()).unwrap();
        let members = CacheManager::from_channel(Channel::from_config(stack.config)).name(name);
        let manager = members.connect(cluster).await.unwrap();
        let view = manager.watch_view();
        let owners = Owners::of(&manager);
        let server = builder.port(0).start(manager).await.unwrap();
        let at = server.address().to_string();
        let (end, ends) = oneshot::channel();
        let serving = tokio::spawn(async move {
            let ended = async {
                let _ = ends.await;
            };
            server.serve_until(ended).await.unwrap();
        });
        Self { at, view, owners, end, serving }
    }

    /// Waits until so many servers are in its view. Before one leaves, others' deaths have to be known.
    async fn sees(&self, servers: usize) {
        let mut view = self.view.clone();
        let seen = view.wait_for(|view| view.as_ref().is_some_and(|view| view.members().len() == servers));
        timeout(PATIENCE, seen).await.expect("it is noticed").expect("it runs");
    }

    /// As if its process was killed.
    async fn kill(self) {
        self.serving.abort();
        let _ = self.serving.await;
    }

    async fn end(self) {
        self.end.send(()).unwrap();
        timeout(PATIENCE, self.serving).await.expect("it ends").unwrap();
    }
}

async fn command(program: &'static str, arguments: Vec<String>) -> Command {
    // Programs must not be compiled while others load them.
    static CLIENT: OnceCell<HotRodClient> = OnceCell::const_new();
    let prepared = CLIENT.get_or_init(async || {
        let client = tokio::task::spawn_blocking(HotRodClient::prepare).await.unwrap();
        client.unwrap_or_else(|why| panic!("Java interop: {why}"))
    });
    let mut command = prepared.await.command(program);
    command.args(arguments);
    command
}

/// Runs one of our programs, and shows its output if it fails.
async fn java(program: &'static str, arguments: Vec<String>) {
    succeeds(program, command(program, arguments).await).await;
}

/// Runs one of our programs that ends by itself.
async fn succeeds(program: &str, mut command: Command) {
    command.stdin(Stdio::null());
    // Its requests have deadlines: it ends by itself.
    let running = tokio::task::spawn_blocking(move || command.output());
    let output = timeout(PATIENCE, running).await.expect("it ends").unwrap().unwrap();
    let lines = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && lines.contains("ok "), "{program}:\n{lines}");
}

/// One of our programs that keeps running while servers change.
struct RunningProgram {
    running: Child,
    lines: mpsc::Receiver<String>,
    /// All output and errors, for people.
    output: Arc<Mutex<Vec<String>>>,
    error_reader: JoinHandle<()>,
}

impl RunningProgram {
    async fn start(program: &'static str, arguments: Vec<String>) -> Self {
        Self::begin(command(program, arguments).await)
    }

    fn begin(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut running = command.spawn().unwrap();
        let (sender, lines) = mpsc::channel(1_000);
        let output = Arc::new(Mutex::new(Vec::new()));
        let printed = BufReader::new(running.stdout.take().unwrap()).lines();
        let keep = Arc::clone(&output);
        tokio::task::spawn_blocking(move || {
            for line in printed.map_while(Result::ok) {
                keep.lock().unwrap().push(line.clone());
                let _ = sender.blocking_send(line);
            }
        });
        let errors = BufReader::new(running.stderr.take().unwrap()).lines();
        let keep = Arc::clone(&output);
        let error_reader = tokio::task::spawn_blocking(move || {
            errors.map_while(Result::ok).for_each(|line| keep.lock().unwrap().push(line));
        });
        Self { running, lines, output, error_reader }
    }

    /// Waits for one more line with this text than before.
    async fn wait_for(&mut self, expected: &str) {
        self.line(expected, |line| line.starts_with(expected)).await;
    }

    /// Waits for the next line that is this.
    async fn line(&mut self, expected: &str, is_it: impl Fn(&str) -> bool) -> String {
        let waiting = async {
            while let Some(line) = self.lines.recv().await {
                if is_it(&line) {
                    return Some(line);
                }
            }
            None
        };
        match timeout(PATIENCE, waiting).await {
            Ok(Some(line)) => line,
            ended => {
                let state = if ended.is_ok() { "ended before it printed" } else { "is late with" };
                let _ = self.running.kill();
                let _ = self.running.wait();
                let _ = (&mut self.error_reader).await;
                let output = self.output.lock().unwrap().join("\n");
                panic!("it {state} {expected}:\n{output}");
            }
        }
    }

    /// It has seen enough, and none of its operations has failed.
    async fn end_without_failure(mut self) {
        self.running.stdin.take().unwrap().write_all(b"\n").unwrap();
        let sums =
            self.line("how many writes have failed", |line| line.contains(" writes acknowledged, ")).await;
        assert!(sums.ends_with(", 0 failed"), "{sums}");
        self.wait_for("ok ").await;
    }

    /// It has seen enough.
    async fn end(mut self) {
        self.running.stdin.take().unwrap().write_all(b"\n").unwrap();
        self.wait_for("ok ").await;
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        let _ = self.running.kill();
        let _ = self.running.wait();
    }
}

fn arguments(at: &str, intelligence: &str, version: &str, servers: usize) -> Vec<String> {
    [at, intelligence, version, &servers.to_string()].map(str::to_owned).to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_uses_maps_of_one_server_in_every_version() {
    let server = Running::start("hotrod-one", "A").await;
    for version in VERSIONS {
        java("Maps", arguments(&server.at, "BASIC", version, 1)).await;
    }
    java("Maps", arguments(&server.at, "TOPOLOGY_AWARE", "PROTOCOL_VERSION_AUTO", 1)).await;
    server.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_finds_the_owners_among_three_servers() {
    let servers = Running::three("hotrod-three").await;
    java("Maps", arguments(&servers[1].at, "HASH_DISTRIBUTION_AWARE", "PROTOCOL_VERSION_AUTO", 3)).await;
    for server in servers {
        server.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_iterates_over_entries_of_one_server_in_every_version() {
    let server = Running::start("hotrod-walks", "A").await;
    for version in VERSIONS {
        java("Walks", arguments(&server.at, "BASIC", version, 1)[..3].to_vec()).await;
    }
    server.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_iterates_over_every_entry_once_while_servers_join_and_leave() {
    let [a, b, c] = ["A", "B", "C"].map(|name| Running::start("hotrod-walks-three", name));
    let (a, b) = (a.await, b.await);
    let all = |count: &str| {
        let mut all = arguments(&a.at, "HASH_DISTRIBUTION_AWARE", "PROTOCOL_VERSION_AUTO", 3)[..3].to_vec();
        all.extend((!count.is_empty()).then(|| count.to_owned()));
        all
    };
    java("Walks", all("")).await;
    let mut walking = RunningProgram::start("Walks", all("20000")).await;
    walking.wait_for("walked").await;
    let c = c.await;
    walking.wait_for("walked").await;
    walking.wait_for("walked").await;
    c.owners.are(3).await;
    b.kill().await;
    a.sees(2).await;
    walking.wait_for("walked").await;
    walking.wait_for("walked").await;
    walking.end().await;
    a.end().await;
    c.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_uses_listeners_and_near_caches_in_every_version() {
    let server = Running::start("hotrod-listeners", "A").await;
    for version in VERSIONS {
        java("Listeners", arguments(&server.at, "BASIC", version, 1)[..3].to_vec()).await;
    }
    server.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_listeners_get_events_of_all_servers_when_one_is_killed() {
    let [a, b, c] = Running::three("hotrod-listeners-three").await;
    let mut arguments = arguments(&a.at, "HASH_DISTRIBUTION_AWARE", "PROTOCOL_VERSION_AUTO", 3);
    java("Listeners", arguments[..3].to_vec()).await;
    arguments[3] = "again".to_owned();
    let mut listening = RunningProgram::start("Listeners", arguments).await;
    listening.wait_for("told").await;
    b.kill().await;
    listening.wait_for("told").await;
    let d = Running::start("hotrod-listeners-three", "D").await;
    listening.wait_for("told").await;
    listening.wait_for("told").await;
    listening.end().await;
    for server in [a, c, d] {
        server.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_uses_counters_in_every_version() {
    let server = Running::start("hotrod-counters", "A").await;
    for version in &VERSIONS[1..] {
        java("Counters", arguments(&server.at, "BASIC", version, 1)[..3].to_vec()).await;
    }
    server.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_counters_keep_acknowledged_values_when_a_server_is_killed() {
    let [a, b, c] = Running::three("hotrod-counters-three").await;
    let mut arguments = arguments(&a.at, "HASH_DISTRIBUTION_AWARE", "PROTOCOL_VERSION_AUTO", 3);
    java("Counters", arguments[..3].to_vec()).await;
    arguments[3] = "again".to_owned();
    let mut counting = RunningProgram::start("Counters", arguments).await;
    counting.wait_for("added").await;
    b.kill().await;
    counting.wait_for("added").await;
    counting.wait_for("added").await;
    let d = Running::start("hotrod-counters-three", "D").await;
    counting.wait_for("added").await;
    counting.wait_for("added").await;
    counting.end().await;
    for server in [a, c, d] {
        server.end().await;
    }
}

const USERS: &str = "admin admin password:secret\nreader observer password:\"p@ss w:rd\"\nclient admin\n";

fn users() -> ServerBuilder {
    Server::builder().users(Users::parse("users", USERS).unwrap())
}

/// A login of a Java user: mechanism, name, password and the expected result.
type Fare<'a> = (&'a str, &'a str, &'a str, &'a str);

async fn java_user(at: &str, (mechanism, name, password, expected): Fare<'_>, files: [&str; 2]) {
    let [trusted, shown] = files;
    let arguments = [at, mechanism, name, password, trusted, shown, expected].map(str::to_owned);
    java("Users", arguments.to_vec()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_authenticates_with_passwords() {
    let server = Running::secured("hotrod-users", "A", users().allow_cleartext()).await;
    for mechanism in ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"] {
        java_user(&server.at, (mechanism, "admin", "secret", "works"), ["-", "-"]).await;
        java_user(&server.at, (mechanism, "admin", "wrong", "rejected"), ["-", "-"]).await;
    }
    java_user(&server.at, ("SCRAM-SHA-512", "reader", "p@ss w:rd", "reads"), ["-", "-"]).await;
    java_user(&server.at, ("SCRAM-SHA-256", "nobody", "secret", "rejected"), ["-", "-"]).await;
    java_user(&server.at, ("-", "", "", "rejected"), ["-", "-"]).await;
    server.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_authenticates_at_all_servers() {
    let servers = ["A", "B", "C"].map(|name| Running::secured("hotrod-users-three", name, users()));
    let [a, b, c] = servers;
    let servers = [a.await, b.await, c.await];
    java_user(&servers[1].at, ("SCRAM-SHA-256", "admin", "secret", "works"), ["-", "-"]).await;
    for server in servers {
        server.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_authenticates_with_certificates_and_tokens_over_tls() {
    let authority = Authority::new("hotrod-tls");
    let shown = authority.certify("server", &["127.0.0.1", "localhost"]).identity();
    let (key, token) = authority.tokens();
    let builder = users().tls(shown, ClientCertificates::Asked(authority.roots()));
    let builder = builder.tokens(Tokens::from_file(key, "shop").unwrap());
    let server = Running::secured("hotrod-tls", "A", builder).await;
    let trusted = authority.file().display().to_string();
    for mechanism in ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"] {
        java_user(&server.at, (mechanism, "admin", "secret", "works"), [&trusted, "-"]).await;
    }
    for (name, expected) in [("client", "works"), ("nobody", "rejected")] {
        let shown = authority.certify_in_one(name, &[]).display().to_string();
        java_user(&server.at, ("EXTERNAL", name, "", expected), [&trusted, &shown]).await;
    }
    for (audience, expected) in [("shop", "works"), ("bank", "rejected")] {
        let token = token(audience, "admin", 600);
        java_user(&server.at, ("OAUTHBEARER", "", &token, expected), [&trusted, "-"]).await;
    }
    let other = Authority::new("hotrod-tls-other");
    let untrusted = other.file().display().to_string();
    java_user(&server.at, ("PLAIN", "admin", "secret", "rejected"), [&untrusted, "-"]).await;
    server.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_uses_multimaps_in_every_version() {
    let server = Running::start("hotrod-multimaps", "A").await;
    for version in VERSIONS {
        java("Multimaps", arguments(&server.at, "BASIC", version, 1)[..3].to_vec()).await;
    }
    server.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_uses_multimaps_and_chunked_values_on_three_servers() {
    let servers = Running::three("hotrod-pieces-three").await;
    for program in ["Multimaps", "Streams"] {
        let all = arguments(&servers[1].at, "HASH_DISTRIBUTION_AWARE", "PROTOCOL_VERSION_AUTO", 3);
        java(program, all[..3].to_vec()).await;
    }
    for server in servers {
        server.end().await;
    }
}

/// With 4.1 only, which the client chooses by itself if the server announces it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_reads_and_writes_chunked_values() {
    let server = Running::start("hotrod-pieces", "A").await;
    for version in ["PROTOCOL_VERSION_41", "PROTOCOL_VERSION_AUTO"] {
        java("Streams", arguments(&server.at, "BASIC", version, 1)[..3].to_vec()).await;
    }
    server.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_sends_media_types_and_registers_schemas() {
    let server = Running::start("hotrod-formats", "A").await;
    for version in ["PROTOCOL_VERSION_30", "PROTOCOL_VERSION_41"] {
        java("Formats", arguments(&server.at, "BASIC", version, 1)[..3].to_vec()).await;
    }
    server.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_sends_media_types_to_three_servers() {
    let servers = Running::three("hotrod-formats-three").await;
    let all = arguments(&servers[1].at, "HASH_DISTRIBUTION_AWARE", "PROTOCOL_VERSION_AUTO", 3);
    java("Formats", all[..3].to_vec()).await;
    for server in servers {
        server.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_uses_transactions_in_every_version() {
    let server = Running::start("hotrod-transactions", "A").await;
    for version in VERSIONS {
        let mut all = arguments(&server.at, "BASIC", version, 1);
        all[3] = "NON_XA".to_owned();
        java("Transactions", all).await;
    }
    server.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_has_transactions_on_three_servers() {
    let servers = Running::three("hotrod-transactions-three").await;
    for mode in ["NON_XA", "NON_DURABLE_XA", "FULL_XA"] {
        let mut all = arguments(&servers[1].at, "HASH_DISTRIBUTION_AWARE", "PROTOCOL_VERSION_AUTO", 3);
        all[3] = mode.to_owned();
        java("Transactions", all).await;
    }
    for server in servers {
        server.end().await;
    }
}
