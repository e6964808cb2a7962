//! Caches with stores: restarts in one process and after kill -9.

mod members;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use consort_cache::store::SimDisk;
use consort_cache::{
    CacheConfig, CacheManager, FileStore, FileStoreConfig, Limit, MemoryBound, OpenError, OperationError,
    Persistence, RawCache, WhenFull, WriteBehind,
};
use members::{Cluster, close, wait_for_rebalance, within_timeout};

/// A directory that is removed with its test.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("consort-cache-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }

    fn of(&self, member: &str) -> PathBuf {
        self.0.join(member)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const NAMES: [&str; 3] = ["A", "B", "C"];

/// Opens the cache on all members at the same time: it opens on none before all are back.
async fn open_kept(
    managers: &[CacheManager],
    memory: Option<MemoryBound>,
    kept: impl Fn(&str) -> Persistence,
) -> Vec<RawCache> {
    let opening = managers.iter().map(|manager| {
        let (manager, kept) = (manager.clone(), kept(manager.name()));
        tokio::spawn(async move {
            let builder = manager.open(CacheConfig::new("kept")).persistence(kept);
            match memory {
                Some(bound) => builder.memory(bound).raw().await,
                None => builder.raw().await,
            }
        })
    });
    let mut caches = Vec::new();
    for opened in opening.collect::<Vec<_>>() {
        caches.push(within_timeout("open", opened).await.expect("no panic").expect("opened"));
    }
    let all: Vec<&CacheManager> = managers.iter().collect();
    wait_for_rebalance(&all, "kept", managers.len()).await;
    caches
}

async fn fill(caches: &[RawCache], count: usize) {
    for n in 0..count {
        let cache = &caches[n % caches.len()];
        cache.put(format!("key-{n}").as_bytes(), format!("value-{n}").as_bytes()).await.expect("put");
    }
}

async fn check(caches: &[RawCache], count: usize) {
    for n in 0..count {
        let found = caches[n % caches.len()].get(format!("key-{n}").as_bytes()).await.expect("get");
        assert_eq!(found.as_deref(), Some(format!("value-{n}").as_bytes()), "key-{n}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_has_its_data_after_all_members_crashed() {
    let directory = Directory::new("crash");
    let cluster = Cluster::loopback("kept-crash");
    let kept = |name: &str| Persistence::directory(directory.of(name));
    let managers = cluster.join_all(NAMES).await;
    let caches = open_kept(&managers, None, kept).await;
    fill(&caches, 500).await;
    caches[1].remove(&b"key-0"[..]).await.expect("removed");
    for manager in managers {
        within_timeout("abort", manager.abort()).await;
    }
    // In another order, with values in memory from the start.
    let managers = cluster.join_all(["C", "A", "B"]).await;
    let caches = open_kept(&managers, None, |name| kept(name).preload()).await;
    assert_eq!(caches[2].get(&b"key-0"[..]).await, Ok(None));
    caches[0].put(&b"key-0"[..], &b"value-0"[..]).await.expect("put");
    check(&caches, 500).await;
    assert_eq!(within_timeout("size", caches[0].size()).await, Ok(500));
    close(managers).await;
}

/// The store of a cancelled opening is closed shortly afterwards: until then the cache is being closed, which is not
/// an error of the store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_that_timed_out_waiting_for_members_can_be_repeated() {
    let directory = Directory::new("again");
    let cluster = Cluster::loopback("kept-again");
    let kept = |name: &str| Persistence::directory(directory.of(name));
    let managers = cluster.join_all(NAMES).await;
    fill(&open_kept(&managers, None, kept).await, 100).await;
    for manager in managers {
        within_timeout("abort", manager.abort()).await;
    }
    let first = cluster.join("A").await;
    for _ in 0..20 {
        let builder = first.open(CacheConfig::new("kept")).persistence(kept("A"));
        let error =
            within_timeout("open", builder.open_timeout(Duration::from_millis(1)).raw()).await.unwrap_err();
        match error {
            OpenError::TimedOut { remembered, .. } => assert_eq!(remembered, NAMES.len(), "{error}"),
            _ => assert!(matches!(error, OpenError::Closing(_)), "{error}"),
        }
    }
    let [second, third] = cluster.join_all(["B", "C"]).await;
    let open = async |manager: &CacheManager| loop {
        let opening = manager.open(CacheConfig::new("kept")).persistence(kept(manager.name()));
        match opening.raw().await {
            Err(OpenError::Closing(_)) => tokio::task::yield_now().await,
            opened => break opened.expect("opened"),
        }
    };
    let opening = async { tokio::join!(open(&first), open(&second), open(&third)) };
    let (a, b, c) = within_timeout("open", opening).await;
    check(&[a, b, c], 100).await;
    close([first, second, third]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_stopped_gracefully_restarts_with_any_member_first() {
    let directory = Directory::new("order");
    let cluster = Cluster::loopback("kept-order");
    let kept = |name: &str| {
        Persistence::directory(directory.of(name))
            .write_behind(WriteBehind { changes_max: 16, ..WriteBehind::default() })
    };
    let managers = cluster.join_all(NAMES).await;
    let caches = open_kept(&managers, None, kept).await;
    fill(&caches, 300).await;
    close(managers).await;
    let managers = cluster.join_all(NAMES).await;
    let caches = open_kept(&managers, None, kept).await;
    check(&caches, 300).await;
    close(managers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_beyond_memory_are_read_and_iterated() {
    for passivation in [false, true] {
        let directory = Directory::new(if passivation { "passive" } else { "through" });
        let cluster = Cluster::loopback(if passivation { "kept-passive" } else { "kept-through" });
        let kept = |name: &str| {
            let kept = Persistence::directory(directory.of(name));
            if passivation { kept.passivation() } else { kept }
        };
        let bound = MemoryBound { limit: Limit::Entries(50), when_full: WhenFull::Remove };
        let managers = cluster.join_all(["A", "B"]).await;
        let caches = open_kept(&managers, Some(bound), kept).await;
        fill(&caches, 400).await;
        assert_eq!(caches.iter().map(RawCache::local_len).sum::<u64>(), 100);
        assert_eq!(caches.iter().map(RawCache::passive_len).sum::<u64>(), 700);
        check(&caches, 400).await;
        let mut walk = caches[0].entries();
        let mut seen = BTreeMap::new();
        while let Some(entry) = within_timeout("next", walk.next()).await {
            let (key, value) = entry.expect("an entry");
            assert!(seen.insert(key, value).is_none(), "once");
        }
        assert_eq!(seen.len(), 400);
        drop(walk);
        close(managers).await;
        let managers = cluster.join_all(["A", "B"]).await;
        let caches = open_kept(&managers, Some(bound), kept).await;
        check(&caches, 400).await;
        close(managers).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_on_a_full_disk_fails_until_the_disk_has_space() {
    let cluster = Cluster::loopback("kept-full");
    let manager = cluster.join("A").await;
    let disk = SimDisk::new(1);
    let config = CacheConfig::new("kept");
    let files = FileStoreConfig { segments: config.segments, ..FileStoreConfig::default() };
    let store =
        Persistence::store(Arc::new(FileStore::open_on(Arc::new(disk.clone()), files).expect("a store")));
    let cache = manager.open(config).persistence(store).raw().await.expect("opened");
    cache.put(&b"a"[..], &b"value"[..]).await.expect("put");
    let health = || manager.store_health("kept").expect("a store");
    assert_eq!((health().failing, health().failures), (None, 0));
    disk.set_capacity(Some(0));
    let refused = cache.put(&b"b"[..], &b"value"[..]).await;
    assert!(format!("{refused:?}").contains("no space left"), "{refused:?}");
    assert!(health().failing.is_some_and(|error| error.contains("no space left")));
    assert!(health().failures > 0);
    // The member tries again by itself.
    disk.set_capacity(None);
    let ended = async {
        while health().failing.is_some() {
            tokio::task::yield_now().await;
        }
    };
    within_timeout("the store writes again", ended).await;
    // The member notices this shortly afterwards.
    let taken = async { while cache.put(&b"b"[..], &b"other"[..]).await.is_err() {} };
    within_timeout("a write is taken", taken).await;
    assert_eq!(manager.store_health("other"), None, "no such store");
    close([manager]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unusable_store_is_reported_and_not_changed() {
    let directory = Directory::new("bad");
    let cluster = Cluster::loopback("kept-bad");
    let manager = cluster.join("A").await;
    let open = |segments: u16| {
        let config = CacheConfig { segments, ..CacheConfig::new("kept") };
        let persistence = Persistence::directory(directory.of("A"));
        let opening = manager.open(config).persistence(persistence);
        async move { opening.raw().await }
    };
    let cache = within_timeout("open", open(16)).await.expect("opened");
    cache.put(&b"key"[..], &b"value"[..]).await.expect("put");
    assert_eq!(within_timeout("leave", manager.leave("kept")).await, Ok(true));
    let error = within_timeout("open", open(8)).await.expect_err("other segments");
    assert!(
        matches!(&error, OpenError::Store { error, .. }
        if error.to_string() == "configured for 8 segments, but the store was created with 16"),
        "{error}"
    );
    let note = directory.of("A").join("NOTE");
    let intact = std::fs::read(&note).expect("a note");
    std::fs::write(&note, b"nonsense").expect("written");
    let error = within_timeout("open", open(16)).await.expect_err("damaged");
    assert!(error.to_string().contains("NOTE is damaged"), "{error}");
    std::fs::remove_file(&note).expect("removed");
    let error = within_timeout("open", open(16)).await.expect_err("entries of no known cluster");
    assert!(matches!(error, OpenError::UnknownStoreOrigin { entries: 1, .. }), "{error}");
    std::fs::write(&note, intact).expect("written");
    let cache = within_timeout("open", open(16)).await.expect("opened");
    assert_eq!(cache.get(&b"key"[..]).await.expect("read").as_deref(), Some(&b"value"[..]));
    within_timeout("leave", manager.leave("kept")).await.expect("left");
    let purged = Persistence::directory(directory.of("A")).purge_on_start();
    let config = CacheConfig { segments: 16, ..CacheConfig::new("kept") };
    let cache = within_timeout("open", manager.open(config).persistence(purged).raw()).await.expect("opened");
    assert_eq!(cache.get(&b"key"[..]).await, Ok(None));
    close([manager]).await;
}

/// The environment variable of the killed process: its name, directory and ports.
const MEMBER: &str = "CONSORT_CACHE_KILLED_MEMBER";

/// Keys that each member writes again and again.
const KEYS: u64 = 100;

/// Not a test of its own: a member that writes until it is killed. First it reports the entries that it finds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn member_that_writes_until_it_is_killed() {
    let Ok(member) = std::env::var(MEMBER) else { return };
    let parts: Vec<&str> = member.split_whitespace().collect();
    let [name, directory, base] = parts[..] else { panic!("{member}") };
    let cluster = Cluster::tcp_at("killed", base.parse().expect("a port"));
    let manager = cluster.join(name).await;
    let kept = Persistence::directory(Path::new(directory).join(name));
    let cache = manager.open(CacheConfig::new("kept")).persistence(kept).raw().await.expect("opened");
    for of in NAMES {
        for n in 0..KEYS {
            let found = cache.get(format!("{of}-{n}").as_bytes()).await.expect("read");
            if let Some(value) = found {
                say(&format!("found {of} {n} {}", String::from_utf8_lossy(&value)));
            }
        }
    }
    wait_for_rebalance(&[&manager], "kept", NAMES.len()).await;
    say("ready 0 0 0");
    let begun =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a time").as_millis();
    let mut number = begun as u64 * 1_000_000;
    loop {
        let writes = (0..20).map(|nth| {
            let (cache, number) = (cache.clone(), number + nth);
            let key = format!("{name}-{}", number % KEYS);
            async move {
                match cache.put(key.as_bytes(), number.to_string().as_bytes()).await {
                    Ok(()) => say(&format!("wrote me {} {number}", number % KEYS)),
                    Err(error) => assert!(
                        !matches!(
                            error,
                            consort_cache::CacheError::Operation(OperationError::StoreWriteFailed { .. })
                        ),
                        "{error}"
                    ),
                }
            }
        });
        let all: Vec<_> = writes.map(tokio::spawn).collect();
        for one in all {
            let _ = one.await;
        }
        number += 20;
    }
}

/// Prints a line for the parent.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "says {line}");
}

/// A member process, and its output.
struct Process {
    child: Child,
    lines: Receiver<(String, String, u64, u64)>,
}

impl Process {
    fn start(name: &str, directory: &Path, base: u16) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("a program"))
            .args(["--exact", "member_that_writes_until_it_is_killed", "--nocapture"])
            .env(MEMBER, format!("{name} {} {base}", directory.display()))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a process");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        let (say, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let Some((_, effects)) = line.split_once("says ") else { continue };
                let words: Vec<&str> = effects.split_whitespace().collect();
                let [what, of, key, value] = words[..] else { continue };
                let number = |text: &str| text.parse().unwrap_or(u64::MAX);
                if say.send((what.to_owned(), of.to_owned(), number(key), number(value))).is_err() {
                    return;
                }
            }
        });
        Self { child, lines }
    }

    fn next(&self) -> (String, String, u64, u64) {
        self.lines.recv_timeout(members::PATIENCE).expect("it says something")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn acknowledged_writes_survive_the_kill_of_all_processes_of_a_cluster() {
    let directory = Directory::new("killed");
    let base = members::free_base();
    // By member and key: the last value that was acknowledged.
    let mut sure: BTreeMap<(String, u64), u64> = BTreeMap::new();
    for life in 0..4 {
        let processes: Vec<Process> =
            NAMES.iter().map(|name| Process::start(name, &directory.0, base)).collect();
        for process in &processes {
            let mut found = BTreeMap::new();
            loop {
                let (what, of, key, value) = process.next();
                match what.as_str() {
                    "found" => drop(found.insert((of, key), value)),
                    _ => break,
                }
            }
            for (key, value) in &sure {
                let there = found.get(key);
                assert!(
                    there.is_some_and(|there| there >= value),
                    "life {life}: {key:?} {there:?} < {value}"
                );
            }
        }
        let writes = 150 + 130 * life;
        let mut note = |name: &str, (what, _, key, value): (String, String, u64, u64)| {
            if what == "wrote" {
                let last = sure.entry((name.to_owned(), key)).or_default();
                *last = value.max(*last);
            }
        };
        for _ in 0..writes {
            for (process, name) in processes.iter().zip(NAMES) {
                note(name, process.next());
            }
        }
        let mut processes = processes;
        for process in &mut processes {
            process.child.kill().expect("killed");
        }
        for (process, name) in processes.iter_mut().zip(NAMES) {
            process.child.wait().expect("ended");
            while let Ok(effects) = process.lines.recv_timeout(Duration::from_secs(10)) {
                note(name, effects);
            }
        }
    }
}
