//! `consort perf`, the grid's performance test, as people and scripts use it: real processes over loopback.

use std::fs;

use consort_interop::{Setting, Tool, in_own_network};
use serde_json::Value;

/// A member with a menu, small values everywhere so that all of it is quick.
fn with_menu(options: &[&str]) -> Tool {
    let own = [
        "perf",
        "--bind=127.0.0.1",
        "-Djgroups.tcpping.initial_hosts=127.0.0.1[7800]",
        "-Djgroups.tcp.port_range=9",
    ];
    Tool::consort(&[&own, options].concat())
}

const QUICK: [&str; 4] = ["--keys=2000", "--threads=10", "--time=1", "--size=100"];

/// Returns the text after a label in a line, up to the next blank or bracket, without commas.
fn number(line: &str, before: &str) -> f64 {
    let (_, rest) = line.split_once(before).unwrap_or_else(|| panic!("`{before}` in `{line}`"));
    let digits: String =
        rest.chars().filter(|c| *c != ',').take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    digits.parse().unwrap_or_else(|error| panic!("{error}: `{before}` in `{line}`"))
}

/// The number before a text in a line.
fn number_before(line: &str, after: &str) -> f64 {
    let (before, _) = line.split_once(after).unwrap_or_else(|| panic!("`{after}` in `{line}`"));
    let word = before.rsplit([' ', '(']).next().unwrap_or_default();
    word.replace(',', "").parse().unwrap_or_else(|error| panic!("{error}: before `{after}` in `{line}`"))
}

fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").expect("the host's name");
    name.trim().split('.').next().unwrap_or_default().to_owned()
}

/// S000-24, S000-25, S000-26: two channels, each with a name of its own, then the keys, then the menu.
#[test]
fn a_member_begins_with_its_two_channels() {
    in_own_network("a_member_begins_with_its_two_channels", async {
        let mut member = with_menu(&[]);
        let mut numbers = Vec::new();
        for (cluster, port) in [("default", 7800), ("cfg", 7850)] {
            let line = member.wait_for(&["GMS: "]);
            let start = format!("GMS: address={}-", host());
            let end = format!(", cluster={cluster}, physical address=127.0.0.1:{port}");
            let random = line.strip_prefix(&start).and_then(|rest| rest.strip_suffix(&end));
            let random = random.unwrap_or_else(|| panic!("{start}N{end}: {line}"));
            numbers.push(random.parse::<u16>().expect("a random number"));
            member.wait_for(&["-------------------------------------------------------------------"]);
        }
        assert_ne!(numbers[0], numbers[1], "one name per channel");
        assert_eq!(member.wait_for(&["created"]), "created 100,000 keys: [1-100,000]");
        for line in [
            "[1] Start test [2] View [3] Cache size [4] Threads (100)",
            "[5] Keys (100,000) [6] Time (secs) (60) [7] Value size (1.00KB) [8] Validate",
            "[p] Populate cache [c] Clear cache [v] Versions",
            "[r] Read percentage (1.00)",
            "[d] Details (true)  [i] Invokers (false) [l] dump local cache",
            "[q] Quit [X] Quit all",
        ] {
            assert_eq!(member.wait_for(&[line]), line);
        }
        member.type_line("q");
        member.wait_for_end();
    });
}

/// S000-27, S000-33, S000-36: the effect of each key of the menu, on this member, on others and on one that joins later.
#[test]
fn every_key_of_the_menu_executes_its_action() {
    in_own_network("every_key_of_the_menu_executes_its_action", async {
        let mut a = with_menu(&["--name=A"]);
        a.wait_for(&["[q] Quit"]);
        let mut b = with_menu(&["--name=B"]);
        b.wait_for(&["[q] Quit"]);
        a.wait_for(&["** view: [A|1] (2) [A, B]"]);
        a.type_line("2");
        assert_eq!(a.wait_for(&["-- local"]), "-- local: A");
        assert_eq!(a.wait_for(&["-- view"]), "-- view: [A|1] (2) [A, B]");
        for (typed, shown) in [
            ("4 10", "[4] Threads (10)"),
            ("5 2000", "[5] Keys (2,000) [6] Time (secs) (60) [7] Value size (1.00KB)"),
            ("6 1", "[6] Time (secs) (1)"),
            ("r 0.5", "[r] Read percentage (0.50)"),
            ("d", "[d] Details (false)"),
            ("i", "[i] Invokers (true)"),
        ] {
            a.type_line(typed);
            a.wait_for(&[shown]);
        }
        // Without a value, it is asked for.
        a.type_line("7");
        a.type_line("100");
        a.wait_for(&["[7] Value size (100B)"]);
        a.type_line("r 7");
        a.wait_for(&["Read percentage: `7` is not from 0 to 1"]);
        b.wait_for(&["created 2,000 keys: [1-2,000]"]);
        // Members that join later get the setting, too.
        let mut c = with_menu(&["--name=C", "--threads=77", "--keys=5"]);
        c.wait_for(&["-- settings are those of"]);
        c.wait_for(&["created 2,000 keys: [1-2,000]"]);
        for other in [&mut b, &mut c] {
            other.type_line("");
            other.wait_for(&["[4] Threads (10)"]);
            other.wait_for(&["[5] Keys (2,000) [6] Time (secs) (1) [7] Value size (100B) [8] Validate"]);
            other.wait_for(&["[r] Read percentage (0.50)"]);
            other.wait_for(&["[d] Details (false)  [i] Invokers (true)"]);
        }
        a.wait_for(&["** view: [A|2] (3) [A, B, C]"]);
        b.type_line("p");
        b.wait_for(&["-- inserted 2,000 keys in "]);
        for member in [&mut a, &mut b, &mut c] {
            member.type_line("3");
            assert!(member.wait_for(&["-- cache size"]).contains("cache size: 2,000, of which"));
        }
        a.type_line("8");
        a.wait_for(&["-- 2,000 keys: each has 2 equal copies"]);
        a.type_line("l");
        let dumped = number(&a.wait_for(&[" keys here: "]), "-- ");
        assert!((1_000.0..1_700.0).contains(&dumped), "two thirds of 2,000: {dumped}");
        b.type_line("1");
        assert!(b.wait_for(&["invoker 10: get "]).contains(", put: "));
        b.wait_for(&["Roundtrip: gets avg = "]);
        c.type_line("v");
        c.wait_for(&["Consort "]);
        c.type_line("9");
        c.wait_for(&["no key `9`"]);
        c.type_line("c");
        c.wait_for(&["-- cleared"]);
        a.type_line("3");
        a.wait_for(&["-- cache size: 0, of which 0 (0B) are here"]);
        a.type_line("8");
        a.wait_for(&["-- 2,000 keys: 2,000 are missing"]);
        // One leaves, the others go on; then all end.
        c.type_line("q");
        c.wait_for_end();
        a.wait_for(&["** view: [A|3] (2) [A, B]"]);
        b.type_line("X");
        b.wait_for_end();
    });
}

/// Messages that the control channels of four members on this host have sent, by probe, which asks the next four ports:
/// those of two members and of both their channels.
fn control_messages() -> u64 {
    let mut messages = 0;
    for port in ["--port=7501", "--port=7505"] {
        let mut probe =
            Tool::consort(&["probe", "--addr=localhost", port, "--timeout=2000", "jmx=TCP.num_msgs_sent"]);
        probe.wait_for_end();
        let counts: Vec<&String> = probe
            .output
            .windows(2)
            .filter(|lines| lines[0].contains("cluster=cfg,"))
            .map(|lines| &lines[1])
            .collect();
        assert_eq!(counts.len(), 2, "{:?}", probe.output);
        messages += counts.iter().map(|line| number(line, "num_msgs_sent=") as u64).sum::<u64>();
    }
    messages
}

/// S000-28, S000-24, S000-37 to S000-43: an interactive member and three without a menu, started apart, form one cluster
/// and are measured together.
#[test]
fn an_interactive_member_and_three_others_are_measured_together() {
    in_own_network("an_interactive_member_and_three_others_are_measured_together", async {
        let mut others: Vec<Tool> = Vec::new();
        for _ in 0..3 {
            let mut other = with_menu(&[&["--nohup"], &QUICK[..]].concat());
            other.close_input();
            other.wait_for(&["created 2,000 keys"]);
            others.push(other);
        }
        let mut menu = with_menu(&["--time=60"]);
        let view = menu.wait_for(&["** view: "]);
        assert!(view.contains("|3] (4) ["), "{view}");
        menu.wait_for(&["-- settings are those of"]);
        menu.type_line("p");
        menu.wait_for(&["-- inserted 2,000 keys"]);
        menu.type_line("r 0.8");
        menu.wait_for(&["[r] Read percentage (0.80)"]);
        let before = control_messages();
        menu.type_line("1");
        let mut results = Vec::new();
        for member in std::iter::once(&mut menu).chain(&mut others) {
            let (mut last, mut written) = (0.0, 0.0);
            for tenth in 1..=10 {
                let line = member.wait_for(&[&format!("{tenth}: "), " reqs/sec ("]);
                let (reads, writes) = (number_before(&line, " reads "), number_before(&line, " writes)"));
                let elapsed = f64::from(tenth) * 0.1;
                let rate = number(&line, &format!("{tenth}: "));
                // A line that is late on a busy machine counts until then.
                let counted = (reads + writes) / rate;
                assert!((0.95 * elapsed..elapsed + 0.5).contains(&counted), "{line}");
                assert!(reads + writes >= last, "{line} after {last}");
                (last, written) = (reads + writes, writes);
            }
            assert!(written > 0.0, "{last} operations");
            let done = member.wait_for(&["done (in ", " ms)"]);
            assert!((1_000.0..1_050.0).contains(&number(&done, "(in ")), "{done}");
            let all = member.wait_for(&["all: get "]);
            assert_eq!(all.matches(" / ").count(), 4, "{all}");
            assert!(all.contains(", put: "), "{all}");
        }
        menu.wait_for(&["======================= Results: ==========================="]);
        for _ in 0..4 {
            results.push(menu.wait_for(&[
                " reqs/sec (",
                " GETs, ",
                " PUTs), avg RTT (us) = ",
                " get, ",
                " put",
            ]));
        }
        let (mut gets, mut puts, mut rates) = (0.0, 0.0, 0.0);
        for line in &results {
            gets += number_before(line, " GETs");
            puts += number_before(line, " PUTs");
            rates += number_before(line, " reqs/sec");
        }
        assert!((gets / (gets + puts) - 0.8).abs() < 0.05, "{gets} and {puts}");
        let throughput = menu.wait_for(&["Throughput: "]);
        let node = number(&throughput, "Throughput: ");
        let cluster = number_before(&throughput, " reqs/sec/cluster");
        assert!((node - rates / 4.0).abs() < 0.01 * node, "the mean of {results:?}: {throughput}");
        assert!((cluster / node - 4.0).abs() < 0.2, "{throughput}");
        assert!(
            throughput.contains(&format!("({:.2}MB/sec)", node * 100.0 / 1e6)) || node < 10_000.0,
            "{throughput}"
        );
        let trips = menu.wait_for(&["Roundtrip: gets min/avg/max = ", "puts min/avg/max = "]);
        for wanted in ["(50.0=", " 90.0=", " 95.0=", " 99.0=", " 99.9=", " [percentile at mean: "] {
            assert_eq!(trips.matches(wanted).count(), 2, "{wanted}: {trips}");
        }
        let spread = menu.wait_for(&["; started within "]);
        assert!(number(&spread, "started within ") <= 100.0, "{spread}");
        let messages = control_messages() - before;
        assert!(
            (3..=100).contains(&messages),
            "a test of {} operations took {messages} messages of control",
            gets + puts
        );
        menu.type_line("X");
        menu.wait_for_end();
        for mut other in others {
            other.wait_for_end();
        }
    });
}

/// A script's run: one line of JSON, and the copies are looked at.
#[test]
fn a_script_gets_one_line() {
    in_own_network("a_script_gets_one_line", async {
        let mut run = Tool::consort(&[
            "perf",
            "--spawn=3",
            "--seconds=1",
            "--reads=0.8",
            "--invokers=10",
            "--keys=3000",
            "--warmup=0.2",
            "--json",
        ]);
        run.wait_for_end();
        let [line] = &run.output[..] else { panic!("{:?}", run.output) };
        let json: Value = serde_json::from_str(line).expect("JSON");
        assert_eq!(
            (&json["members"], &json["threads"], &json["errors"], &json["missing"]),
            (&3.into(), &10.into(), &0.into(), &0.into())
        );
        let copies = serde_json::json!({"keys": 3_000, "missing": 0, "incomplete": 0, "different": 0});
        assert_eq!(json["copies"], copies);
        for figure in ["reqs_sec_node", "reqs_sec_cluster", "cpu_s_per_mreq", "rss_mb"] {
            assert!(json[figure].as_f64().is_some_and(|value| value > 0.0), "{figure}: {line}");
        }
        assert!(json["get_us"]["p99.9"].is_number() && json["put_us"]["p50"].is_number(), "{line}");
    });
}

/// A member of a grid dies under load, and nothing is lost.
#[test]
fn the_demo_of_the_grid_loses_nothing() {
    in_own_network("the_demo_of_the_grid_loses_nothing", async {
        let mut demo = Tool::consort(&["demo", "--grid", "--time=1"]);
        demo.wait_for(&["They share a cache of 100,000 keys"]);
        demo.wait_for(&["second 1:", "requests/s"]);
        demo.wait_for(&["Throughput:"]);
        demo.wait_for(&["kill -9 of member D"]);
        demo.wait_for(&["the other members have noticed"]);
        demo.wait_for(&["2 owners of each key again"]);
        demo.wait_for(&["100,000 keys: each has 2 equal copies"]);
        demo.wait_for(&["while segments move"]);
        demo.wait_for(&["after, three members"]);
        demo.wait_for(&["0 operations have failed"]);
        demo.wait_for_end();
    });
}

const UPERF: &str = "org.jgroups.tests.perf.UPerf";

/// Members of UPerf in Java and of Consort: either kind starts a test, in which all call each other.
#[test]
fn members_of_jgroups_uperf_and_consort_measure_each_other() {
    in_own_network("members_of_jgroups_uperf_and_consort_measure_each_other", async {
        let setting = Setting::new("tcp.xml");
        let props = setting.config.display().to_string();
        let java = |name: &str, options: &[&str]| {
            let mut member =
                Tool::java(&setting, UPERF, &[&["-props", &props, "-name", name], options].concat());
            member.wait_for(&["** view:", name]);
            member
        };
        let mut members = [java("A", &["-nohup"]), java("B", &["-nohup"])];
        let load = ["--threads=5", "--time=2", "--size=500", "--oob=false"];
        let options = ["uperf", "--jgroups", "--start-none", "--members=3", "--name=C", "--json"];
        let mut own = Tool::consort_member(&setting, &[&options[..], &load].concat());
        let results: Value = serde_json::from_str(&own.wait_for(&["{"])).expect("JSON");
        own.wait_for_end();
        assert_eq!(results["errors"], 0, "{results}");
        let rows = results["members"].as_array().expect("rows");
        let mut names: Vec<&str> = rows.iter().filter_map(|row| row["member"].as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["A", "B", "C"]);
        for row in rows {
            for figure in ["reqs_sec", "gets", "puts", "get_us", "put_us"] {
                assert!(row[figure].as_f64().is_some_and(|value| value > 0.0), "{figure} of {row}");
            }
        }
        // A Java member has the settings of the first one, which Consort's member has set, and Consort's member calls with them.
        let mut taking_part =
            Tool::consort_member(&setting, &["uperf", "--jgroups", "--join-only", "--name=D"]);
        let mut starter = java("E", &[]);
        starter.wait_for(&["Fetched config"]);
        starter.type_line("1");
        starter.wait_for(&["running for 2 seconds"]);
        starter.wait_for(&["Results:"]);
        let mut rows = String::new();
        for _ in 0..4 {
            rows += &starter.wait_for(&["reqs/sec (", "get RTT"]);
            rows += "\n";
        }
        for name in ["A", "B", "D", "E"] {
            assert!(rows.contains(&format!("{name}: ")), "{name}: {rows}");
        }
        assert!(!rows.contains(" 0.00 reqs/sec"), "{rows}");
        starter.type_line("X");
        taking_part.wait_for_end();
        members.iter_mut().chain([&mut starter]).for_each(Tool::wait_for_end);
    });
}
