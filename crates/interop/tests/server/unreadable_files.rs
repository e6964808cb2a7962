//! A server that may not open the files of a cache, or has no descriptors for them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use consort_interop::{Tool, in_own_network};

use super::directory::Directory;
use super::{cache, done, of_http};

const STORED: &str = r#"{"distributed-cache": {"persistence": {"file-store": {}}}}"#;

const CACHES: [&str; 3] = ["orders", "shop", "stock"];

/// The data of a server with [`CACHES`], each with an entry.
fn filled(directory: &Directory) -> String {
    let data = directory.of("data");
    let server = served(&data, &[]);
    for name in CACHES {
        done(&["create", name, STORED]);
        done(&["put", name, "key", name]);
    }
    server.terminate();
    data
}

/// The directory of a cache's files.
fn files_of(data: &str, cache: &str) -> PathBuf {
    let entries = fs::read_dir(Path::new(data).join("caches")).expect("the directory of all caches");
    let mut paths = entries.map(|entry| entry.expect("an entry").path());
    let is_it = |path: &PathBuf| path.file_stem().is_some_and(|stem| stem == cache);
    paths.find(is_it).expect("the directory of the cache")
}

fn served(data: &str, starter: &[&str]) -> Tool {
    let mut server = Tool::consort_started_by(starter, &["server", "--data", data]);
    server.wait_for(&["Hot Rod on"]);
    server
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("another mode");
}

fn has_all() {
    for name in CACHES {
        assert_eq!(done(&["get", name, "key"]), (name.to_owned(), 0));
    }
}

#[test]
fn a_cache_with_unreadable_files_is_reported_until_they_are_readable() {
    in_own_network(
        "unreadable_files::a_cache_with_unreadable_files_is_reported_until_they_are_readable",
        async {
            let directory = Directory::new("unreadable");
            let data = filled(&directory);
            let files = files_of(&data, "orders");
            set_mode(&files, 0);
            // The superuser ignores modes, unless it lacks these capabilities.
            let mut server = served(&data, &["setpriv", "--bounding-set=-dac_override,-dac_read_search"]);
            let line = server
                .output
                .iter()
                .find(|line| line.contains("ERROR"))
                .unwrap_or_else(|| panic!("no error in {:?}", server.output));
            for part in ["Keep its files", "cache=\"orders\"", "Permission denied"] {
                assert!(line.contains(part), "{line}");
            }
            assert!(of_http(11222, "/health").await.ends_with("DEGRADED"));
            let ready = of_http(11222, "/health/ready").await;
            assert!(ready.starts_with("HTTP/1.1 503") && ready.contains("1 defined caches"), "{ready}");
            let (out, message, code) = cache(&["get", "orders", "key"]);
            assert!(
                out.is_empty() && code == 2 && message.contains("Permission denied"),
                "{out} {message} {code}"
            );
            assert_eq!(done(&["get", "stock", "key"]), ("stock".to_owned(), 0), "other caches are served");
            set_mode(&files, 0o700);
            server.wait_for(&["a cache that could not be opened earlier", "orders"]);
            has_all();
            assert!(of_http(11222, "/health").await.ends_with("HEALTHY"));
            server.terminate();
        },
    );
}

/// With each limit a server either serves all, or names the cache that it could not open and is not ready, or does not start and
/// names the file. It loses nothing, and with more descriptors it serves all.
#[test]
fn a_server_with_few_descriptors_serves_all_or_names_the_file_that_it_could_not_open() {
    let name =
        "unreadable_files::a_server_with_few_descriptors_serves_all_or_names_the_file_that_it_could_not_open";
    in_own_network(name, async {
        let directory = Directory::new("few-descriptors");
        let data = filled(&directory);
        let mut refused = 0;
        for limit in (8..=24).step_by(2) {
            let starter = ["prlimit", &format!("--nofile={limit}:{limit}")];
            let mut server = Tool::consort_started_by(&starter, &["server", "--data", &data]);
            if server.wait_for_or_end(&["Hot Rod on"]).is_none() {
                let output = server.output.join("\n");
                assert!(output.contains("Too many open files"), "{limit}: {output}");
                refused += 1;
                continue;
            }
            let ready = of_http(11222, "/health/ready").await;
            if ready.starts_with("HTTP/1.1 503") {
                assert!(ready.contains("defined caches could not be opened"), "{limit}: {ready}");
                refused += 1;
            } else {
                has_all();
            }
            server.terminate();
        }
        assert!(refused > 0, "eight descriptors are enough");
        let server = served(&data, &[]);
        has_all();
        server.terminate();
    });
}
