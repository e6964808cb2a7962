//! `consort server` with the tools for it, `consort cache` and `consort perf --hotrod`, as people and scripts use them.

mod backup_roles;
mod directory;
mod full_disk;
mod health;
mod memory_limit;
mod operator;
mod passwords;
mod persistence;
mod remote_reads;
mod reserved_memory;
mod returned_memory;
mod server_file;
mod unreadable_files;

use consort_interop::{Tool, in_own_network};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const SERVER: &str = "127.0.0.1:11222";

/// A server at the default port, ready for clients.
fn server() -> Tool {
    let mut server = Tool::consort(&["server"]);
    assert_eq!(server.wait_for(&["Hot Rod"]), format!("Hot Rod on {SERVER}, alone"));
    server
}

/// Returns the output, the errors and the exit code of a `consort cache` command.
fn cache(arguments: &[&str]) -> (String, String, i32) {
    let run = Tool::run_consort(&[&["cache"], arguments].concat());
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (text(run.stdout), text(run.stderr), run.status.code().expect("an exit code"))
}

/// A command that has nothing to complain of.
fn done(arguments: &[&str]) -> (String, i32) {
    let (out, message, code) = cache(arguments);
    assert_eq!(message, "", "{arguments:?}");
    (out, code)
}

#[test]
fn consort_cache_creates_and_fills_caches() {
    in_own_network("consort_cache_creates_and_fills_caches", async {
        let _server = server();
        let nothing = |code| (String::new(), code);
        assert_eq!(done(&["create", "shop"]), nothing(0));
        assert_eq!(done(&["ls"]).0.lines().filter(|name| *name == "shop").count(), 1);
        assert_eq!(done(&["get", "shop", "apples"]), nothing(1));
        assert_eq!(done(&["put", "shop", "apples", "3"]), nothing(0));
        assert_eq!(done(&["put", "shop", "apples", "4", "--if-absent"]), nothing(1));
        assert_eq!(done(&["put", "shop", "pears", "5", "--if-absent"]), nothing(0));
        // Into a pipe a value goes as it is, without a line's end.
        assert_eq!(done(&["get", "shop", "apples"]), ("3".to_owned(), 0));
        assert_eq!(done(&["size", "shop"]), ("2\n".to_owned(), 0));
        assert_eq!(done(&["rm", "shop", "pears"]), nothing(0));
        assert_eq!(done(&["rm", "shop", "pears"]), nothing(1));
        assert_eq!(done(&["alter", "shop", "expiration.lifespan", "-1"]), nothing(0));
        let (_, message, code) = cache(&["alter", "shop", "owners", "3"]);
        assert!(code == 2 && message.contains("owners: it cannot be changed while"), "{code}: {message}");
        assert_eq!(done(&["alias", "stock", "shop"]), nothing(0));
        assert_eq!(done(&["get", "stock", "apples"]), ("3".to_owned(), 0));
        let stats: Value = serde_json::from_str(&done(&["stats", "shop", "--json"]).0).expect("JSON");
        assert_eq!(
            (&stats["currentNumberOfEntries"], &stats["removeHits"]),
            (&1.into(), &1.into()),
            "{stats}"
        );
        assert!(
            done(&["stats", "shop"])
                .0
                .lines()
                .any(|line| line.starts_with("removeHits ") && line.ends_with(" 1"))
        );
        assert_eq!(done(&["clear", "shop"]), nothing(0));
        assert_eq!(done(&["size", "shop"]), ("0\n".to_owned(), 0));
        assert_eq!(done(&["drop", "shop"]), nothing(0));
        let (out, message, code) = cache(&["get", "shop", "apples"]);
        assert_eq!(out, "");
        assert!(code == 2 && message.contains("shop"), "{code}: {message}");
    });
}

#[test]
fn consort_cache_lists_keys_and_watches_changes() {
    in_own_network("consort_cache_lists_keys_and_watches_changes", async {
        let _server = server();
        done(&["create", "shop"]);
        for (key, value) in [("apples", "3"), ("apricots", "4"), ("pears", "5")] {
            done(&["put", "shop", key, value]);
        }
        let sorted = |arguments: &[&str]| {
            let (out, code) = done(arguments);
            let mut lines: Vec<String> = out.lines().map(str::to_owned).collect();
            lines.sort();
            (lines.join(" "), code)
        };
        assert_eq!(sorted(&["ls", "shop"]), ("apples apricots pears".to_owned(), 0));
        assert_eq!(sorted(&["ls", "shop", "--prefix=ap"]), ("apples apricots".to_owned(), 0));
        assert_eq!(sorted(&["ls", "shop", "--prefix=p", "--values"]), ("pears\t5".to_owned(), 0));
        assert_eq!(done(&["ls", "shop", "--limit=2"]).0.lines().count(), 2);
        let (out, message, code) = cache(&["ls", "none"]);
        assert!(out.is_empty() && code == 2 && message.contains("none"), "{code}: {message}");

        let mut watch = Tool::consort(&["cache", "watch", "shop", "--state", "--prefix=pe", "--limit=5"]);
        assert_eq!(watch.wait_for(&["existing"]), "existing\tpears");
        watch.wait_for(&["complete"]);
        done(&["put", "shop", "apples", "1"]);
        done(&["put", "shop", "pears", "1"]);
        done(&["rm", "shop", "pears"]);
        done(&["put", "shop", "peas", "1"]);
        watch.wait_for_end();
        let lines = ["existing\tpears", "complete", "modified\tpears", "removed\tpears", "created\tpeas"];
        assert_eq!(watch.output, lines);
    });
}

#[test]
fn log_in_json_has_one_object_per_event() {
    in_own_network("log_in_json_has_one_object_per_event", async {
        let mut server = Tool::consort_with_log(&["server", "--log-format", "json"]);
        let event: Value = serde_json::from_str(&server.wait_for(&["\"level\":"])).expect("JSON");
        assert_eq!(event["level"], "INFO", "{event}");
        assert!(
            event["message"].is_string() && event["target"].is_string() && event["timestamp"].is_string(),
            "{event}"
        );
    });
}

#[test]
fn unreachable_server_is_named_in_the_error() {
    in_own_network("unreachable_server_is_named_in_the_error", async {
        let (out, message, code) = cache(&["--at=127.0.0.1:11299", "ls"]);
        assert_eq!(out, "");
        assert!(code == 2 && message.contains("127.0.0.1:11299"), "{code}: {message}");
    });
}

#[test]
fn perf_through_hot_rod_prints_the_latencies() {
    in_own_network("perf_through_hot_rod_prints_the_latencies", async {
        let server = server();
        let perf = [
            "perf",
            "--hotrod",
            SERVER,
            "--clients=2",
            "--invokers=5",
            "--keys=500",
            "--reads=0.8",
            "--seconds=1",
            "--warmup=0.2",
            "--json",
        ];
        let run = Tool::run_consort(&perf);
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        let summary: Value = serde_json::from_slice(&run.stdout).expect("JSON");
        let number = |name: &str| summary[name].as_f64().unwrap_or_else(|| panic!("`{name}` in {summary}"));
        assert!(number("reqs_sec_cluster") > 0.0 && number("cpu_s_per_mreq") > 0.0, "{summary}");
        assert_eq!((number("errors"), number("missing"), number("reads")), (0.0, 0.0, 0.8), "{summary}");
        assert_eq!(done(&["size", "perf"]).0, "500\n");
        assert!(summary.get("server_rss_mb").is_none(), "no server was to be watched: {summary}");
        let pid = server.id().to_string();
        let more = ["--pooled", "--server-pids", &pid];
        let run = Tool::run_consort(&[&perf[..perf.len() - 1], &more].concat());
        let output = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success(), "{output}{}", String::from_utf8_lossy(&run.stderr));
        // Two clients of five callers.
        assert!(output.contains("\nConnections: 10, "), "{output}");
        assert!(output.contains("\nServers: ") && !output.contains("Servers: 0.00 us"), "{output}");
        let run = Tool::run_consort(&[&perf[..], &["--server-pids=4294967295"]].concat());
        let message = String::from_utf8_lossy(&run.stderr).into_owned();
        assert!(!run.status.success() && message.contains("there is no process 4294967295"), "{message}");
    });
}

/// The line that `consort user` makes of a name, a role and a password.
fn user(name: &str, role: &str, password: &str) -> String {
    let mut making = Tool::consort(&["user", name, "--role", role]);
    making.type_line(password);
    let line = making.wait_for(&["SCRAM-SHA-256$", "SCRAM-SHA-512$"]);
    making.wait_for_end();
    assert!(!line.contains(password), "{line}");
    line
}

#[test]
fn consort_user_creates_users_with_the_permissions_of_their_roles() {
    in_own_network("consort_user_creates_users_with_the_permissions_of_their_roles", async {
        let file = std::env::temp_dir().join(format!("consort-users-{}", std::process::id()));
        let lines = [user("alice", "admin", "rabbit hole"), user("the reader", "observer", "secret")];
        std::fs::write(&file, format!("# who\n{}\n", lines.join("\n"))).expect("a file");
        let users = file.display().to_string();
        let mut server = Tool::consort(&["server", "--users", &users]);
        server.wait_for(&["Hot Rod"]);
        let (alice, reader) = ("--at=alice:rabbit%20hole@127.0.0.1", "--at=the%20reader:secret@127.0.0.1");
        assert_eq!(done(&[alice, "create", "shop"]).1, 0);
        assert_eq!(done(&[alice, "put", "shop", "apples", "3"]).1, 0);
        assert_eq!(done(&[reader, "get", "shop", "apples"]).0, "3");
        for (arguments, expected) in [
            (
                &[reader, "put", "shop", "apples", "4"][..],
                "user 'the reader' lacks 'WRITE' permission, which PUT needs",
            ),
            (&["get", "shop", "apples"], "Operation 'GET' requires authentication"),
            (&["--at=alice:wrong@127.0.0.1", "ls"], "ISPN006024: Invalid credentials"),
        ] {
            let (out, message, code) = cache(arguments);
            assert!(
                out.is_empty() && code == 2 && message.contains(expected),
                "{arguments:?}: {code}: {message}"
            );
        }
        std::fs::write(&file, "alice king\n").expect("a file");
        let run = Tool::run_consort(&["server", "--users", &users]);
        let message = String::from_utf8_lossy(&run.stderr).into_owned();
        assert!(!run.status.success() && message.contains(":1: unknown role \"king\""), "{message}");
        let _ = std::fs::remove_file(&file);
    });
}

/// The end of a pipe whose other end is gone.
fn unread() -> std::io::PipeWriter {
    std::io::pipe().expect("a pipe").1
}

/// `consort cache ls | head`: a reader that has seen enough is no error.
#[test]
fn commands_end_silently_without_a_reader() {
    in_own_network("commands_end_silently_without_a_reader", async {
        let _server = server();
        done(&["create", "shop"]);
        done(&["put", "shop", "apples", "3"]);
        let commands: [&[&str]; 8] = [
            &["cluster", "members"],
            &["cache", "config", "shop"],
            &["cache", "ls"],
            &["cache", "ls", "shop"],
            &["cache", "get", "shop", "apples"],
            &["doctor"],
            &["completion", "bash"],
            &["sim", "--seeds=1"],
        ];
        for command in commands {
            let run = Tool::run_consort_into(unread(), command);
            let message = String::from_utf8_lossy(&run.stderr);
            assert_eq!((run.status.code(), &*message), (Some(141), ""), "{command:?}");
        }
        let full =
            std::fs::File::options().write(true).open("/dev/full").expect("a device that is always full");
        let run = Tool::run_consort_into(full, &["cache", "get", "shop", "apples"]);
        let message = String::from_utf8_lossy(&run.stderr);
        assert_eq!(
            (run.status.code(), &*message),
            (Some(2), "consort: No space left on device (os error 28)\n")
        );
    });
}

#[test]
fn demo_kills_each_position_of_the_view_and_reports_the_pauses() {
    in_own_network("demo_kills_each_position_of_the_view_and_reports_the_pauses", async {
        let run = Tool::run_consort(&["demo", "--kills=2", "--servers=4", "--json"]);
        let report: Value = serde_json::from_slice(&run.stdout).expect("JSON");
        assert!(run.status.success() && report["failed"] == 0, "{report}");
        let kills = report["kills"].as_array().expect("kills");
        let coordinators: Vec<&Value> = kills.iter().map(|kill| &kill["coordinator"]).collect();
        assert_eq!(coordinators, [true, false]);
        for kill in kills {
            let [answered, resumed] = ["first_answer_ms", "previous_rate_ms"].map(|name| kill[name].as_f64());
            assert!(answered > Some(0.0) && answered <= resumed, "{kill}");
        }
        let refused = Tool::run_consort(&["demo", "--kills=1", "--time=9"]);
        assert_eq!(refused.status.code(), Some(2), "the time of a test has no effect on kills");
    });
}

/// Issue 4, line 7: three servers, the test through Hot Rod, a server that is killed under load and restarted, and a graceful
/// end.
#[test]
fn the_demo_loses_nothing_and_serves_until_it_is_ended() {
    in_own_network("the_demo_loses_nothing_and_serves_until_it_is_ended", async {
        // Another process on the default port does not disturb the server.
        let _other = server();
        let mut demo = Tool::consort(&["demo", "--time=1"]);
        let at = demo.wait_for(&["Hot Rod on 127.0.0.1:", ", cluster demo"]);
        assert!(
            !at.contains(&format!("{SERVER},")) && at.contains(":11223") && at.contains(":11224"),
            "{at}"
        );
        demo.wait_for(&["They share a cache of 100,000 keys"]);
        demo.wait_for(&["second 1:", "requests/s"]);
        demo.wait_for(&["Throughput:"]);
        demo.wait_for(&["Connections: 3"]);
        demo.wait_for(&["kill -9 of server C"]);
        demo.wait_for(&["the other servers continue"]);
        demo.wait_for(&["100,000 of 100,000 keys are present"]);
        demo.wait_for(&["0 operations have failed"]);
        let serving = demo.wait_for(&["Three servers serve until Ctrl-C"]);
        demo.wait_for(&["new RemoteCacheManager(\"hotrod://127.0.0.1:"]);
        let at: Vec<&str> = serving.split(": ").nth(1).expect("addresses").split(", ").collect();
        assert_eq!(at.len(), 3, "{serving}");
        for at in at {
            assert_eq!(done(&["--at", at, "size", "perf"]).0, "100000\n");
        }
        demo.signal("INT");
        demo.wait_for(&["SIGINT: the servers and their entries end"]);
        demo.wait_for_end();
        let (_, message, code) = cache(&["--at=127.0.0.1:11223", "ls"]);
        assert!(code == 2 && !message.is_empty(), "no server is left: {message}");
    });
}

#[test]
fn users_are_reloaded_at_sighup() {
    in_own_network("users_are_reloaded_at_sighup", async {
        let file = std::env::temp_dir().join(format!("consort-{}-users", std::process::id()));
        let write = |lines: &str| std::fs::write(&file, lines).unwrap();
        write("alice admin password:a\n");
        let path = file.to_str().expect("text");
        let keys = file.with_extension("tokens");
        let sign = || rcgen::KeyPair::generate().expect("a key").public_key_pem();
        std::fs::write(&keys, sign()).unwrap();
        let believes = ["--token-key", keys.to_str().expect("text"), "--token-audience=shop"];
        let mut server = Tool::consort_with_log(&[&["server", "--users", path][..], &believes].concat());
        server.wait_for(&["Hot Rod"]);
        let ls = |user: &str| cache(&["--at", &format!("hotrod://{user}@{SERVER}"), "ls"]);
        assert_eq!(ls("alice:a").2, 0);
        assert_eq!(ls("bob:b").2, 2);
        write("alice admin password:a\nbob deployer password:b\n");
        server.signal("HUP");
        server.wait_for(&["users reloaded"]);
        server.wait_for(&["token keys reloaded"]);
        assert_eq!(ls("bob:b").2, 0);
        // An invalid file is reported with its position, and changes nothing.
        write("carol admin password:c\nbob king password:b\n");
        server.signal("HUP");
        let line = server.wait_for(&["users not reloaded"]);
        assert!(line.contains(&format!("{path}:2: unknown role \"king\"")), "{line}");
        server.wait_for(&["token keys reloaded"]);
        assert_eq!(ls("alice:a").2, 0);
        assert_eq!(ls("carol:c").2, 2);
        std::fs::remove_file(&file).unwrap();
        std::fs::write(&keys, "no key").unwrap();
        server.signal("HUP");
        server.wait_for(&["users not reloaded", path]);
        server.wait_for(&["token keys not reloaded", "it has no key"]);
        std::fs::remove_file(&keys).unwrap();
        assert_eq!(ls("bob:b").2, 0);
        server.terminate();
    });
}

#[test]
fn caches_of_a_file_exist_from_the_start_and_new_ones_after_a_reload() {
    in_own_network("caches_of_a_file_exist_from_the_start_and_new_ones_after_a_reload", async {
        let file = std::env::temp_dir().join(format!("consort-{}-caches.xml", std::process::id()));
        let path = file.to_str().expect("text");
        let write = |caches: &str| {
            let around = |text| format!("<infinispan><cache-container>{text}</cache-container></infinispan>");
            std::fs::write(&file, around(caches)).unwrap();
        };
        write("<distributed-cache name='a'/><replicated-cache name='b'/>");
        let mut server = Tool::consort_with_log(&["server", "--caches", path]);
        server.wait_for(&["created caches of", path, ": a, b"]);
        server.wait_for(&["Hot Rod"]);
        assert_eq!(done(&["ls"]).0, "a\nb\n");
        write("<distributed-cache name='a'/><local-cache name='c'/>");
        server.signal("HUP");
        server.wait_for(&["cache definitions reloaded; 1 new caches"]);
        assert_eq!(done(&["ls"]).0, "a\nb\nc\n");
        // An invalid file is reported with its position, and changes nothing.
        for (wrong, expected) in [
            (
                "<local-cache name='d'/><local-cache name='e' owners='2'/>",
                "cache 'e': cache configuration: owners of local-cache",
            ),
            (
                "<local-cache name='d'/><local-cache name='a'/>",
                "these caches exist with another configuration: a",
            ),
        ] {
            write(wrong);
            server.signal("HUP");
            server.wait_for(&["caches not reloaded", path, expected]);
            assert_eq!(done(&["ls"]).0, "a\nb\nc\n");
        }
        server.terminate();
        // A server with an invalid file does not join.
        std::fs::write(&file, "<infinispan>").unwrap();
        let run = Tool::run_consort(&["server", "--caches", path]);
        let message = String::from_utf8_lossy(&run.stderr);
        assert!(!run.status.success() && message.contains(path), "{message}");
        std::fs::remove_file(&file).unwrap();
    });
}

#[test]
fn certificates_are_reloaded_at_sighup() {
    in_own_network("certificates_are_reloaded_at_sighup", async {
        let file = |name: &str| {
            let path = std::env::temp_dir().join(format!("consort-{}-{name}.pem", std::process::id()));
            path.to_str().expect("text").to_owned()
        };
        let (cert, key, trusted) = (file("cert"), file("key"), file("trusted"));
        let renew = || {
            let made =
                rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
            std::fs::write(&cert, made.cert.pem()).expect("a file");
            std::fs::write(&key, made.signing_key.serialize_pem()).expect("a file");
        };
        renew();
        std::fs::copy(&cert, &trusted).expect("a file");
        let mut server = Tool::consort_with_log(&["server", "--tls-cert", &cert, "--tls-key", &key]);
        server.wait_for(&["Hot Rod"]);
        let ls = || cache(&["--at", &format!("hotrods://localhost?trust_store_file_name={trusted}"), "ls"]);
        assert_eq!(ls().2, 0);
        renew();
        assert_eq!(ls().2, 0, "not before SIGHUP");
        server.signal("HUP");
        server.wait_for(&["certificate and key reloaded"]);
        let (_, message, code) = ls();
        assert!(code == 2 && message.contains("TLS"), "another certificate: {message}");
        std::fs::copy(&cert, &trusted).expect("a file");
        assert_eq!(ls().2, 0);
        // An unusable key is reported, and changes nothing.
        std::fs::write(&key, "no key").expect("a file");
        server.signal("HUP");
        let line = server.wait_for(&["certificate and key not reloaded"]);
        assert!(line.contains(&key), "{line}");
        assert_eq!(ls().2, 0);
        for file in [cert, key, trusted] {
            std::fs::remove_file(file).expect("a file");
        }
        server.signal("TERM");
        server.wait_for(&["INFO", "ended"]);
        server.wait_for_end();
    });
}

/// The server that would take over the entries does not respond: the leaving server waits, until a second signal.
#[test]
fn a_server_that_cannot_leave_gracefully_ends_at_the_second_signal() {
    in_own_network("a_server_that_cannot_leave_gracefully_ends_at_the_second_signal", async {
        let start = |name: &str, port: &str| {
            let hosts = "-Djgroups.tcpping.initial_hosts=127.0.0.1[7800]";
            let own = ["server", &format!("--name={name}"), &format!("--port={port}")];
            let mut server =
                Tool::consort_with_log(&[&own[..], &["--cluster=ends", "--bind=127.0.0.1", hosts]].concat());
            server.wait_for(&["Hot Rod"]);
            server
        };
        let (mut first, second) = (start("A", "11222"), start("B", "11223"));
        done(&["create", "shop"]);
        second.signal("STOP");
        first.signal("TERM");
        first.wait_for(&["SIGTERM: answering requests and leaving"]);
        first.signal("INT");
        first.wait_for(&["second signal: stopped before"]);
        first.wait_for_death();
    });
}

/// Returns a server's HTTP response to this path.
async fn of_http(port: u16, path: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// Two of three servers are killed at once: the remaining one may not write, and so no server joins until an administrator
/// makes the cache available.
#[test]
fn a_waiting_server_logs_the_reason() {
    in_own_network("a_waiting_server_logs_the_reason", async {
        let start = |name: &str, port: &str| {
            let hosts = "-Djgroups.tcpping.initial_hosts=127.0.0.1[7800]";
            let cluster = ["--cluster=waiting", "--bind=127.0.0.1", "-Djgroups.tcp.port_range=5", hosts];
            let own = ["server", &format!("--name={name}"), &format!("--port={port}")];
            Tool::consort_with_log(&[&own[..], &cluster].concat())
        };
        let [mut first, mut second, mut third] =
            [("A", "11222"), ("B", "11223"), ("C", "11224")].map(|(name, port)| {
                let mut server = start(name, port);
                server.wait_for(&["Hot Rod"]);
                server
            });
        done(&["create", "shop"]);
        done(&["put", "shop", "apples", "3"]);
        second.signal("KILL");
        third.signal("KILL");
        second.wait_for_death();
        third.wait_for_death();
        // A serving server logs the missing members and the consequences.
        first.wait_for(&["members [A|", "; left: "]);
        let line = first.wait_for(&["WARN", "cache", "degraded, because B, C are unreachable"]);
        assert!(line.contains("shop") && line.contains("consort cache make-available"), "{line}");
        let mut late = start("D", "11225");
        let line = late.wait_for(&["not serving yet, after 5 s"]);
        assert!(line.contains("Start the missing servers"), "{line}");
        assert!(line.contains("have not added this server to the caches"), "{line}");
        // Probes do not take the server for dead, and clients wait.
        for (path, code) in [("live", 200), ("started", 503), ("ready", 503)] {
            let answer = of_http(11225, &format!("/health/{path}")).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {code} ")), "{path}: {answer}");
        }
        let (_, message, code) = cache(&["put", "shop", "apples", "4"]);
        assert!(code == 2 && message.contains("ISPN000306") && message.contains("degraded"), "{message}");
        let doctor = Tool::run_consort(&["doctor"]);
        let found = String::from_utf8_lossy(&doctor.stdout).into_owned();
        assert!(doctor.status.code() == Some(1) && found.contains("DEGRADED"), "{found}");
        assert!(found.contains("consort cache make-available, which prints the losses"), "{found}");
        late.wait_for(&["not serving yet, after 35 s"]);
        // The server can still be stopped.
        late.terminate();

        // The missing servers do not return: the remaining entries are used, and other servers join.
        let (_, message, code) = cache(&["make-available", "none"]);
        assert!(code == 2 && message.contains("ISPN000436: Cache 'none'"), "{message}");
        let mut late = start("E", "11226");
        let line = late.wait_for(&["not serving yet, after 5 s"]);
        assert!(line.contains("have not added this server"), "{line}");
        let (made, message, code) = cache(&["make-available"]);
        assert!(code == 2 && made.is_empty() && message.contains("add --yes"), "{message}");
        let lost = message
            .lines()
            .find_map(|line| line.strip_prefix("shop: ")?.split_once(" of 256 segments have no owner"));
        let lost: usize = lost.unwrap_or_else(|| panic!("{message}")).0.parse().unwrap();
        // Of three members two are away: they were both owners of about a third of the segments.
        assert!((40..130).contains(&lost), "{message}");
        let (made, losses, code) = cache(&["make-available", "--yes"]);
        assert!(code == 0 && losses.contains("shop: "), "{losses}");
        assert!(made.lines().any(|name| name == "shop"), "{made}");
        first.wait_for(&["available again"]);
        // A client that connected before the server served is served then.
        assert_eq!(done(&["--at=127.0.0.1:11226", "ls"]).0, "shop\n");
        late.wait_for(&["Hot Rod on 127.0.0.1:11226"]);
        assert_eq!(done(&["put", "shop", "apples", "4"]).1, 0);
        assert_eq!(done(&["--at=127.0.0.1:11226", "get", "shop", "apples"]).0, "4");
        assert_eq!(done(&["make-available"]).0, "", "nothing is degraded");
    });
}
