//! Queries of the unmodified Java client: responses equal those of Infinispan's server, except for documented differences.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use consort_interop::{Tool, in_own_network};
use consort_testbed::{HotRodClient, InfinispanServer};
use tokio::time::timeout;

use super::{PATIENCE, Running, command};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../interop/hotrod").join(name)
}

/// Returns the whole output of one of our programs.
pub(super) async fn run_java(program: &'static str, arguments: &[&str]) -> String {
    let mut command = command(program, arguments.iter().map(|one| (*one).to_owned()).collect()).await;
    command.stdin(Stdio::null());
    let running = tokio::task::spawn_blocking(move || command.output());
    let output = timeout(PATIENCE, running).await.expect("it ends").unwrap().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && printed.contains("\nok "), "{program}:\n{printed}{errors}");
    printed
}

/// Returns the output of the program that sends all queries of a file to a server.
async fn answers(at: &str, intelligence: &str, version: &str, queries: &str, cache: &str) -> String {
    let queries = file(queries).display().to_string();
    run_java("Queries", &[at, intelligence, version, &queries, cache]).await
}

/// Returns the output of the program with listeners for query results.
async fn watched(at: &str, cache: &str) -> String {
    run_java("Watches", &[at, "BASIC", "PROTOCOL_VERSION_AUTO", cache]).await
}

/// Returns the output of the program that iterates over query results, on demand with invalid queries. If several servers
/// refuse a query, the client reports one refusal and drops the others.
async fn found(at: &str, intelligence: &str, version: &str, cache: &str, wrong: Option<&str>) -> String {
    let arguments: Vec<&str> = [at, intelligence, version, cache].into_iter().chain(wrong).collect();
    run_java("Found", &arguments).await
}

/// Returns the output of the program whose listener also receives previous values.
async fn previous(at: &str) -> String {
    run_java("Before", &[at, "BASIC", "PROTOCOL_VERSION_AUTO"]).await
}

/// Returns the first difference, with its query.
pub(super) fn assert_same(ours: &str, theirs: &str) {
    let mut query = "";
    for (our, their) in ours.lines().zip(theirs.lines()) {
        if !our.starts_with(' ') {
            query = our;
        }
        assert_eq!(our, their, "{query}");
    }
    assert_eq!(ours.lines().count(), theirs.lines().count());
}

#[test]
fn java_gets_the_responses_of_infinispan() {
    // Maven cannot be reached out of a network of the test's own.
    let prepared = InfinispanServer::prepare().unwrap_or_else(|error| panic!("Infinispan's server: {error}"));
    HotRodClient::prepare().unwrap_or_else(|error| panic!("Java interop: {error}"));
    in_own_network("queries::java_gets_the_responses_of_infinispan", async move {
        let command =
            prepared.command("Q", 21222).unwrap_or_else(|error| panic!("Infinispan's server: {error}"));
        let mut infinispan = Tool::start(command);
        infinispan.wait_for(&[InfinispanServer::READY]);
        let server = Running::start("queries", "A").await;
        let version = "PROTOCOL_VERSION_AUTO";
        let theirs = answers("127.0.0.1:21222", "BASIC", version, "queries.txt", "items").await;
        let ours = answers(&server.at, "BASIC", version, "queries.txt", "items").await;
        assert_same(&ours, &theirs);
        let wrong = Some("wrong");
        let theirs = found("127.0.0.1:21222", "BASIC", version, "found", wrong).await;
        assert_same(&found(&server.at, "BASIC", version, "found", wrong).await, &theirs);
        let theirs = previous("127.0.0.1:21222").await;
        assert_same(&previous(&server.at).await, &theirs);
        let theirs = watched("127.0.0.1:21222", "watched").await;
        assert_same(&watched(&server.at, "watched").await, &theirs);
        let servers = Running::three("queries-watched").await;
        assert_same(&watched(&servers[1].at, "watched").await, &theirs);
        for server in servers.into_iter().chain([server]) {
            server.end().await;
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_queries_return_the_same_from_three_servers_as_from_one_in_every_version() {
    let (server, servers) = (Running::start("queries-one", "A").await, Running::three("queries-three").await);
    let one = answers(&server.at, "BASIC", "PROTOCOL_VERSION_30", "queries.txt", "items").await;
    let one_found = found(&server.at, "BASIC", "PROTOCOL_VERSION_30", "found", None).await;
    let all = "HASH_DISTRIBUTION_AWARE";
    for (version, server) in
        [("PROTOCOL_VERSION_31", 0), ("PROTOCOL_VERSION_40", 1), ("PROTOCOL_VERSION_41", 2)]
    {
        let three = answers(&servers[server].at, all, version, "queries.txt", version).await;
        assert_same(&three, &one);
        let three = found(&servers[server].at, all, version, version, None).await;
        assert_same(&three, &one_found);
    }
    server.end().await;
    for server in servers {
        server.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_queries_return_the_documented_results_where_infinispan_differs() {
    let servers = Running::three("queries-differ").await;
    let ours = answers(&servers[0].at, "BASIC", "PROTOCOL_VERSION_AUTO", "queries-differ.txt", "items").await;
    let written = std::fs::read_to_string(file("queries-differ.txt")).unwrap();
    let written: String =
        written.lines().filter(|line| !line.starts_with("//")).flat_map(|line| [line, "\n"]).collect();
    assert_same(ours.strip_suffix("ok 0\n").expect("its end"), &written);
    for server in servers {
        server.end().await;
    }
}
