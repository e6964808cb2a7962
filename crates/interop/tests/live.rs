//! The grid under load while things happen to its members: processes in network namespaces of their own.

use consort_interop::{Tool, in_own_network};

/// Shorter pauses and cuts than `docs/live-grid.md` has, and a stack that notices them.
const QUICK: [&str; 8] = [
    "live",
    "--calm=0.5",
    "--keys=500",
    "--clients=10",
    "--detect=2",
    "--pause=4",
    "--cut=5",
    "--events=kill,kill-coordinator,pause,cut,restart",
];

/// Issue 3, live: 0 lost acknowledged writes, 0 hung calls, and every member that goes on reads what it has to.
#[test]
fn nothing_is_lost_when_members_are_killed_stopped_cut_off_and_restarted() {
    let test = "nothing_is_lost_when_members_are_killed_stopped_cut_off_and_restarted";
    in_own_network(test, async {
        let mut live = Tool::consort(&QUICK);
        live.wait_for_end();
        let said = live.said.join("\n");
        assert!(said.contains("5 of 5 events without loss."), "{said}");
        let figures = |name: &str| -> Vec<&str> {
            live.said.iter().filter_map(|line| line.trim().strip_prefix(name)).map(str::trim).collect()
        };
        assert_eq!(figures("lost writes"), ["0"; 5], "{said}");
        assert_eq!(figures("hung calls"), ["0"; 5], "{said}");
        // What is done on purpose lets no call fail.
        assert_eq!(figures("failed calls").last(), Some(&"0"), "{said}");
    });
}
