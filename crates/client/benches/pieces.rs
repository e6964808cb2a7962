//! Large values in pieces beside the same at once (S002-17), and small gets while 1 GB goes both ways in pieces on their
//! connection (S002-15). Server and client share a process and its CPUs.
//!
//! `cargo bench --profile quick -p consort-client --bench pieces`

#[path = "../tests/it/servers.rs"]
#[allow(dead_code, reason = "tests need more of it")]
mod servers;

use std::time::{Duration, Instant};

use consort_client::{PIECE_BYTES, RawCache, VALUE_BYTES_MAX};
use hdrhistogram::Histogram;

use servers::Running;

const KEY: &[u8] = b"large";

/// Each way of a value, alternating.
const ROUNDS: usize = 8;

/// Values that are written and read while small gets go on: 1 GB of them.
const VALUES: usize = 1024 * 1024 * 1024 / VALUE_BYTES_MAX;

/// Gets without anything else, for comparison.
const QUIET: usize = 20_000;

async fn write(cache: &RawCache, piece: &[u8]) {
    let mut writer = cache.writer(KEY).expect("a key");
    for _ in 0..VALUE_BYTES_MAX / PIECE_BYTES {
        writer.write(piece).await.expect("written");
    }
    assert!(writer.finish().await.expect("put"));
}

async fn read(cache: &RawCache) {
    let mut reader = cache.reader(KEY).await.expect("begun").expect("it is there");
    let mut length = 0;
    while let Some(piece) = reader.next().await.expect("a piece") {
        length += piece.len();
    }
    assert_eq!(length, VALUE_BYTES_MAX / PIECE_BYTES * PIECE_BYTES);
}

async fn timed(work: impl Future<Output = ()>) -> Duration {
    let begun = Instant::now();
    work.await;
    begun.elapsed()
}

fn median(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let middle = times[times.len() / 2].as_secs_f64();
    format!("{:.0} MB/s", VALUE_BYTES_MAX as f64 / 1e6 / middle)
}

async fn compare(cache: &RawCache) {
    let (piece, whole) = (vec![7; PIECE_BYTES], vec![7; VALUE_BYTES_MAX]);
    let mut times: [Vec<Duration>; 4] = Default::default();
    for _ in 0..ROUNDS {
        times[0].push(timed(async { cache.put(KEY, &whole[..]).await.expect("put") }).await);
        times[1].push(timed(write(cache, &piece)).await);
        times[2].push(timed(async { drop(cache.get(KEY).await.expect("got")) }).await);
        times[3].push(timed(read(cache)).await);
    }
    let [put, written, got, read] = times.map(median);
    println!("64 MB put at once {put}, in pieces {written}; got at once {got}, in pieces {read}");
}

/// Gets until this is done, or so many.
async fn gets(cache: &RawCache, mut goes_on: impl FnMut(u64) -> bool) -> Histogram<u64> {
    let mut times = Histogram::new_with_bounds(100, 60_000_000_000, 3).expect("bounds that fit");
    while goes_on(times.len()) {
        let begun = Instant::now();
        assert!(cache.get(&b"small"[..]).await.expect("got").is_some());
        times.saturating_record(begun.elapsed().as_nanos() as u64);
    }
    times
}

fn told(times: &Histogram<u64>) -> String {
    let at = |quantile| times.value_at_quantile(quantile) as f64 / 1e3;
    format!("{} gets, p50 {:.0} us, p99 {:.0} us", times.len(), at(0.5), at(0.99))
}

async fn beside(cache: &RawCache) {
    cache.put(&b"small"[..], &[7; 1_024][..]).await.expect("put");
    let quiet = gets(cache, |count| count < QUIET as u64).await;
    let streaming = tokio::spawn({
        let cache = cache.clone();
        async move {
            let piece = vec![7; PIECE_BYTES];
            for _ in 0..VALUES {
                write(&cache, &piece).await;
                read(&cache).await;
            }
        }
    });
    let beside = gets(cache, |_| !streaming.is_finished()).await;
    streaming.await.expect("it ends");
    println!("1 KB without anything else: {}", told(&quiet));
    println!("1 KB while 1 GB is written and read in pieces: {}", told(&beside));
    let ratio = beside.value_at_quantile(0.99) as f64 / quiet.value_at_quantile(0.99) as f64;
    println!("p99 is {ratio:.1} times as long");
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let (_server, client) = Running::with_cache("pieces", "c").await;
        let cache = client.raw("c").with_timeout(servers::PATIENCE);
        compare(&cache).await;
        beside(&cache).await;
    });
}
