//! One function for caches in this process and for caches of servers. A program moves from one to the other by the line
//! that makes the handle.
//!
//! `cargo run -p consort-examples --bin embedded_or_remote`

use consort::cache::BasicCache;
use consort::{CacheManager, Client, Server};
use consort_examples::{Failure, Served, in_process};

/// Sells fruit from any cache with such keys and values.
async fn sell<C: BasicCache<str, u32>>(stock: &C) -> Result<(), C::Error> {
    stock.put_all(&[("apples", &3), ("pears", &5)]).await?;
    stock.merge("apples", &2, |old, new| Some(old + new)).await?;
    let plums = stock.compute_if_absent("plums", || 7).await?;
    let left = stock.compute("pears", |pears| pears.and_then(|count| count.checked_sub(1))).await?;
    let sold = stock.take("plums").await?;
    println!("apples: {:?}, pears: {left:?}, plums: {plums}, sold: {sold:?}", stock.get("apples").await?);
    println!("entries: {}", stock.size().await?);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let manager = CacheManager::from_channel(in_process("A")?).connect("embedded-or-remote").await?;
    let served = Served::start(Server::builder()).await?;
    let client = Client::connect(&format!("hotrod://{}", served.address)).await?;
    client.administration().get_or_create("stock", r#"{"distributed-cache": {"owners": 2}}"#).await?;

    sell(&manager.cache::<String, u32>("stock").await?).await?;
    sell(&client.cache::<String, u32>("stock")).await?;

    client.close().await;
    served.stop().await?;
    manager.close().await?;
    Ok(())
}
