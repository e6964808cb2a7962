//! Large values in pieces and at once through our Hot Rod client, with small gets on the same connection. The
//! server is another process.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Parser;
use consort_client::{Client, PIECE_BYTES, RawCache, VALUE_BYTES_MAX};
use consort_procstat::process;
use hdrhistogram::Histogram;
use serde_json::{Value, json};

/// Writes and reads values in pieces, and prints their effect on small gets as one line of JSON.
#[derive(Parser)]
struct Arguments {
    /// A server, as HOST:PORT.
    #[arg(long)]
    server: String,
    /// Megabytes each way, in values of 64 MB at most.
    #[arg(long, default_value_t = 1_000)]
    megabytes: usize,
    /// Seconds of small gets alone.
    #[arg(long, default_value_t = 3.0)]
    time: f64,
}

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const LARGE: &[u8] = b"large";
const SMALL: &[u8] = b"small";

const SMALL_SIZE: usize = 1_000;

const WARM_GETS: u64 = 2_000;

const ROUNDS: usize = 5;

/// Longer than a value of 64 MB takes on a slow machine.
const TIMEOUT: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let client = Client::connect(&arguments.server).await.with_context(|| arguments.server.clone())?;
    client
        .administration()
        .get_or_create("chunked-values", r#"{"distributed-cache": {"owners": 2}}"#)
        .await?;
    let cache = client.raw("chunked-values").with_timeout(TIMEOUT);
    cache.put(SMALL, &[7; SMALL_SIZE][..]).await?;
    let bytes = arguments.megabytes * 1_000_000;
    let size = bytes.min(VALUE_BYTES_MAX);
    let count = bytes.div_ceil(size);

    gets(&cache, |count| count < WARM_GETS).await?;
    let begin = Instant::now();
    let alone = gets(&cache, |_| begin.elapsed().as_secs_f64() < arguments.time).await?;
    let writing = beside(&cache, count * size, {
        let cache = cache.clone();
        async move {
            for _ in 0..count {
                write(&cache, size).await?;
            }
            Ok(())
        }
    });
    let mut written = writing.await?;
    let reading = beside(&cache, count * size, {
        let cache = cache.clone();
        async move {
            for _ in 0..count {
                read(&cache, size).await?;
            }
            Ok(())
        }
    });
    let mut read = reading.await?;
    whole(&cache, size, &mut written, &mut read).await?;
    let said = json!({
        "piece_bytes": PIECE_BYTES,
        "value_bytes": size,
        "alone_us": times(&alone),
        "written": written,
        "read": read,
    });
    println!("{said}");
    Ok(())
}

async fn write(cache: &RawCache, size: usize) -> anyhow::Result<()> {
    let piece = vec![7; PIECE_BYTES];
    let (mut writer, mut left) = (cache.writer(LARGE)?, size);
    while left > 0 {
        let length = left.min(PIECE_BYTES);
        writer.write(&piece[..length]).await?;
        left -= length;
    }
    ensure!(writer.finish().await?, "the value was not put");
    Ok(())
}

async fn read(cache: &RawCache, size: usize) -> anyhow::Result<()> {
    let mut reader = cache.reader(LARGE).await?.context("the value is gone")?;
    let mut length = 0;
    while let Some(piece) = reader.next().await? {
        length += piece.len();
    }
    ensure!(length == size, "{length} of {size} bytes were read");
    Ok(())
}

/// One get after the other while `continues` returns true. Returns nanoseconds.
async fn gets(cache: &RawCache, mut continues: impl FnMut(u64) -> bool) -> anyhow::Result<Histogram<u64>> {
    let mut times = Histogram::new_with_bounds(100, 60_000_000_000, 3)?;
    while continues(times.len()) {
        let begun = Instant::now();
        let value = cache.get(SMALL).await?;
        times.saturating_record(begun.elapsed().as_nanos() as u64);
        ensure!(value.is_some_and(|value| value.len() == SMALL_SIZE), "the small value is gone");
    }
    Ok(times)
}

async fn beside(
    cache: &RawCache,
    bytes: usize,
    moving: impl Future<Output = anyhow::Result<()>> + Send + 'static,
) -> anyhow::Result<Value> {
    let is_known = process::forget_peak_memory();
    let (before, begun) = (process::peak_memory_mb(), Instant::now());
    let moving = tokio::spawn(async move {
        moving.await?;
        anyhow::Ok(begun.elapsed().as_secs_f64())
    });
    let gets = gets(cache, |_| !moving.is_finished()).await?;
    let seconds = moving.await??;
    let mut said =
        json!({"gets": gets.len(), "gets_us": times(&gets), "mb_sec": bytes as f64 / 1e6 / seconds});
    if is_known {
        said["more_mb"] = (process::peak_memory_mb() - before).into();
    }
    Ok(said)
}

async fn whole(
    cache: &RawCache,
    size: usize,
    writing: &mut Value,
    reading: &mut Value,
) -> anyhow::Result<()> {
    let value = vec![7; size];
    let mut times: [Vec<f64>; 4] = Default::default();
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        cache.put(LARGE, &value[..]).await?;
        times[0].push(begun.elapsed().as_secs_f64());
        let begun = Instant::now();
        write(cache, size).await?;
        times[1].push(begun.elapsed().as_secs_f64());
        let begun = Instant::now();
        ensure!(cache.get(LARGE).await?.is_some_and(|got| got.len() == size), "the value is gone");
        times[2].push(begun.elapsed().as_secs_f64());
        let begun = Instant::now();
        read(cache, size).await?;
        times[3].push(begun.elapsed().as_secs_f64());
    }
    let [put, pieces_written, got, pieces_read] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        size as f64 / 1e6 / times[ROUNDS / 2]
    });
    (writing["whole_mb_sec"], writing["value_mb_sec"]) = (put.into(), pieces_written.into());
    (reading["whole_mb_sec"], reading["value_mb_sec"]) = (got.into(), pieces_read.into());
    Ok(())
}

fn times(times: &Histogram<u64>) -> Value {
    let at = |quantile| times.value_at_quantile(quantile) as f64 / 1e3;
    json!({"p50": at(0.5), "p99": at(0.99), "p99.9": at(0.999)})
}
