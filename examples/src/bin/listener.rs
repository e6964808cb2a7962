//! A listener: a member receives the present entries of a cache, then every change, whichever member makes it.
//!
//! `cargo run -p consort-examples --bin listener`

use consort::CacheManager;
use consort::cache::{Event, EventKind};
use consort_examples::{Failure, in_process};

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let a = CacheManager::from_channel(in_process("A")?).connect("listener").await?;
    let b = CacheManager::from_channel(in_process("B")?).connect("listener").await?;
    let writer = a.cache::<String, u32>("stock").await?;
    let reader = b.cache::<String, u32>("stock").await?;

    writer.put("apples", &3).await?;
    // Changes that begin after the start are not missed.
    let mut events = reader.listen().with_state().with_previous().start().await?;
    let mut removals = 0;
    while removals < 1 {
        match events.next().await.ok_or("the cache is closed")?? {
            Event::Complete => {
                println!("all present entries were delivered");
                writer.put("pears", &5).await?;
                writer.put("pears", &4).await?;
                writer.remove("apples").await?;
            }
            // The cluster was split, or this reader was too slow.
            Event::Gap => println!("changes may be missing; present entries follow"),
            Event::Entry(event) => {
                let before = event.previous.map(|previous| previous.value);
                println!("{:?} {}: {before:?} -> {:?}", event.kind, event.key, event.value);
                removals += usize::from(event.kind == EventKind::Removed);
            }
        }
    }
    drop(events);
    b.close().await?;
    a.close().await?;
    Ok(())
}
