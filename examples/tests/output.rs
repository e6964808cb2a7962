//! Every example runs and prints what its reader expects.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

/// Ten times as long as any line takes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs an example to its end and returns the lines that it has printed.
fn output(program: &str) -> Vec<String> {
    let output = Command::new(program).output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn embedded_cache_keeps_the_entries_of_a_member_that_leaves() {
    let expected = [
        "members: 3",
        "two copies of each: true",
        "B reads 12: Some(144)",
        "C doubles it: Some(288)",
        "entries after A has left: 1000",
    ];
    assert_eq!(output(env!("CARGO_BIN_EXE_embedded_cache")), expected);
}

#[test]
fn transaction_changes_both_accounts_and_the_journal_or_nothing() {
    let expected = [
        "transfers: true and true",
        "ada Some(50), bob Some(50)",
        "more than there is: false",
        "entries in the journal: 2",
    ];
    assert_eq!(output(env!("CARGO_BIN_EXE_transaction")), expected);
}

#[test]
fn one_function_does_the_same_with_an_embedded_and_a_remote_cache() {
    let once = ["apples: Some(5), pears: Some(4), plums: 7, sold: Some(7)", "entries: 2"];
    assert_eq!(output(env!("CARGO_BIN_EXE_embedded_or_remote")), [once, once].concat());
}

#[test]
fn listener_prints_the_present_entry_and_every_change() {
    let expected = [
        "Existing apples: None -> Some(3)",
        "all present entries were delivered",
        "Created pears: None -> Some(5)",
        "Modified pears: Some(5) -> Some(4)",
        "Removed apples: Some(3) -> None",
    ];
    assert_eq!(output(env!("CARGO_BIN_EXE_listener")), expected);
}

#[test]
fn iteration_returns_each_entry_once() {
    let expected = ["entries: 10000, sum of values: 29994", "size: 10000", "largest key: 9999"];
    assert_eq!(output(env!("CARGO_BIN_EXE_iteration")), expected);
}

#[test]
fn counters_of_a_cluster_survive_their_coordinator_and_fork_channels_share_a_member() {
    let expected = [
        "A draws ticket 101",
        "B draws ticket 102",
        "C draws ticket 103",
        "C draws ticket 104",
        "C swaps 104 for 200: true",
        "an order at C: five apples",
    ];
    assert_eq!(output(env!("CARGO_BIN_EXE_counters_and_forks")), expected);
}

#[test]
fn counter_is_atomic_and_keeps_its_bounds() {
    let expected = [
        "next order: 101",
        "next order: 102",
        "compare and swap: 102",
        "value: 200",
        "a seat is taken, 1 left",
        "a seat is taken, 0 left",
        "no seat left",
    ];
    assert_eq!(output(env!("CARGO_BIN_EXE_counter")), expected);
}

#[test]
fn client_with_tls_authenticates_by_its_password_alone() {
    let expected = ["apples: Some(3)", "a wrong password is refused: true"];
    assert_eq!(output(env!("CARGO_BIN_EXE_client_tls")), expected);
}

#[test]
fn rpc_returns_a_result_or_an_error_per_member() {
    let expected = [
        "B: Long(42)",
        "B: B failed: java.lang.RuntimeException: too large",
        "A: Long(8)",
        "B: Long(8)",
        "C: Long(8)",
    ];
    assert_eq!(output(env!("CARGO_BIN_EXE_rpc")), expected);
}

#[test]
fn embedded_server_serves_clients() {
    let expected = ["apples: Some(3)", "replaced: false", "caches: [\"stock\"]"];
    assert_eq!(output(env!("CARGO_BIN_EXE_embedded_server")), expected);
}

#[test]
fn protocol_layer_sees_the_payload_in_both_directions() {
    assert_eq!(output(env!("CARGO_BIN_EXE_protocol_layer")), ["sent: 1000, received: 1000"]);
}

/// An example that reads its input, with the ports of its cluster.
struct Member {
    process: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Member {
    fn start(program: &str, arguments: &[&str], ports: [u16; 2], own: usize) -> Self {
        let hosts = ports.map(|port| format!("127.0.0.1[{port}]")).join(",");
        let mut process = Command::new(program)
            .args(arguments)
            .env("JGROUPS_BIND_ADDR", "127.0.0.1")
            .env("JGROUPS_BIND_PORT", ports[own].to_string())
            .env("JGROUPS_TCPPING_INITIAL_HOSTS", hosts)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let input = process.stdin.take();
        Self { process, input, lines }
    }

    /// Waits for a line that contains this text.
    fn expect(&self, text: &str) {
        let mut before = Vec::new();
        loop {
            let line =
                self.lines.recv_timeout(TIMEOUT).unwrap_or_else(|_| panic!("{text} not in {before:?}"));
            if line.contains(text) {
                return;
            }
            before.push(line);
        }
    }

    fn write(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Ends the input, and with it the example.
    fn end(mut self) {
        self.input = None;
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // It has ended already, unless the test has failed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Two ports that are free now.
fn free_ports() -> [u16; 2] {
    let listeners = [(), ()].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

#[test]
fn chat_members_read_each_other_and_the_lines_so_far() {
    let program = env!("CARGO_BIN_EXE_chat");
    let ports = free_ports();
    let mut a = Member::start(program, &["A"], ports, 0);
    a.expect("ready");
    a.write("first");
    a.expect("A: first");
    let mut b = Member::start(program, &["B"], ports, 1);
    b.expect("before: A: first");
    b.expect("ready");
    b.write("second");
    a.expect("B: second");
    b.end();
    a.expect("members: 1");
    a.end();
}

#[test]
fn jgroups_members_exchange_java_strings() {
    let program = env!("CARGO_BIN_EXE_jgroups_member");
    let ports = free_ports();
    let a = Member::start(program, &["A"], ports, 0);
    a.expect("view: ");
    let mut b = Member::start(program, &["B"], ports, 1);
    b.expect("view: ");
    b.write("hello");
    a.expect("string: hello");
    b.end();
    a.end();
}
