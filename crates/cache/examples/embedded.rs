//! A grid of three members in one process: all members read the entries that one puts, and the entries of a member
//! that leaves move to the others.
//!
//! `cargo run --release -p consort-cache --example embedded`

use std::error::Error;
use std::time::Instant;

use consort_cache::{CacheManager, Channel};
use consort_conf::{Variables, parse_stack};

/// Members of one process need no sockets.
const STACK: &str = "<config>
    <SHARED_LOOPBACK/>
    <SHARED_LOOPBACK_PING/>
    <NAKACK2/>
    <UNICAST3/>
    <STABLE/>
    <GMS join_timeout='100'/>
    <UFC/>
    <MFC/>
    <FRAG4/>
</config>";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut members = Vec::new();
    for name in ["A", "B", "C"] {
        let stack = parse_stack("embedded.xml", STACK, &Variables::new())?;
        let channel = Channel::from_config(stack.config);
        members.push(CacheManager::from_channel(channel).name(name).connect("embedded").await?);
    }
    let mut caches = Vec::new();
    for member in &members {
        caches.push(member.cache::<String, u64>("squares").await?);
    }
    println!("{} has {} members", caches[0].name(), members[0].view().map_or(0, |view| view.len()));

    let begin = Instant::now();
    let entries: Vec<(String, u64)> = (0..10_000).map(|n: u64| (n.to_string(), n * n)).collect();
    caches[0].put_all(entries.iter().map(|(key, value)| (key.as_str(), value))).await?;
    println!("{} entries put by A in {:?}", entries.len(), begin.elapsed());
    for (member, cache) in members.iter().zip(&caches) {
        println!("{} owns {} of the {} copies", member.name(), cache.local_len(), 2 * entries.len());
    }

    println!("B gets the square of 1234: {:?}", caches[1].get("1234").await?);
    let doubled = caches[2].compute("1234", |square| square.map(|square| 2 * square)).await?;
    println!("C doubles it: {doubled:?}, and A gets {:?}", caches[0].get("1234").await?);

    let leaving = members.remove(0);
    caches.remove(0);
    leaving.close().await?;
    let left = caches[0].get_all(entries.iter().map(|(key, _)| key.as_str())).await?;
    println!("A has left, and of its entries {} are there", left.iter().flatten().count());
    for member in members {
        member.close().await?;
    }
    Ok(())
}
