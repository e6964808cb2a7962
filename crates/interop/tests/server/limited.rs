//! A server in a control group with little memory.

use std::fs::{create_dir, read_to_string, remove_dir, write};
use std::path::PathBuf;
use std::process::Command;

use consort_client::{Client, ClientError};
use consort_interop::{Tool, built, in_own_network};

use super::SERVER;

const LIMIT: u64 = 128 << 20;

/// Values that would take nearly twice the limit.
const VALUES: u32 = 24_000;

const BYTES: usize = 10_000;

/// A control group, removed when it is dropped. Its processes have ended by then.
struct Group {
    directory: PathBuf,
    limit: &'static str,
    killed: &'static str,
}

impl Group {
    /// # Panics
    ///
    /// If this machine has no control groups for memory, or this program may make none: as root, or in a container with
    /// the right to do so.
    fn new(name: &str) -> Self {
        let name = format!("consort-{name}-{}", std::process::id());
        let kinds = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.oom_control"),
            ("/sys/fs/cgroup", "memory.max", "memory.events"),
        ];
        for (root, limit, killed) in kinds {
            let directory = PathBuf::from(root).join(&name);
            if create_dir(&directory).is_err() {
                continue;
            }
            let group = Self { directory, limit, killed };
            if write(group.directory.join(group.limit), LIMIT.to_string()).is_ok() {
                return group;
            }
        }
        panic!(
            "missing: a control group for memory, which this test makes below /sys/fs/cgroup: run it as root"
        );
    }

    /// How many of its processes were killed for lack of memory.
    fn killed(&self) -> u64 {
        let told = read_to_string(self.directory.join(self.killed)).expect("events of the group");
        let line = told.lines().find_map(|line| line.strip_prefix("oom_kill ")).expect("a count");
        line.trim().parse().expect("a number")
    }

    /// The `consort` command in this group.
    fn consort(&self, arguments: &[&str]) -> Tool {
        let mut command = Command::new("sh");
        let enter = "echo $$ > \"$0\" && exec \"$@\" 2>&1";
        command
            .args(["-c", enter])
            .arg(self.directory.join("cgroup.procs"))
            .arg(built("consort"))
            .args(arguments);
        Tool::start(command)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that was just killed may still be in it.
        for _ in 0..100 {
            if remove_dir(&self.directory).is_ok() {
                return;
            }
            std::thread::yield_now();
        }
    }
}

fn key(number: u32) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

#[test]
fn server_in_a_group_of_128_mib_refuses_what_it_has_no_memory_for_and_is_not_killed() {
    let name = "limited::server_in_a_group_of_128_mib_refuses_what_it_has_no_memory_for_and_is_not_killed";
    in_own_network(name, async {
        let group = Group::new("limited");
        let mut server = group.consort(&["server"]);
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
        assert_eq!(group.killed(), 0);
        assert!(written > 4_000 && refused > 10_000, "{written} written, {refused} refused");
        assert_eq!(cache.get(&key(0)[..]).await.expect("a read").map(|value| value.len()), Some(BYTES));
        let told = Tool::run_consort(&["doctor", SERVER]);
        let told = String::from_utf8_lossy(&told.stdout).into_owned();
        assert!(told.contains("used, short"), "{told}");
        server.wait_for(&["memory is short", "134 MB"]);
        // The first ones went in.
        for number in 0..3_000 {
            assert!(cache.remove(&key(number)[..]).await.expect("a removal"), "{number}");
        }
        server.wait_for(&["memory is no longer short"]);
        for number in 0..1_000 {
            cache.put(&key(number)[..], &vec![1; BYTES][..]).await.expect("there is room again");
        }
        assert_eq!(group.killed(), 0);
        client.close().await;
    });
}
