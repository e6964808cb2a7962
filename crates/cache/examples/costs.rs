//! The costs of operations: of local reads in nanoseconds, compared to a plain sharded map, and of remote operations in
//! CPU time of the process, in which three members communicate over TCP on loopback.
//!
//! `cargo run --release -p consort-cache --example costs -- [callers] [seconds]`

use std::collections::HashMap;
use std::error::Error;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use consort_cache::{Cache, CacheConfig, CacheManager, Channel, Phase, RawCache, Topology};
use consort_conf::Variables;
use consort_procstat::process::cpu;

const KEYS: usize = 100_000;
const VALUE: usize = 1_000;

/// Reads of a round.
const READS: usize = 200;

fn next(random: &mut u64) -> usize {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    (*random % KEYS as u64) as usize
}

/// Returns the nanoseconds per read: the median of rounds that are shorter than a time slice of the scheduler.
fn nanos(mut read: impl FnMut(usize)) -> f64 {
    let mut random = 0x9E37_79B9_7F4A_7C15;
    let mut rounds: Vec<f64> = (0..10_000)
        .map(|_| {
            let order: Vec<usize> = (0..READS).map(|_| next(&mut random)).collect();
            let begin = Instant::now();
            order.into_iter().for_each(&mut read);
            begin.elapsed().as_nanos() as f64 / READS as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

async fn member(name: &str) -> Result<CacheManager, Box<dyn Error>> {
    let variables = Variables::new()
        .with("jgroups.bind_addr", "127.0.0.1")
        .with("jgroups.bind_port", "17800")
        .with("jgroups.tcpping.initial_hosts", "127.0.0.1[17800]");
    let channel = Channel::from_file_with("tcp.xml", &variables)?;
    Ok(CacheManager::from_channel(channel).name(name).connect("costs").await?)
}

async fn settled(member: &CacheManager, cache: &str, count: usize) -> Result<(), Box<dyn Error>> {
    let mut topologies = member.watch_topology(cache).ok_or("it is open")?;
    let is_settled =
        |topology: &Topology| topology.phase == Phase::Stable && topology.current.members().len() == count;
    topologies.wait_for(|topology| topology.as_ref().is_some_and(is_settled)).await?;
    Ok(())
}

fn poll<F: Future>(future: F) -> Option<F::Output> {
    use std::task::{Context, Poll, Waker};
    match std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    }
}

fn local_reads(cache: &RawCache, typed: &Cache<String, u64>, keys: &[Bytes]) {
    let maps: Vec<Mutex<HashMap<Bytes, Bytes, foldhash::fast::RandomState>>> =
        (0..256).map(|_| Mutex::default()).collect();
    let shard = |key: &Bytes| usize::from(consort_grid::segment_of(key, 256).0);
    for key in keys {
        // A copy of the key, as a cache has: the caller passes another one.
        maps[shard(key)].lock().unwrap().insert(Bytes::copy_from_slice(key), Bytes::from(vec![7; VALUE]));
    }
    let names: Vec<String> = (0..KEYS).map(|n| format!("name-{n:06}")).collect();
    let shards: Vec<usize> = keys.iter().map(shard).collect();
    let bare = nanos(|n| drop(black_box(maps[shards[n]].lock().unwrap().get(&keys[n]).cloned())));
    let own = nanos(|n| assert!(matches!(poll(cache.get(&keys[n])), Some(Ok(Some(_))))));
    let ours = nanos(|n| assert!(matches!(poll(typed.get(&names[n])), Some(Ok(Some(_))))));
    println!("local get: {own:.0} ns of bytes, {ours:.0} ns of String to u64; bare sharded map {bare:.0} ns");
}

/// Operations of many callers on one member.
async fn load(
    what: &str,
    members: &[CacheManager],
    cache: &RawCache,
    keys: &Arc<[Bytes]>,
    callers: usize,
    span: Duration,
    is_write: impl Fn(u64) -> bool + Send + Copy + 'static,
) {
    let (is_over, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut running = tokio::task::JoinSet::new();
    let messages = || members.iter().map(|member| member.traffic().messages_sent).sum::<u64>();
    let (begin, used, sent) = (Instant::now(), cpu(), messages());
    for caller in 0..callers {
        let (cache, keys, is_over, count) = (cache.clone(), keys.clone(), is_over.clone(), count.clone());
        let value = Bytes::from(vec![caller as u8; VALUE]);
        running.spawn(async move {
            let mut random = 0x9E37_79B9_7F4A_7C15 + caller as u64;
            for nth in 0.. {
                if is_over.load(Relaxed) {
                    break;
                }
                let key = &keys[next(&mut random)];
                if is_write(nth) {
                    cache.put(key, &value).await.expect("put");
                } else {
                    black_box(cache.get(key).await.expect("got"));
                }
                count.fetch_add(1, Relaxed);
            }
        });
    }
    tokio::time::sleep(span).await;
    is_over.store(true, Relaxed);
    running.join_all().await;
    let (count, span, used) = (count.load(Relaxed) as f64, begin.elapsed(), cpu() - used);
    println!(
        "{what}, {callers} callers: {:.0} per second, {:.2} us of CPU and {:.2} messages each",
        count / span.as_secs_f64(),
        used.as_secs_f64() * 1e6 / count,
        (messages() - sent) as f64 / count
    );
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse().expect("a number"));
    let callers = args.next().unwrap_or(100) as usize;
    let span = Duration::from_secs(args.next().unwrap_or(5));
    let members = [member("A").await?, member("B").await?, member("C").await?];
    let mut caches = Vec::new();
    for member in &members {
        caches.push(member.open(CacheConfig::new("c")).raw().await?);
    }
    settled(&members[0], "c", 3).await?;
    let keys: Arc<[Bytes]> = (0..KEYS).map(|n| Bytes::from(format!("key-{n:08}"))).collect();
    let value = Bytes::from(vec![7; VALUE]);
    let begin = Instant::now();
    caches[0].put_all(keys.iter().map(|key| (key, &value))).await?;
    println!("put_all: {:.0} per second", KEYS as f64 / begin.elapsed().as_secs_f64());

    // A is the only member: all entries are local.
    let own = members[0].open(CacheConfig::new("own")).raw().await?;
    own.put_all(keys.iter().map(|key| (key, &value))).await?;
    let typed = members[0].cache::<String, u64>("typed").await?;
    let names: Vec<String> = (0..KEYS).map(|n| format!("name-{n:06}")).collect();
    typed.put_all(names.iter().map(|name| (name, &1))).await?;
    local_reads(&own, &typed, &keys);

    let far = |owns: bool| -> Arc<[Bytes]> {
        let topology = caches[0].topology().expect("a topology");
        let is_its = |key: &&Bytes| {
            let owners = &topology.current;
            owners.owners(owners.segment_of(key)).any(|owner| owner == members[0].address()) == owns
        };
        let some: Vec<Bytes> = keys.iter().filter(is_its).cloned().collect();
        some.iter().cycle().take(KEYS).cloned().collect()
    };
    let (near, far) = (far(true), far(false));
    // With 0 s: local reads only.
    for callers in [1, callers].into_iter().filter(|_| !span.is_zero()) {
        load("get from another member", &members, &caches[0], &far, callers, span, |_| false).await;
        load("put at two others", &members, &caches[0], &far, callers, span, |_| true).await;
        load("put with a copy here", &members, &caches[0], &near, callers, span, |_| true).await;
        load("any get", &members, &caches[0], &keys, callers, span, |_| false).await;
        load("any, of five one put", &members, &caches[0], &keys, callers, span, |nth| nth % 5 == 0).await;
    }
    for member in members {
        member.close().await?;
    }
    Ok(())
}
