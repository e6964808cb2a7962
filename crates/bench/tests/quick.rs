//! The bench itself, with the smallest loads.

use std::process::Command;

use serde_json::Value;

fn figures(part: &str, arguments: &[&str]) -> Value {
    let file = std::env::temp_dir().join(format!("consort-bench-{part}-{}.json", std::process::id()));
    let output = Command::new(env!("CARGO_BIN_EXE_consort-bench"))
        .args(["--quick", "--json"])
        .arg(&file)
        .args(arguments)
        // Compiling well is not worth the time in a cold JVM.
        .env("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
        .output()
        .expect("the bench starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}:\n{said}");
    let text = std::fs::read_to_string(&file).expect("its figures");
    std::fs::remove_file(&file).expect("they are ours");
    serde_json::from_str(&text).expect("JSON")
}

fn sample<'a>(figures: &'a Value, point: usize, whose: &str) -> &'a Value {
    let sample = &figures["record"]["points"][point][whose]["samples"][0];
    for figure in ["rate", "cpu_us", "rss_mb"] {
        assert!(sample[figure].as_f64().is_some_and(|value| value > 0.0), "{whose}, {figure}: {sample}");
    }
    assert_eq!(sample["errors"], 0, "{whose}");
    sample
}

/// S001-6, S003-14: calls and multicasts are measured beside JGroups in one run, multicasts beside bare sockets too.
#[test]
fn everything_is_measured_in_one_run() {
    let figures = figures(
        "usual",
        &["--members=2", "--callers=5", "--java-threads=platform", "--configs=udp.xml", "--sizes=1000"],
    );
    for whose in ["consort", "jgroups"] {
        let latency = &sample(&figures, 0, whose)["latency"];
        assert!(latency["p50"].as_f64() <= latency["p99.9"].as_f64(), "{whose}: {latency}");
    }
    for whose in ["consort", "jgroups", "sockets"] {
        sample(&figures, 1, whose);
    }
    let rows = figures["rows"].as_array().expect("rows");
    for row in rows {
        let (ours, theirs) = (row["consort"].as_f64().expect("ours"), row["other"].as_f64().expect("theirs"));
        let ratio = row["ratio"].as_f64().expect("their ratio");
        assert!((ratio - ours / theirs).abs() < 1e-9 * ratio, "{row}");
    }
    assert_eq!(rows.iter().filter(|row| row["rival"] == "bare sockets").count(), 2);
    assert!(figures["record"]["java"].as_str().is_some_and(|java| java.contains("JGroups 5.5.7")));
}

/// S000-68, S000-80, S003-1, S003-7: steps of nanoseconds and threads that send are measured, and kept for later runs to
/// compare with. JGroups and Consort write packets of the same size, or the bench fails.
#[test]
fn small_steps_and_senders_are_measured() {
    let figures = figures("small", &["--only=micro,senders"]);
    let rows = figures["rows"].as_array().expect("rows");
    let of = |subject: &str| {
        let row = rows.iter().find(|row| row["subject"] == subject);
        row.unwrap_or_else(|| panic!("no {subject}"))
    };
    for subject in ["write a message of 0 B", "read a list of 100, 1000 B each"] {
        let row = of(subject);
        assert!(row["consort"].as_f64() > Some(0.0) && row["other"].as_f64() > Some(0.0), "{row}");
    }
    for subject in ["open BARRIER, batches of 10", "a layer's trace that is off", "senders: 1", "senders: 8"]
    {
        assert!(of(subject)["consort"].is_f64(), "{subject}");
    }
    let steps = figures["senders"]["steps"].as_array().expect("steps");
    assert!(steps.iter().all(|step| step["consort"]["samples"][0]["errors"] == 0), "{steps:?}");
}

/// S001-3, S003-5: calls and multicasts with every bundler, and multicasts between hosts, have figures without any lost
/// messages.
#[test]
fn bundlers_and_hosts_around_a_switch_are_measured() {
    let figures = figures(
        "hosts",
        &["--only=bundlers,gigabit", "--members=2", "--callers=5", "--senders=5", "--configs=tcp.xml"],
    );
    let rows = figures["rows"].as_array().expect("rows");
    let subjects = [
        "uperf, 5 callers, per-destination",
        "mperf, tcp.xml, 1000 B, no-bundler",
        "mperf, udp.xml, 1000 B, 2 hosts, MTU 1500, 1 Gbit/s",
        "mperf, udp.xml, 1000 B, 2 hosts, MTU 1500, no limit",
    ];
    for subject in subjects {
        let mut own = rows.iter().filter(|row| row["subject"] == subject).peekable();
        assert!(own.peek().is_some(), "no {subject}");
        assert!(own.all(|row| row["consort"].as_f64() > Some(0.0)), "{subject}: {rows:?}");
    }
    assert!(figures["failures"].is_null(), "{}", figures["failures"]);
}

/// S002-3 to S002-7, S002-10, S002-15, S002-17: our server has figures beside Infinispan's under the same Java client and
/// beside a bare socket, our client beside Java's, with idle connections, with values in pieces, and beside a connection for
/// each caller.
#[test]
fn servers_and_clients_are_measured_in_one_run() {
    let figures = figures("hotrod", &["--hotrod", "--hotrod-callers=1,5", "--idle=50", "--java-heap=256m"]);
    let rows = figures["rows"].as_array().expect("rows");
    let both = |rival: &str, subject: &str, figure: &str| {
        let row = rows.iter().find(|row| {
            (&row["rival"], &row["subject"], &row["figure"])
                == (&rival.into(), &subject.into(), &figure.into())
        });
        let row = row.unwrap_or_else(|| panic!("no {figure} of {subject} beside {rival}"));
        assert!(row["consort"].as_f64() > Some(0.0) && row["other"].as_f64() > Some(0.0), "{row}");
    };
    for figure in ["server CPU us/request", "p50 us", "p99.9 us", "peak MB", "requests/s"] {
        both("Infinispan", "Java client, 5 threads", figure);
        both("Java client", "our client, 5 callers", figure);
    }
    both("bare sockets", "Java client, 1 thread", "server CPU us/request");
    both("Java client", "our client, 1 caller", "CPU us/request, client and server");
    both("without", "50 idle connections", "p50 us");
    for subject in ["20 MB written in pieces", "20 MB read in pieces"] {
        both("without", subject, "p99 us of gets");
        both("at once", subject, "MB/s");
    }
    for subject in [
        "1 client, 1 server, 22 callers",
        "1 client, 3 servers, 1 caller",
        "3 clients, 3 servers, 100 callers",
    ] {
        both("pooled", subject, "requests/s");
    }
    assert!(figures["failures"].is_null(), "{}", figures["failures"]);
}

/// A legitimate client has figures beside thousands of unauthenticated connections and wrong passwords (here a few), each of
/// which the server has refused; so does the server's memory for an unauthenticated connection.
#[test]
fn a_client_beside_handshakes_is_measured() {
    let figures = figures("hostile", &["--only=hostile", "--handshakes=60"]);
    let rows = figures["rows"].as_array().expect("rows");
    let of = |subject: &str, figure: &str| {
        let row = rows.iter().find(|row| row["subject"] == subject && row["figure"] == figure);
        row.unwrap_or_else(|| panic!("no {figure} of {subject}"))
    };
    let guesses = ["1000 wrong passwords a second", "wrong passwords, as fast as they are answered"];
    for subject in [&["60 strangers at once"][..], &guesses].concat() {
        for figure in ["p50 us", "p99 us"] {
            let row = of(subject, figure);
            assert!(row["consort"].as_f64() > Some(0.0) && row["other"].as_f64() > Some(0.0), "{row}");
        }
    }
    for subject in guesses {
        for figure in ["refused/s, SCRAM", "refused/s, PLAIN"] {
            assert!(of(subject, figure)["consort"].as_f64() > Some(0.0), "{figure} of {subject}");
        }
    }
    let held = of("60 strangers, unfinished log-ins", "KB/connection");
    assert!(held["consort"].as_f64() > Some(0.0), "{held}");
    assert!(figures["failures"].is_null(), "{}", figures["failures"]);
}

/// S000-44, S004-13, S004-14, S004-19: reads and writes of the grid have figures beside Infinispan and Hazelcast, iterations
/// beside Infinispan, and a rebalance beside a TCP stream.
#[test]
fn grids_are_measured_in_one_run() {
    let small = ["--invokers=5", "--keys=2000", "--java-heap=256m", "--java-threads=platform"];
    let what = ["--grid", "--grid-members=3", "--reads=0.8", "--entry-sizes=100", "--batches=512"];
    let figures = figures("grid", &[&small[..], &what].concat());
    let rows = figures["rows"].as_array().expect("rows");
    let of = |subject: &str, figure: &str| {
        let row = rows.iter().find(|row| row["subject"] == subject && row["figure"] == figure);
        row.unwrap_or_else(|| panic!("no {figure} of {subject}"))
    };
    for figure in ["requests/s/member", "CPU us/request", "p50 us", "p99 us", "p99.9 us", "peak MB/member"] {
        let row = of("grid, 3 members, 80 % reads", figure);
        assert!(row["consort"].as_f64() > Some(0.0) && row["other"].as_f64() > Some(0.0), "{row}");
    }
    let others = figures["grid"][0]["others"].as_array().expect("others");
    let names: Vec<&str> = others.iter().filter_map(|other| other["name"].as_str()).collect();
    assert_eq!(names, ["Infinispan, platform threads", "Hazelcast"]);
    let walk = "iterate, 100 B, parallel, batch 512";
    assert!(of(walk, "entries/s")["other"].as_f64() > Some(0.0));
    for figure in [
        "parallel, of sequential's rate",
        "at most once, of exactly once's rate",
        "whole answers, of entry by entry's rate",
    ] {
        assert!(of(walk, figure)["consort"].as_f64() > Some(0.0), "{figure}");
    }
    let moved = rows.iter().find(|row| row["figure"] == "MB/s").expect("a rebalance");
    assert!(moved["consort"].as_f64() > Some(0.0) && moved["other"].as_f64() > Some(0.0), "{moved}");
    assert!(figures["failures"].is_null(), "{}", figures["failures"]);
}

/// Kills of servers have figures with our client and with Java's, beside Infinispan and Hazelcast.
#[test]
fn kills_of_servers_are_measured_beside_other_products() {
    let figures =
        figures("failover", &["--only=failover", "--failover-servers=3", "--kills=1", "--java-heap=384m"]);
    let rows = figures["rows"].as_array().expect("rows");
    for rival in ["alone", "Infinispan", "other grids"] {
        for figure in ["first answer, ms", "previous rate, ms", "previous rate, worst, ms"] {
            let row = rows.iter().find(|row| row["rival"] == rival && row["figure"] == figure);
            let row = row.unwrap_or_else(|| panic!("no {figure} beside {rival}"));
            assert!(row["consort"].as_f64() > Some(0.0), "{row}");
            assert!(rival == "alone" || row["other"].as_f64() > Some(0.0), "{row}");
        }
    }
    let all = figures["failover"].as_array().expect("series");
    assert_eq!(all.len(), 4);
    for series in all {
        let kills = series["kills"].as_array().expect("kills");
        assert_eq!((kills.len(), &kills[0]["is_coordinator"]), (1, &true.into()), "{series}");
        assert_eq!(series["servers"], 3);
    }
    assert!(figures["failures"].is_null(), "{}", figures["failures"]);
}
