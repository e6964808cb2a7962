//! Queries of an indexed cache beside the same queries of a cache without an index, with the same entities, through our Hot Rod
//! client. The server is another process.

use std::time::Instant;

use anyhow::{Context, ensure};
use bytes::Bytes;
use clap::Parser;
use consort_client::{Client, RawCache};
use consort_protostream::wire::{LENGTH, MESSAGE, TYPE_NAME, VARINT, put_bytes, put_tag, put_varint};
use serde_json::{Value, json};

/// Fills two caches with entities, and prints the times of queries as one line of JSON.
#[derive(Parser)]
struct Arguments {
    /// A server, as HOST:PORT.
    #[arg(long)]
    server: String,
    /// Entities of each cache.
    #[arg(long, default_value_t = 1_000_000)]
    entities: u64,
    /// Queries of each kind with the index.
    #[arg(long, default_value_t = 100)]
    queries: u64,
    /// Queries of each kind without it.
    #[arg(long, default_value_t = 5)]
    scans: u64,
}

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const SCHEMA: &str = "syntax = \"proto3\";\npackage bench;\n\n/**\n * @Indexed\n */\nmessage Item {\n  /** @Keyword */\n  \
    string name = 1;\n  /** @Basic */\n  int64 number = 2;\n  string text = 3;\n}\n";

/// Without media types, because the client sends entities as bytes.
const INDEXED: &str = r#"{"distributed-cache": {"indexing": {"indexed-entities": ["bench.Item"]}}}"#;
const SCANNED: &str = r#"{"distributed-cache": {}}"#;

const BATCH: u64 = 1_000;

/// Hits of a range.
const RANGE: u64 = 50;

/// Coprime to usual numbers of entities, so that successive queries are far apart.
const STEP: u64 = 7_919;

fn name(number: u64) -> String {
    format!("item-{number:010}")
}

fn entity(number: u64) -> Bytes {
    let mut message = Vec::new();
    put_tag(&mut message, 1, LENGTH);
    put_bytes(&mut message, name(number).as_bytes());
    put_tag(&mut message, 2, VARINT);
    put_varint(&mut message, number);
    put_tag(&mut message, 3, LENGTH);
    put_bytes(&mut message, &[b'x'; 60]);
    let mut out = Vec::new();
    put_tag(&mut out, TYPE_NAME, LENGTH);
    put_bytes(&mut out, b"bench.Item");
    put_tag(&mut out, MESSAGE, LENGTH);
    put_bytes(&mut out, &message);
    out.into()
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let client = Client::connect(&arguments.server).await.with_context(|| arguments.server.clone())?;
    client.raw("___protobuf_metadata").put(&b"bench.proto"[..], SCHEMA.as_bytes()).await?;
    let administration = client.administration();
    administration.get_or_create("indexed", INDEXED).await?;
    administration.get_or_create("scanned", SCANNED).await?;
    let caches = [client.raw("indexed"), client.raw("scanned")];
    let mut seconds = [0.0; 2];
    // In turns, so that both meet the same load of the machine.
    for from in (0..arguments.entities).step_by(BATCH as usize) {
        for (cache, seconds) in caches.iter().zip(&mut seconds) {
            *seconds += fill(cache, from..(from + BATCH).min(arguments.entities)).await?;
        }
    }
    let [indexed, scanned] = &caches;
    let mut report = json!({"entities": arguments.entities});
    for (way, seconds) in ["indexed", "scanned"].into_iter().zip(seconds) {
        report["puts_per_second"][way] = (arguments.entities as f64 / seconds).into();
    }
    type Query = (&'static str, fn(u64) -> String, u64);
    let queries: [Query; 3] = [
        ("equal_number", |number| format!("FROM bench.Item WHERE number = {number}"), 1),
        ("equal_name", |number| format!("FROM bench.Item WHERE name = '{}'", name(number)), 1),
        (
            "range",
            |number| format!("FROM bench.Item WHERE number BETWEEN {number} AND {}", number + RANGE - 1),
            RANGE,
        ),
    ];
    for (kind, query, hits) in queries {
        let of = async |cache: &RawCache, count: u64| {
            times(cache, query, hits, arguments.entities - RANGE, count).await
        };
        let (with, without) = (of(indexed, arguments.queries).await?, of(scanned, arguments.scans).await?);
        let ratio = median(&without) / median(&with);
        report[kind] =
            json!({"indexed_us": figures(&with), "scanned_us": figures(&without), "times_faster": ratio});
    }
    println!("{report}");
    Ok(())
}

async fn fill(cache: &RawCache, numbers: std::ops::Range<u64>) -> anyhow::Result<f64> {
    let entries: Vec<(Bytes, Bytes)> = numbers.map(|number| (name(number).into(), entity(number))).collect();
    let begun = Instant::now();
    cache.put_all(entries.iter().map(|(key, value)| (&key[..], &value[..]))).await?;
    Ok(begun.elapsed().as_secs_f64())
}

/// Returns the microseconds of each query.
async fn times(
    cache: &RawCache,
    query: fn(u64) -> String,
    hits: u64,
    below: u64,
    count: u64,
) -> anyhow::Result<Vec<f64>> {
    let mut times = Vec::new();
    for number in (0..count).map(|nth| nth * STEP % below.max(1)) {
        let text = query(number);
        let begun = Instant::now();
        let found = cache.query(&text).entities().await?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
        ensure!(found.count == hits && found.hits.len() as u64 == hits, "{text}: {} hits", found.count);
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

fn median(times: &[f64]) -> f64 {
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

fn figures(times: &[f64]) -> Value {
    json!({"p50": median(times), "min": times.first(), "max": times.last()})
}
