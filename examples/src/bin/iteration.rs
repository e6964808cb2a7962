//! An iteration over the entries of all members: each entry exactly once, in batches, with bounded memory.
//!
//! `cargo run -p consort-examples --bin iteration`

use consort::CacheManager;
use consort_examples::{Failure, in_process};

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let a = CacheManager::from_channel(in_process("A")?).connect("iteration").await?;
    let b = CacheManager::from_channel(in_process("B")?).connect("iteration").await?;
    let numbers = a.cache::<u32, u32>("numbers").await?;
    let on_b = b.cache::<u32, u32>("numbers").await?;
    let entries: Vec<(u32, u32)> = (0..10_000).map(|n| (n, n % 7)).collect();
    numbers.put_all(entries.iter().map(|(key, value)| (key, value))).await?;

    // At most 1,000 entries are fetched and not yet consumed.
    let mut stream = on_b.entries().batch(1_000);
    let (mut count, mut sum) = (0, 0);
    while let Some(entry) = stream.next().await {
        let (_key, value) = entry?;
        count += 1;
        sum += value;
    }
    println!("entries: {count}, sum of values: {sum}");
    println!("size: {}", on_b.size().await?);

    // Keys alone need no transfer of values.
    let mut keys = on_b.keys();
    let mut largest = 0;
    while let Some(key) = keys.next().await {
        largest = largest.max(key?);
    }
    println!("largest key: {largest}");
    b.close().await?;
    a.close().await?;
    Ok(())
}
