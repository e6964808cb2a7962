//! Channels over real sockets leave no resources, however they end. A program of its own, because descriptors are
//! counted per process.

mod cluster;

use std::time::Duration;

use cluster::{Cluster, PATIENCE, join_rpc};
use consort_channel::rpc::RpcDispatcher;
use consort_channel::{Message, Payload};
use tokio::runtime::Handle;
use tokio::time::timeout;

/// There is no other member to wait for.
const SOON: &str = "join_timeout=\"1ms\"";

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// Returns the number of tasks and descriptors.
fn tasks_and_descriptors() -> (usize, usize) {
    (Handle::current().metrics().num_alive_tasks(), descriptors())
}

/// A single member that has called itself and multicast.
async fn used(cluster: &Cluster) -> RpcDispatcher {
    let handler = |_: &Message| Ok(Payload::Bytes(None));
    let dispatcher = join_rpc(&cluster.name, cluster.builder("A"), handler).await;
    assert!(dispatcher.channel().view_text().ends_with("(1) [A]"), "{}", dispatcher.channel().view_text());
    dispatcher.channel().send(Message::bytes(None, "to all")).await.expect("sent");
    dispatcher
}

/// Ends a channel in one of four ways.
async fn end(cluster: &Cluster, way: usize) {
    match way {
        0 => used(cluster).await.channel().clone().close().await,
        1 => drop(used(cluster).await),
        // With a caller that still waits.
        2 => {
            let dispatcher = used(cluster).await;
            let waiting = dispatcher.channel().clone();
            let waits = tokio::spawn(async move {
                let mut views = waiting.watch_view();
                drop(waiting);
                while views.changed().await.is_ok() {}
            });
            drop(dispatcher);
            timeout(PATIENCE, waits).await.expect("watchers are woken").expect("no panic");
        }
        // Abandoned while joining.
        _ => {
            let joining = cluster.builder("A").connect(&cluster.name);
            let given_up = timeout(Duration::ZERO, joining).await;
            assert!(given_up.is_err(), "it takes longer than that");
        }
    }
}

/// S000-16: a thousand channels in a row, closed, dropped, or abandoned while joining, leave no task, no socket and
/// no timer.
#[tokio::test]
async fn channels_that_are_closed_dropped_or_given_up_leave_nothing_behind() {
    let clusters = [
        ("tcp.xml", "join_timeout=\"2s\""),
        ("udp.xml", "join_timeout=\"1s\""),
        ("tcp-new.xml", "join_timeout=\"1s\""),
    ]
    .map(|(config, slow)| Cluster::new(config).edited(&[(slow, SOON)]));
    // The runtime's own descriptors are opened once.
    end(&clusters[0], 0).await;
    let before = tasks_and_descriptors();
    for round in 0..1_000 {
        let (cluster, way) = (&clusters[round % clusters.len()], round / clusters.len() % 4);
        end(cluster, way).await;
        let gone = async {
            while tasks_and_descriptors() != before {
                tokio::task::yield_now().await;
            }
        };
        let outcome = timeout(PATIENCE, gone).await;
        let there = tasks_and_descriptors();
        assert!(outcome.is_ok(), "round {round}, {} way {way}: {there:?}, before {before:?}", cluster.config);
    }
}
