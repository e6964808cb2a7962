//! Older and newer releases of the unmodified Java client: a short form of the other tests.

use consort_testbed::{HotRodClient, HotRodRelease};

use super::{Running, arguments, succeeds};

/// The names of the protocol versions in the last release with the old protocol.
const VERSIONS: [&str; 13] = [
    "PROTOCOL_VERSION_20",
    "PROTOCOL_VERSION_21",
    "PROTOCOL_VERSION_22",
    "PROTOCOL_VERSION_23",
    "PROTOCOL_VERSION_24",
    "PROTOCOL_VERSION_25",
    "PROTOCOL_VERSION_26",
    "PROTOCOL_VERSION_27",
    "PROTOCOL_VERSION_28",
    "PROTOCOL_VERSION_29",
    "PROTOCOL_VERSION_30",
    "PROTOCOL_VERSION_31",
    "PROTOCOL_VERSION_40",
];

pub(super) async fn prepared(release: HotRodRelease) -> HotRodClient {
    let client = tokio::task::spawn_blocking(move || HotRodClient::prepare_release(release)).await.unwrap();
    client.unwrap_or_else(|why| panic!("Java interop: {why}"))
}

async fn java(client: &HotRodClient, program: &str, arguments: Vec<String>) {
    let mut command = client.command(program);
    command.args(arguments);
    succeeds(program, command).await;
}

/// All checks with one server, and with three servers those that depend on owners.
async fn all(release: HotRodRelease, name: &str, cluster: &str) {
    let client = prepared(release).await;
    let server = Running::start(name, "A").await;
    let one = arguments(&server.at, "BASIC", "PROTOCOL_VERSION_AUTO", 1);
    for program in ["Walks", "Listeners", "Counters", "Multimaps", "Streams", "Asked"] {
        java(&client, program, one[..3].to_vec()).await;
    }
    let mut transactions = one[..3].to_vec();
    transactions.push("FULL_XA".to_owned());
    java(&client, "Transactions", transactions).await;
    server.end().await;
    let servers = Running::three(cluster).await;
    let three = arguments(&servers[2].at, "HASH_DISTRIBUTION_AWARE", "PROTOCOL_VERSION_AUTO", 3);
    java(&client, "Maps", three.clone()).await;
    java(&client, "Walks", three[..3].to_vec()).await;
    for server in servers {
        server.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_15_2_uses_all_operations() {
    all(HotRodRelease::V15_2, "hotrod-15-2", "hotrod-15-2-three").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_16_2_uses_all_operations() {
    all(HotRodRelease::V16_2, "hotrod-16-2", "hotrod-16-2-three").await;
}

/// In 2.0 this release takes an event's version for its key: listeners are looked at from 2.1 on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_15_0_uses_every_version_from_2_0_on() {
    let client = prepared(HotRodRelease::V15_0).await;
    let server = Running::start("hotrod-15-0", "A").await;
    for version in VERSIONS {
        java(&client, "Maps", arguments(&server.at, "BASIC", version, 1)).await;
    }
    for (program, versions) in [
        ("Walks", &["PROTOCOL_VERSION_25", "PROTOCOL_VERSION_29"][..]),
        ("Listeners", &["PROTOCOL_VERSION_21", "PROTOCOL_VERSION_26", "PROTOCOL_VERSION_29"]),
        ("Counters", &["PROTOCOL_VERSION_31", "PROTOCOL_VERSION_40"]),
        ("Multimaps", &["PROTOCOL_VERSION_29"]),
        ("Streams", &["PROTOCOL_VERSION_26", "PROTOCOL_VERSION_29"]),
        // This release sends -1 for an offset and a limit that are not set.
        ("Asked", &["PROTOCOL_VERSION_29", "PROTOCOL_VERSION_40"]),
    ] {
        for version in versions {
            java(&client, program, arguments(&server.at, "BASIC", version, 1)[..3].to_vec()).await;
        }
    }
    let mut transactions = arguments(&server.at, "BASIC", "PROTOCOL_VERSION_29", 1);
    transactions[3] = "NON_XA".to_owned();
    java(&client, "Transactions", transactions).await;
    server.end().await;
    let servers = Running::three("hotrod-15-0-three").await;
    for version in ["PROTOCOL_VERSION_20", "PROTOCOL_VERSION_29"] {
        let three = arguments(&servers[2].at, "HASH_DISTRIBUTION_AWARE", version, 3);
        java(&client, "Maps", three).await;
    }
    for server in servers {
        server.end().await;
    }
}
