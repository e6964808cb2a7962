//! A Hot Rod server inside a program: clients in any language use the caches that the program uses itself.
//!
//! `cargo run -p consort-examples --bin embedded_server`

use consort::{CacheManager, Client, Server};
use consort_examples::{Failure, in_process};
use tokio::sync::oneshot;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let manager = CacheManager::from_channel(in_process("A")?).connect("served").await?;
    // Port 0 is any free one; the default is 11222. Without users only this host can connect.
    let server = Server::builder().port(0).start(manager).await?;
    let address = server.address();
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(server.serve_until(async { drop(stopped.await) }));

    let client = Client::connect(&format!("hotrod://{address}")).await?;
    let admin = client.administration();
    admin.get_or_create("stock", r#"{"distributed-cache": {"owners": 2}}"#).await?;
    let stock = client.cache::<String, u32>("stock");
    stock.put("apples", &3).await?;
    println!("apples: {:?}", stock.get("apples").await?);
    println!("replaced: {}", stock.replace("pears", &1).await?);
    println!("caches: {:?}", admin.names().await?);

    client.close().await;
    // The server answers all requests and hands its entries over before it ends.
    drop(stop);
    serving.await??;
    Ok(())
}
