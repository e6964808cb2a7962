//! A network of its own for each test, apart from other tests and the machine's own clusters.

use std::process::Stdio;

use consort_testbed::{Network, own_network};

use crate::jgroups::{DIRECTORY_VARIABLE, directory};

const TEST_VARIABLE: &str = "CONSORT_INTEROP_TEST";

/// Runs the body of a test in a network namespace with a loopback that multicasts: [`in_network`].
pub fn in_own_network(test: &str, body: impl Future<Output = ()>) {
    in_network(Network::Loopback, test, body);
}

/// Runs the body of a test in a network namespace, by running the test of this name again in one. Its output is
/// shown if it fails.
///
/// # Panics
///
/// If the test does, or if no namespace can be made.
pub fn in_network(network: Network, test: &str, body: impl Future<Output = ()>) {
    if std::env::var_os(TEST_VARIABLE).is_some_and(|running| running == test) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("a runtime").block_on(body);
        return;
    }
    let program = std::env::current_exe().expect("this test program");
    let output = own_network(network)
        .arg(program)
        .args([test, "--exact", "--nocapture", "--include-ignored"])
        .env(TEST_VARIABLE, test)
        .env(DIRECTORY_VARIABLE, directory())
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("`unshare` (util-linux) does not start: {error}"));
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(output.status.success(), "{test} in its own network:\n{text}");
    // A name that fits no test would pass as well.
    assert!(text.contains("1 passed"), "{test} did not run:\n{text}");
}

pub(crate) fn current_test() -> String {
    std::env::var(TEST_VARIABLE).unwrap_or_else(|_| "no-test".to_owned())
}
