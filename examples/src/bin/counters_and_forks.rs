//! Atomic counters of a cluster and fork channels, as those of JGroups: members share a counter, and several channels share
//! a member.
//!
//! `cargo run -p consort-examples --bin counters_and_forks`

use std::sync::mpsc::{Sender, channel};

use consort::channel::counter::CounterService;
use consort::channel::{Message, Receiver};
use consort_examples::{Failure, in_process_with};

/// Passes the texts that a fork channel receives on.
struct Texts(Sender<String>);

impl Receiver for Texts {
    fn receive(&self, message: Message) {
        let bytes = message.payload_bytes().map_or(&[][..], |bytes| bytes);
        let _ = self.0.send(String::from_utf8_lossy(bytes).into_owned());
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut members = Vec::new();
    for name in ["A", "B", "C"] {
        members.push(in_process_with(name, "<COUNTER/><FORK/>")?.connect("counted").await?);
    }
    for member in &members {
        let counter = CounterService::new(member)?.get_or_create("tickets", 100).await?;
        println!("{} draws ticket {}", member.name(), counter.increment_and_get().await?);
    }
    // The coordinator leaves; B has the counters as its backup.
    members.remove(0).close().await;
    let mut view = members[1].watch_view();
    view.wait_for(|view| view.as_ref().is_some_and(|view| view.len() == 2)).await?;
    let counter = CounterService::new(&members[1])?.get_or_create("tickets", 0).await?;
    println!("C draws ticket {}", counter.increment_and_get().await?);
    println!("C swaps 104 for 200: {}", counter.compare_and_set(104, 200).await?);

    let (sender, texts) = channel();
    let orders = members[1].fork("shop", "orders", Texts(sender.clone()))?;
    let invoices = members[1].fork("shop", "invoices", Texts(sender))?;
    let from_b = members[0].fork("shop", "orders", consort::channel::IgnoringReceiver)?;
    from_b.send(Message::bytes(Some(orders.address().clone()), "five apples")).await?;
    let order = tokio::task::spawn_blocking(move || texts.recv()).await??;
    println!("an order at C: {order}");

    drop((counter, orders, invoices, from_b));
    for member in members {
        member.close().await;
    }
    Ok(())
}
