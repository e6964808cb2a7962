//! A server in a control group with little memory.

use consort_client::{Client, ClientError};
use consort_interop::{Tool, built, in_own_network};
use consort_testbed::ControlGroup;

use super::SERVER;

const LIMIT: u64 = 128 << 20;

/// Values that would take nearly twice the limit.
const VALUES: u32 = 24_000;

const BYTES: usize = 10_000;

fn key(number: u32) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

#[test]
fn server_in_a_group_of_128_mib_refuses_entries_beyond_its_memory_and_is_not_killed() {
    let name =
        "memory_limit::server_in_a_group_of_128_mib_refuses_entries_beyond_its_memory_and_is_not_killed";
    in_own_network(name, async {
        let group = ControlGroup::new("limited", LIMIT).unwrap();
        let mut server = Tool::start(group.command(&built("consort"), &["server"]));
        server.wait_for(&["Hot Rod on", "alone"]);
        let client = Client::connect(&format!("hotrod://{SERVER}")).await.expect("a client");
        let definition = r#"{"replicated-cache": {"mode": "SYNC"}}"#;
        client.administration().create("shop", definition).await.expect("a cache");
        let cache = client.raw("shop");
        let (mut written, mut refused) = (0, 0);
        for number in 0..VALUES {
            match cache.put(&key(number)[..], &vec![number as u8; BYTES][..]).await {
                Ok(_) => written += 1,
                Err(ClientError::Server { message, .. }) => {
                    assert!(message.contains("134217728 bytes that the control group"), "{message}");
                    refused += 1;
                }
                Err(other) => panic!("{other}"),
            }
        }
        assert_eq!(group.killed().unwrap(), 0);
        assert!(written > 4_000 && refused > 10_000, "{written} written, {refused} refused");
        assert_eq!(cache.get(&key(0)[..]).await.expect("a read").map(|value| value.len()), Some(BYTES));
        let report = Tool::run_consort(&["doctor", SERVER]);
        let report = String::from_utf8_lossy(&report.stdout).into_owned();
        assert!(report.contains("used, short"), "{report}");
        server.wait_for(&["memory is short", "134 MB"]);
        // The first ones went in.
        for number in 0..3_000 {
            assert!(cache.remove(&key(number)[..]).await.expect("a removal"), "{number}");
        }
        server.wait_for(&["memory is no longer short"]);
        for number in 0..1_000 {
            cache.put(&key(number)[..], &vec![1; BYTES][..]).await.expect("there is room again");
        }
        assert_eq!(group.killed().unwrap(), 0);
        client.close().await;
    });
}

#[test]
fn a_process_with_a_limit_below_a_gib_has_no_huge_pages() {
    in_own_network("memory_limit::a_process_with_a_limit_below_a_gib_has_no_huge_pages", async {
        for (limit, enabled) in [("1023MiB", "0"), ("1GiB", "1")] {
            let mut server = Tool::consort(&["server", "--memory", limit]);
            server.wait_for(&["Hot Rod on"]);
            let status = std::fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("THP_enabled:"));
            assert_eq!(line.map(str::trim), Some(enabled), "{limit}: {status}");
            server.terminate();
        }
    });
}
