//! The resources of idle servers: the memory of large values is returned to the system, and caches with stores share threads
//! and descriptors.

use std::fmt::Write as _;
use std::fs::{create_dir_all, read_dir, read_to_string, remove_dir_all, write};
use std::time::{Duration, Instant};

use consort_client::Client;
use consort_interop::{Tool, in_own_network};
use consort_procstat::process::memory_mb_of;
use tokio::time::sleep;

use super::SERVER;

/// Bytes of a large value.
const LARGE: usize = 40_000_000;

/// So much more than at the start may an idle server have, in megabytes: each thread keeps up to 2 MB of blocks that it has
/// freed, and the allocator pages in which something is in use. A server that kept a buffer of the largest value would have 40
/// more, and one that gave nothing back 300.
const KEPT_MAX: f64 = 64.0;

/// The timeout for the return of free memory: the time in the help of `--reserve`, and as much again for a busy machine.
const RETURN_TIME_MAX: Duration = Duration::from_secs(20);

/// The `max-size` of a cache whose values change their sizes, in megabytes.
const CACHE_MAX: f64 = 50.0;

/// Bytes of a value, by phase. In each phase clients write more than the cache holds.
const PHASES: [usize; 8] = [400, 1_500, 6_000, 25_000, 100_000, 400_000, 300, 2_000];

/// Clients that write concurrently: each has a connection, so that all threads of the server serve some.
const WRITERS: usize = 8;

const STORES: usize = 300;

/// Threads that write to stores, as many as there may be.
const STORE_THREADS_MAX: usize = 16;

/// Descriptors of the files of all stores, and of all else that a server has open.
const DESCRIPTORS_MAX: usize = 256 + 40;

fn member(nth: usize) -> Tool {
    let port = (11_222 + 100 * nth).to_string();
    let name = format!("returned-{nth}");
    let mut server = Tool::consort(&[
        "server",
        "--cluster=returned",
        "--name",
        &name,
        "--port",
        &port,
        "--bind=127.0.0.1",
        "-Djgroups.bind_port=7810",
        "-Djgroups.tcpping.initial_hosts=127.0.0.1[7810]",
        "-Djgroups.tcp.port_range=5",
    ]);
    server.wait_for(&["Hot Rod on"]);
    server
}

#[test]
fn memory_of_large_values_goes_back_once_they_are_removed() {
    in_own_network("returned_memory::memory_of_large_values_goes_back_once_they_are_removed", async {
        let servers: Vec<Tool> = (0..3).map(member).collect();
        let client = Client::connect(&format!("hotrod://{SERVER}")).await.expect("a client");
        client.administration().create("shop", r#"{"distributed-cache": {}}"#).await.expect("a cache");
        let cache = client.raw("shop");
        cache.put(&b"small"[..], &b"value"[..]).await.expect("a write");
        let memory = || servers.iter().map(|server| memory_mb_of(server.id())).collect::<Vec<f64>>();
        let before = memory();
        let value = vec![7; LARGE];
        for key in 0..4_u8 {
            cache.put(&[key][..], &value[..]).await.expect("a write");
        }
        for key in 0..4_u8 {
            let read = cache.get(&[key][..]).await.expect("a read");
            assert_eq!(read.map(|value| value.len()), Some(LARGE));
        }
        let most = memory();
        for key in 0..4_u8 {
            assert!(cache.remove(&[key][..]).await.expect("a removal"));
        }
        drop(cache);
        client.close().await;
        let removed = Instant::now();
        loop {
            let now = memory();
            if now.iter().zip(&before).all(|(now, before)| now - before < KEPT_MAX) {
                break;
            }
            assert!(
                removed.elapsed() < RETURN_TIME_MAX,
                "MB before: {before:.0?}, with values: {most:.0?}, {:?} after: {now:.0?}",
                removed.elapsed()
            );
            sleep(Duration::from_millis(200)).await;
        }
    });
}

#[test]
fn memory_of_values_that_changed_their_sizes_goes_back_once_the_cache_is_cleared() {
    in_own_network(
        "returned_memory::memory_of_values_that_changed_their_sizes_goes_back_once_the_cache_is_cleared",
        async {
            let mut server = Tool::consort(&["server", "--memory=512MiB"]);
            server.wait_for(&["Hot Rod on"]);
            let client = Client::connect(&format!("hotrod://{SERVER}")).await.expect("a client");
            let definition = format!(r#"{{"local-cache": {{"memory": {{"max-size": "{CACHE_MAX}MB"}}}}}}"#);
            client.administration().create("bounded", &definition).await.expect("a cache");
            let before = memory_mb_of(server.id());
            for (phase, size) in PHASES.into_iter().enumerate() {
                let writers = (0..WRITERS).map(|writer| {
                    tokio::spawn(async move {
                        let client = Client::connect(&format!("hotrod://{SERVER}")).await.expect("a client");
                        let cache = client.raw("bounded");
                        // As much as the cache holds and a quarter more.
                        for number in 0..CACHE_MAX as usize * 1_250_000 / size / WRITERS {
                            // Between 0.8 and 1.2 times the phase's size.
                            let length = size * (80 + number * 7 % 41) / 100;
                            let key = [phase, writer, number].map(usize::to_be_bytes).concat();
                            cache.put(&key[..], &vec![7; length][..]).await.expect("a write");
                        }
                        client.close().await;
                    })
                });
                for writer in writers.collect::<Vec<_>>() {
                    writer.await.expect("it writes");
                }
            }
            let most = memory_mb_of(server.id());
            client.raw("bounded").clear().await.expect("it is cleared");
            client.close().await;
            // Blocks that threads kept of each size would hold 170 MB of pages.
            let cleared = Instant::now();
            loop {
                let now = memory_mb_of(server.id());
                if now - before < KEPT_MAX {
                    break;
                }
                assert!(
                    cleared.elapsed() < RETURN_TIME_MAX,
                    "MB before: {before:.0}, with values: {most:.0}, {:?} after: {now:.0}",
                    cleared.elapsed()
                );
                sleep(Duration::from_millis(200)).await;
            }
        },
    );
}

#[test]
fn hundreds_of_caches_with_stores_share_threads_and_descriptors() {
    in_own_network("returned_memory::hundreds_of_caches_with_stores_share_threads_and_descriptors", async {
        let directory = std::env::temp_dir().join(format!("consort-stores-{}", std::process::id()));
        create_dir_all(&directory).expect("a directory");
        let mut caches = "<infinispan><cache-container>".to_owned();
        for nth in 0..STORES {
            let _ = write!(
                caches,
                "<local-cache name='c{nth}'><persistence><file-store/></persistence></local-cache>"
            );
        }
        caches.push_str("</cache-container></infinispan>");
        let file = directory.join("caches.xml");
        write(&file, caches).expect("a file of caches");
        let data = directory.join("data");
        let [file, data] = [&file, &data].map(|path| path.to_str().expect("a path"));
        let start = || {
            let mut server = Tool::consort(&["server", "--data", data, "--caches", file]);
            server.wait_for(&["Hot Rod on", "alone"]);
            server
        };
        let check = |server: &Tool| {
            let process = format!("/proc/{}", server.id());
            let tasks = read_dir(format!("{process}/task")).expect("threads");
            let names =
                tasks.filter_map(|task| read_to_string(task.expect("a thread").path().join("comm")).ok());
            let threads = names.filter(|name| name.trim() == "consort-store").count();
            let descriptors = read_dir(format!("{process}/fd")).expect("descriptors").count();
            assert!(
                threads <= STORE_THREADS_MAX && descriptors <= DESCRIPTORS_MAX,
                "{threads} threads and {descriptors} descriptors for {STORES} stores"
            );
        };
        let server = start();
        let client = Client::connect(&format!("hotrod://{SERVER}")).await.expect("a client");
        for nth in 0..STORES {
            let cache = client.raw(&format!("c{nth}"));
            cache.put(&b"key"[..], &nth.to_be_bytes()[..]).await.expect("a write");
        }
        check(&server);
        client.close().await;
        server.terminate();
        let server = start();
        let client = Client::connect(&format!("hotrod://{SERVER}")).await.expect("a client");
        for nth in 0..STORES {
            let value = client.raw(&format!("c{nth}")).get(&b"key"[..]).await.expect("a read");
            assert_eq!(value.as_deref(), Some(&nth.to_be_bytes()[..]));
        }
        check(&server);
        client.close().await;
        server.terminate();
        remove_dir_all(&directory).expect("the directory is removed");
    });
}
