//! An embedded cache: three members share entries, and the entries of a member that leaves stay.
//!
//! `cargo run -p consort-examples --bin embedded_cache`
//!
//! The members are in one process here. In three processes each has
//! `CacheManager::from_file("tcp.xml")?.name("A").connect("shop")`.

use consort::CacheManager;
use consort_examples::{Failure, in_process};

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut members = Vec::new();
    let mut caches = Vec::new();
    for name in ["A", "B", "C"] {
        let manager = CacheManager::from_channel(in_process(name)?).connect("embedded").await?;
        caches.push(manager.cache::<u32, u64>("squares").await?);
        members.push(manager);
    }
    println!("members: {}", members[0].view().map_or(0, |view| view.len()));

    let squares: Vec<(u32, u64)> = (0..1_000).map(|n| (n, u64::from(n) * u64::from(n))).collect();
    caches[0].put_all(squares.iter().map(|(n, square)| (n, square))).await?;
    // Each entry has two owners, and for a moment more while the last member receives its share.
    let copies: u64 = caches.iter().map(|cache| cache.local_len()).sum();
    println!("two copies of each: {}", copies >= 2 * 1_000);

    println!("B reads 12: {:?}", caches[1].get(&12).await?);
    let doubled = caches[2].compute(&12, |square| square.map(|square| 2 * square)).await?;
    println!("C doubles it: {doubled:?}");

    // A member that is closed hands its entries over first.
    caches.remove(0);
    members.remove(0).close().await?;
    let mut left = 0;
    for (n, _) in &squares {
        left += usize::from(caches[0].contains(n).await?);
    }
    println!("entries after A has left: {left}");
    for member in members {
        member.close().await?;
    }
    Ok(())
}
