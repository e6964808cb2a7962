//! Duration of a send while another peer has stopped reading and its queue is full, over every transport (S000-7).
//! Fails if one in a thousand takes longer than 1 ms.
//!
//! `cargo bench --profile quick -p consort-channel --bench stalled`

// A bench shares a module with the tests of its crate only by its path: in a crate of its own, the module would depend on this
// one, whose every test and bench would depend on it.
#[path = "../tests/cluster/mod.rs"]
mod cluster;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster::PATIENCE;
use cluster::stallable_member::{StalledCluster, TRANSPORTS};
use consort_channel::{Delivery, Message, Receiver};
use hdrhistogram::Histogram;
use tokio::sync::watch;

const ROUNDS: usize = 200;

/// Messages sent before waiting for the receiver: far fewer than the credits, which are not measured.
const ROUND: usize = 500;

const SIZE: usize = 1_000;

/// Limit of the 99.9th percentile.
const LIMIT: Duration = Duration::from_millis(1);

#[derive(Default)]
struct Count(watch::Sender<usize>);

impl Receiver for Count {
    fn receive_batch(&self, delivery: Delivery) {
        self.0.send_modify(|count| *count += delivery.messages().len());
    }
}

async fn sends_with_a_stalled_peer(transport: (&'static str, &'static str)) -> Histogram<u64> {
    let count = Arc::<Count>::default();
    let cluster = StalledCluster::new(transport, count.clone()).await;
    let dest = cluster.other.address().clone();
    let mut arrived = count.0.subscribe();
    let mut times = Histogram::new_with_bounds(10, 60_000_000_000, 3).expect("bounds that fit");
    for round in 1..=ROUNDS {
        for _ in 0..ROUND {
            let message = Message::bytes(Some(dest.clone()), vec![1; SIZE]);
            let start = Instant::now();
            cluster.sender.send(message).await.expect("sent");
            times.saturating_record(start.elapsed().as_nanos() as u64);
        }
        let all = arrived.wait_for(|&count| count == round * ROUND);
        tokio::time::timeout(PATIENCE, all).await.expect("all arrive").expect("counted");
    }
    cluster.other.close().await;
    cluster.sender.close().await;
    times
}

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    println!("{:<10}{:>10}{:>10}{:>10}{:>10}{:>10}", "send, us", "mean", "p50", "p99", "p99.9", "max");
    let mut is_good = true;
    for transport in TRANSPORTS {
        let times = runtime.block_on(sends_with_a_stalled_peer(transport));
        let at = |quantile| times.value_at_quantile(quantile);
        is_good &= Duration::from_nanos(at(0.999)) < LIMIT;
        let columns = [times.mean(), at(0.5) as f64, at(0.99) as f64, at(0.999) as f64, times.max() as f64];
        let columns: String = columns.iter().map(|nanos| format!("{:>10.1}", nanos / 1_000.0)).collect();
        println!("{:<10}{columns}", transport.0);
    }
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
