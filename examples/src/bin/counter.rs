//! A counter of a server: atomic, shared by all clients, with optional bounds.
//!
//! `cargo run -p consort-examples --bin counter`

use consort::client::{ClientError, CounterConfig, CounterKind};
use consort::{Client, Server};
use consort_examples::{Failure, Served};

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let served = Served::start(Server::builder()).await?;
    let client = Client::connect(&format!("hotrod://{}", served.address)).await?;

    let orders = client.counter("orders");
    orders.create(CounterConfig { initial: 100, ..CounterConfig::default() }).await?;
    println!("next order: {}", orders.add(1).await?);
    println!("next order: {}", orders.add(1).await?);
    // Returns the value before; the counter is changed only if that is the expected one.
    println!("compare and swap: {}", orders.compare_and_swap(102, 200).await?);
    println!("value: {}", orders.get().await?);

    let seats = client.counter("seats");
    let kind = CounterKind::Bounded { lower: 0, upper: 2 };
    seats.create(CounterConfig { kind, initial: 2, ..CounterConfig::default() }).await?;
    for _ in 0..3 {
        match seats.add(-1).await {
            Ok(left) => println!("a seat is taken, {left} left"),
            Err(ClientError::OutOfBounds(_)) => println!("no seat left"),
            Err(error) => return Err(error.into()),
        }
    }
    client.close().await;
    served.stop().await
}
