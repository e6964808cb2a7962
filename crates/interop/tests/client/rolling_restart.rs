//! A rolling update: servers that end in order and start again, one after the other, while clients write all the time. No write
//! fails, and none is left of which its client does not know whether it was done.

use consort_client::{Cache, Client};
use consort_interop::{PATIENCE, Tool, in_own_network};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::cluster::consort;
use crate::feature_matrix;

const WRITERS: u64 = 50;

/// Writes between two events: enough that each writer has some under way while a server ends.
const WRITES_BETWEEN: u64 = 5_000;

/// Writers, each with a key of its own. None of them takes an error for an answer.
struct Writers {
    ends: watch::Sender<bool>,
    written: watch::Sender<u64>,
    running: JoinSet<()>,
}

async fn write(cache: Cache<u64, u64>, key: u64, ends: watch::Receiver<bool>, written: watch::Sender<u64>) {
    let mut last = 0;
    while !*ends.borrow() {
        last += 1;
        let put = cache.put(&key, &last).await;
        put.unwrap_or_else(|error| panic!("write {last} of writer {key}: {error}"));
        written.send_modify(|written| *written += 1);
    }
    assert_eq!(cache.get(&key).await.unwrap(), Some(last), "writer {key}");
}

impl Writers {
    fn begin(cache: &Cache<u64, u64>) -> Self {
        let (ends, written) = (watch::Sender::new(false), watch::Sender::new(0));
        let mut running = JoinSet::new();
        for key in 0..WRITERS {
            running.spawn(write(cache.clone(), key, ends.subscribe(), written.clone()));
        }
        Self { ends, written, running }
    }

    /// Waits for so many further writes.
    async fn wait_for_writes(&mut self) {
        let mut written = self.written.subscribe();
        let wanted = *written.borrow() + WRITES_BETWEEN;
        let progress = written.wait_for(|written| *written >= wanted);
        tokio::select! {
            progress = timeout(PATIENCE, progress) => drop(progress.expect("writers continue").unwrap()),
            Some(ended) = self.running.join_next() => ended.expect("a writer has failed"),
        }
    }

    async fn end(mut self) {
        self.ends.send_replace(true);
        while let Some(ended) = self.running.join_next().await {
            ended.expect("a writer has failed");
        }
    }
}

/// Restarts each server, and waits in between until writers have gone on.
async fn restart_one_after_the_other(servers: &mut [(&'static str, u16, Tool)], writers: &mut Writers) {
    for (name, port, server) in servers {
        writers.wait_for_writes().await;
        tokio::task::block_in_place(|| {
            server.signal("TERM");
            server.wait_for_end();
        });
        writers.wait_for_writes().await;
        *server = tokio::task::block_in_place(|| consort(name, *port));
    }
    writers.wait_for_writes().await;
}

#[test]
fn no_write_fails_while_servers_are_restarted_one_after_the_other() {
    in_own_network(
        "rolling_restart::no_write_fails_while_servers_are_restarted_one_after_the_other",
        async move {
            let all = [("A", 11222), ("B", 11322), ("C", 11422), ("D", 11522)];
            let mut servers = all.map(|(name, port)| (name, port, consort(name, port)));
            let at: Vec<String> = all.iter().map(|(_, port)| format!("127.0.0.1:{port}")).collect();
            let client = Client::connect(&format!("hotrod://{}", at.join(","))).await.expect("a connection");
            client.administration().create("written", feature_matrix::DISTRIBUTED).await.unwrap();
            let mut writers = Writers::begin(&client.cache("written"));
            restart_one_after_the_other(&mut servers, &mut writers).await;
            writers.end().await;
        },
    );
}
