//! Faults of members under load: processes in network namespaces of their own.

use consort_interop::{Tool, in_own_network};
use consort_testbed::LinearizabilityChecker;

/// Shorter pauses and cuts than `docs/lab/2026-11-chaos.md` has, and a stack that notices them.
const QUICK: [&str; 8] = [
    "chaos",
    "--calm=0.5",
    "--keys=500",
    "--clients=10",
    "--detect=2",
    "--pause=4",
    "--cut=5",
    "--events=kill,kill-coordinator,pause,cut,restart",
];

/// Issue 3, live: 0 lost acknowledged writes, 0 hung calls, and every remaining member reads the expected values.
#[test]
fn nothing_is_lost_when_members_are_killed_stopped_cut_off_and_restarted() {
    let test = "nothing_is_lost_when_members_are_killed_stopped_cut_off_and_restarted";
    in_own_network(test, async {
        let mut chaos = Tool::consort(&QUICK);
        chaos.wait_for_end();
        let output = chaos.output.join("\n");
        assert!(output.contains("5 of 5 events without loss."), "{output}");
        let figures = |name: &str| -> Vec<&str> {
            chaos.output.iter().filter_map(|line| line.trim().strip_prefix(name)).map(str::trim).collect()
        };
        assert_eq!(figures("lost writes"), ["0"; 5], "{output}");
        assert_eq!(figures("hung calls"), ["0"; 5], "{output}");
        // Planned operations fail no call.
        assert_eq!(figures("failed calls").last(), Some(&"0"), "{output}");
    });
}

/// Records a history while members are killed, stopped, cut off and restarted, and has porcupine check it key by key.
fn check_history(test: &str, access: &[&str]) {
    let checker = LinearizabilityChecker::prepare().unwrap();
    let file = std::env::temp_dir().join(format!("{test}-{}.jsonl", std::process::id()));
    in_own_network(test, async {
        let history = format!("--history={}", file.display());
        let mut arguments =
            vec!["chaos", &history, "--members=3", "--clients=5", "--seconds=20", "--calm=0.5"];
        arguments.extend(["--detect=2", "--pause=4", "--cut=5"]);
        arguments.extend(access);
        let mut chaos = Tool::consort(&arguments);
        chaos.wait_for_end();
        let judged = checker.command([file.as_path()]).output().unwrap();
        let verdict = String::from_utf8_lossy(&judged.stdout).into_owned();
        let output = chaos.output.join("\n");
        assert!(judged.status.success(), "{verdict}\n{output}");
        let verdict: serde_json::Value = serde_json::from_str(&verdict).unwrap();
        assert!(verdict["operations"].as_u64().unwrap() > 1_000, "{verdict}\n{output}");
        std::fs::remove_file(&file).unwrap();
    });
}

#[test]
fn history_of_embedded_caches_is_linearizable_per_key() {
    check_history("history_of_embedded_caches_is_linearizable_per_key", &[]);
}

#[test]
fn history_of_hot_rod_clients_is_linearizable_per_key() {
    check_history("history_of_hot_rod_clients_is_linearizable_per_key", &["--hotrod"]);
}
